"""A log's headers, with the whole batch where the header does not tell enough.

Whether a transaction was committed or aborted stands in the record of its control batch. All other
batches are walked by their headers, so that a replay costs little.
"""

from collections.abc import Iterator

from chronik.protocol.batch import Batch, BatchHeader, verify_crc
from chronik.protocol.errors import CorruptBatch
from chronik.protocol.schema import Buffer
from chronik.storage.errors import CorruptLog
from chronik.storage.log import Log
from chronik.storage.segment import Segment, position_of, walk

Scanned = tuple[BatchHeader, Buffer]  # the bytes of a control batch, else none


def scan(log: Log, from_offset: int) -> Iterator[Scanned]:
    """All batches that end at or above an offset. Blocks; raises CorruptLog."""
    read = log.disk.pread
    for segment in list(log.segments):
        if segment.next_offset <= from_offset:
            continue
        start = position_of(segment, read, from_offset)
        for position, header in walk(read, segment, start, segment.size):
            if header.last_offset >= from_offset:
                yield header, _control_batch(log, segment, position, header)


def _control_batch(log: Log, segment: Segment, position: int, header: BatchHeader) -> Buffer:
    if not header.is_control:
        return b""
    batch = log.disk.pread(segment.path, header.size, position)
    try:
        verify_crc(Batch(header, memoryview(batch)))
    except CorruptBatch as error:
        raise CorruptLog(segment.path, position, header.base_offset, str(error)) from None
    return batch
