"""What a producer is told: replicas alive x acks x min.insync.replicas, as with Apache Kafka.

Five real processes, of which three hold the topics, so that two may die and the rest still decides
together that they are gone. Stock producers without retries: each outcome is the first answer.
"""

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_processes import ClusterProcesses, eventually
from confluent_kafka import KafkaError, Message, Producer
from replicated_topics import create_on, in_sync
from wire import Wire

from chronik.protocol.apis import PRODUCE
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from chronik.protocol.records import Record, build_batch

EVERYBODY = [1, 2, 3, 4, 5]
LEADER = 1
REPLICAS = [1, 2, 3]
MIN_INSYNC = (1, 2, 3)
TOO_FEW = "NOT_ENOUGH_REPLICAS"
# By replicas alive and min.insync.replicas: what acks=all is told. The other acks always succeed.
ACKS_ALL = {
    (3, 1): None, (3, 2): None, (3, 3): None,
    (2, 1): None, (2, 2): None, (2, 3): TOO_FEW,
    (1, 1): None, (1, 2): TOO_FEW, (1, 3): TOO_FEW,
}  # fmt: skip
TABLE = {
    (alive, acks, min_insync): told if acks == "all" else None
    for (alive, min_insync), told in ACKS_ALL.items()
    for acks in ("0", "1", "all")
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(tmp_path, 5) as running:
        yield running


def outcome(bootstrap: str, topic: str, acks: str, timeout_ms: int = 5_000) -> str | None:
    """What the first answer to one record is: nothing, or the name of an error."""
    told: list[KafkaError | None] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        told.append(error)

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": acks,
            "retries": 0,
            "request.timeout.ms": timeout_ms,
            "log_level": 0,
        }
    )
    producer.produce(topic, b"x", partition=0, on_delivery=delivered)
    assert producer.flush(30) == 0
    (error,) = told
    return None if error is None else error.name()


def table(bootstrap: str, alive: int) -> dict[tuple[int, str, int], str | None]:
    return {
        (alive, acks, min_insync): outcome(bootstrap, f"min-{min_insync}", acks)
        for acks in ("0", "1", "all")
        for min_insync in MIN_INSYNC
    }


def test_replicas_alive_by_acks_by_min_insync(cluster: ClusterProcesses) -> None:
    bootstrap = f"127.0.0.1:{cluster.ports[LEADER]}"
    for min_insync in MIN_INSYNC:
        create_on(cluster, f"min-{min_insync}", REPLICAS, min_insync=min_insync)
    found: dict[tuple[int, str, int], str | None] = {}
    for alive in (3, 2, 1):
        wanted = REPLICAS[:alive]
        for topic in (f"min-{each}" for each in MIN_INSYNC):
            eventually(lambda: in_sync(cluster, topic, LEADER) == [wanted], f"{wanted} in sync")  # noqa: B023
        found |= table(bootstrap, alive)
        if alive > 1:
            cluster.kill(REPLICAS[alive - 1])
    assert found == TABLE
    cluster.start(2, 3)
    for topic in (f"min-{each}" for each in MIN_INSYNC):
        eventually(lambda: in_sync(cluster, topic, LEADER) == [REPLICAS], "all in sync")  # noqa: B023
    assert table(bootstrap, 3) == {key: told for key, told in TABLE.items() if key[0] == 3}


def test_a_silent_follower_costs_a_timeout_and_then_its_place(cluster: ClusterProcesses) -> None:
    bootstrap = f"127.0.0.1:{cluster.ports[LEADER]}"
    create_on(cluster, "t", REPLICAS, min_insync=3)
    cluster.signal(3, signal.SIGSTOP)
    assert outcome(bootstrap, "t", "1") is None
    assert outcome(bootstrap, "t", "all", timeout_ms=300) == "REQUEST_TIMED_OUT"
    # What is appended and waits when the in-sync set becomes too small is told so.
    assert outcome(bootstrap, "t", "all", 20_000) == "NOT_ENOUGH_REPLICAS_AFTER_APPEND"
    assert outcome(bootstrap, "t", "all") == "NOT_ENOUGH_REPLICAS"
    cluster.signal(3, signal.SIGCONT)
    eventually(lambda: in_sync(cluster, "t", LEADER) == [REPLICAS], "all in sync")
    assert outcome(bootstrap, "t", "all") is None


def request(topic: str, value: bytes, acks: int, timeout_ms: int) -> ProduceRequest:
    data = build_batch([Record(0, 1_000, None, value)])
    partition = PartitionProduceData(index=0, records=data)
    return ProduceRequest(
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[TopicProduceData(name=topic, partition_data=[partition])],
    )


def answer_of(wire: Wire) -> tuple[int, Any]:
    number, response = wire.receive(PRODUCE, 9)
    return number, response.responses[0].partition_responses[0]


def test_requests_of_one_connection_keep_their_order_and_wait_together(
    cluster: ClusterProcesses,
) -> None:
    """Appended one after the other, though no ack came yet; answered in the order of asking."""
    bootstrap = f"127.0.0.1:{cluster.ports[LEADER]}"
    create_on(cluster, "t", REPLICAS)
    wire = Wire(bootstrap, 30.0)
    cluster.signal(3, signal.SIGSTOP)
    began_s = time.monotonic()
    asked = [wire.send(PRODUCE, 9, request("t", b"%d" % n, -1, 1_000)) for n in range(5)]
    asked += [wire.send(PRODUCE, 9, request("t", b"%d" % n, 1, 1_000)) for n in range(5, 7)]
    answers = [answer_of(wire) for _ in asked]
    waited_s = time.monotonic() - began_s
    assert [number for number, _ in answers] == asked
    codes = [answer.error_code for _, answer in answers]
    assert codes == [ErrorCode.REQUEST_TIMED_OUT] * 5 + [ErrorCode.NONE] * 2
    assert [answer.base_offset for _, answer in answers[5:]] == [5, 6], "behind those that waited"
    assert waited_s < 4, "five timeouts of a second, one after the other"
    asked = [wire.send(PRODUCE, 9, request("t", b"%d" % n, -1, 20_000)) for n in range(7, 12)]
    cluster.signal(3, signal.SIGCONT)
    answers = [answer_of(wire) for _ in asked]
    assert [number for number, _ in answers] == asked
    assert [answer.base_offset for _, answer in answers] == list(range(7, 12))
    wire.close()
