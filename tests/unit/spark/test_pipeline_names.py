"""Fields that no column can be named after cost the rows that have them, and nothing else."""

import json
import pickle
from typing import Any

import pyarrow as pa
import pytest

from chronik.spark.decode.json_depth import TOO_DEEP, dangerous, depth
from chronik.spark.decode.json_inference import infer
from chronik.spark.lake.partitioning import parse_partitioning
from chronik.spark.pipeline.columns import ColumnDecoder
from chronik.spark.pipeline.config import TopicConfig
from chronik.spark.pipeline.names import OWN_COLUMNS, own_columns
from chronik.spark.pipeline.schema import column_decoder, usable

COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("Name", pa.string()),
        ("who", pa.struct([("age", pa.int64())])),
        ("all", pa.list_(pa.struct([("n", pa.int64())]))),
        ("a.b", pa.int64()),
    ]
)


def decoded(*documents: Any, policy: str = "dead_letter") -> tuple[list[str | None], ColumnDecoder]:
    config = TopicConfig(name="t", table="delta", decode="json", on_incompatible=policy)
    decoder: ColumnDecoder = pickle.loads(pickle.dumps(column_decoder(config, COLUMNS, "delta")))
    texts = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in documents]
    _, errors = decoder.decode(pa.array(texts, pa.binary()))
    return errors.to_pylist(), decoder


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"": 1}, "field '' has a name that no column can have"),
        ({"a b": 1}, "field 'a b' has a name that no column can have"),
        ({"a\u0000b": 1}, r"field 'a\x00b' has a name that no column can have"),
        ({"name": "x"}, "field 'name' differs from the column 'Name' in nothing but case"),
        ({"_offset": 1}, "field '_offset' has the name of one of the table's own columns"),
        ({"_Key": "x"}, "field '_Key' has the name of one of the table's own columns"),
        ({"who": {"": 1}}, "field 'who.' has a name that no column can have"),
        ({"who": {"AGE": 1}}, "field 'who.AGE' differs from the column 'who.age' in nothing"),
        ({"all": [{"n": 1}, {"x y": [1]}]}, "field 'all.element.x y' has a name"),
        ({"new": {"deep": [{"(": 1}]}}, "field 'new.deep.element.(' has a name"),
        ({"a": {"b": 1}}, "field 'a.b' differs from the column 'a.b' in another place"),
    ],
)
@pytest.mark.parametrize("policy", ["dead_letter", "column"])
def test_a_row_with_such_a_field_is_a_dead_letter(
    row: dict[str, Any], reason: str, policy: str
) -> None:
    (before, error, after), decoder = decoded({"id": 1}, {"id": 2, **row}, {"id": 3}, policy=policy)
    assert (before, after) == (None, None)
    assert error is not None
    assert error.startswith(reason)
    assert not {*decoder.unexpected} - {"new"}


def test_only_a_value_would_be_lost() -> None:
    errors, decoder = decoded({"": None, "id": 1}, {"a b": {}, "who": {"AGE": None}}, {"x y": 1})
    assert [error is None for error in errors] == [True, True, False]
    assert not decoder.unexpected


def test_other_new_fields_are_noticed_beside_it() -> None:
    errors, decoder = decoded({"a b": 1}, {"fine": "x", "who": {"age": 1, "tall": True}})
    assert [error is None for error in errors] == [False, True]
    assert decoder.unexpected["fine"] == pa.string()
    assert decoder.unexpected["who"] == pa.struct([("age", pa.int64()), ("tall", pa.bool_())])


def test_of_two_new_names_that_clash_the_first_is_noticed() -> None:
    errors, decoder = decoded({"Foo": 1}, {"foo": 2}, {"bar": {"X": 1, "x": 2}})
    assert dict(decoder.unexpected) == {"Foo": pa.int64(), "bar": pa.struct([("X", pa.int64())])}
    assert errors[1] is not None


def test_a_field_that_comes_twice_is_an_error() -> None:
    errors, _ = decoded(b'{"id": 1, "id": 2}', {"id": 3})
    assert [error is None for error in errors] == [False, True]
    assert "id" in (errors[0] or "")


