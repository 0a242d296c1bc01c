"""The records inside a batch of magic 2: reading, writing and checking them.

    length          varint        of what follows it
    attributes      int8          unused, zero
    timestamp delta varlong       to the batch's base timestamp
    offset delta    varint        to the batch's base offset
    key             varint, bytes length -1 is null
    value           varint, bytes length -1 is null
    headers         varint, then for each: key (varint, UTF-8), value (varint, bytes; -1 is null)

Varints are zigzag coded: even is 0, 1, 2 ..., odd is -1, -2 .... Most are one byte and nearly all
of the others two, so that the loops handle one byte in place and call a function for more.

The broker stores and serves batches without any of this. It is used where records must be seen:
by our own client, by compaction, by conversion for old clients (`legacy`) and where a setting is
about records (`keyless_records`). Any malformed input raises `CorruptBatch`.
"""

from collections.abc import Generator, Iterable, Iterator
from typing import Final

import msgspec

from chronik.model import (
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
)
from chronik.protocol import codecs
from chronik.protocol.batch import (
    CONTROL_FLAG,
    DELETE_HORIZON_FLAG,
    HEADER_SIZE,
    MAGIC,
    TIMESTAMP_TYPE_FLAG,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    assemble,
    read_header,
)
from chronik.protocol.errors import CorruptBatch
from chronik.protocol.schema import Buffer

Headers = tuple[tuple[str, bytes | None], ...]

RECORD_OVERHEAD_MAX: Final = 36  # five varints of 5 bytes, a varlong of 10 and the attributes
_VARINT_BYTES_MAX: Final = 5


class Record(msgspec.Struct, frozen=True, gc=False):
    """One record, with its absolute offset and timestamp."""

    offset: int
    timestamp: int
    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()


def decompressed(batch: Buffer, *, bytes_max: int = codecs.DECOMPRESSED_BYTES_MAX) -> bytes:
    """The records of one whole batch, as uncompressed bytes."""
    header = _header(batch)
    payload = memoryview(batch)[HEADER_SIZE : header.size]
    return bytes(codecs.decompress(header.codec, payload, bytes_max=bytes_max))


def _header(batch: Buffer) -> BatchHeader:
    if len(batch) < HEADER_SIZE:
        raise CorruptBatch("a batch is cut short")
    header = read_header(batch)
    if header.magic != MAGIC or not HEADER_SIZE <= header.size <= len(batch):
        raise CorruptBatch(f"no batch: magic {header.magic}, length {header.length}")
    return header


def iter_records(
    batch: Buffer, *, bytes_max: int = codecs.DECOMPRESSED_BYTES_MAX
) -> Iterator[Record]:
    """The records of one whole batch, in order."""
    header = _header(batch)
    data = decompressed(batch, bytes_max=bytes_max)
    try:
        position = yield from _iter_records(data, header)
    except IndexError:
        raise CorruptBatch("a record is cut short") from None
    if position != len(data):
        raise CorruptBatch(f"{len(data) - position} bytes follow the last record")


def _iter_records(data: bytes, header: BatchHeader) -> Generator[Record, None, int]:
    base_offset = header.base_offset
    base_timestamp = header.base_timestamp
    append_time = header.max_timestamp if header.is_append_time else None
    position = 0
    for _ in range(header.record_count):
        length = data[position]
        position += 1
        if length >= 0x80:
            length, position = _unsigned(data, position)
        end = position + (length >> 1)
        zigzag = data[position + 1]  # After the attributes.
        position += 2
        if zigzag >= 0x80:
            zigzag, position = _unsigned(data, position, 64)
        timestamp = base_timestamp + (zigzag >> 1 ^ -(zigzag & 1))
        zigzag = data[position]
        position += 1
        if zigzag >= 0x80:
            zigzag, position = _unsigned(data, position)
        offset = base_offset + (zigzag >> 1 ^ -(zigzag & 1))
        key, position = _read_bytes(data, position)
        value, position = _read_bytes(data, position)
        headers: Headers = ()
        if data[position]:
            headers, position = _read_headers(data, position)
        else:
            position += 1
        if position != end or length & 1:
            raise CorruptBatch("a record does not have the length that it claims")
        yield Record(offset, timestamp if append_time is None else append_time, key, value, headers)
    return position


def _read_bytes(data: bytes, position: int) -> tuple[bytes | None, int]:
    zigzag = data[position]
    position += 1
    if zigzag >= 0x80:
        zigzag, position = _unsigned(data, position)
    if zigzag & 1:
        if zigzag != 1:
            raise CorruptBatch("a key or a value has a negative length")
        return None, position
    end = position + (zigzag >> 1)
    return data[position:end], end  # If it is cut short, so is the record: the next byte fails.


