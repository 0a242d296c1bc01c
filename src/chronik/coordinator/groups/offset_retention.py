"""How long committed offsets are kept: as long as someone reads them, and their topic is there.

They expire some time after their group became empty, after the last commit where there is no
membership, and for topics that the group has stopped reading. With its topic an offset goes at
once; a topic of the same name that is created later is another one and inherits nothing.

A group without members goes with its last offset: `groups.shard` is told by `expire`.
"""

from typing import Final

from chronik.coordinator.classic.group import ClassicGroup, ClassicState
from chronik.coordinator.consumer.group import ConsumerGroup
from chronik.coordinator.effects import Effects
from chronik.coordinator.groups.records import OffsetCommitKey, OffsetCommitValue
from chronik.coordinator.groups.state import GroupState
from chronik.metadata.image import Topic
from chronik.model import NO_TIMESTAMP
from chronik.protocol.schema import NO_UUID

EXPIRY_KEY: Final = ("offsets", "expiry")
MINUTE_MS: Final = 60_000

Group = ClassicGroup | ConsumerGroup


def forget(state: GroupState, effects: Effects, group_id: str, topic: str, partition: int) -> None:
    """Remove an offset, and those that wait for a marker to take its place."""
    key = OffsetCommitKey(group=group_id, topic=topic, partition=partition)
    effects.write(key, None)
    state.offsets.apply(key, None, None)


def is_subscribed(group: Group, topic: str) -> bool:
    """Whether members of the group read this topic."""
    if isinstance(group, ClassicGroup):
        return group.is_subscribed_to(topic)
    return topic in group.subscribed_topics


def is_of(value: OffsetCommitValue, topic: Topic | None, *, or_gone: bool) -> bool:
    """Whether the offset is one of this very topic; old records do not say."""
    if topic is None:
        return or_gone
    return value.topic_id in (NO_UUID, topic.id)


class OffsetRetention:
    """Removes the offsets of one shard that nobody needs."""

    def __init__(self, state: GroupState) -> None:
        self._state = state

    def forget_all(self, group_id: str, effects: Effects) -> None:
        """Forget all offsets of a group that is deleted."""
        for topic, partition in [*self._state.offsets.partitions(group_id)]:
            forget(self._state, effects, group_id, topic, partition)

    # Expiry.

    def arm_expiry(self, now_ms: int) -> None:
        """Look for expired offsets an interval from now."""
        interval_ms = self._state.config.integer("offsets.retention.check.interval.ms")
        self._state.timers.set(EXPIRY_KEY, now_ms + interval_ms)

    def expire_soon(self, now_ms: int) -> None:
        """Go on looking for expired offsets in the next turn."""
        self._state.timers.set(EXPIRY_KEY, now_ms)

    def retention_ms(self) -> int:
        """How long offsets that nobody reads are kept."""
        return self._state.config.integer("offsets.retention.minutes") * MINUTE_MS

    def expire(self, group: Group, effects: Effects, now_ms: int, retention_ms: int) -> bool:
        """Forget what nobody reads any more; whether the group has no offsets left."""
        offsets, group_id = self._state.offsets, group.group_id
        if _can_expire(group):
            since_ms = _empty_since_ms(group)
            for topic, partitions in [*offsets.groups.get(group_id, {}).items()]:
                if is_subscribed(group, topic):
                    continue
                for partition, committed in [*partitions.items()]:
                    is_stable = not offsets.is_unstable(group_id, topic, partition)
                    if is_stable and _is_expired(committed.value, since_ms, retention_ms, now_ms):
                        forget(self._state, effects, group_id, topic, partition)
        return not offsets.has_any(group_id)

    # Topics.

    def on_topics_changed(self, names: frozenset[str], effects: Effects) -> None:
        """Forget the offsets of topics that are gone, or that are others by the same name."""
        offsets = self._state.offsets
        for group_id in [*dict.fromkeys([*offsets.groups, *offsets.open])]:
            if group_id not in offsets.open and names.isdisjoint(offsets.groups[group_id]):
                continue
            for name, partition in [*offsets.partitions(group_id)]:
                if name in names and self._is_obsolete(group_id, name, partition):
                    forget(self._state, effects, group_id, name, partition)

    def loaded(self, effects: Effects, now_ms: int) -> None:
        """The same for topics that went while nobody looked."""
        offsets = self._state.offsets
        names = {name for topics in offsets.groups.values() for name in topics}
        names |= {name for opened in offsets.open.values() for name, _ in opened}
        self.on_topics_changed(frozenset(names), effects)
        self.arm_expiry(now_ms)

    def _is_obsolete(self, group_id: str, name: str, partition: int) -> bool:
        topic = self._state.image.topics.get(name)
        values = self._state.offsets.values_of(group_id, name, partition)
        return not any(is_of(value, topic, or_gone=False) for value in values)


def _can_expire(group: Group) -> bool:
    """Whether anything of the group may expire now."""
    if isinstance(group, ConsumerGroup) or group.protocol_type is None:
        return True
    if group.state is ClassicState.STABLE:
        return group.uses_consumer_protocol and group.subscribed_topics is not None
    return group.is_empty


def _empty_since_ms(group: Group) -> int | None:
    """Since when the group has no members, where that is what counts."""
    if isinstance(group, ConsumerGroup) or group.protocol_type is None or not group.is_empty:
        return None
    return None if group.state_timestamp_ms == NO_TIMESTAMP else group.state_timestamp_ms


def _is_expired(
    value: OffsetCommitValue, since_ms: int | None, retention_ms: int, now_ms: int
) -> bool:
    if value.expire_timestamp != NO_TIMESTAMP:
        return now_ms >= value.expire_timestamp
    base_ms = value.commit_timestamp if since_ms is None else since_ms
    return now_ms - base_ms >= retention_ms
