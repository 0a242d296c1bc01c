#!/usr/bin/env bash
# Gives the project an environment: .venv with a Python of 3.11 or later, made by uv. Where uv is
# not installed it gets an environment of its own in .setup/boot.
set -euo pipefail

fits() { "$1" -c 'import sys; raise SystemExit(sys.version_info < (3, 11))' 2>/dev/null; }

python=""
for candidate in "${PYTHON:-python3}" python3.11 python3.12 python3.13 python3.14; do
    if command -v "$candidate" >/dev/null && fits "$candidate"; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    echo "Chronik needs Python 3.11 or later, and none was found (PYTHON=/path/to/python make ...)" >&2
    exit 1
fi

uv=$(command -v uv || true)
if [ -z "$uv" ]; then
    uv=.setup/boot/bin/uv
    if ! "$python" -m venv .setup/boot >/dev/null 2>&1; then
        # Debian splits venv from Python.
        rm -rf .setup/boot
        if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
            apt_get="apt-get -qq -o DPkg::Lock::Timeout=300"
            $apt_get update >/dev/null && $apt_get install -y python3-venv >/dev/null
        fi
        "$python" -m venv .setup/boot
    fi
    [ -x "$uv" ] || .setup/boot/bin/pip install -q --disable-pip-version-check 'uv>=0.5'
fi
[ -x .venv/bin/python ] || "$uv" venv -q --python "$("$python" -c 'import sys; print(sys.executable)')" .venv
