"""The phases of a classic group's rebalance, and the deadlines of its members.

A rebalance is prepared (everybody joins, or runs out of time), completed (the leader brings the
assignment, everybody fetches it) and then the group is stable until somebody comes, goes or wants
something else. The first rebalance of an empty group waits a little for more members.

Deadlines, as keys of the shard's timers
    ("classic", "join", group)              the join phase ends
    ("classic", "sync", group)              who has not fetched its assignment is removed
    ("classic", "session", group, member)   the member is removed, unless it waits for us

Invariant: a member that is taken out of the group leaves no request waiting and no deadline.
"""

from typing import Final

from chronik.coordinator.classic.group import ClassicGroup, ClassicMember, ClassicState
from chronik.coordinator.classic.records import write_group
from chronik.coordinator.effects import Effects
from chronik.coordinator.groups.state import GroupState
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.groups import (
    JoinGroupResponse,
    JoinGroupResponseMember,
    SyncGroupResponse,
)

# A member without an id cannot send heartbeats, and a client whose connection broke while it
# waited comes back as another one: after so long the old one is taken to be gone. Kafka's number.
FIRST_JOIN_TIMEOUT_MS: Final = 300_000
NO_GENERATION: Final = -1


def refused_join(error_code: ErrorCode, member_id: str) -> JoinGroupResponse:
    """The answer to a JoinGroup that leads nowhere."""
    return JoinGroupResponse(
        error_code=error_code,
        generation_id=NO_GENERATION,
        protocol_name="",
        leader="",
        member_id=member_id,
        members=(),
    )


def refused_sync(error_code: ErrorCode) -> SyncGroupResponse:
    """The answer to a SyncGroup without an assignment."""
    return SyncGroupResponse(error_code=error_code, assignment=b"")


def joined(
    group: ClassicGroup,
    member_id: str,
    leader_id: str | None = None,
    skip_assignment: bool = False,
) -> JoinGroupResponse:
    """The present generation, as a member is told of it; the leader also learns of all others."""
    members: list[JoinGroupResponseMember] = []
    protocol = group.protocol_name or ""
    leader_id = leader_id or group.leader_id
    if member_id == leader_id:
        members = [
            JoinGroupResponseMember(
                member_id=each.member_id,
                group_instance_id=each.instance_id,
                metadata=each.metadata(protocol),
            )
            for each in group.members.values()
        ]
    return JoinGroupResponse(
        error_code=ErrorCode.NONE,
        generation_id=group.generation_id,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=leader_id or "",
        skip_assignment=skip_assignment,
        member_id=member_id,
        members=members,
    )


def synced(group: ClassicGroup, member: ClassicMember) -> SyncGroupResponse:
    """A member's assignment."""
    return SyncGroupResponse(
        error_code=ErrorCode.NONE,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        assignment=member.assignment,
    )


def answer_join(effects: Effects, member: ClassicMember, response: JoinGroupResponse) -> None:
    """Answer the member's JoinGroup, if one waits."""
    if member.join_token is not None:
        effects.reply(member.join_token, response)
        member.join_token = None


def answer_sync(effects: Effects, member: ClassicMember, response: SyncGroupResponse) -> None:
    """Answer the member's SyncGroup, if one waits."""
    if member.sync_token is not None:
        effects.reply(member.sync_token, response)
        member.sync_token = None


def arm_session(
    state: GroupState, group_id: str, member: ClassicMember, now_ms: int, timeout_ms: int = 0
) -> None:
    """The member is alive; it has its session timeout, or as long as is said, to show it again."""
    key = ("classic", "session", group_id, member.member_id)
    state.timers.set(key, now_ms + (timeout_ms or member.session_timeout_ms))


