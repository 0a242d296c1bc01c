"""What a leader does: append, replicate, count majorities, keep its lease, hand over.

What happened since the last `Ready` is sent by `_flush` in one go: a hundred proposals of one turn
are one message to each follower, and so are the heartbeats for a hundred reads.
"""

from chronik.raft.members import encode_membership, why_not
from chronik.raft.messages import AppendEntries, AppendReply, InstallSnapshot, TimeoutNow
from chronik.raft.progress import Flow, Progress
from chronik.raft.state import NodeState, Read
from chronik.raft.types import Entry, EntryKind, Membership, Role


class NotLeader(Exception):
    """Only the leader can do this; `leader_id` is who that is, if anybody knows."""

    def __init__(self, leader_id: int | None) -> None:
        super().__init__(leader_id)
        self.leader_id = leader_id


class NotNow(Exception):
    """The leader cannot do this yet, or not any more; the message says why."""


class Leading(NodeState):
    """A node's work as the leader."""

    __slots__ = ()

    # What the runtime asks for.

    def propose(self, data: bytes) -> int:
        """Append a command; its index. It is committed once a `Ready` says so."""
        self._check_leads()
        return self._append(EntryKind.COMMAND, data).index

    def propose_membership(self, membership: Membership) -> int:
        """Change who the members are, by one voter at a time; the index of the entry."""
        self._check_leads()
        if not self.has_committed_in_term:
            # Else two leaders that each know a change only they have could have no common voter.
            raise NotNow("the leader has not committed an entry of its own term yet")
        if self.members.changed_index > self.commit_index:
            raise NotNow("another change of members is under way")
        reason = why_not(self.membership, membership)
        if reason is not None:
            raise NotNow(reason)
        for added in membership.voters - self.membership.voters:
            if self.progress[added].match_index < self.commit_index:
                raise NotNow(f"node {added} has not caught up yet")
        return self._append(EntryKind.CONFIGURATION, encode_membership(membership)).index

    def read_index(self, token: object, now_ms: int) -> None:
        """Ask up to which index to apply before a read.

        A `Ready` answers it, unless one says before that this node leads no more.
        """
        self.now_ms = max(self.now_ms, now_ms)
        self._check_leads()
        if self.has_lease(self.now_ms):
            self._answered_reads.append((token, self.commit_index))
        else:
            self._reads.append(Read(token, self._round + 1))

    def transfer(self, to: int, now_ms: int) -> None:
        """Hand leadership over as soon as the other has everything; proposals stop until then."""
        self.now_ms = max(self.now_ms, now_ms)
        self._check_leads()
        if to not in self.membership.voters or to == self.node_id:
            raise NotNow(f"node {to} is no other voter")
        self.transferring_to = to
        self._transfer_ends_ms = self.now_ms + self.config.election_ms_max
        self._maybe_hand_over()

    def snapshot_failed(self, node_id: int) -> None:
        """A snapshot did not reach its follower: find out anew what that one needs."""
        progress = self.progress.get(node_id)
        if progress is not None and progress.flow is Flow.SNAPSHOT:
            progress.probe(progress.match_index + 1)

    def _check_leads(self) -> None:
        if self.role is not Role.LEADER:
            raise NotLeader(self.leader_id)
        if self.transferring_to is not None:
            raise NotLeader(self.transferring_to)

    # A term begins, and time passes.

    def _become_leader(self) -> None:
        self.role = Role.LEADER
        self.leader_id = self.node_id
        self._lease_from_ms = None
        self._is_lease_void = False
        self._round_sent_ms = {}
        self._quorum_check_at_ms = self.now_ms + self.config.election_ms_min
        self._heartbeat_at_ms = self.now_ms
        self.progress = {}
        self._track_members(self.log.last_index + 1)
        # An entry of its own term: only with it can a leader tell what was committed before.
        self._append(EntryKind.NO_OP, b"")
        self._begin_round()

    def _tick_leader(self) -> None:
        if self.transferring_to is not None and self.now_ms >= self._transfer_ends_ms:
            self.transferring_to = None  # It did not happen: proposals are taken again.
        if self.now_ms >= self._quorum_check_at_ms:
            self._quorum_check_at_ms = self.now_ms + self.config.election_ms_min
            if not self._hears_quorum:
                self._become_follower(self.term, None)
                return
        if self.now_ms >= self._heartbeat_at_ms:
            self._begin_round()

    @property
    def _hears_quorum(self) -> bool:
        """Whether a majority answered within the time after which it may elect another."""
        since_ms = self.now_ms - self.config.election_ms_max
        heard = sum(
            voter == self.node_id or self.progress[voter].heard_ms >= since_ms
            for voter in self.membership.voters
        )
        return heard >= self.membership.quorum

    def _track_members(self, next_index: int) -> None:
        others = self.membership.members - {self.node_id}
        for left in self.progress.keys() - others:
            del self.progress[left]
        for node_id in sorted(others - self.progress.keys()):
            self.progress[node_id] = Progress(next_index=next_index, heard_ms=self.now_ms)

    def _append(self, kind: EntryKind, data: bytes) -> Entry:
        entry = Entry(term=self.term, index=self.log.last_index + 1, kind=kind, data=data)
        self.log.append(entry)
        if self.members.note(entry):
            self._track_members(entry.index)
        return entry

    # Sending.

    def _flush(self) -> None:
        """Send what followers lack, and what they may apply."""
        if self._reads and self._reads[-1].round > self._round:
            self._begin_round()
        for node_id, progress in self.progress.items():
            is_sent = self._replicate(node_id, progress)
            is_behind = progress.told_commit_index < self.commit_index
            # While entries are on their way, their reply brings us here again.
            if not is_sent and is_behind and self._is_idle(progress):
                self._send_append(node_id, progress, progress.next_index - 1, ())

    def _is_idle(self, progress: Progress) -> bool:
        return progress.flow is Flow.REPLICATING and not progress.inflight

    def _begin_round(self) -> None:
        """A heartbeat to everybody. Entries do as well, and are sent in its place."""
        self._heartbeat_at_ms = self.now_ms + self.config.heartbeat_ms
        self._round += 1
        self._round_sent_ms[self._round] = self.now_ms
        for node_id, progress in self.progress.items():
            if not self._replicate(node_id, progress):
                self._send_heartbeat(node_id, progress)
        self._count_rounds()

    def _replicate(self, node_id: int, progress: Progress) -> bool:
        """Send the entries that a follower lacks and may get now; whether there were any."""
        is_sent = False
        last_index = self.log.last_index
        while progress.next_index <= last_index and progress.can_send(self.config.inflight_max):
            if progress.next_index <= self.log.snapshot.index:
                self._send_snapshot(node_id, progress)
                return False  # Its data takes a while: heartbeats go ahead of it.
            entries = self.log.slice(progress.next_index, self.config.append_bytes_max)
            self._send_append(node_id, progress, progress.next_index - 1, entries)
            progress.sent(entries[-1].index)
            is_sent = True
        return is_sent

    def _send_heartbeat(self, node_id: int, progress: Progress) -> None:
        """At what was sent last: a follower that has not got it says so, and gets it again."""
        previous = max(progress.next_index - 1, self.log.snapshot.index)
        if progress.flow is Flow.SNAPSHOT:
            previous = 0  # Nobody refuses this; the reply tells whether the snapshot is there.
        self._send_append(node_id, progress, previous, ())

    def _send_append(
        self, node_id: int, progress: Progress, previous: int, entries: tuple[Entry, ...]
    ) -> None:
        previous_term = self.log.term_at(previous) if previous else 0
        assert previous_term is not None
        message = AppendEntries(
            term=self.term,
            sender=self.node_id,
            recipient=node_id,
            previous_index=previous,
            previous_term=previous_term,
            entries=entries,
            commit_index=self.commit_index,
            round=self._round,
        )
        self._messages.append(message)
        progress.told_commit_index = min(self.commit_index, previous + len(entries))

    def _send_snapshot(self, node_id: int, progress: Progress) -> None:
        progress.send_snapshot(self.log.snapshot.index)
        message = InstallSnapshot(
            term=self.term,
            sender=self.node_id,
            recipient=node_id,
            snapshot=self.log.snapshot,
            round=self._round,
        )
        self._messages.append(message)

    # Counting.

    def _on_append_reply(self, reply: AppendReply) -> None:
        progress = self.progress.get(reply.sender)
        if self.role is not Role.LEADER or progress is None:
            return
        progress.heard_ms = self.now_ms
        progress.answered_round = max(progress.answered_round, reply.round)
        if not reply.is_accepted:
            self._back_off(progress, reply)
        else:
            is_news = progress.accepted(reply.match_index)
            progress.found(reply.held_index)
            if is_news:
                self._maybe_commit()
            self._maybe_hand_over()
        self._count_rounds()

    def _back_off(self, progress: Progress, reply: AppendReply) -> None:
        """Skip the terms that cannot be common, a term at a time and not an entry."""
        if reply.conflict_index < progress.match_index or progress.flow is Flow.SNAPSHOT:
            return  # It is late: the follower has come further, or will.
        common = self.log.last_at_most(reply.conflict_index, reply.conflict_term)
        progress.probe(1 if common is None else common + 1)

    def _majority(self, numbers: list[int]) -> int:
        """The highest number that a majority of voters has reached."""
        return sorted(numbers, reverse=True)[self.membership.quorum - 1]

    def _maybe_commit(self) -> None:
        """Commit what a majority has saved."""
        saved = [
            self.log.saved_index if voter == self.node_id else self.progress[voter].match_index
            for voter in self.membership.voters
        ]
        index = self._majority(saved)
        if index > self.commit_index and self._may_count(index):
            self._commit(index)
            if self.members.changed_index <= index and not self.is_voter:
                self._flush()
                self._become_follower(self.term, None)  # It has led its own removal to the end.

    def _may_count(self, index: int) -> bool:
        """Whether a majority of copies proves this entry committed.

        One of an earlier term may be on a majority, and still be replaced by a leader that got an
        entry of a term in between. It is committed together with one of this term.
        """
        return self.log.term_at(index) == self.term

    def _count_rounds(self) -> None:
        """See which heartbeat a majority has answered: the lease counts from when it was sent."""
        if self.role is not Role.LEADER:
            return
        rounds = [
            self._round if voter == self.node_id else self.progress[voter].answered_round
            for voter in self.membership.voters
        ]
        answered = self._majority(rounds)
        sent_ms = self._round_sent_ms.get(answered)
        if sent_ms is not None:
            self._lease_from_ms = sent_ms
            for old in [each for each in self._round_sent_ms if each < answered]:
                del self._round_sent_ms[old]
        if self._reads and self.has_committed_in_term:
            done = [read for read in self._reads if read.round <= answered]
            self._answered_reads += [(read.token, self.commit_index) for read in done]
            self._reads = self._reads[len(done) :]

    def _maybe_hand_over(self) -> None:
        to = self.transferring_to
        if to is None or to not in self.progress:
            return
        if self.progress[to].match_index == self.log.last_index:
            message = TimeoutNow(term=self.term, sender=self.node_id, recipient=to)
            self._messages.append(message)
            # For good in this term: the message may arrive long after we gave up waiting.
            self._is_lease_void = True
