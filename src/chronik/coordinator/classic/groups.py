"""Groups of the classic protocol: what JoinGroup, SyncGroup, Heartbeat and LeaveGroup do.

Each request is checked first and then changes the group at once; whoever has to wait for other
members waits as a token in the group. `classic.rebalance` has the phases and the deadlines.

Invariants
    A generation has one leader, and one assignment, which only its leader brings.
    A member is answered as often as it asks: an earlier request of the same kind is told to ask
    again.

Empty ids, and groups of the other protocol, are for `groups.shard` to sort out.
"""

from dataclasses import dataclass

from chronik.coordinator.classic import records as classic_records
from chronik.coordinator.classic.group import ClassicGroup, ClassicMember, ClassicState
from chronik.coordinator.classic.rebalance import (
    Rebalance,
    answer_join,
    answer_sync,
    arm_session,
    joined,
    refused_join,
    refused_sync,
    synced,
)
from chronik.coordinator.effects import Caller, Effects, Token
from chronik.coordinator.groups.records import GroupMetadataKey, GroupMetadataValue
from chronik.coordinator.groups.state import GroupState
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
)

MEMBER_ID_REQUIRED_VERSION = 4  # of JoinGroup: a member first asks for its id
SKIP_ASSIGNMENT_VERSION = 9  # of JoinGroup: a leader can be told to keep the assignment
NAMED_PROTOCOL_VERSION = 5  # of SyncGroup: a member says which protocol it means
BATCH_LEAVE_VERSION = 3  # of LeaveGroup: several members at once
# How a member id may begin: with the rest of it, it must fit into the 32,767 bytes of a string.
NAME_LENGTH_MAX = 8_000


@dataclass(slots=True)
class _Join:
    """A JoinGroup, and what comes of it."""

    request: JoinGroupRequest
    caller: Caller
    token: Token
    now_ms: int
    effects: Effects

    @property
    def protocols(self) -> tuple[tuple[str, bytes], ...]:
        return tuple((each.name, bytes(each.metadata)) for each in self.request.protocols)

    @property
    def rebalance_timeout_ms(self) -> int:
        """Version 0 has one timeout for both."""
        if self.request.rebalance_timeout_ms == -1:
            return self.request.session_timeout_ms
        return self.request.rebalance_timeout_ms

    def member(self, member_id: str) -> ClassicMember:
        """Whoever joins, as a member that waits."""
        return ClassicMember(
            member_id=member_id,
            instance_id=self.request.group_instance_id,
            client_id=self.caller.client_id,
            client_host=self.caller.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            session_timeout_ms=self.request.session_timeout_ms,
            protocol_type=self.request.protocol_type,
            protocols=self.protocols,
            join_token=self.token,
        )

    def update(self, member: ClassicMember) -> None:
        """Note what a member says now, and that it waits."""
        member.protocols = self.protocols
        member.rebalance_timeout_ms = self.rebalance_timeout_ms
        member.session_timeout_ms = self.request.session_timeout_ms
        # Whoever still waits for an earlier answer shall ask again, too.
        again = refused_join(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id)
        answer_join(self.effects, member, again)
        member.join_token = self.token


