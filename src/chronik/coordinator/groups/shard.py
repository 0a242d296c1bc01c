"""One shard of groups: the machine of one partition of `__consumer_offsets`.

It sorts requests, records and deadlines to the machine that they are for: `classic` and
`consumer` for the two group protocols, `offsets` and `offset_retention` for what both commit. A
group has one protocol at a time and can change it while it lives: `consumer` converts it, and the
hooks set up here hand its members' deadlines over.

Requests about offsets that are refused as a whole raise KafkaError; all others are answered.
"""

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from chronik.coordinator.classic import records as classic_records
from chronik.coordinator.classic.describe import describe, describe_unknown
from chronik.coordinator.classic.group import (
    CONSUMER_PROTOCOL_TYPE,
    ClassicGroup,
)
from chronik.coordinator.classic.groups import ClassicGroups
from chronik.coordinator.classic.rebalance import refused_join, refused_sync
from chronik.coordinator.consumer.group import ConsumerGroup
from chronik.coordinator.consumer.groups import ConsumerGroups
from chronik.coordinator.effects import Caller, Effects, ProducerStamp, Record, Token
from chronik.coordinator.groups.offset_retention import OffsetRetention
from chronik.coordinator.groups.offsets import Offsets
from chronik.coordinator.groups.records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from chronik.coordinator.groups.state import GroupConfig, GroupState
from chronik.metadata.image import Image
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from chronik.protocol.messages.groups import (
    DeletableGroupResult,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListedGroup,
    SyncGroupRequest,
)
from chronik.protocol.messages.offset_commits import (
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequestGroup,
)
from chronik.protocol.messages.transactions import TxnOffsetCommitRequest

CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"
# Removals that are logged at once: a batch of about 100 KiB. The rest follows in the next turn.
EXPIRED_AT_ONCE: Final = 1_000
# Offsets that are looked at in one turn: 1 ms, since all shards of a node do so at the same time.
LOOKED_AT_ONCE: Final = 500


