"""What Spark runs: a task reads ranges of offsets, decodes them and writes Parquet itself.

It returns descriptions of files, never rows: those do not pass through the JVM. Memory is bounded
by what a `LogReader` holds and a few row groups, whatever the topic.

A task that fails is tried again by Spark, as often as its master URL says. The last try reports
what is wrong instead of failing, so that one topic in trouble does not stop the others.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from chronik.clock import SystemClock
from chronik.spark.connection import Connection
from chronik.spark.errors import DataLossError
from chronik.spark.lake.compaction import merge_files as merge
from chronik.spark.lake.failures import complaint
from chronik.spark.lake.parquet import FileWriter
from chronik.spark.lake.partitioning import part_faults
from chronik.spark.lake.reading import FilesOf
from chronik.spark.lake.schemas import DEAD_LETTER_COLUMNS
from chronik.spark.lake.storage import Storage
from chronik.spark.lake.table import DataFile, LakeError, LiveFile, PartitionField
from chronik.spark.lake.warehouse import Warehouse
from chronik.spark.log_reader import LogReader
from chronik.spark.offset_range import READERS_ADVICE, OffsetRange
from chronik.spark.pipeline.columns import ColumnDecoder

COLUMNS: Final = ("offset", "timestamp", "key", "value", "headers")
_ADVICE: Final = " Start the pipeline once with --accept-loss to go on without them."


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeTask:
    """Ranges of one topic, and all that is needed to write them down."""

    topic: str
    connection: Connection
    ranges: tuple[OffsetRange, ...]
    decoder: ColumnDecoder
    storage: Storage
    file_schema: pa.Schema
    partitioning: tuple[PartitionField, ...]
    dead_storage: Storage
    # By partition: offsets that are dead letters already and must not be judged again.
    settled: Mapping[int, pa.Array] = field(default_factory=dict)
    accept_loss: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeTask:
    """Files of one table that become one."""

    name: str
    files: FilesOf
    file_schema: pa.Schema
    group: tuple[LiveFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """What a task has written, or why it has not."""

    topic: str
    good: tuple[DataFile, ...] = ()
    bad: tuple[DataFile, ...] = ()
    byte_count: int = 0  # of keys and values
    lost_count: int = 0
    unexpected: Mapping[str, pa.DataType] = field(default_factory=dict)
    conflicts: Mapping[str, pa.DataType] = field(default_factory=dict)
    error: str | None = None


def run_task(task: "RangeTask | MergeTask", tries: int) -> TaskResult:
    """Spark's entry: do it, or say on the last of some tries why it cannot be done."""
    try:
        return read_ranges(task) if isinstance(task, RangeTask) else merge_files(task)
    except DataLossError as error:
        # A pipeline has no option of a reader: it is told by its own.
        what = str(error).replace(READERS_ADVICE, _ADVICE)
        return TaskResult(topic=_topic(task), error=what)
    except Exception as error:
        if _attempt() + 1 < tries:
            raise
        return TaskResult(topic=_topic(task), error=_told(error))


def _told(error: Exception) -> str:
    if isinstance(error, LakeError):
        return str(error)
    return f"{type(error).__name__}: {complaint(error)}"


def _topic(task: "RangeTask | MergeTask") -> str:
    return task.topic if isinstance(task, RangeTask) else task.name


def _attempt() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "only Spark calls this"
    return context.attemptNumber()


def read_ranges(task: RangeTask) -> TaskResult:
    """Read, decode and write."""
    now_ms = SystemClock().wall_ms()
    good = FileWriter(task.storage, task.file_schema, task.partitioning, now_ms=now_ms)
    bad = FileWriter(task.dead_storage, DEAD_LETTER_COLUMNS, now_ms=now_ms)
    byte_count = lost_count = 0
    with LogReader(task.connection) as reader, good, bad:
        for each in task.ranges:
            for batch in reader.read(each, columns=COLUMNS, fail_on_data_loss=not task.accept_loss):
                byte_count += batch.column("value").nbytes + batch.column("key").nbytes
                _write(task, each, batch, good, bad)
            lost_count += _lost(each, reader)
        return TaskResult(
            topic=task.topic,
            good=good.close(),
            bad=bad.close(),
            byte_count=byte_count,
            lost_count=lost_count,
            unexpected=dict(task.decoder.unexpected),
            conflicts=dict(task.decoder.conflicts),
        )


def _lost(place: OffsetRange, reader: LogReader) -> int:
    """How many records are gone before they could be read."""
    for gap in reader.gaps:
        # To go on behind these would skip what is written there next.
        if gap.reason in ("truncated", "recreated"):
            raise DataLossError(
                f"{place.place}: offsets {gap.start} to {gap.end - 1} are gone ({gap.reason}): "
                "restore the topic, or move its table and dead letters away to begin again"
            )
    return sum(gap.count for gap in reader.gaps if gap.is_loss)


def _write(
    task: RangeTask, place: OffsetRange, batch: pa.RecordBatch, good: FileWriter, bad: FileWriter
) -> None:
    settled = task.settled.get(place.partition)
    if settled is not None and len(settled):
        batch = batch.filter(pc.invert(pc.is_in(batch.column("offset"), value_set=settled)))
    columns, errors = task.decoder.decode(batch.column("value"))
    system = system_columns(place, batch)
    rows = pa.record_batch(
        [*system.values(), *columns.columns], names=[*system, *columns.schema.names]
    )
    faults = part_faults(rows, task.partitioning)
    if faults is not None:
        errors = pc.coalesce(errors, faults)
    if errors.null_count == len(errors):
        good.write(rows)
        return
    is_bad = pc.is_valid(errors)
    good.write(rows.filter(pc.invert(is_bad)))
    letters = {
        **system,
        "_value": batch.column("value"),
        "_reason": errors,
        "_topic_id": pa.repeat(pa.scalar(place.topic_id, pa.binary()), batch.num_rows),
    }
    whole = pa.record_batch(list(letters.values()), names=list(letters))
    bad.write(whole.filter(is_bad))


def system_columns(place: OffsetRange, batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """The columns that every table has."""
    count = batch.num_rows
    return {
        "_topic": pa.repeat(pa.scalar(place.topic), count),
        "_partition": pa.repeat(pa.scalar(place.partition, pa.int32()), count),
        "_offset": batch.column("offset"),
        "_timestamp": batch.column("timestamp"),
        "_key": batch.column("key"),
        "_headers": batch.column("headers"),
    }


def merge_files(task: MergeTask) -> TaskResult:
    """Write the rows of some files to one."""
    merged = merge(task.files, task.file_schema, task.group, now_ms=SystemClock().wall_ms())
    return TaskResult(topic=task.name, good=merged)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A word that a task has left in the warehouse, or why it could not."""

    whose: str
    path: str = ""
    error: str | None = None


def write_probe(warehouse: Warehouse, number: int) -> Probe:
    """Leave a word in the warehouse."""
    import os
    import socket

    whose = f"{socket.gethostname()}:{os.getpid()}:{number}"
    try:
        return Probe(whose=whose, path=warehouse.write_probe(whose))
    except (LakeError, FileNotFoundError) as error:
        return Probe(whose=whose, error=str(error))
