"""The processes of a local cluster, by id and start time, in a file that outlives who began them.

A process id alone says little: once its process has ended, the system may give it to another.
"""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

STOP_TIMEOUT_S: Final = 30.0  # A node with much to flush takes seconds.
STOP_POLL_S: Final = 0.05


class Ended(Exception):
    """The cluster cannot go on; the words say why."""


@dataclass(frozen=True, slots=True)
class NodeProcess:
    """A node's process."""

    node_id: int
    pid: int
    started: str  # in the system's own words; only ever compared
    port: int

    @classmethod
    def of(cls, node_id: int, pid: int, port: int) -> "NodeProcess":
        """The process that runs under this id now."""
        return cls(node_id, pid, start_time(pid) or "", port)

    @property
    def is_running(self) -> bool:
        return start_time(self.pid) == self.started

    def signal(self, number: signal.Signals) -> None:
        """Signal the process if it is still this one."""
        if self.is_running:
            with contextlib.suppress(ProcessLookupError):  # It ended just now.
                os.kill(self.pid, number)


def start_time(pid: int) -> str | None:
    """When a process began, in a form of the system's own; None if it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None if Path("/proc/self/stat").exists() else _start_time_by_ps(pid)
    # The name, in parentheses, may itself hold spaces and parentheses; the state follows it.
    state, *fields = text.rpartition(")")[2].split()
    return None if state in "ZX" else fields[18]


def _start_time_by_ps(pid: int) -> str | None:
    command = ["ps", "-o", "stat=,lstart=", "-p", str(pid)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    state, _, started = done.stdout.strip().partition(" ")
    return started.strip() or None if not state.startswith("Z") else None


def stop_all(processes: Iterable[NodeProcess]) -> list[int]:
    """End processes and wait for them; the node ids of those that had to be killed."""
    waiting = list(processes)
    for process in waiting:
        process.signal(signal.SIGTERM)
    waiting = _wait(waiting, STOP_TIMEOUT_S)
    for process in waiting:
        process.signal(signal.SIGKILL)
    _wait(waiting, STOP_TIMEOUT_S)
    return [process.node_id for process in waiting]


def _wait(processes: Sequence[NodeProcess], timeout_s: float) -> list[NodeProcess]:
    deadline = time.monotonic() + timeout_s
    left = [each for each in processes if each.is_running]
    while left and time.monotonic() < deadline:
        time.sleep(STOP_POLL_S)
        left = [each for each in left if each.is_running]
    return left


class Roster:
    """The directory of a local cluster and the file of its processes."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.path = data_dir / "cluster.json"
        self._nodes: list[NodeProcess] = []

    def log(self, node_id: int) -> Path:
        """Where a node's output goes."""
        return self.data_dir / "logs" / f"{node_id}.log"

    def make_directories(self) -> None:
        (self.data_dir / "logs").mkdir(parents=True, exist_ok=True)

    def save(self, nodes: Sequence[NodeProcess]) -> None:
        """Write down what runs. Renamed into place: half a file would hide processes."""
        self._nodes = list(nodes)
        written = self.path.with_suffix(".tmp")
        written.write_text(json.dumps(self.as_json(), indent=1) + "\n", encoding="utf-8")
        written.replace(self.path)

    def as_json(self) -> dict[str, Any]:
        """The processes as they stand in the file."""
        return {"nodes": [asdict(each) for each in self._nodes]}

    def running(self) -> list[NodeProcess]:
        """Those processes in the file that still run."""
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
            nodes = [NodeProcess(**each) for each in found["nodes"]]
        except FileNotFoundError:
            return []
        except (ValueError, KeyError, TypeError):
            raise Ended(f"{self.path} is no list of processes: end them by hand") from None
        return [each for each in nodes if each.is_running]

    def remove(self) -> None:
        """Nothing runs any more."""
        self.path.unlink(missing_ok=True)
