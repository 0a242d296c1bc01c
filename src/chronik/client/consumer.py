"""Reads given partitions from given offsets, batch by batch or record by record.

One fetch at a time is on its way to each node that leads some of the partitions. `positions` holds
the next offset of each, and moves only past what `poll` has returned, so that it can be read, saved
or changed between two polls. A partition that reaches its end offset, where one is given, is
dropped; when none is left, the iteration ends.

    async with Consumer(cluster, {TopicPartition("orders", 0): 0}) as consumer:
        async for partition, record in consumer:
            ...

Control batches move the position and are not shown. A partition whose leader moves, dies or is
about to be elected is tried again for as long as the cluster's timeout, while the others go on.
Groups are in `group_consumer`.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Final, NamedTuple, Self

from chronik.client.aborted import AbortedBatches
from chronik.client.cluster import BACKOFF_MAX_S, BACKOFF_S, Cluster, check, patience_s
from chronik.client.link import ConnectionFailed
from chronik.client.offsets import list_offsets
from chronik.model import TopicPartition
from chronik.protocol.apis import FETCH
from chronik.protocol.batch import split, verify_crc
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from chronik.protocol.records import Record, iter_records
from chronik.protocol.schema import NO_UUID

MAX_WAIT_MS: Final = 500  # Kafka's own
PARTITION_BYTES_MAX: Final = 1024 * 1024  # Kafka's own
# Decoding what one fetch brings holds the loop: 8 MiB of small records are about half a second.
FETCH_BYTES_MAX: Final = 8 * 1024 * 1024
LAST_VERSION_WITH_NAMES: Final = 12


class Chunk(NamedTuple):
    """Records of one partition, in order, and where its log ended when they were read."""

    partition: TopicPartition
    records: list[Record]
    high_watermark: int


class _Place(NamedTuple):
    """A partition as its leader's node is asked for it."""

    partition: TopicPartition
    leader_epoch: int
    topic_id: bytes


class _Fetch(NamedTuple):
    """A fetch on its way: from which offsets, and whose topic ids they are."""

    offsets: dict[TopicPartition, int]
    names: dict[bytes, str]
    request: FetchRequest


class _Failing(NamedTuple):
    """Since when a partition cannot be read, and when to try again."""

    since: float
    retry_at: float


