"""Text, Avro and Protobuf as typed columns, and schemas as text."""

import datetime
import io
import json
import pickle
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from chronik.spark.decode import Decoded, Decoder, decoder_for
from chronik.spark.decode.avro import AvroDecoder
from chronik.spark.decode.protobuf import ProtobufDecoder
from chronik.spark.decode.schema_text import parse_schema
from chronik.spark.errors import OptionsError

UTC = datetime.UTC
FRAME = b"\x00\x00\x00\x00\x2a"


def decode(decoder: Decoder, *values: bytes | None) -> Decoded:
    decoded = decoder.decode(pa.array(values, pa.binary()))
    decoded.columns.validate(full=True)
    assert decoded.columns.num_rows == len(decoded.errors) == len(values)
    assert decoded.columns.schema == decoder.schema
    return decoded


def failed(decoded: Decoded) -> list[bool]:
    return [error is not None for error in decoded.errors.to_pylist()]


# Text


def test_text() -> None:
    decoded = decode(decoder_for("string"), b"a", None, b"", b"\xff", "\u00e9".encode(), b"a\nb")
    assert decoded.columns.column("value").to_pylist() == ["a", None, "", None, "\u00e9", "a\nb"]
    assert failed(decoded) == [False, False, False, True, False, False]
    assert decoded.errors[3].as_py() == "not UTF-8: invalid start byte (byte 0)"


ASCII = st.text(st.characters(codec="ascii"), max_size=20).map(str.encode)


@given(st.lists(st.none() | ASCII | ASCII | st.binary(max_size=6)), st.integers(0, 3))
def test_any_text(values: list[bytes | None], first: int) -> None:
    part = pa.array(values, pa.binary()).slice(first)
    decoded = decoder_for("string").decode(part)
    decoded.columns.validate(full=True)
    texts = decoded.columns.column(0).to_pylist()
    for value, text, bad in zip(part.to_pylist(), texts, failed(decoded), strict=True):
        assert text == (None if bad or value is None else value.decode())
        assert bad == (value is not None and not _is_text(value))


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_a_text_column_may_have_another_name() -> None:
    schema = pa.schema([("line", pa.string())])
    assert decode(decoder_for("string", schema=schema), b"x").columns.to_pylist() == [{"line": "x"}]
    with pytest.raises(OptionsError, match="one column of text"):
        decoder_for("string", schema=pa.schema([("n", pa.int64())]))


# Avro

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "when", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
        {
            "name": "who",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "Who",
                    "fields": [
                        {"name": "name", "type": "string"},
                        {"name": "kind", "type": "Kind"},
                    ],
                },
            ],
        },
        {"name": "also", "type": ["null", "Who"]},
        {"name": "at", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "key", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "either", "type": ["int", "long"]},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 2}},
    ],
}


def order(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "note": None if number % 2 else f"note {number}",
        "when": datetime.datetime(2020, 1, 2, 3, 4, 5, 678000, tzinfo=UTC),
        "day": datetime.date(2020, 1, 2),
        "price": Decimal("12.34"),
        "kind": "B",
        "tags": ["x", "y"][: number % 3],
        "counts": {"a": 1},
        "who": {"name": "n", "kind": "A"} if number % 2 else None,
        "also": None,
        "at": 1000,
        "key": "0b1b3bb4-9d4f-4b9c-8f2a-8c8b8e1c8f11",
        "either": 2**40,
        "hash": b"ab",
    }


