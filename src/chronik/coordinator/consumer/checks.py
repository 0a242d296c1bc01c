"""What can be wrong with a request to a consumer group: errors and words as Kafka has them.

Nothing here changes a group. A request passes all of its checks before its first record.
"""

from collections.abc import Iterable, Sequence

from chronik.coordinator.consumer.group import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
)
from chronik.coordinator.consumer.reconciliation import Reported
from chronik.metadata.image import Image
from chronik.model import TopicPartition
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest

CLIENT_MEMBER_ID_VERSION = 1  # of the heartbeat: from here on clients bring their own member id
COMMIT_EPOCH_VERSION = 9  # of OffsetCommit: from here on clients know of member epochs


def check_heartbeat(
    request: ConsumerGroupHeartbeatRequest, version: int, assignors: Sequence[str]
) -> None:
    """Refuse a heartbeat that makes no sense by itself."""
    needs_member_id = (
        version >= CLIENT_MEMBER_ID_VERSION
        or request.member_epoch > JOIN_EPOCH
        or request.member_epoch == LEAVE_EPOCH
    )
    if needs_member_id:
        _check_not_empty(request.member_id, "MemberId can't be empty.")
    _check_not_empty(request.group_id, "GroupId can't be empty.")
    _check_not_empty(request.instance_id, "InstanceId can't be empty.")
    _check_not_empty(request.rack_id, "RackId can't be empty.")
    if request.member_epoch == JOIN_EPOCH:
        _check_join(request)
    elif request.member_epoch == STATIC_LEAVE_EPOCH:
        _check(request.instance_id is not None, "InstanceId can't be null.")
    _check(request.member_epoch >= STATIC_LEAVE_EPOCH, "MemberEpoch is invalid.")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. "
            f"Supported assignors: {', '.join(assignors)}.",
        )


def _check_join(request: ConsumerGroupHeartbeatRequest) -> None:
    _check(
        request.rebalance_timeout_ms != -1, "RebalanceTimeoutMs must be provided in first request."
    )
    _check(
        request.topic_partitions is not None and not request.topic_partitions,
        "TopicPartitions must be empty when (re-)joining.",
    )
    _check(
        request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None,
        "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
    )


def _check(holds: bool, message: str) -> None:
    if not holds:
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)


def _check_not_empty(value: str | None, message: str) -> None:
    _check(value is None or bool(value.strip()), message)


def known_member(group: ConsumerGroup, member_id: str) -> ConsumerMember:
    """The member with this id; UNKNOWN_MEMBER_ID without one."""
    member = group.members.get(member_id)
    if member is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_MEMBER_ID,
            f"Member {member_id} is not a member of group {group.group_id}.",
        )
    return member


def static_member(group: ConsumerGroup, instance_id: str, member_id: str) -> ConsumerMember:
    """The member with this instance id, if this is its member id: FENCED_INSTANCE_ID if not."""
    member = group.static_member(instance_id)
    if member is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if member.member_id != member_id:
        raise KafkaError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member "
            f"{member.member_id}.",
        )
    return member


def check_released(member: ConsumerMember, member_id: str) -> None:
    """A static member's place can be taken only after it left for a while."""
    if member.classic is None and member.member_epoch != STATIC_LEAVE_EPOCH:
        raise KafkaError(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"Static member {member_id} with instance id {member.instance_id} cannot join the "
            f"group because the instance id is owned by {member.member_id} member.",
        )


def check_room(group: ConsumerGroup, member_id: str, instance_id: str | None, limit: int) -> None:
    """GROUP_MAX_SIZE_REACHED for one member too many."""
    is_known = member_id in group.members or group.static_member(instance_id) is not None
    if len(group.members) >= limit and not is_known:
        raise KafkaError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The consumer group has reached its maximum capacity of {limit} members.",
        )


