"""Ranges of offsets as a frame whose rows are made in the tasks that read them.

For reads whose offsets are known beforehand. `format("chronik")` would start a Python process to
plan the read, one more to read it and a third to decode it; here a task does it all. That is most
of the time of a query over a small tail.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from chronik.spark.connection import Connection
from chronik.spark.errors import DataLossError, SourceError
from chronik.spark.log_reader import LogReader
from chronik.spark.offset_range import OffsetRange
from chronik.spark.tasks import PYTHON, check_python

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

# About a second of work: a long tail is read by as many tasks as it needs.
TASK_OFFSETS: Final = 500_000

Rows = Callable[[OffsetRange, pa.RecordBatch], pa.RecordBatch]


def pieces(ranges: Sequence[OffsetRange], most: int = TASK_OFFSETS) -> list[OffsetRange]:
    """The ranges, cut so that none has more offsets than this."""
    return [
        replace(each, start_offset=start, end_offset=min(start + most, each.end_offset))
        for each in ranges
        for start in range(each.start_offset, each.end_offset, most)
    ]


def range_frame(
    spark: "SparkSession",
    connection: Connection,
    ranges: Sequence[OffsetRange],
    *,
    columns: Sequence[str],
    rows: Rows,
    schema: "StructType",
    fail_on_data_loss: bool = True,
) -> "DataFrame":
    """A frame of what `rows` makes of these columns of the log's committed records."""
    wanted = pieces(ranges)
    planned = PYTHON

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        check_python(planned)
        with LogReader(connection) as reader:
            for batch in batches:
                for number in batch.column("id").to_pylist():
                    piece = wanted[number]
                    for found in _read(reader, piece, columns, fail_on_data_loss):
                        yield rows(piece, found)

    if not wanted:
        return spark.createDataFrame([], schema)
    count = sum(each.end_offset - each.start_offset for each in wanted)
    # A task costs more than the few offsets that many a partition's tail has.
    tasks = min(len(wanted), -(-count // TASK_OFFSETS))
    return spark.range(0, len(wanted), 1, tasks).mapInArrow(read, schema)


def _read(
    reader: LogReader, piece: OffsetRange, columns: Sequence[str], fails: bool
) -> Iterator[pa.RecordBatch]:
    try:
        yield from reader.read(piece, columns=columns, fail_on_data_loss=fails)
    except DataLossError as error:
        reason = str(error).rsplit(". ", 1)[0]
        raise SourceError(f"{reason}: make the frame anew, over what there is now") from None
