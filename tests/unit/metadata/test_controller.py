"""Given an image and a command, then records and a response, or an error code."""

from typing import Any

import pytest
from immutables import Map

from chronik.config.effective import BrokerConfig
from chronik.metadata.commands import (
    AllocateProducerIds,
    AlterConfig,
    Command,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    RegisterBroker,
    UpdateBrokerStatus,
)
from chronik.metadata.controller import Decision, decide
from chronik.metadata.image import Image, id_text
from chronik.metadata.records import (
    BrokerRecord,
    BrokerStatus,
    ConfigRecord,
    LeaderEpochsRecord,
    PartitionRecord,
    TopicRecord,
    TopicRemovedRecord,
)
from chronik.protocol.errors import ErrorCode, KafkaError

CONFIG = BrokerConfig(static={"num.partitions": "2"}, cluster={}, broker={})


def topic_id(number: int) -> str:
    return id_text(number.to_bytes(16))


def broker(node_id: int, incarnation_id: str = "i") -> RegisterBroker:
    return RegisterBroker(
        node_id=node_id, incarnation_id=incarnation_id, directory_id="d", host="h", port=9092
    )


def run(image: Image, command: Command) -> tuple[Image, Decision]:
    decision = decide(image, command, CONFIG, next_index=7)
    return image.apply(decision.records), decision


@pytest.fixture
def image() -> Image:
    return run(Image(), broker(1))[0]


@pytest.fixture
def three() -> Image:
    image = Image()
    for node_id in (1, 2, 3):
        image, _ = run(image, broker(node_id))
    return image


def refused(image: Image, command: Command) -> ErrorCode:
    with pytest.raises(KafkaError) as error:
        decide(image, command, CONFIG, next_index=7)
    return error.value.code


def test_a_registration_takes_its_index_as_epoch_and_begins_new_leader_epochs() -> None:
    decision = decide(Image(), broker(1), CONFIG, next_index=42)
    first, second = decision.records
    assert isinstance(first, BrokerRecord)
    assert first.epoch == 42
    assert second == LeaderEpochsRecord(node_id=1)


def test_registering_again_bumps_the_epoch_of_every_partition_it_led(image: Image) -> None:
    image, _ = run(image, CreateTopic(name="t", topic_id=topic_id(1), partition_count=3))
    image, _ = run(image, broker(1, "next"))
    assert [p.leader_epoch for p in image.topics["t"].partitions] == [1, 1, 1]
    assert [p.partition_epoch for p in image.topics["t"].partitions] == [1, 1, 1]


def test_a_topic_is_one_entry_with_its_partitions_and_settings(image: Image) -> None:
    command = CreateTopic(
        name="t", topic_id=topic_id(1), partition_count=2, configs={"retention.ms": "1000"}
    )
    _, decision = run(image, command)
    kinds = [type(record) for record in decision.records]
    assert kinds == [TopicRecord, PartitionRecord, PartitionRecord, ConfigRecord]


def test_counts_of_minus_one_take_the_defaults(image: Image) -> None:
    image, decision = run(image, CreateTopic(name="t", topic_id=topic_id(1)))
    assert len(decision.response.partitions) == 2
    assert image.topics["t"].partitions[0].replicas == (1,)


