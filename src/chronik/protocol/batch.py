"""Record batches (magic 2), the unit that is produced, stored, replicated and fetched.

The broker reads a batch's 61-byte header and leaves its records as bytes. Base offset and leader
epoch lie outside the CRC, so that the broker stamps them without touching the rest.

      0 base offset        int64      23 last offset delta  int32
      8 batch length       int32      27 base timestamp     int64   (length counts what follows it)
     12 leader epoch       int32      35 max timestamp      int64
     16 magic              int8       43 producer id        int64
     17 CRC-32C            uint32     51 producer epoch     int16   (over everything after it)
     21 attributes         int16      53 base sequence      int32
                                      57 record count       int32

Only what follows the header is compressed. `validate` is the gate for what clients produce;
`split` walks what was stored or fetched. A changed header needs a changed CRC: `with_append_time`
and `recompress` return a new batch, and never touch a record. Records themselves are `records`'
business, and older formats `legacy`'s.
"""

from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from chronik.protocol import codecs
from chronik.protocol.errors import CorruptBatch, ErrorCode, KafkaError
from chronik.protocol.schema import Buffer

MAGIC: Final = 2
HEADER_SIZE: Final = 61
LENGTH_OVERHEAD: Final = 12  # base offset and length, which the length does not count
CRC_START: Final = 21

COMPRESSION_MASK: Final = 0x07
TIMESTAMP_TYPE_FLAG: Final = 0x08  # set: the broker's append time, clear: the producer's
TRANSACTIONAL_FLAG: Final = 0x10
CONTROL_FLAG: Final = 0x20
DELETE_HORIZON_FLAG: Final = 0x40

_HEADER: Final = Struct(">qiibIhiqqqhii")
_STAMP: Final = Struct(">qii")
STAMP_SIZE: Final = _STAMP.size
_EXTENT: Final = Struct(">qi11xi")  # base offset, length, last offset delta
_LENGTH_AND_MAGIC: Final = Struct(">ixxxxb")
_LENGTH_START: Final = 8
_MAGIC_START: Final = 16
LENGTH_MIN: Final = HEADER_SIZE - LENGTH_OVERHEAD
SEQUENCE_MASK: Final = 0x7FFFFFFF  # sequences wrap from 2^31 - 1 to 0


class BatchHeader(NamedTuple):
    """The header of one batch. `size` includes the header and the length's own overhead."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        return self.length + LENGTH_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        return self.attributes & COMPRESSION_MASK

    @property
    def last_sequence(self) -> int:
        if self.base_sequence < 0:
            return self.base_sequence
        return (self.base_sequence + self.last_offset_delta) & SEQUENCE_MASK

    @property
    def is_append_time(self) -> bool:
        return bool(self.attributes & TIMESTAMP_TYPE_FLAG)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_FLAG)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_FLAG)


def read_header(data: Buffer, position: int = 0) -> BatchHeader:
    """Unpack the header at a position. The caller has checked that 61 bytes are there."""
    return BatchHeader._make(_HEADER.unpack_from(data, position))


def stamp(base_offset: int, length: int, leader_epoch: int) -> bytes:
    """The first 16 bytes of a batch as stored; the rest of it stays as the producer sent it."""
    return _STAMP.pack(base_offset, length, leader_epoch)


def pack_header(header: BatchHeader) -> bytes:
    """The 61 bytes of a header, as they are given: the CRC is the caller's."""
    return _HEADER.pack(*header)


class Batch(NamedTuple):
    """A header and the bytes of its whole batch, a view of where they were found."""

    header: BatchHeader
    data: memoryview

    @property
    def payload(self) -> memoryview:
        return self.data[HEADER_SIZE:]


def split(data: Buffer, *, partial_tail: bool = False) -> list[Batch]:
    """The batches of a records field, in order; CRCs are left to `verify_crc`.

    A broker may cut the last batch of a fetch short: `partial_tail` then ignores it.
    """
    view = memoryview(data)
    batches = []
    position = 0
    while position < len(view):
        left = len(view) - position
        header = read_header(view, position) if left >= HEADER_SIZE else None
        if header is None or header.size > left:
            if partial_tail and _may_be_cut(view[position:]):
                break
            raise CorruptBatch(f"the batch at byte {position} is cut short")
        if header.magic != MAGIC or header.length < LENGTH_MIN:
            raise CorruptBatch(
                f"no batch at byte {position}: magic {header.magic}, length {header.length}"
            )
        batches.append(Batch(header, view[position : position + header.size]))
        position += header.size
    return batches