class Consumer:
    """Reads partitions by assignment."""

    def __init__(
        self,
        cluster: Cluster,
        positions: Mapping[TopicPartition, int],
        *,
        ends: Mapping[TopicPartition, int] | None = None,
        reset: int | None = None,
        read_committed: bool = False,
        max_wait_ms: int = MAX_WAIT_MS,
        fetch_bytes_max: int = FETCH_BYTES_MAX,
        partition_bytes_max: int = PARTITION_BYTES_MAX,
    ) -> None:
        """`reset` is the ListOffsets timestamp to go on from where an offset is out of range.

        With `read_committed` records of open and of aborted transactions are not returned.
        """
        self.positions = dict(positions)
        self._cluster = cluster
        self._ends = dict(ends or {})
        self._reset = reset
        self._read_committed = read_committed
        self._max_wait_ms = max_wait_ms
        self._fetch_bytes_max = fetch_bytes_max
        self._partition_bytes_max = partition_bytes_max
        self._fetches: dict[asyncio.Task[FetchResponse], _Fetch] = {}
        self._failing: dict[TopicPartition, _Failing] = {}
        self._out_of_range: set[TopicPartition] = set()
        self._failure: KafkaError | ConnectionFailed | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop fetching."""
        for task in self._fetches:
            task.cancel()
        await asyncio.gather(*self._fetches, return_exceptions=True)
        self._fetches.clear()

    def fail(self, error: KafkaError | ConnectionFailed) -> None:
        """Let the polls to come, and the one under way, raise this."""
        self._failure = self._failure or error

    async def __aiter__(self) -> AsyncIterator[tuple[TopicPartition, Record]]:
        while chunks := await self.poll():
            for chunk in chunks:
                for record in chunk.records:
                    yield chunk.partition, record

    async def poll(self) -> list[Chunk]:
        """The next records of at least one partition; nothing once all have reached their end.

        It may be cancelled: what is on its way is returned by the next call.
        """
        while self._drop_ended():
            if self._failure is not None:
                raise self._failure
            await self._reset_positions()
            await self._start_fetches()
            # From here to the return nothing awaits, so that no records are lost to a cancel.
            chunks = [chunk for done in await self._wait() for chunk in self._finish(done)]
            if chunks:
                return chunks
        return []

    def _drop_ended(self) -> bool:
        for partition, end in self._ends.items():
            if self.positions.get(partition, -1) >= end:
                del self.positions[partition]
        return bool(self.positions)

    async def _reset_positions(self) -> None:
        if self._out_of_range:
            assert self._reset is not None
            found = await list_offsets(
                self._cluster, dict.fromkeys(self._out_of_range, self._reset)
            )
            self.positions.update(found)
            self._out_of_range.clear()

    async def _start_fetches(self) -> None:
        busy = self._busy()
        now = asyncio.get_running_loop().time()
        groups: dict[int, list[_Place]] = {}
        for partition in tuple(self.positions):  # Who owns this may change it meanwhile.
            failing = self._failing.get(partition)
            if partition in busy or (failing is not None and failing.retry_at > now):
                continue
            try:
                leader = await self._cluster.partition(partition)
                topic = await self._cluster.topic(partition.topic)
            except (KafkaError, ConnectionFailed) as error:
                self._fail(partition, error)
            else:
                place = _Place(partition, leader.leader_epoch, topic.topic_id)
                groups.setdefault(leader.leader_id, []).append(place)
        for node_id, places in groups.items():
            fetch = self._fetch([each for each in places if each.partition in self.positions])
            name = f"fetch-from-{node_id}"
            self._fetches[asyncio.create_task(self._send(node_id, fetch), name=name)] = fetch

    def _busy(self) -> set[TopicPartition]:
        """The partitions of fetches that are on their way."""
        return {partition for fetch in self._fetches.values() for partition in fetch.offsets}

    async def _wait(self) -> set[asyncio.Task[FetchResponse]]:
        """Wait for an answer, or until a failing partition is due for another try."""
        now = asyncio.get_running_loop().time()
        busy = self._busy()  # Those are being tried: their answer is what to wait for.
        idle = self._failing.keys() & self.positions.keys() - busy
        waiting = (self._failing[each].retry_at for each in idle)
        due = min(waiting, default=None)
        pause_s = None if due is None else max(due - now, 0.0)
        if not self._fetches:
            await asyncio.sleep(pause_s or 0.0)
            return set()
        done, _ = await asyncio.wait(
            self._fetches, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED
        )
        return done

    def _fetch(self, places: list[_Place]) -> _Fetch:
        by_topic: dict[tuple[str, bytes], list[FetchPartition]] = {}
        for partition, leader_epoch, topic_id in places:
            wanted = FetchPartition(
                partition=partition.partition,
                current_leader_epoch=leader_epoch,
                fetch_offset=self.positions[partition],
                partition_max_bytes=self._partition_bytes_max,
            )
            by_topic.setdefault((partition.topic, topic_id), []).append(wanted)
        request = FetchRequest(
            max_wait_ms=self._max_wait_ms,
            min_bytes=1,
            max_bytes=self._fetch_bytes_max,
            isolation_level=int(self._read_committed),
            topics=[
                FetchTopic(topic=name, topic_id=topic_id, partitions=partitions)
                for (name, topic_id), partitions in by_topic.items()
            ],
        )
        offsets = {place.partition: self.positions[place.partition] for place in places}
        names = {topic_id: name for name, topic_id in by_topic}
        return _Fetch(offsets, names, request)

    async def _send(self, node_id: int, fetch: _Fetch) -> FetchResponse:
        link = await self._cluster.link(node_id)
        response: FetchResponse = await link.send(
            fetch.request,
            FETCH,
            timeout_s=self._cluster.timeout_s + self._max_wait_ms / 1000,
            # Brokers without topic ids cannot be asked in a version that names topics by them.
            version_max=LAST_VERSION_WITH_NAMES if NO_UUID in fetch.names else None,
        )
        return response

    def _finish(self, task: asyncio.Task[FetchResponse]) -> list[Chunk]:
        fetch = self._fetches.pop(task)
        chunks: list[Chunk] = []
        try:
            response = task.result()
            check(response.error_code, "fetch")
        except (KafkaError, ConnectionFailed) as error:
            for partition in fetch.offsets:
                self._fail(partition, error)
            return chunks
        for topic in response.responses:
            name = topic.topic or fetch.names[topic.topic_id]
            for data in topic.partitions:
                partition = TopicPartition(name, data.partition_index)
                if self.positions.get(partition) != fetch.offsets.get(partition):
                    continue  # Somebody has changed the position meanwhile.
                try:
                    chunks += self._take(partition, data)
                except KafkaError as error:
                    self._fail(partition, error)
        return chunks

    def _fail(self, partition: TopicPartition, error: KafkaError | ConnectionFailed) -> None:
        now = asyncio.get_running_loop().time()
        failing = self._failing.get(partition)
        since = now if failing is None else failing.since
        failed_s = now - since
        if failed_s >= patience_s(error, self._cluster.timeout_s):
            self._failure = self._failure or error
        # Twice as long each time.
        pause_s = min(max(failed_s, BACKOFF_S), BACKOFF_MAX_S)
        self._failing[partition] = _Failing(since, now + pause_s)
        self._cluster.forget((partition.topic,))

    def _take(self, partition: TopicPartition, data: PartitionData) -> list[Chunk]:
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and self._reset is not None:
            self._out_of_range.add(partition)
            return []
        check(data.error_code, f"{partition} at offset {self.positions[partition]}")
        self._failing.pop(partition, None)
        # Taken out and put back last: the next fetch begins with those that got nothing.
        position = self.positions.pop(partition)
        end = self._ends.get(partition)
        records: list[Record] = []
        aborted = AbortedBatches(data.aborted_transactions or ())
        for batch in split(_one_buffer(data), partial_tail=True):
            verify_crc(batch)
            if not batch.header.is_control and not aborted.includes(batch):
                records += (
                    record
                    for record in iter_records(batch.data)
                    if record.offset >= position and (end is None or record.offset < end)
                )
            elif batch.header.is_control:
                aborted.ended(batch)
            position = max(position, batch.header.next_offset)
        self.positions[partition] = position
        return [Chunk(partition, records, data.high_watermark)] if records else []


def _one_buffer(data: PartitionData) -> memoryview:
    # The codec decodes records as one view; only what is encoded comes in several buffers.
    assert data.records is None or isinstance(data.records, (bytes, memoryview))
    return memoryview(data.records or b"")
