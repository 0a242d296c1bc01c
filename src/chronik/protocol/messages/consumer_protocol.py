"""What consumers put into JoinGroup and SyncGroup: subscriptions and assignments.

To a classic group these are opaque bytes: a version, then a message that is never flexible. A
version that is newer than ours begins as our newest does, and what follows is passed over: that is
Kafka's promise, and what its clients rely on.
"""

from collections.abc import Sequence
from typing import Annotated, Final, TypeVar

from chronik.protocol.codec import decoder, encode
from chronik.protocol.errors import ProtocolError
from chronik.protocol.schema import Buffer, Message, blob, int32, since, string

CONSUMER_PROTOCOL_TYPE: Final = "consumer"
NEWEST_VERSION: Final = 3

M = TypeVar("M", bound=Message)


class ConsumerProtocolTopicPartition(Message):
    """The partitions of one topic."""

    topic: string
    partitions: Sequence[int32]


class ConsumerProtocolSubscription(Message):
    """What a member wants to read, and from v1 on what it owns."""

    topics: Sequence[string]
    user_data: blob | None = None
    owned_partitions: Annotated[Sequence[ConsumerProtocolTopicPartition], since(1)] = ()
    generation_id: Annotated[int32, since(2)] = -1
    rack_id: Annotated[string | None, since(3)] = None


class ConsumerProtocolAssignment(Message):
    """What a member shall read."""

    assigned_partitions: Sequence[ConsumerProtocolTopicPartition]
    user_data: blob | None = None


def decode_subscription(data: Buffer) -> tuple[int, ConsumerProtocolSubscription]:
    """A subscription and the version that its sender wrote."""
    return _decode(ConsumerProtocolSubscription, data)


def encode_subscription(
    subscription: ConsumerProtocolSubscription, version: int = NEWEST_VERSION
) -> bytes:
    """The bytes of a subscription, its version first."""
    return _encode(subscription, version)


def decode_assignment(data: Buffer) -> tuple[int, ConsumerProtocolAssignment]:
    """An assignment and the version that its sender wrote."""
    return _decode(ConsumerProtocolAssignment, data)


def encode_assignment(
    assignment: ConsumerProtocolAssignment, version: int = NEWEST_VERSION
) -> bytes:
    """The bytes of an assignment, its version first."""
    return _encode(assignment, version)


def _decode(message: type[M], data: Buffer) -> tuple[int, M]:
    version = int.from_bytes(data[:2], "big", signed=True)
    if len(data) < 2 or version < 0:
        raise ProtocolError(f"{message.__name__}: no version")
    value, _ = decoder(message, min(version, NEWEST_VERSION), False)(data, 2)
    return version, value


def _encode(value: Message, version: int) -> bytes:
    assert 0 <= version <= NEWEST_VERSION, version
    return version.to_bytes(2, "big") + encode(value, version, False)
