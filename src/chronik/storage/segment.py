"""One segment: a file of record batches, its two indexes, and the facts about them.

A segment is named by its base offset: `<20 digits>.log`, `.index`, `.timeindex`. It is active while
appended to, then sealed and never changed again, except that compaction replaces it whole.

Invariants
    `size` counts whole batches only; it moves after the bytes are in the file.
    Batches lie in the order of their offsets, none before `base_offset`.

`log` decides when to append, roll and delete; `read` serves batches; `recovery` verifies them.
"""

from collections.abc import Iterator
from typing import Final

from chronik.model import NO_TIMESTAMP
from chronik.protocol.batch import HEADER_SIZE, LENGTH_OVERHEAD, MAGIC, BatchHeader, read_header
from chronik.protocol.schema import Buffer
from chronik.storage.disk import Disk
from chronik.storage.errors import BadIndex, CorruptLog
from chronik.storage.index import (
    OFFSET_ENTRY,
    RELATIVE_OFFSET_MAX,
    TIME_ENTRY,
    Read,
    SparseIndex,
    decode,
    floor_in_file,
)

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
# Positions are u32 and Kafka's segment.bytes is an int32, so a segment stays below this.
SEGMENT_BYTES_MAX: Final = 0x7FFFFFFF
_WALK_BYTES: Final = 64 * 1024  # a read-ahead window: many small batches, or few large ones


def stem(directory: str, base_offset: int) -> str:
    """The path of a segment's files without their suffix."""
    return f"{directory}/{base_offset:020d}"


