"""The internal port's bytes: frames, and the messages that nodes send each other in them.

A frame is a four-byte length and one message in msgpack. A connection begins with the handshake of
`internal_handshake` and then has one purpose for life: `raft` carries Raft messages one way, `call`
carries calls and snapshots one way and their answers the other, `replicate` what leaders and
followers say (`protocol.replication`). So nothing large ever travels in front of a heartbeat.

Raft messages are opaque here: a kind and its payload, which `metadata.raft_wire` encodes. Decoding
any bytes raises only `ProtocolError`.
"""

from collections.abc import Callable
from struct import Struct
from typing import Any, Final, Literal, TypeAlias, TypeVar

import msgspec

from chronik.protocol.errors import ProtocolError

PROTOCOL_VERSION: Final = 1
# One frame. The largest honest ones are answers to forwarded requests and entries of a bulk
# creation, some MiB each.
FRAME_BYTES_MAX: Final = 64 * 1024 * 1024
# A frame of somebody who has proved nothing yet: ids and a nonce are some hundred bytes.
HANDSHAKE_FRAME_BYTES_MAX: Final = 4 * 1024
# A part of a snapshot: some milliseconds of the wire, so that calls get in between.
SNAPSHOT_CHUNK_BYTES: Final = 1024 * 1024
# A whole snapshot, gathered in memory: some hundred times that of 3,000 topics.
SNAPSHOT_BYTES_MAX: Final = 1024 * 1024 * 1024

FRAME_HEADER: Final = Struct(">I")

Purpose = Literal["raft", "call", "replicate"]
T = TypeVar("T")


class Identity(msgspec.Struct, frozen=True, array_like=True):
    """Who a node is. The cluster id is empty before it has formed or joined one."""

    cluster_id: str
    node_id: int
    directory_id: str
    incarnation_id: str


class Hello(Identity, frozen=True, array_like=True, tag="hello"):
    """The first word of who connects, and where it is reached itself: that may have changed."""

    purpose: Purpose
    nonce: bytes
    protocol_version: int = PROTOCOL_VERSION
    host: str = ""
    port: int = 0


class Challenge(Identity, frozen=True, array_like=True, tag="challenge"):
    """The answer to it: who was reached, and the other half of what both must sign."""

    nonce: bytes
    protocol_version: int = PROTOCOL_VERSION


class Proof(msgspec.Struct, frozen=True, array_like=True, tag="proof"):
    """The sender knows the cluster secret: it signed what both have said."""

    digest: bytes


class Refused(msgspec.Struct, frozen=True, array_like=True, tag="refused"):
    """Why this connection ends, in one line for whoever reads the log of the other node."""

    code: str  # "version", "secret", "not-admitted" or "busy"
    reason: str


class Raft(msgspec.Struct, frozen=True, array_like=True, tag="raft"):
    """A message of Raft, named by its type."""

    kind: str
    payload: bytes


class SnapshotData(msgspec.Struct, frozen=True, array_like=True, tag="snapshot"):
    """A part of a snapshot; each is answered before the next. The message leads every part."""

    id: int
    message: Raft
    position: int
    size: int
    data: bytes


class Call(msgspec.Struct, frozen=True, array_like=True, tag="call"):
    """A question by one node to another."""

    id: int
    method: str
    body: bytes


class Answer(msgspec.Struct, frozen=True, array_like=True, tag="answer"):
    """The answer to the call or the snapshot part with this id; a Kafka error code if refused."""

    id: int
    error_code: int = 0
    message: str = ""
    body: bytes = b""


InternalMessage: TypeAlias = (
    Hello | Challenge | Proof | Refused | Raft | SnapshotData | Call | Answer
)

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final[msgspec.msgpack.Decoder[InternalMessage]] = msgspec.msgpack.Decoder(InternalMessage)


def encode_frame(message: InternalMessage) -> bytes:
    """A message as a whole frame, or ProtocolError if it is too large for one."""
    frame = bytearray(FRAME_HEADER.size)
    _encoder.encode_into(message, frame, FRAME_HEADER.size)
    size = len(frame) - FRAME_HEADER.size
    if size > FRAME_BYTES_MAX:
        raise ProtocolError(f"a message of {size} bytes; at most {FRAME_BYTES_MAX} fit")
    FRAME_HEADER.pack_into(frame, 0, size)
    return bytes(frame)


def decode_message(frame: bytes | memoryview) -> InternalMessage:
    """The message in a frame (without the frame's length), or ProtocolError."""
    return decoded(_decoder.decode, frame)


def decoded(decode: Callable[[Any], T], data: bytes | memoryview) -> T:
    """What a msgspec decoder makes of bytes; whatever is wrong with them is ProtocolError."""
    try:
        return decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError, OverflowError, MemoryError) as error:
        # msgspec lets bad UTF-8 and nesting without end through as Python's own errors.
        raise ProtocolError(f"no internal message: {error}") from None


class FrameBuffer:
    """Received bytes, given out frame by frame."""

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._data = bytearray()
        self._position = 0

    def __len__(self) -> int:
        return len(self._data) - self._position

    def feed(self, data: bytes) -> None:
        """Add what was received."""
        if self._position:
            del self._data[: self._position]
            self._position = 0
        self._data += data

    def next_frame(self) -> bytes | None:
        """The next whole frame without its length; None if it is not all there."""
        start = self._position + FRAME_HEADER.size
        if start > len(self._data):
            return None
        (size,) = FRAME_HEADER.unpack_from(self._data, self._position)
        if size > self.frame_bytes_max:
            raise ProtocolError(f"a frame of {size} bytes; at most {self.frame_bytes_max} may come")
        end = start + size
        if end > len(self._data):
            return None
        self._position = end
        with memoryview(self._data) as view:
            return bytes(view[start:end])


class SnapshotParts:
    """The parts of one snapshot on their way in; they come in order, or begin anew at 0."""

    def __init__(self, size_max: int = SNAPSHOT_BYTES_MAX) -> None:
        self._size_max = size_max
        self._message: Raft | None = None
        self._data = bytearray()

    def add(self, part: SnapshotData) -> bytes | None:
        """Take a part; all the data once it is complete, or ProtocolError."""
        if part.position == 0:
            self._message = part.message
            self._data = bytearray()
        if part.message != self._message or part.position != len(self._data):
            raise ProtocolError(f"a part of a snapshot at {part.position}, not {len(self._data)}")
        end = part.position + len(part.data)
        if not 0 <= end <= part.size <= self._size_max or (end < part.size and not part.data):
            raise ProtocolError(f"a part of a snapshot to {end} of {part.size} bytes")
        self._data += part.data
        if end < part.size:
            return None
        data, self._data, self._message = bytes(self._data), bytearray(), None
        return data
