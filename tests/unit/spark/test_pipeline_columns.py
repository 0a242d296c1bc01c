"""Values become the columns of a table whose topic changes its mind."""

import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from chronik.spark.lake.table import LakeError
from chronik.spark.pipeline.columns import ColumnDecoder, variants_of
from chronik.spark.pipeline.config import TopicConfig
from chronik.spark.pipeline.schema import check_config, checked, column_decoder

PRICES = pa.schema([("price", pa.int64()), ("price_v2", pa.string()), ("n", pa.int64())])


def values(*documents: Any) -> pa.Array:
    texts = [
        each if each is None or isinstance(each, bytes) else json.dumps(each).encode()
        for each in documents
    ]
    return pa.array(texts, pa.binary())


def copy_of(decoder: ColumnDecoder) -> ColumnDecoder:
    """As a task gets it."""
    copied: ColumnDecoder = pickle.loads(pickle.dumps(decoder))
    return copied


def test_each_field_goes_to_the_first_column_that_takes_it() -> None:
    decoder = copy_of(ColumnDecoder("json", PRICES, has_variants=True))
    columns, errors = decoder.decode(
        values({"price": 1}, {"price": "dear", "n": 2}, None, {"price": None}, b"{", {"n": 3})
    )
    assert [error is None for error in errors.to_pylist()] == [True, True, True, True, False, True]
    assert columns.column("price").to_pylist() == [1, None, None, None, None, None]
    assert columns.column("price_v2").to_pylist() == [None, "dear", None, None, None, None]
    assert columns.column("n").to_pylist() == [None, 2, None, None, None, 3]
    assert not decoder.conflicts


def test_a_type_that_no_column_takes_is_named() -> None:
    decoder = ColumnDecoder("json", PRICES, has_variants=True)
    _, errors = decoder.decode(values({"price": True}, {"price": "x", "n": "y"}))
    assert None not in errors.to_pylist()
    assert decoder.conflicts == {"price": pa.bool_(), "n": pa.string()}


def test_a_column_that_looks_like_a_variant_is_a_field_too() -> None:
    decoder = ColumnDecoder("json", PRICES, has_variants=True)
    columns, errors = decoder.decode(
        values({"price": 1, "price_v2": "mine"}, {"price": "x", "price_v2": "mine"})
    )
    assert columns.column("price_v2").to_pylist() == ["mine", None]
    assert errors.to_pylist()[0] is None
    assert errors.to_pylist()[1] is not None, "one of two values would be lost"
    assert not decoder.unexpected


def test_by_policy_a_conflict_is_a_dead_letter() -> None:
    decoder = ColumnDecoder("json", PRICES)
    _, errors = decoder.decode(values({"price": "x"}, {"price": 1}))
    assert [error is None for error in errors.to_pylist()] == [False, True]
    assert not decoder.conflicts


@pytest.mark.parametrize("has_bad_rows", [False, True])
def test_a_new_field_is_noticed_wherever_it_is(has_bad_rows: bool) -> None:
    documents: list[Any] = [{"price": number} for number in range(3000)]
    documents[1500] = {"price": 1, "late": [1.5]}
    documents[1600] = {"price": 1, "only_null": None}
    if has_bad_rows:
        documents[2], documents[2999] = b"no", {"price": "x"}
    decoder = copy_of(ColumnDecoder("json", PRICES))
    decoder.decode(values(*documents))
    assert list(decoder.unexpected) == ["late"]
    assert pa.types.is_list(decoder.unexpected["late"])


def test_a_new_field_of_two_types_is_noticed() -> None:
    decoder = ColumnDecoder("json", PRICES)
    decoder.decode(values({"mixed": "text"}, {"mixed": 1}, {"mixed": "text"}))
    assert dict(decoder.unexpected) == {"mixed": pa.string()}


def test_a_given_schema_is_read_as_it_was_given() -> None:
    config = TopicConfig(name="t", table="delta", decode="json", schema="id int, s string")
    columns = pa.schema([("id", pa.int64()), ("s", pa.string()), ("old", pa.string())])
    decoder = copy_of(column_decoder(config, columns, "delta"))
    decoded, errors = decoder.decode(values({"id": 7, "more": 1}, {"id": 2**40}))
    assert decoded.schema == columns
    assert decoded.to_pylist()[0] == {"id": 7, "s": None, "old": None}
    assert [error is None for error in errors.to_pylist()] == [True, False]
    assert not decoder.unexpected


@pytest.mark.parametrize("policy", ["column", "dead_letter"])
def test_a_given_schema_that_contradicts_the_table(policy: str) -> None:
    config = TopicConfig(
        name="t", table="delta", decode="json", schema="id string", on_incompatible=policy
    )
    columns = [("id", pa.int64())] + ([("id_v2", pa.string())] if policy == "column" else [])
    decoder = column_decoder(config, pa.schema(columns), "delta")
    decoded, errors = decoder.decode(values({"id": "x"}, {"id": 1}))
    is_good = [error is None for error in errors.to_pylist()]
    assert is_good == ([True, False] if policy == "column" else [False, True])
    if policy == "column":
        assert decoded.to_pylist()[0] == {"id": None, "id_v2": "x"}
    else:
        assert decoded.to_pylist()[1] == {"id": 1}