class GroupShard:
    """The groups whose ids hash to one partition."""

    def __init__(self, config: GroupConfig, new_id: Callable[[], str]) -> None:
        self.state = GroupState(config=config, new_id=new_id)
        self._classic = ClassicGroups(self.state)
        self._consumer = ConsumerGroups(self.state)
        self._consumer.on_upgrade = self._classic.disown
        self._consumer.on_downgrade = self._classic.adopt
        self._offsets = Offsets(self.state)
        self._retention = OffsetRetention(self.state)
        self._to_look_at: list[str] = []  # groups, in the present search for expired offsets

    @property
    def image(self) -> Image:
        return self.state.image

    @image.setter
    def image(self, image: Image) -> None:
        self.state.image = image

    # The classic protocol; a consumer group also has members that speak it.

    def _is_consumer_group(self, group_id: str) -> bool:
        return isinstance(self.state.groups.get(group_id), ConsumerGroup)

    def join_group(
        self, request: JoinGroupRequest, caller: Caller, token: Token, now_ms: int
    ) -> Effects:
        """JoinGroup; the answer may come with later effects."""
        effects = Effects()
        try:
            _check_group_id(request.group_id)
            self._classic.check_session_timeout(request.session_timeout_ms)
        except KafkaError as error:
            effects.reply(token, refused_join(error.code, request.member_id))
            return effects
        if not request.member_id:
            # A consumer group that nobody is in gives way to a classic group of its name.
            self._consumer.delete_if_empty(request.group_id, effects)
            self._adopt_offsets(request.group_id)
        is_consumer_group = self._is_consumer_group(request.group_id)
        join = self._consumer.classic_join if is_consumer_group else self._classic.join
        effects.add(join(request, caller, token, now_ms))
        return effects

    def _adopt_offsets(self, group_id: str) -> None:
        """Whoever has offsets is a group, whatever became of its records."""
        if self.state.offsets.has_any(group_id):
            self.state.groups.setdefault(group_id, ClassicGroup(group_id=group_id))

    def sync_group(
        self, request: SyncGroupRequest, caller: Caller, token: Token, now_ms: int
    ) -> Effects:
        """SyncGroup; the answer may come with later effects."""
        if not request.group_id:
            return Effects(replies=[(token, refused_sync(ErrorCode.INVALID_GROUP_ID))])
        if self._is_consumer_group(request.group_id):
            return self._consumer.classic_sync(request, caller, token, now_ms)
        return self._classic.sync(request, caller, token, now_ms)

    def heartbeat(
        self, request: HeartbeatRequest, caller: Caller, token: Token, now_ms: int
    ) -> Effects:
        """Heartbeat."""
        if not request.group_id:
            response = HeartbeatResponse(error_code=ErrorCode.INVALID_GROUP_ID)
            return Effects(replies=[(token, response)])
        if self._is_consumer_group(request.group_id):
            return self._consumer.classic_heartbeat(request, caller, token, now_ms)
        return self._classic.heartbeat(request, token, now_ms)

    def leave_group(
        self, request: LeaveGroupRequest, caller: Caller, token: Token, now_ms: int
    ) -> Effects:
        """LeaveGroup."""
        if not request.group_id:
            response = LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
            return Effects(replies=[(token, response)])
        if self._is_consumer_group(request.group_id):
            return self._consumer.classic_leave(request, caller, token, now_ms)
        return self._classic.leave(request, caller, token, now_ms)

    # The consumer protocol.

    def consumer_group_heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, caller: Caller, token: Token, now_ms: int
    ) -> Effects:
        """ConsumerGroupHeartbeat; it can turn a classic group into a consumer group."""
        if CONSUMER in self.state.config.words("group.coordinator.rebalance.protocols"):
            return self._consumer.heartbeat(request, caller, token, now_ms)
        response = ConsumerGroupHeartbeatResponse(
            error_code=ErrorCode.UNSUPPORTED_VERSION, member_epoch=0, heartbeat_interval_ms=0
        )
        return Effects(replies=[(token, response)])

    def describe_consumer_group(self, group_id: str, operations: int, token: Token) -> Effects:
        """One group of a ConsumerGroupDescribe."""
        described = self._consumer.describe_group(group_id)
        if described.error_code == ErrorCode.NONE:
            described = msgspec.structs.replace(described, authorized_operations=operations)  # type: ignore[type-var]
        return Effects(replies=[(token, described)])

    # What operators ask.

    def describe_group(
        self, group_id: str, caller: Caller, operations: int, token: Token
    ) -> Effects:
        """One group of a DescribeGroups: a consumer group is none of those."""
        group = self.state.groups.get(group_id)
        if isinstance(group, ClassicGroup):
            described = describe(group, operations)
        else:
            reason = "not found" if group is None else "is not a classic group"
            described = describe_unknown(group_id, reason, caller.version)
        return Effects(replies=[(token, described)])

    def list_groups(
        self, states_filter: Iterable[str], types_filter: Iterable[str]
    ) -> list[ListedGroup]:
        """The groups in these states and of these types; no filter lets everything through."""
        states = {state.lower() for state in states_filter}
        types = {group_type.lower() for group_type in types_filter}
        listed = map(_listed, self.state.groups.values())
        return [
            group
            for group in listed
            if (not states or group.group_state.lower() in states)
            and (not types or group.group_type in types)
        ]

    def delete_group(self, group_id: str, token: Token, now_ms: int) -> Effects:
        """Remove a group without members, and all that it has committed."""
        effects = Effects()
        group = self.state.groups.get(group_id)
        error_code = ErrorCode.NONE
        if group is None:
            error_code = ErrorCode.GROUP_ID_NOT_FOUND
        elif not _is_empty(group):
            error_code = ErrorCode.NON_EMPTY_GROUP
        else:
            self._retention.forget_all(group_id, effects)
            self._remove(group, effects)
        effects.reply(token, DeletableGroupResult(group_id=group_id, error_code=error_code))
        return effects

    def _remove(self, group: ClassicGroup | ConsumerGroup, effects: Effects) -> None:
        if isinstance(group, ConsumerGroup):
            self._consumer.delete_if_empty(group.group_id, effects)
            return
        self._classic.disown(group)
        classic_records.write_removal(effects, group.group_id)
        del self.state.groups[group.group_id]

    # Offsets.

    def offset_commit(
        self, request: OffsetCommitRequest, caller: Caller, token: Token, now_ms: int
    ) -> Effects:
        """OffsetCommit; KafkaError if nothing of it can be committed."""
        return self._offsets.commit(request, caller, token, now_ms)

    def offset_fetch(
        self,
        group: OffsetFetchRequestGroup,
        caller: Caller,
        require_stable: bool,
        token: Token,
        now_ms: int,
    ) -> Effects:
        """One group of an OffsetFetch; KafkaError if it is refused."""
        return self._offsets.fetch(group, caller, require_stable, token)

    def offset_delete(self, request: OffsetDeleteRequest, token: Token, now_ms: int) -> Effects:
        """OffsetDelete; KafkaError if it is refused."""
        return self._offsets.delete(request, token)

    def txn_offset_commit(
        self, request: TxnOffsetCommitRequest, caller: Caller, token: Token, now_ms: int
    ) -> Effects:
        """TxnOffsetCommit; KafkaError if nothing of it can be committed."""
        return self._offsets.commit_in_transaction(request, caller, token, now_ms)

    # The shard's life.

    def replay(self, record: Record, producer: ProducerStamp | None) -> None:
        """Apply a record of the log; with a producer, one that waits for its marker."""
        key, value = record
        if isinstance(key, OffsetCommitKey):
            assert value is None or isinstance(value, OffsetCommitValue)
            self._offsets.replay(key, value, None if producer is None else producer.producer_id)
        elif isinstance(key, GroupMetadataKey):
            assert value is None or isinstance(value, GroupMetadataValue)
            self._classic.replay(key, value)
        else:
            self._consumer.replay(key, value)

    def end_transaction(self, producer: ProducerStamp, committed: bool) -> None:
        """A marker was appended: what waited for it counts now, or never."""
        self._offsets.end_transaction(producer, committed)

    def loaded(self, now_ms: int) -> Effects:
        """The replay is over: arm deadlines, and see what happened to topics meanwhile."""
        effects = Effects()
        for group_id in (*self.state.offsets.groups, *self.state.offsets.open):
            self._adopt_offsets(group_id)
        self._classic.loaded(effects, now_ms)
        self._consumer.loaded(now_ms)
        self._retention.loaded(effects, now_ms)
        return effects

    def on_topics_changed(self, names: frozenset[str], now_ms: int) -> Effects:
        """These topics were created, deleted or got partitions; `image` is the new one."""
        effects = self._consumer.on_image_changed(names, now_ms)
        self._retention.on_topics_changed(names, effects)
        return effects

    @property
    def next_deadline_ms(self) -> int | None:
        """When `tick` should be called next."""
        return self.state.timers.next_deadline_ms

    def tick(self, now_ms: int) -> Effects:
        """See to the deadlines that have come."""
        effects = Effects()
        for key in self.state.timers.due(now_ms):
            assert isinstance(key, tuple)
            if self.state.timers.get(key) is not None:
                continue  # What was due before it has set it anew.
            if key[0] == CLASSIC:
                self._classic.timer(key, effects, now_ms)
            elif key[0] == CONSUMER:
                effects.add(self._consumer.timer(key, now_ms))
            else:
                self._expire(effects, now_ms)
        return effects

    def _expire(self, effects: Effects, now_ms: int) -> None:
        """Go on with the search for expired offsets, or begin one."""
        retention_ms = self._retention.retention_ms()
        self._to_look_at = self._to_look_at or [*self.state.groups]
        looked_at = 0
        while self._to_look_at:
            if len(effects.records) >= EXPIRED_AT_ONCE or looked_at >= LOOKED_AT_ONCE:
                self._retention.expire_soon(now_ms)
                return
            group = self.state.groups.get(self._to_look_at.pop())
            if group is None:
                continue
            looked_at += 1 + self.state.offsets.count(group.group_id)
            has_none = self._retention.expire(group, effects, now_ms, retention_ms)
            if has_none and _is_empty(group) and not _is_awaited(group):
                self._remove(group, effects)
        self._retention.arm_expiry(now_ms)


def _check_group_id(group_id: str) -> None:
    if not group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)


def _is_empty(group: ClassicGroup | ConsumerGroup) -> bool:
    return group.is_empty if isinstance(group, ClassicGroup) else not group.members


def _is_awaited(group: ClassicGroup | ConsumerGroup) -> bool:
    """Whether someone was just given an id with which to join."""
    return isinstance(group, ClassicGroup) and bool(group.pending_members)


def _listed(group: ClassicGroup | ConsumerGroup) -> ListedGroup:
    if isinstance(group, ClassicGroup):
        protocol_type, group_type = group.protocol_type or "", CLASSIC
    else:
        protocol_type, group_type = CONSUMER_PROTOCOL_TYPE, CONSUMER
    return ListedGroup(
        group_id=group.group_id,
        protocol_type=protocol_type,
        group_state=group.state.value,
        group_type=group_type,
    )
