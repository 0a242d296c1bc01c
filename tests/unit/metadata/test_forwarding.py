"""A command and its response are the same at the other end."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronik.metadata import commands
from chronik.metadata.commands import (
    AllocateProducerIds,
    AssignPartition,
    Command,
    CreateTopic,
    DeleteTopic,
    RegisterBroker,
    SetPartitionLeader,
    UpdateISR,
)
from chronik.metadata.forwarding import (
    decode_command,
    decode_response,
    encode_command,
    encode_response,
)
from chronik.metadata.image import Topic, id_bytes, id_text
from chronik.metadata.records import BrokerStatus, PartitionRecord, TopicRecord
from chronik.protocol.errors import ErrorCode, KafkaError

numbers = st.integers(-1, 2**63 - 1)
ids = st.binary(min_size=16, max_size=16).map(id_text)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
nodes = st.lists(st.integers(0, 2**31 - 1), max_size=4)
settings = st.dictionaries(texts, st.none() | texts, max_size=3)

COMMANDS: dict[type[Command], st.SearchStrategy[Any]] = {
    RegisterBroker: st.builds(
        RegisterBroker,
        node_id=numbers,
        incarnation_id=texts,
        directory_id=texts,
        host=texts,
        port=numbers,
        rack=st.none() | texts,
        internal_host=texts,
        internal_port=numbers,
    ),
    commands.UpdateBrokerStatus: st.builds(
        commands.UpdateBrokerStatus,
        node_id=numbers,
        broker_epoch=numbers,
        status=st.sampled_from(BrokerStatus),
    ),
    commands.SetMaintenance: st.builds(
        commands.SetMaintenance, node_id=numbers, in_maintenance=st.booleans()
    ),
    commands.SetDiskFull: st.builds(
        commands.SetDiskFull, node_id=numbers, broker_epoch=numbers, is_full=st.booleans()
    ),
    commands.RemoveBroker: st.builds(
        commands.RemoveBroker, node_id=numbers, accepts_loss=st.booleans()
    ),
    commands.LeaveInSync: st.builds(
        commands.LeaveInSync,
        node_id=numbers,
        broker_epoch=numbers,
        partitions=st.lists(st.tuples(ids, numbers), max_size=3).map(tuple),
    ),
    commands.ResignLeadership: st.builds(
        commands.ResignLeadership, node_id=numbers, broker_epoch=numbers
    ),
    AssignPartition: st.builds(
        AssignPartition, topic_id=ids, partition=numbers, replicas=nodes.map(tuple)
    ),
    SetPartitionLeader: st.builds(
        SetPartitionLeader, topic_id=ids, partition=numbers, leader=numbers, leader_epoch=numbers
    ),
    UpdateISR: st.builds(
        UpdateISR,
        node_id=numbers,
        broker_epoch=numbers,
        changes=st.lists(
            st.builds(
                commands.InSyncChange,
                topic_id=ids,
                partition=numbers,
                isr=nodes.map(tuple),
                leader_epoch=numbers,
                partition_epoch=numbers,
                broker_epochs=st.dictionaries(numbers, numbers, max_size=3),
            ),
            max_size=3,
        ).map(tuple),
    ),
    CreateTopic: st.builds(
        CreateTopic,
        name=texts,
        topic_id=ids,
        partition_count=numbers,
        replication_factor=numbers,
        assignments=st.dictionaries(numbers, nodes, max_size=3),
        configs=settings,
    ),
    DeleteTopic: st.builds(DeleteTopic, topic_id=ids),
    commands.CreatePartitions: st.builds(
        commands.CreatePartitions,
        name=texts,
        count=numbers,
        assignments=st.none() | st.lists(nodes, max_size=3),
    ),
    commands.AlterConfig: st.builds(
        commands.AlterConfig,
        resource=texts,
        resource_name=texts,
        changes=settings,
        replace_all=st.booleans(),
    ),
    commands.ReassignPartitions: st.builds(
        commands.ReassignPartitions,
        reassignments=st.lists(
            st.builds(
                commands.Reassignment,
                topic_id=ids,
                partition=numbers,
                replicas=st.none() | nodes.map(tuple),
            ),
            max_size=3,
        ).map(tuple),
        may_change_factor=st.booleans(),
    ),
    commands.ElectLeaders: st.builds(
        commands.ElectLeaders,
        partitions=st.none() | st.lists(st.tuples(ids, nodes.map(tuple)), max_size=3).map(tuple),
    ),
    commands.ElectUncleanLeaders: st.builds(
        commands.ElectUncleanLeaders,
        choices=st.lists(
            st.builds(
                commands.UncleanChoice,
                topic_id=ids,
                partition=numbers,
                leader=numbers,
                leader_epoch=numbers,
            ),
            max_size=3,
        ).map(tuple),
    ),
    AllocateProducerIds: st.builds(AllocateProducerIds, node_id=numbers, broker_epoch=numbers),
}


def test_every_command_has_its_strategy() -> None:
    assert set(COMMANDS) == set(Command.__args__)


@given(st.one_of(*COMMANDS.values()))
def test_a_command_is_the_same_at_the_other_end(command: Command) -> None:
    assert decode_command(encode_command(command)) == command


partitions = st.builds(
    PartitionRecord,
    topic_id=ids,
    partition=st.integers(0, 9),
    replicas=nodes.map(tuple),
    isr=nodes.map(tuple),
    leader=numbers,
    leader_epoch=numbers,
    partition_epoch=numbers,
    unknown=st.dictionaries(st.just("colour"), texts),
)


@st.composite
def topics(draw: st.DrawFn) -> Topic:
    topic_id = draw(ids)
    record = TopicRecord(name=draw(texts), topic_id=topic_id)
    return Topic(record, id_bytes(topic_id), tuple(draw(st.lists(partitions, max_size=3))))


@given(st.data())
def test_a_response_is_the_same_at_the_other_end(data: st.DataObject) -> None:
    command = data.draw(st.one_of(*COMMANDS.values()))
    match command:
        case CreateTopic():
            response: Any = data.draw(topics())
        case RegisterBroker():
            response = data.draw(numbers)
        case AllocateProducerIds():
            response = range(data.draw(numbers), data.draw(numbers))
        case AssignPartition() | SetPartitionLeader():
            response = data.draw(partitions)
        case UpdateISR():
            response = tuple(data.draw(st.lists(numbers, max_size=3)))
        case commands.ReassignPartitions():
            outcomes = st.lists(st.tuples(numbers, st.none() | texts), max_size=3)
            response = tuple(data.draw(outcomes))
        case commands.ElectLeaders() | commands.ElectUncleanLeaders():
            elected = st.builds(commands.Elected, ids, numbers, numbers, st.none() | texts)
            response = tuple(data.draw(st.lists(elected, max_size=3)))
        case _:
            response = None
    assert decode_response(command, encode_response(command, response)) == response


@given(st.binary(max_size=60))
def test_any_bytes_are_a_command_or_refused(data: bytes) -> None:
    with pytest.raises(KafkaError):
        decode_command(data)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b'["Dance",{}]', ErrorCode.UNSUPPORTED_VERSION),
        (b'["DeleteTopic",{}]', ErrorCode.INVALID_REQUEST),
        (b'["DeleteTopic",{"topic_id":5}]', ErrorCode.INVALID_REQUEST),
        (b'["DeleteTopic"]', ErrorCode.INVALID_REQUEST),
        (
            b'["UpdateBrokerStatus",{"node_id":1,"broker_epoch":1,"status":"tired"}]',
            ErrorCode.INVALID_REQUEST,
        ),
    ],
)
def test_what_is_no_command_is_refused(data: bytes, code: ErrorCode) -> None:
    with pytest.raises(KafkaError) as error:
        decode_command(data)
    assert error.value.code is code


def test_a_field_of_a_newer_release_does_not_harm() -> None:
    data = b'["DeleteTopic",{"topic_id":"x","colour":"red"}]'
    assert decode_command(data) == DeleteTopic(topic_id="x")


@pytest.mark.parametrize(
    ("command", "data"),
    [
        (CreateTopic(name="t", topic_id="x"), b"[]"),
        (CreateTopic(name="t", topic_id="x"), b'[{"type":"leader-epochs","node_id":1}]'),
        (AllocateProducerIds(node_id=1, broker_epoch=1), b"[1]"),
        (AssignPartition(topic_id="x", partition=0, replicas=()), b"[]"),
        (AssignPartition(topic_id="x", partition=0, replicas=()), b"?"),
    ],
)
def test_what_is_no_response_is_said(command: Command, data: bytes) -> None:
    with pytest.raises(KafkaError) as error:
        decode_response(command, data)
    assert error.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
