"""One client's connection: frames in, requests handled in order, responses out in order.

Reading goes through one buffer that all connections share; only a frame that is not yet complete
has memory of its own. A request is handled as soon as its frame is there, in the same call.

What a handler returns says how it waits:
    a response      it is written at once
    None            there is no response (Produce with acks=0)
    a Pending       the response comes later, and the next request is handled meanwhile (Produce:
                    appends run in order, the waits for acks overlap)
    a coroutine     the next request waits until it is done

Responses leave in request order. A connection that is held (by a coroutine, by too many requests
in flight, by a peer that does not read) is not read beyond the next request: that is all the
backpressure there is. In one turn of the loop all connections together handle requests for a short
time only (`turns`), so that no client keeps the loop from the rest of its work.
"""

import asyncio
import inspect
import logging
from collections import deque
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, cast

from chronik.config import limits
from chronik.coordinator.pending import Pending
from chronik.protocol.apis import PRODUCE
from chronik.protocol.connection import (
    FRAME_HEADER_SIZE,
    Request,
    UnsupportedRequest,
    decode_request,
    encode_response,
)
from chronik.protocol.errors import ProtocolError
from chronik.protocol.schema import Buffer, Message, Part
from chronik.server.sending import write_parts

if TYPE_CHECKING:
    from chronik.server.listener import Listener

logger = logging.getLogger(__name__)

SHARED_BUFFER_SIZE: Final = 256 * 1024  # what uvloop reads at most in one call
SMALL_FRAME_SIZE: Final = 64 * 1024  # what a half-received frame gets first
JOIN_BYTES_MAX: Final = 64 * 1024  # below this one copied write is cheaper than many parts
_PEEK: Final = Struct(">ih")  # a frame's length and its api key


_NO_BODY: Final = Message()


class CloseConnection(Exception):
    """A handler's wish to end the connection without an answer."""


class _Slot:
    """A request whose response has its place in the queue."""

    __slots__ = ("parts", "request", "started")

    def __init__(self, request: Request, started: float) -> None:
        self.request = request
        self.started = started
        self.parts: list[Part] | None = None


