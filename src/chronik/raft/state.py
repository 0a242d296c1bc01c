"""The state of one member, and the steps that every role takes.

`leading`, `following` and `elections` are what a node does as each; `node` is the whole.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from chronik.raft.log import RaftLog
from chronik.raft.members import Members
from chronik.raft.messages import Message
from chronik.raft.progress import Progress
from chronik.raft.types import HardState, Membership, RaftConfig, Role, Snapshot


@dataclass(frozen=True, slots=True)
class Read:
    """Somebody who asked for a linearizable read, and the heartbeat that has to be answered."""

    token: object
    round: int


@dataclass(slots=True, eq=False)
class NodeState:
    """What a member knows and has to do."""

    config: RaftConfig
    log: RaftLog
    state: HardState
    members: Members
    jitter: Callable[[], float]  # a number from 0 to 1, chosen by whoever owns chance
    now_ms: int

    role: Role = Role.FOLLOWER
    leader_id: int | None = None
    progress: dict[int, Progress] = field(default_factory=dict)
    transferring_to: int | None = None
    applied_index: int = 0  # handed to the runtime to apply

    # For the next `Ready`.
    _messages: list[Message] = field(default_factory=list)
    _after_save: list[Message] = field(default_factory=list)
    _replaced_from: int | None = None
    _snapshot: Snapshot | None = None
    _answered_reads: list[tuple[object, int]] = field(default_factory=list)
    _handed_state: HardState = field(default_factory=HardState)
    _saved_state: HardState = field(default_factory=HardState)
    _told: tuple[Role, int | None, int] | None = None
    _unsaved: deque[object] = field(default_factory=deque)  # each `Ready` until it is on disk

    # A voter's and a candidate's.
    _votes: dict[int, bool] = field(default_factory=dict)
    _election_at_ms: int = 0
    _promised_until_ms: int = 0  # no vote before, except when the leader itself hands over
    _answered_round: int = 0

    # A leader's.
    _reads: list[Read] = field(default_factory=list)
    _round: int = 0
    _round_sent_ms: dict[int, int] = field(default_factory=dict)
    _heartbeat_at_ms: int = 0
    _quorum_check_at_ms: int = 0
    _lease_from_ms: int | None = None
    _is_lease_void: bool = False
    _transfer_ends_ms: int = 0

    def __post_init__(self) -> None:
        self._handed_state = self._saved_state = self.state
        self.applied_index = self.log.snapshot.index
        self._await_leader()
        if self._is_alone:
            self._election_at_ms = self.now_ms  # There is nobody to wait for,
        else:
            self._promise()  # and else what was promised in an earlier life is forgotten.

    @property
    def node_id(self) -> int:
        return self.config.node_id

    @property
    def term(self) -> int:
        return self.state.term

    @property
    def commit_index(self) -> int:
        return self.state.commit_index

    @property
    def membership(self) -> Membership:
        """Who counts: the newest configuration in the log, committed or not."""
        return self.members.current

    @property
    def _is_bound(self) -> bool:
        """Whether the members know this node with this data directory, or with any."""
        bound = self.membership.directories.get(self.node_id)
        return bound is None or bound == self.config.directory_id

    @property
    def is_voter(self) -> bool:
        """Whether this node's vote counts, as far as it knows."""
        return self.node_id in self.membership.voters and self._is_bound

    @property
    def _is_alone(self) -> bool:
        return self.is_voter and len(self.membership.voters) == 1

    @property
    def has_committed_in_term(self) -> bool:
        """Whether a leader knows what was committed before it."""
        return self.log.term_at(self.commit_index) == self.term

    def has_lease(self, now_ms: int) -> bool:
        """Whether nobody else can lead now, so that this node's answers are the newest."""
        if self.role is not Role.LEADER or not self.has_committed_in_term:
            return False
        if self.transferring_to is not None or self._is_lease_void:
            return False
        if self._is_alone:
            return True
        since_ms = self._lease_from_ms
        return since_ms is not None and max(now_ms, self.now_ms) < since_ms + self.config.lease_ms

    def _await_leader(self) -> None:
        """Begin to wait: whoever leads, or wins, has so long to be heard."""
        config = self.config
        spread_ms = config.election_ms_max - config.election_ms_min
        wait_ms = config.election_ms_min + round(self.jitter() * spread_ms)
        self._election_at_ms = self.now_ms + wait_ms

    def _promise(self) -> None:
        """Vote for nobody else while a leader that we heard could rely on it."""
        self._promised_until_ms = self.now_ms + self.config.election_ms_min

    def _become_follower(self, term: int, leader_id: int | None) -> None:
        if term > self.term:
            self.state = HardState(term=term, vote=None, commit_index=self.commit_index)
        self.role = Role.FOLLOWER
        self.leader_id = leader_id
        self.progress = {}
        self.transferring_to = None
        self._reads.clear()  # Whoever waits sees in `Ready` that this node leads no more.
        self._lease_from_ms = None
        self._answered_round = 0
        self._await_leader()

    def _commit(self, index: int) -> None:
        """Entries up to here are committed, which never becomes untrue."""
        if index > self.commit_index:
            assert index <= self.log.last_index
            self.state = HardState(term=self.term, vote=self.state.vote, commit_index=index)