class ClassicGroups:
    """The classic groups of one shard."""

    def __init__(self, state: GroupState) -> None:
        self._state = state
        self._rebalance = Rebalance(state)

    def _group(self, group_id: str) -> ClassicGroup:
        group = self._state.groups.get(group_id)
        if not isinstance(group, ClassicGroup):
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return group

    # JoinGroup.

    def join(self, request: JoinGroupRequest, caller: Caller, token: Token, now_ms: int) -> Effects:
        """Become a member, or join the next generation as one."""
        effects = Effects()
        join = _Join(request, caller, token, now_ms, effects)
        try:
            self.check_session_timeout(request.session_timeout_ms)
            if request.member_id:
                self._join_known(join)
            else:
                self._join_unknown(join)
        except KafkaError as error:
            assert not effects.records
            member_id = request.member_id
            if error.code is ErrorCode.GROUP_MAX_SIZE_REACHED:
                self._turn_away(request.group_id, member_id, effects, now_ms)
                member_id = ""
            effects.reply(token, refused_join(error.code, member_id))
        return effects

    def _turn_away(self, group_id: str, member_id: str, effects: Effects, now_ms: int) -> None:
        """There is no room: whoever had a place or was promised one has it no more."""
        group = self._group(group_id)
        self._rebalance.remove(group, member_id, effects)
        self._rebalance.maybe_complete_join(group, effects, now_ms)

    def check_session_timeout(self, session_timeout_ms: int) -> None:
        """INVALID_SESSION_TIMEOUT if it is not within the broker's bounds."""
        config = self._state.config
        least = config.integer("group.min.session.timeout.ms")
        if not least <= session_timeout_ms <= config.integer("group.max.session.timeout.ms"):
            raise KafkaError(ErrorCode.INVALID_SESSION_TIMEOUT)

    def _check_join(self, group: ClassicGroup, member_id: str, request: JoinGroupRequest) -> None:
        if not self._has_room(group, member_id):
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED)
        names = [protocol.name for protocol in request.protocols]
        if not group.supports(request.protocol_type, names):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)

    def _has_room(self, group: ClassicGroup, member_id: str) -> bool:
        member = group.members.get(member_id)
        limit = self._state.config.integer("group.max.size")
        match group.state:
            case ClassicState.PREPARING_REBALANCE:
                # Members beyond a limit that was lowered are not let in again.
                is_waiting = member is not None and member.join_token is not None
                return is_waiting or group.awaiting_join_count < limit
            case ClassicState.COMPLETING_REBALANCE | ClassicState.STABLE:
                return member is not None or len(group.members) < limit
            case _:
                return True

    def _join_unknown(self, join: _Join) -> None:
        """A join without a member id: of somebody new, or of a static member that restarted."""
        request, effects, now_ms = join.request, join.effects, join.now_ms
        group = self._state.groups.get(request.group_id)
        if group is None:
            group = ClassicGroup(group_id=request.group_id, state_timestamp_ms=now_ms)
        assert isinstance(group, ClassicGroup)
        instance_id = request.group_instance_id
        old_id = group.static_members.get(instance_id) if instance_id is not None else None
        self._check_join(group, old_id or "", request)
        if group.group_id not in self._state.groups:
            self._state.groups[group.group_id] = group
            classic_records.write_group(effects, group)
        name = (instance_id or join.caller.client_id)[:NAME_LENGTH_MAX]
        member_id = f"{name}-{self._state.new_id()}"
        if old_id is not None:
            self._rejoin_static(group, old_id, member_id, join)
        elif instance_id is None and join.caller.version >= MEMBER_ID_REQUIRED_VERSION:
            group.pending_members.add(member_id)
            deadline_ms = now_ms + request.session_timeout_ms
            self._state.timers.set(("classic", "session", group.group_id, member_id), deadline_ms)
            effects.reply(join.token, refused_join(ErrorCode.MEMBER_ID_REQUIRED, member_id))
        else:
            self._rebalance.add(group, join.member(member_id), effects, now_ms)

    def _join_known(self, join: _Join) -> None:
        """A join with a member id: the first one of a pending member, or another one."""
        request, effects = join.request, join.effects
        group = self._group(request.group_id)
        self._check_join(group, request.member_id, request)
        if request.member_id in group.pending_members and request.group_instance_id is None:
            self._rebalance.add(group, join.member(request.member_id), effects, join.now_ms)
            return
        group.check_member(request.member_id, request.group_instance_id)
        member = group.members[request.member_id]
        is_unchanged = member.protocols == join.protocols
        match group.state:
            case ClassicState.COMPLETING_REBALANCE if is_unchanged:
                # The answer may have been lost.
                effects.reply(join.token, joined(group, member.member_id))
            case ClassicState.STABLE if is_unchanged and group.leader_id != member.member_id:
                effects.reply(join.token, joined(group, member.member_id))
            case _:
                # A leader joins again when it has seen something to assign, whatever it says.
                join.update(member)
                self._rebalance.advance(group, effects, join.now_ms)

    def _rejoin_static(self, group: ClassicGroup, old_id: str, member_id: str, join: _Join) -> None:
        """A static member is back within its session: if nothing changes, nobody else notices."""
        effects, now_ms = join.effects, join.now_ms
        old_leader_id = group.leader_id
        member = self._rebalance.replace_static(group, old_id, member_id, effects, now_ms)
        join.update(member)
        member.client_id, member.client_host = join.caller.client_id, join.caller.client_host
        if group.state is not ClassicState.STABLE:
            self._rebalance.advance(group, effects, now_ms)
        elif group.select_protocol() != group.protocol_name:
            self._rebalance.prepare(group, effects, now_ms)
        else:
            group.find_subscribed_topics()
            classic_records.write_group(effects, group)
            if join.caller.version >= SKIP_ASSIGNMENT_VERSION:
                is_leader = group.leader_id == member_id
                response = joined(group, member_id, skip_assignment=is_leader)
            else:
                # A restarted leader of this version would assign anew, and nobody else would
                # hear of it: it is told that the old one leads.
                response = joined(group, member_id, leader_id=old_leader_id)
            answer_join(effects, member, response)

    # SyncGroup.

    def sync(self, request: SyncGroupRequest, caller: Caller, token: Token, now_ms: int) -> Effects:
        """Fetch the assignment, or bring everyone's."""
        effects = Effects()
        try:
            group = self._group(request.group_id)
            self._check_sync(group, request, caller.version)
        except KafkaError as error:
            effects.reply(token, refused_sync(error.code))
            return effects
        member = group.members[request.member_id]
        self._rebalance.has_synced(group, member.member_id)
        if group.state is ClassicState.STABLE:
            effects.reply(token, synced(group, member))
            return effects
        answer_sync(effects, member, refused_sync(ErrorCode.REBALANCE_IN_PROGRESS))
        member.sync_token = token
        if group.leader_id == member.member_id:
            assignments = {each.member_id: bytes(each.assignment) for each in request.assignments}
            self._rebalance.complete_sync(group, assignments, effects, now_ms)
        return effects

    def _check_sync(self, group: ClassicGroup, request: SyncGroupRequest, version: int) -> None:
        named = (request.protocol_type, request.protocol_name)
        if version >= NAMED_PROTOCOL_VERSION and None in named:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        group.check_generation(request.member_id, request.group_instance_id, request.generation_id)
        actual = (group.protocol_type, group.protocol_name)
        if any(
            said is not None and is_ not in (None, said)
            for said, is_ in zip(named, actual, strict=True)
        ):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if group.state is ClassicState.PREPARING_REBALANCE:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)

    # Heartbeat.

    def heartbeat(self, request: HeartbeatRequest, token: Token, now_ms: int) -> Effects:
        """Stay a member, and learn whether to join again."""
        error_code = ErrorCode.NONE
        try:
            group = self._group(request.group_id)
            group.check_generation(
                request.member_id, request.group_instance_id, request.generation_id
            )
        except KafkaError as error:
            error_code = error.code
        else:
            arm_session(self._state, group.group_id, group.members[request.member_id], now_ms)
            if group.state is ClassicState.PREPARING_REBALANCE:
                error_code = ErrorCode.REBALANCE_IN_PROGRESS
        return Effects(replies=[(token, HeartbeatResponse(error_code=error_code))])

    # LeaveGroup.

    def leave(
        self, request: LeaveGroupRequest, caller: Caller, token: Token, now_ms: int
    ) -> Effects:
        """Take members out; the others share what they had."""
        effects = Effects()
        members = request.members
        if caller.version < BATCH_LEAVE_VERSION:
            members = (MemberIdentity(member_id=request.member_id),)
        group = self._state.groups.get(request.group_id)
        results = [self._leave(group, each, effects) for each in members]
        if group is not None and any(not result.error_code for result in results):
            assert isinstance(group, ClassicGroup)
            if group.state is not ClassicState.EMPTY:
                self._rebalance.advance(group, effects, now_ms)
        if caller.version < BATCH_LEAVE_VERSION:
            response = LeaveGroupResponse(error_code=results[0].error_code)
        else:
            response = LeaveGroupResponse(error_code=ErrorCode.NONE, members=results)
        effects.reply(token, response)
        return effects

    def _leave(self, group: object, identity: MemberIdentity, effects: Effects) -> MemberResponse:
        error_code = ErrorCode.NONE
        try:
            if not isinstance(group, ClassicGroup):
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            self._rebalance.remove(group, _leaving(group, identity), effects)
        except KafkaError as error:
            error_code = error.code
        return MemberResponse(
            member_id=identity.member_id,
            group_instance_id=identity.group_instance_id,
            error_code=error_code,
        )

    # The shard's life.

    def replay(self, key: GroupMetadataKey, value: GroupMetadataValue | None) -> None:
        """Apply a record of the log."""
        classic_records.replay(self._state, key, value)

    def loaded(self, effects: Effects, now_ms: int) -> None:
        """All members have their session timeout to find us."""
        limit = self._state.config.integer("group.max.size")
        for group in [*self._state.groups.values()]:
            if not isinstance(group, ClassicGroup):
                continue
            for member in group.members.values():
                arm_session(self._state, group.group_id, member, now_ms)
            if len(group.members) > limit:
                self._rebalance.prepare(group, effects, now_ms)  # Some will not be let in again.

    def timer(self, key: tuple[str, ...], effects: Effects, now_ms: int) -> None:
        """A deadline of a classic group has come."""
        group = self._state.groups.get(key[2])
        if not isinstance(group, ClassicGroup):
            return
        match key[1]:
            case "join":
                self._rebalance.join_timed_out(group, effects, now_ms)
            case "sync":
                self._rebalance.sync_timed_out(group, effects, now_ms)
            case _:
                self._rebalance.session_timed_out(group, key[3], effects, now_ms)

    def adopt(self, group: ClassicGroup, rebalance: bool, now_ms: int, effects: Effects) -> None:
        """A group has become a classic one: its members have their sessions here from now on."""
        group.find_subscribed_topics()
        for member in group.members.values():
            arm_session(self._state, group.group_id, member, now_ms)
        if rebalance:
            self._rebalance.advance(group, effects, now_ms)

    def disown(self, group: ClassicGroup) -> None:
        """The group is gone, or is not a classic one any more: it has no deadlines here."""
        timers = self._state.timers
        for name in ("join", "sync"):
            timers.cancel(("classic", name, group.group_id))
        for member_id in group.members.keys() | group.pending_members:
            timers.cancel(("classic", "session", group.group_id, member_id))


def _leaving(group: ClassicGroup, identity: MemberIdentity) -> str:
    """The id of the member that leaves; an administrator may name it by its instance id."""
    if not identity.member_id:
        member_id = group.static_members.get(identity.group_instance_id or "")
        if member_id is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member_id
    if identity.member_id not in group.pending_members:
        group.check_member(identity.member_id, identity.group_instance_id)
    return identity.member_id
