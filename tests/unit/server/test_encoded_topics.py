"""Encoded topics are what the image says, in every form, after every change."""

import pytest

from chronik.metadata.image import Image, id_text
from chronik.metadata.records import (
    BrokerRecord,
    BrokerStatus,
    PartitionLeadersRecord,
    PartitionRecord,
    TopicRecord,
    TopicRemovedRecord,
)
from chronik.protocol.apis import METADATA
from chronik.protocol.codec import decode, encode
from chronik.protocol.messages.metadata import MetadataResponse
from chronik.server.encoded_topics import EncodedTopics, described_topic

VERSIONS = (1, 12)
NO_OPERATIONS = -(2**31)


def topic_id(number: int) -> str:
    return id_text(number.to_bytes(16, "big"))


def broker(node_id: int, status: BrokerStatus = BrokerStatus.ONLINE) -> BrokerRecord:
    return BrokerRecord(
        node_id=node_id,
        epoch=node_id,
        incarnation_id="i",
        directory_id="d",
        host="h",
        port=1,
        status=status,
    )


def topic(number: int) -> list[TopicRecord | PartitionRecord]:
    partitions = [
        PartitionRecord(
            topic_id=topic_id(number),
            partition=index,
            replicas=(index + 1, 3 - index),
            isr=(index + 1,),
            leader=index + 1,
        )
        for index in range(2)
    ]
    return [TopicRecord(name=f"t{number}", topic_id=topic_id(number)), *partitions]


def answer(topics: object, version: int) -> MetadataResponse:
    flexible = METADATA.is_flexible(version)
    data = encode(MetadataResponse(brokers=(), topics=topics), version, flexible)
    return decode(MetadataResponse, data, version, flexible)


def check(cache: EncodedTopics, image: Image) -> None:
    for version in VERSIONS:
        while not cache.prepare(image, version, NO_OPERATIONS):
            pass
        found = answer(cache.topics(image, version, NO_OPERATIONS), version)
        plain = [
            described_topic(each, NO_OPERATIONS, image.online_ids) for each in image.topics.values()
        ]
        assert found == answer(plain, version)


@pytest.fixture
def image() -> Image:
    records = [broker(1), broker(2), *(each for n in range(1, 1_200) for each in topic(n))]
    return Image().apply(records)


def test_all_topics_in_slices(image: Image) -> None:
    cache = EncodedTopics()
    turns = 1
    while not cache.prepare(image, 12, NO_OPERATIONS):
        turns += 1
    assert turns == 3
    check(cache, image)


def test_every_change_is_seen(image: Image) -> None:
    cache = EncodedTopics()
    check(cache, Image())
    check(cache, image)
    leaders = PartitionLeadersRecord(
        topic_ids=(topic_id(7),), partitions=((0, 1),), leaders=((-1, 1),)
    )
    for change in (
        topic(5_000),
        [TopicRemovedRecord(topic_id=topic_id(3))],
        [leaders],
        [broker(2, BrokerStatus.OFFLINE)],
    ):
        image = image.apply(change)
        check(cache, image)


def test_nothing_is_joined_again_while_no_topic_changes(image: Image) -> None:
    cache = EncodedTopics()
    check(cache, image)
    first = cache.topics(image, 12, NO_OPERATIONS)
    assert cache.topics(image, 12, NO_OPERATIONS) is first
    same_topics = image.apply([broker(1)])
    assert cache.topics(same_topics, 12, NO_OPERATIONS) is first
