"""Reading whole batches from a segment, without decoding records and with one read of the data.

The index gives the last indexed batch at or before the offset; the wanted batch is less than one
index interval further. What is read is trimmed in place: headers are walked from the start only up
to the wanted batch, and at the end only from the last index entry before the cut.

Positions come from hints (index entries, the end of an earlier read), so a header that contradicts
its hint raises `BadIndex`: the caller rebuilds the index or reads again. `log` picks the segment.

Many batches need not be read at all to be sent: `find_range` tells where they lie.
"""

from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from chronik.protocol.batch import CRC_START, HEADER_SIZE, LENGTH_OVERHEAD, MAGIC
from chronik.protocol.schema import Buffer
from chronik.storage.errors import BadIndex, CorruptLog
from chronik.storage.file_range import RANGE_BYTES_MIN
from chronik.storage.index import Read
from chronik.storage.segment import Segment

# Base offset, length, magic and last offset delta: what a walk needs of a header.
_STEP: Final = Struct(">qi4xb6xi")
_READ_BYTES_MIN: Final = 4096  # one page: smaller reads cost the same


class Wanted(NamedTuple):
    """What a reader asks of a segment."""

    offset: int
    max_bytes: int
    limit_offset: int  # exclusive: only batches whose last offset is below it
    at_least_one_batch: bool
    interval_bytes: int


class Batches(NamedTuple):
    """Whole batches, and where the one after them starts."""

    data: Buffer
    next_offset: int
    next_position: int


class Range(NamedTuple):
    """Where whole batches lie in a segment's file."""

    position: int
    size: int
    next_offset: int


def read_batches(
    segment: Segment, read: Read, wanted: Wanted, hint_position: int | None
) -> Batches | None:
    """Batches from the one that holds the offset on; None if the segment has none from there."""
    size = segment.size  # Before `next_offset`: an append in between must not look included.
    segment_end_offset = segment.next_offset
    position, expected, offset_min = _nearest(segment, read, wanted.offset, hint_position)
    if position >= size:
        if position > size:
            raise BadIndex
        return None
    while True:
        want = max(wanted.max_bytes, 0) + wanted.interval_bytes
        data = _read(read, segment, min(max(want, _READ_BYTES_MIN), size - position), position)
        start, offset_min = _skip_to(data, wanted.offset, expected, offset_min)
        if start + HEADER_SIZE <= len(data):
            if start > wanted.interval_bytes and segment.index is None:
                _check_unindexed(data, start, wanted.offset)
            break
        # A sparser index than configured, or the end of the segment.
        position += start
        expected = None
        if position >= size:
            return None
    everything = position + len(data) == size and wanted.limit_offset >= segment_end_offset
    if everything and len(data) - start <= wanted.max_bytes:
        return Batches(data[start:], segment_end_offset, size)
    return _trim(segment, read, wanted, data, position, start, size)


def find_range(
    segment: Segment, read: Read, wanted: Wanted, hint_position: int | None
) -> Range | None:
    """Where such batches lie, without reading them; None if they are few, or not easily found.

    It may end before what `read_batches` would give: at the last indexed batch within the limits.
    """
    size = segment.size
    segment_end_offset = segment.next_offset
    position, expected, offset_min = _nearest(segment, read, wanted.offset, hint_position)
    if size - position < RANGE_BYTES_MIN:
        return None
    head = _read(read, segment, wanted.interval_bytes + HEADER_SIZE, position)
    start, _ = _skip_to(head, wanted.offset, expected, offset_min)
    if start + HEADER_SIZE > len(head):
        return None
    position += start
    if size - position <= wanted.max_bytes and wanted.limit_offset >= segment_end_offset:
        return Range(position, size - position, segment_end_offset)
    last = segment.floor_position(read, min(position + wanted.max_bytes, size))
    if last is not None and wanted.limit_offset < last[0]:
        last = segment.floor_offset(read, wanted.limit_offset)
    if last is None or last[1] - position < RANGE_BYTES_MIN:
        return None
    next_offset, end = last
    _skip_to(_read(read, segment, HEADER_SIZE, end), next_offset, next_offset, next_offset)
    return Range(position, end - position, next_offset)


