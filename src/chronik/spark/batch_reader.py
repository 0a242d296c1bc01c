"""The batch read: all offsets of a read are fixed when it is planned, on the driver.

Filters on topic, partition, offset and timestamp narrow what is read (see `pushdown`), where Spark
pushes filters to Python sources at all (`spark.sql.python.filterPushdown.enabled`).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from chronik.model import TopicPartition
from chronik.spark.layout import Layout
from chronik.spark.log_facts import LogFacts
from chronik.spark.offset_range import OffsetRange
from chronik.spark.options import ReadOptions
from chronik.spark.planning import cut, parts_of, parts_within
from chronik.spark.pushdown import Bounds, push
from chronik.spark.resolution import (
    NO_OFFSET,
    batch_ranges,
    bytes_per_offset,
    check_id,
    find_spans,
    find_topics,
)
from chronik.spark.tasks import RangePartition, read_range


class _PushFilters:
    """The reader's `pushFilters`, which Spark may call or not.

    Spark refuses to plan a reader that overrides the method while the setting is off. It tells by
    `__func__`, so this shows the inherited one: a read works either way, only faster with it on.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, take: Callable[[Iterable[Filter]], list[Filter]]) -> None:
        self._take = take

    def __call__(self, filters: Iterable[Filter]) -> list[Filter]:
        return self._take(filters)


class BatchReader(DataSourceReader):
    """Plans a batch read on the driver, and reads a part of it in each task."""

    def __init__(self, options: ReadOptions, layout: Layout) -> None:
        self._options = options
        self._layout = layout
        self._bounds = Bounds()

    @property
    def pushFilters(self) -> _PushFilters:
        return _PushFilters(self._take)

    def _take(self, filters: Iterable[Filter]) -> list[Filter]:
        self._bounds, left = push(filters, self._layout.log_names)
        return left

    def partitions(self) -> list[InputPartition]:
        options = self._options
        with LogFacts(options.connection) as facts:
            topics = find_topics(facts, options.subscription)
            check_id(topics, options.topic_id)
            found = find_spans(facts, topics, read_committed=options.read_committed)
            ranges = self._narrowed(facts, batch_ranges(facts, options, found))
            parts = parts_within(ranges, options.max_records)
            wanted = options.min_partitions or 0
            if ranges and sum(parts.values()) < wanted:
                weights = bytes_per_offset(facts, topics, found)
                parts = parts_of(ranges, wanted, weights, options.max_records)
        return [RangePartition(each) for each in cut(ranges, parts)]

    def _narrowed(self, facts: LogFacts, ranges: list[OffsetRange]) -> list[OffsetRange]:
        narrowed = [found for each in ranges if (found := self._bounds.narrow(each)) is not None]
        if self._bounds.time_min_us is None:
            return [each for each in narrowed if each.start_offset < each.end_offset]
        return self._after(facts, narrowed, max(self._bounds.time_min_us // 1000, 0))

    def _after(self, facts: LogFacts, ranges: list[OffsetRange], time_ms: int) -> list[OffsetRange]:
        """The ranges from the first record at or after a time."""
        asked = {TopicPartition(each.topic, each.partition): time_ms for each in ranges}
        firsts = facts.offsets(asked, read_committed=self._options.read_committed)
        later = [
            replace(each, start_offset=max(each.start_offset, firsts[each.place]))
            for each in ranges
            if firsts[each.place] != NO_OFFSET
        ]
        return [each for each in later if each.start_offset < each.end_offset]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(
            partition,
            connection=self._options.connection,
            layout=self._layout,
            read_committed=self._options.read_committed,
            fail_on_data_loss=self._options.fail_on_data_loss,
            bounds=self._bounds,
        )
