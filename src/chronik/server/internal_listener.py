"""The internal port: other nodes come here, prove who they are, and talk.

A connection first goes through the handshake, within a time and a bounded number of strangers; the
oldest stranger goes when there are too many. Then `admit` decides whether this node may come, in
one line if not. After that a `raft` connection gives Raft messages, and a `call` connection gives
calls and snapshots, which are answered.

Invariants
    Nothing of a connection is acted on before its peer has proved the secret and was admitted.
    A Raft message is from whom it says it is from, and meant for this node.
    A connection that has many calls under way, or does not read their answers, is not read.
    A node has one Raft connection here for each of its processes: a newer one ends the older.

What calls do is the broker's; what Raft makes of a message is the metadata runtime's. If `on_raft`
or `on_snapshot` raises, the connection ends and the log says why: stopping the node on a broken
invariant is the runtime's own business.
"""

import asyncio
import inspect
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from chronik.client.internal_link import HANDSHAKE_TIMEOUT_S, FrameLink
from chronik.metadata.raft_wire import decode_raft
from chronik.protocol.errors import ErrorCode, KafkaError, ProtocolError
from chronik.protocol.internal import (
    Answer,
    Call,
    Hello,
    Identity,
    Raft,
    SnapshotData,
    SnapshotParts,
    decode_message,
    encode_frame,
)
from chronik.protocol.internal_handshake import (
    NONCE_SIZE,
    HandshakeRefused,
    ReachedHandshake,
    mismatch,
    refusal,
    without_secret,
)
from chronik.raft.messages import InstallSnapshot, Message

logger = logging.getLogger(__name__)

BACKLOG: Final = 128  # connections that the kernel holds while the loop is busy
# Connections in their handshake. Honest ones take milliseconds; a cluster that starts has a dozen.
STRANGERS_MAX: Final = 64
# Connections of one process by purpose: it keeps one of each, and may open another for calls while
# it joins.
CONNECTIONS_MAX: Final = {"raft": 1, "call": 4, "replicate": 1}
CALLS_MAX: Final = 64  # under way for one connection; a peer sends no more

OnCall = Callable[[Hello, str, bytes], Awaitable[bytes] | bytes]


class Feeding(Protocol):
    """What this node does for a follower over its connection."""

    def on_frame(self, frame: bytes) -> None: ...

    def flush(self) -> None:
        """The connection takes more again."""

    def close(self) -> None: ...


OnFollower = Callable[[Hello, FrameLink], Feeding]


