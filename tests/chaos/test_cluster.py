"""Clusters of real processes: what the five reports describe cannot happen.

Each report of the earlier system is a test here, named after it. What they have in common: Raft
worked, and clients saw no brokers.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cluster_processes import ClusterProcesses, eventually
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import NewTopic

from chronik.protocol import apis
from chronik.protocol.messages.metadata import MetadataRequest

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


def create(cluster: ClusterProcesses, node_id: int, *names: str, partitions: int = 3) -> None:
    admin = cluster.admin(node_id)  # Kept until all is done: it cancels what it is asked for.
    made = admin.create_topics([NewTopic(name, partitions, 1) for name in names])
    for future in made.values():
        future.result(30)


def write(cluster: ClusterProcesses, node_id: int, topic: str, values: list[str]) -> None:
    errors: list[Any] = []
    producer = Producer({"bootstrap.servers": f"127.0.0.1:{cluster.ports[node_id]}"})
    for value in values:
        producer.produce(
            topic, value, key=value, on_delivery=lambda error, _: error and errors.append(error)
        )
    assert producer.flush(30) == 0
    assert errors == []


def read(cluster: ClusterProcesses, topic: str, count: int, group: str = "g") -> list[str]:
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    found: list[str] = []

    def enough() -> bool:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            found.append(message.value().decode())
        return len(found) >= count

    eventually(enough, f"{count} records of {topic}", 30)
    consumer.close()
    return sorted(found)


# The reports.


def test_000_every_node_tells_old_clients_of_all_brokers_and_topics(
    cluster: ClusterProcesses, connect: Any
) -> None:
    """Metadata requests reached nobody who knew a broker, and topics could not be created."""
    for node_id in EVERYBODY:
        create(cluster, node_id, *(f"t{node_id}-{number}" for number in range(10)))
        assert len(cluster.metadata(node_id).topics) >= 10 * node_id  # type: ignore[union-attr]
    for node_id, version in itertools.product(EVERYBODY, (1, 12)):
        address = SimpleNamespace(bootstrap=f"127.0.0.1:{cluster.ports[node_id]}")
        wire = connect(address)  # Version 1 is what a client of 0.10 sends.
        answer = wire.ask(apis.METADATA, version, MetadataRequest(topics=None))
        assert sorted(broker.node_id for broker in answer.brokers) == EVERYBODY
        assert len(answer.topics) == 30


def test_001_auto_creation_works_on_each_node_of_a_young_cluster(
    cluster: ClusterProcesses,
) -> None:
    """Brokers were registered on some nodes only, and a producer found nobody to write to."""
    for node_id in EVERYBODY:
        write(cluster, node_id, f"auto-{node_id}", ["a", "b"])
        assert read(cluster, f"auto-{node_id}", 2, f"g{node_id}") == ["a", "b"]
    cluster.stop()
    cluster.start()
    cluster.wait_for(EVERYBODY)


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 1, 2), (2, 3)], ids=str)
def test_002_any_order_of_starts_leads_to_a_cluster(
    nodes: ClusterProcesses, order: tuple[int, ...]
) -> None:
    """Registration waited for an election, which waited for registration."""
    for count, node_id in enumerate(order, 1):
        nodes.start(node_id)
        if count >= 2:  # A quorum is enough.
            nodes.wait_for(sorted(order[:count]))
    create(nodes, order[0], "t")
    missing = set(EVERYBODY) - set(order)
    nodes.start(*missing) if missing else None
    nodes.wait_for(EVERYBODY)
    assert "t" in nodes.metadata(3).topics  # type: ignore[union-attr]


def test_003_reads_need_no_leader_and_survive_its_loss(cluster: ClusterProcesses) -> None:
    """Metadata was answered only while a lease held, and then with no brokers at all."""
    create(cluster, 1, "t")
    for _ in range(2):
        victim = cluster.controller()
        cluster.kill(victim)
        left = [node_id for node_id in EVERYBODY if node_id != victim]
        cluster.wait_for(left)
        assert cluster.controller() in left
        create(cluster, left[0], f"after-{victim}")
        cluster.start(victim)
        cluster.wait_for(EVERYBODY)
    alone = 1
    cluster.kill(2, 3)
    # Without a quorum nothing is decided, and everything that was is still told.
    for _ in range(5):
        metadata = cluster.metadata(alone)
        assert metadata is not None
        assert alone in metadata.brokers
        assert "t" in metadata.topics
    admin = cluster.admin(alone)
    made = admin.create_topics([NewTopic("never", 1, 1)], operation_timeout=1, request_timeout=3)
    with pytest.raises(KafkaException) as refused:
        made["never"].result(10)
    assert refused.value.args[0].code() in (
        KafkaError._TIMED_OUT,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NOT_CONTROLLER,
    )


def test_004_a_restart_of_all_nodes_loses_nothing(cluster: ClusterProcesses) -> None:
    """After a restart offsets were recovered, and brokers were not."""
    create(cluster, 2, "t")
    values = [f"{number:03}" for number in range(100)]
    write(cluster, 1, "t", values)
    assert read(cluster, "t", 100) == values
    cluster.kill()
    cluster.start()
    cluster.wait_for(EVERYBODY)
    write(cluster, 3, "t", ["more"])
    assert read(cluster, "t", 1) == ["more"]  # The group goes on where it was.
    assert read(cluster, "t", 101, "another") == sorted([*values, "more"])


# Bad days.


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
        return "another data directory" in (tmp_path / "2.log").read_text()

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
