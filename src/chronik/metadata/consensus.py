"""Raft's Ready loop: save, send, apply, in that order, around one `RaftNode` and its journal.

Saving is not waited for. Entries go to the group commit; a new term or vote, a snapshot or a cut
log goes to a thread, and what follows it waits its turn. What promises that something is on disk
(vote replies, append acks, this node's own share of a majority) is said when it is.

Invariants
    The journal is written in the order of the Readies.
    The commit index on disk never passes the end of the log on disk.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from chronik.clock import Clock
from chronik.metadata.journal import Journal, UnusableMetadata
from chronik.metadata.records import Record
from chronik.metrics import RAFT_GAP_BOUNDS_S, Histogram
from chronik.raft.messages import InstallSnapshot, Message
from chronik.raft.node import RaftNode, Ready
from chronik.raft.types import (
    Entry,
    HardState,
    Membership,
    RaftConfig,
    Role,
    Snapshot,
)
from chronik.storage.commit import GroupCommit
from chronik.storage.disk import Disk
from chronik.storage.errors import StorageError, is_no_room

logger = logging.getLogger(__name__)

RETRY_S: Final = 0.5  # after a write for which there was no room
COMMIT_INDEX_INTERVAL_S: Final = 1.0  # how old the commit index on disk may be


class Consensus:
    """One member of the Raft group, with its disk and its network."""

    def __init__(
        self,
        *,
        node_id: int,
        directory_id: str,
        journal: Journal,
        commit: GroupCommit,
        disk: Disk,
        clock: Clock,
        send: Callable[[Message], None],
        on_committed: Callable[[Sequence[Entry]], None],
        on_snapshot: Callable[[Snapshot, bytes], None],
        on_role: Callable[[], None],
        on_members: Callable[[], None],
        on_full: Callable[[BaseException], None],
        on_failed: Callable[[BaseException], None],
        on_broken: Callable[[BaseException], None],
    ) -> None:
        self._node_id = node_id
        self._directory_id = directory_id
        self._journal = journal
        self._commit = commit
        self._disk = disk
        self._clock = clock
        self._send = send
        self._on_committed = on_committed
        self._on_snapshot = on_snapshot
        self._on_role = on_role
        self._on_members = on_members
        self._on_full = on_full
        self.full: BaseException | None = None  # why nothing can be written, while that is so
        self._on_failed = on_failed
        self._on_broken = on_broken
        self._queue: deque[Ready] = deque()
        self._written: deque[tuple[int, Ready]] = deque()  # until this index is on disk
        self._snapshots: dict[int, bytes] = {}  # by index: what came, until it is written
        self._is_busy = False  # a thread has the journal
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_pumping = False
        self._is_started = False
        self._is_stopped = False
        self._is_broken = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._retry_timer: asyncio.TimerHandle | None = None
        self._known_role: tuple[Role, int | None, int] | None = None
        self._heard_s: dict[int, float] = {}  # when each peer sent something last
        self.gaps = Histogram(RAFT_GAP_BOUNDS_S)  # between two messages of one peer
        self._known_members: Membership | None = None
        self.node: RaftNode

    # Begin and end.

    def load(self, founders: Membership) -> tuple[list[Record], list[Entry]]:
        """Recover the journal; founders count if the log never named members. Blocking.

        Returns the records of the snapshot and the entries after it.
        """
        state = self._journal.load()
        snapshot, records = self._journal.load_snapshot() or (Snapshot(), [])
        if not snapshot.membership.voters:
            snapshot = replace(snapshot, membership=founders)
        entries = list(self._journal.entries(snapshot.index + 1))
        self.node = RaftNode.restore(
            RaftConfig(node_id=self._node_id, directory_id=self._directory_id),
            state=state,
            snapshot=snapshot,
            entries=entries,
            founding=founders,
            jitter=random.random,
            now_ms=self._now_ms(),
        )
        return records, entries

    def start(self, applied_index: int) -> None:
        """Take part. Until the loop runs, what must be saved is saved here and now."""
        self.node.applied_index = applied_index
        self.node.tick(self._now_ms())
        self._pump()
        self._is_started = True

    def run(self) -> None:
        """The loop runs: deadlines count from now on."""
        self._arm()

    def stop(self) -> None:
        """Take part no more."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()

    @property
    def is_alone(self) -> bool:
        """Whether nobody else has a say, or listens."""
        return self.node.membership.members == {self._node_id}

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)

    # What comes in.

    def propose(self, data: bytes) -> int:
        """Append a command as the leader; its index. `pump` must follow."""
        return self.node.propose(data)

    def step(self, message: Message, data: bytes = b"") -> None:
        """A message came from another node; a snapshot comes with its data."""
        if isinstance(message, InstallSnapshot):
            self._snapshots[message.snapshot.index] = data
        self._note_gap(message.sender)
        with self._guarded():
            self.node.step(message, self._now_ms())
        self.pump()

    def _note_gap(self, sender: int) -> None:
        """Heartbeats come in time, or something holds them up: here or there."""
        if self.node.leader_id not in (sender, self._node_id):
            return  # Two followers have nothing to say to each other.
        now_s = self._clock.monotonic()
        heard_s = self._heard_s.get(sender)
        self._heard_s[sender] = now_s
        if heard_s is not None:
            self.gaps.observe(now_s - heard_s)

    def propose_membership(self, membership: Membership) -> int:
        """Change who the members are, as the leader; the entry's index. `pump` must follow."""
        return self.node.propose_membership(membership)

    def transfer(self, to: int) -> None:
        """Hand leadership over."""
        self.node.transfer(to, self._now_ms())
        self.pump()

    def heard(self) -> frozenset[int]:
        """As the leader: the members that answered lately, this one included."""
        since_ms = self._now_ms() - self.node.config.election_ms_max
        others = self.node.progress.items()
        # Time counts from the election; only a heartbeat that was answered tells of anybody.
        heard = (each for each, told in others if told.answered_round and told.heard_ms >= since_ms)
        return frozenset([self._node_id, *heard])

    def pump(self) -> None:
        """Save, send and apply what there is."""
        with self._guarded():
            self._pump()
        self._arm()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """A broken promise of Raft ends the node: what it would do next cannot be trusted."""
        try:
            yield
        except (AssertionError, UnusableMetadata) as error:
            self.broken(error)

    def broken(self, error: BaseException) -> None:
        """Something that cannot be is: take part no more, and say so."""
        if not self._is_broken:
            self._is_broken = True
            self.stop()
            self._on_broken(error)

    def on_durable(self) -> None:
        """The group commit has put more of the journal on disk."""
        with self._guarded():
            self._tell_saved()
        self.pump()

    # Deadlines.

    def _arm(self) -> None:
        if self.is_alone or not self._is_started or self._is_stopped:
            return  # Nobody else votes, and nobody wants a heartbeat.
        deadline_ms = self.node.next_deadline_ms
        if self._timer is not None:
            if self._timer_ms <= deadline_ms:
                return
            self._timer.cancel()
        self._timer_ms = deadline_ms
        delay_s = max(deadline_ms - self._now_ms(), 0) / 1000
        loop = asyncio.get_running_loop()
        # After a stall the sockets are read first: what they bring may be the leader's heartbeat.
        self._timer = loop.call_later(delay_s, lambda: loop.call_soon(self._tick))

    def _tick(self) -> None:
        self._timer = None
        if not self._is_stopped:
            with self._guarded():
                self.node.tick(self._now_ms())
            self.pump()

    # The loop.

    def _pump(self) -> None:
        if self._is_pumping:
            return  # The loop that runs takes it along.
        self._is_pumping = True
        try:
            while not self._is_stopped and (ready := self.node.ready()) is not None:
                self.node.advance(ready)
                if ready.snapshot is not None:
                    # Before what follows it is applied; it need not be on disk for that.
                    self._on_snapshot(ready.snapshot, self._snapshots[ready.snapshot.index])
                self._queue.append(ready)
                self._write()
                # The rest does not depend on this node's disk, be it slow or full. The messages
                # promise nothing about it, and what is committed is on the disks of a majority:
                # should this node forget it in a crash, it comes again from there.
                for message in ready.messages:
                    self._send(message)
                # Who leads no more must know it before it takes another's entry for its own.
                self._tell_role(ready)
                if ready.committed:
                    self._on_committed(ready.committed)
            self._forget_snapshots()
            if self.node.membership is not self._known_members:
                self._known_members = self.node.membership
                self._on_members()
        finally:
            self._is_pumping = False

    def _forget_snapshots(self) -> None:
        """A later one may have come while an earlier one waits for the disk: both are needed."""
        if self._snapshots:
            waiting = [ready.snapshot.index for ready in self._queue if ready.snapshot is not None]
            self._snapshots = {index: self._snapshots[index] for index in waiting}

    def _tell_role(self, ready: Ready) -> None:
        role = (ready.role, ready.leader_id, ready.term)
        if role != self._known_role:
            self._known_role = role
            self._heard_s.clear()
            self._on_role()
            self._on_members()  # Whom to talk to depends on who leads, too.

    def _write(self) -> None:
        """Write what is queued, until something needs a thread, or there is no room.

        What cannot be written stays queued, and all that promises that it is on disk waits.
        """
        try:
            while self._queue and not self._is_busy and self.full is None:
                ready = self._queue[0]
                if self._is_slow(ready) and self._is_started:
                    self._run(lambda: self._write_slowly(ready), self._slow_is_done)  # noqa: B023
                    return
                self._write_slowly(ready)
                self._write_entries(ready)
                self._queue.popleft()
        except (OSError, StorageError) as error:
            self._cannot_write(error)

    def _run(
        self, work: Callable[[], None], then: Callable[["asyncio.Future[None]"], None]
    ) -> None:
        """Give the journal to a thread. Whoever waits may be cancelled; the thread goes on."""

        def done(future: "asyncio.Future[None]") -> None:
            self._is_busy = False
            self._idle.set()
            then(future)

        self._is_busy = True
        self._idle.clear()
        self._disk.run(work).add_done_callback(done)

    async def finished(self) -> None:
        """Wait until no thread has the journal. Nothing more is begun: `stop` was called."""
        assert self._is_stopped
        await self._idle.wait()

    def _is_slow(self, ready: Ready) -> bool:
        return (
            ready.snapshot is not None
            or ready.replaced_from is not None
            or self._has_promise(ready.hard_state)
        )

    def _has_promise(self, state: HardState | None) -> bool:
        """Whether a hard state says more than how far the log is committed."""
        saved = self._journal.state
        return state is not None and (state.term, state.vote) != (saved.term, saved.vote)

    def _write_slowly(self, ready: Ready) -> None:
        """Blocks: what changes a small file, or shortens the log."""
        state = ready.hard_state
        if state is not None and self._has_promise(state):
            self._journal.save_vote(state)
        if ready.snapshot is not None:
            self._journal.install(ready.snapshot, self._snapshots[ready.snapshot.index])
        if ready.replaced_from is not None:
            self._journal.truncate(ready.replaced_from)

    def _slow_is_done(self, work: "asyncio.Future[None]") -> None:
        if work.cancelled() or self._is_stopped:
            return
        error = work.exception()
        if error is not None:
            # Without room nothing was promised yet, and the same is written again later.
            (self._cannot_write if is_no_room(error) else self._fail)(error)
            return
        try:
            ready = self._queue[0]
            self._cap_written()
            self._write_entries(ready)
            self._queue.popleft()
        except (OSError, StorageError) as failure:
            self._cannot_write(failure)
        self._go_on()

    def _go_on(self) -> None:
        """Write what waited for the journal, then do what follows from that."""
        self._write()
        self.pump()

    def _cap_written(self) -> None:
        """The journal may be shorter now: what is void waits for no disk."""
        last_index = self._journal.last_index
        self._written = deque((min(index, last_index), ready) for index, ready in self._written)

    def _write_entries(self, ready: Ready) -> None:
        for entry in ready.entries:
            if entry.index > self._journal.last_index:  # Else it is there since an earlier try.
                self._journal.append(entry)
        if ready.entries:
            self._commit.add(self._journal.log)
        self._written.append((self._journal.last_index, ready))
        self._tell_saved()

    def _tell_saved(self) -> None:
        """Say what may be said of what is on disk now."""
        durable_index = self._journal.log.durable_offset - 1
        while self._written and self._written[0][0] <= durable_index:
            _, ready = self._written.popleft()
            self.node.saved(ready)
            for message in ready.after_save:
                self._send(message)

    def _cannot_write(self, error: BaseException) -> None:
        """A full disk leaves the log as it was, and may have room again; the rest is final."""
        if self._journal.log.failed is not None or not self._is_started:
            self._fail(error)
            return
        self.full = error
        self._on_full(error)
        if self._retry_timer is not None:
            self._retry_timer.cancel()  # Whoever has just tried in between has begun another wait.
        self._retry_timer = asyncio.get_running_loop().call_later(RETRY_S, self.retry)

    def retry(self) -> bool:
        """Try again to write what did not fit; whether all of it does now."""
        if self.full is not None and not self._is_stopped:
            self.full = None
            self._go_on()
        return self.full is None

    def _fail(self, error: BaseException) -> None:
        self.stop()
        self._on_failed(error)

    # The commit index on disk.

    async def save_commit_index(self) -> None:
        """For ever: so that a start shows what was committed before it has heard of anybody."""
        while True:
            await asyncio.sleep(COMMIT_INDEX_INTERVAL_S)
            # Alone, whatever is in the log is committed.
            if not self.is_alone and not self._is_busy and not self._queue and not self._is_stopped:
                self._save_commit_index()

    def _save_commit_index(self) -> None:
        saved = self._journal.state
        durable_index = self._journal.log.durable_offset - 1
        commit_index = min(self.node.commit_index, durable_index)
        if commit_index > saved.commit_index:
            state = replace(saved, commit_index=commit_index)
            self._run(lambda: self._journal.save_vote(state), self._commit_index_saved)

    def _commit_index_saved(self, work: "asyncio.Future[None]") -> None:
        error = None if work.cancelled() else work.exception()
        if error is not None:
            # The file is as it was. What must be in it is written, and refused, by others.
            logger.warning("commit index not saved", extra={"error": str(error)})
        if not self._is_stopped:
            self._go_on()