class InternalListener:
    """One listening socket and the connections of other nodes."""

    def __init__(
        self,
        *,
        identity: Callable[[], Identity],
        secret: bytes,
        admit: Callable[[Hello], str | None],
        on_raft: Callable[[Message], None],
        on_snapshot: Callable[[InstallSnapshot, bytes], None],
        on_call: OnCall,
        on_follower: OnFollower | None = None,
        on_connected: Callable[[Hello], None] | None = None,
    ) -> None:
        self.on_follower = on_follower
        self.identity = identity
        self.secret = secret
        self.admit = admit
        self.on_raft = on_raft
        self.on_snapshot = on_snapshot
        self.on_call = on_call
        self._on_connected = on_connected
        # Both in the order in which they came.
        self._strangers: dict[_Inbound, None] = {}
        self._admitted: dict[_Inbound, None] = {}
        self._links: set[FrameLink] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def connection_count(self) -> int:
        """Connections of nodes that were admitted."""
        return len(self._admitted)

    @property
    def hellos(self) -> tuple[Hello, ...]:
        """Who is connected, once for each connection: `admit` may look for a namesake here."""
        return tuple(inbound.peer for inbound in self._admitted)

    async def bind(self, host: str, port: int) -> tuple[str, int]:
        """Take the port, and refuse connections until `serve`; returns the address."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            self._accepted, host, port, backlog=BACKLOG, start_serving=False
        )
        address = self._server.sockets[0].getsockname()
        return str(address[0]), int(address[1])

    async def serve(self) -> None:
        """Accept connections from now on."""
        assert self._server is not None
        await self._server.start_serving()

    async def close(self) -> None:
        """Stop accepting, end every connection and every call; nothing is left."""
        if self._server is not None:
            self._server.close()
        links = tuple(self._links)
        for link in links:
            link.abort("the node stops")
        for link in links:
            await link.wait_closed()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def disconnect(self, node_id: int, reason: str) -> None:
        """End the connections of a node that is no longer welcome."""
        for inbound in [each for each in self._admitted if each.peer.node_id == node_id]:
            inbound.link.close(reason)

    def _accepted(self) -> FrameLink:
        inbound = _Inbound(self)
        self._links.add(inbound.link)
        self._strangers[inbound] = None
        if len(self._strangers) > STRANGERS_MAX:
            oldest = next(iter(self._strangers))
            oldest.refuse(HandshakeRefused("busy", "too many connections within their handshake"))
        return inbound.link

    def welcome(self, inbound: "_Inbound") -> None:
        """A node was admitted: it is no stranger any more, and replaces its older connection."""
        self._strangers.pop(inbound, None)
        same = [each for each in self._admitted if _same(each.peer, inbound.peer)]
        for older in same[: max(len(same) + 1 - CONNECTIONS_MAX[inbound.peer.purpose], 0)]:
            older.link.abort("replaced by a newer connection")
        self._admitted[inbound] = None
        logger.info("peer connected", extra=inbound.described())
        if self._on_connected is not None:
            self._on_connected(inbound.peer)

    def no_stranger(self, inbound: "_Inbound") -> None:
        """A connection that is refused no longer counts."""
        self._strangers.pop(inbound, None)

    def gone(self, inbound: "_Inbound", reason: str) -> None:
        """A connection has ended."""
        self._links.discard(inbound.link)
        self._strangers.pop(inbound, None)
        if self._admitted.pop(inbound, inbound) is None:
            logger.info("peer gone", extra={**inbound.described(), "reason": reason})

    def run(self, work: Awaitable[None], name: str) -> "asyncio.Task[None]":
        """A call that waits; it ends with its connection, or with the listener."""
        task = asyncio.ensure_future(work)
        assert isinstance(task, asyncio.Task)
        task.set_name(name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class _Inbound:
    """One connection: a stranger, then a peer."""

    def __init__(self, listener: InternalListener) -> None:
        self.peer: Hello
        self.link = FrameLink()
        self.link.is_established = True
        self._listener = listener
        self._handshake = ReachedHandshake(
            listener.identity(), listener.secret, secrets.token_bytes(NONCE_SIZE)
        )
        self._parts = SnapshotParts()
        self._calls: set[asyncio.Task[None]] = set()
        self._feeding: Feeding | None = None
        self.link.on_frame = self._shake_hands
        self.link.on_closed = self._closed
        self._deadline = asyncio.get_running_loop().call_later(HANDSHAKE_TIMEOUT_S, self._too_slow)

    def described(self) -> dict[str, object]:
        return {"peer": self.peer.node_id, "purpose": self.peer.purpose}

    # The handshake.

    def _shake_hands(self, frame: bytes) -> None:
        listener, link = self._listener, self.link
        try:
            if not listener.secret and (reason := without_secret(link.peer_host)):
                raise HandshakeRefused("secret", reason)
            link.write(self._handshake.receive(frame))
            if self._handshake.proved is None:
                return
            self._admit(self._handshake.proved)
        except HandshakeRefused as error:
            self.refuse(error)
            return
        self._deadline.cancel()
        link.trust()
        link.on_frame = self._raft if self.peer.purpose == "raft" else self._call
        link.on_writable = self._maybe_read
        if self.peer.purpose == "replicate" and listener.on_follower is not None:
            self._feeding = listener.on_follower(self.peer, link)
            link.on_frame, link.on_writable = self._feeding.on_frame, self._feeding.flush
        link.write(self._handshake.accept())
        listener.welcome(self)

    def _admit(self, hello: Hello) -> None:
        reason = mismatch(self._listener.identity(), hello) or self._listener.admit(hello)
        if reason is not None:
            raise HandshakeRefused("not-admitted", reason)
        self.peer = hello

    def refuse(self, error: HandshakeRefused) -> None:
        """Say why, and end the connection."""
        self._deadline.cancel()
        self._listener.no_stranger(self)
        extra = {"client": self.link.peer_host, "reason": error.reason}
        logger.warning("connection to the internal port refused", extra=extra)
        self.link.write(refusal(error))
        self.link.close(error.reason)

    def _too_slow(self) -> None:
        self.link.abort(f"no handshake within {HANDSHAKE_TIMEOUT_S:g} s")

    def _closed(self, reason: str) -> None:
        self._deadline.cancel()
        for call in self._calls:
            call.cancel()
        if self._feeding is not None:
            self._feeding.close()
        self._listener.gone(self, reason)

    # Raft.

    def _raft(self, frame: bytes) -> None:
        message = decode_message(frame)
        if not isinstance(message, Raft):
            raise ProtocolError(f"{type(message).__name__} on a Raft connection")
        self._listener.on_raft(self._checked(message))

    def _checked(self, raft: Raft) -> Message:
        message = decode_raft(raft)
        ours = self._listener.identity().node_id
        if message.sender != self.peer.node_id or message.recipient != ours:
            raise ProtocolError(
                f"a message from {message.sender} to {message.recipient}, "
                f"sent by {self.peer.node_id} to {ours}"
            )
        return message

    # Calls and snapshots.

    def _call(self, frame: bytes) -> None:
        message = decode_message(frame)
        if isinstance(message, SnapshotData):
            self._snapshot(message)
        elif isinstance(message, Call):
            self._start(message)
        else:
            raise ProtocolError(f"{type(message).__name__} on a connection for calls")
        if self._is_busy():
            self.link.hold()

    def _snapshot(self, part: SnapshotData) -> None:
        message = self._checked(part.message)
        if not isinstance(message, InstallSnapshot):
            raise ProtocolError(f"{part.message.kind} with the data of a snapshot")
        data = self._parts.add(part)
        if data is not None:
            self._listener.on_snapshot(message, data)
        self._send(Answer(part.id))

    def _start(self, call: Call) -> None:
        try:
            result = self._listener.on_call(self.peer, call.method, call.body)
        except Exception as error:
            self._send(self._failed(call, error))
            return
        if not inspect.isawaitable(result):
            self._send(Answer(call.id, body=result))
            return
        name = f"call-{call.method}-{self.peer.node_id}"
        task = self._listener.run(self._finish(call, result), name)
        self._calls.add(task)
        task.add_done_callback(self._finished)

    async def _finish(self, call: Call, result: Awaitable[bytes]) -> None:
        try:
            answer = Answer(call.id, body=await result)
        except Exception as error:
            answer = self._failed(call, error)
        self._send(answer)

    def _finished(self, task: "asyncio.Task[None]") -> None:
        self._calls.discard(task)
        self._maybe_read()

    def _failed(self, call: Call, error: Exception) -> Answer:
        if isinstance(error, KafkaError):
            return Answer(call.id, error.code, error.message or "")
        extra = {**self.described(), "method": call.method}
        logger.error("internal call failed", exc_info=error, extra=extra)
        return Answer(call.id, ErrorCode.UNKNOWN_SERVER_ERROR, "the call failed; see the log")

    def _send(self, answer: Answer) -> None:
        try:
            frame = encode_frame(answer)
        except ProtocolError as error:
            frame = encode_frame(Answer(answer.id, ErrorCode.MESSAGE_TOO_LARGE, str(error)))
        self.link.write(frame)

    def _is_busy(self) -> bool:
        return len(self._calls) >= CALLS_MAX or not self.link.is_writable

    def _maybe_read(self) -> None:
        if not self._is_busy():
            self.link.release()


def _same(one: Hello, other: Hello) -> bool:
    return (one.node_id, one.incarnation_id, one.purpose) == (
        other.node_id,
        other.incarnation_id,
        other.purpose,
    )
