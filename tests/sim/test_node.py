"""A whole node on a disk that loses, at a crash, whatever was not fsynced.

A seeded life: topics come and go, producers write, records are deleted, and power fails at a
random operation of the disk, again and again. What a client was told before must be true after
each restart. The same lives on a disk that ignores one fsync must break a promise: each row of
`NEEDED` is an fsync of this system, and removing it is noticed.

`make sim` runs more seeds (CHRONIK_SIM_SEEDS); a failure names its seed.
"""

import asyncio
import os
import random
from contextlib import suppress
from typing import Any

import pytest
from crash_disk import CrashDisk, Ignore, nothing_ignored

from chronik.broker import Broker, StartFailed
from chronik.config.settings import Settings
from chronik.protocol import apis
from chronik.protocol.batch import split
from chronik.protocol.codec import decode, encode
from chronik.protocol.errors import KafkaError
from chronik.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from chronik.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from chronik.protocol.messages.producer_ids import InitProducerIdRequest
from chronik.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
)
from chronik.protocol.records import Record, build_batch, iter_records
from chronik.protocol.schema import Message
from chronik.server.context import Context
from chronik.server.dispatch import HANDLERS

SEEDS = int(os.environ.get("CHRONIK_SIM_SEEDS", "60"))
CRASHES = 5
VERSIONS = {apis.PRODUCE.key: 9, apis.DELETE_TOPICS.key: 5}


class Lost(Exception):
    """A promise that was not kept."""


class Promised:
    """What a client was told of one topic."""

    def __init__(self) -> None:
        self.acked: dict[int, bytes] = {}  # offset to value
        self.log_start_offset = 0


class Life:
    """One node through many crashes, and all that it promised."""

    def __init__(self, seed: int, ignore: Ignore) -> None:
        self.chance = random.Random(seed)
        self.disk = CrashDisk(ignore)
        self.topics: dict[str, Promised] = {}
        self.deleted: set[str] = set()
        self.unsure: set[str] = set()  # asked for without an answer: either is right
        self.producer_ids: set[int] = set()
        self.last_term = 0
        self.cluster_id: str | None = None
        self.counter = 0

    async def run(self) -> None:
        for _ in range(CRASHES):
            self.disk.operations_left = self.chance.randrange(150)
            await self._live()
            self.disk.crash(self.chance.randrange(1 << 30))
        await self._check_all()

    async def _live(self) -> None:
        broker = self._broker()
        with suppress(StartFailed, OSError):
            async with broker:
                self._check_identity(broker)
                for _ in range(200):
                    if self.disk.operations_left <= 0:
                        break
                    work = [self._act(broker) for _ in range(self.chance.randrange(1, 4))]
                    await asyncio.gather(*work)

    def _broker(self) -> Broker:
        settings = Settings(
            port=0, http_port=-1, data_dir="/data", kafka={"auto.create.topics.enable": "false"}
        )
        return Broker(settings, disk=self.disk)

    def _check_identity(self, broker: Broker) -> None:
        if broker.metadata.term <= self.last_term:
            raise Lost(f"term {broker.metadata.term} was used before")
        self.last_term = broker.metadata.term
        if self.cluster_id not in (None, broker.node.cluster_id):
            raise Lost("the data directory changed its cluster")
        self.cluster_id = broker.node.cluster_id

    async def _ask(self, broker: Broker, api: apis.Api, request: Message) -> Any:
        version = VERSIONS.get(api.key, api.versions.last)
        context = Context(broker.node, version, None, "sim")
        answer = HANDLERS[api.key](context, request)
        if not isinstance(answer, Message):
            answer = await asyncio.wait_for(answer, 5)
        flexible = api.is_flexible(version)  # As a client sees it: parts may come encoded.
        return decode(api.response, encode(answer, version, flexible), version, flexible)

    async def _act(self, broker: Broker) -> None:
        action = self.chance.choices(
            [self._create, self._delete, self._produce, self._delete_records, self._producer_id],
            [2, 1, 10, 1, 1],
        )[0]
        with suppress(KafkaError, TimeoutError):
            await action(broker)

    async def _create(self, broker: Broker) -> None:
        self.counter += 1
        name = f"t{self.counter}"
        self.unsure.add(name)
        topic = CreatableTopic(
            name=name,
            num_partitions=1,
            replication_factor=1,
            assignments=(),
            configs=[CreatableTopicConfig(name="segment.bytes", value="1500")],
        )
        response = await self._ask(broker, apis.CREATE_TOPICS, CreateTopicsRequest(topics=[topic]))
        if response.topics[0].error_code == 0:
            self.unsure.discard(name)
            self.topics[name] = Promised()

    async def _delete(self, broker: Broker) -> None:
        name = self._any_topic()
        if name is None:
            return
        promised = self.topics.pop(name)
        self.unsure.add(name)
        request = DeleteTopicsRequest(topic_names=[name], timeout_ms=5000)
        response = await self._ask(broker, apis.DELETE_TOPICS, request)
        if response.responses[0].error_code == 0:
            self.unsure.discard(name)
            self.deleted.add(name)
        del promised

    def _any_topic(self) -> str | None:
        return self.chance.choice(sorted(self.topics)) if self.topics else None

    async def _produce(self, broker: Broker) -> None:
        name = self._any_topic()
        if name is None:
            return
        self.counter += 1
        values = [f"{self.counter}-{n}".encode() * 20 for n in range(self.chance.randrange(1, 4))]
        data = build_batch([Record(n, 1, b"k", value) for n, value in enumerate(values)])
        partition = PartitionProduceData(index=0, records=data)
        request = ProduceRequest(
            acks=-1,
            timeout_ms=5000,
            topic_data=[TopicProduceData(name=name, partition_data=[partition])],
        )
        response = await self._ask(broker, apis.PRODUCE, request)
        answer = response.responses[0].partition_responses[0]
        if answer.error_code == 0 and name in self.topics:
            for delta, value in enumerate(values):
                self.topics[name].acked[answer.base_offset + delta] = value

    async def _delete_records(self, broker: Broker) -> None:
        name = self._any_topic()
        if name is None or not self.topics[name].acked:
            return
        promised = self.topics[name]
        offset = self.chance.choice(sorted(promised.acked))
        for gone in [each for each in promised.acked if each < offset]:
            del promised.acked[gone]  # Asked to go: from here on they may be there or not.
        request = DeleteRecordsRequest(
            topics=[
                DeleteRecordsTopic(
                    name=name, partitions=[DeleteRecordsPartition(partition_index=0, offset=offset)]
                )
            ],
            timeout_ms=5000,
        )
        response = await self._ask(broker, apis.DELETE_RECORDS, request)
        answer = response.topics[0].partitions[0]
        if answer.error_code == 0:
            promised.log_start_offset = max(promised.log_start_offset, answer.low_watermark)

    async def _producer_id(self, broker: Broker) -> None:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
        response = await self._ask(broker, apis.INIT_PRODUCER_ID, request)
        if response.error_code == 0:
            if response.producer_id in self.producer_ids:
                raise Lost(f"producer id {response.producer_id} was given twice")
            self.producer_ids.add(response.producer_id)

    async def _check_all(self) -> None:
        async with self._broker() as broker:
            self._check_identity(broker)
            there = set(broker.metadata.image.topics)
            if missing := set(self.topics) - there:
                raise Lost(f"created topics {missing} are gone")
            if back := self.deleted & there:
                raise Lost(f"deleted topics {back} are back")
            for name, promised in self.topics.items():
                await self._check_topic(broker, name, promised)

    async def _check_topic(self, broker: Broker, name: str, promised: Promised) -> None:
        start, end = [await self._offset(broker, name, which) for which in (-2, -1)]
        if start < promised.log_start_offset:
            raise Lost(f"{name}: deleted records from {start} are back")
        partition = broker.replicas.find(broker.metadata.image.topics[name], 0)
        found: dict[int, bytes | None] = {}
        offset = start
        while offset < end:
            batches = split(partition.read(offset, 1 << 20, nowait=False) or b"")
            for batch in batches:
                found.update((r.offset, r.value) for r in iter_records(batch.data))
            offset = batches[-1].header.next_offset
        if sorted(each for each in found if each >= start) != list(range(start, end)):
            raise Lost(f"{name}: offsets are not dense")
        for offset, value in promised.acked.items():
            if found.get(offset) != value:
                raise Lost(f"{name}: the acked record at {offset} is gone")

    async def _offset(self, broker: Broker, name: str, which: int) -> int:
        asked = ListOffsetsPartition(partition_index=0, timestamp=which)
        topics = [ListOffsetsTopic(name=name, partitions=[asked])]
        request = ListOffsetsRequest(replica_id=-1, topics=topics)
        response = await self._ask(broker, apis.LIST_OFFSETS, request)
        answer = response.topics[0].partitions[0]
        if answer.error_code:
            raise Lost(f"{name}: error {answer.error_code}")
        return int(answer.offset)


