"""Frames for the sink: what is written, and what is refused before anything is."""

import pyarrow as pa
import pytest

from chronik.spark.errors import OptionsError, SourceError
from chronik.spark.options import WriteOptions, write_options
from chronik.spark.record_columns import HEADERS_TYPE
from chronik.spark.write_columns import encoded_fields, written


def options(**given: str) -> WriteOptions:
    return write_options({"bootstrap": "h:1", **given}, is_stream=False)


def test_text_and_bytes_are_written_and_the_option_names_the_topic() -> None:
    batch = pa.record_batch({"key": ["k", None], "value": [b"v", None], "topic": ["x", "y"]})
    assert written(batch, None, options(topic="t")).to_pylist() == [
        {"topic": "t", "partition": None, "key": b"k", "value": b"v", "headers": None},
        {"topic": "t", "partition": None, "key": None, "value": None, "headers": None},
    ]
    assert written(batch, None, options()).column("topic").to_pylist() == ["x", "y"]


def test_headers_and_partitions() -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    batch = pa.record_batch(
        [
            pa.array([b"v"]),
            pa.array([[{"key": "h", "value": b"1"}]], kind),
            pa.array([3], pa.int32()),
        ],
        names=["value", "headers", "partition"],
    )
    row = written(batch, None, options(topic="t"))
    assert row.schema.field("headers").type == HEADERS_TYPE
    assert row.to_pylist()[0]["headers"] == [{"key": "h", "value": b"1"}]
    assert row.to_pylist()[0]["partition"] == 3


def test_encode_takes_all_columns_that_are_not_the_records_own() -> None:
    names = ["id", "key", "value", "topic", "headers", "partition", "offset"]
    types = [
        *(pa.int64(), pa.string(), pa.int32(), pa.string(), HEADERS_TYPE),
        *(pa.int32(), pa.int64()),
    ]
    schema = pa.schema(list(zip(names, types, strict=True)))
    assert encoded_fields(schema, options(encode="json")).names == ["id", "value"]


@pytest.mark.parametrize(
    ("schema", "given", "words"),
    [
        ([("value", pa.string())], {}, "nothing says where to write"),
        ([("id", pa.int64())], {"topic": "t"}, "has no column value"),
        ([("value", pa.string()), ("id", pa.int64())], {"topic": "t"}, "id would not be written"),
        ([("value", pa.int32())], {"topic": "t"}, "value is int32"),
        ([("value", pa.string()), ("key", pa.int64())], {"topic": "t"}, "key is int64"),
        ([("value", pa.string()), ("partition", pa.int64())], {"topic": "t"}, "partition is int64"),
        ([("value", pa.string()), ("headers", pa.string())], {"topic": "t"}, "headers is string"),
        ([("key", pa.string())], {"topic": "t", "encode": "json"}, "no column to make a value of"),
        (
            [("id", pa.int64()), ("_offset", pa.int64())],
            {"topic": "t", "encode": "avro"},
            "_offset into the value",
        ),
    ],
)
def test_frames_that_cannot_be_written(schema, given, words) -> None:
    with pytest.raises(OptionsError, match=words):
        encoded_fields(pa.schema(schema), options(**given))


def test_columns_of_a_read_are_dropped() -> None:
    schema = pa.schema(
        [("value", pa.binary()), ("offset", pa.int64()), ("timestampType", pa.int32())]
    )
    assert not encoded_fields(schema, options(topic="t"))


def test_a_null_topic_is_refused() -> None:
    batch = pa.record_batch({"value": [b"v", b"w"], "topic": ["x", None]})
    with pytest.raises(SourceError, match="null topic"):
        written(batch, None, options())
