"""The values of Raft: entries, members, and the state that must survive a crash.

The three kinds of entry are different types on disk and on the wire. None is ever decoded as
another: a no-op holds nothing, a command holds metadata records, a configuration holds members.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

FIRST_INDEX: Final = 1  # Index 0 means "before the first entry".


class EntryKind(Enum):
    """What an entry holds. The value is its name on disk."""

    NO_OP = "no-op"
    COMMAND = "command"
    CONFIGURATION = "configuration"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry of the log. `data` is opaque here, except that of a configuration."""

    term: int
    index: int
    kind: EntryKind
    data: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class HardState:
    """What a voter must not forget: its term, whom it voted for in it, what was committed."""

    term: int = 0
    vote: int | None = None
    commit_index: int = 0


@dataclass(frozen=True, slots=True)
class Membership:
    """Who votes and who only listens. A majority is one of voters.

    A member may be bound to the id of its data directory. Whoever comes under its node id with
    another directory has forgotten what the member promised, and is none.
    """

    voters: frozenset[int] = frozenset()
    learners: frozenset[int] = frozenset()
    directories: Mapping[int, str] = field(default_factory=dict, hash=False)

    @property
    def members(self) -> frozenset[int]:
        return self.voters | self.learners

    @property
    def quorum(self) -> int:
        return len(self.voters) // 2 + 1


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state machine up to an index, and who the members were. The data is the runtime's."""

    index: int = 0
    term: int = 0
    membership: Membership = field(default_factory=Membership)


class Role(Enum):
    """What a node is in its term."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftConfig:
    """Times in milliseconds. The lease must end before the earliest election could.

    A leader's lease counts from when it sent the heartbeat that a quorum answered; a voter refuses
    other leaders for `election_ms_min` from when it got that heartbeat, or from when it started.
    The difference is what two clocks may disagree by meanwhile.
    """

    node_id: int
    directory_id: str = ""  # of the data directory that holds this node's vote and log
    heartbeat_ms: int = 75
    election_ms_min: int = 400
    election_ms_max: int = 700
    lease_ms: int = 300
    # A pre-vote that nobody answers is asked again so soon, or up to twice as late: a voter that
    # keeps a promise is silent, and its promise ends any moment. A pre-vote changes nothing.
    pre_vote_ms: int = 100
    append_bytes_max: int = 1024 * 1024  # of entries in one message
    inflight_max: int = 16  # appends on their way to one follower

    def __post_init__(self) -> None:
        assert self.heartbeat_ms < self.lease_ms < self.election_ms_min < self.election_ms_max
