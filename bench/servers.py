"""Starts and measures the two servers. Both listen on loopback, both with their defaults."""

import base64
import contextlib
import importlib.util
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parent.parent
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
API_VERSIONS_V0 = b"\x00\x00\x00\x0a\x00\x12\x00\x00\x00\x00\x00\x01\xff\xff"
# Kafka's own start script gives these.
KAFKA_JVM = ["-Xms1g", "-Xmx1g", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"]
KAFKA_JVM += ["-XX:InitiatingHeapOccupancyPercent=35"]
_next_port = itertools.count(os.getpid() * 37)


def clients() -> ModuleType:
    """The module that installs test clients; it also has Kafka's jars."""
    spec = importlib.util.spec_from_file_location("clients", ROOT / "scripts/clients/setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["clients"] = module
    spec.loader.exec_module(module)
    return module


def kafka_class_path() -> str:
    """Kafka's server and tools."""
    return f"{clients().prepare('kafka-tools')}/*"


def free_port() -> int:
    """Below the ports that the kernel gives to clients: one could take it before its server."""
    while True:
        port = 20_000 + next(_next_port) % 12_000
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


@dataclass
class Server:
    """A running server process."""

    name: str
    process: subprocess.Popen[bytes]
    port: int
    home: Path
    start_s: float

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def cpu_s(self) -> float:
        """CPU seconds used so far, user and system."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND

    def memory_mb(self) -> float:
        """Resident anonymous pages: what cannot be taken back like a page cache."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) / 1024
        raise LookupError("RssAnon")

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.home, ignore_errors=True)


def _start(name: str, command: list[str], home: Path, port: int) -> Server:
    began = time.perf_counter()
    with (home / "log.txt").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    while True:
        if process.poll() is not None:
            raise RuntimeError(f"{name} did not start:\n{(home / 'log.txt').read_text()[-2000:]}")
        try:
            with socket.create_connection(("127.0.0.1", port), 1) as link:
                link.sendall(API_VERSIONS_V0)
                link.settimeout(5)
                if link.recv(4):
                    return Server(name, process, port, home, time.perf_counter() - began)
        except OSError:
            time.sleep(0.005)


def start_chronik(home: Path, *options: str) -> Server:
    """A fresh node in a process of its own."""
    home.mkdir(parents=True)
    port = free_port()
    command = [str(ROOT / ".venv/bin/chronik"), "start", "--port", str(port), "--http-port", "-1"]
    command += ["--data-dir", str(home / "data"), "--log-level", "warning", *options]
    return _start("chronik", command, home, port)


def start_kafka(home: Path) -> Server:
    """A fresh Apache Kafka (KRaft, one node) with its defaults."""
    home.mkdir(parents=True)
    port, controller = free_port(), free_port()
    properties = home / "server.properties"
    properties.write_text(
        "process.roles=broker,controller\nnode.id=1\n"
        f"controller.quorum.voters=1@127.0.0.1:{controller}\n"
        f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}\n"
        f"controller.listener.names=CONTROLLER\nlog.dirs={home / 'data'}\n"
        "offsets.topic.replication.factor=1\ntransaction.state.log.replication.factor=1\n"
        "transaction.state.log.min.isr=1\nshare.coordinator.state.topic.replication.factor=1\n"
        "share.coordinator.state.topic.min.isr=1\n"
    )
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    java = ["java", "-cp", kafka_class_path()]
    subprocess.run(
        [
            *(*java, "kafka.tools.StorageTool", "format"),
            *(f"--cluster-id={cluster}", "-c", str(properties)),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    command = ["java", *KAFKA_JVM, "-cp", kafka_class_path(), "kafka.Kafka", str(properties)]
    return _start("kafka", command, home, port)
