"""What tests of real clusters do with partitions: move them, write all the while, compare files."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from cluster_processes import eventually
from confluent_kafka import Consumer, Producer, TopicPartition

from chronik.client.admin import Admin
from chronik.client.cluster import Cluster
from chronik.client.link import parse_bootstrap
from chronik.client.moves import Held, held_partitions, move, moving
from chronik.model import TopicPartition as Place

T = TypeVar("T")


def with_cluster(bootstrap: str, work: Callable[[Cluster], Awaitable[T]]) -> T:
    """Do some work with our own client."""

    async def connected() -> T:
        async with Cluster(parse_bootstrap(bootstrap), timeout_s=20) as cluster:
            return await work(cluster)

    return asyncio.run(connected())


def held(bootstrap: str, topic: str) -> dict[int, Held]:
    """Who holds, leads and is in sync, by partition."""
    found = with_cluster(bootstrap, lambda cluster: held_partitions(Admin(cluster)))
    return {place.partition: each for place, each in found.items() if place.topic == topic}


def moves_of(bootstrap: str) -> set[Place]:
    return set(with_cluster(bootstrap, moving))


def move_to(bootstrap: str, topic: str, plan: Mapping[int, list[int]]) -> None:
    """Move partitions and wait until they have arrived."""
    wanted = {Place(topic, index): replicas for index, replicas in plan.items()}
    with_cluster(bootstrap, lambda cluster: move(cluster, wanted))


def wait_in_sync(bootstrap: str, topic: str, wait_s: float = 30.0) -> None:
    """Wait until every replica of a topic is in sync."""

    def all_in_sync() -> bool:
        return all(
            sorted(each.isr) == sorted(each.replicas) for each in held(bootstrap, topic).values()
        )

    eventually(all_in_sync, f"every replica of {topic} is in sync", wait_s)


class Writer:
    """An idempotent producer in a thread; it knows what was acknowledged, in order."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.acked: dict[int, list[bytes]] = defaultdict(list)
        self.errors: list[str] = []
        self._topic, self._partitions = topic, partitions
        self._is_over = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        number = 0
        while not self._is_over.is_set():
            for index in range(self._partitions):
                number += 1
                self._producer.produce(
                    self._topic, b"%012d" % number, partition=index, on_delivery=self._delivered
                )
            self._producer.poll(0.001)
        self._producer.flush(60)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.errors.append(str(error))
        else:
            self.acked[message.partition()].append(message.value())

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(90)

    @property
    def count(self) -> int:
        return sum(map(len, self.acked.values()))


def read_all(bootstrap: str, topic: str, counts: Mapping[int, int]) -> dict[int, list[bytes]]:
    """All values of these partitions, from the beginning, in order."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "log_level": 0,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in counts])
    found: dict[int, list[bytes]] = defaultdict(list)

    def enough() -> bool:
        for message in consumer.consume(1000, 0.2):
            assert message.error() is None, message.error()
            found[message.partition()].append(message.value())
        return all(len(found[index]) >= count for index, count in counts.items())

    eventually(enough, f"all of {topic}", 60)
    consumer.close()
    return dict(found)


def segments(data_dir: Path, topic: str, index: int) -> bytes | None:
    """The bytes of a partition's log on one node's disk; None if it has none."""
    (directory,) = list((data_dir / "topics").glob(f"{topic}.*")) or [None]
    if directory is None or not (directory / str(index)).exists():
        return None
    return b"".join(path.read_bytes() for path in sorted((directory / str(index)).glob("*.log")))