def _read_headers(data: bytes, position: int) -> tuple[Headers, int]:
    count, position = read_varint(data, position)
    if count < 0 or count > len(data) - position:  # A header takes at least two bytes.
        raise CorruptBatch(f"a record has {count} headers")
    headers = []
    for _ in range(count):
        name, position = _read_bytes(data, position)
        if name is None:
            raise CorruptBatch("a header has no key")
        value, position = _read_bytes(data, position)
        # A client may have sent anything as a key; it must survive compaction unchanged.
        headers.append((name.decode(errors="surrogateescape"), value))
    return tuple(headers), position


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """A zigzag varint of at most 32 bits and the position after it."""
    zigzag = data[position]
    position += 1
    if zigzag >= 0x80:
        zigzag, position = _unsigned(data, position)
    return zigzag >> 1 ^ -(zigzag & 1), position


def _unsigned(data: bytes, position: int, bits: int = 32) -> tuple[int, int]:
    """An unsigned varint of which the first byte, not its last, lies before the position."""
    byte = data[position]
    value = data[position - 1] & 0x7F | (byte & 0x7F) << 7
    if byte < 0x80:
        return value, position + 1
    for shift in range(14, bits, 7):
        position += 1
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> bits:
                break
            return value, position + 1
    raise CorruptBatch(f"a varint exceeds {bits} bits")


def keyless_records(batch: Buffer, *, bytes_max: int = codecs.DECOMPRESSED_BYTES_MAX) -> list[int]:
    """The indexes of the records without a key, which a compacted topic refuses."""
    data = decompressed(batch, bytes_max=bytes_max)
    try:
        return _keyless_records(data, _header(batch).record_count)
    except IndexError:
        raise CorruptBatch("a record is cut short") from None


def _keyless_records(data: bytes, record_count: int) -> list[int]:
    indexes = []
    position = 0
    for index in range(record_count):
        length = data[position]
        position += 1
        if length >= 0x80:
            length, position = _unsigned(data, position)
        end = position + (length >> 1)
        position += 1  # After the attributes.
        while data[position] >= 0x80:
            position += 1
        position += 1
        while data[position] >= 0x80:
            position += 1
        position += 1
        if data[position] == 1:
            indexes.append(index)
        if position >= end or length & 1:
            raise CorruptBatch(f"record {index} does not have the length that it claims")
        position = end
    return indexes


class BatchBuilder:
    """Encodes records as they come, and makes a batch of them.

    Offsets count up from the base offset unless they are given, as compaction does.
    """

    __slots__ = (
        "_base_offset",
        "_next_delta",
        "_payload",
        "base_timestamp",
        "max_timestamp",
        "record_count",
    )

    def __init__(self, *, base_offset: int = 0, base_timestamp: int | None = None) -> None:
        self.base_timestamp = base_timestamp
        self.max_timestamp = NO_TIMESTAMP
        self.record_count = 0
        self._base_offset = base_offset
        self._next_delta = 0
        self._payload = bytearray()

    @classmethod
    def encoded(cls, records: Buffer, record_count: int, timestamp: int) -> "BatchBuilder":
        """A builder with records that were encoded elsewhere, all of this timestamp."""
        builder = cls(base_timestamp=timestamp)
        builder.max_timestamp = timestamp
        builder.record_count = builder._next_delta = record_count
        builder._payload += records
        return builder

    @property
    def size(self) -> int:
        """The size of the batch so far, before compression."""
        return HEADER_SIZE + len(self._payload)

    def append(
        self,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = (),
        offset: int | None = None,
    ) -> None:
        """Add a record."""
        if self.base_timestamp is None:
            self.base_timestamp = timestamp
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        delta = self._next_delta if offset is None else offset - self._base_offset
        body = b"".join(
            (
                b"\x00",
                varint(timestamp - self.base_timestamp),
                varint(delta),
                _NULL if key is None else varint(len(key)) + key,
                _NULL if value is None else varint(len(value)) + value,
                _encoded_headers(headers) if headers else b"\x00",
            )
        )
        self._payload += varint(len(body))
        self._payload += body
        self._next_delta = delta + 1
        self.record_count += 1

    def build(
        self,
        *,
        codec: int = codecs.NONE,
        level: int | None = None,
        leader_epoch: int = NO_LEADER_EPOCH,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        base_sequence: int = NO_SEQUENCE,
        flags: int = 0,
        last_offset_delta: int | None = None,
        max_timestamp: int | None = None,
    ) -> bytes:
        """The batch; `flags` are the attributes beside the codec."""
        last_delta = self._next_delta - 1 if last_offset_delta is None else last_offset_delta
        header = BatchHeader(
            base_offset=self._base_offset,
            length=0,
            leader_epoch=leader_epoch,
            magic=MAGIC,
            crc=0,
            attributes=flags | codec,
            last_offset_delta=last_delta,
            base_timestamp=NO_TIMESTAMP if self.base_timestamp is None else self.base_timestamp,
            max_timestamp=self.max_timestamp if max_timestamp is None else max_timestamp,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            record_count=self.record_count,
        )
        if codec == codecs.NONE:
            return assemble(header, self._payload)
        return assemble(header, codecs.compress(codec, self._payload, level))