def test_what_arrow_reads_and_msgspec_does_not() -> None:
    errors, _ = decoded(b'{"a b": NaN}', b'{"id": 1}')
    assert [error is None for error in errors] == [False, True]


def test_the_next_values_are_judged_by_themselves() -> None:
    _, decoder = decoded({"a b": 1})
    _, errors = decoder.decode(pa.array([b'{"id": 1}', b'{"id": 2, "": true}']))
    assert [error is None for error in errors.to_pylist()] == [True, False]


def nested(levels: int, value: bytes = b"1", name: bytes = b"a") -> bytes:
    return b'{"%s":' % name * levels + value + b"}" * levels


@pytest.mark.parametrize(
    "deep",
    [
        nested(31),
        nested(30, b"[1]"),
        nested(1, b"[" * 30 + b"true" + b"]" * 30),
        nested(200),
        nested(201),
        nested(900),  # msgspec reads it, and our own recursion ends there
        nested(5_000),
        nested(100_000),  # where Arrow's inference ends the process
        nested(1, b"[" * 100_000 + b"1" + b"]" * 100_000),
        nested(100_000, name=rb"}]\"}"),
    ],
    ids=len,
)
@pytest.mark.parametrize("policy", ["dead_letter", "column"])
def test_what_is_nested_too_deeply_is_a_dead_letter(deep: bytes, policy: str) -> None:
    errors, decoder = decoded({"id": 1}, deep, {"id": 3, "fine": 1}, policy=policy)
    assert errors == [None, "nested too deeply: more than 30 levels", None]
    assert "fine" in decoder.unexpected


@pytest.mark.parametrize(
    "fine",
    [
        nested(30),
        nested(29, b"[1]"),
        nested(40, b"null"),
        nested(1, b"[" + b",".join([b"{}"] * 200) + b"]"),
        b'{"x": "' + b"[" * 500 + b'"}',
    ],
    ids=len,
)
def test_what_is_not_nested_too_deeply_is_a_row(fine: bytes) -> None:
    errors, _ = decoded(fine)
    assert errors == [None]


def test_a_row_that_is_tried_again_loses_nothing_deep() -> None:
    """Its `id` goes to a column of another type; what is deep in it has none."""
    columns = pa.schema([("id", pa.int64()), ("id_v2", pa.string())])
    config = TopicConfig(name="t", table="delta", decode="json", on_incompatible="column")
    decoder = column_decoder(config, columns, "delta")
    deep = b'{"id": "text", "d": ' + nested(35) + b"}"
    values = pa.array([b'{"id": 1}', deep, b'{"id": "text"}'], pa.binary())
    assert decoder.decode(values).errors.to_pylist() == [None, TOO_DEEP, None]


def test_a_text_without_an_end_is_soon_looked_through() -> None:
    """One look for each of its quotes would take minutes."""
    assert depth(b'{"a": [{"b": "' + b'\\"[' * 200_000) == 3


def test_dangerous_values_are_found_wherever_they_are() -> None:
    deep, wide = nested(300), b"[" + b",".join([b"{}"] * 300) + b"]"
    texts = [b"", None, wide, deep, None, b"", b'{"a":[{}]}' * 50, deep, wide, b"{}", deep]
    values = pa.array(texts, pa.binary())
    assert dangerous(values) == [3, 7, 10]
    assert dangerous(values.slice(4, 4)) == [3]
    assert dangerous(values.slice(8, 2)) == []
    assert dangerous(values.slice(0, 0)) == []


def test_samples_that_are_nested_too_deeply_are_left_out() -> None:
    samples = [nested(500), nested(5_000), b'{"id": 1}']
    assert infer(pa.array(samples, pa.binary())) == pa.schema([("id", pa.int64())])


def test_a_schema_of_samples_has_only_columns_that_a_table_can_have() -> None:
    kinds = [("", pa.int64()), ("ok", pa.int64()), ("OK", pa.string()), ("_topic", pa.string())]
    kinds += [("at", pa.struct([("x y", pa.int64())])), ("_timestamp_day", pa.date32())]
    own = own_columns(parse_partitioning("day(_timestamp)"))
    assert usable(pa.schema(kinds), own) == pa.schema([("ok", pa.int64())])
    assert usable(pa.schema(kinds), OWN_COLUMNS).names == ["ok", "_timestamp_day"]
