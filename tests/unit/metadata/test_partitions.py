"""Leaders and in-sync sets are changed by those who know the present ones, or not at all."""

from dataclasses import replace
from typing import Any

import pytest

from chronik.config.effective import BrokerConfig
from chronik.metadata.commands import (
    AssignPartition,
    Command,
    InSyncChange,
    LeaveInSync,
    SetPartitionLeader,
    UpdateISR,
)
from chronik.metadata.controller import Decision, decide
from chronik.metadata.image import Image, id_text
from chronik.metadata.records import BrokerRecord, BrokerStatus, PartitionRecord, TopicRecord
from chronik.protocol.errors import ErrorCode, KafkaError

CONFIG = BrokerConfig(static={}, cluster={}, broker={})
TOPIC_ID = id_text((1).to_bytes(16))


def broker(node_id: int, status: BrokerStatus = BrokerStatus.ONLINE) -> BrokerRecord:
    return BrokerRecord(
        node_id=node_id,
        epoch=node_id * 10,
        incarnation_id="i",
        directory_id="d",
        host="h",
        port=1,
        status=status,
    )


@pytest.fixture
def image() -> Image:
    """t-0 on 1 to 4: 1 leads, 2 is in sync, 3 is not, 4 is gone, 5 has nothing to do with it."""
    partition = PartitionRecord(
        topic_id=TOPIC_ID,
        partition=0,
        replicas=(1, 2, 3, 4),
        isr=(1, 2),
        leader=1,
        leader_epoch=5,
        partition_epoch=8,
    )
    brokers = [broker(1), broker(2), broker(3), broker(4, BrokerStatus.OFFLINE), broker(5)]
    return Image().apply([*brokers, TopicRecord(name="t", topic_id=TOPIC_ID), partition])


CHANGE = InSyncChange(
    topic_id=TOPIC_ID,
    partition=0,
    isr=(3, 2, 1),
    leader_epoch=5,
    partition_epoch=8,
    broker_epochs={3: 30},
)
UPDATE = UpdateISR(node_id=1, broker_epoch=10, changes=(CHANGE,))
LEADER = SetPartitionLeader(topic_id=TOPIC_ID, partition=0, leader=2, leader_epoch=5)
ASSIGN = AssignPartition(topic_id=TOPIC_ID, partition=0, replicas=(2, 5))


def run(image: Image, command: Command) -> tuple[PartitionRecord, Decision]:
    decision = decide(image, command, CONFIG, next_index=100)
    return image.apply(decision.records).topics["t"].partitions[0], decision


def update(**changes: Any) -> UpdateISR:
    return replace(UPDATE, changes=(replace(CHANGE, **changes),))


def refused(image: Image, command: Command) -> ErrorCode:
    with pytest.raises(KafkaError) as error:
        decide(image, command, CONFIG, next_index=100)
    return error.value.code


def test_a_replica_that_caught_up_is_added(image: Image) -> None:
    partition, decision = run(image, UPDATE)
    assert decision.response == (ErrorCode.NONE,)
    assert partition.isr == (1, 2, 3)
    assert (partition.leader_epoch, partition.partition_epoch) == (5, 9)


def test_a_replica_that_lags_is_taken_out(image: Image) -> None:
    partition, _ = run(image, update(isr=(1,), broker_epochs={}))
    assert (partition.isr, partition.partition_epoch) == ((1,), 9)


def test_only_the_present_process_of_the_leader_says_who_is_in_sync(image: Image) -> None:
    assert refused(image, replace(UPDATE, broker_epoch=9)) is ErrorCode.STALE_BROKER_EPOCH
    _, decision = run(image, replace(UPDATE, node_id=2, broker_epoch=20))
    assert decision.response == (ErrorCode.INVALID_REQUEST,)


