"""Subscriptions and assignments, against bytes that Kafka 4.3's own classes wrote."""

import pytest

from chronik.protocol.errors import ProtocolError
from chronik.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    ConsumerProtocolTopicPartition,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

OWNED = [ConsumerProtocolTopicPartition(topic="t", partitions=[0, 1])]
SUBSCRIPTION = ConsumerProtocolSubscription(
    topics=["t"], owned_partitions=OWNED, generation_id=4, rack_id="r"
)
SUBSCRIPTION_BYTES = bytes.fromhex(
    "0003 00000001 0001 74 ffffffff 00000001 0001 74 00000002 00000000 00000001 00000004 0001 72"
)
ASSIGNMENT = ConsumerProtocolAssignment(assigned_partitions=OWNED, user_data=b"\x05")
ASSIGNMENT_BYTES = bytes.fromhex("0001 00000001 0001 74 00000002 00000000 00000001 00000001 05")


def test_kafkas_bytes() -> None:
    assert encode_subscription(SUBSCRIPTION) == SUBSCRIPTION_BYTES
    assert decode_subscription(SUBSCRIPTION_BYTES) == (3, SUBSCRIPTION)
    assert encode_assignment(ASSIGNMENT, 1) == ASSIGNMENT_BYTES
    assert decode_assignment(memoryview(ASSIGNMENT_BYTES)) == (1, ASSIGNMENT)


@pytest.mark.parametrize("version", range(4))
def test_old_versions_leave_out_what_they_lack(version: int) -> None:
    data = encode_subscription(SUBSCRIPTION, version)
    assert decode_subscription(data) == (
        version,
        ConsumerProtocolSubscription(
            topics=["t"],
            owned_partitions=OWNED if version >= 1 else (),
            generation_id=4 if version >= 2 else -1,
            rack_id="r" if version >= 3 else None,
        ),
    )


def test_a_newer_version_is_read_as_far_as_it_is_known() -> None:
    newer = b"\x00\x09" + SUBSCRIPTION_BYTES[2:] + b"more"
    assert decode_subscription(newer) == (9, SUBSCRIPTION)
    assert decode_assignment(ASSIGNMENT_BYTES + b"more") == (1, ASSIGNMENT)


@pytest.mark.parametrize("size", range(len(SUBSCRIPTION_BYTES)))
def test_a_subscription_that_was_cut_off_is_refused(size: int) -> None:
    with pytest.raises(ProtocolError):
        decode_subscription(SUBSCRIPTION_BYTES[:size])


@pytest.mark.parametrize("data", [b"", b"\x00", b"\xff\xff\x00\x00\x00\x00", b"\x00\x00\x7f\xff"])
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_assignment(data)
