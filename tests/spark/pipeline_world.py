"""What the pipeline's tests share: a check that a table and its dead letters are the log.

The log is read by librdkafka and the tables by their libraries' own readers: nothing here is the
pipeline's code.
"""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable
from ports import free_port
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError
from sqlalchemy.exc import OperationalError

NAMESPACE = "lake"
TIMEOUT_S = 60.0
START_TIMEOUT_S = 240.0  # a JVM on a machine that does other things too
# A JVM that lives for seconds or minutes starts sooner if it does not prepare for hours.
QUICK_JAVA = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
Place = tuple[int, int]  # partition, offset


def log_of(bootstrap: str, topic: str) -> dict[Place, bytes | None]:
    """Every committed record of a topic: no markers, nothing that was aborted."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "check",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    found: dict[Place, bytes | None] = {}
    try:
        partitions = consumer.list_topics(topic, TIMEOUT_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, each, 0) for each in partitions])
        at_end: set[int] = set()
        deadline = time.monotonic() + TIMEOUT_S
        while len(at_end) < len(partitions):
            assert time.monotonic() < deadline, "the log has no end"
            message = consumer.poll(1.0)
            if message is None:
                continue
            if message.error():
                assert message.error().name() == "_PARTITION_EOF", message.error()
                at_end.add(message.partition())
            else:
                found[message.partition(), message.offset()] = message.value()
    finally:
        consumer.close()
    return found


def rows_of(warehouse: Path, name: str, table_format: str) -> pa.Table | None:
    """A table as another reader sees it, or None if there is none."""
    if table_format == "delta":
        path = warehouse / NAMESPACE / name
        return DeltaTable(path).to_pyarrow_table() if (path / "_delta_log").exists() else None
    if not (warehouse / "catalog.db").exists():
        return None
    catalog = load_catalog(
        "chronik", type="sql", uri=f"sqlite:///{warehouse}/catalog.db?timeout=30"
    )
    try:
        table = catalog.load_table((NAMESPACE, name))
    except (NoSuchTableError, OperationalError):
        return None  # Not yet: the catalog itself may have no tables so far.
    return table.scan().to_arrow()


def places_in(rows: pa.Table | None) -> Counter[Place]:
    if rows is None:
        return Counter()
    columns = rows.column("_partition").to_pylist(), rows.column("_offset").to_pylist()
    return Counter(zip(*columns, strict=True))


def check_is_log(bootstrap: str, warehouse: Path, topic: str, table_format: str) -> tuple[int, int]:
    """Each record is in the table or in the dead letters, once; returns how many of each."""
    log = log_of(bootstrap, topic)
    table = places_in(rows_of(warehouse, topic, table_format))
    letters = rows_of(warehouse, f"{topic}_dead_letters", table_format)
    dead = places_in(letters)
    both, wanted = table + dead, Counter(log.keys())
    assert both == wanted, (
        f"{topic}: missing {sorted(wanted - both)[:9]}, too many {sorted(both - wanted)[:9]}"
    )
    for letter in letters.to_pylist() if letters is not None else ():
        assert letter["_value"] == log[letter["_partition"], letter["_offset"]]
        assert letter["_reason"]
    return table.total(), dead.total()


def check_is_prefix(bootstrap: str, warehouse: Path, topic: str, table_format: str) -> int:
    """After a kill: nothing twice, nothing made up, no gap up to the table's last row.

    Dead letters are committed first, so that they may be ahead. Returns how many rows there are.
    """
    table = places_in(rows_of(warehouse, topic, table_format))
    dead = places_in(rows_of(warehouse, f"{topic}_dead_letters", table_format))
    both = table + dead
    assert all(count == 1 for count in both.values()), "a record is there twice"
    log = log_of(bootstrap, topic)
    assert both.keys() <= log.keys(), f"never written: {sorted(both.keys() - log.keys())[:9]}"
    last: dict[int, int] = {}
    for partition, offset in table:
        last[partition] = max(offset, last.get(partition, -1))
    missing = [place for place in log if place[1] <= last.get(place[0], -1) and place not in both]
    assert not missing, f"{topic}: missing {sorted(missing)[:9]}"
    return both.total()


def by_offset(rows: pa.Table | None, partition: int = 0) -> dict[int, dict[str, Any]]:
    """The rows of a partition as dicts, by their offset."""
    assert rows is not None
    return {row["_offset"]: row for row in rows.to_pylist() if row["_partition"] == partition}


def set_config(bootstrap: str, topic: str, settings: Mapping[str, str]) -> None:
    """Change settings of a topic."""
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)


class PipelineProcess:
    """`chronik pipeline run` as a person runs it."""

    def __init__(self, bootstrap: str, warehouse: Path, *arguments: str) -> None:
        self._log = warehouse.parent / f"{warehouse.name}-pipeline.log"
        self._out = self._log.open("ab")
        self.process = subprocess.Popen(
            command("run", "--bootstrap", bootstrap, "--warehouse", str(warehouse), *arguments),
            stdout=self._out,
            stderr=subprocess.STDOUT,
            env=environment(),
            start_new_session=True,
        )

    @property
    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def wait(self, timeout_s: float = TIMEOUT_S) -> int:
        return self.process.wait(timeout_s)

    def kill(self) -> None:
        """End it as a power cut would, and with it Spark's JVM and workers."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(TIMEOUT_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        self._out.close()


def command(*arguments: str) -> list[str]:
    return [str(Path(sys.executable).with_name("chronik")), "pipeline", *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}


@contextmanager
def running(bootstrap: str, warehouse: Path, *arguments: str) -> Iterator[PipelineProcess]:
    process = PipelineProcess(bootstrap, warehouse, *arguments)
    try:
        yield process
    finally:
        process.close()


def wait_until(is_done: Callable[[], bool], timeout_s: float = TIMEOUT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_done():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.1)


@contextmanager
def spark_cluster(root: Path, workers: int) -> Iterator[str]:
    """A standalone master and some workers, of PySpark's own jars."""
    import pyspark

    home = Path(pyspark.__file__).parent
    start = str(home / "bin" / "spark-class")
    port = free_port()
    deploy = "org.apache.spark.deploy"
    env = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
    }
    web = ("--webui-port", "0")
    commands = [[start, f"{deploy}.master.Master", "-h", "127.0.0.1", "-p", str(port), *web]]
    commands += [
        [
            *(start, f"{deploy}.worker.Worker", "-h", "127.0.0.1", "-c", "1", "-m", "1g", *web),
            *("-d", str(root / f"worker-{number}"), f"spark://127.0.0.1:{port}"),
        ]
        for number in range(workers)
    ]
    started = []
    try:
        for each in commands:
            with (root / f"spark-{len(started)}.log").open("wb") as log:
                process = subprocess.Popen(
                    each, env=env, stdout=log, stderr=log, start_new_session=True
                )
            started.append(process)
        wait_until(
            lambda: (root / "spark-0.log").read_text().count("Registering worker") == workers,
            START_TIMEOUT_S,
        )
        yield f"spark://127.0.0.1:{port}"
    finally:
        for process in started:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
