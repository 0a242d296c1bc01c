"""A batching producer: records gather for a moment, and leave as one batch for a partition.

Each partition has a lane: open and full batches in order, of which one at a time is on its way.
So the order of records holds across retries, and while one batch travels the next one fills.

A batch is built once, with the producer's id and its sequence number, and sent again unchanged.
An idempotent producer therefore writes it once, however often an answer is lost. If a batch is
given up after all, nobody knows whether it was written: then the next one begins under a new id.
Within a transaction there is no such thing: it has failed, and is to be aborted.

    async with Producer(cluster) as producer:
        delivery = await producer.send("orders", b"value", key=b"key")
        await producer.flush()        # raises the first error since the last flush
        print((await delivery).offset)
"""

import asyncio
import random
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from chronik.client.cluster import Cluster, check
from chronik.client.partitioner import partition_of
from chronik.client.transaction import PRODUCE_VERSION_MAX, ProducerIdentity, Transaction
from chronik.clock import Clock, SystemClock
from chronik.model import NO_SEQUENCE, TopicPartition
from chronik.protocol import codecs
from chronik.protocol.apis import INIT_PRODUCER_ID, PRODUCE
from chronik.protocol.batch import SEQUENCE_MASK, TRANSACTIONAL_FLAG
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from chronik.protocol.messages.producer_ids import InitProducerIdRequest, InitProducerIdResponse
from chronik.protocol.records import BatchBuilder, Headers, size_max
from chronik.protocol.schema import NO_UUID

ACKS_ALL: Final = -1
LINGER_S: Final = 0.005  # Kafka's own since 4.0
BATCH_BYTES_MAX: Final = 512 * 1024  # half of what a topic accepts by default
BUFFER_BYTES_MAX: Final = 32 * 1024 * 1024  # Kafka's own buffer.memory
DELIVERY_TIMEOUT_S: Final = 30.0
LAST_VERSION_WITH_NAMES: Final = 12
# The broker only keeps it for transactions, but refuses what is not positive.
TRANSACTION_TIMEOUT_MS: Final = 60_000


class Written(NamedTuple):
    """Where a record went; offset -1 if nobody said (acks=0)."""

    topic: str
    partition: int
    offset: int
    timestamp: int


class _Batch:
    """Records for one partition, and the future of where the first of them went."""

    __slots__ = ("builder", "data", "deadline", "first_offset", "is_sealed", "size")

    def __init__(self, deadline: float) -> None:
        self.builder = BatchBuilder()
        self.deadline = deadline
        self.size = 0
        self.is_sealed = False  # whether somebody else has filled it
        self.data = b""
        loop = asyncio.get_running_loop()
        self.first_offset: asyncio.Future[int] = loop.create_future()


@dataclass(frozen=True, slots=True)
class Delivery:
    """A record on its way: await it to learn where it was written, or why it was not."""

    partition: TopicPartition
    timestamp: int
    batch: _Batch
    index: int

    def __await__(self) -> Generator[Any, None, Written]:
        # Shielded: a caller that gives up must not take the whole batch with it.
        first = yield from asyncio.shield(self.batch.first_offset).__await__()
        offset = first + self.index if first >= 0 else first
        return Written(*self.partition, offset, self.timestamp)


class _Lane:
    """The batches of one partition, in order."""

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.batches: deque[_Batch] = deque()
        self.hurry = asyncio.Event()  # a batch is full, or somebody waits in `flush`
        self.task: asyncio.Task[None] | None = None
        self.identity = ProducerIdentity()
        self.next_sequence = 0


