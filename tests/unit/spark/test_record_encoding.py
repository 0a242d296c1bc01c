"""Records made of columns are those that the client's own builder makes, and go where it says."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronik.client.partitioner import murmur2, partition_of
from chronik.protocol.records import BatchBuilder, Record, iter_records, varint
from chronik.spark.errors import SourceError
from chronik.spark.record_encoding import Turns, encoded_batches, murmur2_of, varints
from chronik.spark.write_columns import WRITTEN

headers = st.lists(
    st.fixed_dictionaries({"key": st.text(max_size=3), "value": st.none() | st.binary(max_size=3)}),
    max_size=3,
)
rows = st.fixed_dictionaries(
    {
        "topic": st.sampled_from(["a", "b"]),
        "partition": st.none() | st.integers(0, 2),
        "key": st.none() | st.binary(max_size=9),
        "value": st.none() | st.binary(max_size=200),
        "headers": st.none() | headers,
    }
)


def batch(found: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(found, schema=WRITTEN)


def records_of(data: memoryview, count: int) -> list[Record]:
    return list(iter_records(BatchBuilder.encoded(data, count, 1_000).build()))


def as_record(row: dict[str, Any]) -> tuple[Any, ...]:
    pairs = tuple((pair["key"], pair["value"]) for pair in row["headers"] or ())
    return row["key"], row["value"], pairs


@settings(max_examples=200, deadline=None)
@given(st.lists(rows, max_size=30), st.integers(60, 400), st.integers(0, 5))
def test_each_row_is_one_record_in_order_where_it_belongs(
    found: list[dict[str, Any]], batch_bytes: int, skipped: int
) -> None:
    turns = {"a": Turns(0, 3), "b": Turns(2, 3)}
    some = batch(found).slice(min(skipped, len(found)))  # a slice, as Spark may give one
    written: dict[tuple[str, int], list[tuple[Any, ...]]] = {}
    for place, data, count in encoded_batches(some, turns, batch_bytes):
        assert count == 1 or len(data) <= batch_bytes
        decoded = records_of(data, count)
        assert [record.offset for record in decoded] == list(range(count))
        assert {record.timestamp for record in decoded} == {1_000}
        written.setdefault(tuple(place), []).extend(
            (record.key, record.value, record.headers) for record in decoded
        )
    left = {place: list(records) for place, records in written.items()}
    bound: dict[tuple[str, int], list[tuple[Any, ...]]] = {}
    free = []
    for row in some.to_pylist():
        partition, key = row["partition"], row["key"]
        if partition is None and key is None:
            free.append(row)
            continue
        there = row["topic"], partition_of(key, 3) if partition is None else partition
        left[there].remove(as_record(row))
        bound.setdefault(there, []).append(as_record(row))
    for row in free:
        places = [place for place in left if place[0] == row["topic"]]
        left[next(place for place in places if as_record(row) in left[place])].remove(
            as_record(row)
        )
    assert not any(left.values()), "nothing was added"
    for place, expected in bound.items():
        found_there = iter(written[place])
        assert all(record in found_there for record in expected), "they are in order"


@given(st.lists(st.binary(max_size=40) | st.binary(min_size=250, max_size=300), max_size=20))
def test_hashes_are_kafkas(keys: list[bytes]) -> None:
    whole = pa.array([b"before", *keys], pa.binary()).slice(1)
    assert murmur2_of(whole).tolist() == [murmur2(key) for key in keys]


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-9999, 9999)))
def test_varints_are_the_builders(numbers: list[int]) -> None:
    found = varints(np.array(numbers, dtype=np.int64)).to_pylist()
    assert found == [varint(number) for number in numbers]


def test_records_without_a_key_take_turns_by_the_batch() -> None:
    turns = {"t": Turns(3, 4)}
    row = {"topic": "t", "value": b"x" * 100}
    found = list(encoded_batches(batch([row] * 40), turns, 1_000))
    assert {each.place.partition for each in found} == {0, 1, 2, 3}
    assert sum(each.record_count for each in found) == 40
    assert turns["t"].next_partition != 3
    again = list(encoded_batches(batch([row]), turns, 1_000))
    assert [each.place.partition for each in again] == [turns["t"].next_partition]


def test_a_large_record_has_a_batch_of_its_own() -> None:
    sizes = (10, 5_000, 10, 10)
    values = [{"topic": "t", "partition": 0, "value": b"x" * size} for size in sizes]
    found = list(encoded_batches(batch(values), {"t": Turns(0, 1)}, 1_000))
    assert [each.record_count for each in found] == [1, 1, 2]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"partition": 3}, "t has no partition 3, only 3"),
        ({"partition": -1}, "t has no partition -1, only 3"),
        ({"headers": [{"key": None, "value": b""}]}, "a header has no key"),
        ({"headers": [None]}, "a header has no key"),
    ],
)
def test_rows_that_are_no_records(row: dict[str, Any], words: str) -> None:
    with pytest.raises(SourceError, match=words):
        list(encoded_batches(batch([{"topic": "t", **row}]), {"t": Turns(0, 3)}, 1_000))
