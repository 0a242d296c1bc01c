"""Raft's messages as they travel: a kind and its payload in msgpack. Pure.

The kind is the name of the dataclass, so that a message that we do not know is refused by its name
and none is ever decoded as another. Unknown fields are skipped, which lets an older node read what
a newer one says.
"""

from typing import Final, get_args

import msgspec

from chronik.protocol.errors import ProtocolError
from chronik.protocol.internal import Raft, decoded
from chronik.raft.messages import AppendEntries, Message, RequestVote

_encoder: Final = msgspec.msgpack.Encoder()
_decoders: Final[dict[str, msgspec.msgpack.Decoder[Message]]] = {
    kind.__name__: msgspec.msgpack.Decoder(kind) for kind in get_args(Message)
}


def encode_raft(message: Message) -> Raft:
    """A message of Raft for the wire."""
    return Raft(type(message).__name__, _encoder.encode(message))


def decode_raft(raft: Raft) -> Message:
    """The message of Raft that came, or ProtocolError."""
    decoder = _decoders.get(raft.kind)
    if decoder is None:
        raise ProtocolError(f"no kind of Raft message: {raft.kind[:40]!r}")
    return decoded(decoder.decode, raft.payload)


def supersedes(message: Message) -> bool:
    """Whether this makes an earlier one of its kind to the same node pointless: only it is kept."""
    if isinstance(message, AppendEntries):
        return not message.entries
    return isinstance(message, RequestVote)
