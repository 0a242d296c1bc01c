"""`chronik storage`: look at a stopped node's data, and salvage what is damaged.

The only commands that touch a data directory by themselves. They take the node's lock first, so
that they never work beside a running node. Exit code 1 means that something is damaged.
"""

import os
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any

import typer

from chronik.cli.output import print_json, print_table, size_text
from chronik.cli.session import Json, command_app, fail
from chronik.metadata.journal import METADATA_DIRECTORY
from chronik.replication.replicas import NAME_LENGTH_MAX
from chronik.storage import check as checking
from chronik.storage.check import Problem, Report
from chronik.storage.disk import Disk, FileDisk
from chronik.storage.errors import StorageError

app = command_app("Check and salvage the data of a stopped node.")

DataDir = Annotated[str, typer.Argument(help="The node's data directory.")]
Topic = Annotated[str | None, typer.Option(help="Only this topic.")]
Partition = Annotated[int | None, typer.Option(min=0, help="Only this partition.")]


@app.command()
def check(
    data_dir: DataDir, topic: Topic = None, partition: Partition = None, as_json: Json = False
) -> None:
    """Read every batch and index, report what is wrong, change nothing."""
    reports = _each(data_dir, topic, partition, checking.check, with_metadata=True)
    _print(reports, as_json)
    damaged = [report.directory for report in reports if report.damaged]
    if damaged:
        fail(f"{len(damaged)} of {len(reports)} logs are damaged; see `chronik storage salvage`")


@app.command()
def salvage(
    data_dir: DataDir, topic: Topic = None, partition: Partition = None, as_json: Json = False
) -> None:
    """Copy damaged files aside, and keep every batch of a partition that can be read.

    The metadata log is left alone: without one of its entries the others may be wrong.
    """
    _print(_each(data_dir, topic, partition, checking.salvage), as_json)


def _each(
    data_dir: str,
    topic: str | None,
    partition: int | None,
    work: Callable[[Disk, str], Report],
    *,
    with_metadata: bool = False,
) -> list[Report]:
    """What the work says of each log, while no node can run on the directory."""
    data_dir = data_dir.rstrip("/") or "/"
    disk = FileDisk()
    try:
        if not disk.exists(f"{data_dir}/node.json"):
            fail(f"{data_dir} is no data directory of a node: it has no node.json")
        disk.lock(f"{data_dir}/lock")
        directories = _directories(disk, data_dir, topic, partition)
        if topic is None and partition is None:
            if with_metadata:
                directories.insert(0, f"{data_dir}/{METADATA_DIRECTORY}")
        elif not directories:
            fail(f"{data_dir} has no such partition")
        return [work(disk, directory) for directory in directories]
    except StorageError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error.filename or data_dir}: {error.strerror}")
    finally:
        disk.close()


def _directories(disk: Disk, data_dir: str, topic: str | None, partition: int | None) -> list[str]:
    """The logs of the partitions that are asked for."""
    topics = f"{data_dir}/topics"
    found: list[str] = []
    for directory in sorted(disk.list(topics)) if disk.exists(topics) else ():
        name, _, _ = directory.rpartition(".")  # It is <name>.<id>.
        if topic is None or name == topic[:NAME_LENGTH_MAX]:
            indexes = sorted(map(_number, disk.list(f"{topics}/{directory}")))
            found += (
                f"{topics}/{directory}/{index}"
                for index in indexes
                if index >= 0 and partition in (None, index)
            )
    return found


def _number(name: str) -> int:
    """A partition's directory as its number, anything else as -1."""
    return int(name) if name.isdecimal() else -1


def _print(reports: list[Report], as_json: bool) -> None:
    if as_json:
        print_json([_json(report) for report in reports])
        return
    rows = [
        (
            os.path.join(*report.directory.rsplit("/", 2)[1:]),
            report.log_start_offset,
            report.end_offset,
            report.batch_count,
            size_text(report.size_bytes),
            _state(report),
        )
        for report in reports
    ]
    print_table(("LOG", "START", "END", "BATCHES", "SIZE", "STATE"), rows)
    for report in reports:
        for finding in report.findings:
            if finding.problem is Problem.GAP:
                continue  # Compaction leaves thousands of them.
            offsets = f"offsets {finding.first_offset} to {finding.end_offset - 1}"
            held = f", {offsets}" if finding.end_offset > finding.first_offset else ""
            typer.echo(
                f"{finding.path}: {finding.problem.value} at byte {finding.position}"
                f" ({finding.size} bytes{held}): {finding.reason}"
            )
        if report.salvage_directory is not None:
            typer.echo(f"damaged files were copied to {report.salvage_directory}")


def _state(report: Report) -> str:
    if report.salvage_directory is not None:
        return "salvaged"
    return "damaged" if report.damaged else "good"


def _json(report: Report) -> dict[str, Any]:
    findings = [{**asdict(item), "problem": item.problem.value} for item in report.findings]
    return {**asdict(report), "findings": findings, "damaged": report.damaged}
