"""How fast record batches become columns, values typed columns, and both the way back, on one core.

    python bench/spark_columns.py [--rows 200000] [--json]

Rows are all different, JSON of 172 bytes. Each figure is the best of five warm runs in seconds of
processor time, since nothing here waits or uses a second core: other work on the machine counts
less.
"""

import argparse
import datetime
import io
import json
import random
import time
from collections.abc import Callable
from decimal import Decimal

import fastavro
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from chronik.client.producer import BATCH_BYTES_MAX
from chronik.protocol import codecs
from chronik.protocol.batch import split
from chronik.protocol.records import BatchBuilder, Record, build_batch
from chronik.spark.decode import decoder_for
from chronik.spark.decode.protobuf import ProtobufDecoder
from chronik.spark.encode import encoder_for
from chronik.spark.record_columns import HEADERS_TYPE, read_columns, unpack
from chronik.spark.record_encoding import Turns, encoded_batches
from chronik.spark.write_columns import WRITTEN

RUNS = 5
RECORD_BYTES = 172
BATCH_ROWS = 50_000  # what the reader hands on at a time
DDL = (
    "id BIGINT, user STRING, amount DOUBLE, currency STRING, at TIMESTAMP, ok BOOLEAN,"
    " city STRING, pad STRING"
)
AVRO = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "user", "type": "string"},
        {"name": "amount", "type": "double"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "ok", "type": "boolean"},
    ],
}
WIDE = "id DECIMAL(20, 0), user STRING, tags ARRAY<INT>, day DATE, m MAP<STRING, BIGINT>"


def best_s(work: Callable[[], object]) -> float:
    """The fastest of some runs, in seconds of processor time."""
    taken = []
    for _ in range(RUNS):
        started = time.process_time()
        work()
        taken.append(time.process_time() - started)
    return min(taken)


def event(number: int, chance: random.Random) -> bytes:
    """A JSON record of the size that all figures are about."""
    fields: dict[str, object] = {
        "id": number,
        "user": f"user-{chance.randrange(10**6):06d}",
        "amount": round(chance.random() * 1000, 2),
        "currency": "EUR",
        "at": f"2026-01-{number % 28 + 1:02d}T10:{number % 60:02d}:00.{number % 1000:03d}Z",
        "ok": number % 2 == 0,
        "city": f"city-{number % 100}",
    }
    size = len(json.dumps({**fields, "pad": ""}))
    fields["pad"] = "".join(chance.choices("abcdefgh", k=RECORD_BYTES - size))
    return json.dumps(fields).encode()


def spoiled(values: list[bytes], bad: bytes, every: int) -> list[bytes]:
    """The values with some that cannot be decoded."""
    return [bad if row % every == 0 else value for row, value in enumerate(values)]


def with_nanoseconds(values: list[bytes]) -> list[bytes]:
    """The values with timestamps that Arrow's own reader refuses."""
    return [value.replace(b"Z", b"000456Z", 1) for value in values]


