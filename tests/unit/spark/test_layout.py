"""Layouts: what a read gives, column by column, and that rows keep their places."""

import pickle
from datetime import date
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from chronik.spark.decode.schema_text import parse_schema
from chronik.spark.errors import OptionsError, SourceError
from chronik.spark.layout import Layout, key_type, layout_for, make_decoder, output_schema
from chronik.spark.options import ReadOptions, read_options
from chronik.spark.record_columns import SCHEMA
from chronik.spark.source import _layout
from chronik.spark.tasks import PYTHON, check_python
from chronik.spark.value_schema import key_decoder_of, value_fields

RAW = "key,value,topic,partition,offset,timestamp,timestampType"


def options(**given: str) -> ReadOptions:
    return read_options({"bootstrap": "h:1", "subscribe": "t", **given}, is_stream=False)


def records(values: list[bytes | None], keys: list[bytes | None] | None = None) -> pa.RecordBatch:
    count = len(values)
    columns = {
        "key": keys or [None] * count,
        "value": values,
        "topic": ["t"] * count,
        "partition": [3] * count,
        "offset": list(range(10, 10 + count)),
        "timestamp": [1_700_000_000_000_000] * count,
        "timestampType": [0] * count,
        "headers": [[{"key": "h", "value": b"1"}]] * count,
    }
    return pa.record_batch([pa.array(columns[f.name], f.type) for f in SCHEMA], schema=SCHEMA)


def schema_of(read: ReadOptions) -> StructType:
    return output_schema(read, value_fields(read), key_type(key_decoder_of(read)))


def layout_of(read: ReadOptions) -> Layout:
    return pickle.loads(pickle.dumps(_layout(schema_of(read), read)))


def test_raw_columns_are_those_of_the_kafka_source() -> None:
    assert ",".join(schema_of(options()).names) == RAW
    with_headers = schema_of(options(includeHeaders="true"))
    assert ",".join(with_headers.names) == f"{RAW},headers"
    assert with_headers["headers"].dataType.simpleString() == (
        "array<struct<key:string,value:binary>>"
    )


def test_batches_have_exactly_the_types_that_spark_expects() -> None:
    read = options(includeHeaders="true")
    schema = schema_of(read)
    layout = layout_of(read)
    arranged = layout.arrange(records([b"v", None]).select(layout.log_columns))
    assert to_arrow_schema(schema, timezone="UTC").equals(arranged.schema)
    assert arranged.column("headers").to_pylist()[0] == [{"key": "h", "value": b"1"}]


def test_columns_are_chosen_in_their_order_and_no_others_are_read() -> None:
    layout = layout_of(options(columns="offset,key"))
    assert layout.schema.names == ["offset", "key"]
    assert layout.log_columns == ["key", "offset"]


def test_an_unknown_column_is_refused() -> None:
    with pytest.raises(OptionsError, match="columns names nothing, which this read does not have"):
        schema_of(options(columns="nothing"))


def test_decoded_fields_come_first_and_then_what_the_log_knows() -> None:
    read = options(decode="json", schema="id BIGINT, amount DECIMAL(10,2), day DATE")
    assert schema_of(read).names == [
        *("id", "amount", "day"),
        *("_key", "_topic", "_partition", "_offset", "_timestamp", "_error"),
    ]
    layout = layout_of(read)
    values = [b'{"id": 1, "amount": 2.50, "day": "2024-02-29"}', None, b"{", b'{"id": 2}']
    batch = layout.arrange(records(values).select(layout.log_columns))
    assert batch.column("id").to_pylist() == [1, None, None, 2]
    assert batch.column("amount").to_pylist() == [Decimal("2.50"), None, None, None]
    assert batch.column("day")[0].as_py() == date(2024, 2, 29)
    assert batch.column("_offset").to_pylist() == [10, 11, 12, 13]
    errors = batch.column("_error").to_pylist()
    assert [error is None for error in errors] == [True, True, False, True]


def test_nested_types_pass_spark_and_back() -> None:
    text = (
        "a ARRAY<STRUCT<x: INT, y: MAP<STRING, DOUBLE>>>, at TIMESTAMP, m MAP<STRING, ARRAY<INT>>"
    )
    read = options(decode="json", schema=text)
    layout = layout_of(read)
    value = b'{"a": [{"x": 1, "y": {"k": 0.5}}], "at": "2024-01-01T00:00:00Z", "m": {"q": [1]}}'
    row = layout.arrange(records([value]).select(layout.log_columns)).to_pylist()[0]
    assert row["_error"] is None
    assert row["a"] == [{"x": 1, "y": [("k", 0.5)]}]
    assert row["m"] == [("q", [1])]


def test_raw_values_and_types_can_be_asked_for_beside_the_fields() -> None:
    layout = layout_of(options(decode="json", schema="id INT", columns="_value,id,_timestampType"))
    batch = layout.arrange(records([b'{"id": 7}']).select(layout.log_columns))
    assert batch.to_pylist() == [{"_value": b'{"id": 7}', "id": 7, "_timestampType": 0}]