def test_creating_twice_with_one_id_is_the_first_success_again(image: Image) -> None:
    command = CreateTopic(name="t", topic_id=topic_id(1), partition_count=1)
    image, _ = run(image, command)
    _, again = run(image, command)
    assert again.records == ()
    assert again.response.name == "t"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"name": "t"}, ErrorCode.TOPIC_ALREADY_EXISTS),
        ({"name": ""}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"name": "."}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"name": ".."}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"name": "a b"}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"name": "ü"}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"name": "x" * 250}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"name": "a.b"}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"partition_count": 0}, ErrorCode.INVALID_PARTITIONS),
        ({"partition_count": -2}, ErrorCode.INVALID_PARTITIONS),
        ({"partition_count": 10_001}, ErrorCode.INVALID_PARTITIONS),
        ({"replication_factor": 0}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"replication_factor": 2}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"assignments": {0: [1]}}, ErrorCode.INVALID_REQUEST),
        (
            {"assignments": {1: [1]}, "partition_count": -1, "replication_factor": -1},
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ),
        (
            {"assignments": {0: [9]}, "partition_count": -1, "replication_factor": -1},
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ),
        (
            {"assignments": {0: [1, 1]}, "partition_count": -1, "replication_factor": -1},
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ),
        (
            {"assignments": {0: []}, "partition_count": -1, "replication_factor": -1},
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ),
        ({"configs": {"no.such": "1"}}, ErrorCode.INVALID_CONFIG),
        ({"configs": {"retention.ms": "soon"}}, ErrorCode.INVALID_CONFIG),
        ({"configs": {"cleanup.policy": "burn"}}, ErrorCode.INVALID_CONFIG),
    ],
)
def test_a_topic_that_cannot_be_is_refused(
    image: Image, change: dict[str, object], code: ErrorCode
) -> None:
    image, _ = run(image, CreateTopic(name="t", topic_id=topic_id(1), partition_count=1))
    image, _ = run(image, CreateTopic(name="a_b", topic_id=topic_id(2), partition_count=1))
    given = {"name": "new", "topic_id": topic_id(3), "partition_count": 1, "replication_factor": 1}
    assert refused(image, CreateTopic(**(given | change))) is code  # type: ignore[arg-type]


def test_an_assignment_places_the_replicas_as_given(three: Image) -> None:
    command = CreateTopic(name="t", topic_id=topic_id(1), assignments={0: [3, 1], 1: [2, 3]})
    image, _ = run(three, command)
    assert [p.replicas for p in image.topics["t"].partitions] == [(3, 1), (2, 3)]
    assert [p.leader for p in image.topics["t"].partitions] == [3, 2]


def test_uneven_assignments_are_refused(three: Image) -> None:
    command = CreateTopic(name="t", topic_id=topic_id(1), assignments={0: [3, 1], 1: [2]})
    assert refused(three, command) is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_leaders_are_spread_over_the_brokers(three: Image) -> None:
    command = CreateTopic(name="t", topic_id=topic_id(5), partition_count=9, replication_factor=3)
    image, _ = run(three, command)
    leaders = [p.leader for p in image.topics["t"].partitions]
    assert sorted(leaders) == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert all(sorted(p.replicas) == [1, 2, 3] for p in image.topics["t"].partitions)


def test_all_online_replicas_start_in_sync(three: Image) -> None:
    command = CreateTopic(name="t", topic_id=topic_id(5), partition_count=1, replication_factor=3)
    image, _ = run(three, command)
    (partition,) = image.topics["t"].partitions
    assert partition.isr == partition.replicas


def test_new_topics_avoid_brokers_that_are_gone_or_resting(three: Image) -> None:
    for node_id, status in ((1, BrokerStatus.OFFLINE), (2, BrokerStatus.MAINTENANCE)):
        three, _ = run(three, UpdateBrokerStatus(node_id=node_id, broker_epoch=7, status=status))
    image, _ = run(three, CreateTopic(name="t", topic_id=topic_id(1), partition_count=4))
    image, _ = run(image, CreatePartitions(name="t", count=6))
    assert {p.replicas for p in image.topics["t"].partitions} == {(3,)}
    too_many = CreateTopic(name="u", topic_id=topic_id(2), replication_factor=2)
    assert refused(image, too_many) is ErrorCode.INVALID_REPLICATION_FACTOR


def test_an_assignment_may_name_a_dead_broker_but_not_only_those(three: Image) -> None:
    offline = UpdateBrokerStatus(node_id=1, broker_epoch=7, status=BrokerStatus.OFFLINE)
    three, _ = run(three, offline)
    image, _ = run(three, CreateTopic(name="t", topic_id=topic_id(1), assignments={0: [1, 2]}))
    (partition,) = image.topics["t"].partitions
    assert (partition.leader, partition.isr) == (2, (2,))
    command = CreateTopic(name="u", topic_id=topic_id(2), assignments={0: [1]})
    assert refused(image, command) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert (
        refused(image, CreatePartitions(name="t", count=2, assignments=[[1]]))
        is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    )


def test_growing_continues_the_round_of_leaders(three: Image) -> None:
    image, _ = run(three, CreateTopic(name="t", topic_id=topic_id(1), partition_count=2))
    image, _ = run(image, CreateTopic(name="u", topic_id=topic_id(2), partition_count=2))
    image, _ = run(image, CreatePartitions(name="t", count=6))
    assert [p.leader for p in image.topics["t"].partitions] == [1, 2, 3, 1, 2, 3]


