"""Fetch: whole batches, as stored, from the partitions of a session or of one request.

Versions: 0-18 (0-3 get message sets of magic 0 or 1; from 7 on sessions; from 13 on topic ids).

Behaviour
    A full fetch answers every partition it named, an incremental one those with news.
    `min_bytes` waits for appends, at most `max_wait_ms`: an append wakes it, not a poll.
    The first partition with data gives at least one whole batch, whatever the limits.
    An offset below the log start or above the log's end is OFFSET_OUT_OF_RANGE.
    A client that names its rack (v11+) is sent to an in-sync replica there, if there is one, and
    may read from it up to the high watermark that the follower knows.
    read_committed (v4+) reads up to the last stable offset and is told of the aborted transactions
    among what it gets; read_uncommitted gets null there, as from Kafka.
    zstd is UNSUPPORTED_COMPRESSION_TYPE in a message set, and below v10 if the topic itself
    compresses with it: as in Kafka, a producer's own zstd is the consumer's to understand.
    A message set has no word for a batch without records: such batches are read over, or the
    consumer would ask for the same offset for ever.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple

from chronik.metadata.image import Topic
from chronik.protocol import codecs, legacy
from chronik.protocol.batch import split
from chronik.protocol.errors import ErrorCode, KafkaError, ProtocolError
from chronik.protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from chronik.protocol.messages.produce import NodeEndpoint
from chronik.protocol.schema import Buffer, Part
from chronik.replication.leader_epochs import check_leader_epoch, end_offset_for_epoch
from chronik.replication.partition import Partition
from chronik.server.context import Context
from chronik.server.current_leader import current_leader, endpoints
from chronik.server.fetch_sessions import FetchSession, Interest, Key, Position

BY_ID_VERSION = 13
MESSAGE_SET_VERSION = 3  # up to here clients read only message sets
MAGIC_1_VERSION = 2
ZSTD_VERSION = 10
FOLLOWER_VERSION = 11  # from here on a client may read from a follower (KIP-392)
REQUEST_LIMIT_VERSION = 3  # from here on a request limits the whole response
TOLD_AHEAD_MS = 100  # far longer than a commit round: what was acknowledged can be read at once
COLD_AT_ONCE = 32  # partitions loaded or read from the device at the same time for one request


class _Blocked(Exception):
    """A partition cannot be read without waiting for the disk."""

    def __init__(self, position: Position, partition: Partition, read: "_Read | None") -> None:
        super().__init__()
        self.position = position
        self.partition = partition
        self.read = read  # None: the partition must be loaded first


class _Read(NamedTuple):
    """What to read from a partition."""

    offset: int
    size: int
    at_least_one_batch: bool


class _Reader:
    """Reads what one request wants, within its limits."""

    def __init__(
        self, context: Context, request: FetchRequest, interest: Interest, full: bool
    ) -> None:
        self._context = context
        self._request = request
        self._interest = interest
        self._full = full
        self._cold: dict[Key, Buffer | KafkaError] = {}
        self._blocked: list[_Blocked] = []
        self._passed: dict[Key, int] = {}  # Below: nothing that a message set could hold.
        self.results: dict[Key, PartitionData] = {}
        self.bytes_read = 0
        self.has_error = False
        self.is_behind = False  # A transaction was told of records that are there in a moment.

    def read(self) -> bool:
        """Read every partition that may have news; False if some must be waited for."""
        self.results.clear()
        self.bytes_read = 0
        self.has_error = False
        self.is_behind = False
        self._blocked.clear()
        config = self._context.node.broker_config()
        left = min(config.integer("fetch.max.bytes"), self._context.node.fetch_bytes_left())
        if self._context.version >= REQUEST_LIMIT_VERSION:
            left = min(left, max(self._request.max_bytes, 0))
        keys = self._interest.positions if self._full else self._interest.ready
        for key in tuple(keys):
            position = self._interest.positions[key]
            try:
                data = self._read_partition(position, left)
            except KafkaError as error:
                data = self._error(key, error)
                self.has_error = True
            except _Blocked as blocked:
                self._blocked.append(blocked)
                left -= 0 if blocked.read is None else blocked.read.size
                continue
            self.results[key] = data
            left -= _size(data)
        return not self._blocked

    def _read_partition(self, position: Position, left: int) -> PartitionData:
        partition = self._resolve(position.key)
        if not partition.is_loaded and partition.failure is None:
            raise _Blocked(position, partition, None)
        position.found(partition, self._interest)
        check_leader_epoch(partition, position.leader_epoch)
        nearest = self._nearest(partition, position)
        if nearest is not None:
            self.has_error = True  # Answer at once: it shall go on there.
            return self._data(partition, position, b"", nearest=nearest)
        diverging = self._diverging_epoch(partition, position)
        if diverging is not None:
            self.has_error = True  # Answer at once: nothing that is appended changes it.
            return self._data(partition, position, b"", diverging)
        records = self._records(partition, position, left)
        self.bytes_read += len(records)
        if partition.is_told_ahead and not len(records) and not self._interest.committed:
            self.is_behind = True
        self._context.node.metrics.records_bytes_out += len(records)
        return self._data(partition, position, records)

    def _data(
        self,
        partition: Partition,
        position: Position,
        records: Part,
        diverging_epoch: EpochEndOffset | None = None,
        nearest: int = -1,
    ) -> PartitionData:
        aborted = None
        if self._interest.committed:
            offset = position.fetch_offset
            aborted = [
                AbortedTransaction(producer_id=each.producer_id, first_offset=each.first_offset)
                for each in partition.aborted_transactions(offset, records)
            ]
        return PartitionData(
            partition_index=partition.index,
            error_code=ErrorCode.NONE,
            high_watermark=partition.high_watermark,
            last_stable_offset=partition.last_stable_offset,
            log_start_offset=partition.log.log_start_offset,
            diverging_epoch=diverging_epoch or _NO_DIVERGENCE,
            aborted_transactions=aborted,
            preferred_read_replica=nearest,
            records=records,
        )

    def _topic(self, key: Key) -> Topic | None:
        image = self._context.image
        return image.topic_by_id(key[0]) if isinstance(key[0], bytes) else image.topics.get(key[0])

    def _resolve(self, key: Key) -> Partition:
        topic = self._topic(key)
        if topic is None and isinstance(key[0], bytes):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        replicas = self._context.node.replicas
        if self._context.version >= FOLLOWER_VERSION:
            return replicas.find_readable(topic, key[1])
        return replicas.find(topic, key[1])

    def _error(self, key: Key, error: KafkaError) -> PartitionData:
        return PartitionData(
            partition_index=key[1],
            error_code=error.code,
            high_watermark=-1,
            records=b"",
            current_leader=current_leader(self._topic(key), key[1], error.code),
        )

    def _nearest(self, partition: Partition, position: Position) -> int | None:
        """Another replica in the client's rack that has what it asks for (KIP-392)."""
        rack = self._request.rack_id
        in_sync = partition.in_sync
        if not rack or in_sync is None or not in_sync.followers:
            return None
        brokers = self._context.image.brokers
        own = brokers.get(self._context.node.node_id)
        if own is None or own.rack == rack:
            return None
        for node_id in in_sync.isr:
            broker, follower = brokers.get(node_id), in_sync.followers.get(node_id)
            if broker is None or broker.rack != rack or follower is None:
                continue
            if follower.end_offset >= position.fetch_offset:
                return node_id
        return None

    def _diverging_epoch(self, partition: Partition, position: Position) -> EpochEndOffset | None:
        """Where a follower's log and ours part, if its last epoch says so (KIP-595)."""
        asked = position.last_fetched_epoch
        if asked < 0:
            return None
        epoch, end_offset = end_offset_for_epoch(partition, asked)
        if epoch < 0:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if epoch == asked and end_offset >= position.fetch_offset:
            return None
        return EpochEndOffset(epoch=epoch, end_offset=end_offset)

    def _records(self, partition: Partition, position: Position, left: int) -> Part:
        # A partition that is waited for will give something, and then it is the first.
        nothing_yet = self.bytes_read == 0 and not self._blocked
        first = nothing_yet or self._context.version < REQUEST_LIMIT_VERSION
        size = max(min(position.max_bytes, left), 1 if first else 0)
        if self._context.version >= ZSTD_VERSION:
            read = _Read(position.fetch_offset, size, first)
            return self._in_file(partition, position, read) or self._stored(
                partition, position, read
            )
        while True:
            data = self._stored(partition, position, _Read(self._offset(position), size, first))
            if not len(data):
                return data
            converted = self._for_old_client(partition, position, data)
            if len(converted):
                return converted
            self._passed[position.key] = split(data)[-1].header.next_offset
            self._cold.pop(position.key, None)

    def _in_file(self, partition: Partition, position: Position, read: _Read) -> Part | None:
        """What the kernel can send by itself: see `storage.file_range`."""
        if position.key in self._cold:
            return None
        return partition.file_range(read.offset, read.size, committed=self._interest.committed)

    def _stored(self, partition: Partition, position: Position, read: _Read) -> Buffer:
        cold = self._cold.get(position.key)
        if isinstance(cold, KafkaError):
            raise cold
        if cold is not None:
            return cold
        data = partition.read(
            read.offset,
            read.size,
            committed=self._interest.committed,
            at_least_one_batch=read.at_least_one_batch,
        )
        if data is None:
            raise _Blocked(position, partition, read)
        return data

    def _offset(self, position: Position) -> int:
        return self._passed.get(position.key, position.fetch_offset)

    def _for_old_client(self, partition: Partition, position: Position, data: Buffer) -> Buffer:
        version = self._context.version
        if partition.config.codec == codecs.ZSTD:
            raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        if version > MESSAGE_SET_VERSION:
            return data
        if not partition.config.downconversion:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
        magic = 1 if version >= MAGIC_1_VERSION else 0
        try:
            return legacy.from_batches(data, magic, position.fetch_offset)
        except ProtocolError as error:  # A producer's garbage: see ADR 0002.
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from None

    async def read_cold(self) -> None:
        """Read on until nothing blocks: load partitions, and take cold bytes from threads."""
        while not self.read():
            blocked = tuple(self._blocked)
            for first in range(0, len(blocked), COLD_AT_ONCE):
                some = blocked[first : first + COLD_AT_ONCE]
                await asyncio.gather(*(self._unblock(each) for each in some))
        self._cold.clear()

    async def _unblock(self, blocked: _Blocked) -> None:
        node, partition, read = self._context.node, blocked.partition, blocked.read
        if read is None:
            await node.replicas.load(partition)
            return
        try:
            data = await node.disk.run(
                lambda: partition.read(
                    read.offset,
                    read.size,
                    committed=self._interest.committed,
                    at_least_one_batch=read.at_least_one_batch,
                    nowait=False,
                )
            )
        except KafkaError as error:
            self._cold[blocked.position.key] = error
            return
        assert data is not None
        self._cold[blocked.position.key] = data

    def is_satisfied(self) -> bool:
        return self.has_error or self.bytes_read >= self._request.min_bytes

    def response(self) -> FetchResponse:
        """The answer; partitions that were answered go to the end of the next one's queue."""
        chosen = {
            key: data
            for key, data in self.results.items()
            if self._full or _is_news(data, self._interest.positions[key])
        }
        for key, data in self.results.items():
            position = self._interest.positions[key]
            position.high_watermark = data.high_watermark
            position.log_start_offset = data.log_start_offset
            if _size(data) or data.error_code:
                # There may be more, and the client moves its offset in the next request.
                self._interest.ready.pop(key, None)
                self._interest.ready[key] = None
                self._interest.positions.move_to_end(key)
            elif position.fetch_offset >= self._end_offset(data):
                self._interest.ready.pop(key, None)  # Nothing is left that it was not told.
        session_id = self._interest.id if isinstance(self._interest, FetchSession) else 0
        found_at: Sequence[NodeEndpoint] = ()
        if self.has_error:
            leaders = [data.current_leader for data in chosen.values()]
            found_at = endpoints(self._context.image, leaders)
        return FetchResponse(
            session_id=session_id, responses=_grouped(chosen), node_endpoints=found_at
        )

    def _end_offset(self, data: PartitionData) -> int:
        return data.last_stable_offset if self._interest.committed else data.high_watermark


