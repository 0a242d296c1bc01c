"""JSON values as typed columns: rows never shift, and each verdict is the value's own."""

import base64
import datetime
import json
import pickle
from decimal import Decimal
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronik.spark.decode import Decoded, decoder_for, infer_schema, json_values
from chronik.spark.decode.json_values import JsonDecoder
from chronik.spark.errors import OptionsError

UTC = datetime.UTC
SIMPLE = pa.schema([("id", pa.int64()), ("name", pa.string())])
BACKSLASH = "\\"


def decode(schema: pa.Schema, *values: bytes | None) -> Decoded:
    decoded = JsonDecoder(schema).decode(pa.array(values, pa.binary()))
    decoded.columns.validate(full=True)
    assert decoded.columns.num_rows == len(decoded.errors) == len(values)
    assert decoded.columns.schema == JsonDecoder(schema).schema
    return decoded


def column(kind: pa.DataType, *texts: str) -> tuple[list[Any], list[str | None]]:
    """What a column of this type makes of JSON texts."""
    schema = pa.schema([("a", kind)])
    decoded = decode(schema, *(f'{{"a": {text}}}'.encode() for text in texts))
    return decoded.columns.column(0).to_pylist(), decoded.errors.to_pylist()


def test_plain_objects() -> None:
    decoded = decode(SIMPLE, b'{"id": 1, "name": "a"}', b'{"name": null}', b"{}")
    assert decoded.columns.to_pylist() == [
        {"id": 1, "name": "a"},
        {"id": None, "name": None},
        {"id": None, "name": None},
    ]
    assert decoded.errors.to_pylist() == [None, None, None]


ROWS: list[tuple[bytes | None, str | None]] = [
    (b'{"id": 1}', None),
    (None, None),
    (b"", "empty"),
    (b"{}{}", "trailing characters"),
    (b'{"id": 2}{"id": 3}', "trailing characters"),
    (b'{"id":\n\n4,\r\n"name":\t"x"}', None),
    (b'{"id": 1, "name": "\xff"}', "not UTF-8"),
    (b'{"id": 5} garbage', "trailing characters"),
    (b'{"id": 5}],"x":[{}', "trailing characters"),
    (b' \n{"id": 6}\r\n', None),
    (b"null", "object"),
    (b"[1]", "object"),
    (b"7", "object"),
    (b'"text"', "object"),
    (b"not json", "malformed"),
    (b'{"id": 1', "truncated"),
    (b'{"id": "1"}', "$.id"),
    (b'{"name": 1}', "$.name"),
    (b'{"id": 1.5}', "$.id"),
    (b'{"id": 9223372036854775808}', "$.id"),
    (b'{"id": 1, "id": 2}', "twice"),
    (b'{"name": "a\nb"}', "invalid character"),
    (b'{"id": 1,}', "malformed"),
    (b"{'id': 1}", "malformed"),
    (b'{"id": 01}', "malformed"),
    (b'{"name": "' + BACKSLASH.encode() + b'ud800"}', ""),
    (b"\xef\xbb\xbf{}", "malformed"),
    (b"\x00", "malformed"),
    (b'{"id": 1}\x00', "trailing characters"),
    (b'{}null{"id": 1}', "trailing characters"),
    (b'\x00\x00\x00\x00\x07{"id": 8}', None),
    (b'{"id": 9, "more": {"id": [true, {}]}, "other": 1e5}', None),
    (b'{"id": 1, "x": NaN}', None),
    (b'{"id": 1, "deep": ' + b"[" * 3000 + b"]" * 3000 + b"}", None),
    (b'{"name": "Inf and NaN", "id": false}', ""),
]


def test_rows_never_shift() -> None:
    values = [value for value, _ in ROWS]
    decoded = decode(SIMPLE, *values)
    for row, (value, wanted) in enumerate(ROWS):
        error = decoded.errors[row].as_py()
        assert (error is None) == (wanted is None), (value, error)
        assert wanted is None or wanted in error, (value, error)
    ids = decoded.columns.column("id").to_pylist()
    assert [(row, number) for row, number in enumerate(ids) if number is not None] == [
        (0, 1),
        (5, 4),
        (9, 6),
        (30, 8),
        (31, 9),
        (32, 1),
        (33, 1),
    ]


