"""What leaders and followers say to each other: one connection for all partitions of two nodes.

A follower names each partition once, with where its log ends, under a handle of its own choice.
From then on the leader sends what is appended, and the follower answers with how far it has come;
a partition that is idle costs nothing. A new position (after a truncation, in a new leader epoch)
is a new handle, so that nothing said about the old one can be mistaken.

A message is the length of its head, the head in msgpack, and in `Data` the batches themselves,
which are not copied into it. Decoding any bytes raises only `ProtocolError`.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

import msgspec

from chronik.protocol.errors import ProtocolError
from chronik.protocol.internal import FRAME_BYTES_MAX, FRAME_HEADER, decoded
from chronik.protocol.schema import Buffer

_HEAD_SIZE: Final = Struct(">I")


class Following(NamedTuple):
    """A partition that the sender follows, and where its log ends."""

    handle: int
    topic_id: bytes
    partition: int
    leader_epoch: int
    end_offset: int
    last_epoch: int  # of its last batch; -1 if it has none
    stored_offset: int


class Position(NamedTuple):
    """How far a follower has come."""

    handle: int
    end_offset: int
    stored_offset: int


class Portion(NamedTuple):
    """What comes for one partition. A size of zero: only the offsets are news."""

    handle: int
    high_watermark: int
    log_start_offset: int
    size: int


class Follow(msgspec.Struct, frozen=True, array_like=True, tag="follow"):
    """The sender follows these partitions from here on. Its broker epoch says which process."""

    broker_epoch: int
    partitions: tuple[Following, ...]


class Unfollow(msgspec.Struct, frozen=True, array_like=True, tag="unfollow"):
    """The sender does not want these any more."""

    handles: tuple[int, ...]


class Progress(msgspec.Struct, frozen=True, array_like=True, tag="progress"):
    """The sender has appended what came, or made it durable."""

    positions: tuple[Position, ...]


class Data(msgspec.Struct, frozen=True, array_like=True, tag="data"):
    """Batches as stored, one portion after the other behind this head."""

    portions: tuple[Portion, ...]


class Diverged(msgspec.Struct, frozen=True, array_like=True, tag="diverged"):
    """The follower's log parts from the leader's: its last epoch ends there, or never was."""

    handle: int
    epoch: int
    end_offset: int


class Rejected(msgspec.Struct, frozen=True, array_like=True, tag="rejected"):
    """The leader does not feed this handle (any more), for the reason of a Kafka error code."""

    handle: int
    error_code: int
    log_start_offset: int = -1


ReplicationMessage: TypeAlias = Follow | Unfollow | Progress | Data | Diverged | Rejected

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final[msgspec.msgpack.Decoder[ReplicationMessage]] = msgspec.msgpack.Decoder(
    ReplicationMessage
)


def encode(message: ReplicationMessage, batches: Sequence[Buffer] = ()) -> list[Buffer]:
    """A message as the parts of one frame."""
    head = _encoder.encode(message)
    size = _HEAD_SIZE.size + len(head) + sum(map(len, batches))
    assert size <= FRAME_BYTES_MAX, "the sender bounds what it sends at once"
    return [FRAME_HEADER.pack(size) + _HEAD_SIZE.pack(len(head)) + head, *batches]


def decode(frame: bytes) -> tuple[ReplicationMessage, memoryview]:
    """The message in a frame, and the bytes behind its head."""
    view = memoryview(frame)
    if len(view) < _HEAD_SIZE.size:
        raise ProtocolError(f"no replication message: {len(view)} bytes")
    end = _HEAD_SIZE.size + int(_HEAD_SIZE.unpack_from(view)[0])
    if end > len(view):
        raise ProtocolError(f"no replication message: a head of {end} in {len(view)} bytes")
    return decoded(_decoder.decode, view[_HEAD_SIZE.size : end]), view[end:]


def portions(data: Data, batches: memoryview) -> list[tuple[Portion, memoryview]]:
    """Each portion with its bytes."""
    found = []
    position = 0
    for portion in data.portions:
        end = position + portion.size
        if not position <= end <= len(batches):
            raise ProtocolError(f"portions of {end} in {len(batches)} bytes")
        found.append((portion, batches[position:end]))
        position = end
    if position != len(batches):
        raise ProtocolError(f"{len(batches) - position} bytes belong to no portion")
    return found
