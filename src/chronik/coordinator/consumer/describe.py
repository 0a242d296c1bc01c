"""How ConsumerGroupDescribe shows a group."""

from collections.abc import Collection, Mapping
from typing import Final

from chronik.coordinator.consumer.group import ConsumerGroup, ConsumerMember
from chronik.metadata.image import Image
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.consumer_groups import (
    DescribedAssignment,
    DescribedConsumerGroup,
    DescribedConsumerGroupMember,
    DescribedTopicPartitions,
)

CLASSIC_MEMBER: Final = 0
CONSUMER_MEMBER: Final = 1


def describe(
    group: ConsumerGroup, assignor: str, image: Image, operations: int
) -> DescribedConsumerGroup:
    """The group with all of its members, and what the caller may do to it."""
    members = [_member(group, member, image) for member in group.members.values()]
    return DescribedConsumerGroup(
        error_code=ErrorCode.NONE,
        group_id=group.group_id,
        group_state=group.state.value,
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=assignor,
        members=members,
        authorized_operations=operations,
    )


def described_error(group_id: str, error: KafkaError) -> DescribedConsumerGroup:
    """In place of a group that cannot be described."""
    return DescribedConsumerGroup(
        error_code=error.code,
        error_message=error.message,
        group_id=group_id,
        group_state="",
        group_epoch=0,
        assignment_epoch=0,
        assignor_name="",
        members=(),
    )


def _member(
    group: ConsumerGroup, member: ConsumerMember, image: Image
) -> DescribedConsumerGroupMember:
    return DescribedConsumerGroupMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.subscribed_topic_names),
        subscribed_topic_regex=member.subscribed_topic_regex,
        assignment=_assignment(member.assigned, image),
        target_assignment=_assignment(group.target.get(member.member_id, {}), image),
        member_type=CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
    )


def _assignment(assigned: Mapping[bytes, Collection[int]], image: Image) -> DescribedAssignment:
    topics = []
    for topic_id, partitions in sorted(assigned.items()):
        topic = image.topic_by_id(topic_id)
        if topic is not None:  # A deleted topic has no name to show.
            topics.append(
                DescribedTopicPartitions(
                    topic_id=topic_id, topic_name=topic.name, partitions=sorted(partitions)
                )
            )
    return DescribedAssignment(topic_partitions=topics)
