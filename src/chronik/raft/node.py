"""Consensus, without a clock, a socket or a disk: messages and time in, one `Ready` out.

    tick(now_ms)            time has passed: elections, heartbeats, leases
    step(message, now_ms)   a message came
    propose(...)            a leader appends an entry
    ready()                 what to save, send and apply now
    advance(ready)          the runtime has taken it over
    saved(ready)            and it is on disk

The order matters, and `Ready` says it field by field. Saving may take its time: heartbeats, their
answers and appends to followers go on meanwhile, because they promise nothing about this node's
own disk. Votes, append acks and this node's own share of a majority wait for it.

Invariants, which the tests check one by one
    At most one leader is elected in a term: votes are saved before they are sent.
    A leader never changes or removes entries of its own log.
    A leader counts a majority only for an entry of its own term; earlier ones follow it.
    A node that was just started votes for nobody, and stands for no election, for as long as a
    leader's lease could last: it has forgotten what it promised. A group of one needs no promise.
    A lease ends before a leader hands over, and does not come back in its term.

See Ongaro's dissertation: 3 (basics), 3.10 (transfer), 4 (membership), 6.4 (reads), 9.6 (pre-vote).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import assert_never

from chronik.raft.elections import Elections
from chronik.raft.following import Following
from chronik.raft.log import RaftLog
from chronik.raft.members import Members
from chronik.raft.messages import (
    AppendEntries,
    AppendReply,
    InstallSnapshot,
    Message,
    RequestVote,
    TermMessage,
    TimeoutNow,
    VoteReply,
)
from chronik.raft.types import Entry, HardState, Membership, RaftConfig, Role, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """What a turn has come to: send `messages`, apply, save in order, then send `after_save`."""

    # Saved in this order, and after whatever earlier ones asked to save. The commit index in it is
    # never beyond what was on disk before, so a crash in between leaves a log that reaches it.
    hard_state: HardState | None
    snapshot: Snapshot | None  # takes the place of the whole log and of the state machine
    replaced_from: int | None  # entries from here on are void, and removed
    entries: tuple[Entry, ...]
    must_sync: bool  # else only the commit index changed, which a crash may forget

    messages: tuple[Message, ...]  # sent at once
    after_save: tuple[Message, ...]  # sent once all of the above is on disk
    committed: tuple[Entry, ...]  # applied in order, after `snapshot`; on disk here or elsewhere
    reads: tuple[tuple[object, int], ...]  # these may be answered once this index is applied
    role: Role
    leader_id: int | None
    term: int


class RaftNode(Elections, Following):
    """One member of a group."""

    __slots__ = ()

    @classmethod
    def restore(
        cls,
        config: RaftConfig,
        *,
        state: HardState,
        snapshot: Snapshot,
        entries: Sequence[Entry],
        founding: Membership,
        jitter: Callable[[], float],
        now_ms: int,
    ) -> "RaftNode":
        """A node with what its disk holds; `founding` are the members before the log names any."""
        log = RaftLog(snapshot=snapshot, entries=list(entries))
        assert state.term >= log.last_term, "the log is of a later term than the vote"
        assert state.commit_index <= log.last_index, "the log has lost committed entries"
        commit_index = max(state.commit_index, snapshot.index)
        state = HardState(term=state.term, vote=state.vote, commit_index=commit_index)
        members = Members.restore(founding, snapshot, log.entries)
        return cls(config, log, state, members, jitter, now_ms)

    def tick(self, now_ms: int) -> None:
        """Time has passed."""
        self.now_ms = max(self.now_ms, now_ms)
        if self.role is Role.LEADER:
            self._tick_leader()
        else:
            self._tick_follower()

    @property
    def next_deadline_ms(self) -> int:
        """When `tick` has something to do again."""
        return self._heartbeat_at_ms if self.role is Role.LEADER else self._election_at_ms

    def step(self, message: Message, now_ms: int) -> None:
        """A message has come."""
        self.now_ms = max(self.now_ms, now_ms)
        if isinstance(message, RequestVote):
            self._on_request_vote(message)
        elif isinstance(message, VoteReply) and message.is_pre_vote and message.is_granted:
            self._on_vote_reply(message)  # Its term is one that nobody has begun yet.
        elif message.term < self.term:
            self._answer_stale(message)
        else:
            if message.term > self.term:
                self._become_follower(message.term, None)
            self._step(message)

    def _step(self, message: TermMessage) -> None:
        """A message of this term."""
        match message:
            case VoteReply():
                self._on_vote_reply(message)
            case AppendEntries():
                self._on_append(message)
            case AppendReply():
                self._on_append_reply(message)
            case InstallSnapshot():
                self._on_snapshot(message)
            case TimeoutNow():
                self._on_timeout_now(message)
            case _:
                assert_never(message)

    def ready(self) -> Ready | None:
        """What there is to do now, if anything; `advance` must follow before anything else."""
        if self.role is Role.LEADER:
            self._flush()
        log = self.log
        entries = log.between(log.handed_index + 1, log.last_index)
        committed = log.between(self.applied_index + 1, self.commit_index)
        state = self._state_to_save()
        must_sync = bool(entries or self._snapshot or self._has_voted)
        told = (self.role, self.leader_id, self.term)
        is_work = must_sync or self._messages or self._after_save or committed
        if not (is_work or state is not None or self._answered_reads or told != self._told):
            return None
        return Ready(
            hard_state=state,
            snapshot=self._snapshot,
            replaced_from=self._replaced_from,
            entries=entries,
            must_sync=must_sync,
            messages=tuple(self._messages),
            after_save=tuple(self._after_save),
            committed=committed,
            reads=tuple(self._answered_reads),
            role=self.role,
            leader_id=self.leader_id,
            term=self.term,
        )

    @property
    def _has_voted(self) -> bool:
        state, handed = self.state, self._handed_state
        return state.vote != handed.vote or state.term != handed.term

    def _state_to_save(self) -> HardState | None:
        """The hard state as far as the log on disk goes, if the runtime does not have it yet."""
        handed = self._handed_state
        on_disk = min(self.commit_index, self.log.saved_index)
        if on_disk <= handed.commit_index and not self._has_voted:
            return None
        commit_index = max(on_disk, handed.commit_index)
        return HardState(term=self.term, vote=self.state.vote, commit_index=commit_index)

    def advance(self, ready: Ready) -> None:
        """The runtime has taken over what `ready` said, and will do it in order."""
        self._messages.clear()
        self._after_save.clear()
        self._answered_reads.clear()
        self._replaced_from = None
        self._snapshot = None
        self._unsaved.append(ready)
        self._told = (ready.role, ready.leader_id, ready.term)
        if ready.hard_state is not None:
            self._handed_state = ready.hard_state
        if ready.committed:
            self.applied_index = ready.committed[-1].index
        if ready.entries or ready.snapshot:
            self.log.hand_over()

    def saved(self, ready: Ready) -> None:
        """What a `Ready` asked to save, if anything, is on disk: told for each, in their order."""
        assert self._unsaved.popleft() is ready, "saved out of order"
        if ready.entries or ready.snapshot:
            self.log.saved()
            if self.role is Role.LEADER:
                self._maybe_commit()
                self._count_rounds()
        if ready.hard_state is not None:
            self._saved_state = ready.hard_state
            self._own_state_saved()

    def compact(self, snapshot: Snapshot) -> None:
        """The runtime has a snapshot of its own on disk: forget the entries that it holds."""
        assert snapshot.index <= self.applied_index
        self.log.compact(snapshot)
        self.members.compact(snapshot.index)
