"""`chronik pipeline`: topics become lake tables, on Spark.

Everything heavy (pyarrow, pyspark, deltalake, pyiceberg) is imported by the command that needs it.
"""

import datetime
import logging
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from chronik.cli.output import print_json, print_table, size_text
from chronik.cli.pipeline_audit import audit
from chronik.cli.session import Json, command_app, fail
from chronik.cli.spark_start import Bootstrap, ConfigFile, Master, Warehouse, quiet_start
from chronik.clock import SystemClock

if TYPE_CHECKING:
    from chronik.spark.connection import Connection
    from chronik.spark.pipeline.config import PipelineConfig
    from chronik.spark.pipeline.rounds import RoundReport
    from chronik.spark.pipeline.status import TopicStatus

T = TypeVar("T")

app = command_app("Keep lake tables of topics (Delta, Iceberg), on Spark.")

# Apache Kafka does not take our settings: there only the file can say it.
_NONE_YET = "none yet (set a topic's chronik.table, or name it as [topics.NAME] in --config)"
Topic = Annotated[str, typer.Argument(help="The topic.")]


@app.command()
def run(
    master: Master = None,
    config: ConfigFile = None,
    warehouse: Warehouse = None,
    once: Annotated[
        bool, typer.Option("--once", help="End when every table is where its log was.")
    ] = False,
    bootstrap: Bootstrap = None,
    interval_s: Annotated[
        float | None, typer.Option("--interval", min=0.1, metavar="SECONDS", help="A round.")
    ] = None,
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="Go on where the log has lost records we had not read."),
    ] = False,
    spark_log: Annotated[
        str | None, typer.Option("--spark-log", metavar="FILE", help="Keep Spark's own log there.")
    ] = None,
) -> None:
    """Materialise every topic whose chronik.table says so, until interrupted."""
    settings = _settings(
        config,
        bootstrap=bootstrap,
        warehouse=warehouse,
        master=master,
        interval_s=interval_s,
        accept_loss=accept_loss or None,
    )
    _guarded(lambda: _run(settings, once, spark_log))


def _run(settings: "PipelineConfig", once: bool, spark_log: str | None) -> None:
    from chronik.spark.pipeline.discovery import discover
    from chronik.spark.pipeline.rounds import Pipeline
    from chronik.spark.pipeline.session import open_session

    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", level="WARNING")
    logging.getLogger("chronik.spark").setLevel(logging.INFO)
    connection = _connection(settings)
    # Whoever mistyped an address hears it before Spark's.
    found = discover(connection, settings)
    settings.place.check()
    with quiet_start(spark_log):
        spark = open_session(settings.master, settings.spark)
    try:
        pipeline = Pipeline(settings, connection, spark, report=_Progress().show)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: pipeline.stop())
        names = ", ".join(each.name for each in found.topics) or _NONE_YET
        typer.echo(f"pipeline runs: {settings.bootstrap} to {settings.place.url}, topics: {names}")
        pipeline.run(once=once)
        typer.echo("pipeline stopped; it goes on from here when it is started again")
    finally:
        spark.stop()


class _Progress:
    """One line a round and topic that brought something; an error once, until it changes."""

    def __init__(self) -> None:
        self._errors: dict[str, str] = {}

    def show(self, report: "RoundReport") -> None:
        time = f"{datetime.datetime.now():%H:%M:%S}"
        for name, landed in report.landed.items():
            if landed.is_again:
                typer.echo(f"{time} {name}: the table has new columns; reading again")
                continue
            size = size_text(landed.byte_count)
            dead = f", {landed.dead_count} dead letters" if landed.dead_count else ""
            lost = f", {landed.lost_count} lost before they were read" if landed.lost_count else ""
            rows = f"{landed.row_count} rows{dead}{lost}, {size}"
            typer.echo(f"{time} {name}: {rows} in {report.seconds:.1f} s, lag {report.lag}")
        for name, why in report.errors.items():
            if self._errors.get(name) != why:
                typer.echo(f"{time} {name}: {why}", err=True)
        self._errors = dict(report.errors)


