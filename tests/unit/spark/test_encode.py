"""Columns become values, and `decode` gives them back."""

import datetime
import json
import pickle
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from chronik.spark import encode
from chronik.spark.decode import decoder_for
from chronik.spark.encode import avro_schema, encoder_for
from chronik.spark.errors import OptionsError, SourceError

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("price", pa.decimal128(10, 2)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("naive", pa.timestamp("us")),
        ("raw", pa.binary()),
        ("tags", pa.list_(pa.field("element", pa.string()))),
        ("m", pa.map_(pa.string(), pa.list_(pa.field("element", pa.date32())))),
        ("s", pa.struct([("x", pa.float64()), ("m", pa.map_(pa.string(), pa.int32()))])),
    ]
)
dates = st.dates()
rows = st.fixed_dictionaries(
    {
        "id": st.none() | st.integers(-(2**63), 2**63 - 1),
        "name": st.none() | st.text(max_size=5),
        "price": st.none() | st.decimals(-9999, 9999, places=2, allow_nan=False),
        "day": st.none() | dates,
        "at": st.none() | st.datetimes(timezones=st.just(datetime.UTC)),
        "naive": st.none() | st.datetimes(),
        "raw": st.none() | st.binary(max_size=5),
        "tags": st.none() | st.lists(st.none() | st.text(max_size=3), max_size=3),
        "m": st.none()
        | st.dictionaries(
            st.text(max_size=3), st.none() | st.lists(dates, max_size=2), max_size=2
        ).map(lambda found: list(found.items())),
        "s": st.none()
        | st.fixed_dictionaries(
            {
                "x": st.floats(allow_nan=False, allow_infinity=False),
                "m": st.none()
                | st.dictionaries(st.text(max_size=2), st.integers(-5, 5), max_size=2).map(
                    lambda found: list(found.items())
                ),
            }
        ),
    }
)


def batch(found: list[dict[str, Any]], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(found, schema=schema)


@settings(max_examples=150, deadline=None)
@given(st.lists(rows, max_size=5))
def test_json_there_and_back(found: list[dict[str, Any]]) -> None:
    columns = batch(found)
    values = encoder_for("json", schema=SCHEMA).encode(columns)
    decoded = decoder_for("json", schema=SCHEMA).decode(values)
    assert decoded.errors.null_count == len(found)
    assert decoded.columns.to_pylist() == columns.to_pylist()


def test_json_text() -> None:
    row = {
        "id": 1,
        "name": "é\n",
        "price": Decimal("1.50"),
        "day": datetime.date(2020, 1, 2),
        "at": datetime.datetime(2020, 1, 2, 3, 4, 5, 6, tzinfo=datetime.UTC),
        "naive": datetime.datetime(2020, 1, 2, 3, 4, 5),
        "raw": b"\x00",
        "tags": ["a", None],
        "m": [("k", [datetime.date(2020, 1, 2)])],
        "s": {"x": float("nan"), "m": []},
    }
    (value,) = encoder_for("json", schema=SCHEMA).encode(batch([row])).to_pylist()
    assert json.loads(value) == {
        "id": 1,
        "name": "é\n",
        "price": "1.50",
        "day": "2020-01-02",
        "at": "2020-01-02T03:04:05.000006Z",
        "naive": "2020-01-02T03:04:05.000000",
        "raw": "AA==",
        "tags": ["a", None],
        "m": {"k": ["2020-01-02"]},
        "s": {"x": None, "m": {}},
    }
    assert b"\n" not in value


AVRO = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "id", "type": ["null", "long"]},
        {"name": "name", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
        },
        {"name": "m", "type": {"type": "map", "values": "int"}},
        {"name": "more", "type": "int", "default": 5},
    ],
}
AVRO_COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("price", pa.decimal128(10, 2)),
        ("m", pa.map_(pa.string(), pa.int32())),
    ]
)


