"""The sparse indexes of a segment: offset to position, and timestamp to offset.

Every `index_interval_bytes` of log get one entry in each, so a search ends within that distance of
its batch. The active segment's entries are kept in arrays and flushed to the files at checkpoints;
a sealed segment's files are searched where they lie, since the page cache keeps what is used and
drops what is not. Never mmap: a page fault stalls the loop with the interpreter's lock held.

    <base>.index      relative base offset of a batch u32, its position u32       (big-endian)
    <base>.timeindex  max timestamp so far i64, relative base offset of the batch that has it u32

Invariants
    Entries grow in every column.
    Every batch before a time entry's batch has a smaller max timestamp than the entry.

An index is only a hint: who uses an entry checks that the batch it names is there, and raises
`BadIndex` if not. `segment` rebuilds it from the log.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from itertools import pairwise
from struct import Struct, error
from sys import byteorder
from typing import Final

from chronik.protocol.schema import Buffer
from chronik.storage.errors import BadIndex

Read = Callable[[str, int, int], Buffer]

OFFSET_ENTRY: Final = Struct(">II")
TIME_ENTRY: Final = Struct(">qI")
RELATIVE_OFFSET_MAX: Final = 0xFFFFFFFF
_BLOCK_ENTRIES: Final = 64  # read at once where the search narrows: one small read beats six


_NO_OFFSETS: Final = array("I")
_NO_TIMES: Final = array("q")


class SparseIndex:
    """Both indexes of a segment in memory, 20 bytes an entry at most."""

    __slots__ = (
        "flushed_count", "flushed_time_count", "offsets", "positions", "timed_offsets", "times"
    )  # fmt: skip

    def __init__(self) -> None:
        # Shared until there is an entry: most logs are small and idle, and have none.
        self.offsets = self.positions = self.timed_offsets = _NO_OFFSETS
        self.times = _NO_TIMES
        self.flushed_count = 0
        self.flushed_time_count = 0

    def add(self, offset: int, position: int) -> None:
        """Index the batch at a position by its relative base offset."""
        if not self.offsets:
            self.offsets, self.positions = array("I"), array("I")
        self.offsets.append(offset)
        self.positions.append(position)

    def add_time(self, timestamp: int, offset: int) -> None:
        """Note the max timestamp of all batches so far, if it grew."""
        if not self.times:
            self.times, self.timed_offsets = array("q"), array("I")
        if not self.times or timestamp > self.times[-1]:
            self.times.append(timestamp)
            self.timed_offsets.append(offset)

    def cut(self, offset: int) -> tuple[int, int]:
        """Drop the last entry at or below the offset and all above; returns that entry."""
        keep = max(bisect_right(self.offsets, offset) - 1, 0)
        position, first = 0, 0
        if keep < len(self.offsets) and self.offsets[keep] <= offset:
            position, first = self.positions[keep], self.offsets[keep]
        del self.offsets[keep:], self.positions[keep:]
        keep_times = bisect_left(self.timed_offsets, first)
        del self.times[keep_times:], self.timed_offsets[keep_times:]
        self.flushed_count = min(self.flushed_count, keep)
        self.flushed_time_count = min(self.flushed_time_count, keep_times)
        return first, position

    def floor_offset(self, offset: int) -> tuple[int, int] | None:
        """The last entry at or below a relative offset."""
        i = bisect_right(self.offsets, offset)
        return (self.offsets[i - 1], self.positions[i - 1]) if i else None

    def floor_position(self, position: int) -> tuple[int, int] | None:
        """The last entry at or below a position."""
        i = bisect_right(self.positions, position)
        return (self.offsets[i - 1], self.positions[i - 1]) if i else None

    def floor_time(self, timestamp: int) -> tuple[int, int] | None:
        """The last time entry at or below a timestamp."""
        i = bisect_right(self.times, timestamp)
        return (self.times[i - 1], self.timed_offsets[i - 1]) if i else None

    def encode(self, start: int, end: int) -> bytes:
        """Offset entries as in the file."""
        return _interleave(self.offsets[start:end], self.positions[start:end])

    def encode_times(self, start: int, end: int) -> bytes:
        """Time entries as in the file."""
        return _interleave(self.times[start:end], self.timed_offsets[start:end])


def decode(entries: Buffer, time_entries: Buffer) -> SparseIndex:
    """Read both files' content; raises BadIndex if it cannot be an index."""
    index = SparseIndex()
    if entries:
        index.offsets, index.positions = array("I"), array("I")
        _separate(entries, index.offsets, index.positions)
    if time_entries:
        index.times, index.timed_offsets = array("q"), array("I")
        _separate(time_entries, index.times, index.timed_offsets)
    columns = (index.offsets, index.positions, index.times, index.timed_offsets)
    for column in columns:
        if any(a >= b for a, b in pairwise(column)):
            raise BadIndex
    index.flushed_count = len(index.offsets)
    index.flushed_time_count = len(index.times)
    return index


# A segment can have 262,144 entries: packing them one by one would hold the interpreter's lock for
# 100 ms, while these two move whole columns of bytes in C.


def _interleave(first: "array[int]", second: "array[int]") -> bytes:
    width = first.itemsize + second.itemsize
    rows = bytearray(width * len(first))
    start = 0
    for column in (first, second):
        if byteorder == "little":
            column.byteswap()
        data = column.tobytes()
        for i in range(column.itemsize):
            rows[start + i :: width] = data[i :: column.itemsize]
        start += column.itemsize
    return bytes(rows)


def _separate(rows: Buffer, first: "array[int]", second: "array[int]") -> None:
    width = first.itemsize + second.itemsize
    count, rest = divmod(len(rows), width)
    if rest:
        raise BadIndex
    start = 0
    for column in (first, second):
        data = bytearray(count * column.itemsize)
        for i in range(column.itemsize):
            data[i :: column.itemsize] = bytes(rows[start + i :: width])
        column.frombytes(data)
        if byteorder == "little":
            column.byteswap()
        start += column.itemsize


def floor_in_file(
    read: Read, path: str, count: int, entry: Struct, column: int, key: int
) -> tuple[int, int] | None:
    """The last entry of a file whose column is at or below the key."""
    if not count:
        return None
    low, high = 0, count  # The first entry above the key is in [low, high].
    size = entry.size
    try:
        while high - low > _BLOCK_ENTRIES:
            middle = (low + high) // 2
            if entry.unpack(read(path, size, middle * size))[column] <= key:
                low = middle + 1
            else:
                high = middle
        start = max(low - 1, 0)
        data = read(path, (high - start) * size, start * size)
        if len(data) != (high - start) * size:
            raise BadIndex
        found = None
        for first, second in entry.iter_unpack(data):
            if (second if column else first) > key:
                break
            found = (first, second)
    except (error, FileNotFoundError):
        raise BadIndex from None
    return found
