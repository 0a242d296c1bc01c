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

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from chronik.model import TopicPartition
from chronik.spark.connection import Connection
from chronik.spark.errors import DataLossError, SourceError
from chronik.spark.lake.reading import rows_of
from chronik.spark.lake.storage import Storage
from chronik.spark.lake.table import LakeTable, LiveFile, PartitionField, PartitionKey
from chronik.spark.lake.warehouse import FORMATS, Warehouse
from chronik.spark.layout import ERROR
from chronik.spark.log_facts import LogFacts, Topic
from chronik.spark.offset_range import OffsetRange
from chronik.spark.planning import LogSpan
from chronik.spark.resolution import find_spans

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Where a topic says how it is materialised.
TABLE_SETTING: Final = "chronik.table"
DECODE_SETTING: Final = "chronik.decode"
SCHEMA_SETTING: Final = "chronik.schema"
NO_TABLE: Final = "none"
RAW: Final = "raw"
# The pipeline may commit while we look: a log start that has just passed the table's end is
# looked at again, with the table of then.
_LOOKS_MAX: Final = 3


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
    table_format: str | None = None,
    decode: str | None = None,
    schema: str | None = None,
) -> "DataFrame":
    """The union read of a topic; see `chronik.spark.table`."""
    place = Warehouse(url=warehouse) if isinstance(warehouse, str) else warehouse
    with LogFacts(Connection.from_options(connection_options)) as facts:
        facts.topics([name])
        settings = facts.topic_settings(name)
        found = _open(place, name, table_format or settings.get(TABLE_SETTING, NO_TABLE))
        pinned = pin(facts, found, name)
    return union_read(
        spark,
        connection_options,
        pinned,
        decode=decode or settings.get(DECODE_SETTING, RAW),
        schema=schema or settings.get(SCHEMA_SETTING) or None,
    )


def _open(warehouse: Warehouse, name: str, table_format: str) -> LakeTable:
    # Brokers of others have no such setting, and a topic may have been taken out of the pipeline.
    formats = FORMATS if table_format == NO_TABLE else (table_format,)
    for each in formats:
        found = warehouse.open(name, each)
        if found is not None:
            return found
    raise SourceError(
        f"there is no table {name} in {warehouse.url} ({' or '.join(formats)}): materialise the"
        " topic by `chronik pipeline run`, or name the warehouse that has it"
    )


def union_read(
    spark: "SparkSession",
    options: Mapping[str, str],
    pinned: Pinned,
    *,
    decode: str,
    schema: str | None = None,
) -> "DataFrame":
    """The frame of what was pinned, its columns those of the table; options say how to connect."""
    columns = _columns(pinned)
    history = _history(spark, pinned, columns)
    if not pinned.tail:
        return history
    return history.unionByName(_tail(spark, options, pinned, columns, decode, schema))


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
    root = pinned.table.storage.path
    elsewhere = _identity_fields(pinned.table)
    in_files = pa.schema([field for field in columns if field.name not in elsewhere])
    paths = [f"file://{root}/{each.path}" for each in pinned.files]
    frame = spark.read.schema(_spark_schema(in_files)).parquet(*paths)
    types = _spark_schema(columns)
    for name, index in elsewhere.items():
        by_file = _by_file_name(pinned.files, index)
        frame = frame.withColumn(name, by_file.cast(types[name].dataType))
    return frame.select(*columns.names)


def _identity_fields(table: LakeTable) -> dict[str, int]:
    """Columns that Delta keeps beside its files, and their place in a file's part."""
    if table.format != "delta":
        return {}
    return {
        field.name: index
        for index, field in enumerate(table.partitioning)
        if field.transform == "identity"
    }


def _by_file_name(files: Sequence[LiveFile], index: int) -> Any:
    names = F.array(*(F.lit(each.path.rsplit("/", 1)[-1]) for each in files))
    parts = F.array(*(F.lit(each.partition[index]).cast(StringType()) for each in files))
    return F.element_at(F.map_from_arrays(names, parts), F.col("_metadata.file_name"))


class _Readable(NamedTuple):
    """What `rows_of` needs of a table, and no more: it goes to the tasks."""

    format: str
    storage: Storage
    partitioning: tuple[PartitionField, ...]


def _history_by_tasks(spark: "SparkSession", pinned: Pinned, columns: pa.Schema) -> "DataFrame":
    table = _Readable(pinned.table.format, pinned.table.storage, pinned.table.partitioning)
    files, schema = list(pinned.files), pinned.schema
    names = columns.names

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                yield from rows_of(table, files[number], schema, names)  # type: ignore[arg-type]

    numbers = spark.range(len(files)).repartition(len(files), "id")
    return numbers.mapInArrow(read, _spark_schema(columns))


# The tail


def _tail(
    spark: "SparkSession",
    options: Mapping[str, str],
    pinned: Pinned,
    columns: pa.Schema,
    decode: str,
    schema: str | None,
) -> "DataFrame":
    reader = (
        spark.read.format("chronik")
        .options(**options)
        .option("assign", _by_topic(pinned.tail, lambda some: [each.partition for each in some]))
        .option("startingOffsets", _by_topic(pinned.tail, _starts))
        .option("endingOffsets", _by_topic(pinned.tail, _ends))
        .option("topicId", pinned.tail[0].topic_id.hex())
        .option("includeHeaders", "true")
    )
    if decode == RAW:
        frame = reader.load()
        frame = frame.select("value", *(F.col(name).alias(f"_{name}") for name in frame.columns))
        good = frame
    elif schema is not None:
        frame = reader.options(decode=decode, schema=schema).load()
        good = frame.where(F.col(ERROR).isNull())
    else:
        fields = [*_spark_schema(columns).fields, StructField(ERROR, StringType(), True)]
        frame = reader.option("decode", decode).schema(StructType(fields)).load()
        good = frame.where(F.col(ERROR).isNull())
    types = _spark_schema(columns)
    return good.select(
        *(
            (F.col(f"`{name}`") if name in frame.columns else F.lit(None))
            .cast(types[name].dataType)
            .alias(name)
            for name in columns.names
        )
    )


def _starts(ranges: Sequence[OffsetRange]) -> dict[str, int]:
    return {str(each.partition): each.start_offset for each in ranges}


def _ends(ranges: Sequence[OffsetRange]) -> dict[str, int]:
    return {str(each.partition): each.end_offset for each in ranges}


def _by_topic(ranges: Sequence[OffsetRange], what: Any) -> str:
    return json.dumps({ranges[0].topic: what(ranges)})
