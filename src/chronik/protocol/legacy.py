"""Message sets of magic 0 and 1, as clients of Kafka 0.8 to 0.10 send and expect them.

The log holds batches of magic 2 only. What old producers send is converted before it is stored,
and what old consumers fetch on its way out.

      0 offset          int64       17 attributes      int8     (codec, and in magic 1 bit 3: the
      8 size            int32                                    broker's append time)
     12 CRC-32          uint32      18 timestamp       int64    (magic 1 only)
     16 magic           int8           key, value      int32 length, bytes; -1 is null

A message whose attributes name a codec is a wrapper: its value is a compressed message set. Its
offset is that of its last message. The messages inside have their own offsets in magic 0, and
offsets relative to the first one in magic 1.

What magic 0 and 1 cannot carry is left out: headers, control batches, idempotence. zstd came
later, and is refused. Garbage raises `KafkaError` or `ProtocolError`, nothing else.
"""

from collections.abc import Iterator
from itertools import groupby
from struct import Struct, error
from typing import Final, NamedTuple
from zlib import crc32

from chronik.model import NO_TIMESTAMP
from chronik.protocol import codecs
from chronik.protocol.batch import (
    COMPRESSION_MASK,
    TIMESTAMP_TYPE_FLAG,
    Batch,
    split,
)
from chronik.protocol.errors import CorruptBatch, ErrorCode, KafkaError
from chronik.protocol.records import BatchBuilder, Record, iter_records
from chronik.protocol.schema import Buffer

MAGIC_START: Final = 16
_ENTRY: Final = Struct(">qiIbb")  # up to the attributes
_OFFSET_AND_SIZE: Final = Struct(">qi")
_INT64: Final = Struct(">q")
_INT32: Final = Struct(">i")
_CRC_SIZE: Final = 4
_NULL: Final = _INT32.pack(-1)
# The difference of any two timestamps, -1 among them, must fit the 64 bits of a delta.
_TIMESTAMP_MAX: Final = (1 << 63) - 2
# Offset, size, CRC, magic, attributes and two lengths; magic 1 has the timestamp too.
_MESSAGE_SIZE_MIN: Final = (26, 34)


class Message(NamedTuple):
    """One message, or a wrapper of compressed ones."""

    offset: int
    magic: int
    attributes: int
    timestamp: int
    key: bytes | None
    value: bytes | None

    @property
    def codec(self) -> int:
        return self.attributes & COMPRESSION_MASK


def magic_of(records: Buffer) -> int | None:
    """The format of a records field, whichever it is; None if there is not even one message."""
    return records[MAGIC_START] if len(records) > MAGIC_START else None


def to_batches(
    message_set: Buffer,
    *,
    codec: int | None = None,
    level: int | None = None,
    bytes_max: int = codecs.DECOMPRESSED_BYTES_MAX,
) -> list[bytes]:
    """Convert what a client produced: one batch for each wrapper and each run of plain messages.

    `codec` replaces the client's compression. Messages of magic 0 have no timestamp, and keep
    having none, unless the caller stamps the batch with its append time.
    """
    batches = []
    messages = _of_one_magic(_read(message_set), magic_of(message_set))
    for plain, run in groupby(messages, lambda message: message.codec == codecs.NONE):
        if plain:
            batches.append(_to_batch(run, codecs.NONE if codec is None else codec, level))
            continue
        for wrapper in run:
            inner = _of_one_magic(_unwrap(wrapper, bytes_max), wrapper.magic)
            batches.append(_to_batch(inner, wrapper.codec if codec is None else codec, level))
    return batches


def _of_one_magic(messages: Iterator[Message], magic: int | None) -> Iterator[Message]:
    for message in messages:
        if message.magic != magic:
            raise _invalid("the messages of a set must have the same magic")
        yield message


def _to_batch(messages: Iterator[Message], codec: int, level: int | None) -> bytes:
    builder = BatchBuilder()
    for message in messages:
        builder.append(message.timestamp, message.key, message.value)
    if not builder.record_count:
        raise _invalid("a compressed message set is empty")
    return builder.build(codec=codec, level=level)


def _unwrap(wrapper: Message, bytes_max: int) -> Iterator[Message]:
    if wrapper.codec > codecs.LZ4:
        reason = f"messages of magic {wrapper.magic} cannot use compression {wrapper.codec}"
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, reason)
    if wrapper.value is None:
        raise _invalid("a compressed message has no value")
    inner = codecs.decompress(
        wrapper.codec, wrapper.value, bytes_max=bytes_max, magic=wrapper.magic
    )
    for message in _read(inner):
        if message.codec != codecs.NONE:
            raise _invalid("a compressed message cannot hold compressed ones")
        yield message


