"""Writes rows to Parquet files of a table, and says what it has written.

Memory is bounded: rows go out as row groups as they come, a file ends at its target size, and of
a table with many parts only a few files are open at a time.
"""

import uuid
from collections.abc import Iterator
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from chronik.spark.lake.partitioning import parts_of
from chronik.spark.lake.storage import Storage
from chronik.spark.lake.table import DataFile, PartitionField

TARGET_BYTES: Final = 128 * 1024 * 1024
OPEN_FILES_MAX: Final = 16  # each keeps a row group's encoder in memory
ROW_GROUP_BYTES: Final = 32 * 1024 * 1024
ROW_GROUP_ROWS_MAX: Final = 512 * 1024
READ_BATCH_ROWS: Final = 50_000
SAMPLE_ROWS: Final = 4096  # of a file's first rows: they tell whose values come again


class FileWriter:
    """Writes batches of one table's rows to as many files as it takes.

    `close` gives their descriptions. What was written without a close, or is never committed,
    belongs to nobody and is deleted once it is old.
    """

    def __init__(
        self,
        storage: Storage,
        schema: pa.Schema,
        partitioning: tuple[PartitionField, ...] = (),
        *,
        now_ms: int,
        target_bytes: int = TARGET_BYTES,
        directory: str = "data",
    ) -> None:
        self._storage = storage
        self._schema = schema
        self._partitioning = partitioning
        self._now_ms = now_ms
        self._target_bytes = target_bytes
        self._directory = directory
        self._open: dict[tuple[str | None, ...], _OpenFile] = {}
        self._written: list[DataFile] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Write rows. The batch has the partition columns, whether or not the file keeps them."""
        for part, rows in parts_of(batch, self._partitioning):
            self.write_part(part, rows)

    def write_part(self, part: tuple[str | None, ...], rows: pa.RecordBatch) -> None:
        """Write rows that are known to belong to one part of the table."""
        if not rows.num_rows:
            return
        opened = self._open.pop(part, None) or self._begin(part)
        opened.write(rows.select(self._schema.names).cast(self._schema))
        if opened.byte_count >= self._target_bytes:
            self._written.append(opened.close())
        else:
            self._open[part] = opened  # at the end: the least lately used is the first

    def _begin(self, part: tuple[str | None, ...]) -> "_OpenFile":
        if len(self._open) >= OPEN_FILES_MAX:
            self._written.append(self._open.pop(next(iter(self._open))).close())
        path = f"{self._directory}/{uuid.uuid4().hex}.parquet"
        return _OpenFile(self._storage, path, self._schema, part, self._now_ms)

    def close(self) -> tuple[DataFile, ...]:
        """End all files and describe them."""
        while self._open:
            _, opened = self._open.popitem()
            self._written.append(opened.close())
        return tuple(self._written)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._open:
            self._open.popitem()[1].abandon()


class _OpenFile:
    """One file being written. Small batches are gathered into row groups."""

    def __init__(
        self,
        storage: Storage,
        path: str,
        schema: pa.Schema,
        part: tuple[str | None, ...],
        now_ms: int,
    ) -> None:
        self._storage, self._path, self._part, self._now_ms = storage, path, part, now_ms
        self._schema = schema
        self._stream: Any = storage.create(path)
        self._footers: list[pq.FileMetaData] = []
        self._writer: pq.ParquetWriter | None = None
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_bytes = 0
        self._gathered_rows = 0

    @property
    def byte_count(self) -> int:
        return int(self._stream.tell())

    def write(self, rows: pa.RecordBatch) -> None:
        self._gathered.append(rows)
        self._gathered_bytes += rows.get_total_buffer_size()
        self._gathered_rows += rows.num_rows
        if self._gathered_bytes >= ROW_GROUP_BYTES or self._gathered_rows >= ROW_GROUP_ROWS_MAX:
            self._flush()

    def _flush(self) -> None:
        if self._gathered:
            table = pa.Table.from_batches(self._gathered, schema=self._schema)
            if self._writer is None:
                self._writer = self._begin(table.slice(0, SAMPLE_ROWS))
            self._writer.write_table(table, row_group_size=ROW_GROUP_ROWS_MAX)
            self._gathered, self._gathered_bytes, self._gathered_rows = [], 0, 0

    def _begin(self, sample: pa.Table) -> pq.ParquetWriter:
        return pq.ParquetWriter(
            self._stream, self._schema, compression="zstd", compression_level=1,
            use_dictionary=dictionary_columns(sample), metadata_collector=self._footers,
        )  # fmt: skip

    def close(self) -> DataFile:
        self._flush()
        assert self._writer is not None, "a file without rows is not begun"
        self._writer.close()
        self._stream.close()
        footer = self._footers[0]
        return DataFile(
            path=self._path,
            byte_count=self._storage.sync(self._path),
            row_count=footer.num_rows,
            footer=footer,
            partition=self._part,
            written_ms=self._now_ms,
        )

    def abandon(self) -> None:
        """Let go of the file after an error; what is on disk is deleted with the unreferenced."""
        if self._writer is not None:
            self._writer.close()
        self._stream.close()


def dictionary_columns(sample: pa.Table) -> list[str]:
    """The Parquet columns that get a dictionary: those whose values come again.

    Where nearly all values differ, building one takes as long as all the rest of writing, and is
    given up in the end.
    """
    paths: list[str] = []
    for field in sample.schema:
        leaves = _leaves(field.name, field.type)
        is_nested = leaves != [field.name]
        if is_nested or pc.count_distinct(sample.column(field.name)).as_py() * 2 <= len(sample):
            paths += leaves
    return paths


def _leaves(path: str, kind: pa.DataType) -> list[str]:
    """The paths of a column's leaves in a Parquet file."""
    if pa.types.is_struct(kind):
        return [leaf for each in kind for leaf in _leaves(f"{path}.{each.name}", each.type)]
    if pa.types.is_map(kind):
        item = _leaves(f"{path}.key_value.value", kind.item_type)
        return [*_leaves(f"{path}.key_value.key", kind.key_type), *item]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _leaves(f"{path}.list.element", kind.value_type)
    return [path]


def described(storage: Storage, path: str, part: tuple[str | None, ...]) -> DataFile:
    """A file that was written earlier, from what is in it."""
    with storage.open_file(path) as stream:
        footer = pq.read_metadata(stream)
        size = int(stream.size())  # type: ignore[attr-defined]
    return DataFile(
        path=path, byte_count=size, row_count=footer.num_rows, footer=footer, partition=part
    )


def read_rows(
    storage: Storage, path: str, columns: list[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a file, in batches, with a bounded number in memory."""
    with storage.open_file(path) as stream:
        yield from pq.ParquetFile(stream).iter_batches(READ_BATCH_ROWS, columns=columns)
