"""The audit: nothing to say of a healthy cluster, and the very place of what is wrong."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from deltalake import DeltaTable

from chronik.protocol.batch import HEADER_SIZE, read_header
from chronik.spark.audit.findings import AuditReport
from chronik.spark.audit.job import audit
from chronik.spark.connection import Connection
from chronik.spark.pipeline.config import PipelineConfig
from chronik.spark.pipeline.rounds import Pipeline

sys.path.insert(0, str(Path(__file__).parents[1]))
from cluster_processes import ClusterProcesses, eventually

RECORDS = 60
TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(tmp_path_factory.mktemp("nodes")) as running:
        yield running


def make(cluster: ClusterProcesses, name: str, **config: str) -> None:
    """A topic with three copies, of some small batches; every eleventh value is no JSON."""
    admin = cluster.admin(1)
    settings = {key.replace("_", "."): value for key, value in config.items()}
    admin.create_topics([NewTopic(name, 2, 3, config=settings)])[name].result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    for number in range(RECORDS):
        value = json.dumps({"id": number}) if number % 11 else "no JSON"
        producer.produce(name, value, partition=number % 2)
        if number % 6 == 5:
            assert producer.flush(TIMEOUT_S) == 0
    assert producer.flush(TIMEOUT_S) == 0


@pytest.fixture
def look(spark: Any, cluster: ClusterProcesses, tmp_path: Path) -> Any:
    config = PipelineConfig(bootstrap=cluster.bootstrap, warehouse=str(tmp_path))

    def run(*names: str) -> AuditReport:
        connection = Connection(bootstrap=cluster.bootstrap, timeout_s=5.0)
        return audit(config, connection, spark, topics=names)

    run.config = config  # type: ignore[attr-defined]
    return run


def test_replicas_that_are_the_same_and_a_byte_that_is_not(
    cluster: ClusterProcesses, look: Any
) -> None:
    make(cluster, "copied")
    report = look("copied")
    assert report.findings == ()
    (looked,) = report.topics
    assert (looked.partition_count, looked.replica_count) == (2, 6)
    assert looked.record_count == RECORDS
    assert looked.batch_count >= 2
    offset = flip_a_byte(cluster.data_dir(3), "copied", 1)
    damaged = look()  # all topics
    assert damaged.finding_count == len(damaged.findings) >= 1
    places = {(each.kind, each.topic, each.partition, each.offset) for each in damaged.findings}
    assert places == {("crc", "copied", 1, offset), ("divergence", "copied", 1, offset)}
    texts = {each.kind: each.text for each in damaged.findings}
    assert texts["divergence"] == f"nodes 1, 2 and node 3 hold different bytes at offset {offset}"
    assert next(each.node_id for each in damaged.findings if each.kind == "crc") == 3


def flip_a_byte(data_dir: Path, topic: str, partition: int) -> int:
    """Change a record of the second batch in a replica's file; returns the batch's offset."""
    (path,) = data_dir.glob(f"topics/{topic}.*/{partition}/*.log")
    with open(path, "r+b") as file:
        data = file.read()
        first = read_header(data)
        second = read_header(data, first.size)
        place = first.size + HEADER_SIZE + 8
        file.seek(place)
        file.write(bytes([data[place] ^ 1]))
    return second.base_offset


def test_a_table_that_is_its_log_and_one_that_is_not(
    spark: Any, cluster: ClusterProcesses, look: Any, tmp_path: Path
) -> None:
    make(cluster, "tabled", chronik_table="delta", chronik_decode="json")
    connection = Connection(bootstrap=cluster.bootstrap)
    Pipeline(look.config, connection, spark).run(once=True)
    report = look("tabled")
    assert report.findings == ()
    (looked,) = report.topics
    assert (looked.table_format, looked.dead_count) == ("delta", 6)
    assert looked.row_count == RECORDS - 6
    # Later records are nobody's promise yet.
    Producer({"bootstrap.servers": cluster.bootstrap}).produce("tabled", b'{"id": 99}')
    table = DeltaTable(tmp_path / "lake" / "tabled")
    table.delete("_partition = 1 and _offset = 7")
    again = DeltaTable(tmp_path / "lake" / "tabled")
    again.update(updates={"_offset": "4"}, predicate="_partition = 0 and _offset = 3")
    letters = DeltaTable(tmp_path / "lake" / "tabled_dead_letters")
    letters.delete("_partition = 0 and _offset = 0")
    found = look("tabled")
    assert [(each.kind, each.partition, each.offset) for each in found.findings] == [
        ("missing", 0, 0),
        ("missing", 0, 3),
        ("duplicate", 0, 4),
        ("missing", 1, 7),
    ]


def test_a_replica_that_does_not_answer(cluster: ClusterProcesses, look: Any) -> None:
    make(cluster, "alone")
    cluster.kill(2)
    cluster.wait_for([1, 3], on=[1, 3])
    report = look("alone")
    unread = [each for each in report.findings if each.kind == "unreadable"]
    assert {each.node_id for each in unread} == {2}
    assert len(unread) == len(report.findings) == 2
    cluster.start(2)
    eventually(lambda: cluster.brokers(1) == [1, 2, 3], "node 2 is back")
