"""Who waits for an entry of the metadata log: in the log's order, with what to answer.

An answer may wait without an entry of its own, for those that its decision has looked at. How many
bytes are proposed and not committed is counted here, because there is a bound on it.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from chronik.metadata.commands import Command, CreatePartitions, DeleteTopic, RemoveBroker
from chronik.metadata.records import Record
from chronik.protocol.errors import ErrorCode, KafkaError


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command comes to, once the entry at `index` is applied."""

    index: int
    records: Sequence[Record]
    response: Any
    reply: "asyncio.Future[Any]"
    error: KafkaError | None = None
    size: int = 0

    def tell(self) -> None:
        """Answer, unless nobody waits any more."""
        if self.error is not None:
            fail(self.reply, self.error)
        else:
            succeed(self.reply, self.response)


class InFlight:
    """The outcomes that are not applied yet."""

    def __init__(self) -> None:
        self._waiting: deque[Outcome] = deque()
        self.bytes_uncommitted = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, outcome: Outcome) -> None:
        """Wait, after all that wait already."""
        self._waiting.append(outcome)
        self.bytes_uncommitted += outcome.size

    def records_of(self, index: int) -> Sequence[Record] | None:
        """The records of an entry that was decided here, as they were decided."""
        first = self._waiting[0] if self._waiting else None
        return first.records if first is not None and first.index == index else None

    def applied(self, index: int) -> None:
        """Answer whoever waited for an entry, or for one before it."""
        while self._waiting and self._waiting[0].index <= index:
            outcome = self._waiting.popleft()
            self.bytes_uncommitted -= outcome.size
            outcome.tell()

    def refuse(self, error: KafkaError) -> None:
        """Tell everybody that nobody knows what will be; what was decided stays in flight."""
        for outcome in self._waiting:
            fail(outcome.reply, error)

    def clear(self) -> None:
        """Forget what was decided, with the pending image that shows it."""
        self._waiting = deque()
        self.bytes_uncommitted = 0


def succeed(reply: "asyncio.Future[Any]", response: Any) -> None:
    """Answer, unless nobody waits any more."""
    if not reply.done():
        reply.set_result(response)


def fail(reply: "asyncio.Future[Any]", error: KafkaError) -> None:
    """Answer with an error, unless nobody waits any more."""
    if not reply.done():
        reply.set_exception(error)


def heard(reply: "asyncio.Future[Any]") -> None:
    """Whoever asked may have given up waiting: then a refusal is no news, and no error."""
    if not reply.cancelled():
        reply.exception()


# A leader answers so if it has appended a command, and cannot tell what will become of it.
UNKNOWN_OUTCOME: Final = (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.KAFKA_STORAGE_ERROR)


_REFUSALS_OF_ANOTHER_TRY: Final[dict[type[Command], ErrorCode]] = {
    DeleteTopic: ErrorCode.UNKNOWN_TOPIC_ID,
    CreatePartitions: ErrorCode.INVALID_PARTITIONS,
    RemoveBroker: ErrorCode.BROKER_ID_NOT_REGISTERED,
}


def storage_error(error: BaseException | None) -> KafkaError:
    """A failure of the disk, as it is told."""
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))


def may_tell_of_own_success(command: Command, error: KafkaError) -> bool:
    """Whether a refusal of another try may mean that the first one was done, and not heard of.

    Other commands may be said again. They name what they ask for by an id, or ask for a state of
    affairs and are content to find it; or each of their parts is answered for itself, which tells
    how it is by then, and the asker sees that in its image. A block of producer ids is lost.
    """
    return _REFUSALS_OF_ANOTHER_TRY.get(type(command)) is error.code
