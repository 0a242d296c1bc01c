"""Columns become the records of batches, with no Python object for a record.

The way back from `record_columns`: every part of a record (`protocol.records` has the layout) is
made as a column of bytes, varints by numpy, and Arrow joins the parts of each row. Rows are put in
the order of their partitions first, so that a batch's records are a slice of what was joined.

Where a record goes is `places`' business: its partition if it has one, else by its key as Java's
client does it, else in turn, as much as a batch holds at a time.

Invariants
    Each row is one record, and rows of one partition stay in order.
    A batch has at most the bytes that it may have, or one record.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from chronik.client.partitioner import murmur2
from chronik.model import TopicPartition
from chronik.protocol.records import RECORD_OVERHEAD_MAX
from chronik.spark.decode.framing import spans_of
from chronik.spark.errors import SourceError

Int64s = npt.NDArray[np.int64]
UInt32s = npt.NDArray[np.uint32]

_SEED: Final = 0x9747B28C  # of Kafka's murmur2, see `client.partitioner`
_M: Final = np.uint32(0x5BD1E995)
_LONG_KEY: Final = 256  # A longer key is rare, and every four bytes are a step for all keys.
_VARINT_BYTES_MAX: Final = 10
_ZERO: Final = pa.scalar(b"\x00")
_NOTHING: Final = pa.scalar(b"")


class EncodedBatch(NamedTuple):
    """The records of one batch of one partition, not compressed."""

    place: TopicPartition
    records: memoryview
    record_count: int


@dataclass(slots=True)
class Turns:
    """Whose turn it is among a topic's partitions, for records that may go to any."""

    next_partition: int
    partition_count: int

    def take(self, sizes: Int64s, batch_bytes: int) -> Int64s:
        """A partition for each record: the same for as many as fill a batch, then the next."""
        ends = np.cumsum(sizes)
        turns = ends // batch_bytes
        first = self.next_partition
        if len(turns):
            # A batch that is not full may be filled up by the next rows.
            self.next_partition = int((first + turns[-1]) % self.partition_count)
        found: Int64s = (first + turns) % self.partition_count
        return found


def encoded_batches(
    rows: pa.RecordBatch, turns: Mapping[str, Turns], batch_bytes: int
) -> Iterator[EncodedBatch]:
    """The batches of some rows (`write_columns.WRITTEN`), partition by partition."""
    sizes = _sizes(rows)
    for topic, mask in _by_topic(rows):
        places = np.flatnonzero(mask)
        some = rows if len(places) == rows.num_rows else rows.take(pa.array(places))
        partitions = _partitions(some, topic, turns[topic], sizes[places], batch_bytes)
        order = np.argsort(partitions, kind="stable")
        ordered = some.take(pa.array(order))
        bounds = _cuts(partitions[order], sizes[places][order], batch_bytes)
        records = _records(ordered, bounds)
        _, offsets_buffer, data = records.buffers()
        offsets = np.frombuffer(offsets_buffer, np.int32)[records.offset :]
        view = memoryview(data)
        for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            place = TopicPartition(topic, int(partitions[order[begin]]))
            yield EncodedBatch(place, view[offsets[begin] : offsets[end]], end - begin)


def _by_topic(rows: pa.RecordBatch) -> Iterator[tuple[str, npt.NDArray[np.bool_]]]:
    topics = rows.column("topic").dictionary_encode()
    indices = np.asarray(topics.indices)
    for index, topic in enumerate(topics.dictionary.to_pylist()):
        yield topic, indices == index


def _sizes(rows: pa.RecordBatch) -> Int64s:
    """An upper bound of each record's size."""
    sizes: Int64s = np.full(rows.num_rows, RECORD_OVERHEAD_MAX, dtype=np.int64)
    for name in ("key", "value"):
        _, lengths, _ = spans_of(rows.column(name))
        sizes += np.maximum(lengths, 0)
    headers = rows.column("headers")
    if headers.null_count < len(headers):
        sizes += np.asarray(pc.fill_null(pc.binary_length(_headers(headers)), 0))
    return sizes


def _partitions(
    rows: pa.RecordBatch, topic: str, turns: Turns, sizes: Int64s, batch_bytes: int
) -> Int64s:
    count = turns.partition_count
    given = rows.column("partition")
    keys = rows.column("key")
    chosen = np.asarray(pc.fill_null(given, -1)).astype(np.int64)
    is_given = np.asarray(given.is_valid())
    wrong = chosen[is_given & ((chosen < 0) | (chosen >= count))]
    if len(wrong):
        raise SourceError(f"{topic} has no partition {wrong[0]}, only {count}")
    by_key = ~is_given & np.asarray(keys.is_valid())
    if by_key.any():
        hashes = murmur2_of(keys.filter(pa.array(by_key)))
        chosen[by_key] = (hashes & 0x7FFFFFFF).astype(np.int64) % count
    in_turn = ~is_given & ~by_key
    chosen[in_turn] = turns.take(sizes[in_turn], batch_bytes)
    return chosen


