"""Consumer groups (KIP-848): ConsumerGroupHeartbeat and ConsumerGroupDescribe.

One heartbeat joins, subscribes, reports what the member owns, and leaves; the broker assigns. A
null field means: unchanged since the last heartbeat.
"""

from collections.abc import Sequence
from typing import Annotated

from chronik.protocol.messages.metadata import OPERATIONS_OMITTED
from chronik.protocol.schema import Message, boolean, int8, int16, int32, since, string, uuid


class HeartbeatTopicPartitions(Message):
    """The partitions of one topic that a member owns or shall own."""

    topic_id: uuid
    partitions: Sequence[int32]


class ConsumerGroupHeartbeatRequest(Message):
    """A member's sign of life; epoch 0 joins, -1 leaves, -2 leaves for a while (static)."""

    group_id: string
    member_id: string
    member_epoch: int32
    instance_id: string | None = None
    rack_id: string | None = None
    rebalance_timeout_ms: int32 = -1
    subscribed_topic_names: Sequence[string] | None = None
    subscribed_topic_regex: Annotated[string | None, since(1)] = None
    server_assignor: string | None = None
    topic_partitions: Sequence[HeartbeatTopicPartitions] | None = None


class HeartbeatAssignment(Message):
    """All that the member shall own."""

    topic_partitions: Sequence[HeartbeatTopicPartitions]


class ConsumerGroupHeartbeatResponse(Message):
    """The member's epoch, and its assignment if that changed."""

    throttle_time_ms: int32 = 0
    error_code: int16
    error_message: string | None = None
    member_id: string | None = None
    member_epoch: int32
    heartbeat_interval_ms: int32
    assignment: HeartbeatAssignment | None = None


class ConsumerGroupDescribeRequest(Message):
    """Asks for consumer groups with their members."""

    group_ids: Sequence[string]
    include_authorized_operations: boolean


class DescribedTopicPartitions(Message):
    """The partitions of one topic in an assignment."""

    topic_id: uuid
    topic_name: string
    partitions: Sequence[int32]


class DescribedAssignment(Message):
    """What a member owns or shall own."""

    topic_partitions: Sequence[DescribedTopicPartitions]


class DescribedConsumerGroupMember(Message):
    """A member, what it subscribes to, what it owns and what it shall own."""

    member_id: string
    instance_id: string | None = None
    rack_id: string | None = None
    member_epoch: int32
    client_id: string
    client_host: string
    subscribed_topic_names: Sequence[string]
    subscribed_topic_regex: string | None = None
    assignment: DescribedAssignment
    target_assignment: DescribedAssignment
    member_type: Annotated[int8, since(1)] = -1  # 0 speaks the classic protocol, 1 this one.


class DescribedConsumerGroup(Message):
    """A group, its epochs and its members, or why it cannot be described."""

    error_code: int16
    error_message: string | None = None
    group_id: string
    group_state: string
    group_epoch: int32
    assignment_epoch: int32
    assignor_name: string
    members: Sequence[DescribedConsumerGroupMember]
    authorized_operations: int32 = OPERATIONS_OMITTED


class ConsumerGroupDescribeResponse(Message):
    """The groups, in the order in which they were asked for."""

    throttle_time_ms: int32 = 0
    groups: Sequence[DescribedConsumerGroup]