def avro(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    plain = json.loads(json.dumps(schema).replace('"time-millis"', '"-"').replace('"uuid"', '"-"'))
    fastavro.schemaless_writer(out, fastavro.parse_schema(plain), value)
    return out.getvalue()


def test_avro() -> None:
    decoder = decoder_for("avro", options={"schema": json.dumps(ORDER)})
    values = [avro(ORDER, order(number)) for number in range(4)]
    decoded = decode(decoder, *values, None, FRAME + values[3])
    wanted = [order(number) for number in (0, 1, 2, 3, 3)]
    for each in wanted:
        each["counts"] = list(each["counts"].items())
    found = decoded.columns.to_pylist()
    assert [row for index, row in enumerate(found) if index != 4] == wanted
    assert set(found[4].values()) == {None}
    assert not any(failed(decoded))
    assert decoder.schema.field("price").type == pa.decimal128(9, 2)
    assert decoder.schema.field("when").type == pa.timestamp("us", tz="UTC")


def test_damaged_avro_keeps_its_row() -> None:
    decoder = AvroDecoder(json.dumps(ORDER))
    good = avro(ORDER, order(1))
    decoded = decode(
        decoder, good, b"", good[:-1], good + b"x", b"\xff" * 20, good, FRAME, good * 2
    )
    assert failed(decoded) == [False, True, True, True, True, False, True, True]
    assert decoded.columns.column("id").to_pylist() == [1, None, None, None, None, 1, None, None]
    assert "1 bytes follow the value" in decoded.errors[3].as_py()


@settings(deadline=None)
@given(st.lists(st.binary(max_size=30), max_size=10))
def test_any_bytes_as_avro_each_for_itself(values: list[bytes]) -> None:
    text = json.dumps(ORDER)
    together = decode(AvroDecoder(text), *values)
    for row, value in enumerate(values):
        alone = decode(AvroDecoder(text), value)
        assert alone.columns.equals(together.columns.slice(row, 1))
        assert alone.errors[0].as_py() == together.errors[row].as_py()


def test_avro_that_begins_with_a_zero_of_its_own() -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}
    schema["fields"] += [{"name": name, "type": "string"} for name in "bc"]
    value = avro(schema, {"a": 0, "b": "hello", "c": "world"})
    assert value[0] == 0
    decoder = AvroDecoder(json.dumps(schema))
    decoded = decode(decoder, value, FRAME + value)
    assert decoded.columns.to_pylist() == [{"a": 0, "b": "hello", "c": "world"}] * 2


def test_avro_without_a_record() -> None:
    decoded = decode(AvroDecoder('"string"'), avro("string", "x"), None)
    assert decoded.columns.to_pylist() == [{"value": "x"}, {"value": None}]


def test_some_fields_of_avro() -> None:
    wanted = pa.schema([("price", pa.decimal128(9, 2)), ("id", pa.int64())])
    decoder = AvroDecoder(json.dumps(ORDER), wanted=wanted)
    again = pickle.loads(pickle.dumps(decoder))
    decoded = decode(again, avro(ORDER, order(7)))
    assert decoded.columns.to_pylist() == [{"price": Decimal("12.34"), "id": 7}]
    with pytest.raises(OptionsError, match="the Avro schema has no field colour"):
        AvroDecoder(json.dumps(ORDER), wanted=pa.schema([("colour", pa.string())]))
    with pytest.raises(OptionsError, match="field id is int64 in the Avro schema, and not string"):
        AvroDecoder(json.dumps(ORDER), wanted=pa.schema([("id", pa.string())]))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ('{"type": "record"}', "cannot be read"),
        ('"nonsense"', "names a type it does not define"),
        ('["int", "string"]', "a union of 2 types has no one type"),
        (
            '{"type": "record", "name": "T", "fields": [{"name": "next", "type": ["null", "T"]}]}',
            "T contains itself",
        ),
        (
            '{"type": "bytes", "logicalType": "decimal", "precision": 50, "scale": 0}',
            "50 digits are more",
        ),
    ],
)
def test_avro_schemas_that_cannot_be(text: str, message: str) -> None:
    with pytest.raises(OptionsError, match=message):
        AvroDecoder(text)


def test_a_format_that_needs_its_schema() -> None:
    for name in ("avro", "protobuf"):
        with pytest.raises(OptionsError, match=f"decode={name} needs the option schema"):
            decoder_for(name)


# Protobuf


def field(
    name: str,
    number: int,
    kind: str,
    *,
    repeated: bool = False,
    of: str = "",
    optional: bool = False,
) -> descriptor_pb2.FieldDescriptorProto:
    made = descriptor_pb2.FieldDescriptorProto(name=name, number=number)
    made.type = descriptor_pb2.FieldDescriptorProto.Type.Value(f"TYPE_{kind}")
    label = "LABEL_REPEATED" if repeated else "LABEL_OPTIONAL"
    made.label = descriptor_pb2.FieldDescriptorProto.Label.Value(label)
    if of:
        made.type_name = of
    if optional:
        made.proto3_optional = True
    return made


