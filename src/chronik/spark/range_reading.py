"""How far a range of offsets has been read: what was fetched, decoded and passed over.

Pure: `log_reader` hands in what a fetch brought and gives out the rows that become of it. Batches
gather in a group until it has enough rows or bytes, since numpy is fastest with many at once.

Invariants
    Each offset of the range is a row once, or counted in a gap once.
    A group holds at most GROUP_BYTES of records, or one batch.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from chronik.client.aborted import AbortedBatches
from chronik.protocol.batch import Batch, BatchHeader, split, verify_crc
from chronik.protocol.messages.fetch import PartitionData
from chronik.spark.offset_range import Gap, Gaps, OffsetRange, Reason
from chronik.spark.record_columns import Payload, read_columns, unpack

# What records decompress to is counted. More at once is not faster.
GROUP_BYTES: Final = 32 * 1024 * 1024


class RangeReading:
    """The state of reading one range."""

    def __init__(
        self,
        wanted: OffsetRange,
        *,
        columns: Sequence[str],
        read_committed: bool,
        batch_rows: int,
        gaps: Gaps,
    ) -> None:
        self.wanted = wanted
        self.position = wanted.start_offset  # the next offset to fetch
        self._passed = wanted.start_offset  # the next offset that is neither row nor gap
        self._start = wanted.start_offset  # the first offset that is wanted and not lost
        self._columns = columns
        self._read_committed = read_committed
        self._batch_rows = batch_rows
        self._gaps = gaps
        self._group: list[Payload] = []
        self._group_start = wanted.start_offset  # the first offset that is wanted of it
        self._group_rows = 0
        self._group_bytes = 0
        self._was_bare = False

    @property
    def is_fetched(self) -> bool:
        """Whether the end of the range has been fetched."""
        return self.position >= self.wanted.end_offset

    def take(self, data: PartitionData) -> list[Batch]:
        """The batches of an answer, none of them decoded; the position moves past them."""
        assert data.records is None or isinstance(data.records, bytes | memoryview)
        batches = split(data.records or b"", partial_tail=True)
        if batches:
            self.position = max(self.position, batches[-1].header.next_offset)
            self._was_bare = False
            return batches
        # Compaction may leave nothing up to the end of the range, although the log goes further.
        # The second such answer in a row says so: the first may have read before the log grew.
        is_bare = self.reached(data) >= self.wanted.end_offset
        if is_bare and self._was_bare:
            self.position = self.wanted.end_offset
        self._was_bare = is_bare
        return batches

    def reached(self, data: PartitionData) -> int:
        """How far the log could be read when this was answered."""
        return data.last_stable_offset if self._read_committed else data.high_watermark

    def rows(self, batches: list[Batch], data: PartitionData) -> Iterator[pa.RecordBatch]:
        """The rows of groups that these batches complete."""
        aborted = AbortedBatches(data.aborted_transactions or ())
        for batch in batches:
            header = batch.header
            verify_crc(batch)
            begin, end = self._clipped(header, self._start)
            self._miss("compacted", self._passed, header.base_offset)
            if header.is_control:
                aborted.ended(batch)
                self._miss("transaction marker", begin, end)
            elif aborted.includes(batch):
                self._miss("aborted", begin, end)
            elif begin < end:
                yield from self._add(batch)
            self._passed = max(self._passed, header.next_offset)
        if self.is_fetched:
            self._miss("compacted", self._passed, self.wanted.end_offset)
            self._passed = max(self._passed, self.wanted.end_offset)

    def rest(self) -> Iterator[pa.RecordBatch]:
        """The rows of the last group."""
        if self._group:
            yield from self._decode()

    def skip(self, reason: Reason, to_offset: int, why: str) -> None:
        """Give up what lies before an offset: it is lost."""
        to_offset = min(to_offset, self.wanted.end_offset)
        self._gaps.note(Gap(reason, self.position, to_offset, to_offset - self.position), why)
        self.position = self._passed = self._start = to_offset

    def out_of_range(self, log_start_offset: int, log_end_offset: int) -> None:
        """The log does not hold the position: it begins later, or ends before."""
        if log_start_offset > self.position:
            why = f"the log now begins at offset {log_start_offset}"
            self.skip("retention", log_start_offset, why)
        elif log_end_offset < self.position:
            why = f"the log now ends at offset {log_end_offset}"
            self.skip("truncated", self.wanted.end_offset, why)

    def _add(self, batch: Batch) -> Iterator[pa.RecordBatch]:
        payload = unpack(batch)
        is_full = self._group_bytes + len(payload.records) > GROUP_BYTES
        if self._group and (is_full or self._group_start != self._start):
            yield from self._decode()
        self._group_start = self._start
        self._group.append(payload)
        self._group_rows += batch.header.record_count
        self._group_bytes += len(payload.records)
        if self._group_rows >= self._batch_rows:
            yield from self._decode()

    def _decode(self) -> Iterator[pa.RecordBatch]:
        group, self._group = self._group, []
        self._group_rows = self._group_bytes = 0
        wanted = self.wanted
        columns = read_columns(group, headers="headers" in self._columns)
        columns = columns.within(self._group_start, wanted.end_offset)
        self._count_removed(group, len(columns))
        # In pieces of one size and of about as many rows as were asked for.
        pieces = max(1, round(len(columns) / self._batch_rows))
        bounds = [len(columns) * index // pieces for index in range(pieces + 1)]
        for index in range(pieces if len(columns) else 0):
            rows = columns.slice(bounds[index], bounds[index + 1])
            yield rows.to_arrow(self._columns, topic=wanted.topic, partition=wanted.partition)

    def _count_removed(self, group: list[Payload], row_count: int) -> None:
        """Note the records that compaction has taken out of batches."""
        spans = [self._clipped(payload.header, self._group_start) for payload in group]
        removed = sum(end - begin for begin, end in spans) - row_count
        if removed:
            self._gaps.note(Gap("compacted", spans[0][0], spans[-1][1], removed))

    def _clipped(self, header: BatchHeader, start_offset: int) -> tuple[int, int]:
        begin = max(header.base_offset, start_offset)
        return begin, min(header.next_offset, self.wanted.end_offset)

    def _miss(self, reason: Reason, start: int, end: int) -> None:
        end = min(end, self.wanted.end_offset)
        if start < end:
            self._gaps.note(Gap(reason, start, end, end - start))
