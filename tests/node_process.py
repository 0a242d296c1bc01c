"""A node in a process of its own, on a port that it keeps, that tests kill and start again."""

import signal
import subprocess
import sys
from pathlib import Path

from ports import free_port

CHRONIK = Path(sys.executable).parent / "chronik"


class Node:
    """A node process on a fixed port."""

    def __init__(self, data_dir: Path, *options: str) -> None:
        self.port = free_port()
        self._data_dir = data_dir
        self._options = options
        self._process: subprocess.Popen[str] | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [str(CHRONIK), "start", "--port", str(self.port), "--http-port", "-1"]
        command += ["--data-dir", str(self._data_dir), "--log-level", "error", *self._options]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert "ready" in self._process.stdout.readline()

    def __enter__(self) -> "Node":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        return self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> int:
        assert self._process is not None
        self._process.send_signal(how)
        code = self._process.wait(30)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return code
