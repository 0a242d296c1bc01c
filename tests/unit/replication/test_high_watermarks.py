"""What is written down as committed outlives partitions that nobody uses."""

from chronik.metadata.image import Topic, id_text
from chronik.metadata.records import TopicRecord
from chronik.replication.high_watermarks import gathered

ORDERS = Topic(TopicRecord(name="orders", topic_id=id_text(bytes(16))), bytes(16))
NAME = id_text(ORDERS.id)


def test_what_is_known_now_counts() -> None:
    assert gathered([(NAME, 0, 7)], {NAME: {0: 5, 1: 9}}, []) == {NAME: {0: 7}}


def test_what_was_saved_of_partitions_not_used_since_stays() -> None:
    saved = {NAME: {0: 5, 1: 9}}
    assert gathered([(NAME, 0, 7)], saved, [(ORDERS, 1), (ORDERS, 2)]) == {NAME: {0: 7, 1: 9}}
