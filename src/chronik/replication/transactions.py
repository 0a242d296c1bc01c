"""The transactions of one partition: which are open, how far is stable, which were aborted.

A transaction begins with its first batch here and ends with a marker. Until the high watermark has
passed the marker it stays unstable: nobody who reads only what is committed may read at or above
the first offset of an unstable transaction.

Readers of committed data get an aborted transaction's batches all the same, together with the
facts that let them skip those: producer, first offset and, from the log, the marker.

Invariants
    Transactions begin in the order of their first offsets, so that the first one of a dict is the
    oldest: every question is answered without a search.
    Aborted transactions are listed in the order of their markers. `last_stable_offset`, the first
    offset that was undecided just after the marker, ascends with them.
    An aborted transaction is listed as long as the log has a batch of it, and its marker stays in
    the log as long as it is listed: a reader would else skip the producer's next transaction too.

Everything follows from the batches in the log; `producers` saves and replays it.
"""

from array import array
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

ABORTED: Final = Struct(">qqqq")  # as in the snapshot: the fields of AbortedTxn
_FIELDS: Final = 4
_LAST_OFFSET: Final = 2


class AbortedTxn(NamedTuple):
    """A transaction whose records a read_committed consumer skips."""

    producer_id: int
    first_offset: int
    last_offset: int  # of its marker
    last_stable_offset: int


class AbortedTransactions:
    """The aborted transactions of one partition, by their markers; 32 bytes each."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values = array("q")

    def __len__(self) -> int:
        return len(self._values) // _FIELDS

    def __getitem__(self, index: int) -> AbortedTxn:
        start = index * _FIELDS
        return AbortedTxn._make(self._values[start : start + _FIELDS])

    def __iter__(self) -> Iterator[AbortedTxn]:
        return (self[index] for index in range(len(self)))

    def add(self, aborted: AbortedTxn) -> None:
        """Take in a transaction whose marker lies above all others."""
        assert not self._values or aborted.last_offset > self[len(self) - 1].last_offset
        self._values.extend(aborted)

    def _index(self, last_offset: int) -> int:
        """Of the first one whose marker is at or above an offset."""
        values = self._values
        return bisect_left(
            range(len(self)), last_offset, key=lambda i: values[i * _FIELDS + _LAST_OFFSET]
        )

    def between(self, offset: int, end_offset: int) -> list[AbortedTxn]:
        """Those that a reader of [offset, end_offset) must know, in the order of their markers."""
        found = []
        for index in range(self._index(offset), len(self)):
            aborted = self[index]
            if aborted.first_offset < end_offset:
                found.append(aborted)
            if aborted.last_stable_offset >= end_offset:
                break  # Whatever ended later began at or after this offset.
        return found

    def reach(self, offset: int) -> bool:
        """Whether any marker lies at or above an offset."""
        return bool(self._values) and self._values[-_FIELDS + _LAST_OFFSET] >= offset

    def forget(self, last_offset: int) -> bool:
        """Drop the one with this marker; whether there was one."""
        index = self._index(last_offset)
        if index == len(self) or self[index].last_offset != last_offset:
            return False
        del self._values[index * _FIELDS : (index + 1) * _FIELDS]
        return True

    def trim(self, log_start_offset: int) -> None:
        """Drop those whose markers lie below the log start."""
        del self._values[: self._index(log_start_offset) * _FIELDS]


class Transactions:
    """The open, unstable and aborted transactions of one partition."""

    __slots__ = ("_completed", "_open", "_unstable", "aborted")

    def __init__(self) -> None:
        # Ordered dicts, whose first key is found at once however many were removed before it.
        self._open: OrderedDict[int, None] = OrderedDict()  # by first offset
        self._unstable: OrderedDict[int, None] = OrderedDict()  # these and the unreplicated ones
        self._completed: deque[tuple[int, int]] = deque()  # marker, first offset: unreplicated
        self.aborted = AbortedTransactions()

    def begin(self, first_offset: int) -> None:
        """A producer's transaction begins; first offsets ascend."""
        self._open[first_offset] = None
        self._unstable[first_offset] = None

    def complete(
        self, producer_id: int, first_offset: int, marker_offset: int, *, commit: bool
    ) -> None:
        """A marker ends the transaction that began at an offset."""
        del self._open[first_offset]
        self._completed.append((marker_offset, first_offset))
        if not commit:
            stable = next(iter(self._open), marker_offset + 1)
            self.aborted.add(AbortedTxn(producer_id, first_offset, marker_offset, stable))

    def on_high_watermark(self, high_watermark: int) -> None:
        """What ended below it is stable now."""
        completed = self._completed
        while completed and completed[0][0] < high_watermark:
            del self._unstable[completed.popleft()[1]]

    def first_unstable_offset(self) -> int | None:
        """Where the oldest transaction begins that is open or not replicated yet."""
        return next(iter(self._unstable), None)
