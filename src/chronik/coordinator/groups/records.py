"""The records of __consumer_offsets: committed offsets, classic groups and consumer groups.

Each record type is a key and a value; a null value deletes. Field names and versions are Kafka's,
and so is the version that is written, so that either broker reads what the other wrote.

Types 0 and 1 are the same: Kafka 0.8.2 wrote 0. Type 4 held the partitions that a consumer group
saw; Kafka has put a hash into type 3 instead, so that it is read and never needed. Records of
share and streams groups are unknown keys here.
"""

from collections.abc import Sequence
from typing import Annotated, Final

from chronik.coordinator.effects import Record
from chronik.coordinator.record_formats import RecordFormat, RecordFormats, UnknownKey
from chronik.protocol.schema import (
    NO_UUID,
    Buffer,
    Message,
    between,
    blob,
    int8,
    int32,
    int64,
    since,
    string,
    tagged,
    uuid,
)

NO_TIMESTAMP: Final = -1


class OffsetCommitKey(Message):
    """Whose offset, and where."""

    group: string
    topic: string
    partition: int32


class OffsetCommitValue(Message):
    """The offset to read next. Only commits with a retention of their own have an expiry."""

    offset: int64
    leader_epoch: Annotated[int32, since(3)] = -1
    metadata: string
    commit_timestamp: int64
    expire_timestamp: Annotated[int64, between(1, 1)] = NO_TIMESTAMP
    topic_id: Annotated[uuid, tagged(0, since=4)] = NO_UUID


class GroupMetadataKey(Message):
    """A classic group."""

    group: string


class MemberMetadata(Message):
    """A member of a classic group, its subscription and its assignment."""

    member_id: string
    group_instance_id: Annotated[string | None, since(3)] = None
    client_id: string
    client_host: string
    rebalance_timeout: Annotated[int32, since(1)] = -1
    session_timeout: int32
    subscription: blob
    assignment: blob


class GroupMetadataValue(Message):
    """A classic group's generation; without members the group is empty."""

    protocol_type: string
    generation: int32
    protocol: string | None
    leader: string | None
    current_state_timestamp: Annotated[int64, since(2)] = NO_TIMESTAMP
    members: Sequence[MemberMetadata]


class ConsumerGroupMetadataKey(Message):
    """A consumer group."""

    group_id: string


class ConsumerGroupMetadataValue(Message):
    """A consumer group's epoch, and the hash of the topics for which it was computed."""

    epoch: int32
    metadata_hash: Annotated[int64, tagged(0, since=0)] = 0


class ConsumerGroupPartitionMetadataKey(Message):
    """A consumer group's view of its topics."""

    group_id: string


class PartitionRacks(Message):
    """The racks of one partition's replicas."""

    partition: int32
    racks: Sequence[string]


class TopicMetadata(Message):
    """A topic as the group last saw it."""

    topic_id: uuid
    topic_name: string
    num_partitions: int32
    partition_metadata: Sequence[PartitionRacks]


class ConsumerGroupPartitionMetadataValue(Message):
    """The topics that the group subscribes to."""

    topics: Sequence[TopicMetadata]


class ConsumerGroupMemberMetadataKey(Message):
    """A member of a consumer group."""

    group_id: string
    member_id: string


class ClassicProtocol(Message):
    """An assignor and subscription, as a member that speaks the classic protocol sent them."""

    name: string
    metadata: blob


class ClassicMemberMetadata(Message):
    """What a consumer group keeps of a member that speaks the classic protocol."""

    session_timeout_ms: int32
    supported_protocols: Sequence[ClassicProtocol]


class ConsumerGroupMemberMetadataValue(Message):
    """Who the member is and what it subscribes to."""

    instance_id: string | None
    rack_id: string | None
    client_id: string
    client_host: string
    subscribed_topic_names: Sequence[string]
    subscribed_topic_regex: string | None
    rebalance_timeout_ms: int32 = -1
    server_assignor: string | None
    classic_member_metadata: Annotated[ClassicMemberMetadata | None, tagged(0, since=0)] = None


class ConsumerGroupTargetAssignmentMetadataKey(Message):
    """The target assignment of a consumer group."""

    group_id: string


class ConsumerGroupTargetAssignmentMetadataValue(Message):
    """The group epoch of which it is the target, and when it was computed."""

    assignment_epoch: int32
    assignment_timestamp: Annotated[int64, tagged(0, since=0)] = 0


class ConsumerGroupTargetAssignmentMemberKey(Message):
    """One member's share of the target assignment."""

    group_id: string
    member_id: string


