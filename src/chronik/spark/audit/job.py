"""The integrity job: every replica read from its broker, and every table against its log.

Two questions, both answered by Spark, so that a large cluster is read in parallel:

- Do the replicas hold the same log? Each is read up to the high watermark by a task of its own
  (`replicas`); then batches at the same offset must have the same bytes on every node.
- Is table + dead letters = log? For all committed data records from the later of the log's and the
  table's start to the table's committed offset, each is in exactly one of the two, once.

It changes nothing and may run beside producers and pipelines: what comes after it has begun is not
looked at. A compacted log differs between replicas by design, so that only batches of the same
extent are compared there.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from chronik.spark.audit.findings import Audited, AuditReport, Finding
from chronik.spark.audit.replicas import BATCHES, Replica, replica_batches
from chronik.spark.connection import Connection
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
from chronik.spark.log_facts import LogFacts, Topic
from chronik.spark.offset_range import OffsetRange
from chronik.spark.pipeline.config import PipelineConfig, TopicConfig
from chronik.spark.pipeline.discovery import discover
from chronik.spark.range_frame import range_frame
from chronik.spark.union import state_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FINDINGS_MAX: Final = 100  # of one kind of question; more would be read by nobody
_LOOKS_MAX: Final = 5
_PLACES: Final = StructType(
    [
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("what", StringType()),
    ]
)


def audit(
    config: PipelineConfig,
    connection: Connection,
    spark: "SparkSession",
    *,
    topics: Sequence[str] = (),
) -> AuditReport:
    """Look at these topics, or at all; raises SourceError or LakeError if it cannot."""
    with LogFacts(connection) as facts:
        found = facts.topics(topics) if topics else facts.matching(".*")
        replicas = _replicas(facts, found.values())
        audited, findings, count = _compare_replicas(spark, connection, found, replicas)
        tables = {each.name: each for each in discover(connection, config).topics}
        for name in sorted(set(tables) & set(found)):
            check = _TableCheck(spark, facts, config, connection, found[name], tables[name])
            more, more_count = check.run()
            findings += more
            count += more_count
            audited[name] = check.counted(audited[name])
    return AuditReport(
        topics=tuple(audited[name] for name in sorted(audited)),
        findings=tuple(findings),
        finding_count=count,
    )


# Replicas


def _replicas(facts: LogFacts, topics: Iterable[Topic]) -> list[Replica]:
    """Every copy of every partition, with the offsets that all in sync must have."""
    listed = list(topics)
    places = [place for topic in listed for place in topic.places]
    starts = facts.earliest(places)
    ends = facts.latest(places, read_committed=False)
    nodes = facts.replicas([topic.name for topic in listed])
    replicas = []
    for topic in listed:
        policy = facts.topic_settings(topic.name).get("cleanup.policy", "delete")
        for place in topic.places:
            replicas += [
                Replica(
                    topic=topic.name,
                    topic_id=topic.topic_id,
                    partition=place.partition,
                    node_id=node_id,
                    start_offset=starts[place],
                    end_offset=ends[place],
                    is_compacted="compact" in policy,
                )
                for node_id in nodes[place]
            ]
    return replicas


def _compare_replicas(
    spark: "SparkSession",
    connection: Connection,
    topics: Mapping[str, Topic],
    replicas: list[Replica],
) -> tuple[dict[str, Audited], list[Finding], int]:
    waiting = [each for each in replicas if each.start_offset < each.end_offset]
    audited = {
        name: Audited(
            topic=name,
            partition_count=len(topic.partitions),
            replica_count=sum(each.topic == name for each in replicas),
            batch_count=0,
            record_count=0,
            byte_count=0,
        )
        for name, topic in topics.items()
    }
    if not waiting:
        return audited, [], 0
    frame = _batches(spark, connection, waiting).persist()
    try:
        for row in _totals(frame).collect():
            audited[row.topic] = replace(
                audited[row.topic],
                batch_count=row.batches,
                record_count=row.records,
                byte_count=row.bytes,
            )
        compacted = sorted({each.topic for each in waiting if each.is_compacted})
        wrong, diverging = frame.where("problem is not null"), _diverging(frame, compacted)
        findings = [_problem(row) for row in wrong.limit(FINDINGS_MAX).collect()]
        findings += [_divergence(row) for row in diverging.limit(FINDINGS_MAX).collect()]
        count = len(findings)
        if count >= FINDINGS_MAX:
            count = wrong.count() + diverging.count()
        return audited, findings, count
    finally:
        frame.unpersist()


def _batches(spark: "SparkSession", connection: Connection, replicas: list[Replica]) -> "DataFrame":
    """A row for each batch of each replica; a task for each replica."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                yield from replica_batches(connection, replicas[number])

    numbers = spark.range(0, len(replicas), 1, len(replicas))
    return numbers.mapInArrow(read, from_arrow_schema(BATCHES))


