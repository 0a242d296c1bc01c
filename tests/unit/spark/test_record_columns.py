"""Columns of record batches, against the reader of single records."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronik.protocol import codecs
from chronik.protocol.batch import Batch, assemble, read_header, split
from chronik.protocol.errors import CorruptBatch, KafkaError
from chronik.protocol.records import Record, build_batch, iter_records, varint
from chronik.spark import record_columns
from chronik.spark.record_columns import SCHEMA, read_columns, unpack

# Lengths on both sides of where a varint grows a byte: 64, 8,192.
blobs = (
    st.none()
    | st.binary(max_size=70)
    | st.sampled_from([b"", b"x" * 63, b"x" * 64, b"y" * 8191, b"y" * 8192])
)
header_lists = st.lists(st.tuples(st.text(max_size=5), blobs), max_size=4).map(tuple)
timestamps = st.integers(-(2**40), 2**40) | st.sampled_from([-1, 0, 2**53, 2**62])
rows = st.tuples(timestamps, blobs, blobs, header_lists)
gaps = st.integers(1, 300) | st.sampled_from([1, 1, 1, 2**20])


@st.composite
def batch_lists(draw: st.DrawFn) -> list[bytes]:
    batches = []
    offset = draw(st.integers(0, 2**40))
    for _ in range(draw(st.integers(0, 4))):
        base = offset
        records = []
        for row in draw(st.lists(rows, max_size=12)):
            records.append(Record(offset, *row))
            offset += draw(gaps)
        codec = draw(st.sampled_from(sorted(codecs.NAMES)))
        append_time = draw(st.none() | st.integers(0, 2**40))
        batches.append(
            build_batch(records, base_offset=base, codec=codec, append_time_ms=append_time)
        )
        offset += draw(gaps)
    return batches


def columns_of(*batches: bytes, headers: bool = True) -> record_columns.RecordColumns:
    payloads = [unpack(Batch(read_header(each), memoryview(each))) for each in batches]
    return read_columns(payloads, headers=headers)


def expected(batches: list[bytes]) -> list[dict[str, object]]:
    return [
        {
            "key": record.key,
            "value": record.value,
            "topic": "t",
            "partition": 7,
            "offset": record.offset,
            "timestamp": max(min(record.timestamp, 2**63 // 1000), -(2**63) // 1000) * 1000,
            "timestampType": int(read_header(batch).is_append_time),
            "headers": [{"key": name, "value": value} for name, value in record.headers] or None,
        }
        for batch in batches
        for record in iter_records(batch)
    ]


def rows_of(batch: pa.RecordBatch) -> list[dict[str, object]]:
    at = batch.schema.get_field_index("timestamp")
    return batch.set_column(at, "timestamp", batch.column(at).cast(pa.int64())).to_pylist()


@settings(max_examples=300, deadline=None)
@given(batch_lists())
def test_columns_are_the_records(batches: list[bytes]) -> None:
    found = columns_of(*batches).to_arrow(SCHEMA.names, topic="t", partition=7)
    found.validate(full=True)
    assert found.schema == SCHEMA
    assert rows_of(found) == expected(batches)


@settings(max_examples=100, deadline=None)
@given(batch_lists(), st.integers(0, 2**40), st.integers(0, 100))
def test_a_range_of_offsets(batches: list[bytes], start: int, span: int) -> None:
    columns = columns_of(*batches)
    if len(columns):
        start = int(columns.offsets[start % len(columns)])
    found = columns.within(start, start + span).to_arrow(SCHEMA.names, topic="t", partition=7)
    found.validate(full=True)
    assert rows_of(found) == [
        row for row in expected(batches) if start <= row["offset"] < start + span
    ]


@settings(max_examples=200, deadline=None)
@given(batch_lists(), st.data())
def test_damage_is_noticed_or_harmless(batches: list[bytes], data: st.DataObject) -> None:
    """Any change of a payload raises what is meant for it, never something else."""
    records = [Record(i, i, b"k", b"v" * 70, (("h", b"x"),)) for i in range(4)]
    whole = bytearray(build_batch(records))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(61, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        wanted = list(iter_records(bytes(whole)))
    except CorruptBatch:
        with pytest.raises(CorruptBatch):
            columns_of(bytes(whole))
    else:
        found = columns_of(bytes(whole))
        assert found.offsets.tolist() == [record.offset for record in wanted]
        values = found.to_arrow(["value"], topic="t", partition=0).column(0)
        assert values.to_pylist() == [record.value for record in wanted]


@pytest.mark.parametrize("codec", sorted(codecs.NAMES))
def test_every_codec(codec: int) -> None:
    records = [Record(i, 1000 + i, b"key", b"value" * i) for i in range(200)]
    batch = build_batch(records, codec=codec)
    found = columns_of(batch).to_arrow(SCHEMA.names, topic="t", partition=7)
    assert rows_of(found) == expected([batch])


def test_batches_of_a_fetch_are_read_at_once() -> None:
    batches = [
        build_batch(
            [Record(10 * i + j, j, None, b"%d" % j) for j in range(i + 1)], base_offset=10 * i
        )
        for i in range(5)
    ]
    columns = read_columns([unpack(batch) for batch in split(b"".join(batches))])
    assert columns.offsets.tolist() == [10 * i + j for i in range(5) for j in range(i + 1)]


def test_headers_are_read_only_when_wanted() -> None:
    batch = build_batch([Record(0, 0, b"k", b"v", (("a", b"1"), ("b", None)))])
    columns = columns_of(batch, headers=False)
    assert columns.headers is None
    assert columns.to_arrow(["value"], topic="t", partition=0).to_pylist() == [{"value": b"v"}]


def test_a_record_with_many_headers_beside_others_with_few() -> None:
    many = tuple((f"h{i}", b"x" * i if i % 3 else None) for i in range(300))
    records = [Record(i, 0, None, b"v", (("one", b"1"),)) for i in range(20)]
    batch = build_batch([*records, Record(20, 0, None, b"w", many), Record(21, 0, None, b"z")])
    found = columns_of(batch).to_arrow(["headers", "value"], topic="t", partition=0)
    found.validate(full=True)
    wanted = [{"key": name, "value": value} for name, value in many]
    assert found.column("headers")[20].as_py() == wanted
    assert found.column("headers")[21].as_py() is None
    assert found.column("headers")[3].as_py() == [{"key": "one", "value": b"1"}]


def test_a_header_key_that_is_no_text_is_shown_as_far_as_it_is() -> None:
    name = b"a\xff".decode(errors="surrogateescape")
    batch = build_batch([Record(0, 0, None, None, ((name, b"1"),))])
    found = columns_of(batch).to_arrow(["headers"], topic="t", partition=0)
    assert found.column(0)[0].as_py() == [{"key": "a\ufffd", "value": b"1"}]


def test_timestamps_before_the_first_record_of_the_batch() -> None:
    batch = build_batch([Record(0, 1000, None, b""), Record(1, -500, None, b"")])
    assert columns_of(batch).timestamps_ms.tolist() == [1000, -500]


def test_a_time_that_microseconds_cannot_hold_becomes_the_last_that_fits() -> None:
    batch = build_batch([Record(0, 2**62, None, b"")])
    column = columns_of(batch).to_arrow(["timestamp"], topic="t", partition=0).column(0)
    assert column.cast(pa.int64()).to_pylist() == [2**63 // 1000 * 1000]


def test_rows_without_columns_can_be_counted() -> None:
    batch = build_batch([Record(0, 0, None, b""), Record(1, 0, None, b"")])
    assert columns_of(batch).to_arrow([], topic="t", partition=0).num_rows == 2


def test_an_unknown_column_is_named() -> None:
    with pytest.raises(ValueError, match="there is no column 'colour', only key, value"):
        columns_of().to_arrow(["colour"], topic="t", partition=0)


def test_no_batches_are_no_rows() -> None:
    found = columns_of().to_arrow(SCHEMA.names, topic="t", partition=0)
    assert found.num_rows == 0
    assert found.schema == SCHEMA


def raw(payload: bytes, count: int) -> bytes:
    header = read_header(build_batch([]))
    return assemble(header._replace(record_count=count), payload)


@pytest.mark.parametrize(
    ("payload", "count"),
    [
        (b"", 1),
        (b"\x80", 1),
        (b"\x80\x80\x80\x80\x80\x80", 1),
        (b"\xff\xff\xff\xff\x7f", 1),
        (varint(6) + b"\x00\x00\x00\x01\x01\x00" + b"\x00", 1),  # a byte too many
        (varint(6) + b"\x00\x00\x00\x01\x01", 1),  # a byte too few
        (varint(5) + b"\x00\x00\x00\x01\x01\x00", 1),
        (varint(6) + b"\x00\x00\x00\x03\x01\x00", 1),  # a key of length -2
        (varint(6) + b"\x00\x00\x00\x01\x01\x01", 1),  # -1 headers
        (varint(6) + b"\x00\x00\x00\x01\x01\x7e", 1),  # 63 headers that are not there
    ],
)
def test_malformed_records_are_refused(payload: bytes, count: int) -> None:
    batch = raw(payload, count)
    with pytest.raises(CorruptBatch):
        list(iter_records(batch))
    with pytest.raises(CorruptBatch):
        columns_of(batch)


def test_a_record_may_not_reach_into_the_next_batch() -> None:
    good = build_batch([Record(0, 0, None, b"v" * 20)])
    payload = good[61:]
    first = raw(payload[:-5], 1)
    second = raw(payload[-5:] + payload, 1)
    with pytest.raises(CorruptBatch, match="cut short"):
        columns_of(first, second)


def test_what_unfolds_to_too_much_is_refused() -> None:
    batch = build_batch([Record(0, 0, None, b"0" * 100_000)], codec=codecs.ZSTD)
    with pytest.raises(KafkaError, match="more than 1000 bytes"):
        unpack(Batch(read_header(batch), memoryview(batch)), bytes_max=1000)


def test_more_than_two_gibibytes_at_once_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_columns, "BUFFER_BYTES_MAX", 1000)
    batch = build_batch([Record(0, 0, None, b"0" * 600)])
    assert len(columns_of(batch)) == 1
    with pytest.raises(ValueError, match="read fewer batches"):
        columns_of(batch, batch)


def test_slices_keep_headers_with_their_rows() -> None:
    records = [
        Record(i, 0, None, None, tuple((f"{i}-{j}", b"") for j in range(i))) for i in range(6)
    ]
    columns = columns_of(build_batch(records))
    for first in range(7):
        for last in range(first, 7):
            part = columns.slice(first, last).to_arrow(["headers"], topic="t", partition=0)
            names = [[pair["key"] for pair in row or ()] for row in part.column(0).to_pylist()]
            assert names == [[f"{i}-{j}" for j in range(i)] for i in range(first, last)]
    assert columns.offsets.dtype == np.int64