def build_batch(
    records: Iterable[Record],
    *,
    base_offset: int = 0,
    codec: int = codecs.NONE,
    level: int | None = None,
    leader_epoch: int = NO_LEADER_EPOCH,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
    append_time_ms: int | None = None,
) -> bytes:
    """A batch of records whose offsets are not below the base offset and ascend."""
    builder = BatchBuilder(base_offset=base_offset)
    for record in records:
        builder.append(record.timestamp, record.key, record.value, record.headers, record.offset)
    flags = TRANSACTIONAL_FLAG if transactional else 0
    flags |= CONTROL_FLAG if control else 0
    flags |= TIMESTAMP_TYPE_FLAG if append_time_ms is not None else 0
    return builder.build(
        codec=codec,
        level=level,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        flags=flags,
        max_timestamp=append_time_ms,
    )


def rebuild_batch(
    header: BatchHeader,
    records: Iterable[Record],
    *,
    delete_horizon_ms: int | None = None,
    level: int | None = None,
) -> bytes:
    """A batch like the one with this header, with fewer of its records: what compaction leaves.

    Offsets, producer and sequence stay, even if no record does: the producer's next batch is
    checked against them. A delete horizon, once set, takes the place of the base timestamp.
    """
    flags = header.attributes & (TRANSACTIONAL_FLAG | CONTROL_FLAG | TIMESTAMP_TYPE_FLAG)
    if header.attributes & DELETE_HORIZON_FLAG:
        delete_horizon_ms = header.base_timestamp
    if delete_horizon_ms is not None:
        flags |= DELETE_HORIZON_FLAG
    builder = BatchBuilder(base_offset=header.base_offset, base_timestamp=delete_horizon_ms)
    for record in records:
        builder.append(record.timestamp, record.key, record.value, record.headers, record.offset)
    keeps_max = header.is_append_time or not builder.record_count
    return builder.build(
        codec=header.codec,
        level=level,
        leader_epoch=header.leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        flags=flags,
        last_offset_delta=header.last_offset_delta,
        max_timestamp=header.max_timestamp if keeps_max else None,
    )


def size_max(key: bytes | None, value: bytes | None, headers: Headers = ()) -> int:
    """An upper bound of a record's size, for deciding whether it still fits into a batch."""
    size = RECORD_OVERHEAD_MAX + len(key or b"") + len(value or b"")
    for name, header in headers:
        # A character takes at most four bytes in UTF-8, and each of the two lengths five.
        size += 4 * len(name) + len(header or b"") + 2 * _VARINT_BYTES_MAX
    return size


def varint(value: int) -> bytes:
    """A zigzag varint."""
    if 0 <= value < _SMALL:
        return _VARINTS[value]
    return _encode_varint(value)


def _encode_varint(value: int) -> bytes:
    zigzag = value << 1 if value >= 0 else ~(value << 1)
    encoded = bytearray()
    while zigzag >= 0x80:
        encoded.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    encoded.append(zigzag)
    return bytes(encoded)


# Lengths and deltas are mostly small. The table covers values of about a kibibyte in 70 KB.
_SMALL: Final = 2048
_VARINTS: Final = tuple(_encode_varint(value) for value in range(_SMALL))
_NULL: Final = _encode_varint(-1)


def _encoded_headers(headers: Headers) -> bytes:
    encoded = bytearray(varint(len(headers)))
    for name, value in headers:
        key = name.encode(errors="surrogateescape")
        encoded += varint(len(key)) + key
        encoded += _NULL if value is None else varint(len(value)) + value
    return bytes(encoded)
