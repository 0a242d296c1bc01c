"""Filters that a batch read can answer by reading less: on topic, partition, offset and time.

Topic, partition and offset are answered exactly. A lower bound in time is turned into a start
offset, since every record before the first one at or after a time is older; an upper bound is not,
since producers may give any time to a record, so later offsets may be older. Both bounds are
also applied to the rows before anything is decoded, and left to Spark as well.

Whatever is not understood is left to Spark: that is always right.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from chronik.spark.offset_range import OffsetRange

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_NEVER_NULL: Final = frozenset({"topic", "partition", "offset", "timestamp"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a read is narrowed to; None is no bound, and the greatest values are inclusive."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    offset_min: int = 0
    offset_max: int | None = None
    time_min_us: int | None = None
    time_max_us: int | None = None

    @property
    def has_times(self) -> bool:
        return self.time_min_us is not None or self.time_max_us is not None

    def with_topics(self, names: Iterable[str]) -> Self:
        names = frozenset(names)
        return replace(self, topics=names if self.topics is None else names & self.topics)

    def with_partitions(self, numbers: Iterable[int]) -> Self:
        numbers = frozenset(numbers)
        both = numbers if self.partitions is None else numbers & self.partitions
        return replace(self, partitions=both)

    def with_offsets(self, least: int | None, most: int | None) -> Self:
        if least is not None:
            least = max(least, self.offset_min)
        if most is not None and self.offset_max is not None:
            most = min(most, self.offset_max)
        return replace(
            self,
            offset_min=self.offset_min if least is None else least,
            offset_max=self.offset_max if most is None else most,
        )

    def with_times(self, least: int | None, most: int | None) -> Self:
        if least is not None and self.time_min_us is not None:
            least = max(least, self.time_min_us)
        if most is not None and self.time_max_us is not None:
            most = min(most, self.time_max_us)
        return replace(
            self,
            time_min_us=self.time_min_us if least is None else least,
            time_max_us=self.time_max_us if most is None else most,
        )

    def narrow(self, whole: OffsetRange) -> OffsetRange | None:
        """What is left of a range; None if it is nothing."""
        if self.topics is not None and whole.topic not in self.topics:
            return None
        if self.partitions is not None and whole.partition not in self.partitions:
            return None
        start = max(whole.start_offset, self.offset_min)
        end = whole.end_offset
        if self.offset_max is not None:
            end = min(end, self.offset_max + 1)
        return replace(whole, start_offset=start, end_offset=end) if start < end else None

    def keep(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows whose time is within the bounds."""
        if not self.has_times:
            return batch
        times = batch.column("timestamp").cast(pa.int64())
        if self.time_min_us is not None:
            batch = batch.filter(pc.greater_equal(times, self.time_min_us))
            times = batch.column("timestamp").cast(pa.int64())
        if self.time_max_us is not None:
            batch = batch.filter(pc.less_equal(times, self.time_max_us))
        return batch


def push(filters: Iterable[Filter], log_names: Mapping[str, str]) -> tuple[Bounds, list[Filter]]:
    """The bounds that some filters give together, and the filters that Spark must still apply."""
    bounds = Bounds()
    left: list[Filter] = []
    for each in filters:
        path: tuple[str, ...] = getattr(each, "attribute", ())
        column = log_names.get(path[0]) if len(path) == 1 else None
        narrowed = None if column is None else _narrowed(bounds, column, each)
        if narrowed is not None:
            bounds = narrowed
        if narrowed is None or (column == "timestamp" and not isinstance(each, IsNotNull)):
            left.append(each)
    return bounds, left


def _narrowed(bounds: Bounds, column: str, each: Filter) -> Bounds | None:
    if isinstance(each, IsNotNull):
        return bounds if column in _NEVER_NULL else None
    value = getattr(each, "value", None)
    match column:
        case "topic":
            names = _values(each, value, str)
            return None if names is None else bounds.with_topics(names)
        case "partition":
            numbers = _values(each, value, int)
            return None if numbers is None else bounds.with_partitions(numbers)
        case "offset":
            span = _span(each, value) if type(value) is int else None
            return None if span is None else bounds.with_offsets(*span)
        case "timestamp":
            instant = _microseconds(value)
            span = None if instant is None else _span(each, instant)
            return None if span is None else bounds.with_times(*span)
        case _:
            return None


def _values(each: Filter, value: Any, kind: type) -> set[Any] | None:
    """The values that a column may have; nulls among them match no row."""
    if isinstance(each, EqualTo | EqualNullSafe):
        return {value} if type(value) is kind else None
    if isinstance(each, In):
        kept = [one for one in value if one is not None]
        return set(kept) if all(type(one) is kind for one in kept) else None
    return None


def _span(each: Filter, value: int) -> tuple[int | None, int | None] | None:
    """The least and the greatest value that pass."""
    match each:
        case EqualTo() | EqualNullSafe():
            return value, value
        case GreaterThan():
            return value + 1, None
        case GreaterThanOrEqual():
            return value, None
        case LessThan():
            return None, value - 1
        case LessThanOrEqual():
            return None, value
        case _:
            return None


def _microseconds(value: Any) -> int | None:
    """Since the epoch; None for what is no point in time."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return (value - _EPOCH) // _MICROSECOND
