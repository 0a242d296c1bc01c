"""A group of the classic protocol: its members, its generation and its state. Data and questions.

The broker counts votes and passes bytes on: what a protocol's metadata and assignments mean is
known to the clients alone (a consumer, Connect and Streams bring different ones). The one
exception is which topics consumers subscribe to: offsets of other topics may be deleted or expire.

`classic` and `classic.rebalance` move the states; `classic.records` says what of this is logged:
the generation with its members and assignments, once it is complete. Who is joining is forgotten
by a crash, and joins again.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from chronik.coordinator.effects import Token
from chronik.protocol.errors import ErrorCode, KafkaError, ProtocolError
from chronik.protocol.messages.consumer_protocol import decode_subscription

CONSUMER_PROTOCOL_TYPE = "consumer"


class ClassicState(Enum):
    """Kafka's names, as DescribeGroups shows them."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(slots=True, kw_only=True)
class ClassicMember:
    """One member, and the requests of it that wait."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]  # (name, metadata), the member's favourite first
    assignment: bytes = b""
    # Soft: its JoinGroup and its SyncGroup that wait, and whether it never had an answer. Without
    # one it has no id and cannot send heartbeats.
    join_token: Token | None = field(default=None, compare=False)
    sync_token: Token | None = field(default=None, compare=False)
    is_new: bool = field(default=False, compare=False)

    def metadata(self, protocol: str) -> bytes:
        """What the member said under this protocol."""
        return next((data for name, data in self.protocols if name == protocol), b"")

    def vote(self, candidates: Iterable[str]) -> str:
        """The protocol among these that the member likes best."""
        return next(name for name, _ in self.protocols if name in candidates)


@dataclass(slots=True, kw_only=True)
class ClassicGroup:
    """One group of the classic protocol; without a protocol type it only holds offsets."""

    group_id: str
    state: ClassicState = ClassicState.EMPTY
    state_timestamp_ms: int = 0  # when it came into this state; an empty group's offsets expire
    generation_id: int = 0
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str | None = None
    members: dict[str, ClassicMember] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)  # instance id to member id
    # Soft, here and below: forgotten by a crash. Who was given an id and is not yet back with it.
    pending_members: set[str] = field(default_factory=set, compare=False)
    # Who joined this generation and has not asked for its assignment yet.
    pending_sync: set[str] = field(default_factory=set, compare=False)
    # The first rebalance of an empty group waits for more members: so long at once, and so much
    # longer at most, if someone came meanwhile.
    is_first_rebalance: bool = field(default=False, compare=False)
    delay_ms: int = field(default=0, compare=False)
    delay_left_ms: int = field(default=0, compare=False)
    joined_while_delayed: bool = field(default=False, compare=False)
    # The topics that a generation of consumers subscribes to; None if that cannot be known.
    subscribed_topics: frozenset[str] | None = None

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    @property
    def is_empty(self) -> bool:
        return self.state is ClassicState.EMPTY

    @property
    def awaiting_join_count(self) -> int:
        return sum(member.join_token is not None for member in self.members.values())

    @property
    def has_all_joined(self) -> bool:
        """Whether there is nobody left to wait for."""
        return not self.pending_members and self.awaiting_join_count == len(self.members)

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def move_to(self, state: ClassicState, now_ms: int) -> None:
        """Come into another state."""
        self.state = state
        self.state_timestamp_ms = now_ms

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Whether someone with these protocols can become or stay a member."""
        if self.state is ClassicState.EMPTY:
            return bool(protocol_type) and any(True for _ in names)
        return protocol_type == self.protocol_type and any(map(self._is_known_to_all, names))

    def _is_known_to_all(self, protocol: str) -> bool:
        members = self.members.values()
        return all(any(protocol == name for name, _ in each.protocols) for each in members)

    def select_protocol(self) -> str:
        """The one that all know and most members like best; of several, the one named first."""
        first = next(iter(self.members.values()))
        candidates = {name for name, _ in first.protocols if self._is_known_to_all(name)}
        votes: dict[str, int] = {}
        for member in self.members.values():
            vote = member.vote(candidates)
            votes[vote] = votes.get(vote, 0) + 1
        return max(votes, key=votes.__getitem__)

    def find_subscribed_topics(self) -> None:
        """Look into the subscriptions of this generation, if they are those of consumers."""
        self.subscribed_topics = None
        if self.protocol_type is None:
            return
        if not self.members:
            self.subscribed_topics = frozenset()
        elif self.uses_consumer_protocol and self.protocol_name is not None:
            topics: set[str] = set()
            try:
                for member in self.members.values():
                    topics.update(
                        decode_subscription(member.metadata(self.protocol_name))[1].topics
                    )
            except ProtocolError:
                return  # A client that calls itself a consumer and speaks otherwise.
            self.subscribed_topics = frozenset(topics)

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether members read this topic; in doubt, consumers do."""
        if self.subscribed_topics is None:
            return self.uses_consumer_protocol
        return topic in self.subscribed_topics

    def check_member(self, member_id: str, instance_id: str | None) -> None:
        """Refuse whoever is no member, or was one until another took its instance id."""
        if instance_id is not None:
            known = self.static_members.get(instance_id)
            if known is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            if known != member_id:
                raise KafkaError(ErrorCode.FENCED_INSTANCE_ID)
        if member_id not in self.members:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)

    def check_generation(self, member_id: str, instance_id: str | None, generation_id: int) -> None:
        """Refuse whoever is no member of this generation."""
        self.check_member(member_id, instance_id)
        if generation_id != self.generation_id:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)

    def check_commit(
        self, member_id: str, instance_id: str | None, generation_id: int, is_transactional: bool
    ) -> None:
        """Refuse offsets of whoever may not commit any now."""
        if generation_id < 0 and self.is_empty:
            return  # An administrator, or a consumer that does not use membership.
        if generation_id >= 0 or member_id or instance_id is not None:
            self.check_generation(member_id, instance_id, generation_id)
        elif not is_transactional:
            # Transactional producers could not name their member before version 3.
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        if not is_transactional and self.state is ClassicState.COMPLETING_REBALANCE:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
