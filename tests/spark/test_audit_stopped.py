"""The audit of a cluster that is stopped: its files tell, and nothing of them is changed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable

from chronik.protocol.batch import HEADER_SIZE, Batch, read_header, split
from chronik.protocol.records import Record, build_batch
from chronik.spark.audit.findings import AuditReport
from chronik.spark.audit.job import audit_stopped
from chronik.spark.audit.stopped import StoppedCluster
from chronik.spark.audit.stored import stored_rows
from chronik.spark.connection import Connection
from chronik.spark.errors import SourceError
from chronik.spark.pipeline.config import PipelineConfig
from chronik.spark.pipeline.rounds import Pipeline
from chronik.testing import Broker

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
from cluster_processes import ClusterProcesses
from pipeline_world import command, environment

RECORDS = 60
TIMEOUT_S = 60.0
TOPIC = "orders"
NODES = (1, 2, 3)


@pytest.fixture(scope="module")
def stopped(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where three nodes and a warehouse lie that have stopped."""
    root = tmp_path_factory.mktemp("stopped")
    with ClusterProcesses(root) as cluster:
        make(cluster, TOPIC, chronik_table="delta", chronik_decode="json")
        make(cluster, "other")
        config = PipelineConfig(bootstrap=cluster.bootstrap, warehouse=str(root / "lake"))
        Pipeline(config, Connection(bootstrap=cluster.bootstrap), spark).run(once=True)
        cluster.stop()
    return root


def make(cluster: ClusterProcesses, name: str, **config: str) -> None:
    """A topic of small batches, some of them of transactions, committed and not."""
    settings = {key.replace("_", "."): value for key, value in config.items()}
    admin = cluster.admin(1)
    admin.create_topics([NewTopic(name, 2, 3, config=settings)])[name].result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": name})
    producer.init_transactions(TIMEOUT_S)
    for first in range(0, RECORDS, 6):
        producer.begin_transaction()
        for number in range(first, first + 6):
            value = json.dumps({"id": number}) if number % 11 else "no JSON"
            producer.produce(name, value, partition=number % 2)
        assert producer.flush(TIMEOUT_S) == 0  # What is aborted must have been sent.
        if first % 12:
            producer.abort_transaction(TIMEOUT_S)
        else:
            producer.commit_transaction(TIMEOUT_S)


class World:
    """A copy of the stopped cluster, to be damaged."""

    def __init__(self, spark: Any, root: Path) -> None:
        self._spark, self._root = spark, root

    def data_dirs(self, *node_ids: int) -> list[str]:
        return [str(self._root / str(node_id)) for node_id in node_ids or NODES]

    def look(self, *node_ids: int, topics: tuple[str, ...] = ()) -> AuditReport:
        before = contents(self._root)
        config = PipelineConfig(warehouse=str(self._root / "lake"))
        with StoppedCluster(self.data_dirs(*node_ids)) as cluster:
            report = audit_stopped(config, cluster, self._spark, topics=topics)
        assert contents(self._root) == before
        return report

    def path(self, node_id: int, topic: str = TOPIC, partition: int = 1) -> Path:
        """A replica's only segment."""
        (path,) = self._root.glob(f"{node_id}/topics/{topic}.*/{partition}/*.log")
        return path

    def batches(self, node_id: int) -> list[Batch]:
        return split(self.path(node_id).read_bytes())

    def rewrite(self, node_id: int, batches: list[bytes]) -> None:
        self.path(node_id).write_bytes(b"".join(batches))


@pytest.fixture
def world(spark: Any, stopped: Path, tmp_path: Path) -> World:
    shutil.copytree(stopped, tmp_path / "copy", dirs_exist_ok=True)
    return World(spark, tmp_path / "copy")


def contents(root: Path) -> dict[str, tuple[int, bytes]]:
    """Every file of the nodes, when it was changed and what is in it."""
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes())
        for node_id in NODES
        for path in (root / str(node_id)).rglob("*")
        if path.is_file()
    }


