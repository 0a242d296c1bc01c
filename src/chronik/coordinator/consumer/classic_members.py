"""The classic protocol, spoken to a consumer group: how members of both kinds share one.

To such a member its epoch is a generation. JoinGroup is its heartbeat with a subscription: it says
what the member owns and moves it one step on. SyncGroup hands out what it may read now. Heartbeat
tells it to join again whenever there is another step to take: to give back, to catch up, or to
take over what others have given back.

A member that was told to join again has its rebalance timeout for that, and as long again until it
asks for its assignment; `consumer` removes whoever is late.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from chronik.coordinator.classic.group import CONSUMER_PROTOCOL_TYPE
from chronik.coordinator.classic.rebalance import refused_join
from chronik.coordinator.consumer.change import GroupChange
from chronik.coordinator.consumer.checks import (
    check_room,
    known_member,
    static_member,
)
from chronik.coordinator.consumer.group import (
    ClassicMetadata,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
)
from chronik.coordinator.consumer.migration import (
    by_topic_id,
    can_downgrade,
    check_classic_join,
    encoded_assignment,
    subscription_of,
)
from chronik.coordinator.effects import Caller, Effects
from chronik.coordinator.groups.state import GroupState
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

KNOWN_MEMBER_ID_VERSION: Final = 4  # of JoinGroup: from here on a member first asks for an id
MEMBERS_VERSION: Final = 3  # of LeaveGroup: from here on several can leave at once


class ClassicCalls:
    """JoinGroup, SyncGroup, Heartbeat and LeaveGroup of a consumer group."""

    def __init__(
        self,
        state: GroupState,
        remove: Callable[[GroupChange, list[str], int], None],
        downgrade: Callable[[GroupChange, list[str], int], None],
    ) -> None:
        self._state = state
        self._remove = remove
        self._downgrade = downgrade

    def join(
        self, group: ConsumerGroup, request: JoinGroupRequest, caller: Caller, now_ms: int
    ) -> tuple[JoinGroupResponse, Effects]:
        """Join or join again; KafkaError before anything is changed."""
        check_classic_join(group, self._state.config)
        protocols = tuple((each.name, bytes(each.metadata)) for each in request.protocols)
        member_id = request.member_id or self._state.new_id()
        limit = self._state.config.integer("group.consumer.max.size")
        check_room(group, member_id, request.group_instance_id, limit)
        _check_protocols(group, member_id, request.protocol_type, protocols)
        subscription = subscription_of(protocols)
        if _must_come_back(request, caller):
            return refused_join(ErrorCode.MEMBER_ID_REQUIRED, member_id), Effects()
        replaced = self._replaced(group, request)
        effects = Effects()
        change = GroupChange(self._state, group.group_id, now_ms, effects)
        if replaced is not None:
            member = change.replace_member(replaced, member_id)
        else:
            member = group.members.get(member_id) or ConsumerMember(member_id=member_id)
        member = change.advance(
            replace(
                member,
                instance_id=request.group_instance_id or member.instance_id,
                rack_id=subscription.rack_id or member.rack_id,
                rebalance_timeout_ms=_rebalance_timeout_ms(request),
                subscribed_topic_names=frozenset(subscription.topics),
                subscribed_topic_regex="",
                server_assignor=None,
                client_id=caller.client_id,
                client_host=caller.client_host,
                classic=ClassicMetadata(request.session_timeout_ms, protocols),
            ),
            is_joining=True,
            reported=by_topic_id(subscription.owned_partitions, self._state.image),
        )
        self._joined(change, member, replaced, now_ms)
        return _joined_response(member), effects

    def _replaced(self, group: ConsumerGroup, request: JoinGroupRequest) -> ConsumerMember | None:
        """The static member whose place is taken, if this one is new and it has one."""
        if request.group_instance_id is None:
            return None
        if not request.member_id:
            return group.static_member(request.group_instance_id)
        static_member(group, request.group_instance_id, request.member_id)
        return None

    def _joined(
        self,
        change: GroupChange,
        member: ConsumerMember,
        replaced: ConsumerMember | None,
        now_ms: int,
    ) -> None:
        if replaced is not None and can_downgrade(change.group, (), self._state.config):
            # The last member of the consumer protocol has come back with the classic one.
            self._downgrade(change, [], now_ms)
            return
        change.cancel_timer("join", member.member_id)
        change.arm_session(member)
        change.set_timer("sync", member.member_id, member.rebalance_timeout_ms)

    def sync(
        self, group: ConsumerGroup, request: SyncGroupRequest, now_ms: int
    ) -> SyncGroupResponse:
        """Hand out what the member may read now."""
        member, classic = self._member(
            group, request.member_id, request.group_instance_id, request.generation_id
        )
        if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or (
            request.protocol_name not in (None, classic.protocol_name)
        ):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        change = GroupChange(self._state, group.group_id, now_ms, Effects())
        if _is_behind(group, member):
            self._arm_join(change, member)
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        change.cancel_timer("sync", member.member_id)
        change.arm_session(member)
        assigned = {topic_id: list(each) for topic_id, each in member.assigned.items()}
        return SyncGroupResponse(
            error_code=ErrorCode.NONE,
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignment=encoded_assignment(assigned, classic.protocols[0][1], self._state.image),
        )

    def heartbeat(
        self, group: ConsumerGroup, request: HeartbeatRequest, now_ms: int
    ) -> HeartbeatResponse:
        """A sign of life; REBALANCE_IN_PROGRESS if there is a step to take."""
        member, _ = self._member(
            group, request.member_id, request.group_instance_id, request.generation_id
        )
        change = GroupChange(self._state, group.group_id, now_ms, Effects())
        change.arm_session(member)
        state = member.state
        if (
            _is_behind(group, member)
            or state is MemberState.UNREVOKED_PARTITIONS
            or (state is MemberState.UNRELEASED_PARTITIONS and not group.waits_for_others(member))
        ):
            self._arm_join(change, member)
            return HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
        return HeartbeatResponse(error_code=ErrorCode.NONE)

    def leave(
        self, group: ConsumerGroup, request: LeaveGroupRequest, caller: Caller, now_ms: int
    ) -> tuple[LeaveGroupResponse, Effects]:
        """Let members go, of whichever protocol."""
        several = caller.version >= MEMBERS_VERSION
        identities = request.members if several else [MemberIdentity(member_id=request.member_id)]
        leaving: list[str] = []
        answers = []
        for each in identities:
            error_code = ErrorCode.NONE
            try:
                member_id = _leaver(group, each)
                if member_id not in leaving:
                    leaving.append(member_id)
            except KafkaError as error:
                error_code = error.code
            answers.append(
                MemberResponse(
                    member_id=each.member_id,
                    group_instance_id=each.group_instance_id,
                    error_code=error_code,
                )
            )
        effects = Effects()
        if leaving:
            change = GroupChange(self._state, group.group_id, now_ms, effects)
            self._remove(change, leaving, now_ms)
        if several:
            return LeaveGroupResponse(error_code=ErrorCode.NONE, members=answers), effects
        return LeaveGroupResponse(error_code=answers[0].error_code), effects

    def _member(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
    ) -> tuple[ConsumerMember, ClassicMetadata]:
        if instance_id is None:
            member = known_member(group, member_id)
        else:
            member = static_member(group, instance_id, member_id)
        if member.classic is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"Member {member_id} does not use the classic protocol.",
            )
        if generation != member.member_epoch:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        return member, member.classic

    def _arm_join(self, change: GroupChange, member: ConsumerMember) -> None:
        key = ("consumer", "join", change.group.group_id, member.member_id)
        if self._state.timers.get(key) is None:
            change.set_timer("join", member.member_id, member.rebalance_timeout_ms)


def _is_behind(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Whether there is a newer epoch that the member can come to without giving back first."""
    return (
        group.group_epoch > member.member_epoch
        and member.state is not MemberState.UNREVOKED_PARTITIONS
    )


