"""Reads a table's rows without an engine: for recovery, replays and audits."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from chronik.spark.lake.parquet import read_rows
from chronik.spark.lake.storage import Storage
from chronik.spark.lake.table import LakeTable, LiveFile, PartitionField


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesOf:
    """What it takes to read a table's files, and no more. Picklable: tasks have no catalog."""

    format: str
    storage: Storage
    partitioning: tuple[PartitionField, ...]

    @classmethod
    def table(cls, table: LakeTable) -> Self:
        """Of a table that somebody has opened."""
        return cls(format=table.format, storage=table.storage, partitioning=table.partitioning)


def rows_of(
    table: LakeTable | FilesOf, file: LiveFile, schema: pa.Schema, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Some columns of a file, wherever the format keeps them; null where the file is older."""
    parts = {
        field.name: text for field, text in zip(table.partitioning, file.partition, strict=True)
    }
    present = [name for name in columns if table.format != "delta" or name not in parts]
    wanted = pa.schema(schema.field(name) for name in columns)
    for batch in read_rows(table.storage, file.path, present):
        arrays = [
            _column(batch, field, parts.get(field.name), is_in_file=field.name in present)
            for field in wanted
        ]
        yield pa.record_batch(arrays, schema=wanted)


def _column(
    batch: pa.RecordBatch, field: pa.Field, part: str | None, *, is_in_file: bool
) -> pa.Array:
    if is_in_file and field.name in batch.schema.names:
        return batch.column(field.name).cast(field.type)
    value = None if is_in_file else part
    return pa.array([value] * batch.num_rows, pa.string()).cast(field.type)