def test_variants_are_tried_in_order() -> None:
    columns = pa.schema([(name, pa.string()) for name in ("a_v10", "a_v2", "a", "a_v1", "ab_v2")])
    assert variants_of(columns, "a") == ["a", "a_v2", "a_v10"]


@pytest.mark.parametrize(
    ("names", "complaint"),
    [
        (["A", "a"], "whatever its case"),
        (["_Offset"], "whatever its case"),
        (["a b"], "no column can be called"),
        ([""], "no column can be called"),
        ([f"f{number}" for number in range(501)], "seem to be data"),
    ],
)
def test_columns_that_a_table_cannot_have(names: list[str], complaint: str) -> None:
    with pytest.raises(LakeError, match=complaint):
        checked(pa.schema([(name, pa.string()) for name in names]), "t")


def test_a_schema_that_is_nested_too_deeply() -> None:
    kind: pa.DataType = pa.int64()
    for _ in range(10):
        kind = pa.list_(pa.struct([("a", pa.map_(pa.string(), kind))]))
    with pytest.raises(LakeError, match="'deep' that is nested deeper than 30 levels"):
        checked(pa.schema([("deep", kind)]), "t")
    checked(pa.schema([("fine", kind.value_type)]), "t")


@pytest.mark.parametrize(
    ("settings_", "complaint"),
    [
        ({"decode": "avro"}, "needs the option schema"),
        ({"decode": "json", "schema": "a nonsense"}, "nonsense"),
        ({"partition_by": "week(a)"}, "cannot partition by"),
        ({"name": "orders_dead_letters"}, "give it another one"),
    ],
)
def test_settings_that_cannot_be_carried_out(settings_: dict[str, str], complaint: str) -> None:
    with pytest.raises(LakeError, match=complaint):
        check_config(TopicConfig(**{"name": "orders", "table": "delta", **settings_}))


SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.text(max_size=3))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(["price", "n", "other"]), SCALARS), max_size=20))
def test_no_value_of_a_good_row_is_lost(documents: list[dict[str, Any]]) -> None:
    """Whatever the policy, a row that is kept has all its values, in one column each."""
    decoder = ColumnDecoder("json", PRICES, has_variants=True)
    columns, errors = decoder.decode(values(*documents))
    for document, row, error in zip(
        documents, columns.to_pylist(), errors.to_pylist(), strict=True
    ):
        if error is not None:
            continue
        assert (row["price"] if row["price"] is not None else row["price_v2"]) == document.get(
            "price"
        )
        assert row["n"] == document.get("n")
    met = {name for each in documents for name, value in each.items() if value is not None}
    good = [each for each, error in zip(documents, errors.to_pylist(), strict=True) if not error]
    if any(each.get("other") is not None for each in good):
        assert "other" in met
        assert "other" in decoder.unexpected


def test_a_new_field_of_an_object_is_noticed() -> None:
    columns = pa.schema(
        [
            ("who", pa.struct([("name", pa.string())])),
            ("all", pa.list_(pa.struct([("n", pa.int64())]))),
        ]
    )
    decoder = copy_of(ColumnDecoder("json", columns))
    documents: list[Any] = [{"who": {"name": "a"}, "all": [{"n": 1}]} for _ in range(1200)]
    documents[600] = {"who": {"name": "b", "age": 7, "never": None}, "all": []}
    documents[700] = {"all": [{"n": 2}, {"n": 3, "m": {"deep": True}}]}
    decoded, errors = decoder.decode(values(*documents))
    assert errors.null_count == 1200
    assert decoded.column("who").to_pylist()[600] == {"name": "b"}
    assert dict(decoder.unexpected) == {
        "who": pa.struct([("name", pa.string()), ("age", pa.int64())]),
        "all": pa.list_(pa.struct([("n", pa.int64()), ("m", pa.struct([("deep", pa.bool_())]))])),
    }


def test_a_task_needs_no_descriptor_set(tmp_path: Path) -> None:
    """The file is where the pipeline was started; executors are elsewhere."""
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", package="t", syntax="proto3")
    message = file.message_type.add(name="T")
    message.field.add(name="id", number=1, type=3, label=1)  # int64
    path = tmp_path / "t.desc"
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    config = TopicConfig(name="t", table="delta", decode="protobuf", schema=f"{path}#t.T")
    pickled = pickle.dumps(column_decoder(config, pa.schema([("id", pa.int64())]), "delta"))
    path.unlink()
    decoded, errors = pickle.loads(pickled).decode(pa.array([b"\x08\x05", b"\xff"], pa.binary()))
    assert decoded.column("id").to_pylist() == [5, None]
    assert errors.null_count == 1


def test_an_object_that_lacks_fields_changes_nothing() -> None:
    columns = pa.schema([("who", pa.struct([("name", pa.string()), ("age", pa.int64())]))])
    decoder = ColumnDecoder("json", columns, has_variants=True)
    _, errors = decoder.decode(values({"who": {"age": 1}}, {"who": {}}, {"who": None}, {}))
    assert errors.null_count == 4
    assert not decoder.unexpected
    _, errors = decoder.decode(values({"who": "text"}, {"who": {"name": 1}}))
    assert errors.null_count == 0
    assert list(decoder.conflicts) == ["who"]
