"""Zombies: clients that were given up and do not know it. Each is refused, with the right code.

With stock clients first: an old producer, a member that slept through its session, a static member
that was replaced. Then on the wire, where the codes can be told apart.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from chronik.protocol import apis, coordinator_apis
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from chronik.protocol.messages.groups import (
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from chronik.protocol.messages.offset_commits import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from chronik.protocol.messages.producer_ids import InitProducerIdRequest
from chronik.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from chronik.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from chronik.testing import Broker

TIMEOUT_S = 20.0
SETTINGS = {
    "group.min.session.timeout.ms": 500,
    "group.consumer.min.session.timeout.ms": 500,
    "group.consumer.session.timeout.ms": 1_000,
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.heartbeat.interval.ms": 200,
}


@pytest.fixture
def broker() -> Iterator[Broker]:
    """Sessions are short: nobody likes to wait for the dead."""
    with Broker(SETTINGS) as running:
        yield running


@pytest.fixture
def wire(broker: Broker, connect: Any) -> Any:
    """A connection, and the coordinators of group g and transaction tx are there."""
    opened = connect(broker)
    for key_type, key in ((0, "g"), (1, "tx")):
        request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
        (found,) = opened.ask(coordinator_apis.FIND_COORDINATOR, 4, request).coordinators
        assert found.error_code == ErrorCode.NONE
    create(opened, "in")
    create(opened, "out")
    return opened


def create(wire: Any, name: str) -> bytes:
    topic = CreatableTopic(
        name=name, num_partitions=1, replication_factor=1, assignments=(), configs=()
    )
    response = wire.ask(apis.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[topic]))
    assert response.topics[0].error_code == ErrorCode.NONE
    return bytes(response.topics[0].topic_id)


def values(broker: Broker, topic: str) -> list[bytes | None]:
    return [record.value for record in broker.topic(topic).records]


# Stock clients.


def producer_of(broker: Broker, transactional_id: str | None = None) -> Producer:
    settings = {"bootstrap.servers": broker.bootstrap, "log_level": 0}
    if transactional_id is None:
        return Producer(settings)
    producer = Producer(settings | {"transactional.id": transactional_id})
    producer.init_transactions(TIMEOUT_S)
    return producer


def consumer_of(broker: Broker, protocol: str = "classic", **fields: Any) -> Consumer:
    settings: dict[str, Any] = {"bootstrap.servers": broker.bootstrap, "group.id": "g"}
    settings |= {"enable.auto.commit": False, "auto.offset.reset": "earliest", "log_level": 0}
    settings["group.protocol"] = protocol
    if protocol == "classic":
        settings |= {"session.timeout.ms": 1_000, "heartbeat.interval.ms": 200}
    return Consumer(settings | {key.replace("_", "."): value for key, value in fields.items()})


def test_the_first_of_two_producers_is_fenced(broker: Broker) -> None:
    first = producer_of(broker, "tx")
    first.begin_transaction()
    first.produce("out", b"of a zombie")
    first.flush(TIMEOUT_S)
    second = producer_of(broker, "tx")
    second.begin_transaction()
    second.produce("out", b"of the living")
    second.commit_transaction(TIMEOUT_S)
    with pytest.raises(KafkaException) as refused:
        first.commit_transaction(TIMEOUT_S)
    error = refused.value.args[0]
    assert error.fatal()
    assert error.code() in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
    assert values(broker, "out") == [b"of the living"]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_that_slept_through_its_session(broker: Broker, wire: Any, protocol: str) -> None:
    before = producer_of(broker)
    before.produce("in", b"1", partition=0)
    assert before.flush(TIMEOUT_S) == 0
    command = [sys.executable, str(Path(__file__).parent / "sleeper.py"), broker.bootstrap]
    sleeper = subprocess.Popen(
        [*command, "g", "sleeper", protocol], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert sleeper.stdout is not None
    assert sleeper.stdin is not None
    try:
        assert sleeper.stdout.readline() == b"holding\n"
        sleeper.send_signal(signal.SIGSTOP)
        _take_over(broker, protocol)
        sleeper.send_signal(signal.SIGCONT)
        sleeper.stdin.write(b"wake up\n")
        sleeper.stdin.flush()
        answers = json.loads(sleeper.stdout.readline())
    finally:
        sleeper.kill()
        sleeper.wait()
        sleeper.stdout.close()
        sleeper.stdin.close()
    # Whether its client has noticed by then makes a difference, but not to the outcome.
    assert answers["commit"] in (
        "UNKNOWN_MEMBER_ID",
        "ILLEGAL_GENERATION",
        "STALE_MEMBER_EPOCH",
        "_NO_OFFSET",
    )
    assert answers["send_offsets"] in ("UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION")
    assert answers["commit_transaction"] != "OK"
    assert answers["abort_transaction"] == "OK"
    assert committed(wire) == 7
    assert values(broker, "out") == [b"of the living"]


def _take_over(broker: Broker, protocol: str) -> None:
    """Another member gets the partition once the sleeper's session is over, and goes on."""
    consumer = consumer_of(broker, protocol)
    consumer.subscribe(["in"])
    message = consumer.poll(TIMEOUT_S)
    assert message is not None
    assert message.value() == b"1"
    producer = producer_of(broker, "living")
    producer.begin_transaction()
    producer.produce("out", b"of the living", partition=0)
    # An offset that the sleeper would not come to: it shows whose commit counts.
    offsets = [TopicPartition("in", 0, 7)]
    producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata())
    producer.commit_transaction(TIMEOUT_S)
    consumer.close()


