"""A running cluster under audit: its brokers are asked, and each reads its own replicas."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from chronik.spark.audit.cluster import RECORDS
from chronik.spark.audit.fetched import fetched_rows
from chronik.spark.audit.findings import Finding
from chronik.spark.audit.replicas import ReadReplica, Replica
from chronik.spark.connection import Connection
from chronik.spark.log_facts import LogFacts, Topic
from chronik.spark.offset_range import OffsetRange
from chronik.spark.pipeline.config import PipelineConfig, TopicConfig
from chronik.spark.pipeline.discovery import discover
from chronik.spark.range_frame import range_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class RunningCluster:
    """The facts of a cluster that answers."""

    def __init__(self, connection: Connection, facts: LogFacts) -> None:
        self._connection, self._facts = connection, facts
        self.findings: tuple[Finding, ...] = ()

    @property
    def read_replica(self) -> ReadReplica:
        return partial(fetched_rows, self._connection)

    def topics(self, names: Sequence[str]) -> dict[str, Topic]:
        return self._facts.topics(names) if names else self._facts.matching(".*")

    def tables(self, config: PipelineConfig) -> dict[str, TopicConfig]:
        return {each.name: each for each in discover(self._connection, config).topics}

    def replicas(self, topics: Iterable[Topic]) -> list[Replica]:
        facts = self._facts
        listed = list(topics)
        places = [place for topic in listed for place in topic.places]
        starts = facts.earliest(places)
        ends = facts.latest(places, read_committed=False)
        nodes = facts.replicas([topic.name for topic in listed])
        replicas = []
        for topic in listed:
            is_compacted = self.is_compacted(topic)
            for place in topic.places:
                replicas += [
                    Replica(
                        topic=topic.name,
                        topic_id=topic.topic_id,
                        partition=place.partition,
                        node_id=node_id,
                        start_offset=starts[place],
                        end_offset=ends[place],
                        is_compacted=is_compacted,
                    )
                    for node_id in nodes[place]
                ]
        return replicas

    def is_compacted(self, topic: Topic) -> bool:
        settings = self._facts.topic_settings(topic.name)
        return "compact" in settings.get("cleanup.policy", "delete")

    def starts(self, topic: Topic) -> dict[int, int]:
        earliest = self._facts.earliest(topic.places)
        return {place.partition: offset for place, offset in earliest.items()}

    def records(self, spark: "SparkSession", ranges: Sequence[OffsetRange]) -> "DataFrame":
        def rows(place: OffsetRange, batch: pa.RecordBatch) -> pa.RecordBatch:
            partitions = pa.repeat(pa.scalar(place.partition, pa.int32()), batch.num_rows)
            return pa.record_batch([partitions, batch.column("offset")], names=RECORDS.names)

        return range_frame(
            spark,
            self._connection,
            ranges,
            columns=["offset"],
            rows=rows,
            schema=RECORDS,
            # The log's start may move on while we read: what is gone cannot be missed.
            fail_on_data_loss=False,
        )

    def leave_out(self, findings: Iterable[Finding]) -> None:
        """The brokers decide who serves."""
