"""Record batches become columns, with no Python object for a record.

A record begins with its length, so where the next one begins is known only once that is read: one
tight loop chains the positions of all records of some batches. Everything else is done for all of
them at once: numpy reads each varint of the record (`protocol.records` has the layout) at a column
of positions, which gives the column of positions of the next. Keys and values are never touched:
Arrow takes them out of the buffer by their starts and ends.

Many small batches cost little more than a large one, since they are joined before anything is read.

Invariants
    Rows are the records of the batches, in order; malformed bytes raise CorruptBatch.
    The joined bytes stay below 2 GiB, so that Arrow's 32-bit offsets reach all of them.

A Fetch of version 4 or later answers with batches of magic 2 only, so that message sets (magic 0
and 1) never come here; `batch.split` refuses them. Whoever calls has verified the CRCs and left out
control batches. Headers are read only when they are wanted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from chronik.protocol import codecs
from chronik.protocol.batch import Batch, BatchHeader
from chronik.protocol.errors import CorruptBatch
from chronik.protocol.records import read_varint
from chronik.protocol.schema import Buffer

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

HEADERS_TYPE: Final = pa.list_(
    pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))
)
# The columns of Spark's own `kafka` source, in its order and with its types.
SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
        ("headers", HEADERS_TYPE),
    ]
)

BUFFER_BYTES_MAX: Final = 2**31 - 1
# Microseconds are what Arrow and Spark keep: times further away are moved to the last that fits.
_TIMESTAMP_MS_MAX: Final = (2**63 - 1) // 1000
_FEW_ROWS: Final = 8  # Below this a loop over headers is faster than numpy over rows.
_CUT_SHORT: Final = "a record is cut short"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """Where byte strings lie in a buffer, in ascending order; length -1 is null."""

    starts: Int64s
    lengths: Int64s

    def slice(self, first: int, last: int) -> "Spans":
        """The spans of some rows."""
        return Spans(starts=self.starts[first:last], lengths=self.lengths[first:last])

    def to_arrow(self, data: bytes | pa.Buffer) -> pa.BinaryArray:
        """The byte strings, copied out of the buffer."""
        count = len(self.starts)
        if not count:
            return pa.array([], pa.binary())
        # Seen as an Arrow array, the buffer is each string followed by what lies before the next.
        bounds = np.empty(2 * count + 1, dtype=np.int32)
        bounds[:-1:2] = self.starts
        bounds[1::2] = self.starts + np.maximum(self.lengths, 0)
        bounds[-1] = bounds[-2]
        validity = None
        if self.lengths.min() < 0:
            valid = np.ones(2 * count, dtype=np.bool_)
            valid[::2] = self.lengths >= 0
            validity = pa.py_buffer(np.packbits(valid, bitorder="little"))
        buffers = [validity, pa.py_buffer(bounds), pa.py_buffer(data)]
        alternating = pa.Array.from_buffers(pa.binary(), 2 * count, buffers)
        return alternating.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderSpans:
    """The headers of all rows, one after the other, and how many each row has."""

    counts: Int64s
    names: Spans
    values: Spans

    def slice(self, first: int, last: int) -> "HeaderSpans":
        """The headers of some rows."""
        ends = np.cumsum(self.counts)
        begin = int(ends[first - 1]) if first else 0
        end = int(ends[last - 1]) if last else 0
        return HeaderSpans(
            counts=self.counts[first:last],
            names=self.names.slice(begin, end),
            values=self.values.slice(begin, end),
        )

    def to_arrow(self, data: bytes) -> pa.ListArray:
        """The headers as Spark's `kafka` source shows them; a row without any has a null."""
        offsets = np.zeros(len(self.counts) + 1, dtype=np.int32)
        np.cumsum(self.counts, out=offsets[1:])
        pairs = pa.StructArray.from_arrays(
            [_to_text(self.names.to_arrow(data)), self.values.to_arrow(data)],
            fields=list(HEADERS_TYPE.value_type),
        )
        return pa.ListArray.from_arrays(
            pa.array(offsets), pairs, type=HEADERS_TYPE, mask=pa.array(self.counts == 0)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordColumns:
    """The records of some batches: numbers as numpy arrays, bytes as spans of a buffer."""

    data: bytes
    offsets: Int64s
    timestamps_ms: Int64s
    append_time: npt.NDArray[np.bool_]
    keys: Spans
    values: Spans
    headers: HeaderSpans | None

    def __len__(self) -> int:
        return len(self.offsets)

    def slice(self, first: int, last: int) -> "RecordColumns":
        """Some of the rows; the buffer stays the same."""
        return RecordColumns(
            data=self.data,
            offsets=self.offsets[first:last],
            timestamps_ms=self.timestamps_ms[first:last],
            append_time=self.append_time[first:last],
            keys=self.keys.slice(first, last),
            values=self.values.slice(first, last),
            headers=None if self.headers is None else self.headers.slice(first, last),
        )

    def within(self, start_offset: int, end_offset: int) -> "RecordColumns":
        """The rows whose offsets lie in a range."""
        first, last = np.searchsorted(self.offsets, (start_offset, end_offset))
        if first == 0 and last == len(self):
            return self
        return self.slice(int(first), int(last))

    def to_arrow(self, columns: Sequence[str], *, topic: str, partition: int) -> pa.RecordBatch:
        """The named columns of `SCHEMA`, in the order in which they are named."""
        arrays = [self._column(name, topic, partition) for name in columns]
        if not arrays:  # Who only counts wants rows without columns, which a struct can carry.
            rows = pa.StructArray.from_buffers(pa.struct([]), len(self), [None])
            return pa.RecordBatch.from_struct_array(rows)
        return pa.RecordBatch.from_arrays(
            arrays, schema=pa.schema([SCHEMA.field(name) for name in columns])
        )

    def _column(self, name: str, topic: str, partition: int) -> pa.Array:
        match name:
            case "key":
                return self.keys.to_arrow(self.data)
            case "value":
                return self.values.to_arrow(self.data)
            case "topic":
                return pa.repeat(pa.scalar(topic, pa.string()), len(self))
            case "partition":
                return pa.repeat(pa.scalar(partition, pa.int32()), len(self))
            case "offset":
                return pa.array(self.offsets)
            case "timestamp":
                within = np.clip(self.timestamps_ms, -_TIMESTAMP_MS_MAX, _TIMESTAMP_MS_MAX)
                return pa.array(within * 1000).view(SCHEMA.field(name).type)
            case "timestampType":
                return pa.array(self.append_time.astype(np.int32))
            case "headers":
                assert self.headers is not None, "headers were not asked for"
                return self.headers.to_arrow(self.data)
            case _:
                raise ValueError(f"there is no column {name!r}, only {', '.join(SCHEMA.names)}")


class Payload(NamedTuple):
    """The records of one batch, no longer compressed."""

    header: BatchHeader
    records: Buffer


def unpack(batch: Batch, *, bytes_max: int = codecs.DECOMPRESSED_BYTES_MAX) -> Payload:
    """The records of a whole batch, at most `bytes_max` bytes of them."""
    records = codecs.decompress(batch.header.codec, batch.payload, bytes_max=bytes_max)
    return Payload(batch.header, records)


def read_columns(payloads: Sequence[Payload], *, headers: bool = False) -> RecordColumns:
    """The records of some batches, in order."""
    size = sum(len(payload.records) for payload in payloads)
    if size > BUFFER_BYTES_MAX:
        raise ValueError(f"{size} bytes of records at once are too many: read fewer batches")
    data = b"".join([payload.records for payload in payloads])
    try:
        return _read(data, _chain(data, payloads), [each.header for each in payloads], headers)
    except IndexError:
        raise CorruptBatch(_CUT_SHORT) from None


def _chain(data: bytes, payloads: Sequence[Payload]) -> Int64s:
    """Where each record begins, with its length."""
    starts: list[int] = []
    append = starts.append
    position = end = 0
    for header, records in payloads:
        end += len(records)
        for _ in range(header.record_count):
            append(position)
            length = data[position]
            if length < 0x80:
                position += 1 + (length >> 1)
                continue
            byte = data[position + 1]  # Nearly all records are shorter than 8 KiB: two bytes.
            if byte < 0x80:
                position += 2 + ((length & 0x7F | byte << 7) >> 1)
            else:
                position = _after_long_record(data, position)
        if position != end:
            raise CorruptBatch(
                f"{end - position} bytes follow the last record" if position < end else _CUT_SHORT
            )
    return np.array(starts, dtype=np.int64)


def _after_long_record(data: bytes, position: int) -> int:
    length = shift = 0
    while True:
        byte = data[position]
        position += 1
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return position + (length >> 1)  # A varint too long is found when it is read again.
        if shift > 28:
            raise CorruptBatch("a varint exceeds 32 bits")


def _read(
    data: bytes, starts: Int64s, batches: Sequence[BatchHeader], with_headers: bool
) -> RecordColumns:
    counts = [batch.record_count for batch in batches]
    view = np.frombuffer(data, dtype=np.uint8)
    lengths, position = _varints(view, starts)
    ends = position + lengths
    timestamps, position = _varints(view, position + 1, bits=64)  # After the attributes.
    offsets, position = _varints(view, position)
    keys, position = _spans(view, position)
    values, position = _spans(view, position)
    header_counts, position = _varints(view, position)
    header_spans = None
    if with_headers:
        header_spans, position = _headers(data, position, header_counts)
    # Headers that nobody wants are not read, so that their end is not known.
    unread = header_counts if header_spans is None else 0
    wrong = (lengths < 0) | (header_counts < 0) | (position > ends)
    if np.any(wrong | ((position != ends) & (unread == 0))):
        raise CorruptBatch("a record does not have the length that it claims")
    base_offsets = np.array([batch.base_offset for batch in batches], dtype=np.int64)
    append_time = np.array([batch.is_append_time for batch in batches], dtype=np.bool_)
    append_time = np.repeat(append_time, counts)
    return RecordColumns(
        data=data,
        offsets=np.repeat(base_offsets, counts) + offsets,
        timestamps_ms=_timestamps(batches, counts, append_time, timestamps),
        append_time=append_time,
        keys=keys,
        values=values,
        headers=header_spans,
    )


def _timestamps(
    batches: Sequence[BatchHeader],
    counts: list[int],
    append_time: npt.NDArray[np.bool_],
    deltas: Int64s,
) -> Int64s:
    bases = np.array([batch.base_timestamp for batch in batches], dtype=np.int64)
    timestamps = np.repeat(bases, counts) + deltas
    if append_time.any():
        latest = np.array([batch.max_timestamp for batch in batches], dtype=np.int64)
        timestamps = np.where(append_time, np.repeat(latest, counts), timestamps)
    return timestamps


def _varints(view: Bytes, at: Int64s, *, bits: int = 32) -> tuple[Int64s, Int64s]:
    """The zigzag varints at some positions, and the positions after them."""
    first = view[at]
    value = (first & 0x7F).astype(np.uint64)
    after = at + 1
    rows = np.flatnonzero(first >= 0x80)
    shift = 7
    while len(rows):
        if shift >= bits:
            raise CorruptBatch(f"a varint exceeds {bits} bits")
        byte = view[after[rows]]
        part = (byte & 0x7F).astype(np.uint64)
        if shift + 7 > bits and np.any(part >> np.uint64(bits - shift)):
            raise CorruptBatch(f"a varint exceeds {bits} bits")
        value[rows] |= part << np.uint64(shift)
        after[rows] += 1
        rows = rows[byte >= 0x80]
        shift += 7
    half = (value >> np.uint64(1)).view(np.int64)
    return half ^ -(value & np.uint64(1)).view(np.int64), after


def _spans(view: Bytes, at: Int64s) -> tuple[Spans, Int64s]:
    lengths, starts = _varints(view, at)
    if len(lengths) and lengths.min() < -1:
        raise CorruptBatch("a key or a value has a negative length")
    return Spans(starts=starts, lengths=lengths), starts + np.maximum(lengths, 0)


def _headers(data: bytes, at: Int64s, counts: Int64s) -> tuple[HeaderSpans, Int64s]:
    """All rows' headers: the first of each row that has one, then the second, and so on."""
    # A header takes at least two bytes: a larger count is a lie that must not cost memory.
    if len(counts) and (counts.min() < 0 or int(counts.max()) > len(data)):
        raise CorruptBatch("a record has an impossible number of headers")
    total = int(counts.sum())
    if 2 * total > len(data):
        raise CorruptBatch(_CUT_SHORT)
    columns = np.empty((4, total), dtype=np.int64)
    view = np.frombuffer(data, dtype=np.uint8)
    position = at.copy()
    begins = np.cumsum(counts) - counts
    rows = np.flatnonzero(counts)
    index = 0
    while len(rows) >= _FEW_ROWS:
        names, after_name = _spans(view, position[rows])
        values, after_value = _spans(view, after_name)
        places = begins[rows] + index
        columns[:, places] = names.starts, names.lengths, values.starts, values.lengths
        position[rows] = after_value
        index += 1
        rows = rows[counts[rows] > index]
    for row in rows.tolist():
        place = int(begins[row])
        columns[:, place + index : place + int(counts[row])], position[row] = _headers_of_one(
            data, int(position[row]), int(counts[row]) - index
        )
    if total and columns[1].min() < 0:
        raise CorruptBatch("a header has no key")
    names = Spans(starts=columns[0], lengths=columns[1])
    values = Spans(starts=columns[2], lengths=columns[3])
    return HeaderSpans(counts=counts, names=names, values=values), position


def _headers_of_one(data: bytes, position: int, count: int) -> tuple[Int64s, int]:
    """The headers of a row one by one, for the few that have far more than all others."""
    found = []
    for _ in range(count):
        name_length, name = read_varint(data, position)
        value_length, value = read_varint(data, name + max(name_length, 0))
        if value_length < -1:
            raise CorruptBatch("a key or a value has a negative length")
        position = value + max(value_length, 0)
        found.append((name, name_length, value, value_length))
    return np.array(found, dtype=np.int64).T, position


def _to_text(names: pa.BinaryArray) -> pa.StringArray:
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:  # Clients may send anything as a key; readers see what is readable.
        texts = [name.decode(errors="replace") for name in names.to_pylist()]
        return pa.array(texts, pa.string())
