"""The records of consumer groups: how a group is logged, and how its log becomes a group.

`replay` is the only way in which a group changes, live or after a crash. It takes records as they
come: compaction may have dropped any that a later one replaces, and a group may have been of the
classic protocol before or after.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final, TypeAlias

from chronik.coordinator.classic.group import ClassicGroup
from chronik.coordinator.consumer.group import (
    LEAVE_EPOCH,
    Assignment,
    ClassicMetadata,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    Owned,
    ResolvedRegex,
)
from chronik.coordinator.effects import Record
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
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    CurrentTopicPartitions,
    TargetTopicPartitions,
)
from chronik.protocol.schema import Message

Groups: TypeAlias = dict[str, ClassicGroup | ConsumerGroup]


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> Record:
    """The group is in this epoch."""
    value = ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    return Record(ConsumerGroupMetadataKey(group_id=group_id), value)


def member_record(group_id: str, member: ConsumerMember) -> Record:
    """Who a member is and what it subscribes to."""
    classic = None
    if member.classic is not None:
        protocols = [
            ClassicProtocol(name=name, metadata=data) for name, data in member.classic.protocols
        ]
        classic = ClassicMemberMetadata(
            session_timeout_ms=member.classic.session_timeout_ms, supported_protocols=protocols
        )
    value = ConsumerGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.subscribed_topic_names),
        subscribed_topic_regex=member.subscribed_topic_regex,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.server_assignor,
        classic_member_metadata=classic,
    )
    key = ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id)
    return Record(key, value)


def target_record(group_id: str, member_id: str, assignment: Assignment) -> Record:
    """What a member shall own."""
    topics = [
        TargetTopicPartitions(topic_id=topic_id, partitions=sorted(partitions))
        for topic_id, partitions in sorted(assignment.items())
    ]
    key = ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)
    return Record(key, ConsumerGroupTargetAssignmentMemberValue(topic_partitions=topics))


def target_epoch_record(group_id: str, epoch: int, timestamp_ms: int) -> Record:
    """The target is that of this epoch."""
    value = ConsumerGroupTargetAssignmentMetadataValue(
        assignment_epoch=epoch, assignment_timestamp=timestamp_ms
    )
    return Record(ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), value)


def current_record(group_id: str, member: ConsumerMember) -> Record:
    """How far a member has come and what it owns."""
    value = ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=member.member_epoch,
        previous_member_epoch=member.previous_member_epoch,
        state=int(member.state),
        assigned_partitions=_logged(member.assigned),
        partitions_pending_revocation=_logged(member.pending_revocation),
    )
    key = ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id)
    return Record(key, value)


def regex_record(group_id: str, regex: str, resolved: ResolvedRegex) -> Record:
    """What a regular expression matched."""
    value = ConsumerGroupRegularExpressionValue(
        topics=sorted(resolved.topics), version=resolved.version, timestamp=resolved.timestamp_ms
    )
    return Record(
        ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex), value
    )


def regex_tombstone(group_id: str, regex: str) -> Record:
    """Nobody subscribes by this regular expression any more."""
    return Record(
        ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex), None
    )


def member_tombstones(group_id: str, member_id: str) -> Iterator[Record]:
    """Records that remove a member: what it owns and shall own first, then itself."""
    for key in (
        ConsumerGroupCurrentMemberAssignmentKey,
        ConsumerGroupTargetAssignmentMemberKey,
        ConsumerGroupMemberMetadataKey,
    ):
        yield Record(key(group_id=group_id, member_id=member_id), None)


def group_tombstones(group: ConsumerGroup) -> list[Record]:
    """Records that remove the whole group."""
    group_id = group.group_id
    found = [
        record
        for member_id in sorted(group.members.keys() | group.target.keys())
        for record in member_tombstones(group_id, member_id)
    ]
    found += [regex_tombstone(group_id, regex) for regex in sorted(group.regexes)]
    found.append(Record(ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), None))
    found.append(Record(ConsumerGroupMetadataKey(group_id=group_id), None))
    return found


def _logged(owned: Owned) -> list[CurrentTopicPartitions]:
    found = []
    for topic_id, partitions in sorted(owned.items()):
        ordered = sorted(partitions)
        epochs = [partitions[partition] for partition in ordered]
        found.append(
            CurrentTopicPartitions(topic_id=topic_id, partitions=ordered, assignment_epochs=epochs)
        )
    return found


def replay(groups: Groups, key: Message, value: Any) -> bool:
    """Apply a record, or with no value a removal; whether it is one of a consumer group."""
    if type(key) is ConsumerGroupPartitionMetadataKey:
        return True  # Kafka before 4.1 kept there what the hash in the group's record says now.
    apply = _RULES.get(type(key))
    if apply is None:
        return False
    group_id: str = key.group_id  # type: ignore[attr-defined]
    group = groups.get(group_id)
    if not isinstance(group, ConsumerGroup):
        if value is None:
            return True  # Removed already, or a group of the other protocol by now.
        group = groups[group_id] = ConsumerGroup(group_id=group_id)
    apply(group, key, value)
    group.forget_findings()
    if type(key) is ConsumerGroupMetadataKey and value is None:
        del groups[group_id]
    return True


def _group(
    group: ConsumerGroup, _: ConsumerGroupMetadataKey, value: ConsumerGroupMetadataValue | None
) -> None:
    if value is not None:
        group.group_epoch = value.epoch
        group.metadata_hash = value.metadata_hash


def _member(
    group: ConsumerGroup,
    key: ConsumerGroupMemberMetadataKey,
    value: ConsumerGroupMemberMetadataValue | None,
) -> None:
    if value is None:
        group.remove_member(key.member_id)
        return
    classic = None
    if value.classic_member_metadata is not None:
        metadata = value.classic_member_metadata
        protocols = tuple(
            (each.name, bytes(each.metadata)) for each in metadata.supported_protocols
        )
        classic = ClassicMetadata(metadata.session_timeout_ms, protocols)
    known = group.members.get(key.member_id) or ConsumerMember(member_id=key.member_id)
    group.put_member(
        replace(
            known,
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            subscribed_topic_names=frozenset(value.subscribed_topic_names),
            subscribed_topic_regex=value.subscribed_topic_regex or "",
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            server_assignor=value.server_assignor,
            classic=classic,
        )
    )


def _target_epoch(
    group: ConsumerGroup,
    _: ConsumerGroupTargetAssignmentMetadataKey,
    value: ConsumerGroupTargetAssignmentMetadataValue | None,
) -> None:
    group.assignment_epoch = 0 if value is None else value.assignment_epoch
    group.assignment_timestamp_ms = 0 if value is None else value.assignment_timestamp


def _target(
    group: ConsumerGroup,
    key: ConsumerGroupTargetAssignmentMemberKey,
    value: ConsumerGroupTargetAssignmentMemberValue | None,
) -> None:
    if value is None:
        group.target.pop(key.member_id, None)
        return
    group.target[key.member_id] = {
        bytes(each.topic_id): frozenset(each.partitions) for each in value.topic_partitions
    }


def _current(
    group: ConsumerGroup,
    key: ConsumerGroupCurrentMemberAssignmentKey,
    value: ConsumerGroupCurrentMemberAssignmentValue | None,
) -> None:
    known = group.members.get(key.member_id)
    if value is None:
        if known is not None:
            group.put_member(
                replace(
                    known,
                    member_epoch=LEAVE_EPOCH,
                    previous_member_epoch=LEAVE_EPOCH,
                    state=MemberState.STABLE,
                    assigned={},
                    pending_revocation={},
                )
            )
        return
    known = known or ConsumerMember(member_id=key.member_id)
    group.put_member(
        replace(
            known,
            member_epoch=value.member_epoch,
            previous_member_epoch=value.previous_member_epoch,
            state=_state(value.state),
            assigned=_owned(value.assigned_partitions, value.member_epoch),
            pending_revocation=_owned(value.partitions_pending_revocation, value.member_epoch),
        )
    )


def _state(number: int) -> MemberState:
    try:
        return MemberState(number)
    except ValueError:
        return MemberState.UNKNOWN  # A newer release knows what it meant; the member rejoins.


def _owned(topics: Any, member_epoch: int) -> Owned:
    found: dict[bytes, dict[int, int]] = {}
    for topic in topics:
        # Releases before 4.3 did not say in which epoch a partition was given.
        epochs = topic.assignment_epochs or [member_epoch] * len(topic.partitions)
        found[bytes(topic.topic_id)] = dict(zip(topic.partitions, epochs, strict=True))
    return found


def _regex(
    group: ConsumerGroup,
    key: ConsumerGroupRegularExpressionKey,
    value: ConsumerGroupRegularExpressionValue | None,
) -> None:
    if value is None:
        group.regexes.pop(key.regular_expression, None)
        return
    group.regexes[key.regular_expression] = ResolvedRegex(
        frozenset(value.topics), value.version, value.timestamp
    )


_RULES: Final[dict[type[Message], Callable[[ConsumerGroup, Any, Any], None]]] = {
    ConsumerGroupMetadataKey: _group,
    ConsumerGroupMemberMetadataKey: _member,
    ConsumerGroupTargetAssignmentMetadataKey: _target_epoch,
    ConsumerGroupTargetAssignmentMemberKey: _target,
    ConsumerGroupCurrentMemberAssignmentKey: _current,
    ConsumerGroupRegularExpressionKey: _regex,
}
