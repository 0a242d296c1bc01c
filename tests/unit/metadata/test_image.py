"""The image is what its records say, however they reach it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronik.metadata.image import Image, id_bytes, id_text
from chronik.metadata.placement import place, rack_ring
from chronik.metadata.records import (
    BrokerRecord,
    ConfigRecord,
    LeaderEpochsRecord,
    PartitionRecord,
    ProducerIdsRecord,
    Record,
    TopicRecord,
    TopicRemovedRecord,
    UndecodableRecord,
    decode_records,
    encode_records,
)


def broker(node_id: int, rack: str | None = None) -> BrokerRecord:
    return BrokerRecord(
        node_id=node_id, epoch=1, incarnation_id="i", directory_id="d", host="h", port=1, rack=rack
    )


def topic(number: int, partitions: int) -> list[Record]:
    topic_id = id_text(number.to_bytes(16))
    records: list[Record] = [TopicRecord(name=f"topic.{number}", topic_id=topic_id)]
    records += [
        PartitionRecord(topic_id=topic_id, partition=index, replicas=(1, 2), isr=(1,), leader=1)
        for index in range(partitions)
    ]
    return records


@st.composite
def histories(draw: st.DrawFn) -> list[list[Record]]:
    """Entries that a controller could have logged."""
    alive: set[int] = set()
    entries: list[list[Record]] = [[broker(1)]]
    for number in range(draw(st.integers(1, 8))):
        alive.add(number)
        entries.append(topic(number, draw(st.integers(1, 4))))
        if draw(st.booleans()):
            entries.append(
                [
                    ConfigRecord(
                        resource="topic",
                        resource_name=f"topic.{number}",
                        name="retention.ms",
                        value=draw(st.sampled_from(["1", "2", None])),
                    )
                ]
            )
        if draw(st.booleans()):
            entries.append([broker(1), LeaderEpochsRecord(node_id=1)])
        if draw(st.booleans()):
            gone = draw(st.sampled_from(sorted(alive)))
            alive.discard(gone)
            entries.append([TopicRemovedRecord(topic_id=id_text(gone.to_bytes(16)))])
        if not alive:
            alive.add(number + 100)
            entries.append(topic(number + 100, 1))
    entries.append([ProducerIdsRecord(node_id=1, next_producer_id=1000)])
    return entries


@given(histories(), st.data())
@settings(max_examples=60, deadline=None)
def test_replay_and_snapshot_give_the_live_image(
    entries: list[list[Record]], data: st.DataObject
) -> None:
    live = Image()
    for entry in entries:
        live = live.apply(entry)
    replayed = Image()
    cut = data.draw(st.integers(0, len(entries)))
    for entry in entries[:cut]:
        replayed = replayed.apply(decode_records(encode_records(entry)))
    replayed = Image().apply(decode_records(encode_records(replayed.to_records())))
    for entry in entries[cut:]:
        replayed = replayed.apply(decode_records(encode_records(entry)))
    assert replayed == live


def test_applying_leaves_the_old_image_as_it_was() -> None:
    before = Image().apply([broker(1), *topic(1, 2)])
    copy = Image().apply([broker(1), *topic(1, 2)])
    before.apply([*topic(2, 1), LeaderEpochsRecord(node_id=1)])
    assert before == copy


def test_a_broker_that_is_not_online_is_not_listed() -> None:
    offline = BrokerRecord(
        node_id=2, epoch=1, incarnation_id="i", directory_id="d", host="h", port=1, status="offline"
    )
    image = Image().apply([broker(3), offline, broker(1)])
    assert [each.node_id for each in image.online_brokers] == [1, 3]


def test_ids_are_written_as_kafkas_tools_write_them() -> None:
    assert id_text(bytes(16)) == "AAAAAAAAAAAAAAAAAAAAAA"
    assert id_bytes(id_text(bytes(range(16)))) == bytes(range(16))


def test_a_topic_with_a_partition_missing_is_a_broken_log() -> None:
    record = PartitionRecord(
        topic_id=id_text((1).to_bytes(16)), partition=5, replicas=(1,), isr=(1,), leader=1
    )
    with pytest.raises(AssertionError):
        Image().apply([*topic(1, 1), record])


def test_fields_of_a_newer_release_are_kept() -> None:
    data = encode_records([ProducerIdsRecord(node_id=1, next_producer_id=5)])
    newer = data.replace(b'"node_id":1', b'"node_id":1,"colour":"red"')
    (record,) = decode_records(newer)
    assert record == ProducerIdsRecord(node_id=1, next_producer_id=5, unknown={"colour": "red"})
    assert decode_records(encode_records([record])) == [record]
    assert b'"colour":"red"' in encode_records(Image().apply([record]).to_records())


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"[1]", b'[{"type":"no-such"}]', b'[{"node_id":1}]', b'[{"type":"broker"}]'],
)
def test_what_cannot_be_decoded_is_said(data: bytes) -> None:
    with pytest.raises(UndecodableRecord):
        decode_records(data)


def test_the_ring_alternates_between_racks() -> None:
    ring = rack_ring([broker(1, "a"), broker(2, "a"), broker(3, "b"), broker(4, "b")])
    assert ring == [1, 3, 2, 4]


@given(st.integers(1, 9), st.integers(1, 40), st.integers(0, 10**9), st.data())
def test_replicas_are_distinct_and_leaders_even(
    size: int, count: int, start: int, data: st.DataObject
) -> None:
    factor = data.draw(st.integers(1, size))
    placed = place(list(range(size)), 0, count, factor, start)
    assert all(len(set(replicas)) == factor for replicas in placed)
    leaders = [replicas[0] for replicas in placed]
    counts = [leaders.count(node_id) for node_id in range(size)]
    assert max(counts) - min(counts) <= 1