def test_a_static_member_that_was_replaced(broker: Broker, wire: Any) -> None:
    first = consumer_of(broker, group_instance_id="i")
    first.subscribe(["in"])
    while not first.assignment():
        first.poll(0.1)
    second = consumer_of(broker, group_instance_id="i")
    second.subscribe(["in"])
    while not second.assignment():
        second.poll(0.1)
    error = None
    while error is None:
        message = first.poll(0.1)
        error = message.error() if message is not None else None
    assert error.code() in (KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID)
    assert "fenced" in error.str().lower()
    with pytest.raises(KafkaException):
        first.commit(offsets=[TopicPartition("in", 0, 1)], asynchronous=False)
    second.commit(offsets=[TopicPartition("in", 0, 7)], asynchronous=False)
    assert committed(wire) == 7
    first.close()
    second.close()


# On the wire.


class Member:
    """A member of group g, on a connection of its own."""

    def __init__(self, wire: Any, instance: str | None = None) -> None:
        self.wire = wire
        self.member_id, self.generation_id, self.instance = "", -1, instance

    def send_join(self) -> None:
        request = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        self.wire.send(coordinator_apis.JOIN_GROUP, self._version(3, 5), request)

    def joined(self) -> None:
        _, answer = self.wire.receive(coordinator_apis.JOIN_GROUP, self._version(3, 5))
        assert answer.error_code == ErrorCode.NONE
        self.member_id, self.generation_id = answer.member_id, answer.generation_id

    def _version(self, dynamic: int, static: int) -> int:
        return dynamic if self.instance is None else static

    def _who(self) -> dict[str, Any]:
        return {"member_id": self.member_id, "group_instance_id": self.instance}

    def sync(self) -> int:
        given = [SyncGroupRequestAssignment(member_id=self.member_id, assignment=b"x")]
        request = SyncGroupRequest(
            group_id="g", generation_id=self.generation_id, assignments=given, **self._who()
        )
        return int(self.wire.ask(coordinator_apis.SYNC_GROUP, 3, request).error_code)

    def heartbeat(self) -> int:
        request = HeartbeatRequest(group_id="g", generation_id=self.generation_id, **self._who())
        return int(self.wire.ask(coordinator_apis.HEARTBEAT, 3, request).error_code)

    def leave(self) -> int:
        gone = MemberIdentity(member_id=self.member_id, group_instance_id=self.instance)
        request = LeaveGroupRequest(group_id="g", members=[gone])
        return int(self.wire.ask(coordinator_apis.LEAVE_GROUP, 3, request).members[0].error_code)

    def commit(self) -> int:
        return commit(self.wire, self.member_id, self.generation_id, self.instance)

    def commit_in_transaction(self) -> int:
        return commit_in_transaction(self.wire, self.member_id, self.generation_id, self.instance)

    def answers(self) -> dict[int, None]:
        """The codes that all it may try is answered with; only one, if all is right."""
        tries = (self.commit, self.commit_in_transaction, self.heartbeat, self.sync)
        return dict.fromkeys(attempt() for attempt in tries)


def commit(wire: Any, member_id: str, generation_id: int, instance: str | None = None) -> int:
    each = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_metadata=""
    )
    request = OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=generation_id,
        member_id=member_id,
        group_instance_id=instance,
        topics=[OffsetCommitRequestTopic(name="in", partitions=[each])],
    )
    answer = wire.ask(coordinator_apis.OFFSET_COMMIT, 9, request)
    return int(answer.topics[0].partitions[0].error_code)