class Segment:
    """The facts of one segment. Sealed ones have no index in memory."""

    __slots__ = (
        "base_offset", "created_ms", "dirty", "first_timestamp", "index", "index_count",
        "indexed_position", "max_timestamp", "max_timestamp_offset", "next_offset", "path", "size",
        "time_count",
    )  # fmt: skip

    def __init__(self, directory: str, base_offset: int, created_ms: int = 0) -> None:
        self.path = stem(directory, base_offset) + LOG_SUFFIX
        self.base_offset = base_offset
        self.created_ms = created_ms
        self.size = 0
        self.next_offset = base_offset
        self.first_timestamp = NO_TIMESTAMP
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        self.index: SparseIndex | None = SparseIndex()
        self.indexed_position = 0  # of the last index entry, to space the next one
        self.index_count = 0  # entries in the files of a sealed segment
        self.time_count = 0
        self.dirty = False  # has bytes that no commit round took yet

    @property
    def stem(self) -> str:
        """What the names of all its files begin with."""
        # Not cut from the path, which has another name while a copy takes a segment's place.
        return stem(self.path.rpartition("/")[0], self.base_offset)

    @property
    def index_path(self) -> str:
        return self.stem + INDEX_SUFFIX

    @property
    def time_index_path(self) -> str:
        return self.stem + TIME_INDEX_SUFFIX

    def note(self, header: BatchHeader, interval_bytes: int) -> None:
        """Take a batch that was just written (or found) at the end into the facts and indexes."""
        position = self.size
        index = self.index
        assert index is not None, "a sealed segment was appended to"
        if position - self.indexed_position >= interval_bytes:
            index.add(header.base_offset - self.base_offset, position)
            if self.max_timestamp != NO_TIMESTAMP:
                index.add_time(self.max_timestamp, self.max_timestamp_offset - self.base_offset)
            self.indexed_position = position
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp = header.max_timestamp
            self.max_timestamp_offset = header.base_offset
        if not position:
            self.first_timestamp = header.max_timestamp
        self.next_offset = header.next_offset
        self.size = position + header.size

    def fits(self, header: BatchHeader) -> bool:
        """Whether the batch's offsets and position can be expressed in the indexes."""
        return (
            header.last_offset - self.base_offset <= RELATIVE_OFFSET_MAX
            and self.size + header.size <= SEGMENT_BYTES_MAX
        )

    def age_ms(self, timestamp: int, now_ms: int) -> int:
        """As Kafka measures it: by record time where there is one, else by the clock."""
        if self.first_timestamp != NO_TIMESTAMP and timestamp != NO_TIMESTAMP:
            return timestamp - self.first_timestamp
        self.created_ms = self.created_ms or now_ms  # Zero after a load.
        return now_ms - self.created_ms

    # Searching

    def floor_offset(self, read: Read, offset: int) -> tuple[int, int] | None:
        """(base offset, position) of the last indexed batch at or below an offset."""
        relative = min(max(offset - self.base_offset, 0), RELATIVE_OFFSET_MAX)
        if (index := self.index) is not None:
            found = index.floor_offset(relative)
        else:
            found = floor_in_file(
                read, self.index_path, self.index_count, OFFSET_ENTRY, 0, relative
            )
        return found and (found[0] + self.base_offset, found[1])

    def floor_position(self, read: Read, position: int) -> tuple[int, int] | None:
        """(base offset, position) of the last indexed batch at or below a position."""
        if (index := self.index) is not None:
            found = index.floor_position(position)
        else:
            found = floor_in_file(
                read, self.index_path, self.index_count, OFFSET_ENTRY, 1, position
            )
        return found and (found[0] + self.base_offset, found[1])

    def floor_time(self, read: Read, timestamp: int) -> tuple[int, int] | None:
        """(max timestamp, base offset of the batch that has it) at or below a timestamp."""
        if (index := self.index) is not None:
            found = index.floor_time(timestamp)
        else:
            found = floor_in_file(
                read, self.time_index_path, self.time_count, TIME_ENTRY, 0, timestamp
            )
        return found and (found[0], found[1] + self.base_offset)

    # Index files

    def flush_index(self, disk: Disk) -> None:
        """Append new entries to the index files and make them durable. Appends may go on."""
        index = self.index
        if index is None:
            return
        count, time_count = len(index.positions), len(index.timed_offsets)
        if count > index.flushed_count:
            disk.append(self.index_path, [index.encode(index.flushed_count, count)])
            disk.sync(self.index_path)
            index.flushed_count = count
        if time_count > index.flushed_time_count:
            disk.append(
                self.time_index_path, [index.encode_times(index.flushed_time_count, time_count)]
            )
            disk.sync(self.time_index_path)
            index.flushed_time_count = time_count

    def write_index(self, disk: Disk) -> None:
        """Write both index files whole, over whatever is there."""
        index = self.index
        assert index is not None
        index.flushed_count, index.flushed_time_count = len(index.offsets), len(index.times)
        disk.write_durably(self.index_path, index.encode(0, index.flushed_count))
        disk.write_durably(self.time_index_path, index.encode_times(0, index.flushed_time_count))

    def unload_index(self) -> None:
        """Drop the entries of a sealed segment from memory: its files have them all."""
        index = self.index
        if index is None:
            return
        assert index.flushed_count == len(index.offsets)
        self.index_count, self.time_count = index.flushed_count, index.flushed_time_count
        self.index = None

    def load_index(self, disk: Disk) -> SparseIndex:
        """Read the expected number of entries; raises BadIndex if the files do not have them."""
        try:
            entries = disk.pread(self.index_path, self.index_count * OFFSET_ENTRY.size, 0)
            times = disk.pread(self.time_index_path, self.time_count * TIME_ENTRY.size, 0)
        except FileNotFoundError:
            if self.index_count or self.time_count:
                raise BadIndex from None
            entries, times = b"", b""
        index = decode(entries, times)
        if len(index.offsets) != self.index_count or len(index.times) != self.time_count:
            raise BadIndex
        return index

    def index_files_match(self, disk: Disk) -> bool:
        """Whether the index files have the sizes that the checkpoint says."""
        return (
            _size(disk, self.index_path) == self.index_count * OFFSET_ENTRY.size
            and _size(disk, self.time_index_path) == self.time_count * TIME_ENTRY.size
        )

    def index_files_equal(self, disk: Disk) -> bool:
        """Whether the index files hold just what is in memory."""
        index = self.index
        assert index is not None
        for path, content in (
            (self.index_path, index.encode(0, self.index_count)),
            (self.time_index_path, index.encode_times(0, self.time_count)),
        ):
            if content and disk.pread(path, len(content), 0) != content:
                return False
            disk.release(path)
        return True

    def _rebuilt(self, disk: Disk, end: int, interval_bytes: int) -> "Segment":
        rebuilt = Segment(self.path.rpartition("/")[0], self.base_offset)
        for _, header in walk(disk.pread, self, 0, end):
            rebuilt.note(header, interval_bytes)
        rebuilt.write_index(disk)
        return rebuilt

    def repair_index(self, disk: Disk, interval_bytes: int) -> None:
        """Build a bad index anew; an active segment may be appended to meanwhile."""
        old = self.index
        if old is None:
            self.rebuild(disk, interval_bytes)
            return
        rebuilt = self._rebuilt(disk, self.size, interval_bytes)
        index = rebuilt.index
        assert index is not None
        for offset, position in zip(old.offsets, old.positions, strict=False):
            if position >= rebuilt.size:
                index.add(offset, position)
        for timestamp, offset in zip(old.times, old.timed_offsets, strict=False):
            if offset + self.base_offset >= rebuilt.next_offset:
                index.add_time(timestamp, offset)
        self.index = index

    def rebuild(self, disk: Disk, interval_bytes: int) -> None:
        """Derive facts and indexes of a sealed segment from its batch headers, and write them."""
        rebuilt = self._rebuilt(disk, disk.size(self.path), interval_bytes)
        self.size, self.next_offset = rebuilt.size, rebuilt.next_offset
        self.first_timestamp = rebuilt.first_timestamp
        self.max_timestamp = rebuilt.max_timestamp
        self.max_timestamp_offset = rebuilt.max_timestamp_offset
        self.index = rebuilt.index
        self.unload_index()

    def rewind(self, disk: Disk, index: SparseIndex, offset: int) -> None:
        """Take over what an index says up to an offset; batches from `size` on are to be noted."""
        relative, position = index.cut(max(offset - self.base_offset, 0))
        if not position or disk.size(self.path) < position + HEADER_SIZE:
            return
        self.index = index
        self.size = position
        self.next_offset = relative + self.base_offset
        if index.positions:
            self.indexed_position = index.positions[-1]
        if index.times:
            self.max_timestamp = index.times[-1]
            self.max_timestamp_offset = index.timed_offsets[-1] + self.base_offset
        first = read_header(disk.pread(self.path, HEADER_SIZE, 0))
        self.first_timestamp = first.max_timestamp

    def remove_files(self, disk: Disk) -> None:
        """Remove the log and its indexes."""
        for path in (self.index_path, self.time_index_path, self.path):
            disk.remove(path)


