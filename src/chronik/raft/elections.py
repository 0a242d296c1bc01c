"""Elections: pre-votes, votes, and the promise not to vote that leases rest on.

A candidate first asks whether it would be elected, which changes nothing, so that a node that was
cut off does not depose a leader with its higher term when it comes back. A voter that has heard a
leader lately gives no answer at all, to pre-votes and votes alike.

Whether a node is a voter is for the candidate to say: one that was just promoted may not know it
yet. But a node that is no member as far as it knows, or has another data directory than the
member of its name, does not vote: it may have forgotten what it voted and acknowledged.
"""

from chronik.raft.leading import Leading
from chronik.raft.messages import RequestVote, TimeoutNow, VoteReply
from chronik.raft.types import HardState, Role


class Elections(Leading):
    """A node's work as a voter and as a candidate."""

    __slots__ = ()

    @property
    def _may_vote(self) -> bool:
        return self.node_id in self.membership.members and self._is_bound

    def _tick_follower(self) -> None:
        if self.now_ms < self._election_at_ms:
            return
        is_voting = self.role is Role.CANDIDATE and not self._is_own_vote_saved
        if not self.is_voter:
            self.leader_id = None
            self._await_leader()
        elif is_voting:
            self._await_leader()  # A slow disk would be slower still with a term more to save.
        else:
            self._campaign(is_pre_vote=not self._is_alone)

    @property
    def _is_own_vote_saved(self) -> bool:
        saved = self._saved_state
        return saved.term == self.term and saved.vote == self.node_id

    def _on_timeout_now(self, message: TimeoutNow) -> None:
        """The leader hands over, and has given up its lease: no pre-vote, no promise."""
        if self.is_voter and message.term == self.term:
            self._campaign(is_pre_vote=False, is_transfer=True)

    def _campaign(self, *, is_pre_vote: bool, is_transfer: bool = False) -> None:
        self.leader_id = None
        self._votes = {}
        self._await_leader()
        term = self.term + 1
        if is_pre_vote:
            self.role = Role.PRE_CANDIDATE
            wait_ms = self.config.pre_vote_ms * (1 + self.jitter())
            self._election_at_ms = self.now_ms + round(wait_ms)
        else:
            self.role = Role.CANDIDATE
            self.state = HardState(term=term, vote=self.node_id, commit_index=self.commit_index)
        # A pre-vote promises nothing and waits for no disk.
        outbox = self._messages if is_pre_vote else self._after_save
        for voter in sorted(self.membership.voters - {self.node_id}):
            request = RequestVote(
                term=term,
                sender=self.node_id,
                recipient=voter,
                last_index=self.log.last_index,
                last_term=self.log.last_term,
                is_pre_vote=is_pre_vote,
                is_transfer=is_transfer,
            )
            outbox.append(request)
        if is_pre_vote:
            self._count_vote(self.node_id, True)

    def _own_state_saved(self) -> None:
        """A candidate's vote for itself counts once it is on disk."""
        if self.role is Role.CANDIDATE and self._is_own_vote_saved:
            self._await_leader()  # The others are asked only now, and need their time too.
            self._count_vote(self.node_id, True)

    def _count_vote(self, voter: int, is_granted: bool) -> None:
        voters = self.membership.voters
        if voter not in voters:
            return
        self._votes.setdefault(voter, is_granted)
        granted = sum(self._votes.values())
        refused = len(self._votes) - granted
        if granted >= self.membership.quorum:
            if self.role is Role.PRE_CANDIDATE:
                self._campaign(is_pre_vote=False)
            else:
                self._become_leader()
        elif refused > len(voters) - self.membership.quorum:
            self._become_follower(self.term, None)

    def _on_request_vote(self, request: RequestVote) -> None:
        if not self._may_vote or self._keeps_promise(request):
            return  # No answer: one with our term would depose a leader that works.
        if not request.is_pre_vote and request.term > self.term:
            self._become_follower(request.term, None)
        is_granted = self._would_vote(request)
        if is_granted and not request.is_pre_vote:
            self.state = HardState(
                term=self.term, vote=request.sender, commit_index=self.commit_index
            )
            self._await_leader()
        reply = VoteReply(
            term=request.term if is_granted else self.term,
            sender=self.node_id,
            recipient=request.sender,
            is_pre_vote=request.is_pre_vote,
            is_granted=is_granted,
        )
        outbox = self._messages if request.is_pre_vote else self._after_save
        outbox.append(reply)

    def _keeps_promise(self, request: RequestVote) -> bool:
        """Whether a leader may still rely on us, as far as we know or have forgotten."""
        if request.is_transfer:
            return False
        if self.role is Role.LEADER:
            return self._hears_quorum
        return self.now_ms < self._promised_until_ms

    def _would_vote(self, request: RequestVote) -> bool:
        if not self.log.is_covered_by(request.last_index, request.last_term):
            return False
        if request.is_pre_vote:
            return request.term > self.term
        return request.term == self.term and self.state.vote in (None, request.sender)

    def _on_vote_reply(self, reply: VoteReply) -> None:
        asked = Role.PRE_CANDIDATE if reply.is_pre_vote else Role.CANDIDATE
        expected_term = self.term + 1 if reply.is_pre_vote and reply.is_granted else self.term
        if self.role is asked and reply.term == expected_term:
            self._count_vote(reply.sender, reply.is_granted)
