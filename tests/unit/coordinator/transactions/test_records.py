"""The records of __transaction_state, against bytes that Kafka 4.3's own classes wrote."""

import msgspec
import pytest

from chronik.coordinator.record_formats import UnknownKey
from chronik.coordinator.transactions.records import (
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from chronik.protocol.errors import ProtocolError

KEY = TransactionLogKey(transactional_id="tx")
ONGOING = TransactionLogValue(
    producer_id=42,
    producer_epoch=3,
    transaction_timeout_ms=60_000,
    transaction_status=1,
    transaction_partitions=[PartitionsSchema(topic="t", partition_ids=[0, 1])],
    transaction_last_update_timestamp_ms=1000,
    transaction_start_timestamp_ms=900,
)
TAGGED: TransactionLogValue = msgspec.structs.replace(
    ONGOING,  # type: ignore[type-var]
    previous_producer_id=41,
    next_producer_id=43,
    next_producer_epoch=0,
    client_transaction_version=2,
)
EMPTY = TransactionLogValue(
    producer_id=42,
    producer_epoch=3,
    transaction_timeout_ms=60_000,
    transaction_status=0,
    transaction_partitions=None,
    transaction_last_update_timestamp_ms=1000,
    transaction_start_timestamp_ms=-1,
)
PRODUCER = "000000000000002a 0003 0000ea60"

VALUES = [
    (
        ONGOING,
        0,
        f"0000 {PRODUCER} 01 00000001 0001 74 00000002 00000000 00000001"
        "00000000000003e8 0000000000000384",
    ),
    (
        ONGOING,
        None,
        f"0001 {PRODUCER} 01 02 02 74 03 00000000 00000001 0000000000000003e8 0000000000000384 00",
    ),
    (
        TAGGED,
        None,
        f"0001 {PRODUCER} 01 02 02 74 03 00000000 00000001 00"
        "00000000000003e8 0000000000000384"
        "04 00 08 0000000000000029 01 08 000000000000002b 02 02 0002 03 02 0000",
    ),
    (EMPTY, None, f"0001 {PRODUCER} 00 00 00000000000003e8 ffffffffffffffff 00"),
]


def test_a_key() -> None:
    data = bytes.fromhex("0000 0002 7478")
    assert encode_key(KEY) == data
    assert decode_key(data) == KEY


@pytest.mark.parametrize(("value", "version", "text"), VALUES)
def test_values(value: TransactionLogValue, version: int | None, text: str) -> None:
    data = bytes.fromhex(text)
    assert encode_value(value, version) == data
    assert decode_value(KEY, data) == value
    for size in range(len(data)):
        with pytest.raises(ProtocolError):
            decode_value(KEY, data[:size])


def test_no_value_deletes_and_unknown_keys_are_passed_over() -> None:
    assert decode_value(KEY, None) is None
    key = decode_key(b"\x00\x01what")
    assert key == UnknownKey(1)
    assert decode_value(key, b"\xff") is None


@pytest.mark.parametrize("text", ["", "00", "0000", "0000 0003 7478", "0000 0002 7478 00"])
def test_garbage_is_no_key(text: str) -> None:
    with pytest.raises(ProtocolError):
        decode_key(bytes.fromhex(text))


@pytest.mark.parametrize("text", ["", "0002 00", "ffff 00"])
def test_garbage_and_unknown_versions_are_no_value(text: str) -> None:
    with pytest.raises(ProtocolError):
        decode_value(KEY, bytes.fromhex(text))
