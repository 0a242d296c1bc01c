"""The handshake of the internal port: both sides prove that they know the cluster secret.

    who connects                               who was reached
    Hello(identity, purpose, nonce)      ->
                                         <-    Challenge(identity, nonce)
    Proof(of both, as who connects)      ->
                                         <-    Proof(of both, as who was reached), or Refused

A proof is an HMAC-SHA256 with the secret over both frames as they were sent. Both contain a fresh
nonce, so that neither half can be replayed, and each side signs in its own role, so that it cannot
be reflected. Who connects proves first: a stranger who knocks learns nothing to try secrets on.
Afterwards the connection is trusted and plain: this keeps strangers out, it does not encrypt.

Without a secret only nodes of the same machine may talk to each other.

Pure: nonces come in, frames go out. `client.internal_link` and `server.internal_listener` carry
them.
"""

import hmac
from ipaddress import ip_address
from typing import Final

from chronik.protocol.errors import ProtocolError
from chronik.protocol.internal import (
    FRAME_HEADER,
    PROTOCOL_VERSION,
    Challenge,
    Hello,
    Identity,
    Proof,
    Purpose,
    Refused,
    decode_message,
    encode_frame,
)

NONCE_SIZE: Final = 32  # as many bytes as the digest has: neither repeats by chance
REASON_LENGTH_MAX: Final = 500  # one line in a log

_CONNECTING: Final = b"chronik internal 1: who connects"
_REACHED: Final = b"chronik internal 1: who was reached"


class HandshakeRefused(Exception):
    """One of the sides does not want the other: a code and one clear line."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason
        self.peer_cluster_id: str | None = None  # what the other side said of itself, if it did

    def __str__(self) -> str:
        return self.reason


class ConnectingHandshake:
    """The side that connects: write `opening`, then what `receive` gives, until `peer` is there."""

    def __init__(
        self,
        identity: Identity,
        purpose: Purpose,
        secret: bytes,
        nonce: bytes,
        address: tuple[str, int] = ("", 0),
    ) -> None:
        assert len(nonce) == NONCE_SIZE
        host, port = address
        hello = Hello(
            identity.cluster_id,
            identity.node_id,
            identity.directory_id,
            identity.incarnation_id,
            purpose,
            nonce,
            host=host,
            port=port,
        )
        self.opening = encode_frame(hello)
        self.peer: Challenge | None = None  # who was reached, once that is proved
        self._secret = secret
        self._challenge: Challenge | None = None  # who was reached, as it says
        self._challenge_frame = b""

    @property
    def peer_cluster_id(self) -> str | None:
        """The cluster of who was reached, as it says itself: none is empty."""
        return None if self._challenge is None else self._challenge.cluster_id

    def receive(self, frame: bytes) -> bytes:
        """Take a frame; what to write in answer. HandshakeRefused or ProtocolError ends it."""
        message = decode_message(frame)
        if isinstance(message, Refused):
            raise HandshakeRefused(_line(message.code), _line(message.reason))
        if self._challenge is None and isinstance(message, Challenge):
            _check_version(message.protocol_version)
            self._challenge, self._challenge_frame = message, frame
            return encode_frame(Proof(self._digest(_CONNECTING)))
        if self._challenge is None or not isinstance(message, Proof):
            raise ProtocolError(f"{type(message).__name__} within a handshake")
        if not hmac.compare_digest(message.digest, self._digest(_REACHED)):
            raise HandshakeRefused("secret", "the node that was reached has another cluster secret")
        self.peer = self._challenge
        return b""

    def _digest(self, role: bytes) -> bytes:
        return _digest(role, self._secret, self.opening[FRAME_HEADER.size :], self._challenge_frame)


class ReachedHandshake:
    """The side that was reached. A proved peer is in `proved`; `accept` then lets it in."""

    def __init__(self, identity: Identity, secret: bytes, nonce: bytes) -> None:
        assert len(nonce) == NONCE_SIZE
        challenge = Challenge(
            identity.cluster_id,
            identity.node_id,
            identity.directory_id,
            identity.incarnation_id,
            nonce,
        )
        self.proved: Hello | None = None
        self._secret = secret
        self._challenge = encode_frame(challenge)
        self._hello: Hello | None = None
        self._hello_frame = b""

    def receive(self, frame: bytes) -> bytes:
        """Take a frame; what to write in answer. HandshakeRefused or ProtocolError ends it."""
        message = decode_message(frame)
        if self._hello is None and isinstance(message, Hello):
            _check_version(message.protocol_version)
            if len(message.nonce) != NONCE_SIZE:
                raise ProtocolError(f"a nonce of {len(message.nonce)} bytes")
            self._hello, self._hello_frame = message, frame
            return self._challenge
        if self._hello is None or self.proved is not None or not isinstance(message, Proof):
            raise ProtocolError(f"{type(message).__name__} within a handshake")
        if not hmac.compare_digest(message.digest, self._digest(_CONNECTING)):
            raise HandshakeRefused("secret", "the cluster secret of the two nodes differs")
        self.proved = self._hello
        return b""

    def accept(self) -> bytes:
        """Our own proof, for a peer that may come in."""
        assert self.proved is not None
        return encode_frame(Proof(self._digest(_REACHED)))

    def _digest(self, role: bytes) -> bytes:
        return _digest(role, self._secret, self._hello_frame, self._challenge[FRAME_HEADER.size :])


def mismatch(ours: Identity, theirs: Identity) -> str | None:
    """Why two nodes can never be of one cluster; None if they may be."""
    if ours.cluster_id and theirs.cluster_id and ours.cluster_id != theirs.cluster_id:
        return (
            f"node {theirs.node_id} is of cluster {theirs.cluster_id}, "
            f"node {ours.node_id} of cluster {ours.cluster_id}"
        )
    is_same = ours.node_id == theirs.node_id >= 0  # Below zero: a node that has no id yet.
    if is_same and ours.incarnation_id != theirs.incarnation_id:
        return f"two nodes have the id {ours.node_id}: each needs its own"
    return None


def without_secret(host: str) -> str | None:
    """Why nobody at this address is talked to without a secret; None if it is this machine."""
    try:
        # A scope (fe80::1%eth0) is no part of the address.
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return f"without a cluster secret only loopback addresses are allowed, not {host!r}"
    mapped = getattr(address, "ipv4_mapped", None)
    if (mapped or address).is_loopback:
        return None
    return f"without a cluster secret only loopback addresses are allowed, not {host}"


def refusal(error: HandshakeRefused) -> bytes:
    """The frame that tells the other side why."""
    return encode_frame(Refused(_line(error.code), _line(error.reason)))


def _check_version(version: int) -> None:
    if version != PROTOCOL_VERSION:
        reason = f"internal protocol version {version} meets version {PROTOCOL_VERSION}"
        raise HandshakeRefused("version", reason)


def _digest(role: bytes, secret: bytes, hello: bytes, challenge: bytes) -> bytes:
    sizes = FRAME_HEADER.pack(len(hello)) + FRAME_HEADER.pack(len(challenge))
    return hmac.digest(secret, role + sizes + hello + challenge, "sha256")


def _line(text: str) -> str:
    """What a stranger says, as one short line that can do no harm to a log."""
    printable = "".join(character if character.isprintable() else " " for character in text)
    return printable[:REASON_LENGTH_MAX]
