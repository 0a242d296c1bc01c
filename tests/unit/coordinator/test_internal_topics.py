"""Internal topics get the replicas that there are brokers for."""

from chronik.config.effective import BrokerConfig
from chronik.coordinator.internal_topics import CONSUMER_OFFSETS, raised
from chronik.metadata.image import Image, id_text
from chronik.metadata.records import BrokerRecord, BrokerStatus, PartitionRecord, TopicRecord

CONFIG = BrokerConfig(static={}, cluster={}, broker={})
TOPIC_ID = id_text((1).to_bytes(16))


def image_of(*replicas, broker_count=3, resting=(), **fields):
    brokers = [
        BrokerRecord(
            node_id=node_id,
            epoch=node_id,
            incarnation_id="i",
            directory_id="d",
            host="h",
            port=1,
            status=BrokerStatus.MAINTENANCE if node_id in resting else BrokerStatus.ONLINE,
        )
        for node_id in range(1, broker_count + 1)
    ]
    partitions = [
        PartitionRecord(
            topic_id=TOPIC_ID, partition=n, replicas=ids, isr=ids, leader=ids[0], **fields
        )
        for n, ids in enumerate(replicas)
    ]
    return Image().apply(
        [*brokers, TopicRecord(name=CONSUMER_OFFSETS, topic_id=TOPIC_ID), *partitions]
    )


def wanted(image, config=CONFIG):
    command = raised(image, config)
    return None if command is None else [each.replicas for each in command.reassignments]


def test_one_replica_becomes_three_and_the_leader_stays_first():
    found = wanted(image_of((1,), (1,), broker_count=4))
    assert [ids[0] for ids in found] == [1, 1]
    assert [len(set(ids)) for ids in found] == [3, 3]


def test_there_are_no_more_replicas_than_brokers():
    assert wanted(image_of((1,), broker_count=2)) == [(1, 2)]
    assert wanted(image_of((1,), broker_count=1)) is None


def test_what_is_enough_or_moves_already_is_left_alone():
    assert wanted(image_of((1, 2, 3))) is None
    assert wanted(image_of((1, 2), adding_replicas=(2,))) is None


def test_who_rests_gets_none():
    assert wanted(image_of((1,), broker_count=3, resting=(3,))) == [(1, 2)]


def test_the_setting_is_the_most():
    two = BrokerConfig(static={"offsets.topic.replication.factor": "2"}, cluster={}, broker={})
    assert [len(ids) for ids in wanted(image_of((1,), broker_count=4), two)] == [2]


def test_without_the_topic_there_is_nothing_to_do():
    assert raised(Image(), CONFIG) is None
