"""`chronik sql`: one SQL statement over topics, on a Spark of its own.

Every topic is a view of its name. One that has a lake table is that table and, from the log, what
the table does not have yet; any other is its raw columns.
"""

import os
import sys
from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING, Annotated, Final

import typer

from chronik.cli.output import Cell, print_table
from chronik.cli.session import EXIT_INTERRUPTED, command_app, fail
from chronik.cli.spark_start import Bootstrap, ConfigFile, Master, Warehouse, quiet_start

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from chronik.spark.pipeline.config import PipelineConfig

app = command_app()

ROWS_MAX: Final = 1000  # more than anybody reads; programs take --json, which has no limit


@app.command()
def sql(
    statement: Annotated[str, typer.Argument(help="Such as: select count(*) from orders.")],
    warehouse: Warehouse = None,
    config: ConfigFile = None,
    bootstrap: Bootstrap = None,
    master: Master = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object per row.")] = False,
    rows: Annotated[int, typer.Option(min=1, help="Show at most this many.")] = ROWS_MAX,
) -> None:
    """Query topics with SQL: history from the lake, the tail from the log."""
    try:
        from chronik.spark.errors import DataLossError, OptionsError, SourceError
        from chronik.spark.lake.table import LakeError
        from chronik.spark.pipeline.config import load_config

        options = {"bootstrap": bootstrap, "warehouse": warehouse, "master": master}
        _query(load_config(config, options), statement, None if as_json else rows)
    except ImportError as error:
        fail(f"{error}: install what SQL needs with pip install 'chronik[spark]'")
    except (SourceError, DataLossError, OptionsError, LakeError) as error:
        fail(str(error))
    except BrokenPipeError:
        # Whoever read our output has seen enough. Nothing more may be flushed into the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit from None
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _query(settings: "PipelineConfig", statement: str, limit: int | None) -> None:
    from chronik.spark.connection import Connection
    from chronik.spark.log_facts import LogFacts
    from chronik.spark.pipeline.session import open_session
    from chronik.spark.spark_failures import spark_errors, why
    from chronik.spark.views import create_views

    options = settings.connection_options
    with LogFacts(Connection.from_options(options)) as facts:
        facts.topics(())  # Whoever mistyped an address hears it before Spark has started.
    settings.place.check()
    with quiet_start():
        spark = open_session(settings.master, settings.spark, name="chronik-sql")
    try:
        spark.conf.set("spark.sql.shuffle.partitions", str(spark.sparkContext.defaultParallelism))
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
        create_views(spark, settings, options, statement)
        frame = spark.sql(statement)
        if limit is None:
            _print_lines(frame)
        else:
            _print_rows(frame, limit)
    except spark_errors() as error:
        fail(why(error))
    finally:
        spark.stop()


def _print_lines(frame: "DataFrame") -> None:
    from pyspark.sql import functions as F

    numbered = _numbered(frame)
    columns = [
        F.col(number).alias(name)
        for number, name in zip(numbered.columns, distinct(frame.columns), strict=True)
    ]
    whole = F.to_json(F.struct(*columns), {"ignoreNullFields": "false"})
    for row in numbered.select(whole.alias("json")).toLocalIterator():
        typer.echo(row["json"])


def _print_rows(frame: "DataFrame", limit: int) -> None:
    from pyspark.sql import functions as F
    from pyspark.sql.types import IntegralType

    if not frame.columns:
        return  # a statement without a result
    whole = {
        index
        for index, field in enumerate(frame.schema.fields)
        if isinstance(field.dataType, IntegralType)
    }
    numbered = _numbered(frame)
    texts = numbered.select(*(F.col(name).cast("string") for name in numbered.columns))
    found = texts.limit(limit + 1).collect()
    cells: list[list[Cell]] = [
        [
            int(text) if text is not None and index in whole else text
            for index, text in enumerate(row)
        ]
        for row in found[:limit]
    ]
    print_table(frame.columns, cells)
    if len(found) > limit:
        typer.echo(f"there are more than {limit} rows: say --rows N, or --json for all", err=True)


def _numbered(frame: "DataFrame") -> "DataFrame":
    """The frame with names that are unique: those of a join's columns need not be."""
    return frame.toDF(*(f"c{index}" for index in range(len(frame.columns))))


def distinct(names: Sequence[str]) -> list[str]:
    """The names, with a number behind each that was there before: id, id_2."""
    taken = set(names)
    found: list[str] = []
    for name in names:
        numbered = (f"{name}_{number}" for number in count(2))
        free = name if name not in found else next(each for each in numbered if each not in taken)
        taken.add(free)
        found.append(free)
    return found
