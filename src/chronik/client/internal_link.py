"""One connection of the internal port, either end: frames in, frames out, in bounded turns.

`FrameLink` moves frames and knows nothing of what is in them; `open_link` connects one and takes it
through the handshake. Both the peers' side (`client.peer`) and `server.internal_listener` use it.

Invariants
    A turn of the event loop handles at most so many messages and bytes of one connection; the rest
    waits for the next turn, and meanwhile the socket is not read. Heartbeats of others get in
    between.
    After `on_closed` nothing is called any more; it is called exactly once.
"""

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Callable
from typing import Any, Final, cast

from chronik.client.link import Address, ConnectionFailed
from chronik.protocol.errors import ProtocolError
from chronik.protocol.internal import (
    FRAME_BYTES_MAX,
    HANDSHAKE_FRAME_BYTES_MAX,
    Challenge,
    FrameBuffer,
    Identity,
    Purpose,
)
from chronik.protocol.internal_handshake import (
    NONCE_SIZE,
    ConnectingHandshake,
    HandshakeRefused,
    mismatch,
    without_secret,
)
from chronik.protocol.schema import Buffer

logger = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT_S: Final = 2.0  # two round trips, even to a node that is busy starting
# What one turn of the loop takes from one connection: a millisecond or two of decoding and Raft.
TURN_MESSAGES_MAX: Final = 100
TURN_BYTES_MAX: Final = 64 * 1024
# Queued in the transport before the writer is told to wait; one large message may exceed it.
WRITE_BYTES_MAX: Final = 256 * 1024
CLOSE_GRACE_S: Final = 1.0  # for the last words, such as why a peer is refused
# A peer whose machine is gone, or whose link is cut, acknowledges nothing. Giving up after this
# time and connecting anew is quicker than TCP's own retries, which back off to minutes.
UNACKNOWLEDGED_MS_MAX: Final = 2_000
# And if nothing is under way either, these probes (seconds, seconds, count) find out.
KEEP_ALIVE: Final = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}


class NotSent(ConnectionFailed):
    """There was no connection to send over: the peer has certainly done nothing."""


class PeerRefused(NotSent):
    """The peer does not want us, or we do not want it: one clear line."""

    def __init__(self, address: Address, reason: str, *, is_unformed: bool = False) -> None:
        super().__init__(address, reason)
        self.is_unformed = is_unformed  # it says that it has no cluster


def _nothing(*_: Any) -> None:
    """Nobody listens yet."""


class FrameLink(asyncio.Protocol):
    """Frames over one connection."""

    def __init__(self, frame_bytes_max: int = HANDSHAKE_FRAME_BYTES_MAX) -> None:
        self.on_frame: Callable[[bytes], None] = _nothing
        self.on_closed: Callable[[str], None] = _nothing
        self.on_writable: Callable[[], None] = _nothing
        self.is_writable = False
        # A connection given up while it is made is closed by the loop, and uvloop tells nobody.
        self.is_established = False
        self._loop = asyncio.get_running_loop()
        self._buffer = FrameBuffer(frame_bytes_max)
        self._transport: asyncio.Transport | None = None
        self._failure: str | None = None
        self._is_held = False
        self._is_reading = True
        self._turn: asyncio.Handle | None = None  # the next, if it is due without new bytes
        self._grace: asyncio.TimerHandle | None = None
        self._lost: asyncio.Future[None] = self._loop.create_future()

    @property
    def is_open(self) -> bool:
        return self._transport is not None and self._failure is None

    @property
    def peer_host(self) -> str:
        name = self._transport and self._transport.get_extra_info("peername")
        return str(name[0]) if name else ""

    def trust(self) -> None:
        """The handshake is done: whole messages may come."""
        self._buffer.frame_bytes_max = FRAME_BYTES_MAX

    def write(self, data: bytes) -> None:
        """Send whole frames; look at `is_writable` before much is sent."""
        if self._transport is not None and self._failure is None:
            self._transport.write(data)

    def write_parts(self, parts: list[Buffer]) -> None:
        """Send a frame that is in parts."""
        if self._transport is not None and self._failure is None:
            self._transport.writelines(parts)

    def hold(self) -> None:
        """Handle no more frames until `release`; what comes waits in the peer."""
        self._is_held = True
        self._set_reading(False)

    def release(self) -> None:
        """Handle frames again."""
        if self._is_held:
            self._is_held = False
            self._schedule()

    def close(self, reason: str) -> None:
        """End the connection: what was written still leaves, within a moment."""
        self._end(reason)
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()
            self._grace = self._loop.call_later(CLOSE_GRACE_S, self._transport.abort)

    def abort(self, reason: str) -> None:
        """End the connection at once."""
        self._end(reason)
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self) -> None:
        """Wait until the socket is given back."""
        if self._transport is not None and self.is_established:
            await asyncio.shield(self._lost)

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one by its methods only
        self._transport.set_write_buffer_limits(high=WRITE_BYTES_MAX)
        _prepare(transport.get_extra_info("socket"))
        self.is_writable = True
        if self._failure is not None:
            self.abort("closed while it was opened")

    def data_received(self, data: bytes) -> None:
        self._buffer.feed(data)
        if self._turn is None and not self._is_held:
            self._take_turn()

    def pause_writing(self) -> None:
        self.is_writable = False

    def resume_writing(self) -> None:
        self.is_writable = True
        self.on_writable()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(_reason(exc) if isinstance(exc, OSError) else "the connection was closed")
        if self._grace is not None:
            self._grace.cancel()
        if not self._lost.done():
            self._lost.set_result(None)
        on_closed, self.on_closed = self.on_closed, _nothing
        on_closed(self._failure or "")

    # Turns.

    def _take_turn(self) -> None:
        self._turn = None
        count = size = 0
        try:
            while self._failure is None and not self._is_held:
                frame = self._buffer.next_frame()
                if frame is None:
                    self._set_reading(True)
                    return
                count += 1
                size += len(frame)
                self.on_frame(frame)
                if (count >= TURN_MESSAGES_MAX or size >= TURN_BYTES_MAX) and len(self._buffer):
                    self._set_reading(False)
                    self._schedule()
                    return
        except ProtocolError as error:
            self.abort(str(error))
        except Exception as error:
            # A poison message must not stop the node, nor come again over this connection.
            logger.error("internal message failed", exc_info=error, extra={"peer": self.peer_host})
            self.abort(f"our own failure: {error!r}")

    def _schedule(self) -> None:
        if self._turn is None and self._failure is None:
            self._turn = self._loop.call_soon(self._take_turn)

    def _set_reading(self, reading: bool) -> None:
        transport = self._transport
        if reading == self._is_reading or transport is None or transport.is_closing():
            return
        self._is_reading = reading
        if reading:
            transport.resume_reading()
        else:
            transport.pause_reading()

    def _end(self, reason: str) -> None:
        if self._failure is None:
            self._failure = reason
        self.is_writable = False
        self.on_frame = self.on_writable = _nothing
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None


