"""The image is what its records say, however they reach it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronik.metadata.image import Image, id_bytes, id_text
from chronik.metadata.records import (
    BrokerRecord,
    BrokerRemovedRecord,
    BrokerStatus,
    ConfigRecord,
    LeaderEpochsRecord,
    PartitionLeadersRecord,
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
        node_id=2,
        epoch=1,
        incarnation_id="i",
        directory_id="d",
        host="h",
        port=1,
        status=BrokerStatus.OFFLINE,
    )
    image = Image().apply([broker(3), offline, broker(1)])
    assert [each.node_id for each in image.online_brokers] == [1, 3]


def test_replicas_of_brokers_that_are_gone_are_offline() -> None:
    image = Image().apply([broker(1), *topic(1, 2)])
    (first, _) = image.partitions()
    assert image.offline_replicas(first) == (2,)
    image = image.apply([broker(2)])
    assert image.offline_replicas(first) == ()
    image = image.apply([BrokerRemovedRecord(node_id=1)])
    assert image.offline_replicas(first) == (1,)


def test_partitions_are_counted() -> None:
    image = Image().apply([*topic(1, 2), *topic(2, 3)])
    assert image.partition_count == 5
    image = image.apply([topic(1, 2)[1], TopicRemovedRecord(topic_id=id_text((2).to_bytes(16)))])
    assert image.partition_count == 2


def test_leaders_of_many_partitions_are_one_record() -> None:
    one, two = (id_text(number.to_bytes(16)) for number in (1, 2))
    image = Image().apply([*topic(1, 3), *topic(2, 1)])
    record = PartitionLeadersRecord(
        topic_ids=(one, two), partitions=((0, 2), (0,)), leaders=((-1, 1), (2,)), isr_without=1
    )
    assert decode_records(encode_records([record])) == [record]
    image = image.apply([record])
    found = [
        (p.leader, p.leader_epoch, p.partition_epoch, p.isr)
        for name in ("topic.1", "topic.2")
        for p in image.topics[name].partitions
    ]
    assert found == [(-1, 1, 1, (1,)), (1, 0, 0, (1,)), (1, 0, 1, (1,)), (2, 1, 1, (1,))]


def test_a_log_of_the_release_before_is_replayed() -> None:
    data = (
        b'[{"type":"broker","node_id":1,"epoch":2,"incarnation_id":"i","directory_id":"d",'
        b'"host":"h","port":9092,"rack":null,"status":"online"},'
        b'{"type":"leader-epochs","node_id":1},'
        b'{"type":"topic","name":"t","topic_id":"AAAAAAAAAAAAAAAAAAAAAQ"},'
        b'{"type":"partition","topic_id":"AAAAAAAAAAAAAAAAAAAAAQ","partition":0,'
        b'"replicas":[1],"isr":[1],"leader":1,"leader_epoch":3,"partition_epoch":3},'
        b'{"type":"config","resource":"topic","resource_name":"t","name":"retention.ms",'
        b'"value":"1"},{"type":"producer-ids","node_id":1,"next_producer_id":1000}]'
    )
    image = Image().apply(decode_records(data))
    assert image.brokers[1].status is BrokerStatus.ONLINE
    assert image.online_ids == {1}
    assert image.topics["t"].partitions[0].leader_epoch == 3
    assert Image().apply(decode_records(encode_records(image.to_records()))) == image


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