def fetch(
    context: Context, request: FetchRequest
) -> FetchResponse | Coroutine[Any, Any, FetchResponse]:
    by_id = context.version >= BY_ID_VERSION
    try:
        interest, full = context.node.fetch_sessions.begin(request, by_id)
    except KafkaError as error:
        return FetchResponse(error_code=error.code, responses=())
    reader = _Reader(context, request, interest, full)
    if reader.read() and (reader.is_satisfied() or _wait_ms(request, reader) <= 0):
        response = reader.response()
        _end(interest)
        return response
    return _wait(request, interest, reader)


async def _wait(request: FetchRequest, interest: Interest, reader: _Reader) -> FetchResponse:
    """Wait for enough bytes or the deadline, reading again after each wake-up.

    It also reads again at the beginning: something may have been appended between the handler's
    own read and this first step.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + max(_wait_ms(request, reader), 0) / 1000
    try:
        interest.watch_all()
        while True:
            await reader.read_cold()
            if reader.is_satisfied() or loop.time() >= deadline:
                return reader.response()
            woken = loop.create_future()
            interest.park(request.min_bytes - reader.bytes_read, lambda: _wake(woken))  # noqa: B023
            timer = loop.call_at(deadline, _wake, woken)
            try:
                await woken
            finally:
                timer.cancel()
                interest.unpark()
    finally:
        _end(interest)


def _wait_ms(request: FetchRequest, reader: _Reader) -> int:
    return max(request.max_wait_ms, TOLD_AHEAD_MS) if reader.is_behind else request.max_wait_ms


def _wake(woken: "asyncio.Future[None]") -> None:
    if not woken.done():
        woken.set_result(None)


def _end(interest: Interest) -> None:
    if not isinstance(interest, FetchSession):
        interest.close()


def _is_news(data: PartitionData, position: Position) -> bool:
    return bool(
        _size(data)
        or data.error_code
        or data.diverging_epoch.epoch >= 0
        or data.high_watermark != position.high_watermark
        or data.log_start_offset != position.log_start_offset
    )


def _size(data: PartitionData) -> int:
    records: Any = data.records
    return len(records)


_NO_DIVERGENCE = EpochEndOffset()


def _grouped(results: dict[Key, PartitionData]) -> list[FetchableTopicResponse]:
    topics: dict[str | bytes, list[PartitionData]] = {}
    for (name, _), data in results.items():
        topics.setdefault(name, []).append(data)
    return [
        FetchableTopicResponse(topic_id=name, partitions=partitions)
        if isinstance(name, bytes)
        else FetchableTopicResponse(topic=name, partitions=partitions)
        for name, partitions in topics.items()
    ]
