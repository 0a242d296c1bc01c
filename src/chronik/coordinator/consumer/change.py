"""One change of a consumer group: the steps that heartbeats, joins, leaves and timers share.

Each step writes records and applies them at once, through the same `replay` that a reload uses.
The order of the steps is that of the protocol: who is there and what they want, then the group's
epoch, then the target for it, then the member that called.

What is wrong with a request is found before the first record: a change is never given up halfway.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from chronik.config.group_settings import HEARTBEAT_INTERVAL, SESSION_TIMEOUT
from chronik.coordinator.consumer import records as log
from chronik.coordinator.consumer.assignors import ASSIGNORS, MemberSpec
from chronik.coordinator.consumer.group import (
    JOIN_EPOCH,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    ResolvedRegex,
)
from chronik.coordinator.consumer.reconciliation import Reported, reconcile
from chronik.coordinator.consumer.regex import matching_topics
from chronik.coordinator.effects import Effects, Record
from chronik.coordinator.groups.state import GroupState
from chronik.metadata.image import Image

# Instances of an application are often started one after the other, seconds apart: for so long
# after a change members look often whether there is another one.
SETTLING_MS: Final = 10_000
# A change takes three rounds of heartbeats: one to learn of it, one to give back, one to take
# over. With 100 ms each a small group is stable well within a second. All members together send
# no more than 100 heartbeats a second, which costs the broker about a hundredth of a core.
SETTLING_INTERVAL_MS: Final = 100
SETTLING_INTERVAL_MS_PER_MEMBER: Final = 10
# After that only a member that takes its time to give partitions back is waited for. Nobody gains
# by asking every tenth of a second.
WAITING_FACTOR: Final = 5


def metadata_hash(topics: Iterable[str], image: Image) -> int:
    """A number that is another one if one of these topics comes, goes, or grows."""
    digest = hashlib.blake2b(digest_size=8)
    known = 0
    for name in sorted(topics):
        topic = image.topics.get(name)
        if topic is not None:
            known += 1
            digest.update(f"{name}\0{len(topic.partitions)}\0".encode() + topic.id)
    return int.from_bytes(digest.digest(), "big", signed=True) if known else 0


def heartbeat_interval_ms(state: GroupState, group: ConsumerGroup, now_ms: int) -> int:
    """How soon a member shall come again: sooner while the group changes."""
    usual = state.config.of_group(group.group_id, HEARTBEAT_INTERVAL)
    often = max(SETTLING_INTERVAL_MS, SETTLING_INTERVAL_MS_PER_MEMBER * len(group.members))
    if now_ms < group.settling_until_ms:
        return min(usual, often)
    return min(usual, often * WAITING_FACTOR) if group.is_busy else usual


class GroupChange:
    """A group, the moment, and the effects so far."""

    def __init__(self, state: GroupState, group_id: str, now_ms: int, effects: Effects) -> None:
        self._state = state
        self._group_id = group_id
        self._now_ms = now_ms
        self.effects = effects

    @property
    def group(self) -> ConsumerGroup:
        """The group as it is by now; the first record may just have made it."""
        group = self._state.groups[self._group_id]
        assert isinstance(group, ConsumerGroup)
        return group

    def write(self, record: Record) -> None:
        """Log a record and apply it."""
        self.effects.write(record.key, record.value)
        log.replay(self._state.groups, record.key, record.value)

    def advance(
        self, updated: ConsumerMember, *, is_joining: bool, reported: Reported
    ) -> ConsumerMember:
        """The member has said who it is and what it wants: go as far as that leads."""
        changed = self._subscribe(updated, is_joining)
        if self.group.needs_refresh:
            self.group.needs_refresh = False
            self.update_epoch(always=self.resolve_regexes(None) or changed)
        elif changed:
            self.update_epoch(always=True)
        self._update_target()
        return self._reconcile(updated.member_id, reported, changed)

    def _subscribe(self, updated: ConsumerMember, is_joining: bool) -> bool:
        """Note what the member wants; whether the group has to be assigned anew."""
        before = self._state.groups.get(self._group_id)
        known = before.members.get(updated.member_id) if isinstance(before, ConsumerGroup) else None
        if known is None or known != updated:
            self.write(log.member_record(self._group_id, updated))
        if known is None:
            assert is_joining
            self._change_regex("", updated.subscribed_topic_regex)
            return True
        self._change_regex(known.subscribed_topic_regex, updated.subscribed_topic_regex)
        return _wants(known) != _wants(updated)

    def _change_regex(self, old: str, new: str) -> None:
        if old == new:
            return
        if old and old in self.group.regexes and not self.group.regex_subscriber_count(old):
            self.write(log.regex_tombstone(self._group_id, old))
        if new and new not in self.group.regexes:
            self._resolve(new, matching_topics(new, self._state.image.topics))
        self.arm_regex_refresh()

    def arm_regex_refresh(self) -> None:
        """Look again at what expressions match, as long as there is one."""
        key = ("consumer", "regex", self._group_id)
        if not self.group.regexes:
            self._state.timers.cancel(key)
        elif self._state.timers.get(key) is None:
            interval_ms = self._state.config.integer("group.consumer.regex.refresh.interval.ms")
            self._state.timers.set(key, self._now_ms + interval_ms)

    def resolve_regexes(self, changed: Iterable[str] | None) -> bool:
        """Match all topics, or those that changed, anew; whether an expression found others."""
        topics = self._state.image.topics
        found = False
        for regex, resolved in list(self.group.regexes.items()):
            if changed is None:
                matched = matching_topics(regex, topics)
            else:
                present = matching_topics(regex, (name for name in changed if name in topics))
                matched = (resolved.topics - frozenset(changed)) | present
            if matched != resolved.topics:
                self._resolve(regex, matched)
                found = True
        return found

    def _resolve(self, regex: str, topics: frozenset[str]) -> None:
        resolved = ResolvedRegex(topics, version=0, timestamp_ms=self._now_ms)
        self.write(log.regex_record(self._group_id, regex, resolved))

    def update_epoch(self, *, always: bool) -> bool:
        """Begin another epoch if topics have changed, or in any case; whether one began."""
        group = self.group
        found = metadata_hash(group.subscribed_topics, self._state.image)
        if not always and found == group.metadata_hash:
            return False
        self.write(log.epoch_record(self._group_id, group.group_epoch + 1, found))
        group.settling_until_ms = self._now_ms + SETTLING_MS
        return True

    def _update_target(self) -> None:
        group = self.group
        if group.assignment_epoch >= group.group_epoch:
            return
        target = ASSIGNORS[assignor_name(self._state, group)](
            *assignor_input(group, self._state.image)
        )
        for member_id in sorted(group.members):
            share = target[member_id]
            if group.target.get(member_id) != share:
                self.write(log.target_record(self._group_id, member_id, share))
        self.write(log.target_epoch_record(self._group_id, group.group_epoch, self._now_ms))

    def _reconcile(self, member_id: str, reported: Reported, changed: bool) -> ConsumerMember:
        group = self.group
        member = group.members[member_id]
        if not changed and member.is_reconciled_to(group.assignment_epoch):
            return member
        after = reconcile(
            member,
            target_epoch=group.assignment_epoch,
            target=group.target.get(member_id, {}),
            subscribed_ids=group.topic_ids_of(member, self._state.image),
            is_owned=lambda topic_id, partition: group.owner(topic_id, partition) is not None,
            reported=reported,
            subscription_changed=changed,
        )
        if after != member:
            self.write(log.current_record(self._group_id, after))
            self.arm_rebalance(after)
        return after

    def arm_session(self, member: ConsumerMember) -> None:
        """The member is alive; it has so long to show it again."""
        if member.classic is not None:
            timeout_ms = member.classic.session_timeout_ms
        else:
            timeout_ms = self._state.config.of_group(self._group_id, SESSION_TIMEOUT)
        self.set_timer("session", member.member_id, timeout_ms)

    def arm_rebalance(self, member: ConsumerMember) -> None:
        """A member that must give partitions back has its rebalance timeout for that."""
        if member.classic is None and member.state is MemberState.UNREVOKED_PARTITIONS:
            self.set_timer("rebalance", member.member_id, member.rebalance_timeout_ms)
        else:
            self.cancel_timer("rebalance", member.member_id)

    def set_timer(self, name: str, member_id: str, timeout_ms: int) -> None:
        """A deadline of a member, so long from now."""
        key = ("consumer", name, self._group_id, member_id)
        self._state.timers.set(key, self._now_ms + timeout_ms)

    def cancel_timer(self, name: str, member_id: str) -> None:
        """A deadline that does not hold any more."""
        self._state.timers.cancel(("consumer", name, self._group_id, member_id))

    def cancel_timers(self, member_id: str) -> None:
        """The member has no deadlines any more."""
        for name in ("session", "rebalance", "join", "sync"):
            self.cancel_timer(name, member_id)

    def replace_member(self, old: ConsumerMember, member_id: str) -> ConsumerMember:
        """A static member is back under another id, and gets all that it had."""
        share = self.group.target.get(old.member_id, {})
        member = replace(
            old,
            member_id=member_id,
            member_epoch=JOIN_EPOCH,
            previous_member_epoch=JOIN_EPOCH,
        )
        for record in log.member_tombstones(self._group_id, old.member_id):
            self.write(record)
        self.write(log.member_record(self._group_id, member))
        self.write(log.target_record(self._group_id, member_id, share))
        self.write(log.current_record(self._group_id, member))
        self.cancel_timers(old.member_id)
        return member

    def remove_members(self, member_ids: Iterable[str]) -> None:
        """These members are gone; what they owned is assigned with the next heartbeat."""
        for member_id in member_ids:
            for record in log.member_tombstones(self._group_id, member_id):
                self.write(record)
            self.cancel_timers(member_id)
        for regex in sorted(self.group.regexes):
            if not self.group.regex_subscriber_count(regex):
                self.write(log.regex_tombstone(self._group_id, regex))
        self.arm_regex_refresh()
        self.update_epoch(always=True)


def _wants(member: ConsumerMember) -> tuple[frozenset[str], str, str | None]:
    return (member.subscribed_topic_names, member.subscribed_topic_regex, member.server_assignor)


def assignor_name(state: GroupState, group: ConsumerGroup) -> str:
    """The assignor that most members ask for, or the first of those that are configured."""
    configured = state.config.words("group.consumer.assignors")
    preferred = group.preferred_assignor()
    return preferred if preferred in configured else configured[0]


def assignor_input(
    group: ConsumerGroup, image: Image
) -> tuple[dict[str, MemberSpec], dict[bytes, int]]:
    """The members and the partitions of their topics, as assignors want them."""
    topics = [image.topics.get(name) for name in group.subscribed_topics]
    counts = {topic.id: len(topic.partitions) for topic in topics if topic is not None}
    members = {
        member_id: MemberSpec(
            topic_ids=group.topic_ids_of(member, image),
            instance_id=member.instance_id,
            current=group.target.get(member_id, {}),
        )
        for member_id, member in group.members.items()
    }
    return members, counts