def _cuts(partitions: Int64s, sizes: Int64s, batch_bytes: int) -> Int64s:
    """Where batches begin, and where the last one ends."""
    ends = np.cumsum(sizes)
    changes = np.flatnonzero(np.diff(partitions)) + 1
    cuts = [0]
    for last in [*changes.tolist(), len(partitions)]:
        while cuts[-1] < last:
            first = cuts[-1]
            room = (ends[first - 1] if first else 0) + batch_bytes
            fits = int(np.searchsorted(ends, room, side="right"))
            cuts.append(min(max(fits, first + 1), last))
    return np.array(cuts, dtype=np.int64)


def _records(rows: pa.RecordBatch, bounds: Int64s) -> pa.BinaryArray:
    """Each row as a record, numbered from the beginning of its batch."""
    counts = np.diff(bounds)
    deltas = np.arange(rows.num_rows) - np.repeat(bounds[:-1], counts)
    headers = rows.column("headers")
    has_headers = headers.null_count < len(headers)
    bodies = pc.binary_join_element_wise(
        pa.scalar(b"\x00\x00"),  # no attributes, and the timestamp of the batch
        varints(deltas),
        *sized(rows.column("key")),
        *sized(rows.column("value")),
        pc.fill_null(_headers(headers), _ZERO) if has_headers else _ZERO,
        _NOTHING,
    )
    lengths = np.asarray(pc.binary_length(bodies)).astype(np.int64)
    return pc.binary_join_element_wise(varints(lengths), bodies, _NOTHING)


def sized(values: pa.BinaryArray) -> tuple[pa.BinaryArray, pa.BinaryArray]:
    """The lengths as varints, -1 for null, and the values, empty for null."""
    _, lengths, _ = spans_of(values)
    return varints(lengths), pc.fill_null(values, b"") if values.null_count else values


def _headers(headers: pa.ListArray) -> pa.BinaryArray:
    """The headers of each row as they stand in its record; null where it has none."""
    pairs = headers.flatten()
    names, values = pairs.flatten()
    if names.null_count:
        raise SourceError("a header has no key: give it one, or drop it")
    each = pc.binary_join_element_wise(*sized(names.cast(pa.binary())), *sized(values), _NOTHING)
    counts = np.asarray(pc.fill_null(pc.list_value_length(headers), 0)).astype(np.int64)
    offsets = np.zeros(len(headers) + 1, dtype=np.int32)
    np.cumsum(counts, out=offsets[1:])
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), each), b"")
    found = pc.binary_join_element_wise(varints(counts), joined, _NOTHING)
    return pc.if_else(headers.is_valid(), found, pa.scalar(None, pa.binary()))


def varints(numbers: Int64s) -> pa.BinaryArray:
    """Zigzag varints, as Kafka and Avro have them."""
    zigzag = ((numbers << 1) ^ (numbers >> 63)).astype(np.uint64)
    lengths = np.ones(len(zigzag), dtype=np.int32)
    largest = int(zigzag.max()) if len(zigzag) else 0
    for step in range(1, _VARINT_BYTES_MAX):
        if largest < 1 << 7 * step:
            break
        lengths += zigzag >= np.uint64(1 << 7 * step)
    offsets = np.zeros(len(zigzag) + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    data = np.empty(int(offsets[-1]), dtype=np.uint8)
    for step in range(int(lengths.max()) if len(lengths) else 0):
        rows = np.flatnonzero(lengths > step)
        digits = (zigzag[rows] >> np.uint64(7 * step)).astype(np.uint8) & 0x7F
        digits |= (lengths[rows] > step + 1).astype(np.uint8) << 7
        data[offsets[rows] + step] = digits
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(zigzag), buffers)


def murmur2_of(keys: pa.BinaryArray) -> UInt32s:
    """Kafka's hash of each key, none of them null: that of `client.partitioner` for all at once."""
    starts, lengths, buffer = spans_of(keys)
    data = np.frombuffer(buffer, dtype=np.uint8)
    hashes = np.uint32(_SEED) ^ lengths.astype(np.uint32)
    long_rows = np.flatnonzero(lengths > _LONG_KEY)
    whole = np.where(lengths > _LONG_KEY, 0, lengths >> 2)
    for step in range(int(whole.max()) if len(whole) else 0):
        rows = np.flatnonzero(whole > step)
        at = starts[rows] + 4 * step
        k = _word(data, at, 4) * _M
        k = (k ^ k >> np.uint32(24)) * _M
        hashes[rows] = hashes[rows] * _M ^ k
    for rest in (1, 2, 3):
        rows = np.flatnonzero((lengths & 3) == rest)
        at = starts[rows] + (lengths[rows] & ~3)
        hashes[rows] = (hashes[rows] ^ _word(data, at, rest)) * _M
    hashes = (hashes ^ hashes >> np.uint32(13)) * _M
    hashes ^= hashes >> np.uint32(15)
    for row in long_rows.tolist():
        hashes[row] = murmur2(keys[row].as_py())
    return hashes


def _word(data: npt.NDArray[np.uint8], at: Int64s, size: int) -> UInt32s:
    word: UInt32s = np.zeros(len(at), dtype=np.uint32)
    for place in range(size):
        word |= data[at + place].astype(np.uint32) << np.uint32(8 * place)
    return word
