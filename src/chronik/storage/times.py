"""Finding a batch by time: the time index says where to begin, headers say where it is.

A time entry is checked against the batch that it names, since an index is only a hint.
"""

from typing import NamedTuple

from chronik.protocol.schema import Buffer
from chronik.storage.errors import BadIndex
from chronik.storage.index import Read
from chronik.storage.read import Batches, verify
from chronik.storage.segment import Segment, position_of, walk


class FoundBatch(NamedTuple):
    """A batch found by time: its base offset and all of its bytes."""

    base_offset: int
    data: Buffer


def find_in(segment: Segment, read: Read, timestamp: int, start_offset: int) -> FoundBatch | None:
    """The first batch from an offset on whose max timestamp is at or above the timestamp."""
    floor = segment.floor_time(read, timestamp - 1)
    if floor is not None:
        _check_entry(segment, read, *floor)
        start_offset = max(start_offset, floor[1])
    start = position_of(segment, read, start_offset)
    for position, header in walk(read, segment, start, segment.size):
        if header.max_timestamp >= timestamp and header.last_offset >= start_offset:
            data = read(segment.path, header.size, position)
            verify(Batches(data, header.next_offset, position + header.size), segment)
            return FoundBatch(header.base_offset, data)
    return None


def _check_entry(segment: Segment, read: Read, timestamp: int, offset: int) -> None:
    for _, header in walk(read, segment, position_of(segment, read, offset), segment.size):
        if header.base_offset >= offset:
            if header.base_offset != offset or header.max_timestamp != timestamp:
                raise BadIndex
            return
    raise BadIndex
