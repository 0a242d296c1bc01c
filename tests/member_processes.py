"""Nodes in processes of their own that found a cluster, join it, leave it and come back."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from cluster_processes import eventually
from ports import free_port

CHRONIK = (sys.executable, "-c", "from chronik.cli.main import main; main()")
TIMEOUT_S = 30.0


class MemberProcesses:
    """Processes by name; each keeps its ports and its directory over restarts."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ports: dict[str, tuple[int, int]] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._log_starts: dict[str, int] = {}

    def kafka(self, name: str) -> str:
        return f"127.0.0.1:{self._ports(name)[0]}"

    def internal(self, name: str) -> str:
        return f"127.0.0.1:{self._ports(name)[1]}"

    def _ports(self, name: str) -> tuple[int, int]:
        if name not in self.ports:
            kafka, internal = free_port(), free_port()
            self.ports[name] = kafka, internal
        return self.ports[name]

    def move(self, name: str) -> None:
        """Give a node other ports for its next start."""
        del self.ports[name]

    def data_dir(self, name: str) -> Path:
        return self.directory / name

    def secret(self, name: str) -> str:
        return (self.data_dir(name) / "secret").read_text()

    def start(self, name: str, *options: str) -> None:
        """Start a node, without waiting for it."""
        port = str(self._ports(name)[0])
        command = [*CHRONIK, "start", "--port", port, "--internal", self.internal(name)]
        command += ["--data-dir", str(self.data_dir(name)), "--http-port", "-1"]
        command += ["--set", "group.initial.rebalance.delay.ms=0", *options]
        with open(self.directory / f"{name}.log", "ab") as log:
            self._log_starts[name] = log.tell()
            self._processes[name] = subprocess.Popen(command, stdout=log, stderr=log)

    def log(self, name: str) -> str:
        """What a node said since its last start."""
        data = (self.directory / f"{name}.log").read_bytes()
        return data[self._log_starts[name] :].decode()

    def ready(self, name: str) -> int:
        """Wait until a node serves; its id."""

        def is_ready() -> bool:
            code = self._processes[name].poll()
            assert code is None, self.log(name)
            return "is ready" in self.log(name)

        eventually(is_ready, f"{name} is ready")
        found = re.search(r"node (\d+) is ready", self.log(name))
        assert found is not None
        return int(found.group(1))

    def begin(self, name: str, *options: str) -> int:
        """Start a node and wait until it serves; its id."""
        self.start(name, *options)
        return self.ready(name)

    def refused(self, name: str) -> str:
        """Wait until a node has ended by itself, with one line that says why."""
        code = self._processes.pop(name).wait(TIMEOUT_S)
        lines = [each for each in self.log(name).splitlines() if each.startswith("chronik: ")]
        assert (code, len(lines)) == (1, 1), self.log(name)
        assert "Traceback" not in self.log(name)
        return lines[0]

    def end(self, name: str, how: signal.Signals = signal.SIGTERM) -> None:
        process = self._processes.pop(name)
        process.send_signal(how)
        process.wait(TIMEOUT_S)

    def kill_all(self) -> None:
        for name in tuple(self._processes):
            self.end(name, signal.SIGKILL)

    def run(self, name: str, *words: str) -> tuple[int, str, str]:
        """Run `chronik cluster ...` against a node."""
        command = [*CHRONIK, "cluster", *words, "--bootstrap", self.kafka(name)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout, done.stderr

    def status(self, name: str) -> dict[str, Any]:
        _, output, errors = self.run(name, "status", "--json", "--timeout", "3")
        assert output, errors
        shown: dict[str, Any] = json.loads(output)
        return shown

    def roles(self, name: str) -> dict[int, str | None]:
        return {node["id"]: node["role"] for node in self.status(name)["nodes"]}

    def wait_voters(self, name: str, *voters: int) -> None:
        """Wait until these vote, as a node tells."""
        eventually(lambda: self.status(name)["voters"] == list(voters), f"voters {voters}")

    def wait_status(self, name: str, node_id: int, status: str) -> None:
        def has_it() -> bool:
            nodes = {node["id"]: node["status"] for node in self.status(name)["nodes"]}
            return nodes.get(node_id) == status

        eventually(has_it, f"node {node_id} is {status}")