class Producer:
    """Sends records to any topic of a cluster."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        acks: int = ACKS_ALL,
        codec: int = codecs.NONE,
        linger_s: float = LINGER_S,
        batch_bytes_max: int = BATCH_BYTES_MAX,
        delivery_timeout_s: float = DELIVERY_TIMEOUT_S,
        idempotent: bool | None = None,
        transaction: Transaction | None = None,
        clock: Clock | None = None,
    ) -> None:
        assert transaction is None or acks == ACKS_ALL, "a transaction needs all acknowledgements"
        self._cluster = cluster
        self._acks = acks
        self._codec = codec
        self._linger_s = linger_s
        self._batch_bytes_max = batch_bytes_max
        self._delivery_timeout_s = delivery_timeout_s
        self._idempotent = acks == ACKS_ALL if idempotent is None else idempotent
        self._transaction = transaction
        self._clock = clock or SystemClock()
        self._identity: ProducerIdentity | None = None
        self._identifying = asyncio.Lock()
        self._lanes: dict[TopicPartition, _Lane] = {}
        self._sticky: dict[str, int] = {}
        self._buffered_bytes = 0
        self._room = asyncio.Event()
        self._failure: Exception | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            await self.flush()
        await self.close()

    async def close(self) -> None:
        """Stop at once; what was not flushed fails."""
        tasks = [lane.task for lane in self._lanes.values() if lane.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for lane in self._lanes.values():
            for batch in lane.batches:
                _set_failure(batch, RuntimeError("the producer was closed"))
            lane.batches.clear()

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Delivery:
        """Add a record to its batch; waits only while the buffer is full."""
        partition_count = await self._partition_count(topic, partition)
        size = size_max(key, value, headers)
        await self._wait_for_room(size)
        if partition is None:
            partition = self._choose(topic, key, partition_count)
        place = TopicPartition(topic, partition)
        timestamp = self._clock.wall_ms() if timestamp is None else timestamp
        batch = self._batch(place, size)
        batch.builder.append(timestamp, key, value, headers)
        batch.size += size
        self._buffered_bytes += size
        return Delivery(place, timestamp, batch, batch.builder.record_count - 1)

    async def send_batch(self, place: TopicPartition, builder: BatchBuilder) -> None:
        """Add a batch that somebody else has filled; what is sent later comes after it."""
        await self._partition_count(place.topic, place.partition)
        await self._wait_for_room(builder.size)
        batch = self._batch(place, self._batch_bytes_max + 1)  # Nothing has so much room left.
        batch.builder = builder
        batch.is_sealed = True
        batch.size = builder.size
        self._buffered_bytes += batch.size
        self._lanes[place].hurry.set()

    async def flush(self) -> None:
        """Wait until all records have been written, or raise the first error since last time."""
        while waiting := [lane for lane in self._lanes.values() if lane.task is not None]:
            for lane in waiting:
                lane.hurry.set()
            await asyncio.wait([lane.task for lane in waiting if lane.task is not None])
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    async def _wait_for_room(self, size: int) -> None:
        while self._buffered_bytes and self._buffered_bytes + size > BUFFER_BYTES_MAX:
            self._room.clear()
            await self._room.wait()

    async def _partition_count(self, topic: str, partition: int | None) -> int:
        async def ask() -> int:
            return len((await self._cluster.topic(topic, auto_create=True)).partitions)

        count = await self._cluster.retry(ask, topics=(topic,))
        if partition is not None and not 0 <= partition < count:
            self._cluster.forget((topic,))  # It may have grown.
            count = await self._cluster.retry(ask, topics=(topic,))
            if not 0 <= partition < count:
                message = f"{topic} has no partition {partition}, only {count}"
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
        return count

    def _choose(self, topic: str, key: bytes | None, partition_count: int) -> int:
        if key is not None:
            return partition_of(key, partition_count)
        chosen = self._sticky.get(topic)
        if chosen is None:
            # Many short-lived producers must not all begin at partition 0.
            chosen = random.randrange(partition_count)
        chosen %= partition_count
        self._sticky[topic] = chosen
        return chosen

    def _batch(self, place: TopicPartition, size: int) -> _Batch:
        lane = self._lanes.get(place)
        if lane is None:
            lane = self._lanes[place] = _Lane(place)
        batch = lane.batches[-1] if lane.batches else None
        is_closed = batch is None or batch.data or batch.is_sealed
        if batch is None or is_closed or batch.size + size > self._batch_bytes_max:
            if batch is not None:
                lane.hurry.set()
                self._move_on(place)
            now = asyncio.get_running_loop().time()
            batch = _Batch(now + self._delivery_timeout_s)
            lane.batches.append(batch)
            if lane.task is None:
                lane.hurry.clear()
                lane.task = asyncio.create_task(self._drain(lane), name=f"produce-{place}")
        return batch

    def _move_on(self, place: TopicPartition) -> None:
        """Let the next record without a key go to the next partition."""
        if self._sticky.get(place.topic) == place.partition:
            self._sticky[place.topic] = place.partition + 1

    async def _drain(self, lane: _Lane) -> None:
        try:
            async with asyncio.timeout(self._linger_s):
                await lane.hurry.wait()
        except TimeoutError:
            pass
        try:
            while lane.batches:
                await self._deliver(lane, lane.batches[0])
        finally:
            lane.task = None

    async def _deliver(self, lane: _Lane, batch: _Batch) -> None:
        remaining_s = batch.deadline - asyncio.get_running_loop().time()
        try:
            first_offset = await self._cluster.retry(
                lambda: self._write(lane, batch),
                topics=(lane.partition.topic,),
                timeout_s=max(remaining_s, 0.0),
            )
        except Exception as error:
            # Whatever went wrong, those who wait for this batch must hear of it.
            if self._identity == lane.identity:
                self._identity = None
            self._failure = self._failure or error
            _set_failure(batch, error)
        else:
            batch.first_offset.set_result(first_offset)
        lane.batches.popleft()
        self._buffered_bytes -= batch.size
        self._room.set()

    async def _write(self, lane: _Lane, batch: _Batch) -> int:
        identity = await self._identify() if self._idempotent else ProducerIdentity()
        if not batch.data:
            self._build(lane, batch, identity)
        partition = await self._cluster.partition(lane.partition)
        topic = await self._cluster.topic(lane.partition.topic)
        link = await self._cluster.link(partition.leader_id)
        transaction = self._transaction
        if transaction is not None:
            await transaction.add(lane.partition)
        data = PartitionProduceData(index=lane.partition.partition, records=batch.data)
        request = ProduceRequest(
            transactional_id=None if transaction is None else transaction.transactional_id,
            acks=self._acks,
            timeout_ms=int(self._cluster.timeout_s * 1000),
            topic_data=[
                TopicProduceData(
                    name=lane.partition.topic, topic_id=topic.topic_id, partition_data=[data]
                )
            ],
        )
        # Brokers without topic ids cannot be asked in a version that names topics by them.
        version_max = LAST_VERSION_WITH_NAMES if topic.topic_id == NO_UUID else None
        if transaction is not None:
            version_max = PRODUCE_VERSION_MAX
        if self._acks == 0:
            await link.post(request, PRODUCE, version_max=version_max)
            return -1
        response: ProduceResponse = await link.send(
            request,
            PRODUCE,
            timeout_s=2 * self._cluster.timeout_s,  # The broker's own wait is the first half.
            version_max=version_max,
        )
        return _first_offset(lane.partition, response)

    def _build(self, lane: _Lane, batch: _Batch, identity: ProducerIdentity) -> None:
        if identity != lane.identity:
            lane.identity = identity
            lane.next_sequence = 0
        batch.data = batch.builder.build(
            codec=self._codec,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=lane.next_sequence if self._idempotent else NO_SEQUENCE,
            flags=0 if self._transaction is None else TRANSACTIONAL_FLAG,
        )
        lane.next_sequence = lane.next_sequence + batch.builder.record_count & SEQUENCE_MASK

    async def _identify(self) -> ProducerIdentity:
        if self._transaction is not None:
            return self._transaction.identity
        async with self._identifying:
            if self._identity is None:
                request = InitProducerIdRequest(
                    transactional_id=None, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS
                )
                link = await self._cluster.any_link()
                response: InitProducerIdResponse = await link.send(
                    request, INIT_PRODUCER_ID, timeout_s=self._cluster.timeout_s
                )
                check(response.error_code, "a producer id")
                self._identity = ProducerIdentity(response.producer_id, response.producer_epoch)
            return self._identity


def _set_failure(batch: _Batch, error: Exception) -> None:
    batch.first_offset.set_exception(error)
    batch.first_offset.exception()  # Taken here: a delivery need not be awaited, see `flush`.


def _first_offset(place: TopicPartition, response: ProduceResponse) -> int:
    (topic,) = response.responses
    (partition,) = topic.partition_responses
    if partition.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
        return -1  # It was written so long ago that the broker no longer knows where.
    reasons = [error.batch_index_error_message or "" for error in partition.record_errors]
    message = partition.error_message or "; ".join(filter(None, reasons)) or None
    check(partition.error_code, str(place), message)
    return partition.base_offset