@pytest.mark.parametrize("row", range(len(ROWS)))
def test_a_verdict_does_not_depend_on_neighbours(row: int) -> None:
    value, _ = ROWS[row]
    alone = decode(SIMPLE, value)
    together = decode(SIMPLE, *(each for each, _ in ROWS))
    assert alone.columns.to_pylist()[0] == together.columns.to_pylist()[row]
    assert alone.errors[0].as_py() == together.errors[row].as_py()


pieces = st.sampled_from(
    [
        *("{", "}", "[", "]", '"', ":", ",", "1", "-", ".5", "e9", "null", "true", '"id"'),
        *('"name"', '"t"', '"2020-01-01"', "\n", " ", "{}", "\\", "NaN", '{"id":1}', '{"id":'),
        *("\u00e9", "Infinity"),
    ]
)
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.sampled_from(["2020-01-01", "2020-01-01T00:00:00.123456789+02:00", "1.25", "2020-13-01"])
    | st.sampled_from(["2020-01-01T00:00:00.1234567Z", "2020-01-01 10:00Z", "2020-01-01Z"])
)
documents = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["id", "name", "t", "d", "l", "s", "m", "zz"]), inner)
    ),
    max_leaves=8,
).map(lambda found: json.dumps(found).encode())
values = (
    st.none()
    | st.binary(max_size=8)
    | documents
    | st.lists(pieces, max_size=8).map(lambda found: "".join(found).encode())
)
WIDE = pa.schema(
    [
        ("id", pa.int32()),
        ("name", pa.string()),
        ("t", pa.timestamp("us", tz="UTC")),
        ("d", pa.date32()),
        ("l", pa.list_(pa.field("element", pa.decimal128(10, 2)))),
        ("s", pa.struct([("id", pa.float32()), ("t", pa.timestamp("us"))])),
    ]
)
WITH_MAP = WIDE.append(pa.field("m", pa.map_(pa.string(), pa.date32())))


@settings(max_examples=300, deadline=None)
@given(st.lists(values, max_size=12), st.sampled_from([WIDE, WITH_MAP]), st.integers(1, 16))
def test_any_values_each_for_itself(
    batch: list[bytes | None], schema: pa.Schema, group_rows: int
) -> None:
    with patch.object(json_values, "GROUP_ROWS", group_rows):
        together = decode(schema, *batch)
    for row, value in enumerate(batch):
        alone = decode(schema, value)
        assert alone.columns.to_pylist() == together.columns.slice(row, 1).to_pylist()
        assert alone.errors[0].as_py() == together.errors[row].as_py()
    decoder = JsonDecoder(schema)
    again = [decoder.decode(pa.array(batch, pa.binary())) for _ in range(2)][1]
    assert again.columns.to_pylist() == together.columns.to_pylist()
    assert again.errors.to_pylist() == together.errors.to_pylist()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.fixed_dictionaries({"id": st.integers(-(2**63), 2**63 - 1), "name": st.text()})))
def test_good_values_come_back(found: list[dict[str, Any]]) -> None:
    decoded = decode(SIMPLE, *(json.dumps(each).encode() for each in found))
    assert decoded.columns.to_pylist() == found


def test_integers() -> None:
    got, errors = column(pa.int32(), "1", "-2147483648", "2147483648", "1.0", "1e3", "true", "null")
    assert got == [1, -(2**31), None, None, None, None, None]
    assert [error is None for error in errors] == [True, True, False, False, False, False, True]
    assert "2147483647" in (errors[2] or "")


def test_floats() -> None:
    got, errors = column(pa.float64(), "1", "1.5", "1e400", '"1"', "12345678901234567890123")
    assert got == [1.0, 1.5, None, None, 1.2345678901234568e22]
    assert [error is None for error in errors] == [True, True, False, False, True]
    got, errors = column(pa.float32(), "0.5", "1e39", "-1e39", "null")
    assert got == [0.5, None, None, None]
    assert [error is None for error in errors] == [True, False, False, True]