def _size(disk: Disk, path: str) -> int:
    return disk.size(path) if disk.exists(path) else 0


def header_fault(header: BatchHeader, offset_min: int, room_bytes: int) -> str | None:
    """Why these bytes cannot be the header of the next batch, if they cannot."""
    if header.magic != MAGIC:
        return f"magic {header.magic} instead of {MAGIC}"
    if header.length < HEADER_SIZE - LENGTH_OVERHEAD or header.size > room_bytes:
        return f"a batch of {header.size} bytes where {room_bytes} are left"
    if header.last_offset_delta < 0 or header.base_offset < offset_min:
        return f"offsets from {header.base_offset} where {offset_min} is the least"
    return None


def position_of(segment: Segment, read: Read, offset: int) -> int:
    """A batch's position at or before the batch that holds an offset, as near as indexed."""
    try:
        floor = segment.floor_offset(read, offset)
    except BadIndex:
        return 0
    if floor is None:
        return 0
    head = read(segment.path, HEADER_SIZE, floor[1])
    if len(head) < HEADER_SIZE or read_header(head).base_offset != floor[0]:
        return 0  # A bad index costs time here, never a batch.
    return floor[1]


def walk(
    read: Read, segment: Segment, position: int, end: int
) -> Iterator[tuple[int, BatchHeader]]:
    """The headers of the batches between two positions; raises CorruptLog on one that is none."""
    window: Buffer = b""
    window_start = position
    offset_min = segment.base_offset
    while position < end:
        at = position - window_start
        if at + HEADER_SIZE > len(window):
            window = read(segment.path, min(_WALK_BYTES, end - position), position)
            window_start, at = position, 0
            if len(window) < HEADER_SIZE:
                raise CorruptLog(segment.path, position, offset_min, "the file ends in a header")
        header = read_header(window, at)
        fault = header_fault(header, offset_min, end - position)
        if fault is not None:
            raise CorruptLog(segment.path, position, offset_min, fault)
        yield position, header
        offset_min = header.next_offset
        position += header.size