class Rebalance:
    """Moves the groups of one shard from one generation to the next."""

    def __init__(self, state: GroupState) -> None:
        self._state = state

    # Members.

    def add(
        self, group: ClassicGroup, member: ClassicMember, effects: Effects, now_ms: int
    ) -> None:
        """Someone new is in: the group must be assigned anew."""
        if group.state is ClassicState.PREPARING_REBALANCE and group.is_first_rebalance:
            group.joined_while_delayed = True
        if not group.members:
            group.protocol_type = member.protocol_type
        group.members[member.member_id] = member
        group.pending_members.discard(member.member_id)
        if member.instance_id is not None:
            group.static_members[member.instance_id] = member.member_id
        if group.leader_id is None:
            group.leader_id = member.member_id
        member.is_new = True
        arm_session(self._state, group.group_id, member, now_ms, FIRST_JOIN_TIMEOUT_MS)
        self.advance(group, effects, now_ms)

    def remove(
        self,
        group: ClassicGroup,
        member_id: str,
        effects: Effects,
        error_code: ErrorCode = ErrorCode.UNKNOWN_MEMBER_ID,
    ) -> None:
        """Someone is out; what follows for the others is for the caller to say."""
        self._state.timers.cancel(("classic", "session", group.group_id, member_id))
        group.pending_members.discard(member_id)
        group.pending_sync.discard(member_id)
        member = group.members.pop(member_id, None)
        if member is None:
            return
        answer_join(effects, member, refused_join(error_code, member_id))
        answer_sync(effects, member, refused_sync(error_code))
        if (
            member.instance_id is not None
            and group.static_members.get(member.instance_id) == member_id
        ):
            del group.static_members[member.instance_id]
        if group.leader_id == member_id:
            group.leader_id = next(iter(group.members), None)

    def replace_static(
        self, group: ClassicGroup, old_id: str, member_id: str, effects: Effects, now_ms: int
    ) -> ClassicMember:
        """A static member is back under another id, and keeps its place and its assignment."""
        member = group.members[old_id]
        is_leader = group.leader_id == old_id
        self.remove(group, old_id, effects, ErrorCode.FENCED_INSTANCE_ID)
        member.member_id = member_id
        assert member.instance_id is not None
        group.members[member_id] = member
        group.static_members[member.instance_id] = member_id
        if is_leader or group.leader_id is None:
            group.leader_id = member_id
        timeout_ms = FIRST_JOIN_TIMEOUT_MS if member.is_new else member.session_timeout_ms
        arm_session(self._state, group.group_id, member, now_ms, timeout_ms)
        return member

    # Phases.

    def advance(self, group: ClassicGroup, effects: Effects, now_ms: int) -> None:
        """The members have changed: begin a rebalance, or go on with the one under way."""
        if group.state is ClassicState.PREPARING_REBALANCE:
            self.maybe_complete_join(group, effects, now_ms)
        else:
            self.prepare(group, effects, now_ms)

    def prepare(self, group: ClassicGroup, effects: Effects, now_ms: int) -> None:
        """Everybody has to join again."""
        if group.state is ClassicState.COMPLETING_REBALANCE:
            self._propagate_rebalance(group, effects, now_ms)
        self._state.timers.cancel(("classic", "sync", group.group_id))
        group.is_first_rebalance = group.is_empty
        group.move_to(ClassicState.PREPARING_REBALANCE, now_ms)
        if group.is_first_rebalance:
            delay_ms = self._state.config.integer("group.initial.rebalance.delay.ms")
            group.joined_while_delayed = False
            group.delay_ms = delay_ms
            group.delay_left_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            self._arm_join(group, now_ms, delay_ms)
        elif group.has_all_joined:
            self._complete_join(group, effects, now_ms)
        else:
            self._arm_join(group, now_ms, group.rebalance_timeout_ms)

    def _propagate_rebalance(self, group: ClassicGroup, effects: Effects, now_ms: int) -> None:
        """Whoever waits for an assignment of the generation that is given up joins again."""
        for member in group.members.values():
            member.assignment = b""
            answer_sync(effects, member, refused_sync(ErrorCode.REBALANCE_IN_PROGRESS))
            arm_session(self._state, group.group_id, member, now_ms)

    def _arm_join(self, group: ClassicGroup, now_ms: int, timeout_ms: int) -> None:
        self._state.timers.set(("classic", "join", group.group_id), now_ms + timeout_ms)

    def maybe_complete_join(self, group: ClassicGroup, effects: Effects, now_ms: int) -> bool:
        """End the join phase if everybody is there; the first one always takes its time."""
        is_complete = (
            group.state is ClassicState.PREPARING_REBALANCE
            and not group.is_first_rebalance
            and group.has_all_joined
        )
        if is_complete:
            self._complete_join(group, effects, now_ms)
        return is_complete

    def join_timed_out(self, group: ClassicGroup, effects: Effects, now_ms: int) -> None:
        """The join phase has lasted long enough, unless more members come all the time."""
        if group.state is not ClassicState.PREPARING_REBALANCE:
            return
        if group.is_first_rebalance and group.joined_while_delayed and group.delay_left_ms:
            group.joined_while_delayed = False
            delay_ms = self._state.config.integer("group.initial.rebalance.delay.ms")
            delay_ms = min(delay_ms, group.delay_left_ms)
            group.delay_left_ms = max(group.delay_left_ms - group.delay_ms, 0)
            group.delay_ms = delay_ms
            self._arm_join(group, now_ms, delay_ms)
        else:
            self._complete_join(group, effects, now_ms)

    def _complete_join(self, group: ClassicGroup, effects: Effects, now_ms: int) -> None:
        """The generation has its members: tell each of them."""
        self._state.timers.cancel(("classic", "join", group.group_id))
        # A static member that restarts is given its session timeout instead.
        for member in [*group.members.values()]:
            if member.join_token is None and member.instance_id is None:
                self.remove(group, member.member_id, effects)
        if group.members and not _elect_leader(group):
            self._arm_join(group, now_ms, group.rebalance_timeout_ms)  # Nobody has joined yet.
            return
        group.generation_id += 1
        group.pending_sync.clear()
        if not group.members:
            group.protocol_name = None
            group.move_to(ClassicState.EMPTY, now_ms)
            group.find_subscribed_topics()
            write_group(effects, group)
            return
        group.protocol_name = group.select_protocol()
        group.move_to(ClassicState.COMPLETING_REBALANCE, now_ms)
        group.find_subscribed_topics()
        for member in group.members.values():
            answer_join(effects, member, joined(group, member.member_id))
            arm_session(self._state, group.group_id, member, now_ms)
            member.is_new = False
            group.pending_sync.add(member.member_id)
        sync_deadline_ms = now_ms + group.rebalance_timeout_ms
        self._state.timers.set(("classic", "sync", group.group_id), sync_deadline_ms)

    def complete_sync(
        self, group: ClassicGroup, assignments: dict[str, bytes], effects: Effects, now_ms: int
    ) -> None:
        """The leader has brought the assignment: log it, and hand it out."""
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, b"")
        group.move_to(ClassicState.STABLE, now_ms)
        write_group(effects, group)
        for member in group.members.values():
            answer_sync(effects, member, synced(group, member))
            arm_session(self._state, group.group_id, member, now_ms)

    def has_synced(self, group: ClassicGroup, member_id: str) -> None:
        """A member has asked for its assignment; it is not waited for any more."""
        group.pending_sync.discard(member_id)
        if not group.pending_sync:
            self._state.timers.cancel(("classic", "sync", group.group_id))

    def sync_timed_out(self, group: ClassicGroup, effects: Effects, now_ms: int) -> None:
        """Whoever joined and never asked for its assignment is gone."""
        in_sync_phase = (ClassicState.COMPLETING_REBALANCE, ClassicState.STABLE)
        if group.state in in_sync_phase and group.pending_sync:
            for member_id in sorted(group.pending_sync):
                self.remove(group, member_id, effects)
            self.prepare(group, effects, now_ms)

    def session_timed_out(
        self, group: ClassicGroup, member_id: str, effects: Effects, now_ms: int
    ) -> None:
        """A member has not been heard of; one that waits for an answer is not expected to be."""
        member = group.members.get(member_id)
        if member is None:
            if member_id in group.pending_members:
                self.remove(group, member_id, effects)
                self.maybe_complete_join(group, effects, now_ms)
            return
        is_waiting = member.join_token is not None or member.sync_token is not None
        if member.is_new or not is_waiting:
            self.remove(group, member_id, effects)
            self.advance(group, effects, now_ms)


def _elect_leader(group: ClassicGroup) -> bool:
    """Keep the leader if it has joined, or take another one that has; whether there is one."""
    assert group.leader_id is not None
    if group.members[group.leader_id].join_token is None:
        waiting = (each for each in group.members.values() if each.join_token is not None)
        leader = next(waiting, None)
        if leader is None:
            return False
        group.leader_id = leader.member_id
    return True