def live(seed: int, ignore: Ignore = nothing_ignored) -> None:
    asyncio.run(Life(seed, ignore).run())


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_no_crash_breaks_a_promise(first: int) -> None:
    for seed in range(first, min(first + 10, SEEDS)):
        try:
            live(seed)
        except (Lost, StartFailed) as error:
            pytest.fail(f"seed {seed}: {error}")


def of(kind: str, part: str) -> Ignore:
    return lambda asked, path, caller: asked == kind and part in path


# The data directory is synced again with the first metadata entry, before anything is answered, so
# that the one after node.json's rename cannot be missed; everything else can.
NEEDED = {
    "the vote file": of("replaced file", "vote.json"),
    "the vote file's directory": of("replaced directory", "__chronik_metadata"),
    "the identity file": of("replaced file", "node.json"),
    "the metadata log": of("file", "__chronik_metadata"),
    "the partition logs": of("file", "/topics/"),
    "the data directory": lambda asked, path, caller: asked == "directory" and path == "/data",
    "the topics directory": lambda a, path, caller: a == "directory" and path == "/data/topics",
    "the partition directories": lambda asked, path, caller: (
        asked == "directory" and path.endswith("/0")
    ),
    "checkpoints": of("replaced file", "/checkpoint"),
    "checkpoints' directories": of("replaced directory", "/topics/"),
}


@pytest.mark.parametrize("name", NEEDED)
def test_each_fsync_is_needed(name: str) -> None:
    for seed in range(400):
        try:
            live(seed, NEEDED[name])
        except (Lost, StartFailed, AssertionError):
            return
    pytest.fail(f"nobody noticed that the fsync of {name} is missing")