def test_avro_there_and_back() -> None:
    text = json.dumps(AVRO)
    encoder = pickle.loads(
        pickle.dumps(encoder_for("avro", schema=AVRO_COLUMNS, options={"schema": text}))
    )
    found = [
        {
            "id": number or None,
            "name": f"n{number}",
            "at": datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC),
            "price": Decimal("1.25"),
            "m": [("a", number)],
        }
        for number in range(3)
    ]
    values = encoder.encode(batch(found, AVRO_COLUMNS))
    decoded = decoder_for("avro", options={"schema": text}).decode(values)
    assert decoded.columns.to_pylist() == [{**row, "more": 5} for row in found]


def test_a_row_that_does_not_fit_is_shown() -> None:
    encoder = encoder_for("avro", schema=AVRO_COLUMNS, options={"schema": json.dumps(AVRO)})
    with pytest.raises(SourceError, match=r"does not fit the Avro schema.*\"id\": 7"):
        encoder.encode(batch([{"id": 7, "name": None}], AVRO_COLUMNS))


@pytest.mark.parametrize(
    ("format_name", "schema", "options", "text"),
    [
        ("xml", AVRO_COLUMNS, {}, "there is no format 'xml', only json, avro"),
        ("avro", pa.schema([("a b", pa.int32())]), {}, "'a b' is no name in Avro"),
        ("avro", pa.schema([("a", pa.duration("us"))]), {}, "column a is duration"),
        ("json", pa.schema([("a", pa.duration("us"))]), {}, "column a is duration"),
        (
            "json",
            pa.schema([("a", pa.struct([("b", pa.map_(pa.int32(), pa.string()))]))]),
            {},
            "a.b: keys of a map are text",
        ),
        ("avro", AVRO_COLUMNS, {"schema": '"string"'}, "the schema of a record"),
        (
            "avro",
            AVRO_COLUMNS.append(pa.field("extra", pa.string())),
            {"schema": json.dumps(AVRO)},
            "no field for the columns extra",
        ),
        (
            "avro",
            pa.schema([("id", pa.int64())]),
            {"schema": json.dumps(AVRO)},
            "fields name, at, price, m have neither column nor default",
        ),
    ],
)
def test_what_cannot_be_encoded(
    format_name: str, schema: pa.Schema, options: dict[str, str], text: str
) -> None:
    with pytest.raises(OptionsError, match=text):
        encoder_for(format_name, schema=schema, options=options)


def test_rows_without_columns_are_empty_objects() -> None:
    nothing = pa.RecordBatch.from_struct_array(
        pa.StructArray.from_buffers(pa.struct([]), 2, [None])
    )
    values = encoder_for("json", schema=nothing.schema).encode(nothing)
    assert values.to_pylist() == [b"{}", b"{}"]


@settings(max_examples=60, deadline=None)
@given(st.lists(rows, max_size=5))
def test_avro_by_a_derived_schema_there_and_back(found: list[dict[str, Any]]) -> None:
    # A null first is a zero byte first, which may look like a frame: see `encode`.
    columns = batch([{**row, "id": index} for index, row in enumerate(found)])
    values = encoder_for("avro", schema=SCHEMA).encode(columns)
    decoder = decoder_for("avro", options={"schema": avro_schema(SCHEMA)})
    assert decoder.schema == decoder_for("json", schema=SCHEMA).schema
    decoded = decoder.decode(values)
    assert decoded.errors.null_count == len(found)
    assert decoded.columns.to_pylist() == columns.to_pylist()


@settings(max_examples=60, deadline=None)
@given(st.lists(rows, min_size=3, max_size=6))
def test_a_slice_is_encoded_as_its_rows_alone(found: list[dict[str, Any]]) -> None:
    encoder = encoder_for("json", schema=SCHEMA)
    whole = encoder.encode(batch(found)).to_pylist()
    assert encoder.encode(batch(found).slice(1, 2)).to_pylist() == whole[1:3]


