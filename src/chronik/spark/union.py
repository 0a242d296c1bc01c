"""A topic as one table: its history from the lake, its tail from the log, no gap and no overlap.

The lake table's own commit says up to which offset it holds each partition. From there on the rest
is read from the log, up to where it ends now. Both are fixed when the frame is made: the table's
files, and the offsets of the tail. So every action on the frame sees the same rows.

Invariant
    Each committed record that can be decoded is there once. Records that the table sent to the
    dead letters are not, and neither are such records of the tail.

A log that starts after the table's end has lost records that the table never got: an error with
their count. History is read by Spark's own Parquet reader; in an object store, for which Spark has
no file system without a jar, by tasks that read the files themselves.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from chronik.model import TopicPartition
from chronik.spark.connection import Connection, check_names
from chronik.spark.errors import DataLossError, SourceError
from chronik.spark.lake.reading import FilesOf, rows_of
from chronik.spark.lake.schemas import SYSTEM_COLUMNS
from chronik.spark.lake.table import (
    LakeTable,
    LiveFile,
    PartitionKey,
    TableState,
)
from chronik.spark.lake.warehouse import FORMATS, Warehouse
from chronik.spark.log_facts import LogFacts, Topic
from chronik.spark.offset_range import OffsetRange
from chronik.spark.pipeline.config import TopicConfig, check_topic_keys, topic_config
from chronik.spark.pipeline.names import own_columns
from chronik.spark.pipeline.schema import column_decoder
from chronik.spark.planning import LogSpan
from chronik.spark.range_frame import range_frame
from chronik.spark.resolution import find_spans

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TABLE_SETTING: Final = "chronik.table"
# The pipeline may commit while we look: a log start that has just passed the table's end is
# looked at again, with the table of then.
_LOOKS_MAX: Final = 3
# Parts of a table that are read each by itself, so that Spark leaves out those that a filter
# excludes; more of them would take longer to plan than to read.
_PARTS_MAX: Final = 32
_TASKS_MAX: Final = 1000
_GLOB: Final = re.compile(r"([\\*?\[\]{}])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """What a union read reads: files of one version of the table, and ranges of the log."""

    table: LakeTable
    version: int
    schema: pa.Schema
    files: Sequence[LiveFile]
    tail: Sequence[OffsetRange]


def tail_of(
    topic: Topic, table_ends: Mapping[int, int | None], spans: Mapping[int, LogSpan]
) -> list[OffsetRange]:
    """The ranges that follow the table's ends; DataLossError if the log does not have them all."""
    ranges = []
    for partition, span in sorted(spans.items()):
        place = TopicPartition(topic.name, partition)
        table_end = table_ends.get(partition)
        start = span.log_start_offset if table_end is None else table_end
        if start < span.log_start_offset:
            raise DataLossError(
                f"{place}: the table ends at offset {start} and the log starts at"
                f" {span.log_start_offset}: {span.log_start_offset - start} records are in neither."
                " Read the table alone, and give the topic a longer retention"
            )
        if start > span.end_offset:
            raise DataLossError(
                f"{place}: the table ends at offset {start} and the log before it, at"
                f" {span.end_offset}: the log has lost {start - span.end_offset} records"
            )
        if start < span.end_offset:
            ranges.append(
                OffsetRange(topic.name, topic.topic_id, partition, start, span.end_offset)
            )
    return ranges


def pin(facts: LogFacts, table: LakeTable, name: str) -> Pinned:
    """Fix the table's version and the tail's offsets, the table first: the log only grows."""
    for look in range(_LOOKS_MAX):
        state = table.load()
        topic = facts.topics([name])[name]
        found = find_spans(facts, {name: topic}, read_committed=True)[name]
        ends = {
            partition: state.offset(PartitionKey(topic.topic_id, partition))
            for partition in topic.partitions
        }
        try:
            tail = tail_of(topic, ends, found.spans)
        except DataLossError:
            if look + 1 == _LOOKS_MAX or table.load().version == state.version:
                raise
            continue
        return Pinned(
            table=table,
            version=state.version,
            schema=state.schema,
            files=state.files(),
            tail=tail,
        )
    raise AssertionError("the last look returns or raises")


def table(
    spark: "SparkSession",
    name: str,
    *,
    warehouse: str | Warehouse,
    connection_options: Mapping[str, str],
    overrides: Mapping[str, str] | None = None,
) -> "DataFrame":
    """The union read of a topic; see `chronik.spark.table`."""
    place = Warehouse(url=warehouse) if isinstance(warehouse, str) else warehouse
    check_names(connection_options)
    check_topic_keys(overrides or {})
    connection = Connection.from_options(connection_options)
    with LogFacts(connection) as facts:
        facts.topics([name])
        place.check()
        settings = facts.topic_settings(name)
        given = dict(overrides or {})
        wanted = given.get("table") or settings.get(TABLE_SETTING, "none")
        found = open_table(place, name, None if wanted == "none" else wanted)
        config = topic_config(name, settings, {**given, "table": found.format})
        assert config is not None, "a table was found"
        return union_read(spark, connection, pin(facts, found, name), config)


def open_table(warehouse: Warehouse, name: str, table_format: str | None) -> LakeTable:
    """The table of a topic, in one format or any; SourceError if there is none."""
    formats = [table_format] if table_format else FORMATS
    for each in formats:
        found = warehouse.open(name, each)
        if found is not None:
            return found
    raise SourceError(
        f"there is no table {name} in {warehouse.url} ({' or '.join(formats)}): materialise the"
        " topic by `chronik pipeline run`, or name the warehouse that has it"
    )