def last_next_offset(data: Buffer) -> int:
    """The offset after the last of some whole batches, of which there is at least one."""
    position, size = 0, len(data)
    while True:
        base_offset, length, last_offset_delta = _EXTENT.unpack_from(data, position)
        position += length + LENGTH_OVERHEAD
        if position >= size:
            return int(base_offset + last_offset_delta + 1)


def _may_be_cut(rest: memoryview) -> bool:
    """Whether these bytes can be the beginning of a batch that is longer than they are."""
    if len(rest) <= _MAGIC_START:
        return True
    length, magic = _LENGTH_AND_MAGIC.unpack_from(rest, _LENGTH_START)
    return bool(magic == MAGIC and length >= LENGTH_MIN)


def compute_crc(batch: Buffer) -> int:
    """The CRC that the header of this whole batch should hold."""
    return crc32c(memoryview(batch)[CRC_START:])


def verify_crc(batch: Batch) -> None:
    """Raise CorruptBatch unless the checksum is right."""
    crc = compute_crc(batch.data)
    if crc != batch.header.crc:
        raise CorruptBatch(f"CRC {batch.header.crc:#010x}, computed {crc:#010x}")


def validate(data: Buffer) -> Batch:
    """The one batch that a client may send for a partition, checked as Kafka does it.

    Raises `KafkaError`. Timestamp bounds, sizes and sequences depend on the topic and on the
    producer: they are left to the caller.
    """
    size = len(data)
    if size < HEADER_SIZE:
        raise _invalid("there is no record batch" if not size else "the record batch is cut short")
    header = read_header(data)
    if header.magic != MAGIC:
        raise _invalid(f"record batches must have magic {MAGIC}, not {header.magic}")
    if header.length < LENGTH_MIN:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"batch length {header.length} is too small")
    if header.size > size:
        raise _invalid("the record batch is cut short")
    if header.size < size:
        raise _invalid("there must be exactly one record batch for a partition")
    crc = compute_crc(data)
    if crc != header.crc:
        message = f"the batch's CRC is {header.crc:#010x}, computed {crc:#010x}"
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, message)
    _validate_header(header)
    return Batch(header, memoryview(data))


def _validate_header(header: BatchHeader) -> None:
    if header.record_count <= 0 or header.record_count != header.last_offset_delta + 1:
        raise _invalid(
            f"{header.record_count} records cannot have a last offset delta of"
            f" {header.last_offset_delta}"
        )
    if header.attributes & CONTROL_FLAG:
        raise _invalid("clients are not allowed to write control records")
    if header.attributes & COMPRESSION_MASK > codecs.CODEC_MAX:
        message = f"unknown compression codec {header.codec}"
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, message)
    if header.attributes & TIMESTAMP_TYPE_FLAG:
        message = "producers must not set the timestamp type LogAppendTime"
        raise KafkaError(ErrorCode.INVALID_TIMESTAMP, message)
    _validate_producer(header)


def _validate_producer(header: BatchHeader) -> None:
    if header.producer_id >= 0:
        if header.base_sequence < 0 or header.producer_epoch < 0:
            raise _invalid(
                f"producer {header.producer_id} sent sequence {header.base_sequence}"
                f" in epoch {header.producer_epoch}"
            )
    elif header.producer_id != -1 or header.is_transactional:
        raise _invalid(f"{header.producer_id} is no producer id")


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, message)


def with_append_time(batch: Batch, now_ms: int) -> bytes:
    """The batch with the broker's time for all of its records (LogAppendTime)."""
    attributes = batch.header.attributes | TIMESTAMP_TYPE_FLAG
    header = batch.header._replace(attributes=attributes, max_timestamp=now_ms)
    return assemble(header, batch.payload)


def recompress(
    batch: Batch,
    codec: int,
    level: int | None = None,
    *,
    bytes_max: int = codecs.DECOMPRESSED_BYTES_MAX,
) -> bytes:
    """The batch with its records compressed by another codec, or by the same at another level."""
    header = batch.header
    records = codecs.decompress(header.codec, batch.payload, bytes_max=bytes_max)
    attributes = header.attributes & ~COMPRESSION_MASK | codec
    return assemble(header._replace(attributes=attributes), codecs.compress(codec, records, level))


def assemble(header: BatchHeader, payload: Buffer) -> bytes:
    """A batch of this header and payload, with its length and CRC set."""
    packed = pack_header(header._replace(length=LENGTH_MIN + len(payload), crc=0))
    crc = crc32c(payload, crc32c(packed[CRC_START:]))
    return b"".join((packed[: CRC_START - 4], crc.to_bytes(4), packed[CRC_START:], payload))