def test_growing_keeps_the_old_partitions(image: Image) -> None:
    image, _ = run(image, CreateTopic(name="t", topic_id=topic_id(1), partition_count=2))
    grown, _ = run(image, CreatePartitions(name="t", count=5))
    assert grown.topics["t"].partitions[:2] == image.topics["t"].partitions
    assert [p.partition for p in grown.topics["t"].partitions] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (CreatePartitions(name="t", count=2), ErrorCode.INVALID_PARTITIONS),
        (CreatePartitions(name="t", count=1), ErrorCode.INVALID_PARTITIONS),
        (CreatePartitions(name="u", count=3), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (
            CreatePartitions(name="t", count=4, assignments=[[1]]),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ),
        (
            CreatePartitions(name="t", count=3, assignments=[[2]]),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ),
        (DeleteTopic(topic_id=topic_id(9)), ErrorCode.UNKNOWN_TOPIC_ID),
        (
            AlterConfig(resource="topic", resource_name="u", changes={}),
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ),
        (
            AlterConfig(resource="topic", resource_name="t", changes={"no.such": "1"}),
            ErrorCode.INVALID_CONFIG,
        ),
        (
            AlterConfig(resource="broker", resource_name="1", changes={"num.partitions": "3"}),
            ErrorCode.INVALID_REQUEST,
        ),
        (AllocateProducerIds(node_id=1, broker_epoch=1), ErrorCode.STALE_BROKER_EPOCH),
    ],
)
def test_commands_that_cannot_be_are_refused(
    image: Image, command: Command, code: ErrorCode
) -> None:
    image, _ = run(image, CreateTopic(name="t", topic_id=topic_id(1), partition_count=2))
    assert refused(image, command) is code


def test_deleting_a_topic_takes_its_settings_and_its_name(image: Image) -> None:
    before = image
    command = CreateTopic(
        name="a.b", topic_id=topic_id(1), partition_count=1, configs={"retention.ms": "5"}
    )
    image, _ = run(image, command)
    image, decision = run(image, DeleteTopic(topic_id=topic_id(1)))
    assert decision.records == (TopicRemovedRecord(topic_id=topic_id(1)),)
    assert image == before


def test_altering_sets_and_removes_only_what_differs(image: Image) -> None:
    image, _ = run(image, CreateTopic(name="t", topic_id=topic_id(1), partition_count=1))
    change = AlterConfig(
        resource="topic", resource_name="t", changes={"retention.ms": "5", "segment.ms": "6"}
    )
    image, first = run(image, change)
    assert len(first.records) == 2
    _, again = run(image, change)
    assert again.records == []
    image, _ = run(
        image,
        AlterConfig(
            resource="topic", resource_name="t", changes={"segment.ms": "7"}, replace_all=True
        ),
    )
    assert image.config("topic", "t") == Map({"segment.ms": "7"})


def test_groups_have_settings_within_the_bounds_of_the_broker(image: Image) -> None:
    session, heartbeat = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"

    def change(**fields: Any) -> AlterConfig:
        return AlterConfig(resource="group", resource_name="g", **fields)

    image, _ = run(image, change(changes={session: "50000", heartbeat: " 6000"}))
    assert image.config("group", "g") == Map({session: "50000", heartbeat: "6000"})
    for changes in ({session: "60001"}, {heartbeat: "0"}, {"share.session.timeout.ms": "45000"}):
        with pytest.raises(KafkaError) as refused:
            run(image, change(changes=changes))
        assert refused.value.code is ErrorCode.INVALID_CONFIG
    assert list(Image().apply(image.to_records()).configs) == [("group", "g")]
    image, _ = run(image, change(changes={session: None}))
    assert image.config("group", "g") == Map({heartbeat: "6000"})
    image, _ = run(image, change(changes={}, replace_all=True))
    assert not image.configs


def test_producer_ids_come_in_blocks_that_never_overlap(image: Image) -> None:
    command = AllocateProducerIds(node_id=1, broker_epoch=7)
    image, first = run(image, command)
    image, second = run(image, command)
    assert first.response == range(1000)
    assert second.response == range(1000, 2000)
