"""Avro and Protobuf topics become tables: framed or not, nested, with bad rows as dead letters."""

from __future__ import annotations

import datetime
import io
import json
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

import chronik.spark
from chronik.spark.connection import Connection
from chronik.spark.pipeline.config import PipelineConfig
from chronik.spark.pipeline.rounds import Pipeline

sys.path.insert(0, str(Path(__file__).parent))
from pipeline_world import by_offset, check_is_log, rows_of

FRAME = b"\x00\x00\x00\x00\x2a"  # Confluent's: a zero byte, and the id of a schema
MOMENT = datetime.datetime(2026, 3, 4, 5, 6, 7, 8000, tzinfo=datetime.UTC)
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "noted", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "raw", "type": {"type": "fixed", "name": "Two", "size": 2}},
        {"name": "ratio", "type": "float"},
        {
            "name": "items",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Item",
                    "fields": [{"name": "sku", "type": "string"}, {"name": "n", "type": "int"}],
                },
            },
        },
        {"name": "tags", "type": {"type": "map", "values": "int"}},
    ],
}


def avro(number: int) -> bytes:
    row = {
        "id": number,
        "note": None if number % 2 else "näme",
        "at": MOMENT,
        "noted": MOMENT.replace(tzinfo=None),
        "day": MOMENT.date(),
        "price": Decimal("7.25"),
        "kind": "B",
        "raw": b"\x00\xff",
        "ratio": 0.5,
        "items": [{"sku": "a", "n": 3}],
        "tags": {"x": 1},
    }
    out = io.BytesIO()
    fastavro.schemaless_writer(out, AVRO, row)
    return out.getvalue()


AVRO_ROW = {
    "note": None,
    "at": MOMENT,
    "noted": MOMENT,  # Tables have one kind of timestamp.
    "day": MOMENT.date(),
    "price": Decimal("7.25"),
    "kind": "B",
    "raw": b"\x00\xff",
    "ratio": 0.5,
    "items": [{"sku": "a", "n": 3}],
    "tags": [("x", 1)],
}


def descriptors() -> bytes:
    """What protoc would write of this, and of what it imports:

    message Item { string sku = 1; uint32 n = 2; }
    enum Kind { A = 0; B = 1; }
    message Order {
      int32 id = 1; uint64 huge = 2; Kind kind = 3; repeated Item items = 4;
      map<string, int32> tags = 5; bytes raw = 6; Item first = 7; float ratio = 8;
      google.protobuf.Timestamp at = 9;
    }
    """
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    kinds = file.enum_type.add(name="Kind")
    kinds.value.add(name="A", number=0)
    kinds.value.add(name="B", number=1)
    message = file.message_type.add
    many = descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED

    def fill(target: Any, *fields: tuple[str, str, str]) -> None:
        for number, (name, kind, of) in enumerate(fields, 1):
            made = target.field.add(name=name, number=number)
            if of:
                made.type_name = of
            made.type = descriptor_pb2.FieldDescriptorProto.Type.Value(f"TYPE_{kind}")
            made.label = many if name in ("items", "tags") else 1

    fill(message(name="Item"), ("sku", "STRING", ""), ("n", "UINT32", ""))
    order = message(name="Order")
    entry = order.nested_type.add(name="TagsEntry")
    entry.options.map_entry = True
    fill(entry, ("key", "STRING", ""), ("value", "INT32", ""))
    fill(
        order,
        ("id", "INT32", ""),
        ("huge", "UINT64", ""),
        ("kind", "ENUM", ".shop.Kind"),
        ("items", "MESSAGE", ".shop.Item"),
        ("tags", "MESSAGE", ".shop.Order.TagsEntry"),
        ("raw", "BYTES", ""),
        ("first", "MESSAGE", ".shop.Item"),
        ("ratio", "FLOAT", ""),
        ("at", "MESSAGE", ".google.protobuf.Timestamp"),
    )
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


def protobuf(number: int) -> bytes:
    from google.protobuf import timestamp_pb2

    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(descriptor_pb2.FileDescriptorSet.FromString(descriptors()).file[0])
    order = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    made = order(id=number, huge=2**64 - 1, kind=1, raw=b"\x00\xff", ratio=0.5)
    made.items.add(sku="a", n=2**32 - 1)
    made.tags["x"] = 1
    made.at.FromDatetime(MOMENT)
    return bytes(made.SerializeToString())


PROTOBUF_ROW = {
    "huge": Decimal(2**64 - 1),
    "kind": "B",
    "items": [{"sku": "a", "n": 2**32 - 1}],
    "tags": [("x", 1)],
    "raw": b"\x00\xff",
    "first": None,
    "ratio": 0.5,
    "at": MOMENT,
}


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
@pytest.mark.parametrize(
    ("decode", "value", "frame", "row"),
    [("avro", avro, FRAME, AVRO_ROW), ("protobuf", protobuf, FRAME + b"\x02\x02", PROTOBUF_ROW)],
    ids=["avro", "protobuf"],
)
def test_a_typed_topic_with_bad_rows(
    spark: Any,
    topics: Any,
    tmp_path: Path,
    table_format: str,
    decode: str,
    value: Callable[[int], bytes],
    frame: bytes,
    row: dict[str, Any],
) -> None:
    set_path = tmp_path / "shop.desc"
    set_path.write_bytes(descriptors())
    schema = json.dumps(AVRO) if decode == "avro" else f"{set_path}#shop.Order"
    settings = {"table": table_format, "decode": decode, "schema": schema}
    topic = topics.create(partitions=2)
    bad = (b"\xff\xff", value(1)[:-1], FRAME, b"\x00")
    topics.produce(topic, value(1), frame + value(3), *bad, None, partition=1)
    topics.produce(topic, *map(value, range(5, 25, 2)), partition=0)
    warehouse = tmp_path / "lake"
    config = PipelineConfig(
        bootstrap=topics.bootstrap, warehouse=str(warehouse), topics={topic: settings}
    )
    Pipeline(config, Connection(bootstrap=topics.bootstrap), spark).run(once=True)
    assert check_is_log(topics.bootstrap, warehouse, topic, table_format) == (13, len(bad))
    found = by_offset(rows_of(warehouse, topic, table_format), 1)
    for offset, number in ((0, 1), (1, 3)):
        assert found[offset]["id"] == number
        assert {name: found[offset][name] for name in row} == row
    tombstone = found[2 + len(bad)]
    assert tombstone["id"] is None
    topics.produce(topic, frame + value(99), b"\xff\xff", partition=1)
    frame_ = chronik.spark.table(
        spark, topic, bootstrap=topics.bootstrap, warehouse=str(warehouse), **settings
    )
    both = frame_.where("id is not null").orderBy("id").collect()
    assert [each.id for each in both] == [1, 3, *range(5, 25, 2), 99]
    assert both[-1]["items"] == both[0]["items"]