def union_read(
    spark: "SparkSession", connection: Connection, pinned: Pinned, config: TopicConfig
) -> "DataFrame":
    """The frame of what was pinned; its columns are those of the table."""
    columns = _columns(pinned)
    history = _history(spark, pinned, columns)
    if not pinned.tail:
        return history
    return history.unionByName(_tail(spark, connection, pinned, columns, config))


def table_alone(spark: "SparkSession", table: LakeTable) -> "DataFrame":
    """A table's rows at its current version, pinned as well, and nothing of the log."""
    return state_frame(spark, table, table.load())


def state_frame(spark: "SparkSession", table: LakeTable, state: TableState) -> "DataFrame":
    """A table's rows at one version."""
    pinned = Pinned(
        table=table, version=state.version, schema=state.schema, files=state.files(), tail=()
    )
    return _history(spark, pinned, _columns(pinned))


def _columns(pinned: Pinned) -> pa.Schema:
    """The table's columns without those that only say which part of it a row is in."""
    derived = {field.name for field in pinned.table.partitioning if field.transform != "identity"}
    return pa.schema([field for field in pinned.schema if field.name not in derived])


def _spark_schema(columns: pa.Schema) -> StructType:
    fields = from_arrow_schema(columns).fields
    return StructType([StructField(field.name, field.dataType, True) for field in fields])


# History


def _history(spark: "SparkSession", pinned: Pinned, columns: pa.Schema) -> "DataFrame":
    if not pinned.files:
        return spark.createDataFrame([], _spark_schema(columns))
    if not pinned.table.storage.is_local:
        return _history_by_tasks(spark, pinned, columns)
    elsewhere = _identity_fields(pinned.table)
    if not elsewhere:
        return _parquet(spark, pinned, pinned.files, columns)
    parts: dict[tuple[str | None, ...], list[LiveFile]] = defaultdict(list)
    for each in pinned.files:
        parts[tuple(each.partition[index] for index in elsewhere.values())].append(each)
    in_files = pa.schema([field for field in columns if field.name not in elsewhere])
    types = _spark_schema(columns)

    def typed(name: str, value: Any) -> Any:
        return value.cast(StringType()).cast(types[name].dataType).alias(name)

    if len(parts) > _PARTS_MAX:
        frame = _parquet(spark, pinned, pinned.files, in_files)
        frame = frame.withColumn("_file", F.col("_metadata.file_name"))
        rows = [(_file_name(each), *part) for part, files in parts.items() for each in files]
        listed = ["_file", *(f"_part_{index}" for index in range(len(elsewhere)))]
        by_file = spark.createDataFrame(rows, ", ".join(f"`{name}` string" for name in listed))
        values = dict(zip(elsewhere, map(F.col, listed[1:]), strict=True))
        joined = frame.join(F.broadcast(by_file), "_file")
        return joined.select(
            *(
                typed(name, values[name]) if name in values else F.col(f"`{name}`")
                for name in types.names
            )
        )
    frames = []
    for part, files in parts.items():
        frame = _parquet(spark, pinned, files, in_files)
        values = dict(zip(elsewhere, map(F.lit, part), strict=True))
        frames.append(
            frame.select(
                *(
                    typed(name, values[name]) if name in values else F.col(f"`{name}`")
                    for name in types.names
                )
            )
        )
    return reduce(lambda one, other: one.union(other), frames)


def _parquet(
    spark: "SparkSession", pinned: Pinned, files: Sequence[LiveFile], columns: pa.Schema
) -> "DataFrame":
    # Spark takes a path for a pattern.
    root = _GLOB.sub(r"\\\1", pinned.table.storage.path)
    paths = [f"file://{root}/{each.path}" for each in files]
    return spark.read.schema(_spark_schema(columns)).parquet(*paths)


def _file_name(file: LiveFile) -> str:
    return file.path.rsplit("/", 1)[-1]


def _identity_fields(table: LakeTable) -> dict[str, int]:
    """Columns that Delta keeps beside its files, and their place in a file's part."""
    if table.format != "delta":
        return {}
    return {
        field.name: index
        for index, field in enumerate(table.partitioning)
        if field.transform == "identity"
    }


def _history_by_tasks(spark: "SparkSession", pinned: Pinned, columns: pa.Schema) -> "DataFrame":
    table = FilesOf.table(pinned.table)
    files, schema = list(pinned.files), pinned.schema
    names = columns.names

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                yield from rows_of(table, files[number], schema, names)

    numbers = spark.range(0, len(files), 1, min(len(files), _TASKS_MAX))
    return numbers.mapInArrow(read, _spark_schema(columns))


# The tail


def _tail(
    spark: "SparkSession",
    connection: Connection,
    pinned: Pinned,
    columns: pa.Schema,
    config: TopicConfig,
) -> "DataFrame":
    """The log from the table's end on, by the decoder that the pipeline would use."""
    system = [name for name in columns.names if name in SYSTEM_COLUMNS.names]
    typed = pa.schema([field for field in columns if field.name not in system])
    own = own_columns(pinned.table.partitioning)
    decoder = column_decoder(config, typed, pinned.table.format, own)

    def rows(_: OffsetRange, batch: pa.RecordBatch) -> pa.RecordBatch:
        decoded, errors = decoder.decode(batch.column("value"))
        there = dict(zip(decoded.schema.names, decoded.columns, strict=True))
        there |= {name: batch.column(name.removeprefix("_")) for name in system}
        arrays = [there[field.name].cast(field.type) for field in columns]
        whole = pa.record_batch(arrays, schema=columns)
        return whole.filter(pc.is_null(errors)) if errors.null_count < len(errors) else whole

    return range_frame(
        spark,
        connection,
        pinned.tail,
        columns=["value", *(name.removeprefix("_") for name in system)],
        rows=rows,
        schema=_spark_schema(columns),
    )