def test_decimals_are_never_rounded() -> None:
    kind = pa.decimal128(10, 2)
    got, errors = column(kind, "1.5", '"1.25"', "1.555", "123456789012", '"x"', "true", "1e2")
    assert got == [Decimal("1.50"), Decimal("1.25"), None, None, None, None, Decimal("100.00")]
    assert [error is None for error in errors] == [True, True, False, False, False, False, True]
    got, _ = column(pa.decimal128(38, 10), "0.1234567891", "1234567890123456789012345678.5")
    assert got == [Decimal("0.1234567891"), Decimal("1234567890123456789012345678.5000000000")]


def test_timestamps() -> None:
    texts = [
        '"2020-01-02T03:04:05Z"',
        '"2020-01-02T03:04:05.123456Z"',
        '"2020-01-02T03:04:05.123456789Z"',
        '"2020-01-02T03:04:05+02:00"',
        '"2020-01-02 03:04:05"',
        '"2020-01-02"',
        '"9999-12-31T23:59:59Z"',
        '"2020-13-01T00:00:00Z"',
        "1577836800",
        '"yesterday"',
        '""',
    ]
    kind = pa.timestamp("us", tz="UTC")
    got, errors = column(kind, *texts)
    day = datetime.datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert got[:7] == [
        day,
        day.replace(microsecond=123456),
        day.replace(microsecond=123456),
        day.replace(hour=1),
        day,
        datetime.datetime(2020, 1, 2, tzinfo=UTC),
        datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC),
    ]
    assert got[7:] == [None] * 4
    assert [error is None for error in errors] == [True] * 7 + [False] * 4
    for text, wanted in zip(texts, got, strict=True):
        assert column(kind, text)[0] == [wanted]
    naive, _ = column(pa.timestamp("us"), *texts[:4])
    assert naive[3] == datetime.datetime(2020, 1, 2, 1, 4, 5)


def test_timestamps_that_need_patience_are_remembered_and_nothing_changes() -> None:
    decoder = JsonDecoder(pa.schema([("t", pa.timestamp("us", tz="UTC"))]))
    fine = pa.array([b'{"t": "2020-01-01T00:00:00.123456789Z"}'] * 3, pa.binary())
    short = pa.array([b'{"t": "2020-01-01T00:00:00Z"}', b'{"t": 5}'], pa.binary())
    for values_ in (fine, fine, short, short, fine):
        assert decoder.decode(values_) == JsonDecoder(decoder.schema).decode(values_)


@pytest.mark.parametrize("bad", [b"{}{}", b'{"id": 1.5}', b'{"id": tru}', b'{"at": "soon"}'])
def test_after_bad_values_the_next_begin_with_what_these_needed(
    monkeypatch: pytest.MonkeyPatch, bad: bytes
) -> None:
    """To fail first on every batch would halve the speed of a topic with a few bad rows."""
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])
    good = b'{"id": 7, "at": "2026-01-02T03:04:05.5Z"}'
    values = pa.array([good, None, bad, good, b'{"at": "2026-01-02T03"}'], pa.binary())
    decoder = JsonDecoder(schema)
    first = decoder.decode(values)
    parses = []
    parse = json_values._parse
    monkeypatch.setattr(json_values, "_parse", lambda *given: parses.append(1) or parse(*given))
    second = decoder.decode(values)
    assert len(parses) == 1
    assert second.columns.equals(first.columns)
    assert [text is None for text in second.errors.to_pylist()] == [True, True, False, True, True]
    assert (
        second.columns.column("at").to_pylist()[3].isoformat() == "2026-01-02T03:04:05.500000+00:00"
    )
    assert second.columns.column("at").to_pylist()[4].hour == 3


def test_dates_and_binary() -> None:
    got, errors = column(pa.date32(), '"2020-02-29"', '"2021-02-29"', '"2020-01-01T00:00:00Z"', "5")
    assert got == [datetime.date(2020, 2, 29), None, None, None]
    assert [error is None for error in errors] == [True, False, False, False]
    text = base64.b64encode(b"\x00\xff").decode()
    got, errors = column(pa.binary(), f'"{text}"', '"?"', "null", "1")
    assert got == [b"\x00\xff", None, None, None]
    assert [error is None for error in errors] == [True, False, True, False]