def _read(message_set: Buffer) -> Iterator[Message]:
    """The messages of a set, wrappers as they are; their checksums are verified."""
    data = bytes(message_set)
    position = 0
    while position < len(data):
        if len(data) - position < _ENTRY.size:
            raise _cut_short()
        offset, size, crc, magic, attributes = _ENTRY.unpack_from(data, position)
        if magic not in (0, 1):
            raise _invalid(f"no message set has magic {magic}")
        end = position + _OFFSET_AND_SIZE.size + size
        if end - position < _MESSAGE_SIZE_MIN[magic] or end > len(data):
            raise _cut_short()
        if crc32(memoryview(data)[position + MAGIC_START : end]) != crc:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"message {offset} has a wrong CRC")
        yield _message(data, position, end, offset, magic, attributes)
        position = end


def _message(
    data: bytes, position: int, end: int, offset: int, magic: int, attributes: int
) -> Message:
    timestamp = NO_TIMESTAMP
    position += _ENTRY.size
    if magic == 1:
        if attributes & TIMESTAMP_TYPE_FLAG:
            message = "producers must not set the timestamp type LogAppendTime"
            raise KafkaError(ErrorCode.INVALID_TIMESTAMP, message)
        (timestamp,) = _INT64.unpack_from(data, position)
        if not NO_TIMESTAMP <= timestamp <= _TIMESTAMP_MAX:
            raise KafkaError(ErrorCode.INVALID_TIMESTAMP, f"timestamp {timestamp} is out of range")
        position += _INT64.size
    key, position = _nullable(data, position, end)
    value, position = _nullable(data, position, end)
    if position != end:
        raise _invalid(f"message {offset} does not have the size that it claims")
    return Message(offset, magic, attributes, timestamp, key, value)


def _nullable(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    start = position + _INT32.size
    if start > end:
        raise _cut_short()
    (length,) = _INT32.unpack_from(data, position)
    if length == -1:
        return None, start
    if length < 0 or start + length > end:
        raise _invalid(f"a key or a value has length {length}")
    return data[start : start + length], start + length


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, message)


def _cut_short() -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, "a message is cut short")


def from_batches(
    batches: Buffer,
    magic: int,
    fetch_offset: int = 0,
    *,
    bytes_max: int = codecs.DECOMPRESSED_BYTES_MAX,
) -> bytes:
    """Convert stored batches for a consumer that reads magic 0 (Fetch 0-1) or 1 (Fetch 2-3).

    Plain messages below the fetch offset are left out; a wrapper stays whole, and its consumer
    skips them. Control batches are left out, so that the result may be empty. A batch that cannot
    be converted ends the result, and is an error only if nothing comes before it.
    """
    assert magic in (0, 1)
    converted = bytearray()
    for batch in split(batches):
        if batch.header.is_control:
            continue
        try:
            converted += _from_batch(batch, magic, fetch_offset, bytes_max)
        except error:
            if not converted:
                raise CorruptBatch("an offset or a timestamp does not fit 64 bits") from None
            break
        except (CorruptBatch, KafkaError):
            if not converted:
                raise
            break
    return bytes(converted)


def _from_batch(batch: Batch, magic: int, fetch_offset: int, bytes_max: int) -> bytes:
    header = batch.header
    codec = header.codec
    if codec > codecs.LZ4:
        message = f"a consumer of magic {magic} cannot read compression {codec}"
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, message)
    records = iter_records(batch.data, bytes_max=bytes_max)
    flags = header.attributes & TIMESTAMP_TYPE_FLAG if magic else 0
    messages = bytearray()
    if codec == codecs.NONE:
        for record in records:
            if record.offset >= fetch_offset:
                messages += _encode(record, record.offset, magic, flags)
        return bytes(messages)
    first_offset = last_offset = None
    for record in records:
        if first_offset is None:
            first_offset = record.offset
        last_offset = record.offset
        offset = last_offset - first_offset if magic else last_offset
        messages += _encode(record, offset, magic, flags)
    if last_offset is None or last_offset < fetch_offset:
        return b""  # Compaction may have left a batch without records, or without its last ones.
    value = codecs.compress(codec, messages, magic=magic)
    wrapper = Record(last_offset, header.max_timestamp, None, value)
    return _encode(wrapper, last_offset, magic, flags | codec)


def _encode(record: Record, offset: int, magic: int, attributes: int) -> bytes:
    body = b"".join(
        (
            bytes((magic, attributes)),
            _INT64.pack(record.timestamp) if magic else b"",
            _NULL if record.key is None else _INT32.pack(len(record.key)) + record.key,
            _NULL if record.value is None else _INT32.pack(len(record.value)) + record.value,
        )
    )
    size = _CRC_SIZE + len(body)
    return b"".join((_OFFSET_AND_SIZE.pack(offset, size), crc32(body).to_bytes(4), body))
