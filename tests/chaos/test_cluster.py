"""Clusters of real processes on bad days: deaths, lost disks, strangers."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_clients import create, read, write
from cluster_processes import ClusterProcesses, eventually
from confluent_kafka import KafkaError, Producer

EVERYBODY = [1, 2, 3]


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[ClusterProcesses]:
    """Three nodes, none of them started."""
    cluster = ClusterProcesses(tmp_path, 3, "--set", "group.initial.rebalance.delay.ms=0")
    yield cluster
    cluster.kill()


@pytest.fixture
def cluster(nodes: ClusterProcesses) -> ClusterProcesses:
    nodes.start()
    nodes.wait_for(EVERYBODY)
    return nodes


def test_a_broker_that_dies_is_gone_and_its_partitions_wait_for_it(
    cluster: ClusterProcesses,
) -> None:
    create(cluster, 1, "t", partitions=6)
    write(cluster, 1, "t", [str(number) for number in range(60)])
    victim = next(node_id for node_id in EVERYBODY if node_id != cluster.controller())
    cluster.kill(victim)
    left = [node_id for node_id in EVERYBODY if node_id != victim]
    cluster.wait_for(left)
    topic = cluster.metadata(left[0]).topics["t"]  # type: ignore[union-attr]
    leaderless = [each for each in topic.partitions.values() if each.leader == -1]
    assert len(leaderless) == 2
    assert all(each.replicas == [victim] for each in leaderless)
    assert all(
        each.error.code() == KafkaError.LEADER_NOT_AVAILABLE for each in leaderless if each.error
    )
    cluster.start(victim)
    cluster.wait_for(EVERYBODY)
    assert read(cluster, "t", 60) == sorted(str(number) for number in range(60))


def test_transactions_span_nodes(cluster: ClusterProcesses) -> None:
    create(cluster, 1, "t", partitions=6)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "tx"})
    producer.init_transactions(30)
    for outcome in (producer.commit_transaction, producer.abort_transaction) * 2:
        producer.begin_transaction()
        for partition in range(6):
            producer.produce("t", outcome.__name__, partition=partition)
        producer.flush(30)
        outcome(30)
    assert read(cluster, "t", 12) == ["commit_transaction"] * 12


def test_a_wiped_node_is_refused_and_says_why(cluster: ClusterProcesses, tmp_path: Path) -> None:
    cluster.stop(2)
    cluster.wait_for([1, 3])
    cluster.data_dir(2).rename(tmp_path / "lost")
    cluster.start(2)

    def is_told() -> bool:
        return "cluster replace-node 2" in (tmp_path / "2.log").read_text()

    eventually(is_told, "a line that says why")
    assert cluster.brokers(1) == [1, 3]


def test_a_node_of_another_cluster_is_refused(cluster: ClusterProcesses, tmp_path: Path) -> None:
    stranger = tmp_path / "stranger"
    stranger.mkdir()
    other = ClusterProcesses(stranger)
    other.peers = cluster.peers.replace("1@", "4@", 1)
    cluster.stop(1)
    other.start(2)

    def is_refused() -> bool:
        log = (stranger / "2.log").read_text()
        return "cannot listen" in log or "another cluster" in log

    try:
        eventually(is_refused, "a refusal")
    finally:
        other.kill()