@app.command()
def status(
    config: ConfigFile = None,
    warehouse: Warehouse = None,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """Show how far each table is: lag, rows, files, the last commit, errors."""
    settings = _settings(config, bootstrap=bootstrap, warehouse=warehouse)

    def ask() -> "list[TopicStatus]":
        from chronik.spark.pipeline.status import read_status

        return read_status(settings, _connection(settings))

    found = _guarded(ask)
    if as_json:
        print_json([each.as_json() for each in found])
        return
    columns = (
        "TOPIC",
        "FORMAT",
        "LAG",
        "LAG SIZE",
        "LAG TIME",
        "ROWS",
        "DEAD",
        "FILES",
        "LAST COMMIT",
    )
    print_table(columns, [_status_row(each) for each in found])
    _show_heartbeat(settings)
    for each in found:
        if each.error:
            typer.echo(f"{each.topic}: {each.error}", err=True)


def _show_heartbeat(settings: "PipelineConfig") -> None:
    """Who has last brought the tables forward, and when."""
    from chronik.spark.pipeline.heartbeat import read_heartbeat

    last = read_heartbeat(settings.place)
    if last is None:
        typer.echo("no pipeline has run here yet: start one with chronik pipeline run")
        return
    ago_s = SystemClock().wall_ms() / 1000 - last["updated_ms"] / 1000
    who = f"process {last['pid']} on {last['host']}"
    typer.echo(f"the last pipeline, {who}, ended its round {last['round']} {ago_s:.0f} s ago")


def _status_row(each: "TopicStatus") -> tuple[str | int | None, ...]:
    committed = None
    if each.committed_ms is not None:
        committed = f"{datetime.datetime.fromtimestamp(each.committed_ms / 1000):%Y-%m-%d %H:%M:%S}"
    return (
        each.topic,
        each.table_format,
        each.lag_records,
        size_text(each.lag_bytes),
        None if each.lag_seconds is None else f"{each.lag_seconds:.1f} s",
        each.row_count,
        each.dead_count,
        each.file_count,
        committed,
    )


@app.command()
def replay(
    topic: Topic,
    config: ConfigFile = None,
    warehouse: Warehouse = None,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """Decode a topic's dead letters again, and move those that decode by now to its table."""
    settings = _settings(config, bootstrap=bootstrap, warehouse=warehouse)

    def work() -> Any:
        from chronik.spark.pipeline.replaying import replay_topic

        return replay_topic(settings, _connection(settings), topic)

    done = _guarded(work)
    if as_json:
        print_json({"topic": topic, "replayed": done.row_count, "left": done.remaining_count})
    else:
        typer.echo(
            f"replayed {done.row_count} dead letters of {topic}, {done.remaining_count} left"
        )


app.command()(audit)


def _settings(config: str | None, **options: Any) -> "PipelineConfig":
    def load() -> "PipelineConfig":
        from chronik.spark.pipeline.config import load_config

        return load_config(config, options)

    return _guarded(load)


def _connection(settings: "PipelineConfig") -> "Connection":
    from chronik.spark.connection import Connection

    return Connection.from_options(
        {"kafka.client.id": "chronik-pipeline", **settings.connection_options}
    )


def _guarded(work: Callable[[], T]) -> T:
    """Do it, or end with the one sentence that says what to do."""
    try:
        from chronik.spark.errors import DataLossError, OptionsError, SourceError
        from chronik.spark.lake.table import LakeError
    except ImportError as error:
        fail(f"{error}: install what the pipeline needs with pip install 'chronik[spark]'")
    try:
        return work()
    except (LakeError, SourceError, DataLossError, OptionsError) as error:
        fail(str(error))
    except ImportError as error:
        fail(f"{error}: install what the pipeline needs with pip install 'chronik[spark]'")
