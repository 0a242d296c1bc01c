"""The record of a classic group: how a generation is logged, and how its log becomes a group.

One record holds the whole generation. It is written when the leader's assignment is there, when
the group becomes empty, and when a static member comes back under another id.
"""

from chronik.coordinator.classic.group import ClassicGroup, ClassicMember, ClassicState
from chronik.coordinator.effects import Effects
from chronik.coordinator.groups.records import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
)
from chronik.coordinator.groups.state import GroupState
from chronik.model import NO_TIMESTAMP


def write_group(effects: Effects, group: ClassicGroup) -> None:
    """Log the generation with its members and their assignments."""
    protocol = group.protocol_name or ""
    members = [
        MemberMetadata(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout=member.rebalance_timeout_ms,
            session_timeout=member.session_timeout_ms,
            subscription=member.metadata(protocol),
            assignment=member.assignment,
        )
        for member in group.members.values()
    ]
    value = GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation_id,
        protocol=group.protocol_name,
        leader=group.leader_id,
        current_state_timestamp=group.state_timestamp_ms,
        members=members,
    )
    effects.write(GroupMetadataKey(group=group.group_id), value)


def write_removal(effects: Effects, group_id: str) -> None:
    """Log that the group is gone."""
    effects.write(GroupMetadataKey(group=group_id), None)


def replay(state: GroupState, key: GroupMetadataKey, value: GroupMetadataValue | None) -> None:
    """Apply a group's record, or with no value its removal."""
    if value is None:
        # A group may have become one of the other protocol: then it is not this one's to remove.
        if isinstance(state.groups.get(key.group), ClassicGroup):
            del state.groups[key.group]
        return
    members = {each.member_id: _member(value, each) for each in value.members}
    group = ClassicGroup(
        group_id=key.group,
        state=ClassicState.STABLE if members else ClassicState.EMPTY,
        # Kafka before 2.1 did not log it: the offsets' own timestamps count then.
        state_timestamp_ms=value.current_state_timestamp,
        generation_id=value.generation,
        protocol_type=value.protocol_type or None,
        protocol_name=value.protocol,
        leader_id=value.leader,
        members=members,
        static_members={
            each.instance_id: each.member_id
            for each in members.values()
            if each.instance_id is not None
        },
    )
    group.find_subscribed_topics()
    state.groups[key.group] = group


def _member(group: GroupMetadataValue, member: MemberMetadata) -> ClassicMember:
    rebalance_timeout_ms = member.rebalance_timeout
    if rebalance_timeout_ms == NO_TIMESTAMP:
        rebalance_timeout_ms = member.session_timeout
    return ClassicMember(
        member_id=member.member_id,
        instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=rebalance_timeout_ms,
        session_timeout_ms=member.session_timeout,
        protocol_type=group.protocol_type,
        # Only the metadata of the protocol that was chosen is logged.
        protocols=((group.protocol or "", bytes(member.subscription)),),
        assignment=bytes(member.assignment),
    )
