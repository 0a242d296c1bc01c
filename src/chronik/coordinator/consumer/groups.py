"""Consumer groups (KIP-848): the machine that answers heartbeats and assigns partitions.

A heartbeat joins, subscribes, reports what a member owns, and leaves. What it changes is written
as records and applied by the same `replay` that reads them back after a crash (`consumer.change`),
so that the live state is the replayed one. Deadlines are soft: a reload arms them anew.

Timer keys, all tuples that begin with "consumer": ("consumer", kind, group id, member id) with
kind "session" and "rebalance" for any member, "join" and "sync" for one that speaks the classic
protocol, and ("consumer", "regex", group id).

A new epoch begins at once when members, subscriptions or topics change. The target for it is
computed with the next heartbeat or join: nobody can learn of it before, and a burst of changes
costs one assignment.

It leaves to others: offsets (who may commit and fetch them is said by `consumer.checks`), groups of
the classic protocol (told by `on_upgrade` and `on_downgrade`), and authorization (the handlers).
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from chronik.coordinator.classic import records as classic_records
from chronik.coordinator.classic.group import ClassicGroup, ClassicState
from chronik.coordinator.classic.rebalance import refused_join, refused_sync
from chronik.coordinator.consumer import migration
from chronik.coordinator.consumer import records as log
from chronik.coordinator.consumer.change import (
    GroupChange,
    assignor_name,
    heartbeat_interval_ms,
)
from chronik.coordinator.consumer.checks import (
    check_heartbeat,
    check_room,
    known_member,
    static_member,
)
from chronik.coordinator.consumer.classic_members import ClassicCalls
from chronik.coordinator.consumer.describe import describe, described_error
from chronik.coordinator.consumer.group import (
    JOIN_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerGroup,
    ConsumerMember,
    ConsumerState,
    MemberState,
)
from chronik.coordinator.consumer.heartbeat import (
    find_member,
    heartbeat_assignment,
    is_full,
    reported_partitions,
    updated_member,
)
from chronik.coordinator.consumer.regex import compile_regex
from chronik.coordinator.effects import Caller, Effects, Record, Token
from chronik.coordinator.groups.records import GroupMetadataKey
from chronik.coordinator.groups.state import GroupState
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedConsumerGroup,
)
from chronik.protocol.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
)
from chronik.protocol.messages.metadata import OPERATIONS_OMITTED
from chronik.protocol.schema import Message


class ConsumerGroups:
    """The consumer groups of one shard."""

    def __init__(self, state: GroupState) -> None:
        self._state = state
        self._classic = ClassicCalls(state, self._remove, self._downgrade)
        # The classic machine drops its deadlines of a group that is not its own any more.
        self.on_upgrade: Callable[[ClassicGroup], None] = lambda group: None
        # It arms those of a group that it takes over, and rebalances it if asked to:
        # (group, rebalance, now_ms, effects).
        self.on_downgrade: Callable[[ClassicGroup, bool, int, Effects], None] = (
            lambda group, rebalance, now_ms, effects: None
        )

    # Heartbeats.

    def heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, caller: Caller, token: Token, now_ms: int
    ) -> Effects:
        """Join, stay or leave."""
        try:
            assignors = self._state.config.words("group.consumer.assignors")
            check_heartbeat(request, caller.version, assignors)
            if request.member_epoch < JOIN_EPOCH:
                response, effects = self._leave(request, now_ms)
            else:
                response, effects = self._stay(request, caller, now_ms)
        except KafkaError as error:
            effects = Effects()
            response = ConsumerGroupHeartbeatResponse(
                error_code=error.code,
                error_message=error.message,
                member_epoch=0,
                heartbeat_interval_ms=0,
            )
        effects.reply(token, response)
        return effects

    def _stay(
        self, request: ConsumerGroupHeartbeatRequest, caller: Caller, now_ms: int
    ) -> tuple[ConsumerGroupHeartbeatResponse, Effects]:
        is_joining = request.member_epoch == JOIN_EPOCH
        reported = reported_partitions(request)
        member_id = request.member_id or self._state.new_id()
        group, conversion = self._group_to_join(request.group_id, is_joining)
        if is_joining:
            limit = self._state.config.integer("group.consumer.max.size")
            check_room(group, member_id, request.instance_id, limit)
        known, replaced = find_member(group, request, member_id, reported)
        if request.subscribed_topic_regex:
            compile_regex(request.subscribed_topic_regex)

        change = GroupChange(self._state, request.group_id, now_ms, Effects())
        self._convert(change, conversion)
        if replaced is not None:
            known = change.replace_member(replaced, member_id)
        before = known or ConsumerMember(member_id=member_id)
        member = change.advance(
            updated_member(before, request, caller), is_joining=is_joining, reported=reported
        )
        change.arm_session(member)
        for name in ("join", "sync"):  # It may have spoken the classic protocol until now.
            change.cancel_timer(name, member_id)
        interval_ms = heartbeat_interval_ms(self._state, change.group, now_ms)
        tell = is_joining or is_full(request) or member.assigned != before.assigned
        return (
            ConsumerGroupHeartbeatResponse(
                error_code=ErrorCode.NONE,
                member_id=member_id,
                member_epoch=member.member_epoch,
                heartbeat_interval_ms=interval_ms,
                assignment=heartbeat_assignment(member) if tell else None,
            ),
            change.effects,
        )

    def _leave(
        self, request: ConsumerGroupHeartbeatRequest, now_ms: int
    ) -> tuple[ConsumerGroupHeartbeatResponse, Effects]:
        group = self._known_group(request.group_id)
        if request.instance_id is None:
            member = known_member(group, request.member_id)
        else:
            member = static_member(group, request.instance_id, request.member_id)
        change = GroupChange(self._state, group.group_id, now_ms, Effects())
        if request.member_epoch == STATIC_LEAVE_EPOCH and request.instance_id is not None:
            # Its session goes on: if it is not back by then, it has left for good.
            away = replace(
                member,
                member_epoch=STATIC_LEAVE_EPOCH,
                pending_revocation={},
                # Whatever it commits when it is back, it owned the partition before.
                assigned={topic: dict.fromkeys(each, 0) for topic, each in member.assigned.items()},
            )
            change.write(log.current_record(group.group_id, away))
            change.cancel_timer("rebalance", member.member_id)
        else:
            self._remove(change, [member.member_id], now_ms)
        response = ConsumerGroupHeartbeatResponse(
            error_code=ErrorCode.NONE,
            member_id=request.member_id,
            member_epoch=request.member_epoch,
            heartbeat_interval_ms=0,
        )
        return response, change.effects

    def _known_group(self, group_id: str) -> ConsumerGroup:
        group = self._state.groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        if not isinstance(group, ConsumerGroup):
            raise KafkaError(
                ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group."
            )
        return group

    def _group_to_join(
        self, group_id: str, is_joining: bool
    ) -> tuple[ConsumerGroup, tuple[ClassicGroup, list[Record]] | None]:
        """The group as it will be, and what has to be written for that."""
        known = self._state.groups.get(group_id)
        if not is_joining or isinstance(known, ConsumerGroup):
            return self._known_group(group_id), None
        if known is None:
            return ConsumerGroup(group_id=group_id), None
        if known.state in (ClassicState.EMPTY, ClassicState.DEAD):
            tombstone = Record(GroupMetadataKey(group=group_id), None)
            return ConsumerGroup(group_id=group_id), (known, [tombstone])
        migration.check_upgrade(known, self._state.config)
        records = migration.upgrade(known, self._state.image)
        scratch: log.Groups = {}
        for record in records:
            log.replay(scratch, record.key, record.value)
        group = scratch[group_id]
        assert isinstance(group, ConsumerGroup)
        return group, (known, records)

    def _convert(
        self, change: GroupChange, conversion: tuple[ClassicGroup, list[Record]] | None
    ) -> None:
        """A classic group becomes a consumer group; its waiting members are told to join again."""
        if conversion is None:
            return
        classic, records = conversion
        self.on_upgrade(classic)
        for member in classic.members.values():
            if member.join_token is not None:
                refused = refused_join(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id)
                change.effects.reply(member.join_token, refused)
            if member.sync_token is not None:
                change.effects.reply(
                    member.sync_token, refused_sync(ErrorCode.REBALANCE_IN_PROGRESS)
                )
        del self._state.groups[classic.group_id]
        for record in records:
            change.write(record)
        if classic.members:
            for each in change.group.members.values():
                change.arm_session(each)

    def _remove(self, change: GroupChange, member_ids: list[str], now_ms: int) -> None:
        """Let members go; if only classic ones stay, the group becomes theirs again."""
        if migration.can_downgrade(change.group, member_ids, self._state.config):
            self._downgrade(change, member_ids, now_ms)
        else:
            change.remove_members(member_ids)

    def _downgrade(self, change: GroupChange, leaving: list[str], now_ms: int) -> None:
        group = change.group
        # A member that has not come to the target may still read what is another one's there.
        is_settled = not leaving and group.state is ConsumerState.STABLE
        classic = migration.downgrade(group, leaving, self._state.image, now_ms)
        for member_id in group.members:
            change.cancel_timers(member_id)
        self._state.timers.cancel(("consumer", "regex", group.group_id))
        for record in log.group_tombstones(group):
            change.write(record)
        classic_records.write_group(change.effects, classic)
        self._state.groups[classic.group_id] = classic
        self.on_downgrade(classic, not is_settled, now_ms, change.effects)

    # The classic protocol, spoken to a consumer group.

    def classic_join(
        self, request: JoinGroupRequest, caller: Caller, token: Token, now_ms: int
    ) -> Effects:
        """JoinGroup to a consumer group that is not empty (see `delete_if_empty`)."""
        try:
            group = self._known_group(request.group_id)
            if not group.members:
                # It comes again without an id, and finds the group given way to a classic one.
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            response, effects = self._classic.join(group, request, caller, now_ms)
        except KafkaError as error:
            response, effects = refused_join(error.code, request.member_id), Effects()
        effects.reply(token, response)
        return effects

    def classic_sync(
        self, request: SyncGroupRequest, caller: Caller, token: Token, now_ms: int
    ) -> Effects:
        """SyncGroup to a consumer group."""
        effects = Effects()
        try:
            group = self._known_group(request.group_id)
            response = self._classic.sync(group, request, now_ms)
        except KafkaError as error:
            response = refused_sync(error.code)
        effects.reply(token, response)
        return effects

    def classic_heartbeat(
        self, request: HeartbeatRequest, caller: Caller, token: Token, now_ms: int
    ) -> Effects:
        """Heartbeat to a consumer group."""
        effects = Effects()
        try:
            group = self._known_group(request.group_id)
            response = self._classic.heartbeat(group, request, now_ms)
        except KafkaError as error:
            response = HeartbeatResponse(error_code=error.code)
        effects.reply(token, response)
        return effects

    def classic_leave(
        self, request: LeaveGroupRequest, caller: Caller, token: Token, now_ms: int
    ) -> Effects:
        """LeaveGroup to a consumer group, for members of either protocol."""
        try:
            group = self._known_group(request.group_id)
            response, effects = self._classic.leave(group, request, caller, now_ms)
        except KafkaError as error:
            response, effects = LeaveGroupResponse(error_code=error.code), Effects()
        effects.reply(token, response)
        return effects

    # What others ask.

    def describe_group(
        self, group_id: str, operations: int = OPERATIONS_OMITTED
    ) -> DescribedConsumerGroup:
        """One group with its members, or why it cannot be described."""
        try:
            group = self._known_group(group_id)
        except KafkaError as error:
            return described_error(group_id, error)
        assignor = assignor_name(self._state, group)
        return describe(group, assignor, self._state.image, operations)

    def delete_if_empty(self, group_id: str, effects: Effects) -> bool:
        """Remove a consumer group without members; whether there was one."""
        group = self._state.groups.get(group_id)
        if not isinstance(group, ConsumerGroup) or group.members:
            return False
        for record in log.group_tombstones(group):
            effects.write(record.key, record.value)
            log.replay(self._state.groups, record.key, record.value)
        return True

    # Events.

    def on_image_changed(self, changed: Iterable[str], now_ms: int) -> Effects:
        """Topics with these names came, went or grew; the new image is in place."""
        names = frozenset(changed)
        effects = Effects()
        for group in list(self._state.groups.values()):
            if isinstance(group, ConsumerGroup) and group.members:
                change = GroupChange(self._state, group.group_id, now_ms, effects)
                found = change.resolve_regexes(names)
                if found or not names.isdisjoint(group.subscribed_topics):
                    change.update_epoch(always=found)
        return effects

    def timer(self, key: tuple[Any, ...], now_ms: int) -> Effects:
        """A deadline of ours has come."""
        effects = Effects()
        kind, group_id = key[1], key[2]
        group = self._state.groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            return effects
        change = GroupChange(self._state, group_id, now_ms, effects)
        if kind == "regex":
            if change.resolve_regexes(None):
                change.update_epoch(always=True)
            change.arm_regex_refresh()
        elif key[3] in group.members:
            self._remove(change, [key[3]], now_ms)
        return effects

    def loaded(self, now_ms: int) -> None:
        """All records are replayed: arm the deadlines, and look at the topics when asked next."""
        for group in self._state.groups.values():
            if not isinstance(group, ConsumerGroup):
                continue
            change = GroupChange(self._state, group.group_id, now_ms, Effects())
            group.needs_refresh = True
            change.arm_regex_refresh()
            for member in group.members.values():
                change.arm_session(member)
                if member.state is MemberState.UNREVOKED_PARTITIONS:
                    change.arm_rebalance(member)

    def replay(self, key: Message, value: Message | None) -> bool:
        """Apply a record; whether it is one of a consumer group."""
        return log.replay(self._state.groups, key, value)
