"""`chronik pipeline` as a process: found topics, stops, kills, status, replays, a Spark cluster."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from chronik.testing import Broker

sys.path.insert(0, str(Path(__file__).parent))
from pipeline_world import (
    START_TIMEOUT_S,
    TIMEOUT_S,
    by_offset,
    check_is_log,
    check_is_prefix,
    command,
    environment,
    places_in,
    rows_of,
    running,
    set_config,
    spark_cluster,
    wait_until,
)

LOCAL = ("--master", "local[2]", "--interval", "0.3")
pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with Broker({"auto.create.topics.enable": "false"}) as broker:
        yield World(broker.bootstrap, tmp_path / "lake")


class World:
    """A broker of its own: a pipeline takes every topic that it finds."""

    def __init__(self, bootstrap: str, warehouse: Path) -> None:
        self.bootstrap, self.warehouse = bootstrap, warehouse
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})

    def create(self, name: str, partitions: int = 1, **settings: str) -> str:
        from confluent_kafka.admin import AdminClient, NewTopic

        config = {f"chronik.{key}": value for key, value in settings.items()}
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([NewTopic(name, partitions, config=config)])[name].result(TIMEOUT_S)
        return name

    def produce(self, name: str, *values: str | bytes, **how: Any) -> None:
        for value in values:
            self._producer.produce(name, value, **how)
        assert self._producer.flush(TIMEOUT_S) == 0

    def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        where = ("--bootstrap", self.bootstrap, "--warehouse", str(self.warehouse))
        return subprocess.run(
            command(*arguments, *where),
            env=environment(),
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
            check=False,
        )

    def rows(self, name: str, table_format: str = "delta") -> int:
        return places_in(rows_of(self.warehouse, name, table_format)).total()

    @contextmanager
    def being_written(self, name: str, partitions: int) -> Iterator[None]:
        """Within: records arrive all the time, one in twenty of them bad."""
        stop = threading.Event()

        def write() -> None:
            number = 0
            while not stop.wait(0.01):
                for _ in range(5):
                    value = b"bad" if number % 20 == 7 else b'{"n": %d}' % number
                    self._producer.produce(name, value, partition=number % partitions)
                    number += 1
                self._producer.poll(0)

        thread = threading.Thread(target=write)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            assert self._producer.flush(TIMEOUT_S) == 0


def test_topics_are_found_while_it_runs_and_a_stop_is_clean(world: World, tmp_path: Path) -> None:
    spark_log = tmp_path / "spark.log"
    first = world.create("first", table="delta", decode="json", schema="n bigint")
    world.produce(first, '{"n": 1}', "bad")
    options = (*LOCAL, "--spark-log", str(spark_log))
    with running(world.bootstrap, world.warehouse, *options) as pipeline:
        wait_until(lambda: world.rows(first) == 1, START_TIMEOUT_S)
        second = world.create("second", table="iceberg", decode="json")
        world.produce(second, '{"a": 1}', '{"a": 2}')
        wait_until(lambda: world.rows(second, "iceberg") == 2)
        world.produce(first, *(f'{{"n": {number}}}' for number in range(100)))
        wait_until(lambda: world.rows(first) == 101)
        status = json.loads(world.cli("status", "--json").stdout)
        pipeline.process.send_signal(signal.SIGTERM)
        assert pipeline.wait() == 0
        output = pipeline.output
    assert "pipeline stopped" in output
    assert "default log level" in spark_log.read_text()
    assert "default log level" not in output
    assert "first: 1 rows, 1 dead letters" in output
    assert "Traceback" not in output
    assert check_is_log(world.bootstrap, world.warehouse, first, "delta") == (101, 1)
    assert check_is_log(world.bootstrap, world.warehouse, second, "iceberg") == (2, 0)
    by_topic = {each["topic"]: each for each in status}
    assert by_topic[first]["lag_records"] == 0
    assert (by_topic[first]["row_count"], by_topic[first]["dead_count"]) == (101, 1)
    assert by_topic[second]["table_format"] == "iceberg"
    assert by_topic[second]["error"] is None


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_killed_and_started_again(world: World, table_format: str) -> None:
    """A few kills of everything; `make pipeline-chaos` does many."""
    chance = random.Random(table_format)
    name = world.create("killed", 2, table=table_format, decode="json", schema="n bigint")
    kills = 2 if table_format == "delta" else 1
    with world.being_written(name, 2):
        for _ in range(kills):
            before = world.rows(name, table_format)
            with running(world.bootstrap, world.warehouse, *LOCAL) as pipeline:
                wait_until(
                    lambda before=before: world.rows(name, table_format) > before, START_TIMEOUT_S
                )
                time.sleep(chance.random() * 2)
                pipeline.kill()
            check_is_prefix(world.bootstrap, world.warehouse, name, table_format)
    done = world.cli("run", "--once", "--master", "local[2]")
    assert done.returncode == 0, done.stderr
    good, dead = check_is_log(world.bootstrap, world.warehouse, name, table_format)
    assert good > 0
    assert dead > 0


def test_replay_after_a_changed_schema(world: World) -> None:
    name = world.create("t", table="delta", decode="json", schema="n int")
    world.produce(name, '{"n": 1}', '{"n": 3000000000}', "nonsense")
    assert world.cli("run", "--once", "--master", "local[2]").returncode == 0
    assert check_is_log(world.bootstrap, world.warehouse, name, "delta") == (1, 2)
    same = world.cli("replay", name)
    assert (same.returncode, same.stdout) == (0, "replayed 0 dead letters of t, 2 left\n")
    set_config(world.bootstrap, name, {"chronik.schema": "n bigint, more string"})
    again = world.cli("replay", name)
    assert (again.returncode, again.stdout) == (0, "replayed 1 dead letters of t, 1 left\n")
    assert check_is_log(world.bootstrap, world.warehouse, name, "delta") == (2, 1)
    assert by_offset(rows_of(world.warehouse, name, "delta"))[1]["n"] == 3_000_000_000


def test_status_before_anything_ran(world: World) -> None:
    name = world.create("t", table="delta", decode="string")
    world.produce(name, "x", "y")
    found = world.cli("status")
    assert found.returncode == 0
    assert found.stdout.splitlines()[1].split()[:3] == [name, "delta", "2"]
    assert "no pipeline has run here yet" in found.stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["run", "--bootstrap", "127.0.0.1:1"], "no broker of 127.0.0.1:1"),
        (["run", "--bootstrap", "nonsense"], "nonsense"),
        (["status", "--bootstrap", "127.0.0.1:1"], "no broker of 127.0.0.1:1"),
        (["status", "--config", "/none.toml"], "check --config"),
        (["replay", "nothing"], "nothing"),
        (["run", "--once", "--spark-log", "/none/spark.log"], "--spark-log"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    world: World, arguments: list[str], complaint: str
) -> None:
    where = [] if "--bootstrap" in arguments else ["--bootstrap", world.bootstrap]
    done = subprocess.run(
        command(*arguments, *where, "--warehouse", str(world.warehouse)),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert complaint in done.stderr
    assert done.stderr.startswith("chronik: ")
    assert done.stderr.count("\n") == 1


def test_a_master_that_is_none(world: World) -> None:
    world.create("t", table="delta")
    done = world.cli("run", "--once", "--master", "nonsense")
    assert done.returncode == 1
    assert "--master nonsense" in done.stderr.splitlines()[-1]


# A cluster


def test_on_a_spark_cluster(world: World, tmp_path: Path) -> None:
    name = world.create("t", 4, table="delta", decode="json", schema="n bigint, s string")
    for partition in range(4):
        rows = (json.dumps({"n": number, "s": "x" * 2000}) for number in range(2000))
        world.produce(name, *rows, "bad", partition=partition)
    config = tmp_path / "pipeline.toml"
    config.write_text(
        'task_mebibytes = 2\n[spark]\n"spark.driver.host" = "127.0.0.1"\n'
        '"spark.driver.bindAddress" = "127.0.0.1"\n"spark.executor.memory" = "512m"\n'
    )
    with spark_cluster(tmp_path, workers=2) as master:
        done = world.cli("run", "--once", "--master", master, "--config", str(config))
        assert done.returncode == 0, done.stderr
        logs = list(tmp_path.glob("worker-*/app-*/*/stderr"))
        assert len(logs) == 2, "both workers had an executor"
        assert all("Running task" in log.read_text() for log in logs)
    assert check_is_log(world.bootstrap, world.warehouse, name, "delta") == (8000, 4)
