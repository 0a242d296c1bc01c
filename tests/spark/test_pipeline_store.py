"""The whole pipeline with its tables in an object store, and what cannot work said in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import chronik.spark
from chronik.spark.audit.job import audit
from chronik.spark.connection import Connection
from chronik.spark.lake.table import LakeError
from chronik.spark.pipeline.config import PipelineConfig, load_config
from chronik.spark.pipeline.replaying import replay_topic
from chronik.spark.pipeline.rounds import Pipeline
from chronik.spark.pipeline.status import read_status
from chronik.spark.views import create_views

sys.path.insert(0, str(Path(__file__).parent))
from pipeline_world import TIMEOUT_S, command, environment

if TYPE_CHECKING:
    from object_store import TestStore


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_everything_in_a_store(
    spark: Any,
    topics: Any,
    object_store: TestStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    table_format: str,
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    # The driver's environment, changed after the workers were started: it must travel with tasks.
    for name, value in object_store.environment.items():
        monkeypatch.setenv(name, value)
    topic = topics.create(partitions=2)
    settings = {"table": table_format, "decode": "json", "schema": "n int"}
    config = PipelineConfig(
        bootstrap=topics.bootstrap,
        warehouse=object_store.url(f"pipeline-{table_format}"),
        topics={topic: settings},
    )
    connection = Connection(bootstrap=topics.bootstrap)
    for number in range(8):  # commits enough to be merged
        topics.produce(topic, f'{{"n": {number}}}', partition=number % 2)
        Pipeline(config, connection, spark).run(once=True)
    topics.produce(topic, '{"n": 3000000000}', "no JSON", partition=0)
    Pipeline(config, connection, spark).run(once=True)
    topics.produce(topic, '{"n": 11}', partition=1)
    (status,) = read_status(config, connection)
    assert (status.row_count, status.dead_count, status.lag_records) == (8, 2, 1)
    assert status.error is None
    assert status.file_count is not None
    assert status.file_count < 8, "nothing was merged"
    frame = chronik.spark.table(
        spark, topic, bootstrap=topics.bootstrap, warehouse=config.warehouse, **settings
    )
    assert sorted(row.n for row in frame.collect()) == [*range(8), 11]
    wider = {**settings, "schema": "n bigint"}
    changed = load_config(
        None,
        {
            "bootstrap": config.bootstrap,
            "warehouse": config.warehouse,
            "topics": {topic: wider},
        },
    )
    done = replay_topic(changed, connection, topic)
    assert (done.row_count, done.remaining_count) == (1, 1)
    report = audit(changed, connection, spark, topics=[topic])
    assert report.finding_count == 0, report.findings
    statement = f"select count(*), max(n) from `{topic}`"
    create_views(spark, changed, changed.connection_options, statement)
    assert [tuple(row) for row in spark.sql(statement).collect()] == [(10, 3_000_000_000)]
    said = str(dict(spark.sparkContext.getConf().getAll()))
    assert object_store.secret_access_key not in said


def test_executors_that_are_not_let_in(
    spark: Any, topics: Any, object_store: TestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = PipelineConfig(
        bootstrap=topics.bootstrap,
        warehouse=object_store.url("nobody"),
        storage={**object_store.options, "access_key_id": "nobody"},
    )
    with pytest.raises(LakeError, match=r"executor .* cannot write: .*refuses us") as error:
        Pipeline(config, Connection(bootstrap=topics.bootstrap), spark).run(once=True)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "wrong", "words"),
    [
        (["run", "--once"], {"warehouse": "s3://no-such-bucket/x"}, "no bucket no-such-bucket"),
        (["status"], {"access_key_id": "nobody"}, "the object store refuses us"),
        (["audit"], {"endpoint_url": "http://127.0.0.1:1"}, "no object store answers"),
        (["replay", "t"], {"endpoint": "http://127.0.0.1:1"}, "[storage] has no setting endpoint"),
        (["run"], {"warehouse": "s3://key:word@bucket/x"}, "keys belong under [storage]"),
    ],
)
def test_what_cannot_work_is_one_line(
    topics: Any,
    object_store: TestStore,
    tmp_path: Path,
    arguments: list[str],
    wrong: dict[str, str],
    words: str,
) -> None:
    storage = {**object_store.options, **wrong}
    warehouse = storage.pop("warehouse", object_store.url("cli"))
    lines = [f"warehouse = {json.dumps(warehouse)}", "[storage]"]
    lines += [f"{name} = {json.dumps(value)}" for name, value in storage.items()]
    file = tmp_path / "pipeline.toml"
    file.write_text("\n".join(lines))
    asked = subprocess.run(
        command(*arguments, "--config", str(file), "--bootstrap", topics.bootstrap),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=2 * TIMEOUT_S,
        check=False,
    )
    assert (asked.returncode, asked.stdout) == (1, "")
    (line,) = asked.stderr.splitlines()
    assert words in line
    assert object_store.secret_access_key not in line
