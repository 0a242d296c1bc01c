"""Reads one replica of a partition from its own broker, batch by batch, and checks each.

Brokers serve consumers from any replica (KIP-392), so a Fetch goes to the broker whose copy is
looked at. A batch becomes one row: where it begins and ends, a digest of its bytes, and what is
wrong with it. Digests are compared afterwards, by Spark (`job`).

Checked here: the CRC; that a batch begins where the last one ended; that its records decode and
their offsets are its own. In a compacted log records are missing by design, so that only overlaps
are wrong there.
"""

import asyncio
import hashlib
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar

import numpy as np
import pyarrow as pa

from chronik.client.cluster import Cluster, check
from chronik.client.link import ConnectionFailed
from chronik.protocol.apis import FETCH
from chronik.protocol.batch import Batch, BatchHeader, split, verify_crc
from chronik.protocol.errors import CorruptBatch, ErrorCode, KafkaError, ProtocolError
from chronik.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from chronik.spark.connection import Connection
from chronik.spark.record_columns import read_columns, unpack

T = TypeVar("T")

FETCH_BYTES: Final = 8 * 1024 * 1024
MAX_WAIT_MS: Final = 500
DIGEST_BYTES: Final = 16  # by chance two of 2^60 batches share one: nobody has as many
ROWS: Final = 10_000
PAUSE_S: Final = 0.1

