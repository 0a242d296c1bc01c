"""The log as the algorithm sees it: what follows the last snapshot, in memory.

The runtime saves entries in the background and in order. Only what it has saved counts for this
node's own share of a majority, so the log knows three ends: of what it holds, of what it has
handed over to be saved, and of what is on disk.

Invariants
    Indexes are dense from the snapshot on, and terms do not fall.
    What is committed is never replaced.
    An entry that was replaced while it was being saved does not count as saved, not even if one of
    the same index and term comes back later.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from chronik.raft.types import Entry, Snapshot


@dataclass(slots=True)
class RaftLog:
    """Entries after a snapshot."""

    snapshot: Snapshot = field(default_factory=Snapshot)
    entries: list[Entry] = field(default_factory=list)
    saved_index: int = 0  # on this node's disk
    handed_index: int = 0  # given to the runtime to save
    _saving: deque[int] = field(default_factory=deque)  # what each save under way will have saved

    def __post_init__(self) -> None:
        self.saved_index = self.handed_index = self.last_index

    @property
    def first_index(self) -> int:
        return self.snapshot.index + 1

    @property
    def last_index(self) -> int:
        return self.snapshot.index + len(self.entries)

    @property
    def last_term(self) -> int:
        return self.entries[-1].term if self.entries else self.snapshot.term

    def term_at(self, index: int) -> int | None:
        """The term of an entry; None if it is not here, or no longer."""
        position = index - self.snapshot.index - 1
        if 0 <= position < len(self.entries):
            return self.entries[position].term
        return self.snapshot.term if position == -1 else None

    def slice(self, first: int, bytes_max: int) -> tuple[Entry, ...]:
        """Entries from an index on: one in any case, and more as long as they fit."""
        found: list[Entry] = []
        size = 0
        for position in range(first - self.first_index, len(self.entries)):
            entry = self.entries[position]
            size += len(entry.data)
            if found and size > bytes_max:
                break
            found.append(entry)
        return tuple(found)

    def between(self, first: int, last: int) -> tuple[Entry, ...]:
        """The entries of these indexes, both included."""
        assert first >= self.first_index
        if first > last:
            return ()  # as nearly always: what is new is asked for after every step
        return tuple(self.entries[first - self.first_index : last - self.snapshot.index])

    def append(self, entry: Entry) -> None:
        """Add an entry at the end."""
        assert entry.index == self.last_index + 1
        assert entry.term >= self.last_term
        self.entries.append(entry)

    def merge(self, entries: Iterable[Entry], commit_index: int) -> int | None:
        """Take over a leader's entries; where ours were replaced from, if they were."""
        replaced_from = None
        for entry in entries:
            known_term = self.term_at(entry.index)
            if known_term == entry.term or entry.index <= self.snapshot.index:
                continue  # We have it. What follows it stays: this message may be an old one.
            if known_term is not None:
                assert entry.index > commit_index, "a committed entry would be replaced"
                replaced_from = entry.index
                self._truncate(entry.index)
            self.append(entry)
        return replaced_from

    def _truncate(self, index: int) -> None:
        """Drop the entry at an index and what follows it."""
        del self.entries[index - self.first_index :]
        self.handed_index = min(self.handed_index, index - 1)
        self.saved_index = min(self.saved_index, index - 1)
        self._saving = deque(min(each, index - 1) for each in self._saving)

    def hand_over(self) -> None:
        """The runtime begins to save all that there is."""
        self.handed_index = self.last_index
        self._saving.append(self.last_index)

    def saved(self) -> None:
        """The oldest save under way has ended."""
        self.saved_index = max(self.saved_index, self._saving.popleft())

    def is_covered_by(self, last_index: int, last_term: int) -> bool:
        """Whether another log has all that ours could have got committed."""
        return (last_term, last_index) >= (self.last_term, self.last_index)

    def compact(self, snapshot: Snapshot) -> None:
        """Forget the entries that a snapshot of our own, which is on disk, holds."""
        if snapshot.index > self.snapshot.index:
            assert self.term_at(snapshot.index) == snapshot.term
            del self.entries[: snapshot.index - self.snapshot.index]
            self.snapshot = snapshot
            self.saved_index = max(self.saved_index, snapshot.index)
            self.handed_index = max(self.handed_index, snapshot.index)

    def replace(self, snapshot: Snapshot) -> None:
        """A leader's snapshot takes the place of everything, and has yet to be saved."""
        self.snapshot = snapshot
        self.entries.clear()
        self.handed_index = snapshot.index
        self.saved_index = 0
        self._saving = deque(0 for _ in self._saving)

    def last_at_most(self, index: int, term: int) -> int | None:
        """The last index, up to this one, whose term is not later; None if it is forgotten.

        Beyond it this log and one that has `term` at `index` have nothing in common.
        """
        for candidate in range(min(index, self.last_index), self.snapshot.index - 1, -1):
            found = self.term_at(candidate)
            if found is not None and found <= term:
                return candidate
        return None
