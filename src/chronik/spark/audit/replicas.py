"""What an audit says of one replica of a partition, batch by batch.

A batch becomes one row: where it begins and ends, a digest of its bytes, and what is wrong with it.
Digests are compared afterwards, by Spark (`replica_check`). Where batches come from is another
question: `fetched` asks a broker, `stored` reads a stopped node's files.

Checked here: the CRC; that a batch begins where the last one ended; that its records decode and
their offsets are its own. In a compacted log records are missing by design, so that only overlaps
are wrong there.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from chronik.protocol.batch import Batch, BatchHeader, verify_crc
from chronik.protocol.errors import CorruptBatch, ProtocolError
from chronik.spark.record_columns import read_columns, unpack

DIGEST_BYTES: Final = 16  # by chance two of 2^60 batches share one: nobody has as many
ROWS: Final = 10_000

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One copy of a partition, and which of its offsets are looked at."""

    topic: str
    topic_id: bytes
    partition: int
    node_id: int
    start_offset: int
    end_offset: int  # the high watermark when the audit began, or as a stopped node knew it
    is_compacted: bool
    directory: str = ""  # where a stopped node has it


class Row(NamedTuple):
    """One batch, or what stands where one should be; in the order of BATCHES."""

    base_offset: int
    next_offset: int
    record_count: int = 0
    byte_count: int = 0
    digest: bytes | None = None
    kind: str | None = None
    problem: str | None = None


# A row for each batch, and one for what stopped the reading, if anything did. Picklable.
ReadReplica = Callable[[Replica], Iterator[Row]]


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


def batch_row(batch: Batch, expected_offset: int, *, is_compacted: bool) -> Row:
    """What there is to say of a batch that should begin at an offset."""
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


def unread_row(position: int, replica: Replica, kind: str, problem: str) -> Row:
    """The rest of a replica, which could not be read."""
    return Row(position, replica.end_offset, kind=kind, problem=problem)


def replica_batches(read: ReadReplica, replica: Replica) -> Iterator[pa.RecordBatch]:
    """The rows of one replica as Arrow batches, of a bounded size each."""
    gathered: list[Row] = []
    for row in read(replica):
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
