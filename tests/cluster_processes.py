"""Three nodes in processes of their own, which tests start in any order, kill and start again."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata
from node_process import CHRONIK
from ports import free_port
from stalls import stalls

WAIT_S = 20.0
END_S = 90.0  # a killed process ends only when the disk has done what it was asked for


def eventually(condition: Callable[[], bool], what: str, wait_s: float = WAIT_S) -> float:
    """Wait until it holds; how long that took."""
    began, stalled_s = time.monotonic(), stalls().total_s
    while not condition():
        if time.monotonic() - began >= wait_s:
            still_s = stalls().total_s - stalled_s
            raise AssertionError(
                f"not within {wait_s:g} s: {what} (the machine stood still for {still_s:.1f} s)"
            )
        time.sleep(0.02)
    return time.monotonic() - began


class ClusterProcesses:
    """A cluster whose nodes are processes."""

    def __init__(self, directory: Path, count: int = 3, *options: str) -> None:
        ports = [free_port() for _ in range(2 * count)]
        self.ids = range(1, count + 1)
        self.ports = dict(zip(self.ids, ports[:count], strict=True))
        self.internal = dict(zip(self.ids, ports[count:], strict=True))
        self.peers = self.peers_at("127.0.0.1")
        self._directory = directory
        self._options = options
        self.commands: dict[int, list[str]] = {}  # of nodes that are started by another program
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def peers_at(self, host: str) -> str:
        """The peers if all are reached at one host."""
        return ",".join(f"{i}@{host}:{self.ports[i]}:{self.internal[i]}" for i in self.ids)

    @property
    def running(self) -> list[int]:
        """The nodes that were started and neither killed nor stopped."""
        return sorted(self._processes)

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{self.ports[i]}" for i in self.ids)

    def log(self, node_id: int) -> str:
        """What a node has logged."""
        return (self._directory / f"{node_id}.log").read_text()

    def last_words(self) -> str:
        """What became of each process, and how its log ends: for a test that has failed."""
        told = []
        for node_id in self.ids:
            process = self._processes.get(node_id)
            state = "ended by the test"
            if process is not None and (code := process.poll()) is not None:
                state = f"ended by itself: {code}"
            elif process is not None:
                state = f"running: {_waits_for(process.pid)}"
            lines = self.log(node_id).splitlines()[-20:]
            told += [f"node {node_id} {state}", *(f"    {line}" for line in lines)]
        return "\n".join(told)

    def data_dir(self, node_id: int) -> Path:
        return self._directory / str(node_id)

    def start(self, *node_ids: int) -> None:
        """Start these nodes, without waiting for them."""
        for node_id in node_ids or self.ids:
            with open(self._directory / f"{node_id}.log", "ab") as log:
                self._processes[node_id] = subprocess.Popen(
                    [
                        *self.commands.get(node_id, [str(CHRONIK)]),
                        "start",
                        *("--node-id", str(node_id), "--peers", self.peers),
                        *("--data-dir", str(self.data_dir(node_id)), "--http-port", "-1"),
                        *("--advertise", f"127.0.0.1:{self.ports[node_id]}"),
                        *self._options,
                    ],
                    stdout=log,
                    stderr=log,
                )

    def kill(self, *node_ids: int) -> None:
        """kill -9."""
        self._end(signal.SIGKILL, node_ids or tuple(self._processes))

    def stop(self, *node_ids: int) -> None:
        self._end(signal.SIGTERM, node_ids or tuple(self._processes))

    def signal(self, node_id: int, number: signal.Signals) -> None:
        self._processes[node_id].send_signal(number)

    def _end(self, number: signal.Signals, node_ids: tuple[int, ...]) -> None:
        ending = [self._processes.pop(node_id) for node_id in node_ids]
        for process in ending:
            process.send_signal(number)
        for process in ending:
            process.wait(END_S)

    def __enter__(self) -> ClusterProcesses:
        self.start()
        self.wait_for(self.ids)
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    # What clients see.

    def admin(self, node_id: int) -> AdminClient:
        address = f"127.0.0.1:{self.ports[node_id]}"
        return AdminClient({"bootstrap.servers": address, "log_level": 0})

    def metadata(self, node_id: int) -> ClusterMetadata | None:
        """What one node tells; None while it does not answer."""
        try:
            return self.admin(node_id).list_topics(timeout=2)
        except KafkaException:
            return None

    def brokers(self, node_id: int) -> list[int]:
        """The brokers that one node tells of."""
        metadata = self.metadata(node_id)
        return [] if metadata is None else sorted(metadata.brokers)

    def wait_for(self, brokers: range | list[int], on: list[int] | None = None) -> float:
        """Wait until these are the brokers on every node that runs; how long that took."""
        wanted = list(brokers)
        nodes = on or sorted(self._processes)
        return eventually(
            lambda: all(self.brokers(node_id) == wanted for node_id in nodes),
            f"brokers {wanted} on nodes {nodes}",
        )

    def controller(self) -> int:
        """The controller, once all nodes that run agree on it."""
        found: set[int] = set()

        def agree() -> bool:
            found.clear()
            for node_id in self._processes:
                metadata = self.metadata(node_id)
                found.add(-1 if metadata is None else metadata.controller_id)
            return len(found) == 1 and found <= set(self._processes)

        eventually(agree, "one controller")
        return found.pop()


def _waits_for(pid: int) -> str:
    """The state of each thread of a process: S sleeps, R runs, D waits for the disk."""
    stats = (each.read_text() for each in Path(f"/proc/{pid}/task").glob("*/stat"))
    return "".join(stat.rpartition(")")[2].split()[0] for stat in stats)
