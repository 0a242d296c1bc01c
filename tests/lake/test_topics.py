"""One topic on its way into a table, without Spark and brokers: plans, tasks by hand, landings."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lake_world import FORMATS, TOPIC_ID

from chronik.spark.connection import Connection
from chronik.spark.lake.iceberg import IcebergLakeTable
from chronik.spark.lake.parquet import FileWriter
from chronik.spark.lake.reading import rows_of
from chronik.spark.lake.schemas import DEAD_LETTER_COLUMNS, HEADERS, TIMESTAMP
from chronik.spark.lake.table import LakeError
from chronik.spark.lake.warehouse import Warehouse
from chronik.spark.log_facts import Topic
from chronik.spark.pipeline import replaying, topic
from chronik.spark.pipeline.config import PipelineConfig, TopicConfig
from chronik.spark.pipeline.discovery import Discovered
from chronik.spark.pipeline.task import TaskResult, _write
from chronik.spark.pipeline.topic import LogSpans, Round, TopicPipeline

CONNECTION = Connection(bootstrap="127.0.0.1:1")
ORDERS = Topic(name="orders", topic_id=TOPIC_ID, partitions=(0,))


@pytest.fixture(params=FORMATS)
def table_format(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def pipeline_of(root: Path, table_format: str, **config: str) -> TopicPipeline:
    wanted = TopicConfig(name="orders", table=table_format, decode="json", **config)
    return TopicPipeline(wanted, Warehouse(url=str(root)), CONNECTION)


def records(values: Sequence[bytes | None], start: int = 0) -> pa.RecordBatch:
    count = len(values)
    columns = {
        "offset": pa.array(range(start, start + count), pa.int64()),
        "timestamp": pa.array([0] * count, pa.int64()).view(TIMESTAMP),
        "key": pa.nulls(count, pa.binary()),
        "value": pa.array(values, pa.binary()),
        "headers": pa.nulls(count, HEADERS),
    }
    return pa.record_batch(list(columns.values()), names=list(columns))


def spans(end: int) -> LogSpans:
    return LogSpans(starts={0: 0}, ends={0: end}, sizes={0: 100})


def planned(pipeline: TopicPipeline, end: int) -> Round:
    found = pipeline.plan(ORDERS, spans(end), cores=1, task_bytes=2**20, budget_bytes=2**20)
    assert found is not None
    return found


def work(plan: Round, log: Sequence[bytes | None]) -> list[TaskResult]:
    """What Spark's tasks would do."""
    (task,) = plan.tasks
    (place,) = task.ranges
    batch = records(log[place.start_offset : place.end_offset], place.start_offset)
    good = FileWriter(task.storage, task.file_schema, task.partitioning, now_ms=1)
    bad = FileWriter(task.dead_storage, DEAD_LETTER_COLUMNS, now_ms=1)
    _write(task, place, batch, good, bad)
    return [
        TaskResult(
            topic="orders",
            good=good.close(),
            bad=bad.close(),
            unexpected=dict(task.decoder.unexpected),
            conflicts=dict(task.decoder.conflicts),
        )
    ]


def rows_in(pipeline: TopicPipeline, *columns: str) -> list[tuple[Any, ...]]:
    table = pipeline.committer.table
    state = table.load()
    found = [
        tuple(row.values())
        for file in state.files()
        for batch in rows_of(table, file, state.schema, ["_offset", *columns])
        for row in batch.to_pylist()
    ]
    return sorted(found)


def begun(pipeline: TopicPipeline, columns: pa.Schema) -> None:
    pipeline._begin(pipeline._created(columns))


def test_a_field_that_another_pipeline_has_added_first_is_not_lost(
    tmp_path: Path, table_format: str
) -> None:
    log = [b'{"id": 1, "x": 5}', b'{"id": 2, "x": 6}']
    one, other = (pipeline_of(tmp_path, table_format) for _ in range(2))
    begun(one, pa.schema([("id", pa.int64())]))
    assert other.open()
    plans = planned(one, 2), planned(other, 2)
    assert one.land(plans[0], work(plans[0], log)).is_again
    assert other.land(plans[1], work(plans[1], log)).is_again, "it was decoded without the column"
    again = planned(other, 2)
    assert other.land(again, work(again, log)).row_count == 2
    assert rows_in(other, "id", "x") == [(0, 1, 5), (1, 2, 6)]