def places(report: AuditReport) -> set[tuple[str, int, int | None, int | None]]:
    return {(each.kind, each.partition, each.offset, each.node_id) for each in report.findings}


def test_a_sound_cluster(world: World) -> None:
    report = world.look()
    assert report.findings == ()
    by_topic = {each.topic: each for each in report.topics}
    assert by_topic.keys() == {TOPIC, "other"}
    looked = by_topic[TOPIC]
    assert (looked.partition_count, looked.replica_count) == (2, 6)
    assert looked.record_count == RECORDS
    assert looked.table_format == "delta"
    assert looked.row_count is not None
    assert looked.dead_count is not None
    assert looked.row_count + looked.dead_count == RECORDS // 2


def test_a_single_directory(world: World) -> None:
    report = world.look(2, topics=(TOPIC,))
    assert report.findings == ()
    assert [each.replica_count for each in report.topics] == [2]


def test_a_flipped_byte(world: World) -> None:
    first, second, *_ = world.batches(3)
    data = bytearray(world.path(3).read_bytes())
    data[len(first.data) + HEADER_SIZE + 8] ^= 1
    world.path(3).write_bytes(data)
    report = world.look()
    offset = second.header.base_offset
    assert places(report) == {("crc", 1, offset, 3), ("divergence", 1, offset, None)}
    assert report.findings[-1].text == (
        f"nodes 1, 2 and node 3 hold different bytes at offset {offset}"
    )


def test_bytes_that_are_no_batch_and_what_follows_them(world: World) -> None:
    first, second, third, *_ = world.batches(3)
    data = bytearray(world.path(3).read_bytes())
    data[len(first.data) + 16] = 7  # magic
    world.path(3).write_bytes(data)
    offset = second.header.base_offset
    assert places(world.look()) == {
        ("crc", 1, offset, 3),
        ("gap", 1, third.header.base_offset, 3),
        ("divergence", 1, offset, None),
    }


