"""What a producer sent becomes what the log stores, or a Kafka error.

The usual case (one batch of magic 2, stored as sent) costs a header and a CRC: records are not
looked at. Only settings that are about records look inside: a compacted topic wants keys, a
changed codec recompresses, a lower timestamp bound reads timestamps, an old client's message set
is converted.

Pure: time is an argument, nothing is stored here.
"""

from chronik.protocol import codecs, legacy
from chronik.protocol.batch import (
    HEADER_SIZE,
    MAGIC,
    Batch,
    read_header,
    recompress,
    validate,
    with_append_time,
)
from chronik.protocol.errors import ErrorCode, KafkaError, ProtocolError
from chronik.protocol.records import iter_records, keyless_records
from chronik.protocol.schema import Buffer
from chronik.replication.topic_config import TopicConfig

MODERN_PRODUCE_VERSION = 3  # From here on exactly one batch of magic 2.
ZSTD_PRODUCE_VERSION = 7
_RECORD_SIZE_MIN = 7  # Length, attributes, two deltas, key, value and header count: a byte each.


class InvalidRecords(KafkaError):
    """A batch refused because of some of its records; `indexes` names them (KIP-467)."""

    def __init__(self, code: ErrorCode, message: str, indexes: list[int]) -> None:
        super().__init__(code, message)
        self.indexes = indexes


def admit(data: Buffer, version: int, config: TopicConfig, now_ms: int) -> list[Batch]:
    """The batches to store for a partition of a Produce request of this version."""
    try:
        if version >= MODERN_PRODUCE_VERSION or legacy.magic_of(data) == MAGIC:
            batches = [validate(data)]
        else:
            batches = [
                Batch(read_header(batch), memoryview(batch)) for batch in legacy.to_batches(data)
            ]
        return [_admit(batch, version, config, now_ms) for batch in batches]
    except ProtocolError as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from None


def _admit(batch: Batch, version: int, config: TopicConfig, now_ms: int) -> Batch:
    header = batch.header
    if header.codec == codecs.ZSTD and version < ZSTD_PRODUCE_VERSION:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7 or later"
        )
    _check_plausible(batch)
    if config.compact:
        indexes = keyless_records(batch.data)
        if indexes:
            message = "Compacted topic cannot accept message without key."
            raise InvalidRecords(ErrorCode.INVALID_RECORD, message, indexes)
    if not config.append_time:
        _check_timestamps(batch, config, now_ms)
    if config.codec is not None and config.codec != header.codec:
        batch = _batch(recompress(batch, config.codec, config.codec_level))
    if config.append_time:
        batch = _batch(with_append_time(batch, now_ms))
    if len(batch.data) > config.max_message_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"The record batch size is {len(batch.data)} bytes, which exceeds the maximum "
            f"configured value of {config.max_message_bytes} (max.message.bytes).",
        )
    return batch


def _batch(data: bytes) -> Batch:
    return Batch(read_header(data), memoryview(data))


def _check_plausible(batch: Batch) -> None:
    """Refuse a batch that cannot hold what its header claims, without walking its records."""
    header = batch.header
    if header.codec != codecs.NONE:
        return
    room = header.size - HEADER_SIZE
    if header.record_count * _RECORD_SIZE_MIN > room:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"{header.record_count} records do not fit in {room} bytes",
        )


def _check_timestamps(batch: Batch, config: TopicConfig, now_ms: int) -> None:
    header = batch.header
    latest = now_ms + config.timestamp_after_max_ms
    if header.max_timestamp > latest:
        indexes = [
            index
            for index, record in enumerate(iter_records(batch.data))
            if record.timestamp > latest
        ]
        raise _timestamp_error(header.max_timestamp, now_ms, indexes)
    earliest = now_ms - config.timestamp_before_max_ms
    if earliest <= 0 or header.base_timestamp < 0:
        return  # No lower bound, or an old client's records without timestamps.
    early = [
        (index, record.timestamp)
        for index, record in enumerate(iter_records(batch.data))
        if record.timestamp < earliest
    ]
    if early:
        raise _timestamp_error(early[0][1], now_ms, [index for index, _ in early])


def _timestamp_error(timestamp: int, now_ms: int, indexes: list[int]) -> InvalidRecords:
    return InvalidRecords(
        ErrorCode.INVALID_TIMESTAMP,
        f"Timestamp {timestamp} is out of range: the broker's clock says {now_ms}, and "
        "message.timestamp.before.max.ms and message.timestamp.after.max.ms bound the distance.",
        indexes,
    )
