"""Whether a topic's table and its dead letters are its log.

For all committed data records from the later of the log's and the table's start to the table's
committed offset: each is in exactly one of the two, once. Compaction takes records from a log whose
rows were appended before: there a row without its record is as it should be.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from chronik.spark.audit.cluster import AuditedCluster
from chronik.spark.audit.findings import FINDINGS_MAX, Audited, Finding
from chronik.spark.lake.table import (
    REPLAY,
    REPLAY_DONE,
    LakeError,
    LakeTable,
    PartitionKey,
    TableState,
    total,
)
from chronik.spark.lake.warehouse import DEAD_LETTERS
from chronik.spark.log_facts import Topic
from chronik.spark.offset_range import OffsetRange
from chronik.spark.pipeline.config import PipelineConfig, TopicConfig
from chronik.spark.union import state_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LOOKS_MAX: Final = 5


class TableCheck:
    """Whether one topic's table and dead letters are its log."""

    def __init__(
        self,
        spark: "SparkSession",
        cluster: AuditedCluster,
        config: PipelineConfig,
        topic: Topic,
        settings: TopicConfig,
    ) -> None:
        self._spark, self._cluster = spark, cluster
        self._topic, self._settings = topic, settings
        self._table = config.place.open(topic.name, settings.table)
        self._dead = config.place.open(topic.name + DEAD_LETTERS, settings.table)
        self._states: tuple[TableState, TableState] | None = None

    def counted(self, audited: Audited) -> Audited:
        """The report with the numbers of the table."""
        if self._states is None:
            return replace(audited, table_format=self._settings.table)
        rows, dead = (total(state.files())[1] for state in self._states)
        return replace(audited, table_format=self._settings.table, row_count=rows, dead_count=dead)

    def run(self) -> tuple[list[Finding], int]:
        """What is missing, extra or twice."""
        if self._table is None or self._dead is None:
            return [], 0  # The pipeline has not begun: nothing is promised yet.
        self._states = _settled(self._table, self._dead)
        ends = self._ends(self._states[0])
        if not ends:
            return [], 0
        wrong = self._compared(ends).persist()
        try:
            findings = [self._finding(row) for row in wrong.limit(FINDINGS_MAX).collect()]
            count = len(findings) if len(findings) < FINDINGS_MAX else wrong.count()
            return findings, count
        finally:
            wrong.unpersist()

    def _ends(self, state: TableState) -> dict[int, int]:
        """Up to where the table has each partition."""
        ends = {
            partition: state.offset(PartitionKey(self._topic.topic_id, partition))
            for partition in self._topic.partitions
        }
        return {partition: end for partition, end in ends.items() if end is not None}

    def _compared(self, ends: Mapping[int, int]) -> "DataFrame":
        assert self._table is not None
        assert self._dead is not None
        assert self._states is not None
        rows = state_frame(self._spark, self._table, self._states[0])
        letters = state_frame(self._spark, self._dead, self._states[1]).where(
            F.col("_topic_id") == F.lit(self._topic.topic_id)
        )
        starts = self._starts(rows, letters)
        bounds = self._spark.createDataFrame(
            [(partition, starts[partition], end) for partition, end in ends.items()],
            "partition int, start long, end long",
        )
        both = _places(rows, "row").unionByName(_places(letters, "letter"))
        inside = both.join(F.broadcast(bounds), "partition").where(
            "offset >= start and offset < end"
        )
        counted = inside.select("partition", "offset", "what").unionByName(self._log(starts, ends))
        sums = counted.groupBy("partition", "offset").agg(
            *(
                F.sum(F.when(F.col("what") == what, 1).otherwise(0)).alias(what)
                for what in ("row", "letter", "record")
            )
        )
        wrong = "record != 1 or row + letter != 1"
        if self._cluster.is_compacted(self._topic):
            wrong = "row + letter > 1 or record > row + letter"
        return sums.where(wrong).orderBy("partition", "offset")

    def _starts(self, rows: "DataFrame", letters: "DataFrame") -> dict[int, int]:
        """From where on the table is complete: the log's start, or where retention has cut it."""
        starts = dict(self._cluster.starts(self._topic))
        if self._settings.table_retention_ms < 0:
            return starts
        firsts = rows.select("_partition", "_offset").unionByName(
            letters.select("_partition", "_offset")
        )
        for row in firsts.groupBy("_partition").agg(F.min("_offset").alias("first")).collect():
            starts[row._partition] = max(starts.get(row._partition, 0), row.first)
        return starts

    def _log(self, starts: Mapping[int, int], ends: Mapping[int, int]) -> "DataFrame":
        topic = self._topic
        ranges = [
            OffsetRange(topic.name, topic.topic_id, partition, starts[partition], end)
            for partition, end in ends.items()
            if starts[partition] < end
        ]
        return self._cluster.records(self._spark, ranges).withColumn("what", F.lit("record"))

    def _finding(self, row: Any) -> Finding:
        copies = row.row + row.letter
        if row.record and not copies:
            kind, text = "missing", "a record of the log is neither in the table nor a dead letter"
        elif copies > 1:
            kind = "duplicate"
            text = f"a record is {row.row} times in the table and {row.letter} in the dead letters"
        else:
            kind, text = "extra", "a row is not in the log (or is of an earlier topic of that name)"
        return Finding(
            topic=self._topic.name,
            partition=row.partition,
            kind=kind,
            offset=row.offset,
            node_id=None,
            text=text,
        )


def _settled(table: LakeTable, dead_letters: LakeTable) -> tuple[TableState, TableState]:
    """Both tables between two replays: one moves rows from the letters to the table."""
    for _ in range(_LOOKS_MAX):
        state, dead = table.load(), dead_letters.load()
        if dead.mark(REPLAY) == dead.mark(REPLAY_DONE) == state.mark(REPLAY):
            return state, dead
    raise LakeError(
        f"a replay of the dead letters of {table.name} has begun and not ended: run `chronik"
        " pipeline replay` once more, then audit"
    )


def _places(rows: "DataFrame", what: str) -> "DataFrame":
    return rows.select(
        F.col("_partition").alias("partition"),
        F.col("_offset").alias("offset"),
        F.lit(what).alias("what"),
    )