def descriptors() -> bytes:
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    file.dependency.append("google/protobuf/wrappers.proto")
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="NONE", number=0)
    kind.value.add(name="BIG", number=1)
    item = file.message_type.add(name="Item")
    item.field.append(field("sku", 1, "STRING"))
    item.field.append(field("count", 2, "UINT32"))
    loop = file.message_type.add(name="Loop")
    loop.field.append(field("next", 1, "MESSAGE", of=".shop.Loop"))
    loop.field.append(field("id", 2, "INT32"))
    order_ = file.message_type.add(name="Order")
    entry = order_.nested_type.add(name="PricesEntry")
    entry.options.map_entry = True
    entry.field.append(field("key", 1, "STRING"))
    entry.field.append(field("value", 2, "DOUBLE"))
    order_.field.extend(
        [
            field("id", 1, "INT64"),
            field("huge", 2, "UINT64"),
            field("kind", 3, "ENUM", of=".shop.Kind"),
            field("when", 4, "MESSAGE", of=".google.protobuf.Timestamp"),
            field("items", 5, "MESSAGE", of=".shop.Item", repeated=True),
            field("prices", 6, "MESSAGE", of=".shop.Order.PricesEntry", repeated=True),
            field("raw", 7, "BYTES"),
            field("maybe", 8, "MESSAGE", of=".google.protobuf.Int32Value"),
            field("first", 9, "MESSAGE", of=".shop.Item"),
            field("nick", 10, "STRING", optional=True),
            field("ratio", 11, "FLOAT"),
        ]
    )
    order_.oneof_decl.add(name="_nick")
    order_.field[9].oneof_index = 0
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


@pytest.fixture(scope="module")
def new_order() -> Callable[..., Any]:
    from google.protobuf import wrappers_pb2

    pool = descriptor_pool.DescriptorPool()
    for module in (timestamp_pb2, wrappers_pb2):
        copy = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(copy)
        pool.Add(copy)
    pool.Add(descriptor_pb2.FileDescriptorSet.FromString(descriptors()).file[0])
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


def full_order(new_order: Callable[..., Any]) -> bytes:
    message = new_order(id=7, huge=2**64 - 1, kind=1, raw=b"\x00", nick="", ratio=0.5)
    message.when.seconds, message.when.nanos = 1_577_836_800, 123_456_789
    message.items.add(sku="a", count=2**32 - 1)
    message.prices["x"] = 1.5
    message.maybe.value = 0
    message.first.sku = "f"
    return message.SerializeToString()


