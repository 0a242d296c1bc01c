"""`chronik sql` and the views behind it: topics by their names, raw or as whole tables."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from chronik.cli.sql import _print_lines, _print_rows
from chronik.spark.connection import Connection
from chronik.spark.errors import SourceError
from chronik.spark.pipeline.config import PipelineConfig
from chronik.spark.pipeline.rounds import Pipeline
from chronik.spark.spark_failures import spark_errors, why
from chronik.spark.views import create_views

CHRONIK = Path(sys.executable).with_name("chronik")
OVERRIDES = {"table": "delta", "decode": "json"}


@pytest.fixture
def config(topics: Any, tmp_path: Path) -> Any:
    """A pipeline of one topic that has a table, some dead letters, and a tail."""

    def make(spark: Any, topic: str) -> PipelineConfig:
        topics.produce(
            topic, *(json.dumps({"id": each, "even": each % 2 == 0}) for each in range(10))
        )
        topics.produce(topic, "no JSON")
        made = PipelineConfig(
            bootstrap=topics.bootstrap, warehouse=str(tmp_path), topics={topic: OVERRIDES}
        )
        Pipeline(made, Connection(bootstrap=topics.bootstrap), spark).run(once=True)
        topics.produce(topic, json.dumps({"id": 10, "even": True}))
        return made

    return make


def test_topics_are_views(spark: Any, topics: Any, config: Any, tmp_path: Path) -> None:
    topic, plain = topics.create(), topics.create()
    settings = config(spark, topic)
    topics.produce(plain, b"\xff", key=b"k")
    statement = f"select even, count(*) as n from `{topic}` group by even order by even"
    made = create_views(spark, settings, settings.connection_options, statement)
    assert made == {topic: "table and log"}
    assert [tuple(row) for row in spark.sql(statement).collect()] == [(False, 5), (True, 6)]
    other = f"select p.offset, d._reason from `{plain}` p, `{topic}_dead_letters` d"
    made = create_views(spark, settings, settings.connection_options, other)
    assert made == {plain: "log", f"{topic}_dead_letters": "dead letters"}
    ((offset, reason),) = spark.sql(other).collect()
    assert offset == 0
    assert reason
    with pytest.raises(PySparkException) as error:
        spark.sql("select * from nowhere")
    assert "nowhere" in why(error.value)


def test_columns_of_one_name_are_all_shown(spark: Any, capsys: Any) -> None:
    spark.range(2).selectExpr("id", "id * 2 as x").createOrReplaceTempView("twice")
    joined = spark.sql("select * from twice a join twice b on a.id = b.id order by a.id")
    _print_rows(joined, 10)
    assert capsys.readouterr().out.splitlines() == [
        "id  x  id  x",
        " 0  0   0  0",
        " 1  2   1  2",
    ]
    _print_lines(spark.sql("select id, id, x as id, X as ID from twice where id = 1"))
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == {"id": 1, "id_2": 1, "id_3": 2, "ID": 2}


def test_a_query_that_fails_while_it_runs_is_one_line(spark: Any, tmp_path: Path) -> None:
    spark.range(3).write.parquet(str(tmp_path / "files"))
    gone = spark.read.parquet(str(tmp_path / "files"))
    for each in (tmp_path / "files").iterdir():
        each.unlink()

    def refuse(batches: Any) -> Any:
        list(batches)
        raise SourceError("no\nway")

    divided = spark.range(3).selectExpr("1 / (id - 1) as x")
    for fails, word in (
        (lambda: gone.collect(), "File does not exist"),
        (lambda: list(divided.toLocalIterator()), "Division by zero"),
        (lambda: spark.range(1).mapInArrow(refuse, "id long").collect(), "no"),
    ):
        with pytest.raises(spark_errors()) as error:
            fails()
        line = why(error.value)
        assert word in line
        assert "\n" not in line
        assert "Exception" not in line


def test_the_command(spark: Any, topics: Any, config: Any, tmp_path: Path) -> None:
    topic = topics.create(chronik_table="delta", chronik_decode="json")
    config(spark, topic)
    place = ["-b", topics.bootstrap, "--warehouse", str(tmp_path), "--master", "local[1]"]
    statement = (
        f"select id, even, cast(null as string) as x from `{topic}` where id >= 9 order by id"
    )
    asked = run("sql", statement, *place)
    assert asked.stdout.splitlines() == ["id  even   x", " 9  false  -", "10  true   -"]
    assert asked.stderr == ""
    assert asked.returncode == 0
    wrong = run("sql", "select * from nowhere", *place)
    assert (wrong.returncode, wrong.stdout) == (1, "")
    (line,) = wrong.stderr.splitlines()
    assert "`nowhere` cannot be found" in line


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["select 1", "-b", "127.0.0.1:1"], "check kafka.bootstrap.servers"),
        (["select 1", "-b", "nowhere"], "kafka.bootstrap.servers"),
        (["select 1", "--config", "/no/such/file.toml"], "/no/such/file.toml"),
    ],
)
def test_what_cannot_be_asked_is_one_line(arguments: list[str], word: str) -> None:
    asked = run("sql", *arguments)
    assert asked.returncode == 1
    assert asked.stdout == ""
    (line,) = asked.stderr.splitlines()
    assert word in line


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [CHRONIK, *arguments], capture_output=True, text=True, timeout=240, check=False
    )
