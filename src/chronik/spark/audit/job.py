"""The integrity job: every replica, wherever it is, and every table against its log.

Two questions, both answered by Spark, so that a large cluster is read in parallel: do the replicas
hold the same log (`replica_check`), and is table + dead letters = log (`table_check`)?

It changes nothing. Of a running cluster it may run beside producers and pipelines: what comes after
it has begun is not looked at. Of a stopped one it reads the data directories, and no node can start
on them until it is done.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from chronik.spark.audit.cluster import AuditedCluster
from chronik.spark.audit.findings import AuditReport
from chronik.spark.audit.replica_check import compare_replicas
from chronik.spark.audit.running import RunningCluster
from chronik.spark.audit.stopped import StoppedCluster
from chronik.spark.audit.table_check import TableCheck
from chronik.spark.connection import Connection
from chronik.spark.log_facts import LogFacts
from chronik.spark.pipeline.config import PipelineConfig

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
        return _audited(config, RunningCluster(connection, facts), spark, topics)


def audit_stopped(
    config: PipelineConfig,
    cluster: StoppedCluster,
    spark: "SparkSession",
    *,
    topics: Sequence[str] = (),
) -> AuditReport:
    """The same of nodes that do not run, by their data directories."""
    return _audited(config, cluster, spark, topics)


def _audited(
    config: PipelineConfig, cluster: AuditedCluster, spark: "SparkSession", names: Sequence[str]
) -> AuditReport:
    found = cluster.topics(names)
    replicas = cluster.replicas(found.values())
    audited, findings, count = compare_replicas(spark, cluster.read_replica, found, replicas)
    cluster.leave_out(findings)
    findings = [*cluster.findings, *findings]
    count += len(cluster.findings)
    tables = cluster.tables(config)
    for name in sorted(set(tables) & set(found)):
        check = TableCheck(spark, cluster, config, found[name], tables[name])
        more, more_count = check.run()
        findings += more
        count += more_count
        audited[name] = check.counted(audited[name])
    return AuditReport(
        topics=tuple(audited[name] for name in sorted(audited)),
        findings=tuple(findings),
        finding_count=count,
    )
