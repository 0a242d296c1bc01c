"""Counts of how partitions are doing."""

from chronik.metadata.health import below_factor, health
from chronik.metadata.image import Image, id_text
from chronik.metadata.records import NO_LEADER, PartitionRecord, TopicRecord

TOPIC_ID = id_text((1).to_bytes(16))


def image_of(*partitions: PartitionRecord) -> Image:
    return Image().apply([TopicRecord(name="t", topic_id=TOPIC_ID), *partitions])


def partition(index: int, replicas: tuple[int, ...], isr: tuple[int, ...], leader: int, **moves):
    return PartitionRecord(
        topic_id=TOPIC_ID, partition=index, replicas=replicas, isr=isr, leader=leader, **moves
    )


def test_each_trouble_is_counted_once():
    image = image_of(
        partition(0, (1, 2, 3), (1, 2, 3), 1),
        partition(1, (2, 3, 1), (3, 1), 3),
        partition(2, (3, 1, 2), (3,), 3),
        partition(3, (1, 2, 3), (1,), NO_LEADER),
        # A replica that is on its way is not missed yet.
        partition(4, (4, 1, 2), (1, 2), 1, adding_replicas=(4,), removing_replicas=(2,)),
        partition(5, (1,), (1,), 1),
    )
    found = health(image, lambda name: 2)
    assert found.partition_count == 6
    assert found.under_replicated_count == 3
    assert found.under_min_isr_count == 2
    assert found.offline_count == 1
    assert found.moving_count == 1
    assert found.not_preferred_count == 3
    assert found.leaders == {1: 3, 3: 2}
    assert found.replicas == {1: 6, 2: 5, 3: 4, 4: 1}


def test_skew_is_what_the_busiest_leads_beyond_its_share():
    even = health(image_of(partition(0, (1, 2), (1, 2), 1), partition(1, (2, 1), (2, 1), 2)), _one)
    assert even.leader_skew == 0
    skewed = health(image_of(partition(0, (1, 2), (1, 2), 1), partition(1, (1, 2), (1,), 1)), _one)
    assert skewed.leader_skew == 1
    assert health(Image(), _one).leader_skew == 0


def _one(name: str) -> int:
    return 1


def test_topics_with_too_few_replicas_are_named():
    image = image_of(partition(0, (1, 2, 3), (1,), 1), partition(1, (1, 2), (1, 2), 1))
    assert below_factor(image, [("t", 3), ("u", 3)]) == ["t"]
    assert below_factor(image, [("t", 2)]) == []
