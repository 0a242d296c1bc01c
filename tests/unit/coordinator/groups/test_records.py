"""The records of __consumer_offsets, against bytes that Kafka 4.3's own classes wrote."""

from typing import Any

import pytest

from chronik.coordinator.groups import records as group_records
from chronik.coordinator.groups.records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    CurrentTopicPartitions,
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    PartitionRacks,
    TargetTopicPartitions,
    TopicMetadata,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from chronik.coordinator.record_formats import UnknownKey
from chronik.protocol.errors import ProtocolError
from chronik.protocol.schema import Message

TOPIC_ID = bytes(range(1, 17))
TOPIC_ID_HEX = TOPIC_ID.hex()
OFFSET_KEY = OffsetCommitKey(group="g", topic="t", partition=3)
OFFSET = OffsetCommitValue(offset=7, leader_epoch=2, metadata="m", commit_timestamp=1000)
GROUP = GroupMetadataValue(
    protocol_type="consumer",
    generation=5,
    protocol="range",
    leader="m-1",
    current_state_timestamp=1000,
    members=[
        MemberMetadata(
            member_id="m-1",
            group_instance_id="i",
            client_id="c",
            client_host="/h",
            rebalance_timeout=300,
            session_timeout=100,
            subscription=b"\x01\x02",
            assignment=b"\x03",
        )
    ],
)


def member(classic: ClassicMemberMetadata | None = None) -> ConsumerGroupMemberMetadataValue:
    return ConsumerGroupMemberMetadataValue(
        instance_id="i",
        rack_id=None,
        client_id="c",
        client_host="/h",
        subscribed_topic_names=["t"],
        subscribed_topic_regex="t.*",
        rebalance_timeout_ms=300,
        server_assignor="uniform",
        classic_member_metadata=classic,
    )


KEYS = [
    (OFFSET_KEY, "0001 0001 67 0001 74 00000003"),
    (GroupMetadataKey(group="g"), "0002 0001 67"),
    (ConsumerGroupMetadataKey(group_id="g"), "0003 0001 67"),
    (ConsumerGroupPartitionMetadataKey(group_id="g"), "0004 0001 67"),
    (ConsumerGroupMemberMetadataKey(group_id="g", member_id="m"), "0005 0001 67 0001 6d"),
    (ConsumerGroupTargetAssignmentMetadataKey(group_id="g"), "0006 0001 67"),
    (ConsumerGroupTargetAssignmentMemberKey(group_id="g", member_id="m"), "0007 0001 67 0001 6d"),
    (ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id="m"), "0008 0001 67 0001 6d"),
    (
        ConsumerGroupRegularExpressionKey(group_id="g", regular_expression="r"),
        "0010 0001 67 0001 72",
    ),
]

VALUES: list[tuple[Message, Message, int | None, str]] = [
    (
        OFFSET_KEY,
        OffsetCommitValue(
            offset=7, leader_epoch=2, metadata="m", commit_timestamp=1000, topic_id=TOPIC_ID
        ),
        None,
        f"0004 0000000000000007 00000002 026d 00000000000003e8 01 00 10 {TOPIC_ID_HEX}",
    ),
    (
        OFFSET_KEY,
        OFFSET,
        3,
        "0003 0000000000000007 00000002 0001 6d 00000000000003e8",
    ),
    (
        OFFSET_KEY,
        OffsetCommitValue(offset=7, metadata="m", commit_timestamp=1000, expire_timestamp=2000),
        None,
        "0001 0000000000000007 0001 6d 00000000000003e8 00000000000007d0",
    ),
    (
        GroupMetadataKey(group="g"),
        GROUP,
        None,
        "0003 0008 636f6e73756d6572 00000005 0005 72616e6765 0003 6d2d31 00000000000003e8 00000001"
        "0003 6d2d31 0001 69 0001 63 0002 2f68 0000012c 00000064 00000002 0102 00000001 03",
    ),
    (
        GroupMetadataKey(group="g"),
        GROUP,
        4,
        "0004 09 636f6e73756d6572 00000005 06 72616e6765 04 6d2d31 00000000000003e8 02"
        "04 6d2d31 02 69 02 63 03 2f68 0000012c 00000064 03 0102 02 03 00 00",
    ),
    (
        ConsumerGroupMetadataKey(group_id="g"),
        ConsumerGroupMetadataValue(epoch=9, metadata_hash=77),
        None,
        "0000 00000009 01 00 08 000000000000004d",
    ),
    (
        ConsumerGroupPartitionMetadataKey(group_id="g"),
        ConsumerGroupPartitionMetadataValue(
            topics=[
                TopicMetadata(
                    topic_id=TOPIC_ID,
                    topic_name="t",
                    num_partitions=1,
                    partition_metadata=[PartitionRacks(partition=0, racks=["a"])],
                )
            ]
        ),
        None,
        f"0000 02 {TOPIC_ID_HEX} 02 74 00000001 02 00000000 02 02 61 00 00 00",
    ),
    (
        ConsumerGroupMemberMetadataKey(group_id="g", member_id="m"),
        member(),
        None,
        "0000 02 69 00 02 63 03 2f68 02 02 74 04 742e2a 0000012c 08 756e69666f726d 00",
    ),
    (
        ConsumerGroupMemberMetadataKey(group_id="g", member_id="m"),
        member(
            ClassicMemberMetadata(
                session_timeout_ms=100,
                supported_protocols=[ClassicProtocol(name="range", metadata=b"\x01")],
            )
        ),
        None,
        "0000 02 69 00 02 63 03 2f68 02 02 74 04 742e2a 0000012c 08 756e69666f726d"
        "01 00 10 01 00000064 02 06 72616e6765 02 01 00 00",
    ),
    (
        ConsumerGroupTargetAssignmentMetadataKey(group_id="g"),
        ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=9, assignment_timestamp=1000),
        None,
        "0000 00000009 01 00 08 00000000000003e8",
    ),
    (
        ConsumerGroupTargetAssignmentMemberKey(group_id="g", member_id="m"),
        ConsumerGroupTargetAssignmentMemberValue(
            topic_partitions=[TargetTopicPartitions(topic_id=TOPIC_ID, partitions=[0, 1])]
        ),
        None,
        f"0000 02 {TOPIC_ID_HEX} 03 00000000 00000001 00 00",
    ),
    (
        ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id="m"),
        ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=9,
            previous_member_epoch=8,
            state=1,
            assigned_partitions=[
                CurrentTopicPartitions(
                    topic_id=TOPIC_ID, partitions=[0, 1], assignment_epochs=[8, 9]
                )
            ],
            partitions_pending_revocation=[
                CurrentTopicPartitions(topic_id=TOPIC_ID, partitions=[2])
            ],
        ),
        None,
        f"0000 00000009 00000008 01 02 {TOPIC_ID_HEX} 03 00000000 00000001 01 00 09 03 00000008"
        f"00000009 02 {TOPIC_ID_HEX} 02 00000002 00 00",
    ),
    (
        ConsumerGroupRegularExpressionKey(group_id="g", regular_expression="r"),
        ConsumerGroupRegularExpressionValue(topics=["t1", "t2"], version=3, timestamp=1000),
        None,
        "0000 03 03 7431 03 7432 0000000000000003 00000000000003e8 00",
    ),
]