def _totals(frame: "DataFrame") -> "DataFrame":
    """By topic, one copy of each partition counted: the longest."""
    copies = frame.groupBy("topic", "partition", "node_id").agg(
        F.count("digest").alias("batches"),
        F.sum("record_count").alias("records"),
        F.sum("byte_count").alias("bytes"),
    )
    longest = copies.groupBy("topic", "partition").agg(
        F.max("batches").alias("batches"),
        F.max("records").alias("records"),
        F.max("bytes").alias("bytes"),
    )
    return longest.groupBy("topic").agg(
        F.sum("batches").alias("batches"),
        F.sum("records").alias("records"),
        F.sum("bytes").alias("bytes"),
    )


def _diverging(frame: "DataFrame", compacted: list[str]) -> "DataFrame":
    """Batches that not all replicas have, or not with the same bytes, where all were read."""
    read = frame.where("digest is not null")
    spans = read.groupBy("topic", "partition", "node_id").agg(
        F.min("base_offset").alias("first"), F.max("next_offset").alias("last")
    )
    common = spans.groupBy("topic", "partition").agg(
        F.max("first").alias("first"), F.min("last").alias("last"), F.count("*").alias("copies")
    )
    is_compacted = F.col("topic").isin(compacted) if compacted else F.lit(False)
    inside = read.join(F.broadcast(common), ["topic", "partition"]).where(
        "base_offset >= first and base_offset < last"
    )
    extent = F.when(is_compacted, F.struct("next_offset", "record_count"))
    grouped = inside.groupBy("topic", "partition", "base_offset", extent.alias("extent")).agg(
        F.count_distinct("digest").alias("kinds"),
        F.count_distinct("node_id").alias("found"),
        F.first("copies").alias("copies"),
        F.sort_array(F.collect_set(F.struct("digest", "node_id"))).alias("held"),
    )
    is_short = ~is_compacted & (F.col("found") < F.col("copies"))
    return grouped.where((F.col("kinds") > 1) | is_short)


def _problem(row: Any) -> Finding:
    return Finding(
        topic=row.topic,
        partition=row.partition,
        kind=row.kind,
        offset=row.base_offset,
        node_id=row.node_id,
        text=row.problem,
    )


def _divergence(row: Any) -> Finding:
    nodes: dict[bytes, list[int]] = {}
    for digest, node_id in row.held:
        nodes.setdefault(bytes(digest), []).append(node_id)
    sides = sorted(nodes.values(), key=lambda side: (-len(side), side))
    texts = [f"node{'s' if len(side) > 1 else ''} {', '.join(map(str, side))}" for side in sides]
    text = (
        f"{' and '.join(texts)} hold different bytes at offset {row.base_offset}"
        if len(texts) > 1
        else f"only {texts[0]} of {row.copies} replicas has a batch at offset {row.base_offset}"
    )
    return Finding(
        topic=row.topic,
        partition=row.partition,
        kind="divergence",
        offset=row.base_offset,
        node_id=None,
        text=text,
    )


# Tables


class _TableCheck:
    """Whether one topic's table and dead letters are its log."""

    def __init__(
        self,
        spark: "SparkSession",
        facts: LogFacts,
        config: PipelineConfig,
        connection: Connection,
        topic: Topic,
        settings: TopicConfig,
    ) -> None:
        self._spark, self._facts, self._connection = spark, facts, connection
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
        return sums.where("record != 1 or row + letter != 1").orderBy("partition", "offset")

    def _starts(self, rows: "DataFrame", letters: "DataFrame") -> dict[int, int]:
        """From where on the table is complete: the log's start, or where retention has cut it."""
        log_starts = self._facts.earliest(self._topic.places)
        starts = {place.partition: offset for place, offset in log_starts.items()}
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

        def rows(place: OffsetRange, batch: pa.RecordBatch) -> pa.RecordBatch:
            count = batch.num_rows
            partitions = pa.repeat(pa.scalar(place.partition, pa.int32()), count)
            whats = pa.repeat(pa.scalar("record"), count)
            return pa.record_batch(
                [partitions, batch.column("offset"), whats], names=["partition", "offset", "what"]
            )

        return range_frame(
            self._spark,
            self._connection,
            ranges,
            columns=["offset"],
            rows=rows,
            schema=_PLACES,
            # The log's start may move on while we read: what is gone cannot be missed.
            fail_on_data_loss=False,
        )

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
