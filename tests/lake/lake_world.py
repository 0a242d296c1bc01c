"""Tables for tests, and rows to put into them."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from chronik.spark.lake.parquet import FileWriter
from chronik.spark.lake.reading import rows_of
from chronik.spark.lake.schemas import SYSTEM_COLUMNS, TIMESTAMP, table_schema
from chronik.spark.lake.table import (
    Advance,
    Change,
    DataFile,
    LakeTable,
    PartitionField,
    PartitionKey,
)
from chronik.spark.lake.warehouse import Warehouse

TOPIC_ID = bytes(range(16))
KEY = PartitionKey(TOPIC_ID, 0)
COLUMNS = pa.schema([("item", pa.string()), ("count", pa.int64())])
FORMATS = ("delta", "iceberg")
NOW_MS = 1_790_000_000_000


def new_table(
    root: Path | Warehouse,
    table_format: str,
    name: str = "orders",
    *,
    columns: pa.Schema = COLUMNS,
    partitioning: tuple[PartitionField, ...] = (),
) -> LakeTable:
    warehouse = root if isinstance(root, Warehouse) else Warehouse(url=str(root))
    schema = table_schema(columns, table_format)
    return warehouse.open_or_create(name, table_format, schema, partitioning)


def rows(
    start_offset: int, end_offset: int, *, partition: int = 0, timestamp_ms: int = NOW_MS
) -> pa.RecordBatch:
    offsets = range(start_offset, end_offset)
    count = len(offsets)
    return pa.record_batch(
        [
            pa.array(["orders"] * count, pa.string()),
            pa.array([partition] * count, pa.int32()),
            pa.array(offsets, pa.int64()),
            pa.array([(timestamp_ms + each) * 1000 for each in offsets], pa.int64()).cast(
                TIMESTAMP
            ),
            pa.array([str(each).encode() for each in offsets], pa.binary()),
            pa.array([_headers(each) for each in offsets], SYSTEM_COLUMNS.field("_headers").type),
            pa.array([f"item {each}" for each in offsets], pa.string()),
            pa.array([each * 10 for each in offsets], pa.int64()),
        ],
        schema=pa.schema([*SYSTEM_COLUMNS, *COLUMNS]),
    )


def _headers(offset: int) -> list[dict[str, object]] | None:
    return [{"key": "trace", "value": b"%d" % offset}] if offset % 2 else None


def written(table: LakeTable, *batches: pa.RecordBatch) -> tuple[DataFile, ...]:
    schema = table.file_schema(table.load())
    with FileWriter(table.storage, schema, table.partitioning, now_ms=NOW_MS) as writer:
        for batch in batches:
            writer.write(batch)
        return writer.close()


def append(
    table: LakeTable, start_offset: int | None, end_offset: int, *, key: PartitionKey = KEY
) -> int:
    """Commit rows of one partition, as a pipeline does."""
    files = written(table, rows(start_offset or 0, end_offset, partition=key.partition))
    advance = Advance(key, start_offset, end_offset)
    return table.commit(Change(added=files, advances=(advance,)))


def offsets_in(table: LakeTable, *, partition: int = 0) -> list[int]:
    """The offsets of the rows that a reader sees, in order."""
    found: list[int] = []
    for batch in batches_in(table):
        mask = [each == partition for each in batch.column("_partition").to_pylist()]
        found += [
            offset
            for offset, is_ours in zip(batch.column("_offset").to_pylist(), mask, strict=True)
            if is_ours
        ]
    return sorted(found)


def batches_in(table: LakeTable) -> Iterator[pa.RecordBatch]:
    """What is in the files that the table's current version refers to."""
    state = table.load()
    for file in state.files():
        yield from rows_of(table, file, state.schema, rows(0, 0).schema.names)