def test_nested_columns() -> None:
    kind = pa.struct(
        [
            ("when", pa.timestamp("us", tz="UTC")),
            ("days", pa.list_(pa.field("element", pa.date32()))),
            ("inner", pa.struct([("f", pa.float32())])),
        ]
    )
    got, errors = column(
        kind,
        '{"when": "2020-01-01T00:00:00.1234567Z", "days": ["2020-01-01", null], "inner": {"f": 1}}',
        '{"days": ["2020-01-01", "nonsense"]}',
        "null",
        '{"days": [], "inner": null}',
        '{"inner": {"f": 1e39}}',
    )
    assert got[0] == {
        "when": datetime.datetime(2020, 1, 1, 0, 0, 0, 123456, tzinfo=UTC),
        "days": [datetime.date(2020, 1, 1), None],
        "inner": {"f": 1.0},
    }
    assert got[1] is None
    assert got[2] is None
    assert got[3] == {"when": None, "days": [], "inner": None}
    assert got[4] is None
    assert [error is None for error in errors] == [True, False, True, True, False]


def test_maps() -> None:
    kind = pa.map_(pa.string(), pa.struct([("d", pa.date32()), ("n", pa.decimal128(5, 1))]))
    got, errors = column(
        kind,
        '{"x": {"d": "2020-01-01", "n": 1.5}, "y": null}',
        "{}",
        "null",
        '{"x": {"d": "never"}}',
        '{"x": {"n": 1.25}}',
        "[]",
        '{"x": 1}',
    )
    assert got[0] == [("x", {"d": datetime.date(2020, 1, 1), "n": Decimal("1.5")}), ("y", None)]
    assert got[1:] == [[], None, None, None, None, None]
    assert [error is None for error in errors] == [True, True, True, False, False, False, False]


def test_a_map_beside_other_columns_keeps_its_rows() -> None:
    schema = pa.schema([("id", pa.int64()), ("m", pa.map_(pa.string(), pa.int64()))])
    batch = [b'{"id": 1, "m": {"a": 1}}', b'{"id": 2, "id": 3, "m": {"b": 2}}', None]
    decoded = decode(schema, *batch, b'{"m": {"c": 3}}')
    assert decoded.columns.column("m").to_pylist() == [[("a", 1)], None, None, [("c", 3)]]
    assert decoded.columns.column("id").to_pylist() == [1, None, None, None]
    assert "twice" in decoded.errors[1].as_py()


def test_odd_names() -> None:
    schema = pa.schema(
        [("a b", pa.int64()), ("ü.x", pa.int64()), ("class", pa.int64()), ("", pa.int64())]
    )
    text = json.dumps({"a b": 1, "ü.x": 2, "class": 3, "": 4}).encode()
    decoded = decode(schema, text, b'{"class": "bad"}')
    assert decoded.columns.to_pylist()[0] == {"a b": 1, "ü.x": 2, "class": 3, "": 4}
    assert decoded.errors[1].as_py() is not None


def test_no_columns_still_find_errors() -> None:
    decoded = decode(pa.schema([]), b"{}", b"nonsense", None, b'{"a": 1}')
    assert [error is None for error in decoded.errors.to_pylist()] == [True, False, True, True]


def test_no_values() -> None:
    assert decode(WITH_MAP).columns.num_rows == 0


def test_sliced_values() -> None:
    whole = pa.array([b"bad", b'{"id": 1}', None, b'{"id": 3}', b'{"id": 4}'], pa.binary())
    decoded = JsonDecoder(SIMPLE).decode(whole.slice(1, 3))
    assert decoded.columns.column("id").to_pylist() == [1, None, 3]
    assert decoded.errors.to_pylist() == [None, None, None]