def test_a_replay_beside_a_pipeline_loses_no_field(
    tmp_path: Path, table_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = b'{"id": 300, "x": 5}'
    pipeline = pipeline_of(tmp_path, table_format, schema="id tinyint")
    assert pipeline.prepare(ORDERS, spans(1))
    plan = planned(pipeline, 1)
    assert pipeline.land(plan, work(plan, [late])).dead_count == 1
    settings = TopicConfig(name="orders", table=table_format, decode="json")
    found = Discovered(topics=(settings,), errors={})
    monkeypatch.setattr(replaying, "discover", lambda *_: found)
    looked = TopicPipeline.decoder

    def beside(self: TopicPipeline, state: Any) -> Any:
        decoder = looked(self, state)
        # The pipeline meets the same new field, after the replay has looked at the table.
        pipeline.committer.table.evolve(pa.schema([("x", pa.int64())]), pa.schema([]))
        return decoder

    monkeypatch.setattr(TopicPipeline, "decoder", beside)
    config = PipelineConfig(warehouse=str(tmp_path))
    assert replaying.replay_topic(config, CONNECTION, "orders").row_count == 1
    assert rows_in(pipeline, "id", "x") == [(0, 300, 5)]


class Samples:
    """A log that has these values."""

    def __init__(self, *values: bytes | None) -> None:
        self._values = values

    def __call__(self, _: Connection) -> "Samples":
        return self

    def __enter__(self) -> "Samples":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read(self, place: Any, **_: Any) -> list[pa.RecordBatch]:
        values = self._values[place.start_offset : place.end_offset]
        return [records(values)] if values else []


def test_a_topic_that_shows_no_field_has_a_table_all_the_same(
    tmp_path: Path, table_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = [b"no JSON", None, b"{}", b'"text"']
    monkeypatch.setattr(topic, "LogReader", Samples(*log))
    pipeline = pipeline_of(tmp_path, table_format)
    assert not pipeline.prepare(ORDERS, spans(0)), "there is nothing yet"
    assert pipeline.prepare(ORDERS, spans(4))
    plan = planned(pipeline, 4)
    landed = pipeline.land(plan, work(plan, log))
    assert (landed.row_count, landed.dead_count) == (2, 2)
    log.append(b'{"id": 1}')
    plan = planned(pipeline, 5)
    assert pipeline.land(plan, work(plan, log)).is_again
    plan = planned(pipeline, 5)
    assert pipeline.land(plan, work(plan, log)).row_count == 1
    assert rows_in(pipeline, "id") == [(1, None), (2, None), (4, 1)]


def test_such_a_topic_cannot_be_partitioned_by_a_field(
    tmp_path: Path, table_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic, "LogReader", Samples(b"no JSON"))
    with pytest.raises(LakeError, match="cannot partition by country: there is no such column"):
        pipeline_of(tmp_path, table_format, partition_by="country").prepare(ORDERS, spans(1))


def test_an_iceberg_table_whose_files_were_moved_away(tmp_path: Path) -> None:
    pipeline = pipeline_of(tmp_path, "iceberg")
    begun(pipeline, pa.schema([("id", pa.int64())]))
    table = pipeline.committer.table
    shutil.move(table.location, tmp_path / "elsewhere")
    for look in (table.load, pipeline_of(tmp_path, "iceberg").open):
        with pytest.raises(LakeError, match="its files are not there: put them back, or drop"):
            look()
    shutil.move(tmp_path / "elsewhere", table.location)
    assert pipeline_of(tmp_path, "iceberg").open()


def test_an_iceberg_table_that_was_dropped_while_it_was_in_use(tmp_path: Path) -> None:
    pipeline = pipeline_of(tmp_path, "iceberg")
    begun(pipeline, pa.schema([("id", pa.int64())]))
    table = pipeline.committer.table
    assert isinstance(table, IcebergLakeTable)
    table._catalog.drop_table(table._identifier)
    with pytest.raises(LakeError, match="is no longer in the catalog"):
        table.load()
    assert not pipeline_of(tmp_path, "iceberg").open()
