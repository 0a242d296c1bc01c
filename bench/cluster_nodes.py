"""Three nodes in processes of their own, Chronik's or Apache Kafka's, for `bench.cluster`."""

import base64
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterable
from pathlib import Path

from bench.cluster_clients import Wire
from bench.servers import KAFKA_JVM, Server, free_port, kafka_class_path

NODE_IDS = (1, 2, 3)
LIMIT_S = 120.0


class Nodes:
    """A cluster of three; the parts that both servers share."""

    name = ""

    def __init__(self, home: Path) -> None:
        home.mkdir(parents=True)
        self.home = home
        self.ports = {node_id: free_port() for node_id in NODE_IDS}
        self.internal = {node_id: free_port() for node_id in NODE_IDS}
        self._servers: dict[int, Server] = {}

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    @property
    def running(self) -> list[int]:
        return sorted(self._servers)

    def command(self, node_id: int) -> list[str]:
        raise NotImplementedError

    def start(self, node_ids: Iterable[int] = NODE_IDS) -> None:
        """Start these nodes, without waiting for them."""
        for node_id in node_ids:
            with (self.home / f"{node_id}.log").open("ab") as log:
                process = subprocess.Popen(
                    self.command(node_id), stdout=log, stderr=log, stdin=subprocess.DEVNULL
                )
            home = self.home / str(node_id)
            self._servers[node_id] = Server(self.name, process, self.ports[node_id], home, 0.0)

    def end(self, how: signal.Signals, node_ids: Iterable[int] = NODE_IDS) -> None:
        """End these nodes, and wait until they are gone."""
        ending = [self._servers.pop(each) for each in tuple(node_ids) if each in self._servers]
        for server in ending:
            server.process.send_signal(how)
        for server in ending:
            try:
                server.process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                server.process.kill()
                server.process.wait()

    def signal(self, node_id: int, number: signal.Signals) -> None:
        self._servers[node_id].process.send_signal(number)

    def server(self, node_id: int) -> Server:
        return self._servers[node_id]

    def wire(self, node_id: int, timeout_s: float = 30.0) -> Wire:
        return Wire(self.ports[node_id], timeout_s)

    def remove(self) -> None:
        """End everything and leave nothing."""
        self.end(signal.SIGKILL)
        shutil.rmtree(self.home, ignore_errors=True)

    def cpu_s(self) -> float:
        """CPU seconds of all nodes so far."""
        return sum(server.cpu_s() for server in self._servers.values())

    def memory_mb(self) -> float:
        """The anonymous memory of the largest node."""
        return max(server.memory_mb() for server in self._servers.values())

    def log(self, node_id: int) -> str:
        return (self.home / f"{node_id}.log").read_text(errors="replace")


class ChronikNodes(Nodes):
    """Three Chronik nodes with their defaults, the dashboard included, but for `settings`."""

    name = "chronik"

    def __init__(
        self,
        home: Path,
        *settings: str,
        watched: bool = False,
        durability: str = "fsync",
    ) -> None:
        super().__init__(home)
        self._settings = settings
        self._durability = durability
        self.http = {node_id: free_port() for node_id in NODE_IDS}
        self._watched = watched

    def command(self, node_id: int) -> list[str]:
        peers = ",".join(f"{i}@127.0.0.1:{self.ports[i]}:{self.internal[i]}" for i in NODE_IDS)
        program = [str(Path(sys.executable).parent / "chronik")]
        if self._watched:
            program = [sys.executable, "-m", "bench.watched_node"]
        return [
            *program,
            *("start", "--node-id", str(node_id), "--peers", peers),
            *("--data-dir", str(self.home / str(node_id)), "--log-level", "warning"),
            *("--http-port", str(self.http[node_id]), "--durability", self._durability),
            *(part for each in self._settings for part in ("--set", each)),
        ]

    def metrics(self, node_id: int) -> dict[str, float]:
        """The node's own counters, by name and labels as they are written."""
        url = f"http://127.0.0.1:{self.http[node_id]}/metrics"
        limit = time.monotonic() + LIMIT_S
        while True:
            try:
                with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
                    lines = answer.read().decode().splitlines()
                break
            except OSError:  # It listens a little later than the node.
                if time.monotonic() > limit:
                    raise
                time.sleep(0.05)
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}


class KafkaNodes(Nodes):
    """Three nodes of Apache Kafka (KRaft, each broker and controller) with their defaults."""

    name = "kafka"

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        for node_id in NODE_IDS:
            self._format(node_id, cluster)

    def _format(self, node_id: int, cluster: str) -> None:
        voters = ",".join(f"{each}@127.0.0.1:{self.internal[each]}" for each in NODE_IDS)
        own, internal = self.ports[node_id], self.internal[node_id]
        self._properties(node_id).write_text(
            f"process.roles=broker,controller\nnode.id={node_id}\n"
            f"controller.quorum.voters={voters}\n"
            f"listeners=PLAINTEXT://127.0.0.1:{own},CONTROLLER://127.0.0.1:{internal}\n"
            f"controller.listener.names=CONTROLLER\nlog.dirs={self.home / str(node_id)}\n"
            "offsets.topic.replication.factor=3\ndefault.replication.factor=3\n"
        )
        subprocess.run(
            [
                *("java", "-Xmx256m", "-cp", kafka_class_path(), "kafka.tools.StorageTool"),
                *("format", f"--cluster-id={cluster}", "-c", str(self._properties(node_id))),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def _properties(self, node_id: int) -> Path:
        return self.home / f"{node_id}.properties"

    def command(self, node_id: int) -> list[str]:
        properties = str(self._properties(node_id))
        return ["java", *KAFKA_JVM, "-cp", kafka_class_path(), "kafka.Kafka", properties]


def wait_until_listed(nodes: Nodes, wanted: Iterable[int] = NODE_IDS) -> float:
    """Wait until these brokers are what every running node tells; seconds that it took."""
    began = time.monotonic()
    expected = sorted(wanted)
    for node_id in nodes.running:
        while nodes_told_by(nodes, node_id) != expected:
            if time.monotonic() - began > LIMIT_S:
                raise TimeoutError(f"node {node_id} does not tell of {expected}")
            time.sleep(0.005)
    return time.monotonic() - began


def nodes_told_by(nodes: Nodes, node_id: int) -> list[int]:
    """The brokers that one node tells of; none while it does not answer."""
    try:
        with nodes.wire(node_id, 5.0) as wire:
            return sorted(broker.node_id for broker in wire.metadata([]).brokers)
    except OSError:
        return []


def cores() -> int:
    return os.cpu_count() or 1