def test_many_bad_rows_of_every_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_values, "HUNT_ROWS", 16)
    batch = [b'{"id": %d, "name": "n"}' % number for number in range(500)]
    bad = [b"{", b'{"id": "x"}', b'{"id": 1, "id": 1}', b"{}{}", b'{"id": 1.5}', b'{"x": "\n"}']
    for row in range(3, 500, 7):
        batch[row] = bad[row % len(bad)]
    decoded = decode(SIMPLE, *batch)
    wanted = [None if row % 7 == 3 else row for row in range(500)]
    assert decoded.columns.column("id").to_pylist() == wanted
    assert [error is not None for error in decoded.errors.to_pylist()] == [
        row % 7 == 3 for row in range(500)
    ]


def test_large_blocks_are_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_values, "BLOCK_BYTES_MAX", 200)
    batch = [b'{"id": %d}' % number for number in range(100)]
    batch[50] = b"bad"
    decoded = decode(SIMPLE, *batch)
    assert decoded.columns.column("id").to_pylist() == [*range(50), None, *range(51, 100)]


def test_it_can_be_pickled_after_use() -> None:
    decoder = JsonDecoder(WITH_MAP)
    batch = pa.array([b'{"id": 1, "m": {"a": "2020-01-01"}}', b"{"], pa.binary())
    wanted = decoder.decode(batch)
    assert pickle.loads(pickle.dumps(decoder)).decode(batch) == wanted


def test_columns_that_may_not_be_null_may_be_null() -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    assert decode(schema, b"{}").columns.schema.field("id").nullable


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.duration("us"), "a: JSON cannot be read as duration"),
        (pa.map_(pa.int32(), pa.string()), "keys of a map are text"),
        (pa.struct([("b", pa.list_(pa.time64("us")))]), r"a\.b\[\]: JSON cannot"),
    ],
)
def test_types_that_json_has_not_are_refused(kind: pa.DataType, text: str) -> None:
    with pytest.raises(OptionsError, match=text):
        JsonDecoder(pa.schema([("a", kind)]))


def test_the_schema_as_text() -> None:
    decoder = decoder_for("json", options={"schema": "id BIGINT, `a b` ARRAY<STRING>"})
    assert decoder.schema.names == ["id", "a b"]
    with pytest.raises(OptionsError, match="needs a schema"):
        decoder_for("json")
    with pytest.raises(OptionsError, match="there is no format 'xml', only string, json"):
        decoder_for("xml")


def test_inference() -> None:
    samples = [
        {"id": 1, "x": 1, "t": "2020-01-01T00:00:00Z", "d": "2020-01-01", "n": None, "big": 2**70},
        {"id": 2, "x": 1.5, "t": "2020-01-01T00:00:00.5+01:00", "s": {"a": [1, None]}, "e": []},
        {"id": 3, "mixed": 1, "u": "2020-01-01"},
        {"id": 4, "mixed": "x", "u": "not a date"},
        {"id": 5, "mixed": "y", "ok": True, "s": {"b": {"c": "2020-01-01"}}},
    ]
    batch = [json.dumps(each).encode() for each in samples]
    found = infer_schema("json", pa.array([*batch, None, b"bad", b"[1]", b"{}"], pa.binary()))
    assert found == pa.schema(
        [
            ("id", pa.int64()),
            ("x", pa.float64()),
            ("t", pa.timestamp("us", tz="UTC")),
            ("d", pa.date32()),
            ("n", pa.string()),
            ("big", pa.float64()),
            (
                "s",
                pa.struct(
                    [
                        ("a", pa.list_(pa.field("element", pa.int64()))),
                        ("b", pa.struct([("c", pa.date32())])),
                    ]
                ),
            ),
            ("e", pa.list_(pa.field("element", pa.string()))),
            ("mixed", pa.string()),
            ("u", pa.string()),
            ("ok", pa.bool_()),
        ]
    )
    decoded = JsonDecoder(found).decode(pa.array(batch, pa.binary()))
    assert [error is None for error in decoded.errors.to_pylist()] == [
        True,
        True,
        False,
        True,
        True,
    ]


def test_nothing_to_infer_from() -> None:
    with pytest.raises(OptionsError, match="none of 2 values is a JSON object"):
        infer_schema("json", pa.array([b"x", None], pa.binary()))
    with pytest.raises(OptionsError, match="avro cannot be inferred"):
        infer_schema("avro", pa.array([b"x"], pa.binary()))
