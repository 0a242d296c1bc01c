"""How far one follower's log is the leader's, and what is on its way to it.

probing       the leader does not know: one message at a time finds the common entry
replicating   it knows, and sends ahead of the replies, up to a bound
snapshot      the follower needs what the leader has forgotten: nothing else until it has it

Nothing is sent again after a time. A heartbeat names the entry before the next one to be sent: a
follower that has not got so far refuses it, and the leader looks again from what that one has.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto


class Flow(Enum):
    """What may be sent to a follower."""

    PROBING = auto()
    REPLICATING = auto()
    SNAPSHOT = auto()


@dataclass(slots=True)
class Progress:
    """One follower, as its leader sees it."""

    next_index: int
    heard_ms: int = 0
    match_index: int = 0
    flow: Flow = Flow.PROBING
    is_paused: bool = False  # a probe is on its way
    inflight: deque[int] = field(default_factory=deque)  # last index of each append
    snapshot_index: int = 0
    answered_round: int = 0  # the last heartbeat that it answered
    told_commit_index: int = 0

    def can_send(self, inflight_max: int) -> bool:
        """Whether entries may be sent now."""
        match self.flow:
            case Flow.PROBING:
                return not self.is_paused
            case Flow.REPLICATING:
                return len(self.inflight) < inflight_max
            case Flow.SNAPSHOT:
                return False

    def sent(self, last_index: int) -> None:
        """Entries up to here are on their way."""
        if self.flow is Flow.REPLICATING:
            self.inflight.append(last_index)
            self.next_index = last_index + 1
        else:
            self.is_paused = True

    def accepted(self, match_index: int) -> bool:
        """The follower has saved everything up to here; whether that is news."""
        while self.inflight and self.inflight[0] <= match_index:
            self.inflight.popleft()
        is_news = match_index > self.match_index
        self.match_index = max(self.match_index, match_index)
        self.next_index = max(self.next_index, self.match_index + 1)
        self.is_paused = False
        return is_news

    def found(self, common_index: int) -> None:
        """The follower's log is the leader's up to here, saved or not: send ahead from there."""
        is_awaited = self.flow is Flow.SNAPSHOT and self.match_index < self.snapshot_index
        if self.flow is not Flow.REPLICATING and not is_awaited:
            self.flow = Flow.REPLICATING
            self.inflight.clear()
            self.next_index = max(common_index, self.match_index) + 1

    def probe(self, next_index: int) -> None:
        """Look for the common entry from here; what was on its way is void."""
        self.flow = Flow.PROBING
        self.inflight.clear()
        self.is_paused = False
        self.next_index = max(next_index, self.match_index + 1)

    def send_snapshot(self, index: int) -> None:
        """The follower gets a snapshot up to here."""
        self.flow = Flow.SNAPSHOT
        self.inflight.clear()
        self.snapshot_index = index
