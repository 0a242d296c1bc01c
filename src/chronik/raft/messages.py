"""What nodes say to each other. Every message carries its sender's term.

Each may be lost, late, repeated or out of order: a node that has moved on ignores it, or says so.
"""

from dataclasses import dataclass

from chronik.raft.types import Entry, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestVote:
    """A candidate asks for a vote; as a pre-vote it asks whether it would get one."""

    term: int  # for a pre-vote the term that the candidate would begin
    sender: int
    recipient: int
    last_index: int
    last_term: int
    is_pre_vote: bool = False
    is_transfer: bool = False  # the leader itself asked for this election


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteReply:
    """A vote or pre-vote, given or refused. A node that keeps a promise gives no answer at all."""

    term: int  # the one asked about if it is granted, else that of the voter
    sender: int
    recipient: int
    is_pre_vote: bool
    is_granted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendEntries:
    """The leader's entries after one that both should have; a heartbeat has none."""

    term: int
    sender: int
    recipient: int
    previous_index: int
    previous_term: int
    entries: tuple[Entry, ...] = ()
    commit_index: int = 0
    round: int = 0  # the leader's latest heartbeat; the reply names it


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendReply:
    """How far the follower's log is the leader's, or where to look for a common entry."""

    term: int
    sender: int
    recipient: int
    is_accepted: bool
    match_index: int = 0  # if accepted: the same up to here, and on disk
    held_index: int = 0  # if accepted: the same up to here, on disk or not yet
    conflict_index: int = 0  # if refused: nothing in common beyond this
    conflict_term: int = 0  # and the term of what the follower has there
    round: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallSnapshot:
    """The leader has forgotten what the follower needs; the runtime sends the data along."""

    term: int
    sender: int
    recipient: int
    snapshot: Snapshot
    round: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutNow:
    """The leader hands over: the recipient, which has all entries, begins an election at once."""

    term: int
    sender: int
    recipient: int


# All but a request for a vote are of the sender's term, and void in a later one.
TermMessage = VoteReply | AppendEntries | AppendReply | InstallSnapshot | TimeoutNow
Message = RequestVote | TermMessage