def verify(found: Batches, segment: Segment) -> None:
    """Check every batch that is about to be served; raises CorruptLog.

    Clients may trust their broker and skip checksums. Offsets and magic lie outside of them: the
    former are checked against their neighbours and the segment's end, the latter is always 2.
    """
    data = memoryview(found.data)
    at, offset_min = 0, segment.base_offset
    while at < len(data):
        base_offset, length, magic, delta = _STEP.unpack_from(data, at)
        end = at + length + LENGTH_OVERHEAD
        checksum = int.from_bytes(data[at + CRC_START - 4 : at + CRC_START], "big")
        reason = None
        if magic != MAGIC or end < at + HEADER_SIZE:
            reason = f"no batch: magic {magic}, length {length}"
        elif end > len(data) or crc32c(data[at + CRC_START : end]) != checksum:
            reason = "the checksum does not match"
        elif base_offset < offset_min or base_offset + delta >= segment.next_offset:
            reason = f"offsets from {base_offset} do not fit their neighbours"
        if reason is not None:
            position = found.next_position - len(data) + at
            raise CorruptLog(segment.path, position, offset_min, reason)
        at, offset_min = end, base_offset + delta + 1


def _nearest(
    segment: Segment, read: Read, offset: int, hint_position: int | None
) -> tuple[int, int | None, int]:
    """Where to look for an offset; the base offset that is expected there, and the least one."""
    if hint_position is not None:
        return hint_position, None, offset
    base_offset, position = segment.floor_offset(read, offset) or (None, 0)
    return position, base_offset, segment.base_offset


def _read(read: Read, segment: Segment, size: int, position: int) -> memoryview:
    data = read(segment.path, size, position)
    if len(data) != size:
        raise BadIndex  # The file is shorter than its segment: replaced, or damaged.
    return memoryview(data)


def _skip_to(
    data: memoryview, offset: int, expected: int | None, offset_min: int
) -> tuple[int, int]:
    """Where the batch that holds the offset starts, or where the data ends before it.

    Also the least offset that may stand there: one that falls would be passed over unseen.
    """
    at = 0
    length_min = HEADER_SIZE - LENGTH_OVERHEAD
    while at + HEADER_SIZE <= len(data):
        base_offset, length, magic, delta = _STEP.unpack_from(data, at)
        if magic != MAGIC or length < length_min or delta < 0 or base_offset < offset_min:
            raise BadIndex
        if expected is not None:
            if base_offset != expected:
                raise BadIndex
            expected = None
        if base_offset + delta >= offset:
            return at, offset_min
        at += length + LENGTH_OVERHEAD
        offset_min = base_offset + delta + 1
    return at, offset_min


def _check_unindexed(data: memoryview, start: int, offset: int) -> None:
    """Far from its index entry lies only a batch behind a gap, unless entries are missing."""
    if _STEP.unpack_from(data, start)[0] <= offset:
        raise BadIndex


def _trim(
    segment: Segment,
    read: Read,
    wanted: Wanted,
    data: memoryview,
    position: int,
    start: int,
    size: int,
) -> Batches:
    """Cut after the last whole batch within the limits; the first may exceed `max_bytes`."""
    base_offset, length, _, delta = _STEP.unpack_from(data, start)
    nothing = Batches(b"", base_offset, position + start)
    if base_offset + delta >= wanted.limit_offset:
        return nothing
    first_size = length + LENGTH_OVERHEAD
    if first_size > wanted.max_bytes:
        if not wanted.at_least_one_batch:
            return nothing
        batch = data[start : start + first_size]
        if len(batch) < first_size:
            if position + start + first_size > size:
                raise BadIndex
            batch = _read(read, segment, first_size, position + start)
        return Batches(batch, base_offset + delta + 1, position + start + first_size)
    end_max = min(start + wanted.max_bytes, len(data))
    end, next_offset = _last_known_batch(segment, read, wanted, data, position, start, end_max)
    while end + HEADER_SIZE <= end_max:
        base_offset, length, magic, delta = _STEP.unpack_from(data, end)
        if magic != MAGIC or length <= 0:
            raise BadIndex
        following = end + length + LENGTH_OVERHEAD
        if following > end_max or base_offset + delta >= wanted.limit_offset:
            break
        end, next_offset = following, base_offset + delta + 1
    return Batches(data[start:end], next_offset, position + end)


def _last_known_batch(
    segment: Segment,
    read: Read,
    wanted: Wanted,
    data: memoryview,
    position: int,
    start: int,
    end_max: int,
) -> tuple[int, int]:
    """The last indexed batch start within the limits, to walk from; the first batch if none."""
    if end_max - start > wanted.interval_bytes:
        by_position = segment.floor_position(read, position + end_max)
        by_offset = segment.floor_offset(read, wanted.limit_offset)
        if by_position is not None and by_offset is not None:
            offset, at = min(by_position, by_offset)
            at -= position
            if start < at and at + HEADER_SIZE <= end_max:
                base_offset, _, magic, _ = _STEP.unpack_from(data, at)
                if magic != MAGIC or base_offset != offset:
                    raise BadIndex
                return at, offset
    return start, wanted.offset
