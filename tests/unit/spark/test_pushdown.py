"""Filters: what is pushed gives the same rows as what is not."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from chronik.spark.batch_reader import BatchReader
from chronik.spark.layout import layout_for, output_schema
from chronik.spark.offset_range import OffsetRange
from chronik.spark.options import read_options
from chronik.spark.pushdown import Bounds, push

NAMES = {name: name for name in ("topic", "partition", "offset", "timestamp", "value")}
COMPARISONS = {
    EqualTo: lambda a, b: a == b,
    EqualNullSafe: lambda a, b: a == b,
    GreaterThan: lambda a, b: a > b,
    GreaterThanOrEqual: lambda a, b: a >= b,
    LessThan: lambda a, b: a < b,
    LessThanOrEqual: lambda a, b: a <= b,
}
FILTERS = st.one_of(
    st.builds(
        lambda kind, value: kind(("offset",), value),
        st.sampled_from(sorted(COMPARISONS, key=lambda kind: kind.__name__)),
        st.integers(-2, 12),
    ),
    st.builds(lambda value: EqualTo(("partition",), value), st.integers(0, 3)),
    st.builds(
        lambda some: In(("partition",), tuple(some)),
        st.lists(st.one_of(st.integers(0, 3), st.none()), max_size=3),
    ),
    st.builds(lambda value: EqualTo(("topic",), value), st.sampled_from(["a", "b", "c"])),
    st.just(IsNotNull(("offset",))),
)


def passes(each, topic: str, partition: int, offset: int) -> bool:
    row = {"topic": topic, "partition": partition, "offset": offset}
    value = row[each.attribute[0]]
    if isinstance(each, IsNotNull):
        return True
    if isinstance(each, In):
        return value in each.value
    return COMPARISONS[type(each)](value, each.value)


@given(filters=st.lists(FILTERS, max_size=5))
def test_pushed_filters_keep_exactly_the_rows_that_pass(filters) -> None:
    bounds, left = push(filters, NAMES)
    assert left == []
    ranges = [OffsetRange(topic, b"", number, 2, 9) for topic in "ab" for number in range(3)]
    kept = {
        (each.topic, each.partition, offset)
        for whole in ranges
        if (each := bounds.narrow(whole)) is not None
        for offset in range(each.start_offset, each.end_offset)
    }
    wanted = {
        (each.topic, each.partition, offset)
        for each in ranges
        for offset in range(2, 9)
        if all(passes(one, each.topic, each.partition, offset) for one in filters)
    }
    assert kept == wanted


@pytest.mark.parametrize(
    "each",
    [
        Not(EqualTo(("offset",), 3)),
        StringStartsWith(("topic",), "a"),
        EqualTo(("value",), b"x"),
        EqualTo(("offset",), None),
        EqualTo(("offset",), 3.5),
        EqualTo(("offset",), True),
        EqualTo(("offset", "nested"), 3),
        In(("partition",), ("1",)),
        IsNull(("offset",)),
        IsNotNull(("value",)),
        EqualTo(("unknown",), 3),
        GreaterThan(("timestamp",), datetime(2024, 1, 1)),
    ],
)
def test_what_is_not_understood_is_left_to_spark(each) -> None:
    assert push([each], NAMES) == (Bounds(), [each])


def test_times_narrow_the_rows_and_are_left_to_spark_too() -> None:
    low, high = datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 2, tzinfo=UTC)
    filters = [GreaterThanOrEqual(("timestamp",), low), LessThan(("timestamp",), high)]
    bounds, left = push(filters, NAMES)
    assert left == filters
    times = [datetime(2023, 12, 31, 23, 59, 59, 999_999, UTC), low, high]
    kind = pa.timestamp("us", tz="UTC")
    batch = pa.record_batch([pa.array(times, kind)], names=["timestamp"])
    assert bounds.keep(batch).column(0).to_pylist() == [low]


def test_the_reader_plans_whether_spark_pushes_filters_or_not() -> None:
    options = read_options({"bootstrap": "h:1", "subscribe": "t"}, is_stream=False)
    schema = output_schema(options, pa.schema([]), pa.binary())
    reader = BatchReader(options, layout_for(schema, options))
    # How Spark tells that a reader wants filters, and refuses it if the setting is off.
    assert getattr(reader.pushFilters, "__func__", None) is DataSourceReader.pushFilters
    each = EqualTo(("partition",), 3)
    assert list(reader.pushFilters([each, Not(each)])) == [Not(each)]
