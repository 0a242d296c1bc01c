"""Who waits for a partition: for an append to count, or for more to read."""

from collections import deque
from typing import TYPE_CHECKING, Protocol

from chronik.protocol.errors import KafkaError

if TYPE_CHECKING:
    from chronik.replication.partition import Partition


class AckWaiter(Protocol):
    """Who waits for an append to be committed."""

    def acknowledged(self, partition: "Partition") -> None:
        """The append counts."""

    def failed(self, partition: "Partition", error: KafkaError) -> None:
        """Whether the append survives is not known."""


class Watcher(Protocol):
    """Who waits for more to read."""

    def moved(self, partition: "Partition", bytes_appended: int, bytes_stable: int) -> None:
        """The high watermark moved, or the partition went away.

        `bytes_appended` are new below the high watermark; zero: something else happened.
        `bytes_stable` bounds what is new below the last stable offset; zero: it did not move.
        """


class Feed(Protocol):
    """A follower that is sent what is appended."""

    def appended(self) -> None:
        """The log is longer."""


class AckQueue:
    """Waiters by the offset that they wait for, which grows."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, AckWaiter]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, end_offset: int, waiter: AckWaiter) -> None:
        """Wait until an offset is passed."""
        self._waiting.append((end_offset, waiter))

    def reached(self, offset: int, partition: "Partition") -> bool:
        """Tell everybody who waits for no more than this; whether others wait on."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= offset:
            waiting.popleft()[1].acknowledged(partition)
        return bool(waiting)

    def fail(self, partition: "Partition", error: KafkaError) -> None:
        """Tell everybody that it will not be."""
        waiting, self._waiting = self._waiting, deque()
        for _, waiter in waiting:
            waiter.failed(partition, error)
