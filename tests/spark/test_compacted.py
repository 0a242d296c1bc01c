"""A compacted topic as a table: a row for each record that was there, whatever becomes of the log.

It has its own broker, which compacts soon.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chronik.spark.audit.job import audit
from chronik.spark.connection import Connection
from chronik.spark.pipeline.config import PipelineConfig
from chronik.spark.pipeline.rounds import Pipeline
from chronik.testing import Broker

sys.path.insert(0, str(Path(__file__).parent))
from conftest import Topics
from pipeline_world import log_of, rows_of, set_config

SETTINGS = {"log.cleaner.backoff.ms": "100", "log.retention.check.interval.ms": "100"}
SOON = {
    "cleanup_policy": "compact",
    "min_cleanable_dirty_ratio": "0.01",
    "segment_ms": "200",
}


@pytest.fixture
def topics() -> Iterator[Topics]:
    with Broker(SETTINGS) as broker:
        yield Topics(broker.bootstrap)


def test_rows_stay_when_the_log_is_compacted(spark: Any, topics: Topics, tmp_path: Path) -> None:
    name = topics.create(**SOON)
    topics.produce(name, '{"v": 1}', '{"v": 2}', "no JSON", key=b"a")
    # The table is asked for when records are there: they are read from the beginning.
    set_config(topics.bootstrap, name, {"chronik.table": "delta", "chronik.decode": "json"})
    config = PipelineConfig(bootstrap=topics.bootstrap, warehouse=str(tmp_path))
    connection = Connection(bootstrap=topics.bootstrap)
    Pipeline(config, connection, spark).run(once=True)

    def compacted() -> bool:
        topics.produce(name, '{"v": 4}', key=b"b")  # A segment ends when the next record comes.
        return len([place for place in log_of(topics.bootstrap, name) if place[1] < 3]) <= 1

    topics.wait_until(compacted)
    Pipeline(config, connection, spark).run(once=True)
    rows = rows_of(tmp_path, name, "delta")
    assert rows is not None
    assert {1, 2} <= set(rows.column("v").to_pylist())
    # What compaction took from the log is no row too many: it was a record of it.
    report = audit(config, connection, spark, topics=[name])
    assert report.findings == ()
    assert report.topics[0].dead_count == 1
