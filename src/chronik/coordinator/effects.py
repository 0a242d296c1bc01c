"""What a coordinator's machine wants done: records to log, answers to give, work to start.

A machine takes an event and the time and returns one of these; it does nothing else to the world.
The runtime appends all records of one `Effects` as one batch, so that they are replayed together
or not at all, and sends the replies once that batch, and everything before it, is committed. An
answer without records waits in the same way: nobody is told what a crash could still take back.
Only what is `told` waits for nothing: it says what was committed before.

Times are milliseconds of one clock that looks like wall time and never goes back.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from chronik.protocol.schema import Message

Token = Any  # who waits for a reply; only the runtime knows what it is


class Record(NamedTuple):
    """One record of a coordinator's topic; no value removes what the key names."""

    key: Message
    value: Message | None


class ProducerStamp(NamedTuple):
    """Whose transaction the records belong to: they count once its marker says commit."""

    producer_id: int
    producer_epoch: int


class Caller(NamedTuple):
    """Who sent a request, and in which version."""

    client_id: str
    client_host: str
    version: int


@dataclass(slots=True)
class Effects:
    """Filled by a machine, carried out by the runtime."""

    records: list[Record] = field(default_factory=list)
    replies: list[tuple[Token, Any]] = field(default_factory=list)
    told: list[tuple[Token, Any]] = field(default_factory=list)  # replies that need not wait
    actions: list[Any] = field(default_factory=list)  # started once the records are committed
    producer: ProducerStamp | None = None

    def write(self, key: Message, value: Message | None) -> Record:
        """Log a record, or with no value the removal of an earlier one."""
        record = Record(key, value)
        self.records.append(record)
        return record

    def reply(self, token: Token, response: Any) -> None:
        """Answer whoever waits under this token."""
        self.replies.append((token, response))

    def add(self, other: "Effects") -> None:
        """Take over what another step wants done, to be logged together."""
        assert other.producer is None
        self.records += other.records
        self.replies += other.replies
        self.told += other.told
        self.actions += other.actions
