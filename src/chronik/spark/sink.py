"""The sink: a frame's rows become records of topics, by batch or by stream, Arrow all the way.

A stream's tasks are told apart by query, batch and Spark partition; a batch write's by `writeId`
and Spark partition; both by the topic too, unless it is a column. A task that runs again under the
same name writes nothing twice (`log_writer` says how). So a query that restarts from its
checkpoint, and a batch job that is run again with the same `writeId`, write once, *if* the plan
gives each Spark partition the same rows each time: a source that can be read again and no step that
orders rows by chance. Without `writeId` a batch write whose task is tried again writes that task's
rows again.

Records are appended: there is no overwriting a topic.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from chronik.spark.errors import OptionsError, SourceError
from chronik.spark.log_facts import LogFacts
from chronik.spark.log_writer import LogWriter
from chronik.spark.options import WriteOptions
from chronik.spark.tasks import PYTHON, check_python
from chronik.spark.write_columns import encoded_fields, written

if TYPE_CHECKING:
    from chronik.spark.encode import Encoder

# What Spark tells each task of a stream.
QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"


@dataclass(frozen=True, slots=True)
class TaskWritten(WriterCommitMessage):
    """What one task has written; `is_repeat` if an earlier run of it had done so already."""

    rows: int
    bytes: int
    is_repeat: bool


class RowsToRecords:
    """Writes the rows of a task; made on the driver, where a wrong frame is refused."""

    def __init__(self, schema: StructType, options: WriteOptions) -> None:
        self._options = options
        self._fields = encoded_fields(to_arrow_schema(schema, timezone="UTC"), options)
        self._encoder: Encoder | None = None
        self._python = PYTHON
        if options.encode is not None:
            from chronik.spark.encode import encoder_for

            given = {} if options.schema is None else {"schema": options.schema}
            self._encoder = encoder_for(options.encode, schema=self._fields, options=given)

    def write(
        self, batches: Iterator[pa.RecordBatch], *, write_id: str | None, task: int, batch_id: int
    ) -> TaskWritten:
        """Write a task's rows under its name, or without one."""
        check_python(self._python)
        with LogWriter(
            self._options.connection,
            topic=self._options.topic,
            write_id=self._named(write_id),
            task=task,
            batch_id=batch_id,
            compression=self._options.compression,
        ) as writer:
            for batch in batches:
                if batch.num_rows:
                    writer.write(self._records(batch))
            summary = writer.commit()
        return TaskWritten(summary.rows, summary.bytes, summary.skipped)

    def _named(self, write_id: str | None) -> str | None:
        """The name of the write to this topic: to another one it is another write."""
        topic = self._options.topic
        return write_id if write_id is None or topic is None else f"{write_id}/{topic}"

    def _records(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        values = None
        if self._encoder is not None:
            values = self._encoder.encode(batch.select(self._fields.names))
        return written(batch, values, self._options)


class BatchWriter(DataSourceArrowWriter):
    """Appends a frame to topics."""

    def __init__(self, schema: StructType, options: WriteOptions, *, overwrite: bool) -> None:
        if overwrite:
            raise OptionsError("a topic cannot be overwritten: use mode('append')")
        self._rows = RowsToRecords(schema, options)
        self._write_id = options.write_id
        if options.topic is not None:
            with LogFacts(options.connection) as facts:
                facts.topics([options.topic])  # A misspelt name is told before any task runs.

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._rows.write(iterator, write_id=self._write_id, task=_partition(), batch_id=0)


class StreamWriter(DataSourceStreamArrowWriter):
    """Appends each batch of a stream to topics, once."""

    def __init__(self, schema: StructType, options: WriteOptions) -> None:
        self._rows = RowsToRecords(schema, options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        query_id, batch_id = _properties((QUERY_ID, BATCH_ID))
        return self._rows.write(
            iterator, write_id=query_id, task=_partition(), batch_id=int(batch_id)
        )


def _partition() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "a writer runs in a task"
    return context.partitionId()


def _properties(names: Sequence[str]) -> list[str]:
    """What Spark has told this task of the query that it is a part of."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "a writer runs in a task"
    found = [context.getLocalProperty(name) for name in names]
    if None in found:
        raise SourceError(
            "this Spark does not tell tasks their query and batch, so that a stream cannot be"
            " written exactly once: use PySpark 4.2 or newer, or foreachBatch with writeId"
        )
    return [str(each) for each in found]