def commit_in_transaction(
    wire: Any, member_id: str, generation_id: int, instance: str | None = None
) -> int:
    """What a producer of its own is told, that names the member (KIP-447)."""
    init = InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=60_000)
    given = wire.ask(apis.INIT_PRODUCER_ID, 4, init)
    assert given.error_code == ErrorCode.NONE
    stamp = {"producer_id": given.producer_id, "producer_epoch": given.producer_epoch}
    add = AddOffsetsToTxnRequest(transactional_id="tx", group_id="g", **stamp)
    added = wire.ask(coordinator_apis.ADD_OFFSETS_TO_TXN, 3, add)
    assert added.error_code == ErrorCode.NONE
    each = TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_metadata=""
    )
    request = TxnOffsetCommitRequest(
        transactional_id="tx",
        group_id="g",
        generation_id=generation_id,
        member_id=member_id,
        group_instance_id=instance,
        topics=[TxnOffsetCommitRequestTopic(name="in", partitions=[each])],
        **stamp,
    )
    answer = wire.ask(coordinator_apis.TXN_OFFSET_COMMIT, 3, request)
    return int(answer.topics[0].partitions[0].error_code)


def committed(wire: Any) -> int | None:
    asked = OffsetFetchRequestGroup(group_id="g", topics=None)
    answer = wire.ask(coordinator_apis.OFFSET_FETCH, 8, OffsetFetchRequest(groups=[asked]))
    topics = answer.groups[0].topics
    return topics[0].partitions[0].committed_offset if topics else None


def test_an_old_generation(broker: Broker, wire: Any, connect: Any) -> None:
    zombie = Member(wire)
    zombie.send_join()
    zombie.joined()
    assert zombie.sync() == ErrorCode.NONE
    assert zombie.commit_in_transaction() == ErrorCode.NONE
    other = Member(connect(broker))
    other.send_join()
    while zombie.heartbeat() != ErrorCode.REBALANCE_IN_PROGRESS:
        pass
    old_generation_id = zombie.generation_id
    zombie.send_join()
    zombie.joined()
    other.joined()
    assert zombie.sync() == other.sync() == ErrorCode.NONE
    zombie.generation_id = old_generation_id
    assert zombie.answers() == {ErrorCode.ILLEGAL_GENERATION: None}
    assert committed(wire) is None


def test_a_member_that_is_none_any_more(broker: Broker, wire: Any, connect: Any) -> None:
    zombie = Member(wire)
    zombie.send_join()
    zombie.joined()
    assert zombie.sync() == ErrorCode.NONE
    assert zombie.leave() == ErrorCode.NONE
    other = Member(connect(broker))
    other.send_join()
    other.joined()
    assert other.sync() == ErrorCode.NONE
    assert zombie.answers() == {ErrorCode.UNKNOWN_MEMBER_ID: None}
    assert other.commit() == ErrorCode.NONE


def test_a_replaced_static_member(broker: Broker, wire: Any, connect: Any) -> None:
    zombie, successor = Member(wire, "i"), Member(connect(broker), "i")
    for member in (zombie, successor):
        member.send_join()
        member.joined()
        assert member.sync() == ErrorCode.NONE
    assert zombie.member_id != successor.member_id
    assert zombie.answers() == {ErrorCode.FENCED_INSTANCE_ID: None}
    assert zombie.leave() == ErrorCode.FENCED_INSTANCE_ID
    assert successor.answers() == {ErrorCode.NONE: None}


class ConsumerMember:
    """A member of group g by KIP-848."""

    def __init__(self, wire: Any, member_id: str) -> None:
        self.wire, self.member_id, self.epoch = wire, member_id, 0

    def heartbeat(self) -> Any:
        fields: dict[str, Any] = {}
        if self.epoch == 0:
            fields = {"subscribed_topic_names": ["in"], "rebalance_timeout_ms": 10_000}
            fields["topic_partitions"] = []
        request = ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id=self.member_id,
            member_epoch=self.epoch,
            **fields,
        )
        return self.wire.ask(coordinator_apis.CONSUMER_GROUP_HEARTBEAT, 1, request)

    def beat(self) -> None:
        answer = self.heartbeat()
        assert answer.error_code == ErrorCode.NONE
        self.epoch = answer.member_epoch


def test_an_old_member_epoch(wire: Any) -> None:
    zombie, other = ConsumerMember(wire, "zombie"), ConsumerMember(wire, "other")
    zombie.beat()
    old_epoch = zombie.epoch
    assert commit(wire, "zombie", old_epoch) == ErrorCode.NONE
    zombie.epoch = -1
    zombie.beat()
    other.beat()
    assert commit(wire, "zombie", old_epoch) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit_in_transaction(wire, "zombie", old_epoch) == ErrorCode.UNKNOWN_MEMBER_ID
    zombie.epoch = 0
    zombie.beat()  # It is a member again; the partition is the other's.
    assert zombie.epoch > other.epoch > old_epoch
    assert commit(wire, "zombie", old_epoch) == ErrorCode.STALE_MEMBER_EPOCH
    assert commit_in_transaction(wire, "zombie", old_epoch) == ErrorCode.ILLEGAL_GENERATION
    zombie.epoch = old_epoch
    assert zombie.heartbeat().error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert commit(wire, "other", other.epoch) == ErrorCode.NONE
