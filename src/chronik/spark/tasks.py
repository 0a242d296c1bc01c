"""What happens in a task: one range of a partition's offsets becomes the read's Arrow batches.

A task knows nothing but its partition, which carries all that it needs; batch and streaming reads
share it. The driver's Python version travels along: PySpark's own message about a mismatch comes
too late or not at all where packages arrive as files.
"""

import logging
import sys
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from chronik.spark.connection import Connection
from chronik.spark.errors import SourceError
from chronik.spark.layout import Layout
from chronik.spark.log_reader import LogReader
from chronik.spark.offset_range import OffsetRange
from chronik.spark.pushdown import Bounds

logger = logging.getLogger(__name__)
PYTHON: Final = sys.version_info[:2]


class RangePartition(InputPartition):
    """A Spark partition: a range of offsets, planned on the driver by this version of Python."""

    def __init__(self, offset_range: OffsetRange) -> None:
        self.offset_range = offset_range
        self.python = PYTHON


def check_python(planned: tuple[int, int]) -> None:
    """Refuse to run under another Python than the driver's."""
    if planned != PYTHON:
        raise SourceError(
            f"the driver runs Python {planned[0]}.{planned[1]} and this worker"
            f" {PYTHON[0]}.{PYTHON[1]} ({sys.executable}): set PYSPARK_PYTHON to one Python with"
            " chronik[spark] on all machines"
        )


def read_range(
    partition: InputPartition | None,
    *,
    connection: Connection,
    layout: Layout,
    read_committed: bool,
    fail_on_data_loss: bool,
    bounds: Bounds | None = None,
) -> Iterator[pa.RecordBatch]:
    """The batches of one Spark partition; none if Spark made one up for an empty read."""
    if not isinstance(partition, RangePartition):
        return
    check_python(partition.python)
    columns = layout.log_columns
    if bounds is not None and bounds.has_times and "timestamp" not in columns:
        columns = [*columns, "timestamp"]
    with LogReader(connection) as reader:
        for batch in reader.read(
            partition.offset_range,
            columns=columns,
            read_committed=read_committed,
            fail_on_data_loss=fail_on_data_loss,
        ):
            kept = batch if bounds is None else bounds.keep(batch)
            if kept.num_rows:
                yield layout.arrange(kept)
        for gap in reader.gaps:
            # Markers, aborted records and compaction are as they should be, and worth no warning.
            logger.log(
                logging.WARNING if gap.is_loss else logging.INFO,
                "%s: %d offsets from %d to %d have no record (%s)",
                partition.offset_range.place,
                gap.count,
                gap.start,
                gap.end - 1,
                gap.reason,
            )
