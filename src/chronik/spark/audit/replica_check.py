"""Whether all replicas of a partition hold the same log, up to the high watermark.

Each is read by a task of its own (`replicas`); then batches at the same offset must have the same
bytes on every node. A compacted log differs between replicas by design, so that only batches of the
same extent are compared there.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from chronik.spark.audit.findings import FINDINGS_MAX, Audited, Finding
from chronik.spark.audit.replicas import BATCHES, ReadReplica, Replica, replica_batches
from chronik.spark.log_facts import Topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def compare_replicas(
    spark: "SparkSession",
    read: ReadReplica,
    topics: Mapping[str, Topic],
    replicas: list[Replica],
) -> tuple[dict[str, Audited], list[Finding], int]:
    """How much there is of each topic, and where its replicas are wrong."""
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
    frame = _batches(spark, read, waiting).persist()
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


def _batches(spark: "SparkSession", read: ReadReplica, replicas: list[Replica]) -> "DataFrame":
    """A row for each batch of each replica; a task for each replica."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                yield from replica_batches(read, replicas[number])

    numbers = spark.range(0, len(replicas), 1, len(replicas))
    return numbers.mapInArrow(rows, from_arrow_schema(BATCHES))


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
