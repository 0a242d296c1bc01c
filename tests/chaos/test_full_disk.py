"""A node whose disk is full lets others lead, serves reads and deletes, and comes back by itself.

Three real processes; the disk of one of them has the size that the test says.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_processes import ClusterProcesses, eventually
from confluent_kafka.admin import NewTopic
from replication_load import Load, check_records, check_replicas, read_back
from small_disks import on_small_disk, used_bytes

EVERYBODY = [1, 2, 3]
SMALL = 2


@pytest.fixture
def small_disk(tmp_path: Path) -> Path:
    return tmp_path / "small_disk"


@pytest.fixture
def cluster(tmp_path: Path, small_disk: Path) -> Iterator[ClusterProcesses]:
    running = ClusterProcesses(tmp_path)
    running.commands[SMALL] = on_small_disk(small_disk)
    with running:
        yield running


def create(
    cluster: ClusterProcesses, name: str, partitions: int = 3, replication_factor: int = 3
) -> None:
    admin = cluster.admin(1)
    topic = NewTopic(name, partitions, replication_factor, config={"min.insync.replicas": "2"})
    admin.create_topics([topic])[name].result(10)
    eventually(lambda: all(name in topics_of(cluster, each) for each in EVERYBODY), name)


def topics_of(cluster: ClusterProcesses, node_id: int) -> list[str]:
    metadata = cluster.metadata(node_id)
    return [] if metadata is None else list(metadata.topics)


def leaders(cluster: ClusterProcesses, topic: str, on: int = 1) -> set[int]:
    metadata = cluster.metadata(on)
    found = metadata.topics[topic].partitions.values() if metadata is not None else ()
    return {each.leader for each in found}


def in_sync(cluster: ClusterProcesses, topic: str, on: int = 1) -> set[int]:
    """Who is in sync in all partitions."""
    metadata = cluster.metadata(on)
    found = metadata.topics[topic].partitions.values() if metadata is not None else ()
    return set.intersection(*(set(each.isrs) for each in found)) if found else set()


def shrink(cluster: ClusterProcesses, small_disk: Path) -> None:
    """There is little room, so that some is reserved; then there is none."""
    used = used_bytes(cluster.data_dir(SMALL))
    small_disk.write_text(str(used + 200_000_000))
    eventually((cluster.data_dir(SMALL) / "reserve").exists, "some room is reserved")
    small_disk.write_text(str(used_bytes(cluster.data_dir(SMALL))))


def test_a_node_with_a_full_disk_rests_and_comes_back(
    cluster: ClusterProcesses, small_disk: Path
) -> None:
    create(cluster, "load")
    create(cluster, "idle")
    assert SMALL in leaders(cluster, "load")
    load = Load(cluster.bootstrap, "load", "p", 3)
    load.start()
    eventually(lambda: len(load.acked) > 100, "the first records")
    shrink(cluster, small_disk)
    eventually(lambda: SMALL not in leaders(cluster, "load"), "others lead")
    eventually(lambda: SMALL not in in_sync(cluster, "idle"), "nobody waits for it")
    before = len(load.acked)
    eventually(lambda: len(load.acked) > before + 500, "records go on")
    # It is there, knows what happens, and serves.
    assert cluster.brokers(SMALL) == EVERYBODY
    create(cluster, "meanwhile", replication_factor=2)
    admin = cluster.admin(SMALL)
    admin.delete_topics(["meanwhile"])["meanwhile"].result(10)
    eventually(
        lambda: all("meanwhile" not in topics_of(cluster, each) for each in EVERYBODY), "deleted"
    )
    assert SMALL not in leaders(cluster, "load")
    small_disk.unlink()
    for topic in ("load", "idle"):
        eventually(lambda: in_sync(cluster, topic) == set(EVERYBODY), f"{topic} in sync")  # noqa: B023
    load.stop()
    found = read_back(f"127.0.0.1:{cluster.ports[SMALL]}", "load", 3)
    eventually(lambda: in_sync(cluster, "load") == set(EVERYBODY), "in sync")
    cluster.stop()
    print(f"longest gap between acks {load.pause():.2f} s")
    assert not load.failed
    check_records(found, load.acked)
    check_replicas(map(cluster.data_dir, EVERYBODY), "load", 3)
    assert "disk has room again" in cluster.log(SMALL)


def test_deleting_a_topic_makes_room(cluster: ClusterProcesses, small_disk: Path) -> None:
    """Reads and deletes go on while the disk is full, and what was deleted is room."""
    create(cluster, "large", 1)
    admin = cluster.admin(1)
    load = Load(cluster.bootstrap, "large", "x" * 200_000, 1)
    load.start()
    eventually(lambda: load.sent > 500, "100 MB", 60)
    load.stop()
    small_disk.write_text(str(used_bytes(cluster.data_dir(SMALL)) + 1_000_000))
    eventually(lambda: SMALL not in in_sync(cluster, "large"), "nobody waits for it")
    found = read_back(f"127.0.0.1:{cluster.ports[SMALL]}", "large", 1)
    check_records(found, load.acked)
    admin.delete_topics(["large"])["large"].result(10)
    eventually(lambda: "disk has room again" in cluster.log(SMALL), "room")
    create(cluster, "after")
    load = Load(cluster.bootstrap, "after", "p", 3)
    load.start()
    eventually(lambda: len(load.acked) > 100, "records")
    load.stop()
    eventually(lambda: in_sync(cluster, "after") == set(EVERYBODY), "in sync")


def test_a_node_starts_on_a_full_disk(cluster: ClusterProcesses, small_disk: Path) -> None:
    create(cluster, "load")
    shrink(cluster, small_disk)
    cluster.kill(SMALL)
    cluster.start(SMALL)
    cluster.wait_for(EVERYBODY)
    eventually(lambda: SMALL not in in_sync(cluster, "load"), "nobody waits for it")
    small_disk.unlink()
    eventually(lambda: in_sync(cluster, "load") == set(EVERYBODY), "in sync")
