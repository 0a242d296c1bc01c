"""`chronik pipeline status`: what the log has, what the tables have, and what went wrong.

Everything is read from the log and from the tables, so that it is right whether or not a pipeline
runs; only errors are what the last pipeline has told (`heartbeat`).
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from chronik.clock import Clock, SystemClock
from chronik.model import TopicPartition
from chronik.spark.connection import Connection
from chronik.spark.errors import SourceError
from chronik.spark.lake.table import LakeError, LakeTable, PartitionKey, total
from chronik.spark.lake.warehouse import DEAD_LETTERS
from chronik.spark.log_facts import LogFacts, Topic
from chronik.spark.log_reader import LogReader
from chronik.spark.offset_range import OffsetRange
from chronik.spark.pipeline.config import PipelineConfig, TopicConfig
from chronik.spark.pipeline.discovery import discover
from chronik.spark.pipeline.heartbeat import read_heartbeat


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStatus:
    """How far one topic's table is."""

    topic: str
    table_format: str
    lag_records: int | None = None
    lag_bytes: int | None = None
    lag_seconds: float | None = None  # the age of the oldest record that is not in the table
    row_count: int | None = None
    dead_count: int | None = None
    file_count: int | None = None
    table_bytes: int | None = None
    committed_ms: int | None = None
    offsets: Mapping[int, int | None] | None = None
    error: str | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def read_status(
    config: PipelineConfig, connection: Connection, clock: Clock | None = None
) -> list[TopicStatus]:
    """The status of every topic that has or should have a table."""
    config.place.check()
    found = discover(connection, config)
    heartbeat = read_heartbeat(config.place) or {}
    errors = {**heartbeat.get("errors", {}), **found.errors}
    with LogFacts(connection) as facts:
        statuses = []
        for each in found.topics:
            error = errors.get(each.name)
            try:
                status = _status(each, config, facts, connection, error, clock or SystemClock())
            except (LakeError, SourceError) as trouble:
                status = TopicStatus(topic=each.name, table_format=each.table, error=str(trouble))
            statuses.append(status)
    known = {each.topic for each in statuses}
    unknown = [
        TopicStatus(topic=name, table_format="-", error=why)
        for name, why in errors.items()
        if name not in known
    ]
    return statuses + unknown


def _status(
    topic: TopicConfig,
    config: PipelineConfig,
    facts: LogFacts,
    connection: Connection,
    error: str | None,
    clock: Clock,
) -> TopicStatus:
    described = facts.topics([topic.name])[topic.name]
    table = config.place.open(topic.name, topic.table)
    dead = config.place.open(topic.name + DEAD_LETTERS, topic.table)
    committed = _committed(table, described)
    starts, ends = facts.earliest(described.places), facts.latest(described.places)
    sizes = facts.sizes([described])
    lags = {
        place: max(0, end - _position(committed[place.partition], starts[place]))
        for place, end in ends.items()
    }
    lag_bytes = sum(
        sizes.get(place, 0) * lag / max(ends[place] - starts[place], 1)
        for place, lag in lags.items()
    )
    files, rows, byte_count = total(table.load().files()) if table else (None, None, None)
    return TopicStatus(
        topic=topic.name,
        table_format=topic.table,
        lag_records=sum(lags.values()),
        lag_bytes=int(lag_bytes),
        lag_seconds=_age_s(connection, described, committed, starts, lags, clock),
        row_count=rows,
        dead_count=None if dead is None else total(dead.load().files())[1],
        file_count=files,
        table_bytes=byte_count,
        committed_ms=None if table is None else table.load().committed_ms,
        offsets=committed,
        error=error,
    )


def _position(committed: int | None, log_start_offset: int) -> int:
    return log_start_offset if committed is None else max(committed, log_start_offset)


def _committed(table: LakeTable | None, topic: Topic) -> dict[int, int | None]:
    if table is None:
        return dict.fromkeys(topic.partitions)
    state = table.load()
    return {
        partition: state.offset(PartitionKey(topic.topic_id, partition))
        for partition in topic.partitions
    }


def _age_s(
    connection: Connection,
    topic: Topic,
    committed: Mapping[int, int | None],
    starts: Mapping[TopicPartition, int],
    lags: Mapping[TopicPartition, int],
    clock: Clock,
) -> float:
    """The age of the oldest record that waits, 0 if none does."""
    oldest_ms: int | None = None
    with LogReader(connection) as reader:
        for place, lag in lags.items():
            if not lag:
                continue
            start = _position(committed[place.partition], starts[place])
            wanted = OffsetRange(
                topic.name, topic.topic_id, place.partition, start, start + min(lag, 100)
            )
            try:
                batches = list(reader.read(wanted, columns=("timestamp",), fail_on_data_loss=False))
            except SourceError:
                continue
            times = [time for batch in batches for time in batch.column(0).to_pylist()[:1]]
            if times:
                first_ms = int(times[0].timestamp() * 1000)
                oldest_ms = first_ms if oldest_ms is None else min(oldest_ms, first_ms)
    return 0.0 if oldest_ms is None else max(0.0, (clock.wall_ms() - oldest_ms) / 1000)
