"""A distributed Kafka Connect worker, from its jars: a file through a topic into a file.

Connect's group is not a consumer group: the `protocol_type` is its own and the broker must not look
into it. Its configs, offsets and states live in compacted topics that it creates, its source writes
in transactions (`exactly.once.source.support`), and its sink reads as an ordinary group.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from clients.conftest import JAVA_FLAGS, environments, eventually, unavailable
from ports import free_port

LINES = 500


@pytest.fixture(scope="module")
def class_path() -> str:
    try:
        return f"{environments.prepare('kafka-applications')}/*"
    except environments.Unavailable as error:
        unavailable("kafka-applications", error)
        raise


class Worker:
    """One worker process and its REST interface."""

    def __init__(self, class_path: str, home: Path, bootstrap: str, name: str) -> None:
        self._class_path = class_path
        self._log = home / "connect.log"
        self._port = free_port()
        self._properties = home / "worker.properties"
        converter = "org.apache.kafka.connect.storage.StringConverter"
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": f"connect-{name}",
            "key.converter": converter,
            "value.converter": converter,
            "listeners": f"http://127.0.0.1:{self._port}",
            "exactly.once.source.support": "enabled",
            "plugin.discovery": "service_load",
            "offset.storage.partitions": 3,
            "offset.flush.interval.ms": 200,
            # A killed worker must not be waited for as long as in production.
            "session.timeout.ms": 2000,
            "heartbeat.interval.ms": 200,
            "scheduled.rebalance.max.delay.ms": 0,
        }
        for kind in ("config", "offset", "status"):
            settings[f"{kind}.storage.topic"] = f"connect-{name}-{kind}"
            settings[f"{kind}.storage.replication.factor"] = 1
        self._properties.write_text("".join(f"{k}={v}\n" for k, v in settings.items()))

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """The worker, killed when the block ends."""
        main = "org.apache.kafka.connect.cli.ConnectDistributed"
        command = ["java", *JAVA_FLAGS, "-cp", self._class_path, main, str(self._properties)]
        with open(self._log, "ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.kill()
            process.wait()

    def create(self, name: str, config: dict[str, str]) -> None:
        """Ask for a connector; refused until the worker has read its topics and joined."""

        def asked() -> bool:
            try:
                return bool(self._rest("PUT", f"/connectors/{name}/config", config))
            except (urllib.error.URLError, ConnectionError):
                return False

        eventually(asked, lambda: self._log.read_text()[-2000:])

    def is_running(self, name: str) -> bool:
        try:
            told = self._rest("GET", f"/connectors/{name}/status")
        except (urllib.error.URLError, ConnectionError):
            return False
        tasks = [task["state"] for task in told["tasks"]]
        assert "FAILED" not in tasks, told
        return told["connector"]["state"] == "RUNNING" and tasks == ["RUNNING"]

    def _rest(self, method: str, path: str, body: object = None):
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=20) as response:
            return json.load(response)


def test_a_file_through_a_topic(class_path, reference, bootstrap, topic, tmp_path):
    source, sink = tmp_path / "source.txt", tmp_path / "sink.txt"
    worker = Worker(class_path, tmp_path, bootstrap, topic)
    halves = [[f"{half}-{i}\n" for i in range(LINES)] for half in ("first", "second")]
    source.write_text("".join(halves[0]))
    reference.create_topic(topic=topic)
    package = "org.apache.kafka.connect.file"
    with worker.running():
        worker.create(
            f"source-{topic}",
            {
                "connector.class": f"{package}.FileStreamSourceConnector",
                "file": str(source),
                "topic": topic,
                "exactly.once.support": "required",
                "transaction.boundary": "poll",
            },
        )
        worker.create(
            f"sink-{topic}",
            {
                "connector.class": f"{package}.FileStreamSinkConnector",
                "file": str(sink),
                "topics": topic,
                "consumer.override.auto.offset.reset": "earliest",
                "consumer.override.session.timeout.ms": "2000",
                "consumer.override.heartbeat.interval.ms": "200",
            },
        )
        # All has arrived, and the sink's offset says so: a new worker need not repeat any of it.
        eventually(lambda: has(sink, LINES) and committed(reference, topic) >= LINES)
        assert sink.read_text() == source.read_text()

    with open(source, "a") as file:
        file.write("".join(halves[1]))
    with worker.running():
        eventually(lambda: has(sink, 2 * LINES), lambda: sink.read_text()[-200:])
        eventually(lambda: worker.is_running(f"source-{topic}"))
        eventually(lambda: worker.is_running(f"sink-{topic}"))
    assert sink.read_text() == "".join(halves[0] + halves[1])


def has(sink: Path, count: int) -> bool:
    return sink.exists() and sink.read_text().count("\n") >= count


def committed(reference, topic: str) -> int:
    """How far the sink's group has come; the transactions' markers are offsets of their own."""
    return sum(told[2] for told in reference.group_offsets(group=f"connect-sink-{topic}"))