def test_the_same_set_again_changes_nothing(image: Image) -> None:
    partition, decision = run(image, update(isr=(2, 1)))
    assert not decision.records
    assert decision.response == (ErrorCode.NONE,)
    assert partition == image.topics["t"].partitions[0]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"topic_id": id_text(bytes(16))}, ErrorCode.UNKNOWN_TOPIC_ID),
        ({"partition": 1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"leader_epoch": 4}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"leader_epoch": 6}, ErrorCode.NOT_CONTROLLER),
        ({"partition_epoch": 7}, ErrorCode.INVALID_UPDATE_VERSION),
        ({"partition_epoch": 9}, ErrorCode.NOT_CONTROLLER),
        ({"isr": ()}, ErrorCode.INVALID_REQUEST),
        ({"isr": (2, 3)}, ErrorCode.INVALID_REQUEST),
        ({"isr": (1, 1)}, ErrorCode.INVALID_REQUEST),
        ({"isr": (1, 5)}, ErrorCode.INVALID_REQUEST),
        ({"isr": (1, 4), "broker_epochs": {4: 40}}, ErrorCode.INELIGIBLE_REPLICA),
        ({"broker_epochs": {3: 29}}, ErrorCode.INELIGIBLE_REPLICA),
        ({"broker_epochs": {}}, ErrorCode.INELIGIBLE_REPLICA),
    ],
)
def test_an_in_sync_set_that_cannot_be_is_refused(
    image: Image, change: dict[str, object], code: ErrorCode
) -> None:
    other = update(partition_epoch=8, isr=(1,), broker_epochs={})
    both = replace(UPDATE, changes=(*update(**change).changes, *other.changes))
    partition, decision = run(image, both)
    assert decision.response == (code, ErrorCode.NONE), "each by itself"
    assert partition.isr == (1,)


def test_an_in_sync_replica_may_take_the_lead(image: Image) -> None:
    partition, decision = run(image, LEADER)
    assert decision.response == partition
    assert (partition.leader, partition.leader_epoch, partition.partition_epoch) == (2, 6, 9)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"leader": 1}, ErrorCode.ELECTION_NOT_NEEDED),
        ({"leader": 3}, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE),
        ({"leader": 4}, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE),
        ({"leader": -1}, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE),
        ({"leader_epoch": 4}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"leader_epoch": 6}, ErrorCode.NOT_CONTROLLER),
        ({"partition": -1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_a_leader_that_cannot_be_is_refused(
    image: Image, change: dict[str, object], code: ErrorCode
) -> None:
    assert refused(image, replace(LEADER, **change)) is code  # type: ignore[arg-type]


def test_a_preferred_leader_that_is_gone_is_said_as_such(image: Image) -> None:
    image = image.apply([broker(1, BrokerStatus.OFFLINE)])
    image = image.apply(decide(image, LEADER, CONFIG, next_index=100).records)
    back = replace(LEADER, leader=1, leader_epoch=6)
    assert refused(image, back) is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


def test_a_new_assignment_keeps_what_is_in_sync(image: Image) -> None:
    partition, _ = run(image, ASSIGN)
    assert (partition.replicas, partition.isr, partition.leader) == ((2, 5), (2,), 2)
    assert (partition.leader_epoch, partition.partition_epoch) == (6, 9)


def test_the_leader_stays_if_it_may(image: Image) -> None:
    partition, _ = run(image, replace(ASSIGN, replicas=(5, 2, 1)))
    # In a new epoch all the same: replica 3 is none any more, and must not be taken for one.
    assert (partition.leader, partition.isr, partition.leader_epoch) == (1, (2, 1), 6)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"replicas": ()}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"replicas": (1, 1)}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"replicas": (1, 9)}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"replicas": (3, 5)}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"partition": 7}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"topic_id": id_text(bytes(16))}, ErrorCode.UNKNOWN_TOPIC_ID),
    ],
)
def test_an_assignment_that_cannot_be_is_refused(
    image: Image, change: dict[str, object], code: ErrorCode
) -> None:
    assert refused(image, replace(ASSIGN, **change)) is code  # type: ignore[arg-type]


# A damaged replica.


def test_a_damaged_replica_stops_counting(image: Image) -> None:
    leave = LeaveInSync(node_id=2, broker_epoch=20, partitions=((TOPIC_ID, 0),))
    partition, _ = run(image, leave)
    assert (partition.leader, partition.isr, partition.leader_epoch) == (1, (1,), 6)


def test_a_damaged_leader_gives_way(image: Image) -> None:
    leave = LeaveInSync(node_id=1, broker_epoch=10, partitions=((TOPIC_ID, 0),))
    partition, _ = run(image, leave)
    assert (partition.leader, partition.isr, partition.leader_epoch) == (2, (2,), 6)
    again, decision = run(image.apply([partition]), leave)
    assert not decision.records
    assert again == partition


def test_the_only_replica_with_data_stays_damaged_or_not(image: Image) -> None:
    image = image.apply(run(image, update(isr=(1,), broker_epochs={}))[1].records)
    leave = LeaveInSync(node_id=1, broker_epoch=10, partitions=((TOPIC_ID, 0),))
    assert not run(image, leave)[1].records
