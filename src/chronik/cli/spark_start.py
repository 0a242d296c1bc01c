"""Spark behind a command: its options, and a quiet start."""

import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Annotated

import typer

from chronik.cli.session import fail

ConfigFile = Annotated[
    str | None, typer.Option("--config", metavar="FILE", help="The pipeline's TOML file.")
]
Warehouse = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Where the tables are: a path, or s3://bucket/path."),
]
Bootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        "-b",
        envvar="CHRONIK_BOOTSTRAP",
        metavar="HOST:PORT[,...]",
        help="A node of the cluster, or several.",
    ),
]
Master = Annotated[
    str | None, typer.Option(metavar="URL", help="Spark's master: local[*], spark://HOST:PORT.")
]


@contextmanager
def quiet_start(log: str | None = None) -> Iterator[None]:
    """Keep what a JVM says while it starts, and show it only if it does not.

    What it says later goes where that went: to the log, if one is named.
    """
    # Arrow carries our rows; what pandas PySpark would like is nobody's question here.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    _say_nothing_twice()
    sys.stderr.flush()
    with _open(log) as said:
        ours = os.dup(2)
        start = said.seek(0, os.SEEK_END)
        os.dup2(said.fileno(), 2)
        try:
            yield
        except BaseException:
            said.seek(start)
            os.write(ours, said.read())
            raise
        finally:
            os.dup2(ours, 2)
            os.close(ours)


def _open(log: str | None) -> IO[bytes]:
    if log is None:
        return tempfile.TemporaryFile()
    try:
        return open(log, "a+b")
    except OSError as error:
        fail(f"cannot write {log} (--spark-log): {error.strerror}")


def _say_nothing_twice() -> None:
    """PySpark logs what it raises, with its stack; a command says it in one line."""
    try:
        from pyspark.logger import PySparkLogger
    except ImportError:
        return  # Whoever starts the session says what is missing.
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel("CRITICAL")
