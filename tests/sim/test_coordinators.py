"""Groups and transactions on a disk that loses, at a crash, whatever was not fsynced.

A seeded life: a group commits offsets, transactional producers write to many partitions, send
offsets along and commit or abort, two requests at a time and more; power fails at a random
operation of the disk, again and again. After each restart a reader of committed data must find
what clients were told: no acknowledged offset lost or gone back, each transaction whole or not at
all, and with its offsets; and no transaction may stay open once its producer begins anew.

`make sim` runs more seeds (CHRONIK_SIM_SEEDS); a failure names its seed.
"""

import asyncio
import os
import random
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from crash_disk import CrashDisk, Ignore, nothing_ignored

from chronik.broker import Broker, StartFailed
from chronik.config.settings import Settings
from chronik.protocol import apis, coordinator_apis
from chronik.protocol.batch import split
from chronik.protocol.codec import decode, encode
from chronik.protocol.control import read_marker
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from chronik.protocol.messages.groups import FindCoordinatorRequest
from chronik.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from chronik.protocol.messages.offset_commits import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)
from chronik.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from chronik.protocol.messages.producer_ids import InitProducerIdRequest
from chronik.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from chronik.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from chronik.protocol.records import Record, build_batch, iter_records
from chronik.protocol.schema import Message
from chronik.server.context import Context
from chronik.server.dispatch import HANDLERS

SEEDS = int(os.environ.get("CHRONIK_SIM_SEEDS", "60"))
CRASHES = 5
PATIENCE_S = 3.0  # a coordinator answers within half a second that it is busy
ROUNDS = 100  # more than there are operations of the disk, unless all is refused
PARTITIONS = 3
COMMITTED, LATEST = 1, -1
GROUP, TRANSACTION = 0, 1
LATER = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.CONCURRENT_TRANSACTIONS)
SETTINGS = {
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
}


class Lost(Exception):
    """A promise that was not kept."""


class Refused(Exception):
    """An answer that ends what a client was doing."""


@dataclass
class Offset:
    """What a group was told of one of its offsets."""

    asked: int = -1
    acknowledged: int = -1


@dataclass
class Transaction:
    """What was written, and how its end was answered: True, False or not at all."""

    values: list[tuple[int, bytes]] = field(default_factory=list)
    offset: int = -1
    is_committed: bool | None = False


@dataclass
class Producer:
    """A transactional producer, by the old protocol (version 1) or the new one (2)."""

    name: str
    version: int
    producer_id: int = -1
    epoch: int = -1
    sequences: dict[int, int] = field(default_factory=dict)
    past: list[Transaction] = field(default_factory=list)

    @property
    def is_new(self) -> bool:
        return self.version == 2

    @property
    def group_id(self) -> str:
        return f"g-{self.name}"

    @property
    def stamp(self) -> dict[str, Any]:
        return {"producer_id": self.producer_id, "producer_epoch": self.epoch}