@given(st.lists(st.text(st.characters(codec="utf-8", min_codepoint=0, max_codepoint=0x10FFFF))))
def test_any_text_is_one_line_of_json(texts: list[str]) -> None:
    columns = pa.record_batch({'a "b"\n': pa.array(texts, pa.string())})
    values = encoder_for("json", schema=columns.schema).encode(columns).to_pylist()
    assert [json.loads(value) for value in values] == [{'a "b"\n': text} for text in texts]
    assert not any(b"\n" in value for value in values)


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_floats_stay_floats(kind: pa.DataType) -> None:
    column = pa.array([1, -0.0, 1e20, 5e-30, 0.1, float("nan"), float("-inf"), None], kind)
    columns = pa.record_batch({"x": column})
    values = encoder_for("json", schema=columns.schema).encode(columns).to_pylist()
    assert values[0] == b'{"x":1.0}'
    finite = [*column.to_pylist()[:5], None, None, None]
    back = decoder_for("json", schema=columns.schema).decode(pa.array(values, pa.binary()))
    assert back.columns.column(0).to_pylist() == finite
    assert all(isinstance(json.loads(value)["x"], float | None) for value in values)


def test_times_of_other_zones_and_units_are_utc() -> None:
    column = pa.array([1_000], pa.timestamp("ms", tz="America/New_York"))
    columns = pa.record_batch({"t": column, "far": pa.array([None], pa.timestamp("s"))})
    (value,) = encoder_for("json", schema=columns.schema).encode(columns).to_pylist()
    assert json.loads(value) == {"t": "1970-01-01T00:00:01.000000Z", "far": None}


def test_a_large_batch_is_encoded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "PART_BYTES_MAX", 64)
    columns = pa.record_batch({"x": pa.array(range(50))})
    values = encoder_for("json", schema=columns.schema).encode(columns).to_pylist()
    assert [json.loads(value)["x"] for value in values] == list(range(50))


def test_avro_whose_first_column_is_null_is_rarely_taken_for_a_frame() -> None:
    found = dict.fromkeys(SCHEMA.names) | {"name": "", "tags": [None, None, None]}
    values = encoder_for("avro", schema=SCHEMA).encode(batch([found]))
    decoded = decoder_for("avro", options={"schema": avro_schema(SCHEMA)}).decode(values)
    assert decoded.columns.to_pylist() == [found]


def test_large_types_and_the_sessions_zone_are_written_as_their_plain_ones() -> None:
    schema = pa.schema(
        [
            ("s", pa.string()),
            ("l", pa.list_(pa.field("element", pa.binary()))),
            ("t", pa.timestamp("us", tz="UTC")),
        ]
    )
    given = pa.schema(
        [
            ("s", pa.large_string()),
            ("l", pa.list_(pa.field("item", pa.large_binary()))),
            ("t", pa.timestamp("us", tz="Europe/Berlin")),
        ]
    )
    row = {"s": 'a "b"\n', "l": [b"\x00"], "t": 0}
    (value,) = encoder_for("json", schema=schema).encode(batch([row], given)).to_pylist()
    assert json.loads(value) == {
        "s": 'a "b"\n',
        "l": ["AA=="],
        "t": "1970-01-01T00:00:00.000000Z",
    }


NAMED = {
    "type": "record",
    "name": "shop.Order",
    "fields": [
        {"name": "flag", "type": "boolean"},
        {"name": "small", "type": ["int", "null"]},
        {"name": "number", "type": "long"},
        {"name": "ratio", "type": "float"},
        {"name": "x", "type": ["null", "double"]},
        {"name": "size", "type": {"type": "enum", "name": "Size", "symbols": ["S", "M", "L"]}},
        {"name": "other", "type": ["null", "Size"]},
        {"name": "id", "type": {"type": "fixed", "name": "Id", "size": 2}},
        {"name": "millis", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "unused", "type": ["null", "string"], "default": None},
        {
            "name": "place",
            "type": {
                "type": "record",
                "name": "Place",
                "fields": [{"name": "city", "type": "string"}, {"name": "zip", "type": "int"}],
            },
        },
        {"name": "places", "type": {"type": "array", "items": ["null", "Place"]}},
    ],
}
PLACE = pa.struct([("zip", pa.int32()), ("city", pa.string())])
NAMED_COLUMNS = pa.schema(
    [
        ("number", pa.int32()),
        ("flag", pa.bool_()),
        ("small", pa.int64()),
        ("ratio", pa.float32()),
        ("x", pa.float32()),
        ("size", pa.string()),
        ("other", pa.string()),
        ("id", pa.binary()),
        ("millis", pa.timestamp("us", tz="Europe/Berlin")),
        ("place", PLACE),
        ("places", pa.list_(pa.field("element", PLACE))),
    ]
)
sizes = st.sampled_from(["S", "M", "L"])
places = st.fixed_dictionaries({"zip": st.integers(-9, 9999), "city": st.text(max_size=3)})
named_rows = st.fixed_dictionaries(
    {
        "number": st.integers(-(2**31), 2**31 - 1),
        "flag": st.booleans(),
        "small": st.none() | st.integers(-(2**31), 2**31 - 1),
        "ratio": st.floats(width=32),
        "x": st.none() | st.floats(width=32),
        "size": sizes,
        "other": st.none() | sizes,
        "id": st.binary(min_size=2, max_size=2),
        "millis": st.integers(-(10**12), 10**12).map(lambda millis: millis * 1000),
        "place": places,
        "places": st.lists(st.none() | places, max_size=3),
    }
)


