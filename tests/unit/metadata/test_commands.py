"""Any sequence of commands keeps the rules of partitions, and its log gives the same image."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from chronik.config.effective import BrokerConfig
from chronik.metadata.commands import (
    AssignPartition,
    Command,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    InSyncChange,
    RegisterBroker,
    RemoveBroker,
    SetPartitionLeader,
    UpdateBrokerStatus,
    UpdateISR,
)
from chronik.metadata.controller import decide
from chronik.metadata.image import Image, id_text
from chronik.metadata.records import (
    NO_LEADER,
    BrokerStatus,
    PartitionRecord,
    decode_records,
    encode_records,
)
from chronik.protocol.errors import KafkaError

CONFIG = BrokerConfig(static={}, cluster={}, broker={})
NODES = range(1, 5)
node_ids = st.sampled_from(NODES)
node_lists = st.lists(node_ids, min_size=1, max_size=4, unique=True)


def topic_id(number: int) -> str:
    return id_text(number.to_bytes(16))


@st.composite
def commands(draw: st.DrawFn, image: Image, step: int) -> Command:
    """A command that may be right: epochs are mostly those of the image."""
    kind = draw(st.sampled_from(["register", "status", "status", "isr", "isr", "other"]))
    node_id = draw(node_ids)
    broker = image.brokers.get(node_id)
    epoch = 0 if broker is None else broker.epoch
    if kind == "register" or broker is None:
        return RegisterBroker(
            node_id=node_id,
            incarnation_id=draw(st.sampled_from(["i", f"i{step}"])),
            directory_id="d",
            host="h",
            port=1,
        )
    if kind == "status":
        status = draw(st.sampled_from(BrokerStatus))
        return UpdateBrokerStatus(node_id=node_id, broker_epoch=epoch, status=status)
    partitions = list(image.partitions())
    if kind == "isr" and partitions:
        return draw(_partition_commands(image, draw(st.sampled_from(partitions))))
    return draw(_topic_commands(node_id))


@st.composite
def _partition_commands(draw: st.DrawFn, image: Image, partition: PartitionRecord) -> Command:
    where: dict[str, Any] = {"topic_id": partition.topic_id, "partition": partition.partition}
    match draw(st.integers(0, 4)):
        case 0:
            return AssignPartition(replicas=tuple(draw(node_lists)), **where)
        case 1:
            leader_epoch = partition.leader_epoch
            return SetPartitionLeader(leader=draw(node_ids), leader_epoch=leader_epoch, **where)
        case _:
            leader = image.brokers.get(partition.leader)
            followers = draw(st.sets(st.sampled_from(partition.replicas)))
            change = InSyncChange(
                isr=tuple(followers | {partition.leader}),
                leader_epoch=partition.leader_epoch,
                partition_epoch=partition.partition_epoch,
                broker_epochs={each.node_id: each.epoch for each in image.brokers.values()},
                **where,
            )
            return UpdateISR(
                node_id=partition.leader,
                broker_epoch=0 if leader is None else leader.epoch,
                changes=(change,),
            )


@st.composite
def _topic_commands(draw: st.DrawFn, node_id: int) -> Command:
    number = draw(st.integers(0, 3))
    match draw(st.integers(0, 6)):
        case 0:
            return DeleteTopic(topic_id=topic_id(number))
        case 1:
            return CreatePartitions(name=f"t{number}", count=draw(st.integers(1, 6)))
        case 2:
            return RemoveBroker(node_id=node_id, accepts_loss=draw(st.booleans()))
        case 3:
            assignments = {0: draw(node_lists)}
            return CreateTopic(
                name=f"t{number}", topic_id=topic_id(number), assignments=assignments
            )
        case _:
            return CreateTopic(
                name=f"t{number}",
                topic_id=topic_id(number),
                partition_count=draw(st.integers(1, 4)),
                replication_factor=draw(st.integers(1, 3)),
            )


def check(old: Image, new: Image) -> None:
    for partition in new.partitions():
        where = f"{partition}"
        assert partition.isr or (partition.leader == NO_LEADER and not partition.elr), where
        assert set(partition.isr) <= set(partition.replicas), where
        assert len(set(partition.replicas)) == len(partition.replicas), where
        if partition.leader == NO_LEADER:
            assert not new.online_ids.intersection(partition.isr), where
        else:
            assert partition.leader in partition.isr, where
            assert partition.leader in new.online_ids, where
        gone = set(partition.isr) - new.online_ids
        assert not gone or len(partition.isr) == 1, where
    for name, topic in old.topics.items():
        same = new.topics.get(name)
        if same is not None and same.id == topic.id:
            for before, after in zip(topic.partitions, same.partitions, strict=False):
                check_epochs(before, after)
    assert new.partition_count == len(list(new.partitions()))
    assert new.online_ids or not new.brokers


def check_epochs(before: PartitionRecord, after: PartitionRecord) -> None:
    assert after.leader_epoch >= before.leader_epoch
    assert after.partition_epoch >= before.partition_epoch
    if after != before:
        assert after.partition_epoch > before.partition_epoch
    if after.leader != before.leader:
        assert after.leader_epoch > before.leader_epoch


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_commands_keep_the_rules_and_the_log_gives_the_image(data: st.DataObject) -> None:
    image, replayed, written = Image(), Image(), 0
    for step in range(data.draw(st.integers(5, 40))):
        command = data.draw(commands(image, step))
        try:
            decision = decide(image, command, CONFIG, next_index=step + 1)
        except KafkaError:
            continue
        encoded = encode_records(decision.records)
        assert decode_records(encoded) == list(decision.records)
        after = image.apply(decision.records)
        check(image, after)
        replayed = replayed.apply(decode_records(encoded))
        assert replayed == after
        image = after
        written += bool(decision.records)
    assert written
    assert Image().apply(decode_records(encode_records(image.to_records()))) == image