class TargetTopicPartitions(Message):
    """The partitions of one topic that a member shall own."""

    topic_id: uuid
    partitions: Sequence[int32]


class ConsumerGroupTargetAssignmentMemberValue(Message):
    """What the member shall own."""

    topic_partitions: Sequence[TargetTopicPartitions]


class ConsumerGroupCurrentMemberAssignmentKey(Message):
    """One member's present assignment."""

    group_id: string
    member_id: string


class CurrentTopicPartitions(Message):
    """The partitions of one topic, and the member epoch in which each was given."""

    topic_id: uuid
    partitions: Sequence[int32]
    assignment_epochs: Annotated[Sequence[int32] | None, tagged(0, since=0)] = None


class ConsumerGroupCurrentMemberAssignmentValue(Message):
    """What the member owns and what it must give back first."""

    member_epoch: int32
    previous_member_epoch: int32
    state: int8
    assigned_partitions: Sequence[CurrentTopicPartitions]
    partitions_pending_revocation: Sequence[CurrentTopicPartitions]


class ConsumerGroupRegularExpressionKey(Message):
    """A regular expression that members of a consumer group subscribe to."""

    group_id: string
    regular_expression: string


class ConsumerGroupRegularExpressionValue(Message):
    """The topics that it matched, in which version of the metadata, and when."""

    topics: Sequence[string]
    version: int64
    timestamp: int64


_FORMATS: Final = RecordFormats(
    (
        RecordFormat(
            number=1,
            key=OffsetCommitKey,
            value=OffsetCommitValue,
            newest=4,
            written=4,
            flexible_since=4,
        ),
        RecordFormat(
            number=2,
            key=GroupMetadataKey,
            value=GroupMetadataValue,
            newest=4,
            # Kafka knows v4 and writes v3, which older brokers can read.
            written=3,
            flexible_since=4,
        ),
        RecordFormat(number=3, key=ConsumerGroupMetadataKey, value=ConsumerGroupMetadataValue),
        RecordFormat(
            number=4,
            key=ConsumerGroupPartitionMetadataKey,
            value=ConsumerGroupPartitionMetadataValue,
        ),
        RecordFormat(
            number=5, key=ConsumerGroupMemberMetadataKey, value=ConsumerGroupMemberMetadataValue
        ),
        RecordFormat(
            number=6,
            key=ConsumerGroupTargetAssignmentMetadataKey,
            value=ConsumerGroupTargetAssignmentMetadataValue,
        ),
        RecordFormat(
            number=7,
            key=ConsumerGroupTargetAssignmentMemberKey,
            value=ConsumerGroupTargetAssignmentMemberValue,
        ),
        RecordFormat(
            number=8,
            key=ConsumerGroupCurrentMemberAssignmentKey,
            value=ConsumerGroupCurrentMemberAssignmentValue,
        ),
        RecordFormat(
            number=16,
            key=ConsumerGroupRegularExpressionKey,
            value=ConsumerGroupRegularExpressionValue,
        ),
    ),
    aliases={0: 1},
)


def encode_key(key: Message) -> bytes:
    """A record's key."""
    return _FORMATS.encode_key(key)


def encode_value(value: Message, version: int | None = None) -> bytes:
    """A record's value, in the version that Kafka writes if none is given."""
    if version is None and isinstance(value, OffsetCommitValue):
        # Only v1 can hold an expiry: Kafka, too, falls back to it for commits that have one.
        version = None if value.expire_timestamp == NO_TIMESTAMP else 1
    return _FORMATS.encode_value(value, version)


def decode_key(data: Buffer) -> Message | UnknownKey:
    """The key that these bytes hold; a type that we do not know is not an error."""
    return _FORMATS.decode_key(data)


def decode_value(key: Message | UnknownKey, data: Buffer | None) -> Message | None:
    """The value under this key; None if it deletes, or if the key is unknown."""
    return _FORMATS.decode_value(key, data)


class GroupRecordFormat:
    """How records of groups become bytes and come back."""

    def encode(self, record: Record) -> tuple[bytes, bytes | None]:
        """The key and the value; no value is a removal."""
        value = None if record.value is None else encode_value(record.value)
        return encode_key(record.key), value

    def decode(self, key: bytes, value: bytes | None) -> Record | None:
        """The record, or None if it is of a type that we do not know."""
        decoded = decode_key(key)
        if isinstance(decoded, UnknownKey):
            return None
        return Record(decoded, decode_value(decoded, value))
