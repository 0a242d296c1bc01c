"""What a ConsumerGroupHeartbeat says of a member, and what it is told."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from chronik.coordinator.consumer.checks import (
    check_epoch,
    check_released,
    check_state,
    known_member,
    static_member,
)
from chronik.coordinator.consumer.group import JOIN_EPOCH, ConsumerGroup, ConsumerMember
from chronik.coordinator.consumer.reconciliation import Reported
from chronik.coordinator.effects import Caller
from chronik.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    HeartbeatAssignment,
    HeartbeatTopicPartitions,
)


def find_member(
    group: ConsumerGroup,
    request: ConsumerGroupHeartbeatRequest,
    member_id: str,
    reported: Reported,
) -> tuple[ConsumerMember | None, ConsumerMember | None]:
    """The member that calls if it is known, or the static one whose place it takes."""
    is_joining = request.member_epoch == JOIN_EPOCH
    instance_id = request.instance_id
    if instance_id is None:
        known = group.members.get(member_id) if is_joining else known_member(group, member_id)
    elif is_joining:
        known = group.static_member(instance_id)
        if known is not None and known.member_id != member_id:
            check_released(known, member_id)
            return None, known
        known = known or group.members.get(member_id)
    else:
        known = static_member(group, instance_id, member_id)
    if known is not None:
        check_epoch(known, request.member_epoch, reported)
        check_state(known, reported)
    return known, None


def reported_partitions(request: ConsumerGroupHeartbeatRequest) -> Reported:
    """The partitions that a member says it owns; None if it says nothing."""
    if request.topic_partitions is None:
        return None
    found: dict[bytes, set[int]] = {}
    for each in request.topic_partitions:
        found.setdefault(bytes(each.topic_id), set()).update(each.partitions)
    return found


def updated_member(
    member: ConsumerMember, request: ConsumerGroupHeartbeatRequest, caller: Caller
) -> ConsumerMember:
    """The member with what it says of itself; null is what has not changed."""
    told: Mapping[str, Any] = {
        "instance_id": request.instance_id,
        "rack_id": request.rack_id,
        "rebalance_timeout_ms": None
        if request.rebalance_timeout_ms == -1
        else request.rebalance_timeout_ms,
        "server_assignor": request.server_assignor,
        "subscribed_topic_names": None
        if request.subscribed_topic_names is None
        else frozenset(request.subscribed_topic_names),
        "subscribed_topic_regex": request.subscribed_topic_regex,
    }
    return replace(
        member,
        client_id=caller.client_id,
        client_host=caller.client_host,
        classic=None,
        **{name: value for name, value in told.items() if value is not None},
    )


def is_full(request: ConsumerGroupHeartbeatRequest) -> bool:
    """Whether the member told everything, as after an error: then it is told everything."""
    return (
        request.rebalance_timeout_ms != -1
        and (
            request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
        )
        and request.topic_partitions is not None
    )


def heartbeat_assignment(member: ConsumerMember) -> HeartbeatAssignment:
    """What the member may read now."""
    return HeartbeatAssignment(
        topic_partitions=[
            HeartbeatTopicPartitions(topic_id=topic_id, partitions=sorted(partitions))
            for topic_id, partitions in sorted(member.assigned.items())
        ]
    )