BATCHES: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("node_id", pa.int32()),
        ("base_offset", pa.int64()),
        ("next_offset", pa.int64()),
        ("record_count", pa.int64()),
        ("byte_count", pa.int64()),
        ("digest", pa.binary()),
        ("kind", pa.string()),
        ("problem", pa.string()),
    ]
)
# Errors that pass: a follower learns the high watermark a little later than its leader.
_WAIT_FOR: Final = frozenset(
    {
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One copy of a partition, and which of its offsets are looked at."""

    topic: str
    topic_id: bytes
    partition: int
    node_id: int
    start_offset: int
    end_offset: int  # the high watermark when the audit began
    is_compacted: bool


class Row(NamedTuple):
    """One batch, or what stands where one should be; in the order of BATCHES."""

    base_offset: int
    next_offset: int
    record_count: int = 0
    byte_count: int = 0
    digest: bytes | None = None
    kind: str | None = None
    problem: str | None = None


def check_batch(
    batch: Batch, expected_offset: int, *, is_compacted: bool
) -> tuple[str, str] | None:
    """What is wrong with a batch that should begin at an offset: its kind, and in words."""
    header = batch.header
    try:
        verify_crc(batch)
    except CorruptBatch as error:
        return "crc", f"the batch at offset {header.base_offset} is corrupt: {error}"
    if header.base_offset < expected_offset:
        last = min(header.next_offset, expected_offset) - 1
        return "duplicate", f"offsets {header.base_offset} to {last} are there twice"
    if header.base_offset > expected_offset and not is_compacted:
        return "gap", f"offsets {expected_offset} to {header.base_offset - 1} are missing"
    if header.is_control:
        return None
    return _check_records(batch, header, is_compacted)


def _check_records(batch: Batch, header: BatchHeader, is_compacted: bool) -> tuple[str, str] | None:
    try:
        offsets = read_columns([unpack(batch)]).offsets
    except (CorruptBatch, ProtocolError, ValueError) as error:
        return "crc", f"the records of the batch at offset {header.base_offset} are broken: {error}"
    wanted = np.arange(header.base_offset, header.next_offset)
    if not is_compacted:
        is_right = np.array_equal(offsets, wanted)
    else:
        is_right = bool(np.isin(offsets, wanted).all() and np.all(np.diff(offsets) > 0))
    if is_right:
        return None
    return "gap", f"the batch at offset {header.base_offset} lacks offsets or has some twice"


class ReplicaReader:
    """Reads one replica to its end."""

    def __init__(self, connection: Connection, replica: Replica) -> None:
        self._connection, self._replica = connection, replica
        self._loop = asyncio.new_event_loop()
        self._cluster: Cluster | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._cluster is not None:
            self._run(self._cluster.close())
        self._loop.close()

    def rows(self) -> Iterator[Row]:
        """A row for each batch, and one for what stopped the reading, if anything did."""
        replica = self._replica
        position, is_first = replica.start_offset, True
        try:
            while position < replica.end_offset:
                data = self._run(self._fetch(position))
                if data.log_start_offset > position:
                    position, is_first = data.log_start_offset, True  # Retention came by.
                    continue
                assert data.records is None or isinstance(data.records, bytes | memoryview)
                batches = split(data.records or b"", partial_tail=True)
                if not batches and replica.is_compacted:
                    return  # Nothing is left of what lies before the end.
                for batch in batches:
                    header = batch.header
                    if header.base_offset >= replica.end_offset:
                        return
                    # The log may start, and a fetch begin, in the middle of a batch.
                    expected = header.base_offset if is_first else position
                    is_first = False
                    yield _row(batch, expected, is_compacted=replica.is_compacted)
                    position = max(position, header.next_offset)
        except (KafkaError, ConnectionFailed) as error:
            yield _unread(position, replica, "unreadable", f"it cannot be read: {error}")
        except ProtocolError as error:
            yield _unread(position, replica, "crc", f"its bytes are no batches: {error}")

    async def _fetch(self, offset: int) -> PartitionData:
        """What follows an offset; KafkaError if nothing does for as long as we are patient."""
        deadline = self._loop.time() + self._connection.timeout_s
        while True:
            data = await self._fetch_once(offset)
            if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                if data.log_start_offset > offset:
                    return data
            elif data.error_code not in _WAIT_FOR:
                check(data.error_code, f"offset {offset}")
            if not data.error_code and (data.records or self._is_over(data)):
                return data
            if self._loop.time() > deadline:
                check(data.error_code, f"offset {offset}")
                raise KafkaError(
                    ErrorCode.OFFSET_NOT_AVAILABLE,
                    f"it ends at {offset}, and the high watermark is {self._replica.end_offset}",
                )
            await asyncio.sleep(PAUSE_S)

    def _is_over(self, data: PartitionData) -> bool:
        return self._replica.is_compacted and data.high_watermark >= self._replica.end_offset

    async def _fetch_once(self, offset: int) -> PartitionData:
        if self._cluster is None:
            cluster = self._connection.cluster()
            await cluster.refresh(())
            self._cluster = cluster
        replica = self._replica
        link = await self._cluster.link(replica.node_id)
        wanted = FetchPartition(
            partition=replica.partition, fetch_offset=offset, partition_max_bytes=FETCH_BYTES
        )
        topic = FetchTopic(topic=replica.topic, topic_id=replica.topic_id, partitions=[wanted])
        request = FetchRequest(
            max_wait_ms=MAX_WAIT_MS, min_bytes=1, max_bytes=FETCH_BYTES, topics=[topic]
        )
        response: FetchResponse = await link.send(
            request, FETCH, timeout_s=self._connection.timeout_s
        )
        check(response.error_code, f"node {replica.node_id}")
        found = [data for answer in response.responses for data in answer.partitions]
        if not found:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"node {replica.node_id} is silent")
        return found[0]

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)


def _row(batch: Batch, expected_offset: int, *, is_compacted: bool) -> Row:
    header = batch.header
    wrong = check_batch(batch, expected_offset, is_compacted=is_compacted)
    return Row(
        base_offset=header.base_offset,
        next_offset=header.next_offset,
        record_count=0 if header.is_control else header.record_count,
        byte_count=len(batch.data),
        digest=hashlib.blake2b(batch.data, digest_size=DIGEST_BYTES).digest(),
        kind=None if wrong is None else wrong[0],
        problem=None if wrong is None else wrong[1],
    )


def _unread(position: int, replica: Replica, kind: str, problem: str) -> Row:
    return Row(position, replica.end_offset, kind=kind, problem=problem)


def replica_batches(connection: Connection, replica: Replica) -> Iterator[pa.RecordBatch]:
    """The rows of one replica as Arrow batches, of a bounded size each."""
    gathered: list[Row] = []
    with ReplicaReader(connection, replica) as reader:
        for row in reader.rows():
            gathered.append(row)
            if len(gathered) == ROWS:
                yield _arrow(replica, gathered)
                gathered = []
    if gathered:
        yield _arrow(replica, gathered)


def _arrow(replica: Replica, rows: list[Row]) -> pa.RecordBatch:
    place = (replica.topic, replica.partition, replica.node_id)
    columns = [[value] * len(rows) for value in place]
    columns += [list(column) for column in zip(*rows, strict=True)]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, BATCHES, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=BATCHES)