def _check_protocols(
    group: ConsumerGroup,
    member_id: str,
    protocol_type: str,
    protocols: tuple[tuple[str, bytes], ...],
) -> None:
    """One protocol at least must be common to all classic members, should the group turn back."""
    common: set[str] | None = None
    for member in group.members.values():
        if member.classic is not None and member.member_id != member_id:
            names = {name for name, _ in member.classic.protocols}
            common = names if common is None else common & names
    offered = {name for name, _ in protocols}
    if (
        protocol_type != CONSUMER_PROTOCOL_TYPE
        or not offered
        or (common is not None and not common & offered)
    ):
        raise KafkaError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f"Member {member_id}'s protocols are not supported.",
        )


def _must_come_back(request: JoinGroupRequest, caller: Caller) -> bool:
    return (
        caller.version >= KNOWN_MEMBER_ID_VERSION
        and request.group_instance_id is None
        and not request.member_id
    )


def _rebalance_timeout_ms(request: JoinGroupRequest) -> int:
    # The first version has one timeout for both.
    if request.rebalance_timeout_ms < 0:
        return request.session_timeout_ms
    return request.rebalance_timeout_ms


def _leaver(group: ConsumerGroup, identity: MemberIdentity) -> str:
    if identity.group_instance_id is None:
        return known_member(group, identity.member_id).member_id
    known = group.static_member(identity.group_instance_id)
    member_id = identity.member_id or ("" if known is None else known.member_id)
    return static_member(group, identity.group_instance_id, member_id).member_id


def _joined_response(member: ConsumerMember) -> JoinGroupResponse:
    assert member.classic is not None
    return JoinGroupResponse(
        error_code=ErrorCode.NONE,
        generation_id=member.member_epoch,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol_name=member.classic.protocol_name,
        leader="",  # The broker assigns, so nobody leads.
        member_id=member.member_id,
        members=(),
    )
