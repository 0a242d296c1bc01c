"""A machine goes down under open transactions: what was acknowledged in them may be gone.

No test can switch a machine off. What a node knows of it is the boot that its file names, so that
another name there, after kill -9, is a power failure to it; here one that happened to cost nothing.
"""

from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from node_process import Node

TIMEOUT_S = 30.0
OPTIONS = ("--set", "transaction.state.log.num.partitions=1", "--set", "num.partitions=1")


def transactional(node: Node) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": node.bootstrap,
            "transactional.id": "t",
            "metadata.recovery.strategy": "none",
        }
    )
    producer.init_transactions(TIMEOUT_S)
    return producer


def put(producer: Producer, *values: bytes) -> None:
    """Produce in a transaction that has begun, and have it acknowledged."""
    for value in values:
        producer.produce("orders", value)
    assert producer.flush(TIMEOUT_S) == 0


def committed(node: Node, count: int) -> list[bytes]:
    """The first records that a reader of committed data finds."""
    consumer = Consumer(
        {
            "bootstrap.servers": node.bootstrap,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe(["orders"])
    found = []
    for message in consumer.consume(count, TIMEOUT_S):
        assert message.error() is None
        found.append(message.value() or b"")
    consumer.close()
    return found


def test_a_killed_process_has_lost_nothing(tmp_path: Path) -> None:
    with Node(tmp_path, *OPTIONS) as node:
        producer = transactional(node)
        producer.begin_transaction()
        put(producer, b"a", b"b")
        node.kill()
        node.start()
        producer.commit_transaction(TIMEOUT_S)
        assert committed(node, 2) == [b"a", b"b"]


def test_a_transaction_of_before_a_power_failure_is_aborted_and_the_next_one_goes_on(
    tmp_path: Path,
) -> None:
    with Node(tmp_path, *OPTIONS) as node:
        producer = transactional(node)
        producer.begin_transaction()
        put(producer, b"lost")
        node.kill()
        (tmp_path / "running").write_text("another boot")
        node.start()
        with pytest.raises(KafkaException) as raised:
            producer.commit_transaction(TIMEOUT_S)
        assert raised.value.args[0].txn_requires_abort()
        producer.abort_transaction(TIMEOUT_S)
        producer.begin_transaction()
        put(producer, b"kept")
        producer.commit_transaction(TIMEOUT_S)
        assert committed(node, 1) == [b"kept"]
