"""Dead letters that decode by now bring the columns that they need."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chronik.spark.connection import Connection
from chronik.spark.lake.replay import Replayed
from chronik.spark.pipeline import replaying
from chronik.spark.pipeline.config import PipelineConfig
from chronik.spark.pipeline.replaying import replay_topic
from chronik.spark.pipeline.rounds import Pipeline

sys.path.insert(0, str(Path(__file__).parent))
from pipeline_world import by_offset, check_is_log, rows_of, set_config

GIVEN = "id bigint"


class Killed(Exception):
    """The process ends here."""


@pytest.fixture(params=["delta", "iceberg"])
def table_format(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def topic(spark: Any, topics: Any, brokers: str, tmp_path: Path, table_format: str) -> Any:
    """A topic whose schema was too narrow for some of its records, and is inferred by now."""
    name = topics.create()
    lake = {"table": table_format, "decode": "json", "schema": GIVEN}
    set_config(brokers, name, {f"chronik.{key}": value for key, value in lake.items()})
    late = '{"id": 3, "more": {"x": 1.5}, "tags": ["a"]}'.replace("3", "3e0", 1)
    topics.produce(name, '{"id": 1}', "no JSON", late, '{"id": 2}', late)
    config = PipelineConfig(bootstrap=brokers, warehouse=str(tmp_path))
    Pipeline(config, Connection(bootstrap=brokers), spark).run(once=True)
    assert check_is_log(brokers, tmp_path, name, table_format) == (2, 3)
    settings = {"chronik.schema": "", "chronik.on_incompatible": "column"}
    set_config(brokers, name, settings)
    yield name
    topics.delete(name)


@pytest.fixture
def replayed(topic: str, brokers: str, tmp_path: Path) -> Callable[[], Replayed]:
    config = PipelineConfig(bootstrap=brokers, warehouse=str(tmp_path))
    return lambda: replay_topic(config, Connection(bootstrap=brokers), topic)


def check(topic: str, brokers: str, tmp_path: Path, table_format: str) -> None:
    assert check_is_log(brokers, tmp_path, topic, table_format) == (4, 1)
    rows = by_offset(rows_of(tmp_path, topic, table_format))
    assert (rows[0]["id"], rows[0]["more"]) == (1, None)
    for offset in (2, 4):
        assert (rows[offset]["id"], rows[offset]["id_v2"]) == (None, 3.0)
        assert rows[offset]["more"] == {"x": 1.5}
        assert rows[offset]["tags"] == ["a"]


def test_new_fields_become_columns(
    topic: str, replayed: Callable[[], Replayed], brokers: str, tmp_path: Path, table_format: str
) -> None:
    assert replayed() == Replayed(row_count=2, remaining_count=1)
    check(topic, brokers, tmp_path, table_format)
    assert replayed() == Replayed(row_count=0, remaining_count=1)


@pytest.mark.parametrize("event", range(5))
def test_a_replay_that_was_killed(
    topic: str,
    replayed: Callable[[], Replayed],
    brokers: str,
    tmp_path: Path,
    table_format: str,
    event: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After the first or second change of the columns, and around each commit of the rows."""
    left = [event]

    def mortal(tables: Any) -> None:
        for table in (tables.table, tables.dead_letters):
            for name in ("evolve", "commit"):
                setattr(table, name, _dying(getattr(table, name), left))

    begin = replaying._replayed

    def begun(pipeline: Any, clock: Any) -> Replayed:
        mortal(pipeline.committer)
        return begin(pipeline, clock)

    with monkeypatch.context() as patch:
        patch.setattr(replaying, "_replayed", begun)
        try:
            replayed()
        except Killed:
            pass
    replayed()
    check(topic, brokers, tmp_path, table_format)


def _dying(work: Callable[..., Any], left: list[int]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        result = work(*arguments)
        left[0] -= 1
        if left[0] == -1:
            raise Killed
        return result

    return call
