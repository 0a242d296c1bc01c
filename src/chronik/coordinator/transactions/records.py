"""The records of __transaction_state: one for each transactional id.

Field names and versions are Kafka's, so that either broker reads what the other wrote. A null
value forgets the transactional id.
"""

from collections.abc import Sequence
from typing import Annotated, Final

from chronik.coordinator.effects import Record
from chronik.coordinator.record_formats import RecordFormat, RecordFormats, UnknownKey
from chronik.protocol.schema import (
    Buffer,
    Message,
    int8,
    int16,
    int32,
    int64,
    string,
    tagged,
)


class TransactionLogKey(Message):
    """A transactional id."""

    transactional_id: string


class PartitionsSchema(Message):
    """The partitions of one topic in a transaction."""

    topic: string
    partition_ids: Sequence[int32]


class TransactionLogValue(Message):
    """The state of a transactional id, its producer and its partitions.

    Previous and next producer ids bridge the moment at which a producer's epochs run out.
    """

    producer_id: int64
    previous_producer_id: Annotated[int64, tagged(0, since=1)] = -1
    next_producer_id: Annotated[int64, tagged(1, since=1)] = -1
    producer_epoch: int16
    next_producer_epoch: Annotated[int16, tagged(3, since=1)] = -1
    transaction_timeout_ms: int32
    transaction_status: int8
    transaction_partitions: Sequence[PartitionsSchema] | None
    transaction_last_update_timestamp_ms: int64
    transaction_start_timestamp_ms: int64
    client_transaction_version: Annotated[int16, tagged(2, since=1)] = 0
    # Ours: Kafka keeps tags that it does not know aside.
    memory_epoch: Annotated[int64, tagged(1000, since=1)] = 0


_FORMATS: Final = RecordFormats(
    (
        RecordFormat(
            number=0,
            key=TransactionLogKey,
            value=TransactionLogValue,
            newest=1,
            written=1,
            flexible_since=1,
        ),
    ),
    aliases={},
)


def encode_key(key: TransactionLogKey) -> bytes:
    """A record's key."""
    return _FORMATS.encode_key(key)


def encode_value(value: TransactionLogValue, version: int | None = None) -> bytes:
    """A record's value, in the version that Kafka writes if none is given."""
    return _FORMATS.encode_value(value, version)


def decode_key(data: Buffer) -> TransactionLogKey | UnknownKey:
    """The key that these bytes hold; a type that we do not know is not an error."""
    key = _FORMATS.decode_key(data)
    assert isinstance(key, TransactionLogKey | UnknownKey)
    return key


def decode_value(
    key: TransactionLogKey | UnknownKey, data: Buffer | None
) -> TransactionLogValue | None:
    """The value under this key; None if it deletes, or if the key is unknown."""
    value = _FORMATS.decode_value(key, data)
    assert value is None or isinstance(value, TransactionLogValue)
    return value


class TransactionRecordFormat:
    """How records of transactions become bytes and come back."""

    def encode(self, record: Record) -> tuple[bytes, bytes | None]:
        """The key and the value; no value is a removal."""
        key, value = record
        assert isinstance(key, TransactionLogKey)
        assert value is None or isinstance(value, TransactionLogValue)
        return encode_key(key), None if value is None else encode_value(value)

    def decode(self, key: bytes, value: bytes | None) -> Record | None:
        """The record, or None if it is of a type that we do not know."""
        decoded = decode_key(key)
        if isinstance(decoded, UnknownKey):
            return None
        return Record(decoded, decode_value(decoded, value))
