"""Clients of the data: each a process of its own that speaks Kafka's protocol over the network.

They remember what they were told. Producers with acks=all hold every acknowledged record against
the cluster; those with acks=1 only make for logs that part. Readers see the same at one offset,
however often they ask, and whomever. A group reads everything at least once. Committed offsets and
transactions are in `transactional_clients`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from sim.world.cluster import HOST, KAFKA_PORT, Cluster
from sim.world.ledger import Ledger
from sim.world.loop import ProcessClock, ProcessLoop

from chronik.client.admin import Admin
from chronik.client.cluster import Cluster as Connected
from chronik.client.consumer import Consumer
from chronik.client.group_consumer import GroupConsumer
from chronik.client.link import Address, ConnectionFailed
from chronik.client.producer import Delivery, Producer
from chronik.model import TopicPartition
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.records import Record

FIRST_ID = 101  # beyond the nodes
PARTITIONS = 2
TOPICS = {"quick": 1, "safe": 2}  # and their min.insync.replicas
PLACES = [TopicPartition(name, index) for name in TOPICS for index in range(PARTITIONS)]
TIMEOUT_S = 2.0  # of a request: some are sent to machines without power
DELIVERY_S = 6.0
PAUSE_S = (0.02, 0.4)
AGAIN_S = 0.2
BURST = 3
FAILURES = (KafkaError, ConnectionFailed, TimeoutError)


class Workload:
    """All clients of the data."""

    def __init__(self, cluster: Cluster, ledger: Ledger, chance: random.Random) -> None:
        self.cluster = cluster
        self.ledger = ledger
        self.chance = chance
        self.is_over = False  # Nobody writes any more.
        self.acked: dict[TopicPartition, list[tuple[int, bytes]]] = {each: [] for each in PLACES}
        self.seen: dict[tuple[TopicPartition, int], bytes] = {}
        self.group_has: set[tuple[TopicPartition, int]] = set()
        self.busy = 0  # writers that have not ended
        self._count = 0
        self._loops: list[ProcessLoop] = []
        self._topics_are_there = False

    def start(self) -> None:
        """Let everybody begin."""
        self.run(self._create_topics())
        for acks in (-1, -1, 1):
            self.run_writer(self._produce(acks))
        self.run(self._read())
        for _ in range(2):
            self.run(self._consume())

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a process for a client."""
        self._count += 1
        cluster = self.cluster
        loop = ProcessLoop(
            cluster.scheduler,
            ProcessClock(cluster.scheduler),
            cluster.network,
            FIRST_ID + self._count,
            lambda: None,
            lambda context: cluster.watch.failed(None, context),
        )
        self._loops.append(loop)
        task: asyncio.Task[None] = loop.enter(lambda: loop.create_task(work, name="client"))
        return task

    def run_writer(self, work: Coroutine[Any, Any, None]) -> None:
        """Start one that begins when there are topics, and ends with the war."""
        self.run(self._writes(work))

    def close(self) -> None:
        """All of them are gone."""
        for loop in self._loops:
            loop.kill()

    async def _writes(self, work: Coroutine[Any, Any, None]) -> None:
        self.busy += 1
        await self.topics()
        await work
        self.busy -= 1

    async def connect(self) -> Connected:
        """The cluster, as soon as anybody answers."""
        nodes = sorted(self.cluster.machines)
        self.chance.shuffle(nodes)
        bootstrap = [Address(HOST, KAFKA_PORT + node_id) for node_id in nodes]
        while True:
            connected = Connected(bootstrap, timeout_s=TIMEOUT_S)
            try:
                return await connected.__aenter__()
            except FAILURES:
                await connected.close()
                await asyncio.sleep(AGAIN_S)

    async def pause(self) -> None:
        await asyncio.sleep(self.chance.uniform(*PAUSE_S))

    def next_value(self, who: str) -> bytes:
        self._count += 1
        return f"{who}-{self._count}".encode()

    def record(self, value: bytes) -> Record:
        """A record of now: older ones are not kept for long."""
        return Record(0, ProcessClock(self.cluster.scheduler).wall_ms(), None, value)

    # What they do.

    async def _create_topics(self) -> None:
        admin = Admin(await self.connect())
        left = dict(TOPICS)
        while left:
            name, least = next(iter(left.items()))
            configs = {"min.insync.replicas": str(least)}
            try:
                await admin.create_topic(
                    name, partitions=PARTITIONS, replication_factor=3, configs=configs
                )
                del left[name]
            except FAILURES as error:
                if getattr(error, "code", None) is ErrorCode.TOPIC_ALREADY_EXISTS:
                    del left[name]
                await asyncio.sleep(AGAIN_S)
        self._topics_are_there = True

    async def topics(self) -> None:
        """Wait until there are topics."""
        while not self._topics_are_there:  # noqa: ASYNC110 - each client has its own loop
            await asyncio.sleep(AGAIN_S)

    async def _produce(self, acks: int) -> None:
        connected = await self.connect()
        clock = ProcessClock(self.cluster.scheduler)
        producer = Producer(
            connected, acks=acks, delivery_timeout_s=DELIVERY_S, clock=clock, linger_s=0.0
        )
        while not self.is_over:
            sent = []
            for _ in range(self.chance.randint(1, BURST)):
                place = self.chance.choice(PLACES)
                value = self.next_value(f"acks {acks}")
                with suppress(*FAILURES):
                    delivery = await producer.send(place.topic, value, partition=place.partition)
                    sent.append((value, delivery))
            for value, delivery in sent:
                await self._delivered(value, delivery, is_promised=acks == -1)
            await self.pause()
        await producer.close()
        await connected.close()

    async def _delivered(self, value: bytes, delivery: Delivery, *, is_promised: bool) -> None:
        try:
            written = await delivery
        except FAILURES:
            return  # Nobody knows.
        if is_promised:
            place = self.ledger.find(*delivery.partition)
            self.ledger.require(
                place.is_void or written.offset < place.end_offset,
                f"{place} acknowledged {written.offset}, committed to {place.end_offset}",
            )
            self.acked[delivery.partition].append((written.offset, value))

    async def _read(self) -> None:
        """Read everything, as it comes; and after each failure again from the beginning."""
        await self.topics()
        while True:
            connected = await self.connect()
            try:
                async with Consumer(connected, dict.fromkeys(PLACES, 0)) as consumer:
                    while True:
                        for chunk in await consumer.poll():
                            for record in chunk.records:
                                self.saw(chunk.partition, record.offset, record.value)
            except FAILURES:
                await asyncio.sleep(AGAIN_S)
            finally:
                await connected.close()

    def saw(self, place: TopicPartition, offset: int, value: bytes | None) -> None:
        """Somebody has read a record."""
        value = bytes(value or b"")
        known = self.seen.setdefault((place, offset), value)
        is_same = known == value or self.ledger.find(*place).is_void
        self.ledger.require(is_same, f"{place} has changed at {offset}: {known!r}, {value!r}")

    async def _consume(self) -> None:
        """Be a member of a group."""
        await self.topics()
        while True:
            connected = await self.connect()
            try:
                async with GroupConsumer(connected, "group", list(TOPICS)) as consumer:
                    while True:
                        for chunk in await consumer.poll():
                            for record in chunk.records:
                                self.saw(chunk.partition, record.offset, record.value)
                                self.group_has.add((chunk.partition, record.offset))
                            consumer.done(chunk.partition, chunk.records[-1].offset + 1)
                        await consumer.commit()
            except FAILURES:
                await asyncio.sleep(AGAIN_S)
            finally:
                await connected.close()

    # What must be true.

    def unread(self) -> list[tuple[TopicPartition, int]]:
        """Acknowledged records that the group has not read."""
        return [
            (place, offset)
            for place, records in self.acked.items()
            if records and not self.ledger.find(*place).is_void
            for offset, _ in records
            if (place, offset) not in self.group_has
        ]