async def open_link(
    link: FrameLink,
    address: Address,
    *,
    identity: Identity,
    purpose: Purpose,
    secret: bytes,
    node_id: int | None,
    own_address: tuple[str, int] = ("", 0),
    timeout_s: float = HANDSHAKE_TIMEOUT_S,
) -> Challenge:
    """Connect and shake hands with the node asked for, or NotSent; PeerRefused if it is not it.

    `own_address` is where the other side finds us, if it is told.
    """
    try:
        async with asyncio.timeout(timeout_s):
            loop = asyncio.get_running_loop()
            await loop.create_connection(lambda: link, address.host, address.port)
            link.is_established = True
            peer = await _shake_hands(link, identity, purpose, secret, own_address)
        _check(identity, peer, node_id)
    except BaseException as error:
        link.abort("given up")
        await link.wait_closed()
        if isinstance(error, HandshakeRefused | ProtocolError):
            is_unformed = isinstance(error, HandshakeRefused) and error.peer_cluster_id == ""
            raise PeerRefused(address, str(error), is_unformed=is_unformed) from None
        if isinstance(error, TimeoutError):
            raise NotSent(address, f"no handshake within {timeout_s:g} s") from None
        if isinstance(error, OSError):
            raise NotSent(address, _reason(error)) from None
        raise
    link.on_frame = _unexpected
    return peer


async def _shake_hands(
    link: FrameLink,
    identity: Identity,
    purpose: Purpose,
    secret: bytes,
    own_address: tuple[str, int],
) -> Challenge:
    if not secret and (reason := without_secret(link.peer_host)):
        raise HandshakeRefused("secret", reason)
    nonce = secrets.token_bytes(NONCE_SIZE)
    handshake = ConnectingHandshake(identity, purpose, secret, nonce, own_address)
    reached: asyncio.Future[Challenge] = asyncio.get_running_loop().create_future()

    def on_frame(frame: bytes) -> None:
        try:
            link.write(handshake.receive(frame))
        except (HandshakeRefused, ProtocolError) as error:
            _fail(reached, error)
        if handshake.peer is not None and not reached.done():
            link.trust()
            reached.set_result(handshake.peer)

    link.on_frame = on_frame
    link.on_closed = lambda reason: _fail(reached, ConnectionResetError(reason))
    if not link.is_open:
        raise ConnectionResetError("the connection was closed")
    link.write(handshake.opening)
    try:
        return await reached
    except HandshakeRefused as error:
        error.peer_cluster_id = handshake.peer_cluster_id
        raise


def _unexpected(frame: bytes) -> None:
    raise ProtocolError("a message over a connection that carries none this way")


def _check(identity: Identity, peer: Challenge, node_id: int | None) -> None:
    reason = mismatch(identity, peer)
    if node_id is not None and peer.node_id != node_id:
        reason = f"this is node {peer.node_id}, and node {node_id} was expected here"
    if reason is not None:
        refused = HandshakeRefused("not-admitted", reason)
        refused.peer_cluster_id = peer.cluster_id
        raise refused


def _fail(future: "asyncio.Future[Any]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # Whoever waits may be cancelled in the same turn: then it is no news.


def _prepare(connected: Any) -> None:
    """Notice soon that the other machine is gone, where the system has the options for it."""
    if connected is None or connected.family not in (socket.AF_INET, socket.AF_INET6):
        return
    options = KEEP_ALIVE | {"TCP_USER_TIMEOUT": UNACKNOWLEDGED_MS_MAX}
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in options.items():
        if (option := getattr(socket, name, None)) is not None:
            connected.setsockopt(socket.IPPROTO_TCP, option, value)


def _reason(error: OSError) -> str:
    # asyncio puts the address into its own text; the plain words of the errno read better.
    return os.strerror(error.errno).lower() if error.errno else str(error)