class Connection(asyncio.BufferedProtocol):
    """The protocol object of one accepted socket."""

    def __init__(self, listener: "Listener") -> None:
        self._listener = listener
        self._loop = listener.loop
        self._transport: asyncio.Transport | None = None
        self._slots: deque[_Slot] = deque()
        self._head = b""  # The first bytes of a frame, too few to know its size.
        self._partial: bytearray | None = None
        self._filled = 0
        self._need = 0
        self._reserved = 0
        self._backlog = b""  # Whole and partial frames that came while the connection was held.
        self._task: asyncio.Task[Message | None] | None = None
        self._write_paused = False
        self._unwritten = 0
        self._flush_is_due = False
        self._frame_began = 0.0
        self._reading = True
        self.last_active = self._loop.time()
        self.client_host = ""
        self.client_software = ""

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one by its methods only
        peer = transport.get_extra_info("peername")
        self.client_host = str(peer[0]) if peer else ""
        if not self._listener.accepted(self, f"{peer[0]}:{peer[1]}" if peer else "unknown"):
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=limits.WRITE_QUEUE_BYTES_MAX)

    def connection_lost(self, reason: Exception | None) -> None:
        self._transport = None
        self._listener.lost(self)
        self._release_memory()
        if self._task is not None:
            self._task.cancel()
        self._slots.clear()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._partial is not None:
            return memoryview(self._partial)[self._filled :]
        return self._listener.shared_buffer

    def buffer_updated(self, size: int) -> None:
        self.last_active = self._loop.time()
        self._listener.metrics.bytes_in += size
        if self._partial is None:
            data = self._listener.shared_buffer[:size]
            if self._head:
                self._listener.partial.discard(self)
                data, self._head = memoryview(self._head + bytes(data)), b""
            self._frames(data)
        else:
            self._filled += size
            if self._filled == len(self._partial):
                self._partial_is_full()
        self._flush()

    def eof_received(self) -> bool:
        return False  # A half-closed client waits for nothing: close.

    def pause_writing(self) -> None:
        self._write_paused = True
        self._listener.stalled.add(self)

    def resume_writing(self) -> None:
        self._write_paused = False
        self._listener.stalled.discard(self)
        self._continue()

    def is_stuck(self, now: float) -> bool:
        """Whether a request has begun to arrive, and no longer does or takes too long."""
        return (
            self.last_active < now - limits.PARTIAL_FRAME_TIMEOUT_S
            or self._frame_began < now - limits.FRAME_TIMEOUT_S
        )

    @property
    def bytes_queued(self) -> int:
        """Response bytes that the peer has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    # Frames.

    def _frames(self, data: memoryview) -> None:
        """Handle the whole frames in this data, and keep the rest."""
        position = 0
        while len(data) - position >= _PEEK.size:
            if self._is_held() or self._listener.turns.is_over(self):
                self._put_off(data[position:])
                return
            length, api_key = _PEEK.unpack_from(data, position)
            if not self._check_length(length, api_key):
                return
            end = position + FRAME_HEADER_SIZE + length
            if end > len(data):
                break
            self._handle(data[position + FRAME_HEADER_SIZE : end])
            position = end
            if self._transport is None or self._transport.is_closing():
                return
        if position < len(data):
            self._keep(data[position:])

    def _check_length(self, length: int, api_key: int) -> bool:
        most = self._listener.request_bytes_max
        if api_key != PRODUCE.key:
            most = min(most, limits.CONTROL_REQUEST_BYTES_MAX)
        if 8 <= length <= most:  # Key, version and correlation id are the least there is.
            return True
        self.close("protocol", f"a frame of {length} bytes; at most {most} are accepted")
        return False

    def _keep(self, rest: memoryview) -> None:
        self._listener.partial.add(self)
        if len(rest) < _PEEK.size:
            self._head = bytes(rest)
            if len(rest) >= FRAME_HEADER_SIZE:
                self._check_length(int.from_bytes(rest[:4], signed=True), PRODUCE.key)
            return
        self._need = FRAME_HEADER_SIZE + int(_PEEK.unpack_from(rest)[0])
        self._filled = len(rest)
        self._frame_began = self.last_active
        self._grow(rest)

    def _partial_is_full(self) -> None:
        assert self._partial is not None
        if self._filled < self._need:
            self._grow(memoryview(self._partial))
            return
        frame, self._partial = memoryview(self._partial), None
        self._listener.partial.discard(self)
        if self._is_held() or self._listener.turns.is_over(self):
            self._put_off(frame)
        else:
            self._handle(frame[FRAME_HEADER_SIZE:])
        self._release_memory()

    def _put_off(self, data: memoryview) -> None:
        """Keep what came while the connection is held, and only now stop reading.

        Until then the socket is read, so that a client that leaves while it waits is noticed.
        """
        self._backlog += bytes(data)
        self._set_reading(False)

    def _grow(self, data: memoryview) -> None:
        """Make room for twice as much as came of this frame so far."""
        size = min(self._need, max(SMALL_FRAME_SIZE, 2 * self._filled))
        memory = self._listener.memory
        if not memory.reserve(size - self._reserved):
            reason = f"over {memory.bytes_max} bytes of half-received requests"
            self.close("memory", f"{reason} (queued.max.request.bytes)")
            return
        self._reserved = size
        grown = bytearray(size)
        grown[: self._filled] = data[: self._filled]
        self._partial = grown

    def _release_memory(self) -> None:
        self._listener.memory.release(self._reserved)
        self._reserved = 0
        self._listener.partial.discard(self)

    # Requests.

    def _handle(self, frame: memoryview) -> None:
        try:
            request = decode_request(frame)
        except UnsupportedRequest as error:
            self.close("unsupported", str(error))
            return
        except ProtocolError as error:
            self.close("protocol", str(error))
            return
        # Without the body, whose records pin the receive buffer until the answer has left.
        slot = _Slot(request._replace(body=_NO_BODY), self._loop.time())
        try:
            result = self._listener.dispatch(request, self)
        except CloseConnection as error:
            self.close("refused", str(error))
        except Exception as error:  # A poison request must not stop the node: one place for all.
            self._failed(slot, error)
        else:
            self._take(slot, result)

    def _take(self, slot: _Slot, result: Any) -> None:
        if isinstance(result, Message):
            self._slots.append(slot)
            self._answer(slot, result)
        elif result is None:
            self._observe(slot)
        elif isinstance(result, Pending):
            self._slots.append(slot)
            result.then(lambda response: self._resolved(slot, response))
        else:
            assert inspect.iscoroutine(result)
            self._slots.append(slot)
            name = f"{slot.request.api.name}-{self.client_host}"
            self._task = self._loop.create_task(result, name=name)
            self._task.add_done_callback(lambda task: self._held_task_done(slot, task))

    def _resolved(self, slot: _Slot, response: Message) -> None:
        """An overlapped request is done; one write takes all that are done in this turn."""
        if self._transport is None:
            return
        self._answer(slot, response)
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def _held_task_done(self, slot: _Slot, task: "asyncio.Task[Message | None]") -> None:
        self._task = None
        self._answered(slot, task)
        if self._transport is not None:
            self._continue()

    def _answered(self, slot: _Slot, future: "asyncio.Future[Message | None]") -> None:
        if self._transport is None or future.cancelled():
            if not future.cancelled():
                future.exception()  # Nobody is left to be told.
            return
        error = future.exception()
        if isinstance(error, CloseConnection):
            self.close("refused", str(error))
        elif error is not None:
            self._failed(slot, error)
        else:
            self._answer(slot, future.result())
        self._flush()

    def _answer(self, slot: _Slot, response: Message | None) -> None:
        if response is None:
            slot.parts = []
        else:
            try:
                slot.parts = encode_response(slot.request, response)
            except Exception as error:
                self._failed(slot, error)
                return
        self._observe(slot)
        self._unwritten += sum(map(len, slot.parts))
        if self._unwritten > JOIN_BYTES_MAX:
            self._flush()  # A large response waits for no other: its peer may not read at all.

    def _failed(self, slot: _Slot, error: BaseException) -> None:
        request = slot.request
        logger.error(
            "request failed",
            exc_info=error,
            extra={"api": request.api.name, "version": request.version, "client": self.client_host},
        )
        self.close("internal", f"{request.api.name} v{request.version}: {error!r}")

    def _observe(self, slot: _Slot) -> None:
        request = slot.request
        seconds = self._loop.time() - slot.started
        self._listener.metrics.request(request.api.name, request.version, seconds)
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug(
                "request",
                extra={
                    "api": request.api.name,
                    "version": request.version,
                    "client_id": request.client_id,
                    "client": self.client_host,
                    "latency_ms": round(seconds * 1000, 3),
                },
            )

    # Responses.

    def _flush(self) -> None:
        """Write every response whose turn has come."""
        self._flush_is_due = False
        slots = self._slots
        if self._transport is None or not slots or slots[0].parts is None:
            return
        parts: list[Part] = []
        while slots and slots[0].parts is not None:
            parts.extend(slots.popleft().parts or ())
        size = sum(map(len, parts))
        self._unwritten = 0
        self._listener.metrics.bytes_out += size
        if size <= JOIN_BYTES_MAX:
            self._transport.write(b"".join(cast("list[Buffer]", parts)))  # Files have large parts.
        else:
            self._write_large(self._transport, parts)
        if self._backlog or not self._reading:
            self._continue()

    def _write_large(self, transport: asyncio.Transport, parts: list[Part]) -> None:
        try:
            write_parts(transport, parts)
        except OSError as error:  # A part of the answer is out, and no other can follow it.
            logger.error("response broken off", exc_info=error, extra={"client": self.client_host})
            transport.abort()

    # Holding and reading on.

    def _is_held(self) -> bool:
        return (
            self._task is not None
            or self._write_paused
            or len(self._slots) >= limits.INFLIGHT_REQUESTS_MAX
        )

    def go_on(self) -> None:
        """A new turn of the loop has begun."""
        self._continue()

    def _continue(self) -> None:
        """Go on with what came while the connection was held, then read again."""
        if self._is_held() or self._transport is None or self._listener.turns.is_over(self):
            return
        if self._backlog:
            backlog, self._backlog = self._backlog, b""
            self._frames(memoryview(backlog))
            self._flush()
        if not (self._is_held() or self._backlog):
            self._set_reading(True)

    def _set_reading(self, reading: bool) -> None:
        if reading == self._reading or self._transport is None or self._transport.is_closing():
            return
        self._reading = reading
        if reading:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def abort(self) -> None:
        """End the connection at once; the node is stopping."""
        if self._transport is not None:
            self._transport.abort()
        else:
            self._listener.lost(self)  # Nothing more will be heard of it.

    def close(self, kind: str, reason: str) -> None:
        """End the connection: what was answered still leaves, nothing more is read."""
        if self._transport is None or self._transport.is_closing():
            return
        self._listener.metrics.error(kind)
        logger.warning(
            "connection closed",
            extra={"client": self.client_host, "kind": kind, "reason": reason},
        )
        while self._slots and self._slots[-1].parts is None:
            self._slots.pop()
        self._flush()
        self._transport.close()
        # A peer that does not read would keep what is queued for it, and its connection, for ever.
        self._loop.call_later(limits.CLOSE_GRACE_S, self.abort)
