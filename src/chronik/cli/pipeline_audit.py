"""`chronik pipeline audit`: are all replicas the same, and is every table its log?"""

from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chronik.cli.output import print_json, print_table, size_text
from chronik.cli.session import Json, fail
from chronik.cli.spark_start import Bootstrap, ConfigFile, Master, Warehouse, quiet_start

if TYPE_CHECKING:
    from chronik.spark.audit.findings import AuditReport, Finding

DataDirs = Annotated[
    list[str] | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        help="A stopped node's data directory, to be read instead of asking brokers; repeatable.",
    ),
]


def audit(
    topics: Annotated[list[str] | None, typer.Argument(help="The topics; all if none.")] = None,
    config: ConfigFile = None,
    warehouse: Warehouse = None,
    bootstrap: Bootstrap = None,
    data_dirs: DataDirs = None,
    master: Master = None,
    as_json: Json = False,
) -> None:
    """Compare all replicas with each other, and tables with the log; exit 1 on a finding.

    Of a cluster that runs, or with --data-dir of one that is stopped: then its files are read.
    """
    options = {"bootstrap": bootstrap, "warehouse": warehouse, "master": master}
    report = _audited(config, options, topics or [], data_dirs or [])
    if as_json:
        print_json(report.as_json())
    else:
        _print(report)
    if report.finding_count:
        raise typer.Exit(1)


def _audited(
    config: str | None, options: dict[str, Any], topics: list[str], data_dirs: list[str]
) -> "AuditReport":
    try:
        from chronik.spark.audit.job import audit as audit_running
        from chronik.spark.audit.job import audit_stopped
        from chronik.spark.audit.stopped import StoppedCluster
        from chronik.spark.connection import Connection
        from chronik.spark.errors import DataLossError, OptionsError, SourceError
        from chronik.spark.lake.table import LakeError
        from chronik.spark.pipeline.config import load_config
        from chronik.spark.pipeline.session import open_session
        from chronik.spark.spark_failures import spark_errors, why
    except ImportError as error:
        fail(f"{error}: install what an audit needs with pip install 'chronik[spark]'")
    try:
        settings = load_config(config, options)
        settings.place.check()
        with ExitStack() as stack:
            # Whoever named a wrong directory hears it before Spark starts.
            stopped = stack.enter_context(StoppedCluster(data_dirs)) if data_dirs else None
            with quiet_start():
                spark = open_session(settings.master, settings.spark, name="chronik-audit")
            stack.callback(spark.stop)
            if stopped is not None:
                return audit_stopped(settings, stopped, spark, topics=topics)
            connection = Connection.from_options(settings.connection_options)
            return audit_running(settings, connection, spark, topics=topics)
    except (SourceError, DataLossError, OptionsError, LakeError) as error:
        fail(str(error))
    except spark_errors() as error:
        fail(why(error))


def _print(report: "AuditReport") -> None:
    print_table(
        ("TOPIC", "PARTITIONS", "REPLICAS", "BATCHES", "RECORDS", "SIZE", "TABLE", "ROWS", "DEAD"),
        [
            (
                each.topic,
                each.partition_count,
                each.replica_count,
                each.batch_count,
                each.record_count,
                size_text(each.byte_count),
                each.table_format,
                each.row_count,
                each.dead_count,
            )
            for each in report.topics
        ],
    )
    if not report.finding_count:
        typer.echo("no finding: replicas are the same, and tables with dead letters are the log")
        return
    typer.echo("")
    print_table(
        ("FINDING", "TOPIC", "PARTITION", "OFFSET", "NODE", "WHAT"),
        [_finding_row(each) for each in report.findings],
    )
    more = report.finding_count - len(report.findings)
    rest = f" ({more} more are not listed)" if more > 0 else ""
    typer.echo(f"findings: {report.finding_count}{rest}")


def _finding_row(each: "Finding") -> tuple[str | int | None, ...]:
    return (each.kind, each.topic, each.partition, each.offset, each.node_id, each.text)