@pytest.mark.parametrize(("key", "text"), KEYS, ids=lambda each: type(each).__name__)
def test_keys(key: Message, text: str) -> None:
    data = bytes.fromhex(text)
    assert encode_key(key) == data
    assert decode_key(data) == key
    assert decode_key(memoryview(data)) == key


@pytest.mark.parametrize(
    ("key", "value", "version", "text"), VALUES, ids=lambda each: type(each).__name__
)
def test_values(key: Message, value: Message, version: int | None, text: str) -> None:
    data = bytes.fromhex(text)
    assert encode_value(value, version) == data
    assert decode_value(key, data) == value
    assert decode_value(key, memoryview(data)) == value
    for size in range(len(data)):
        with pytest.raises(ProtocolError):
            decode_value(key, data[:size])
    with pytest.raises(ProtocolError, match="bytes left"):
        decode_value(key, data + b"\x00")


def test_every_record_type_has_a_golden_key_and_value() -> None:
    declared = {name for name in vars(group_records) if name.endswith(("Key", "Value"))}
    declared -= {"UnknownKey"}
    covered = {type(key).__name__ for key, _ in KEYS}
    covered |= {type(value).__name__ for _, value, _, _ in VALUES}
    assert covered == declared


def test_an_offset_without_an_expiry_is_written_like_kafka_does() -> None:
    assert encode_value(OFFSET)[:2] == b"\x00\x04"
    assert decode_value(OFFSET_KEY, encode_value(OFFSET)) == OFFSET


def test_the_oldest_key_of_an_offset_is_read() -> None:
    key = decode_key(bytes.fromhex("0000 0001 67 0001 74 00000003"))
    assert key == OFFSET_KEY
    oldest = bytes.fromhex("0000 0000000000000007 0001 6d 00000000000003e8")
    assert decode_value(OFFSET_KEY, oldest) == OffsetCommitValue(
        offset=7, metadata="m", commit_timestamp=1000
    )


@pytest.mark.parametrize("version", range(5))
def test_every_version_of_a_group_is_read(version: int) -> None:
    data = encode_value(GROUP, version)
    group: Any = decode_value(GroupMetadataKey(group="g"), data)
    assert group.generation == 5
    assert group.members[0].assignment == b"\x03"
    assert (group.current_state_timestamp == 1000) == (version >= 2)
    assert (group.members[0].rebalance_timeout == 300) == (version >= 1)
    assert (group.members[0].group_instance_id == "i") == (version >= 3)


def test_no_value_deletes() -> None:
    assert decode_value(OFFSET_KEY, None) is None


@pytest.mark.parametrize("number", [9, 15, 17, 999, -1])
def test_a_key_of_an_unknown_type_is_passed_over(number: int) -> None:
    key = decode_key(number.to_bytes(2, "big", signed=True) + b"\xff\xff\xff")
    assert key == UnknownKey(number)
    assert decode_value(key, b"\xff\xff\xff") is None


@pytest.mark.parametrize("text", ["", "00", "0001", "0001 0009 67", "0002 0001 67 00"])
def test_garbage_is_no_key(text: str) -> None:
    with pytest.raises(ProtocolError):
        decode_key(bytes.fromhex(text))


@pytest.mark.parametrize("text", ["", "00", "0005 00", "ffff 00"])
def test_garbage_and_unknown_versions_are_no_value(text: str) -> None:
    with pytest.raises(ProtocolError):
        decode_value(OFFSET_KEY, bytes.fromhex(text))
