"""Commands and their responses as bytes, for the way to whoever leads and back.

A command is a JSON pair of its name and its fields; what its fields may be is checked when it is
decoded, so that a decision never meets a value of the wrong type. A response is told from the
command that it answers. Refusals travel as error codes and are no part of this.
"""

from typing import Any, Final

import msgspec

from chronik.metadata.commands import (
    AllocateProducerIds,
    AlterConfig,
    AssignPartition,
    Command,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    Elected,
    ElectLeaders,
    ElectUncleanLeaders,
    LeaveInSync,
    ReassignPartitions,
    RegisterBroker,
    RemoveBroker,
    ResignLeadership,
    SetDiskFull,
    SetMaintenance,
    SetPartitionLeader,
    UpdateBrokerStatus,
    UpdateISR,
)
from chronik.metadata.image import Topic, id_bytes
from chronik.metadata.records import (
    PartitionRecord,
    TopicRecord,
    UndecodableRecord,
    decode_records,
    encode_records,
)
from chronik.protocol.errors import ErrorCode, KafkaError

_COMMANDS: Final[dict[str, type[Command]]] = {
    command.__name__: command
    for command in (
        RegisterBroker,
        UpdateBrokerStatus,
        SetMaintenance,
        SetDiskFull,
        ResignLeadership,
        RemoveBroker,
        AssignPartition,
        SetPartitionLeader,
        UpdateISR,
        LeaveInSync,
        ReassignPartitions,
        ElectLeaders,
        ElectUncleanLeaders,
        CreateTopic,
        DeleteTopic,
        CreatePartitions,
        AlterConfig,
        AllocateProducerIds,
    )
}


def encode_command(command: Command) -> bytes:
    """A command as bytes."""
    return msgspec.json.encode((type(command).__name__, command))


def decode_command(data: bytes) -> Command:
    """The command, or INVALID_REQUEST; one that this release does not have, UNSUPPORTED_VERSION."""
    try:
        name, fields = msgspec.json.decode(data, type=tuple[str, msgspec.Raw])
        kind = _COMMANDS.get(name)
        if kind is None:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"There is no command {name!r} here.")
        return msgspec.json.decode(fields, type=kind)
    except msgspec.MsgspecError as reason:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"not a command: {reason}") from None


def encode_response(command: Command, response: Any) -> bytes:
    """A response as bytes."""
    match command:
        case CreateTopic():
            assert isinstance(response, Topic)
            return encode_records([response.record, *response.partitions])
        case AssignPartition() | SetPartitionLeader():
            assert isinstance(response, PartitionRecord)
            return encode_records([response])
        case UpdateISR() | ReassignPartitions() | ElectLeaders() | ElectUncleanLeaders():
            return msgspec.json.encode(response)
        case RegisterBroker():
            assert isinstance(response, int)
            return msgspec.json.encode(response)
        case AllocateProducerIds():
            assert isinstance(response, range)
            return msgspec.json.encode((response.start, response.stop))
        case _:
            assert response is None
            return b""


def decode_response(command: Command, data: bytes) -> Any:
    """The response to a command, or UNKNOWN_SERVER_ERROR if these bytes are none."""
    try:
        match command:
            case CreateTopic():
                return _topic(data)
            case AssignPartition() | SetPartitionLeader():
                return _partition(data)
            case UpdateISR():
                return msgspec.json.decode(data, type=tuple[int, ...])
            case ReassignPartitions():
                return msgspec.json.decode(data, type=tuple[tuple[int, str | None], ...])
            case ElectLeaders() | ElectUncleanLeaders():
                return msgspec.json.decode(data, type=tuple[Elected, ...])
            case RegisterBroker():
                return msgspec.json.decode(data, type=int)
            case AllocateProducerIds():
                return range(*msgspec.json.decode(data, type=tuple[int, int]))
            case _:
                return None
    except (msgspec.MsgspecError, UndecodableRecord, ValueError) as reason:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"not a response: {reason}") from None


def _topic(data: bytes) -> Topic:
    topic, *partitions = decode_records(data)
    if not isinstance(topic, TopicRecord):
        raise UndecodableRecord("a topic comes first")
    found = tuple(each for each in partitions if isinstance(each, PartitionRecord))
    return Topic(topic, id_bytes(topic.topic_id), found)


def _partition(data: bytes) -> PartitionRecord:
    records = decode_records(data)
    if len(records) != 1 or not isinstance(records[0], PartitionRecord):
        raise UndecodableRecord("one partition is the answer")
    return records[0]