def test_protobuf(new_order: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "shop.desc"
    path.write_bytes(descriptors())
    decoder = decoder_for("protobuf", options={"schema": f"{path}#shop.Order"})
    path.unlink()  # The decoder has it all.
    value = full_order(new_order)
    decoded = decode(
        pickle.loads(pickle.dumps(decoder)),
        value,
        None,
        b"",
        FRAME + b"\x00" + value,
        FRAME + b"\x04\x02\x00" + value,
    )
    wanted = {
        "id": 7,
        "huge": Decimal(2**64 - 1),
        "kind": "BIG",
        "when": datetime.datetime(2020, 1, 1, 0, 0, 0, 123456, tzinfo=UTC),
        "items": [{"sku": "a", "count": 2**32 - 1}],
        "prices": [("x", 1.5)],
        "raw": b"\x00",
        "maybe": 0,
        "first": {"sku": "f", "count": 0},
        "nick": "",
        "ratio": 0.5,
    }
    found = decoded.columns.to_pylist()
    assert [found[0], found[3], found[4]] == [wanted] * 3
    assert set(map(str, found[1].values())) == {"None"}
    assert found[2] == {
        "id": 0,
        "huge": Decimal(0),
        "kind": "NONE",
        "when": None,
        "items": [],
        "prices": [],
        "raw": b"",
        "maybe": None,
        "first": None,
        "nick": None,
        "ratio": 0.0,
    }
    assert not any(failed(decoded))


def test_damaged_protobuf_keeps_its_row(new_order: Callable[..., Any]) -> None:
    decoder = ProtobufDecoder(descriptors(), "shop.Order")
    value = full_order(new_order)
    decoded = decode(decoder, value, value[:-2], b"\xff", FRAME, FRAME + b"\x03", value)
    assert failed(decoded) == [False, True, True, True, True, False]
    assert decoded.columns.column("id").to_pylist() == [7, None, None, None, None, 7]


@settings(deadline=None)
@given(st.lists(st.binary(max_size=30), max_size=10))
def test_any_bytes_as_protobuf_each_for_itself(values: list[bytes]) -> None:
    decoder = ProtobufDecoder(descriptors(), "shop.Order")
    together = decode(decoder, *values)
    for row, value in enumerate(values):
        alone = decode(decoder, value)
        assert alone.columns.equals(together.columns.slice(row, 1))
        assert alone.errors[0].as_py() == together.errors[row].as_py()


def test_an_enum_number_without_a_name(new_order: Callable[..., Any]) -> None:
    decoder = ProtobufDecoder(
        descriptors(), "shop.Order", wanted=pa.schema([("kind", pa.string())])
    )
    decoded = decode(decoder, new_order(kind=9).SerializeToString())
    assert decoded.columns.to_pylist() == [{"kind": "9"}]


def test_protobuf_schemas_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(
        OptionsError, match=r"has no message shop.Nothing, only shop.Item, shop.Loop"
    ):
        ProtobufDecoder(descriptors(), "shop.Nothing")
    with pytest.raises(OptionsError, match=r"shop.Loop.next: shop.Loop contains itself"):
        ProtobufDecoder(descriptors(), "shop.Loop")
    wanted = pa.schema([("id", pa.int32())])
    assert ProtobufDecoder(descriptors(), "shop.Loop", wanted=wanted).schema == wanted
    with pytest.raises(OptionsError, match="no complete descriptor set"):
        ProtobufDecoder(b"nonsense", "shop.Order")
    with pytest.raises(OptionsError, match=r"must be FILE#package.Message"):
        decoder_for("protobuf", options={"schema": "shop.Order"})
    with pytest.raises(OptionsError, match=r"nowhere.desc cannot be read: No such file"):
        decoder_for("protobuf", options={"schema": f"{tmp_path}/nowhere.desc#shop.Order"})


# Schemas as text


def test_ddl() -> None:
    found = parse_schema(
        "id BIGINT NOT NULL COMMENT 'the, id', `a b` decimal(10, 2), c: array<int>,"
        " m MAP<STRING, STRUCT<x: DOUBLE, `y``z` TIMESTAMP_NTZ>>, t timestamp, d decimal,"
        " v varchar(5)"
    )
    assert found == pa.schema(
        [
            ("id", pa.int64()),
            ("a b", pa.decimal128(10, 2)),
            ("c", pa.list_(pa.field("element", pa.int32()))),
            (
                "m",
                pa.map_(pa.string(), pa.struct([("x", pa.float64()), ("y`z", pa.timestamp("us"))])),
            ),
            ("t", pa.timestamp("us", tz="UTC")),
            ("d", pa.decimal128(10, 0)),
            ("v", pa.string()),
        ]
    )


def test_the_json_of_a_struct_type_gives_what_spark_gives() -> None:
    from pyspark.sql import types as spark
    from pyspark.sql.pandas.types import to_arrow_schema

    element = spark.StructType([spark.StructField("x", spark.DecimalType(5, 1))])
    made = spark.StructType(
        [
            spark.StructField("a", spark.ArrayType(element)),
            spark.StructField("m", spark.MapType(spark.StringType(), spark.DateType())),
            spark.StructField("b", spark.ByteType()),
            spark.StructField("s", spark.ShortType()),
            spark.StructField("i", spark.IntegerType()),
            spark.StructField("f", spark.FloatType()),
            spark.StructField("bool", spark.BooleanType()),
            spark.StructField("bin", spark.BinaryType()),
            spark.StructField("t", spark.TimestampType()),
            spark.StructField("n", spark.TimestampNTZType()),
        ]
    )
    wanted = to_arrow_schema(made, timezone="UTC")
    assert parse_schema(made.json()) == wanted
    assert parse_schema(made.simpleString()[7:-1]) == wanted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id BIGINTT", "'bigintt' is no type"),
        ("id", "something is missing at the end"),
        ("", "something is missing"),
        ("id BIGINT,", "missing at the end"),
        ("id ARRAY<INT", "> is missing at the end"),
        ("id BIGINT name STRING", "'name' was not expected"),
        ("id INT, id INT", "two fields id"),
        ("id INT; x INT", "was not expected"),
        ("d DECIMAL(50, 2)", "precision"),
        ('{"type": "array"}', "elementType"),
        ('{"type": "struct"}', "fields"),
        ("{", "schema"),
        (", INT", "no name of a field"),
    ],
)
def test_schemas_that_cannot_be_read(text: str, message: str) -> None:
    with pytest.raises(OptionsError, match=message):
        parse_schema(text)