def records_bench(values: list[bytes], batch_records: int, codec: int) -> Callable[[], int]:
    data = b"".join(
        build_batch(
            [
                Record(first + index, 1_700_000_000_000 + index, None, value)
                for index, value in enumerate(values[first : first + batch_records])
            ],
            base_offset=first,
            codec=codec,
        )
        for first in range(0, len(values), batch_records)
    )

    def work() -> int:
        batches = split(data)
        rows = 0
        step = max(1, BATCH_ROWS // batch_records)
        for first in range(0, len(batches), step):
            payloads = [unpack(batch) for batch in batches[first : first + step]]
            columns = read_columns(payloads)
            names = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
            rows += columns.to_arrow(names, topic="t", partition=0).num_rows
        return rows

    return work


def decode_bench(
    format_name: str, options: dict[str, str], values: list[bytes]
) -> Callable[[], None]:
    decoder = decoder_for(format_name, options=options)
    return _decode_bench(decoder, values)


def _decode_bench(decoder: object, values: list[bytes]) -> Callable[[], None]:
    batches = [
        pa.array(values[first : first + BATCH_ROWS], pa.binary())
        for first in range(0, len(values), BATCH_ROWS)
    ]

    def work() -> None:
        for batch in batches:
            decoder.decode(batch)  # type: ignore[attr-defined]

    return work


def avro_values(count: int) -> list[bytes]:
    schema = fastavro.parse_schema(AVRO)
    values = []
    for number in range(count):
        out = io.BytesIO()
        at = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(seconds=number)
        found = {"id": number, "user": f"user-{number}", "amount": 0.5, "at": at, "ok": True}
        fastavro.schemaless_writer(out, schema, found)
        values.append(out.getvalue())
    return values


def protobuf_values(count: int) -> tuple[ProtobufDecoder, list[bytes]]:
    file = descriptor_pb2.FileDescriptorProto(name="e.proto", package="e", syntax="proto3")
    message = file.message_type.add(name="Event")
    for number, (name, kind) in enumerate(
        [("id", 3), ("user", 9), ("amount", 1), ("ok", 8), ("city", 9)], start=1
    ):
        message.field.add(name=name, number=number, type=kind, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    new_event = message_factory.GetMessageClass(pool.FindMessageTypeByName("e.Event"))
    values = [
        new_event(
            id=number, user=f"user-{number}", amount=0.5, ok=True, city="c"
        ).SerializeToString()
        for number in range(count)
    ]
    found = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    return ProtobufDecoder(found, "e.Event"), values


def wide_values(count: int) -> list[bytes]:
    return [
        json.dumps(
            {
                "id": str(Decimal(number)),
                "user": f"user-{number}",
                "tags": [number, 2],
                "day": "2026-01-01",
                "m": {"a": number},
            }
        ).encode()
        for number in range(count)
    ]


def encode_bench(format_name: str, values: list[bytes]) -> Callable[[], None]:
    schema = decoder_for("json", options={"schema": DDL}).schema
    columns = decoder_for("json", schema=schema).decode(pa.array(values, pa.binary())).columns
    encoder = encoder_for(format_name, schema=schema)

    def work() -> None:
        for first in range(0, len(values), BATCH_ROWS):
            encoder.encode(columns.slice(first, BATCH_ROWS))

    return work


def write_bench(values: list[bytes], codec: int) -> Callable[[], None]:
    """What a sink's task does with its rows, up to the batches that it sends."""
    rows = pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar("t"), len(values)),
            pa.nulls(len(values), pa.int32()),
            pa.array([b"%d" % number for number in range(len(values))], pa.binary()),
            pa.array(values, pa.binary()),
            pa.nulls(len(values), HEADERS_TYPE),
        ],
        schema=WRITTEN,
    )

    def work() -> None:
        turns = {"t": Turns(0, 4)}
        for first in range(0, len(values), BATCH_ROWS):
            some = rows.slice(first, BATCH_ROWS)
            for _, records, count in encoded_batches(some, turns, BATCH_BYTES_MAX):
                BatchBuilder.encoded(records, count, 0).build(codec=codec)

    return work


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--json", action="store_true", help="figures as JSON")
    arguments = parser.parse_args()
    rows = arguments.rows
    chance = random.Random(7)
    values = [event(number, chance) for number in range(rows)]
    ddl = {"schema": DDL}
    wrong_type = b'{"id": "x", "user": "y"}'
    works: dict[str, Callable[[], object]] = {
        "columns, batches of 3,000, none": records_bench(values, 3000, codecs.NONE),
        "columns, batches of 95, none": records_bench(values, 95, codecs.NONE),
        "columns, batches of 3,000, zstd": records_bench(values, 3000, codecs.ZSTD),
        "columns, batches of 3,000, lz4": records_bench(values, 3000, codecs.LZ4),
        "string": decode_bench("string", {}, values),
        "json": decode_bench("json", ddl, values),
        "json, 1 % malformed": decode_bench("json", ddl, spoiled(values, b'{"id": tru}', 100)),
        "json, 1 % of the wrong type": decode_bench("json", ddl, spoiled(values, wrong_type, 100)),
        "json, 1 % no JSON": decode_bench("json", ddl, spoiled(values, b"nonsense", 100)),
        "json, nanoseconds": decode_bench("json", ddl, with_nanoseconds(values)),
        "json with map, list, date": decode_bench("json", {"schema": WIDE}, wide_values(rows)),
        "avro": decode_bench("avro", {"schema": json.dumps(AVRO)}, avro_values(rows)),
        "protobuf": _decode_bench(*protobuf_values(rows)),
        "encode json": encode_bench("json", values),
        "encode avro": encode_bench("avro", values),
        "records of columns, none": write_bench(values, codecs.NONE),
        "records of columns, lz4": write_bench(values, codecs.LZ4),
    }
    found = {name: rows / best_s(work) for name, work in works.items()}
    if arguments.json:
        print(json.dumps({"rows_per_s": found}))
        return
    for name, rate in found.items():
        print(f"{name:<36}{rate:>14,.0f} rows/s")


if __name__ == "__main__":
    main()
