"""A group of the consumer protocol (KIP-848): its members, epochs and assignments. Data only.

Three epochs drive a group. The group epoch rises when what is to be assigned changes: members,
subscriptions, topics. The assignment epoch says for which group epoch the target was computed.
Each member's epoch follows as it gives back and takes over partitions, at its own pace.

Everything here but the fields marked as soft is the replay of records (`consumer.records`), so a
reloaded group equals the live one. Members are values: a change makes another one.

Invariant: a partition has at most one owner, assigned to it or pending its revocation.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Final, TypeAlias

from chronik.metadata.image import Image

# Topic id to partitions: what a member shall own.
Assignment: TypeAlias = Mapping[bytes, frozenset[int]]
# Topic id to partition to the epoch in which it was given: what a member owns.
Owned: TypeAlias = Mapping[bytes, Mapping[int, int]]

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
STATIC_LEAVE_EPOCH: Final = -2  # a static member that will be back


class ConsumerState(Enum):
    """Kafka's names, as ConsumerGroupDescribe shows them."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class MemberState(IntEnum):
    """Kafka's numbers, as they are logged."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1  # must give partitions back before it comes to its next epoch
    UNRELEASED_PARTITIONS = 2  # waits for partitions that others have not given back
    UNKNOWN = 127


@dataclass(frozen=True, slots=True)
class ClassicMetadata:
    """What a member brought that speaks the classic protocol."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]  # (name, metadata), the member's favourite first

    @property
    def protocol_name(self) -> str:
        return self.protocols[0][0]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMember:
    """One member: who it is, what it wants, and how far it has come."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    subscribed_topic_names: frozenset[str] = frozenset()
    subscribed_topic_regex: str = ""  # empty for none
    server_assignor: str | None = None
    classic: ClassicMetadata | None = None
    member_epoch: int = JOIN_EPOCH
    previous_member_epoch: int = JOIN_EPOCH
    state: MemberState = MemberState.STABLE
    assigned: Owned = field(default_factory=dict)
    pending_revocation: Owned = field(default_factory=dict)

    def is_reconciled_to(self, epoch: int) -> bool:
        """Whether nothing is left to do for this member."""
        return self.state is MemberState.STABLE and self.member_epoch == epoch

    def owned_partitions(self) -> Iterator[tuple[bytes, int]]:
        """All that nobody else may own meanwhile."""
        for owned in (self.assigned, self.pending_revocation):
            for topic_id, partitions in owned.items():
                for partition in partitions:
                    yield topic_id, partition

    def assignment_epoch(self, topic_id: bytes, partition: int) -> int | None:
        """Since which epoch the member owns a partition; None if it does not."""
        for owned in (self.assigned, self.pending_revocation):
            epoch = owned.get(topic_id, _NO_PARTITIONS).get(partition)
            if epoch is not None:
                return epoch
        return None


_NO_PARTITIONS: Final[Mapping[int, int]] = {}


@dataclass(frozen=True, slots=True)
class ResolvedRegex:
    """The topics that a regular expression matched, and when."""

    topics: frozenset[str]
    version: int
    timestamp_ms: int


@dataclass(slots=True, kw_only=True)
class ConsumerGroup:
    """One group of the consumer protocol."""

    group_id: str
    group_epoch: int = 0
    metadata_hash: int = 0
    assignment_epoch: int = 0
    assignment_timestamp_ms: int = 0
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)  # instance id to member id
    target: dict[str, Assignment] = field(default_factory=dict)
    owners: dict[bytes, dict[int, str]] = field(default_factory=dict)
    regexes: dict[str, ResolvedRegex] = field(default_factory=dict)
    # Soft: the topics may have changed since the hash was computed (it has just been loaded).
    needs_refresh: bool = field(default=False, compare=False)
    # Soft: until then members are asked to come often, see `heartbeat_interval_ms`.
    settling_until_ms: int = field(default=0, compare=False)
    # Soft: what `subscribed_topics` and `is_busy` found; None once that may have changed.
    subscribed: frozenset[str] | None = field(default=None, compare=False, repr=False)
    busy: bool | None = field(default=None, compare=False, repr=False)

    @property
    def state(self) -> ConsumerState:
        if not self.members:
            return ConsumerState.EMPTY
        if self.group_epoch > self.assignment_epoch:
            return ConsumerState.ASSIGNING
        epoch = self.assignment_epoch
        if all(member.is_reconciled_to(epoch) for member in self.members.values()):
            return ConsumerState.STABLE
        return ConsumerState.RECONCILING

    @property
    def subscribed_topics(self) -> frozenset[str]:
        """The topics that any member subscribes to."""
        if self.subscribed is None:
            found: set[str] = set()
            for names in {member.subscribed_topic_names for member in self.members.values()}:
                found |= names
            for resolved in self.regexes.values():
                found |= resolved.topics
            self.subscribed = frozenset(found)
        return self.subscribed

    @property
    def is_busy(self) -> bool:
        """Whether a member that is here has not come to the target yet."""
        if self.busy is None:
            done = (self.assignment_epoch, STATIC_LEAVE_EPOCH)
            self.busy = self.group_epoch > self.assignment_epoch or not all(
                member.state is MemberState.STABLE and member.member_epoch in done
                for member in self.members.values()
            )
        return self.busy

    def forget_findings(self) -> None:
        """Members, epochs or topics have changed: look again when asked."""
        self.subscribed = None
        self.busy = None

    def topics_of(self, member: ConsumerMember) -> frozenset[str]:
        """The topics that this member subscribes to, by name or by its regular expression."""
        resolved = self.regexes.get(member.subscribed_topic_regex)
        if resolved is None:
            return member.subscribed_topic_names
        return member.subscribed_topic_names | resolved.topics

    def topic_ids_of(self, member: ConsumerMember, image: Image) -> frozenset[bytes]:
        """The same as ids of topics that exist."""
        topics = (image.topics.get(name) for name in self.topics_of(member))
        return frozenset(topic.id for topic in topics if topic is not None)

    def owner(self, topic_id: bytes, partition: int) -> str | None:
        """The member that owns a partition or has not given it back yet."""
        partitions = self.owners.get(topic_id)
        return None if partitions is None else partitions.get(partition)

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        """The member with this instance id."""
        if instance_id is None:
            return None
        member_id = self.static_members.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def waits_for_others(self, member: ConsumerMember) -> bool:
        """Whether a partition of the member's target is still owned by another one."""
        for topic_id, partitions in self.target.get(member.member_id, {}).items():
            for partition in partitions:
                if self.owner(topic_id, partition) not in (None, member.member_id):
                    return True
        return False

    def regex_subscriber_count(self, regex: str) -> int:
        """How many members subscribe by this regular expression."""
        return sum(member.subscribed_topic_regex == regex for member in self.members.values())

    def preferred_assignor(self) -> str | None:
        """The assignor that most members ask for, if any does."""
        votes: dict[str, int] = {}
        for member in self.members.values():
            if member.server_assignor is not None:
                votes[member.server_assignor] = votes.get(member.server_assignor, 0) + 1
        return max(votes, key=lambda name: (votes[name], name)) if votes else None

    def put_member(self, member: ConsumerMember) -> None:
        """The member is now this; what it owned before and does not own any more is free."""
        before = self.members.get(member.member_id)
        if before is not None:
            self._unlink(before)
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        for topic_id, partition in member.owned_partitions():
            self.owners.setdefault(topic_id, {})[partition] = member.member_id
        self.forget_findings()

    def remove_member(self, member_id: str) -> None:
        """The member is gone and owns nothing."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._unlink(member)
        self.forget_findings()

    def _unlink(self, member: ConsumerMember) -> None:
        # Another member may have been put in its place or own its partitions by now: then the
        # entry is the other one's.
        if (
            member.instance_id is not None
            and self.static_members.get(member.instance_id) == member.member_id
        ):
            del self.static_members[member.instance_id]
        for topic_id, partition in member.owned_partitions():
            partitions = self.owners.get(topic_id)
            if partitions is not None and partitions.get(partition) == member.member_id:
                del partitions[partition]
                if not partitions:
                    del self.owners[topic_id]