class Life:
    """One node through many crashes, and all that its coordinators promised."""

    def __init__(self, seed: int, ignore: Ignore) -> None:
        self.chance = random.Random(seed)
        self.disk = CrashDisk(ignore)
        self.offsets = [Offset() for _ in range(PARTITIONS)]
        self.producers = [Producer("old", 1), Producer("new", 2)]
        self.counter = 0
        self.broker: Broker

    async def run(self) -> None:
        async with self._open():
            topic = CreatableTopic(
                name="t",
                num_partitions=PARTITIONS,
                replication_factor=1,
                assignments=(),
                configs=(),
            )
            await self._ask(apis.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[topic]))
        for _ in range(CRASHES):
            self.disk.operations_left = self.chance.randrange(400)
            await self._live()
            self.disk.crash(self.chance.randrange(1 << 30))
            async with self._open():
                await self._check_all()

    def _open(self) -> Broker:
        settings = Settings(port=0, http_port=-1, data_dir="/data", kafka=SETTINGS)
        self.broker = Broker(settings, disk=self.disk)
        return self.broker

    async def _live(self) -> None:
        with suppress(StartFailed, OSError):
            async with self._open():
                await self._find_coordinators()
                for _ in range(ROUNDS):
                    if self.disk.operations_left <= 0:
                        break
                    acts = [self._act(self._commit()) for _ in range(self.chance.randrange(3))]
                    acts += [self._act(self._transact(each)) for each in self.producers]
                    await self._while_there_is_power(asyncio.gather(*acts))

    async def _while_there_is_power(self, acts: asyncio.Future[Any]) -> None:
        """Without power nobody gets an answer, and a machine that is off cannot be waited for."""
        while not acts.done():
            await asyncio.wait([acts], timeout=0.02)
            if self.disk.operations_left == 0:
                acts.cancel()
        with suppress(asyncio.CancelledError):
            await acts

    async def _act(self, work: Any) -> None:
        with suppress(KafkaError, TimeoutError, Refused):
            await work

    # Asking.

    async def _ask(self, api: apis.Api, version: int, request: Message) -> Any:
        context = Context(self.broker.node, version, None, "sim")
        answer = HANDLERS[api.key](context, request)
        if not isinstance(answer, Message):
            answer = await asyncio.wait_for(answer, 5)
        flexible = api.is_flexible(version)
        return decode(api.response, encode(answer, version, flexible), version, flexible)

    async def _sure(self, api: apis.Api, version: int, request: Message, code: Any) -> Any:
        """Ask until the coordinator has loaded and is not busy; raise what else it says."""
        give_up = time.monotonic() + PATIENCE_S
        while time.monotonic() < give_up:
            answer = await self._ask(api, version, request)
            error_code = code(answer)
            if not error_code:
                return answer
            if error_code not in LATER or self.disk.operations_left == 0:
                break  # Without its disk a coordinator stays busy.
            await asyncio.sleep(0.002)
        raise Refused(ErrorCode(error_code).name)

    async def _find_coordinators(self) -> None:
        keys = {GROUP: ["g", "g-old", "g-new"], TRANSACTION: ["old", "new"]}
        for key_type, names in keys.items():
            request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=names)
            await self._ask(coordinator_apis.FIND_COORDINATOR, 6, request)

    # What clients do.

    async def _commit(self) -> None:
        self.counter += 1
        partition, offset = self.chance.randrange(PARTITIONS), self.counter
        self.offsets[partition].asked = offset
        each = OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=""
        )
        topics = [OffsetCommitRequestTopic(name="t", partitions=[each])]
        request = OffsetCommitRequest(group_id="g", topics=topics)
        answer = await self._ask(coordinator_apis.OFFSET_COMMIT, 9, request)
        if answer.topics[0].partitions[0].error_code == 0:
            known = self.offsets[partition]
            known.acknowledged = max(known.acknowledged, offset)

    async def _transact(self, producer: Producer) -> None:
        transaction = Transaction()
        producer.past.append(transaction)
        try:
            if producer.epoch < 0:
                await self._init(producer)
            for _ in range(self.chance.randrange(1, 4)):
                await self._write(producer, transaction, self.chance.randrange(PARTITIONS))
            if self.chance.random() < 0.7:
                await self._send_offset(producer, transaction)
            fate = self.chance.random()
            if fate < 0.9:
                await self._end(producer, transaction, committed=fate < 0.6)
            else:
                producer.epoch = -1  # It goes away, and begins anew.
        except (Refused, KafkaError, TimeoutError):
            producer.epoch = -1
            raise

    async def _init(self, producer: Producer) -> None:
        request = InitProducerIdRequest(
            transactional_id=producer.name, transaction_timeout_ms=60_000
        )
        version = 5 if producer.is_new else 1
        answer = await self._sure(
            apis.INIT_PRODUCER_ID, version, request, lambda answer: answer.error_code
        )
        producer.producer_id, producer.epoch = answer.producer_id, answer.producer_epoch
        producer.sequences = {}

    async def _write(self, producer: Producer, transaction: Transaction, partition: int) -> None:
        if not producer.is_new:
            await self._add_partition(producer, partition)
        self.counter += 1
        value = f"{producer.name}-{self.counter}".encode()
        sequence = producer.sequences.get(partition, 0)
        data = build_batch(
            [Record(0, 1, None, value)],
            base_sequence=sequence,
            transactional=True,
            **producer.stamp,
        )
        each = PartitionProduceData(index=partition, records=data)
        request = ProduceRequest(
            transactional_id=producer.name,
            acks=-1,
            timeout_ms=5_000,
            topic_data=[TopicProduceData(name="t", partition_data=[each])],
        )
        transaction.values.append((partition, value))
        await self._sure(
            apis.PRODUCE,
            12 if producer.is_new else 11,
            request,
            lambda answer: answer.responses[0].partition_responses[0].error_code,
        )
        producer.sequences[partition] = sequence + 1

    async def _add_partition(self, producer: Producer, partition: int) -> None:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=producer.name,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name="t", partitions=[partition])],
        )
        await self._sure(
            coordinator_apis.ADD_PARTITIONS_TO_TXN,
            3,
            request,
            lambda answer: (
                answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
            ),
        )

    async def _send_offset(self, producer: Producer, transaction: Transaction) -> None:
        if not producer.is_new:
            add = AddOffsetsToTxnRequest(
                transactional_id=producer.name, group_id=producer.group_id, **producer.stamp
            )
            await self._sure(
                coordinator_apis.ADD_OFFSETS_TO_TXN, 3, add, lambda answer: answer.error_code
            )
        self.counter += 1
        transaction.offset = self.counter
        each = TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=transaction.offset, committed_metadata=""
        )
        request = TxnOffsetCommitRequest(
            transactional_id=producer.name,
            group_id=producer.group_id,
            topics=[TxnOffsetCommitRequestTopic(name="t", partitions=[each])],
            **producer.stamp,
        )
        await self._sure(
            coordinator_apis.TXN_OFFSET_COMMIT,
            5 if producer.is_new else 3,
            request,
            lambda answer: answer.topics[0].partitions[0].error_code,
        )

    async def _end(self, producer: Producer, transaction: Transaction, committed: bool) -> None:
        request = EndTxnRequest(
            transactional_id=producer.name, committed=committed, **producer.stamp
        )
        if committed:
            transaction.is_committed = None
        answer = await self._sure(
            coordinator_apis.END_TXN,
            5 if producer.is_new else 1,
            request,
            lambda answer: answer.error_code,
        )
        transaction.is_committed = committed
        if producer.is_new:
            producer.producer_id, producer.epoch = answer.producer_id, answer.producer_epoch
            producer.sequences = {}

    # What must be true.

    async def _check_all(self) -> None:
        await self._find_coordinators()
        for producer in self.producers:
            try:
                await self._init(producer)  # It ends what was open.
            except Refused as error:
                raise Lost(f"{producer.name} cannot begin anew: {error}") from None
        visible: set[tuple[int, bytes]] = set()
        for partition in range(PARTITIONS):
            for value in await self._read_committed(partition):
                if (partition, value) in visible:
                    raise Lost(f"{value!r} is there twice")
                visible.add((partition, value))
        for producer in self.producers:
            self._check_transactions(producer, visible)
            await self._check_sent_offset(producer)
        for partition, known in enumerate(self.offsets):
            offset = await self._committed_offset("g", partition)
            if not known.acknowledged <= offset <= known.asked:
                raise Lost(f"g, partition {partition}: {known} and found {offset}")
            known.acknowledged = offset  # What was seen may not go back either.

    def _check_transactions(self, producer: Producer, visible: set[tuple[int, bytes]]) -> None:
        for transaction in producer.past:
            there = [each in visible for each in transaction.values]
            if transaction.is_committed is None and there:
                transaction.is_committed = there[0]  # Nobody was told; from now on it is decided.
            if any(found is not transaction.is_committed for found in there):
                raise Lost(f"{producer.name}: {transaction}, of which is visible: {there}")

    async def _check_sent_offset(self, producer: Producer) -> None:
        wanted = [each.offset for each in producer.past if each.is_committed]
        offset = await self._committed_offset(producer.group_id, 0)
        if offset != max(wanted, default=-1):
            raise Lost(f"{producer.group_id}: found {offset} of {wanted}")

    async def _committed_offset(self, group_id: str, partition: int) -> int:
        topics = [OffsetFetchRequestTopic(name="t", partition_indexes=[partition])]
        groups = [OffsetFetchRequestGroup(group_id=group_id, topics=topics)]
        request = OffsetFetchRequest(groups=groups, require_stable=True)
        for _ in range(500):
            answer = (await self._ask(coordinator_apis.OFFSET_FETCH, 9, request)).groups[0]
            if answer.error_code in LATER:
                await asyncio.sleep(0.002)
                continue
            found = answer.topics[0].partitions[0]
            if answer.error_code or found.error_code:
                raise Lost(f"{group_id}: errors {answer.error_code}, {found.error_code}")
            return int(found.committed_offset)
        raise Lost(f"{group_id} does not load")

    async def _read_committed(self, partition: int) -> list[bytes]:
        """What a consumer makes of a partition: it drops the batches of aborted transactions."""
        end, stable = [await self._end_offset(partition, each) for each in (0, COMMITTED)]
        if end != stable:
            raise Lost(f"partition {partition}: stable to {stable}, but it ends at {end}")
        values: list[bytes] = []
        offset = 0
        while offset < end:
            asked = FetchPartition(
                partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20
            )
            request = FetchRequest(
                max_wait_ms=0,
                min_bytes=0,
                isolation_level=COMMITTED,
                topics=[FetchTopic(topic="t", partitions=[asked])],
            )
            answer = await self._ask(apis.FETCH, 12, request)
            data = answer.responses[0].partitions[0]
            if data.error_code or not data.records:
                raise Lost(f"partition {partition}: error {data.error_code} at {offset} of {end}")
            offset = _keep_committed(data, values)
        return values

    async def _end_offset(self, partition: int, isolation_level: int) -> int:
        asked = ListOffsetsPartition(partition_index=partition, timestamp=LATEST)
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation_level,
            topics=[ListOffsetsTopic(name="t", partitions=[asked])],
        )
        answer = await self._ask(apis.LIST_OFFSETS, 6, request)
        return int(answer.topics[0].partitions[0].offset)


