"""The integrity job: every replica read from its broker, and every table against its log.

Two questions, both answered by Spark, so that a large cluster is read in parallel: do the replicas
hold the same log (`replica_check`), and is table + dead letters = log (`table_check`)?

It changes nothing and may run beside producers and pipelines: what comes after it has begun is not
looked at.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from chronik.spark.audit.findings import AuditReport
from chronik.spark.audit.replica_check import all_replicas, compare_replicas
from chronik.spark.audit.table_check import TableCheck
from chronik.spark.connection import Connection
from chronik.spark.log_facts import LogFacts
from chronik.spark.pipeline.config import PipelineConfig
from chronik.spark.pipeline.discovery import discover

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
        replicas = all_replicas(facts, found.values())
        audited, findings, count = compare_replicas(spark, connection, found, replicas)
        tables = {each.name: each for each in discover(connection, config).topics}
        for name in sorted(set(tables) & set(found)):
            check = TableCheck(spark, facts, config, connection, found[name], tables[name])
            more, more_count = check.run()
            findings += more
            count += more_count
            audited[name] = check.counted(audited[name])
    return AuditReport(
        topics=tuple(audited[name] for name in sorted(audited)),
        findings=tuple(findings),
        finding_count=count,
    )