@pytest.mark.parametrize("columns", ["id,_error", "_error", "_offset,_error,p", "_value,_error"])
def test_errors_do_not_depend_on_the_columns_that_are_chosen(columns: str) -> None:
    values = [b'{"id": "x", "p": 1}', b'{"id": 1, "p": "bad"}', b"nope", None, b'{"id": 1, "p": 2}']
    given = {"decode": "json", "schema": "id BIGINT, p BIGINT"}

    def rows(**more: str) -> pa.RecordBatch:
        layout = layout_of(options(**given, **more))
        return layout.arrange(records(values).select(layout.log_columns))

    whole, chosen = rows(), rows(columns=columns)
    assert chosen.schema.names == columns.split(",")
    for name in {"id", "p", "_error"} & set(chosen.schema.names):
        assert chosen.column(name).to_pylist() == whole.column(name).to_pylist()


def test_columns_that_were_shown_keep_their_types(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is inferred a second time, for the fields that are not shown, may differ by then."""
    read = options(decode="json", columns="price,_error")
    later = [pa.schema([("price", pa.string()), ("more", pa.int64())])]
    monkeypatch.setattr("chronik.spark.source.value_fields", lambda options: later[0])
    fields = pa.schema([("price", pa.int64()), ("more", pa.int64())])
    schema = output_schema(read, fields, key_type(None))
    layout = _layout(schema, read)
    values: list[bytes | None] = [b'{"price": 1}', b'{"price": "n/a"}', b'{"more": "x"}']
    found = layout.arrange(records(values))
    assert found.column("price").to_pylist() == [1, None, None]
    assert [each is None for each in found.column("_error").to_pylist()] == [True, False, False]


@pytest.mark.parametrize("columns", ["_offset,_error", "_error"])
def test_errors_of_texts_alone(columns: str) -> None:
    layout = layout_of(options(decode="string", columns=columns))
    batch = layout.arrange(records([b"a", b"\xff", None]).select(layout.log_columns))
    assert [each is None for each in batch.column("_error").to_pylist()] == [True, False, True]


def test_a_users_schema_of_errors_of_texts() -> None:
    layout = layout_for(StructType().add("_error", "string"), options(decode="string"))
    batch = layout.arrange(records([b"a", b"\xff"]).select(layout.log_columns))
    assert [each is None for each in batch.column("_error").to_pylist()] == [True, False]


def test_a_users_schema_is_the_whole_output() -> None:
    read = options(decode="json")
    schema = StructType().add("id", "long").add("_offset", "long").add("_error", "string")
    layout = layout_for(schema, read)
    batch = layout.arrange(records([b'{"id": 7}', b"?"]).select(layout.log_columns))
    assert batch.schema.names == ["id", "_offset", "_error"]
    assert batch.column("id").to_pylist() == [7, None]


@pytest.mark.parametrize(
    ("schema", "given", "words"),
    [
        (StructType().add("id", "long"), {}, "add the option decode"),
        (StructType().add("offset", "integer"), {}, "cast it after the read"),
        (StructType().add("_key", "string"), {"decode": "json"}, "cast it after the read"),
        (StructType().add("offset", "long"), {"columns": "key"}, "keep one of them"),
        (
            StructType().add("id", "long"),
            {"decode": "json", "schema": "id INT"},
            "differ in id: keep one",
        ),
    ],
)
def test_a_users_schema_that_cannot_be(schema, given, words) -> None:
    with pytest.raises(OptionsError, match=words):
        layout_for(schema, options(**given))


def test_a_field_named_like_a_column_of_ours_is_refused() -> None:
    with pytest.raises(SourceError, match="a field _offset"):
        schema_of(options(decode="json", schema="_offset BIGINT"))


def test_strings() -> None:
    read = options(decode="string", decodeKey="string", columns="value,_key,_error")
    layout = layout_of(read)
    batch = layout.arrange(
        records([b"a", b"\xff", None, b"d"], [b"k", None, b"l", b"\xff"]).select(layout.log_columns)
    )
    assert batch.column("value").to_pylist() == ["a", None, None, "d"]
    assert batch.column("_key").to_pylist() == ["k", None, "l", None]
    errors = batch.column("_error").to_pylist()
    assert errors[0] is None
    assert errors[1].startswith("not UTF-8")
    assert errors[2] is None
    assert errors[3].startswith("key: not UTF-8")


def test_keys_alone_can_be_decoded() -> None:
    layout = layout_of(options(decodeKey="json", keySchema="id INT", columns="key,value,_error"))
    batch = layout.arrange(
        records([b"a", b"b", b"c"], [b'{"id": 1}', None, b"?"]).select(layout.log_columns)
    )
    assert batch.column("key").to_pylist() == [{"id": 1}, None, None]
    assert batch.column("value").to_pylist() == [b"a", b"b", b"c"]
    assert batch.column("_error")[2].as_py().startswith("key: ")


def test_the_schema_option_may_be_spark_json() -> None:
    json = StructType().add("id", "long").json()
    assert parse_schema(json) == pa.schema([("id", pa.int64())])
    assert make_decoder("json", None, json).schema.names == ["id"]


def test_workers_of_another_python_are_told() -> None:
    check_python(PYTHON)
    with pytest.raises(SourceError, match="set PYSPARK_PYTHON"):
        check_python((2, 7))
