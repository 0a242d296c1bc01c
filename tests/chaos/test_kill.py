"""kill -9 under load, again and again: what was acked is there, once, at dense offsets.

A real node in a process of its own, a stock idempotent producer. `CHRONIK_KILLS` makes it longer
(`make chaos`).
"""

import os
import random
import subprocess
import threading
import time
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from node_process import CHRONIK, Node

KILLS = int(os.environ.get("CHRONIK_KILLS", "20"))
PARTITIONS = 3


class Load:
    """A producer that numbers its records and remembers which were acked."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "message.timeout.ms": 120_000,
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 100,
                "log_level": 2,
            }
        )
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.acked: dict[int, tuple[int, int]] = {}
        self.failed: list[KafkaError] = []
        self.sent = 0

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed.append(error)
            return
        value, partition, offset = message.value(), message.partition(), message.offset()
        assert value is not None
        assert partition is not None
        assert offset is not None
        self.acked[int(value)] = (partition, offset)

    def _run(self) -> None:
        while not self._end.is_set():
            try:
                self._producer.produce(
                    self._topic,
                    str(self.sent).encode(),
                    partition=self.sent % PARTITIONS,
                    on_delivery=self._delivered,
                )
                self.sent += 1
            except BufferError:
                self._producer.poll(0.05)
            self._producer.poll(0)
            if self.sent % 50 == 0:
                time.sleep(0.001)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._end.set()
        self._thread.join()
        assert self._producer.flush(60) == 0


def read_all(bootstrap: str, topic: str) -> dict[int, list[tuple[int, int]]]:
    """Every record of the topic by partition: (offset, number)."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "check", "enable.auto.commit": False}
    )
    found: dict[int, list[tuple[int, int]]] = {}
    for partition in range(PARTITIONS):
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)
        assert low == 0
        consumer.assign([TopicPartition(topic, partition, 0)])
        rows = found[partition] = []
        while len(rows) < high:
            for message in consumer.consume(5_000, 0.2):
                assert message.error() is None, message.error()
                offset, value = message.offset(), message.value()
                assert offset is not None
                assert value is not None
                rows.append((offset, int(value)))
    consumer.close()
    return found


def test_kill_under_load(tmp_path: Path) -> None:
    seed = int(os.environ.get("CHRONIK_SEED", random.randrange(10**6)))
    print(f"CHRONIK_SEED={seed}")
    chance = random.Random(seed)
    with Node(tmp_path) as node:
        _run_and_check(node, chance)


def _run_and_check(node: Node, chance: random.Random) -> None:
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    admin.create_topics([NewTopic("load", PARTITIONS, 1)])["load"].result(10)
    load = Load(node.bootstrap, "load")
    load.start()
    for _ in range(KILLS):
        before = len(load.acked)
        deadline = time.monotonic() + 30
        while len(load.acked) == before and time.monotonic() < deadline:
            time.sleep(0.005)
        assert len(load.acked) > before, "the producer made no progress after a restart"
        time.sleep(chance.uniform(0, 0.5))
        node.kill()
        node.start()
    load.stop()
    found = read_all(node.bootstrap, "load")
    assert node.stop() == 0
    assert not load.failed
    assert load.sent == len(load.acked) > KILLS * 100
    for partition, rows in found.items():
        assert [offset for offset, _ in rows] == list(range(len(rows))), "offsets are dense"
        numbers = [number for _, number in rows]
        assert len(set(numbers)) == len(numbers), "no duplicates"
        assert numbers == sorted(numbers), "in the order of producing"
        places = {number: (partition, offset) for offset, number in rows}
        for number, place in load.acked.items():
            if place[0] == partition:
                assert places.get(number) == place, f"acked record {number} is not at {place}"


def test_a_second_process_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        _start_a_second(node, tmp_path)


def _start_a_second(node: Node, tmp_path: Path) -> None:
    command = [str(CHRONIK), "start", "--port", "0", "--http-port", "-1", "--data-dir"]
    second = subprocess.run(
        [*command, str(tmp_path)], capture_output=True, text=True, timeout=30, check=False
    )
    assert second.returncode == 1
    assert second.stdout == ""
    (line,) = second.stderr.strip().splitlines()
    assert str(tmp_path) in line
    assert "Traceback" not in line
    assert node.stop() == 0
