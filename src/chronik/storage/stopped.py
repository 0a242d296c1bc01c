"""A log that nobody uses, as it lies on disk: every batch, and what is no batch.

Recovery cuts torn tails, finishes compactions and rebuilds indexes. Whoever only looks reads the
same segments here, and changes nothing. A damaged place is passed over: what follows it is read.

Invariant: no file is written, created, renamed or removed; a read-only disk will do.

Whether checksums match and offsets follow each other is left to the reader.
"""

from collections.abc import Iterator
from typing import NamedTuple

from chronik.protocol.batch import HEADER_SIZE, Batch, read_header
from chronik.storage.checkpoint import Checkpoint
from chronik.storage.disk import Disk
from chronik.storage.recovery import find_batch, read_checkpoint, swap_span
from chronik.storage.segment import LOG_SUFFIX, Segment, header_fault


class Hole(NamedTuple):
    """Bytes of a segment that are no batch."""

    path: str
    position: int
    reason: str
    is_tail: bool  # nothing in the segment follows them


class StoppedLog:
    """The segments of one log. Raises CorruptLog if its checkpoint cannot be read."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk, self._directory = disk, directory
        self.checkpoint: Checkpoint = read_checkpoint(disk, directory)
        self._segments = self._listed()

    def _listed(self) -> list[Segment]:
        """The segments in order, compacted ones instead of those that they replace."""
        names = self._disk.list(self._directory)
        swaps = {name: span for name in names if (span := swap_span(name)) is not None}
        found = [
            Segment(self._directory, base_offset)
            for base_offset in (int(name[:20]) for name in names if name.endswith(LOG_SUFFIX))
            if not any(start <= base_offset < end for start, end in swaps.values())
        ]
        for name, (start, _) in swaps.items():
            segment = Segment(self._directory, start)
            segment.path = f"{self._directory}/{name}"
            found.append(segment)
        return sorted(found, key=lambda each: each.base_offset)

    def shortened(self) -> list[str]:
        """The sealed segments that have another size than the checkpoint says, or are gone."""
        there = {each.base_offset: each.path for each in self._segments}
        return [
            there.get(facts.base_offset, f"segment {facts.base_offset}")
            for facts in self.checkpoint.segments
            if facts.next_offset > self.checkpoint.log_start_offset
            and not there.get(facts.base_offset, "").endswith(".swap")
            and facts.size != self._size(there.get(facts.base_offset))
        ]

    def _size(self, path: str | None) -> int:
        return -1 if path is None else self._disk.size(path)

    def end_offset(self) -> int:
        """Where the last batch ends that is there; the log's start if there is none."""
        for segment in reversed(self._segments):
            last = segment.base_offset - 1
            for piece in self._pieces(segment):
                if isinstance(piece, Batch):
                    last = piece.header.last_offset
            if last >= segment.base_offset:
                return last + 1
        return self.checkpoint.log_start_offset

    def batches(self, from_offset: int) -> Iterator[Batch | Hole]:
        """What lies at or after an offset, in the order of the files."""
        segments = self._segments
        while len(segments) > 1 and segments[1].base_offset <= from_offset:
            segments = segments[1:]
        for segment in segments:
            for piece in self._pieces(segment):
                if isinstance(piece, Hole) or piece.header.next_offset > from_offset:
                    yield piece

    def _pieces(self, segment: Segment) -> Iterator[Batch | Hole]:
        position, end = 0, self._disk.size(segment.path)
        while position < end:
            head = self._disk.pread(segment.path, HEADER_SIZE, position)
            reason: str | None = "the file ends within a header"
            if len(head) == HEADER_SIZE:
                header = read_header(head)
                reason = header_fault(header, 0, end - position)
            if reason is None:
                data = self._disk.pread(segment.path, header.size, position)
                yield Batch(header, memoryview(data))
                position += header.size
                continue
            following = find_batch(self._disk, segment, position + 1, end, segment.base_offset)
            yield Hole(segment.path, position, reason, following is None)
            position = end if following is None else following
        self._disk.release(segment.path)