def _keep_committed(data: Any, values: list[bytes]) -> int:
    aborted = sorted(data.aborted_transactions or (), key=lambda each: each.first_offset)
    dropped: set[int] = set()
    batches = split(data.records)
    for batch in batches:
        header = batch.header
        while aborted and aborted[0].first_offset <= header.base_offset:
            dropped.add(aborted.pop(0).producer_id)
        if header.is_control:
            marker = read_marker(batch.data)
            if marker is not None and not marker.commit:
                dropped.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in dropped):
            values += [bytes(each.value or b"") for each in iter_records(batch.data)]
    return batches[-1].header.next_offset


def live(seed: int, ignore: Ignore = nothing_ignored) -> None:
    asyncio.run(Life(seed, ignore).run())


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_no_crash_breaks_a_promise(first: int) -> None:
    for seed in range(first, min(first + 10, SEEDS)):
        try:
            live(seed)
        except (Lost, StartFailed) as error:
            pytest.fail(f"seed {seed}: {error}")


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state", "/t."])
def test_the_fsync_of_each_log_is_needed(topic: str) -> None:
    for seed in range(100):
        try:
            live(seed, lambda kind, path, caller: kind == "file" and topic in path)
        except (Lost, StartFailed, AssertionError):
            return
    pytest.fail(f"nobody noticed that the fsync of {topic} is missing")