@pytest.mark.parametrize("cut_bytes", [0, 20])
def test_a_truncated_segment(world: World, cut_bytes: int) -> None:
    batches = world.batches(2)
    kept = batches[: len(batches) // 2]
    size = sum(len(each.data) for each in kept) + cut_bytes
    os.truncate(world.path(2), size)
    end = kept[-1].header.next_offset
    report = world.look()
    assert places(report) == {("gap", 1, end, 2)}
    assert f"offsets {end} to {batches[-1].header.last_offset} are missing" in (
        report.findings[0].text
    )


def test_a_replica_that_is_gone(world: World) -> None:
    shutil.rmtree(world.path(1).parent)
    assert places(world.look()) == {("gap", 1, 0, 1)}


def test_a_missing_batch(world: World) -> None:
    batches = world.batches(1)
    gone = batches.pop(1).header
    world.rewrite(1, [bytes(each.data) for each in batches])
    report = world.look()
    assert places(report) == {
        ("gap", 1, gone.next_offset, 1),
        ("divergence", 1, gone.base_offset, None),
    }
    assert f"offsets {gone.base_offset} to {gone.last_offset} are missing" in {
        each.text for each in report.findings
    }


def test_replicas_that_differ(world: World) -> None:
    """Each is sound by itself: only the comparison tells."""
    batches = [bytes(each.data) for each in world.batches(2)]
    header = read_header(batches[0])
    offsets = range(header.base_offset, header.next_offset)
    batches[0] = build_batch(
        [Record(offset, 1, None, b"forged") for offset in offsets],
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
    )
    world.rewrite(2, batches)
    assert places(world.look(topics=(TOPIC,))) >= {("divergence", 1, 0, None)}


def test_what_lies_above_the_high_watermark_may_differ(world: World) -> None:
    end = world.batches(3)[-1].header.next_offset
    more = build_batch([Record(end, 1, None, b"never acknowledged")], base_offset=end)
    for node_id, tail in ((2, more), (3, more[:-9])):  # one of them torn
        with open(world.path(node_id), "ab") as file:
            file.write(tail)
    assert world.look().findings == ()


def test_a_table_that_is_not_its_log(world: World, tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "copy" / "lake" / "lake" / TOPIC)
    table.delete("_partition = 1 and _offset = 1")
    os.truncate(world.path(1), 0)  # Another replica tells what the log was.
    assert places(world.look(topics=(TOPIC,))) == {
        ("gap", 1, 0, 1),
        ("missing", 1, 1, None),
    }


def test_a_metadata_log_that_cannot_be_read(world: World, tmp_path: Path) -> None:
    (tmp_path / "copy" / "1" / "__chronik_metadata" / "vote.json").unlink()
    report = world.look()
    assert [(each.topic, each.node_id) for each in report.findings] == [("__chronik_metadata", 1)]
    assert report.topics[0].replica_count == 6
    with pytest.raises(SourceError, match=r"no metadata log can be read.*vote\.json is missing"):
        world.look(1)


def test_a_topic_that_is_not_there(world: World) -> None:
    with pytest.raises(SourceError, match="there was no topic nothing"):
        world.look(topics=("nothing",))


def test_directories_that_are_refused(world: World, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with Broker(data_dir=str(tmp_path / "alone")):
        refused(r"is in use by process \d+: stop the node", str(tmp_path / "alone"))
    refused("is no data directory of a node: it has no node.json", str(tmp_path / "empty"))
    refused("is no data directory of a node", str(tmp_path / "nowhere"))
    refused("are of different clusters", *world.data_dirs(1), str(tmp_path / "alone"))
    refused("are both of node 1", *world.data_dirs(1, 1))


def refused(complaint: str, *data_dirs: str) -> None:
    with pytest.raises(SourceError, match=complaint) as raised:
        StoppedCluster(data_dirs)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_a_node_alone_is_held_to_what_it_had_on_disk(tmp_path: Path, policy: str) -> None:
    """Without other replicas and without a high watermark, its checkpoint tells."""
    with Broker(data_dir=str(tmp_path)) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        topic = NewTopic("t", 1, 1, config={"cleanup.policy": policy})
        admin.create_topics([topic])["t"].result(TIMEOUT_S)
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for number in range(4):
            producer.produce("t", b"x", key=b"%d" % number)
            assert producer.flush(TIMEOUT_S) == 0
    (path,) = tmp_path.glob("topics/t.*/0/*.log")
    assert wrong_in(tmp_path) == []
    with open(path, "ab") as file:
        file.write(b"torn")
    assert wrong_in(tmp_path) == []
    batches = split(path.read_bytes()[: -len(b"torn")])
    os.truncate(path, sum(len(each.data) for each in batches[:-1]))
    assert wrong_in(tmp_path) == [("gap", batches[-1].header.base_offset)]


def wrong_in(data_dir: Path) -> list[tuple[str | None, int]]:
    with StoppedCluster([str(data_dir)]) as cluster:
        (replica,) = cluster.replicas(cluster.topics(["t"]).values())
        return [(row.kind, row.base_offset) for row in stored_rows(replica) if row.kind]


def test_the_command(world: World, tmp_path: Path) -> None:
    options = [part for each in world.data_dirs() for part in ("--data-dir", each)]
    options += ["--warehouse", str(tmp_path / "copy" / "lake"), "--json"]
    sound = ran("audit", *options)
    assert (sound.returncode, json.loads(sound.stdout)["finding_count"]) == (0, 0), sound.stderr
    os.truncate(world.path(2), 0)
    damaged = ran("audit", TOPIC, *options)
    assert (damaged.returncode, json.loads(damaged.stdout)["finding_count"]) == (1, 1)
    wrong = ran("audit", "--data-dir", str(tmp_path))
    assert wrong.returncode == 1
    assert wrong.stderr == (
        f"chronik: {tmp_path} is no data directory of a node: it has no node.json\n"
    )


def ran(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, env=environment(), check=False
    )
