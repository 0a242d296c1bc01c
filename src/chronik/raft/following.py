"""What a follower does: take over the leader's entries and snapshots, and say how far it is.

It answers heartbeats at once and says what is on its disk by then; that its disk has come further
it says when it is so. So a slow disk delays what is committed, and never looks like a dead node.
"""

from chronik.raft.messages import AppendEntries, AppendReply, InstallSnapshot, Message
from chronik.raft.state import NodeState
from chronik.raft.types import Role


class Following(NodeState):
    """A node's work as a follower."""

    __slots__ = ()

    def _follow(self, leader_id: int) -> None:
        assert self.role is not Role.LEADER, "two leaders in one term"
        if self.role is not Role.FOLLOWER or self.leader_id != leader_id:
            self._become_follower(self.term, leader_id)
        self._promise()
        self._await_leader()

    def _on_append(self, message: AppendEntries) -> None:
        self._follow(message.sender)
        if message.previous_index < self.log.snapshot.index:
            # A leader has all that is committed, so up to there the two logs are one.
            self._accept(message, self.commit_index)
        elif self.log.term_at(message.previous_index) == message.previous_term:
            self._take_over(message)
        else:
            self._refuse(message)

    def _take_over(self, message: AppendEntries) -> None:
        replaced_from = self.log.merge(message.entries, self.commit_index)
        if replaced_from is not None:
            self.members.truncate(replaced_from)
            before = self._replaced_from
            self._replaced_from = min(replaced_from, before or replaced_from)
        for entry in message.entries:
            self.members.note(entry)
        held_index = message.previous_index + len(message.entries)
        self._commit(min(message.commit_index, held_index))
        self._accept(message, held_index)

    def _accept(self, message: AppendEntries | InstallSnapshot, held_index: int) -> None:
        saved_index = min(held_index, self.log.saved_index)
        if saved_index == held_index or message.round > self._answered_round:
            self._messages.append(self._accepted(message, saved_index, held_index))
            self._answered_round = message.round
        if saved_index < held_index:
            self._after_save.append(self._accepted(message, held_index, held_index))

    def _accepted(
        self, message: AppendEntries | InstallSnapshot, match_index: int, held_index: int
    ) -> AppendReply:
        return AppendReply(
            term=self.term,
            sender=self.node_id,
            recipient=message.sender,
            is_accepted=True,
            match_index=match_index,
            held_index=held_index,
            round=message.round,
        )

    def _refuse(self, message: AppendEntries) -> None:
        """Say where a common entry can be at most: a whole term of ours is skipped at once."""
        index = self.log.last_at_most(message.previous_index, message.previous_term)
        assert index is not None, "a leader's log lacks what was committed"
        reply = AppendReply(
            term=self.term,
            sender=self.node_id,
            recipient=message.sender,
            is_accepted=False,
            conflict_index=index,
            conflict_term=self.log.term_at(index) or 0,
            round=message.round,
        )
        self._messages.append(reply)

    def _on_snapshot(self, message: InstallSnapshot) -> None:
        self._follow(message.sender)
        snapshot = message.snapshot
        if self.log.term_at(snapshot.index) == snapshot.term:
            # We have all that it holds, and may have acknowledged what follows: that must stay.
            self._commit(snapshot.index)
        elif snapshot.index > self.commit_index:
            self.log.replace(snapshot)
            self.members.reset(snapshot)
            self._snapshot = snapshot
            self._replaced_from = None
            self.applied_index = snapshot.index
            self._commit(snapshot.index)
        self._accept(message, self.commit_index)

    def _answer_stale(self, message: Message) -> None:
        """Tell a leader of an earlier term that it is none any more."""
        if isinstance(message, AppendEntries | InstallSnapshot):
            reply = AppendReply(
                term=self.term, sender=self.node_id, recipient=message.sender, is_accepted=False
            )
            self._messages.append(reply)