def by_rows(encoder: Any, columns: pa.RecordBatch) -> list[bytes]:
    """What fastavro writes, row by row."""
    slow = pickle.loads(pickle.dumps(encoder))
    slow.__dict__["_by_columns"] = None
    return list(slow.encode(columns).to_pylist())


@settings(max_examples=100, deadline=None)
@given(st.lists(rows, max_size=6), st.lists(named_rows, max_size=6), st.integers(0, 3))
def test_avro_by_columns_is_what_fastavro_writes(
    found: list[dict[str, Any]], named: list[dict[str, Any]], skipped: int
) -> None:
    for some, schema, text in (
        (found, SCHEMA, avro_schema(SCHEMA)),
        (named, NAMED_COLUMNS, json.dumps(NAMED)),
    ):
        encoder = encoder_for("avro", schema=schema, options={"schema": text})
        columns = batch(some, schema).slice(min(skipped, len(some)))
        assert encoder._by_columns is not None
        assert encoder._by_columns(columns).to_pylist() == by_rows(encoder, columns)


DIGITS = pa.schema([("d", pa.decimal128(38, 3))])


@given(st.lists(st.integers(-(10**38) + 1, 10**38 - 1) | st.integers(-70000, 70000), min_size=1))
@example([-128, -32768])
def test_decimals_have_as_few_bytes_as_fastavros(numbers: list[int]) -> None:
    found = [{"d": Decimal(number).scaleb(-3, Context(prec=40))} for number in numbers]
    encoder = encoder_for("avro", schema=DIGITS)
    columns = batch(found, DIGITS)
    ours = encoder._by_columns(columns).to_pylist()
    # For -128, -32768 and so on fastavro takes a byte more than there must be.
    for mine, theirs in zip(ours, by_rows(encoder, columns), strict=True):
        assert len(mine) <= len(theirs)
    decoder = decoder_for("avro", options={"schema": avro_schema(DIGITS)})
    decoded = decoder.decode(pa.array(ours, pa.binary()))
    assert decoded.columns.to_pylist() == found


@pytest.mark.parametrize(
    "wrong",
    [
        {"flag": None},
        {"size": "XL"},
        {"id": b"123"},
        {"small": 2**40},
        {"place": None},
        {"place": {"zip": None, "city": "x"}},
    ],
)
def test_a_row_that_does_not_fit_is_found_among_others(wrong: dict[str, Any]) -> None:
    good = {
        "number": 1,
        "flag": True,
        "ratio": 0.5,
        "size": "S",
        "id": b"ab",
        "millis": 0,
        "place": {"zip": 1, "city": "x"},
        "places": [],
    }
    encoder = encoder_for("avro", schema=NAMED_COLUMNS, options={"schema": json.dumps(NAMED)})
    assert len(encoder.encode(batch([good], NAMED_COLUMNS))) == 1
    with pytest.raises(SourceError, match=r"does not fit the Avro schema.*\"number\": 77"):
        encoder.encode(batch([good, {**good, "number": 77, **wrong}], NAMED_COLUMNS))