def check_epoch(member: ConsumerMember, epoch: int, reported: Reported) -> None:
    """FENCED_MEMBER_EPOCH for an epoch that is neither the member's nor that of a lost answer."""
    if epoch in (JOIN_EPOCH, member.member_epoch):
        return
    if epoch > member.member_epoch:
        raise _fenced("greater", epoch, member)
    # The answer with the present epoch may have been lost: a member that owns nothing but what
    # it was given before may go on.
    if epoch != member.previous_member_epoch or not _is_within(reported, member):
        raise _fenced("smaller", epoch, member)


def check_state(member: ConsumerMember, reported: Reported) -> None:
    """A member whose state only a newer release knows begins anew, with nothing."""
    if member.state is MemberState.UNKNOWN and (reported is None or any(reported.values())):
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            "The consumer group member is in a unknown state. "
            "The member must abandon all its partitions and rejoin.",
        )


def _is_within(reported: Reported, member: ConsumerMember) -> bool:
    if reported is None:
        return False
    return all(
        partitions <= member.assigned.get(topic_id, {}).keys()
        for topic_id, partitions in reported.items()
    )


def _fenced(than: str, epoch: int, member: ConsumerMember) -> KafkaError:
    return KafkaError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {than} member epoch ({epoch}) than the one known by the "
        f"group coordinator ({member.member_epoch}). The member must abandon all its partitions "
        "and rejoin.",
    )


def check_commit(
    group: ConsumerGroup,
    member_id: str,
    instance_id: str | None,
    epoch: int,
    version: int,
    *,
    is_transactional: bool,
    partitions: Iterable[TopicPartition],
    image: Image,
) -> None:
    """Refuse offsets of whoever does not own the partitions (any more)."""
    if epoch < 0 and not group.members:
        return  # Somebody who reads without membership, or resets the group's offsets.
    if is_transactional and epoch == -1 and not member_id and instance_id is None:
        return  # A transactional producer that knows of no group's members.
    member = known_member(group, member_id)
    if not is_transactional and member.classic is None and version < COMMIT_EPOCH_VERSION:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            "OffsetCommit version 9 or above must be used by members using the consumer group "
            "protocol",
        )
    if epoch > member.member_epoch:
        raise _stale(member, f"Received {{}} {epoch} is newer than current member epoch")
    if epoch < member.member_epoch:
        # The member has not heard of its epoch yet. What it owns since before is still its own.
        for topic, partition in partitions:
            _check_assigned(member, epoch, topic, partition, image)


def _check_assigned(
    member: ConsumerMember, epoch: int, name: str, partition: int, image: Image
) -> None:
    topic = image.topics.get(name)
    since = None if topic is None else member.assignment_epoch(topic.id, partition)
    if since is None:
        text = f"Partition {name}-{partition} is not assigned or pending revocation for member."
        raise KafkaError(_stale_code(member), text)
    if epoch < since:
        kind = "generation id" if member.classic else "member epoch"
        raise KafkaError(
            _stale_code(member),
            f"Received {kind} {epoch} is older than assignment epoch {since} for partition "
            f"{name}-{partition}.",
        )


def check_fetch(group: ConsumerGroup, member_id: str | None, epoch: int) -> None:
    """Refuse to tell offsets to a member that is not in this epoch."""
    if not member_id and epoch < 0:
        return  # Requests before version 9, and whoever is no member.
    member = known_member(group, member_id or "")
    if epoch != member.member_epoch:
        raise _stale(member, f"The received {{}} {epoch} does not match the expected member epoch")


def _stale(member: ConsumerMember, text: str) -> KafkaError:
    kind = "generation id" if member.classic else "member epoch"
    return KafkaError(_stale_code(member), f"{text.format(kind)} {member.member_epoch}.")


def _stale_code(member: ConsumerMember) -> ErrorCode:
    return ErrorCode.ILLEGAL_GENERATION if member.classic else ErrorCode.STALE_MEMBER_EPOCH
