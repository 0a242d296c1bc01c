"""How long a producer waits when the leader of its partition goes, and what a new leader knows.

Stock clients, acks=all, three real processes. Times are printed, beside what they should be on a
machine that has nothing else to do; only the outcome is asserted.
"""

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_processes import ClusterProcesses, eventually
from replicated_topics import create_on, in_sync, leaders
from replication_load import Load, check_records, check_replicas, read_back
from wire import Wire

from chronik.protocol.apis import INIT_PRODUCER_ID, PRODUCE
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from chronik.protocol.messages.producer_ids import InitProducerIdRequest
from chronik.protocol.records import Record, build_batch

EVERYBODY = [1, 2, 3]
# By what happens to the leader: what the longest gap between two acks should be.
GOALS_S = {"killed": 1.0, "killed, led Raft too": 2.0, "silent": 4.0, "stopped": 0.2}
STAYS_S = 1.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(tmp_path) as running:
        yield running


def go(cluster: ClusterProcesses, how: str, node_id: int) -> None:
    match how:
        case "silent":
            cluster.signal(node_id, signal.SIGSTOP)
        case "stopped":
            cluster.stop(node_id)
        case _:
            cluster.kill(node_id)


def come_back(cluster: ClusterProcesses, how: str, node_id: int) -> None:
    if how == "silent":
        cluster.signal(node_id, signal.SIGCONT)
    else:
        cluster.start(node_id)


def test_the_longest_gap_between_acks(cluster: ClusterProcesses) -> None:
    for how in GOALS_S:
        _fail_over(cluster, how)


def _fail_over(cluster: ClusterProcesses, how: str) -> None:
    controller = cluster.controller()
    is_controller = how == "killed, led Raft too"
    leader = next(each for each in EVERYBODY if (each == controller) == is_controller)
    topic = f"t-{how.split(',')[0]}-{leader}"
    create_on(cluster, topic, [leader, *(each for each in EVERYBODY if each != leader)])
    # A client waits for a silent node for a minute by default, however soon another one leads.
    patience = {"socket.timeout.ms": 1_000, "request.timeout.ms": 1_000}
    load = Load(cluster.bootstrap, topic, "p", 1, settings=patience if how == "silent" else {})
    load.start()
    eventually(lambda: len(load.acked) > 200, "the first records")
    load.pause()
    before = len(load.acked)
    go(cluster, how, leader)
    other = next(each for each in EVERYBODY if each != leader)
    led_s = eventually(
        lambda: leaders(cluster, topic, other)[:1] not in ([], [-1], [leader]), "another leads"
    )
    eventually(lambda: len(load.acked) > before + 200, "records go on")
    time.sleep(STAYS_S)  # A second gap would follow soon.
    gap_s = load.pause()
    come_back(cluster, how, leader)
    eventually(lambda: in_sync(cluster, topic, leader) == [EVERYBODY], "all in sync")
    load.stop()
    print(f"{how}: another leads after {led_s:.2f} s, gap {gap_s:.2f} s (goal {GOALS_S[how]:g} s)")
    assert not load.failed
    check_records(read_back(cluster.bootstrap, topic, 1), load.acked)


class IdempotentProducer:
    """Sends batches with the sequences that the test says, to whoever leads."""

    def __init__(self, cluster: ClusterProcesses, topic: str) -> None:
        self._cluster, self._topic = cluster, topic
        wire = Wire(f"127.0.0.1:{cluster.ports[1]}")
        asked = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
        self._id = wire.ask(INIT_PRODUCER_ID, 4, asked).producer_id
        wire.close()
        assert self._id >= 0

    def send(self, to: int, sequence: int) -> Any:
        """The answer, once the node leads and has enough replicas."""
        found: list[Any] = []

        def is_answered() -> bool:
            found[:] = [self._ask(to, sequence)]
            return found[0].error_code not in (
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                ErrorCode.NOT_ENOUGH_REPLICAS,
            )

        eventually(is_answered, f"node {to} leads")
        return found[0]

    def _ask(self, to: int, sequence: int) -> Any:
        record = Record(0, 1_000, None, b"%d" % sequence)
        data = build_batch([record], producer_id=self._id, producer_epoch=0, base_sequence=sequence)
        partition = PartitionProduceData(index=0, records=data)
        request = ProduceRequest(
            acks=-1,
            timeout_ms=10_000,
            topic_data=[TopicProduceData(name=self._topic, partition_data=[partition])],
        )
        wire = Wire(f"127.0.0.1:{self._cluster.ports[to]}", 20.0)
        try:
            return wire.ask(PRODUCE, 9, request).responses[0].partition_responses[0]
        finally:
            wire.close()


def test_the_next_leader_knows_what_a_producer_has_sent(cluster: ClusterProcesses) -> None:
    create_on(cluster, "t", [1, 2, 3])
    producer = IdempotentProducer(cluster, "t")
    offsets = [producer.send(1, sequence).base_offset for sequence in range(8)]
    assert offsets == list(range(8))
    cluster.kill(1)
    _check_repeats(producer, to=2, first=8)
    # Once more after all have died: from snapshots and logs.
    cluster.kill(2, 3)
    cluster.start()
    cluster.wait_for(EVERYBODY)
    eventually(lambda: in_sync(cluster, "t", 2) == [EVERYBODY], "all in sync")
    _check_repeats(producer, to=leaders(cluster, "t", 2)[0], first=9)
    # And after a clean restart of each.
    for node_id in EVERYBODY:
        cluster.stop(node_id)
        cluster.start(node_id)
        cluster.wait_for(EVERYBODY)
        eventually(lambda: in_sync(cluster, "t", 2) == [EVERYBODY], "all in sync")
    _check_repeats(producer, to=leaders(cluster, "t", 2)[0], first=10)
    found = read_back(cluster.bootstrap, "t", 1)[0]
    assert [value for _, value in found] == [str(n) for n in range(11)]
    cluster.stop()
    check_replicas(map(cluster.data_dir, EVERYBODY), "t", 1)


def _check_repeats(producer: IdempotentProducer, to: int, first: int) -> None:
    """The last five batches are known again, a gap is noticed, and the next one is taken."""
    for sequence in range(first - 5, first):
        answer = producer.send(to, sequence)
        assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, sequence)
    gap = producer.send(to, first + 1)
    assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producer.send(to, first).base_offset == first
