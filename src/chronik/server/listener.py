"""The Kafka port: accepts connections, and closes those that are idle or stuck."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from chronik.config import limits
from chronik.metrics import Metrics
from chronik.protocol.connection import Request
from chronik.server.connection import SHARED_BUFFER_SIZE, Connection
from chronik.server.memory import RequestMemory
from chronik.server.turns import Turns

logger = logging.getLogger(__name__)

SWEEP_INTERVAL_S: Final = 5.0
BACKLOG: Final = 1024  # connections that the kernel holds while the loop is busy

Dispatch = Callable[[Request, Connection], Any]


class Listener:
    """One listening socket and its connections."""

    def __init__(
        self,
        *,
        dispatch: Dispatch,
        metrics: Metrics,
        request_bytes_max: int,
        queued_bytes_max: int,
        connections_max: Callable[[], int],
        idle_timeout_ms: Callable[[], int],
        now: Callable[[], float],
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.dispatch = dispatch
        self.metrics = metrics
        self.request_bytes_max = request_bytes_max
        self.memory = RequestMemory(queued_bytes_max)
        self.shared_buffer = memoryview(bytearray(SHARED_BUFFER_SIZE))
        self.turns = Turns(self.loop, now)
        self.partial: set[Connection] = set()  # have sent a part of a frame
        self.stalled: set[Connection] = set()  # do not read what we send
        self._connections_max = connections_max
        self._idle_timeout_ms = idle_timeout_ms
        self._connections: set[Connection] = set()
        self._all_lost = asyncio.Event()
        self._is_closing = False
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None

    async def bind(self, host: str, port: int) -> tuple[str, int]:
        """Take the port, and refuse connections until `serve`; returns the address."""
        self._server = await self.loop.create_server(
            lambda: Connection(self), host, port, backlog=BACKLOG, start_serving=False
        )
        address = self._server.sockets[0].getsockname()
        return str(address[0]), int(address[1])

    async def serve(self) -> None:
        """Accept connections from now on."""
        assert self._server is not None
        if self._sweeper is not None:
            return  # It does already.
        await self._server.start_serving()
        self._sweeper = self.loop.call_later(SWEEP_INTERVAL_S, self._sweep)

    def response_bytes_left(self) -> int:
        """What fetches may still add to the bytes that slow readers have not taken."""
        queued = sum(connection.bytes_queued for connection in self.stalled)
        return max(limits.QUEUED_RESPONSE_BYTES_MAX - queued, 0)

    async def close(self) -> None:
        """Stop accepting, and end every connection."""
        # Of a connection that the loop has accepted already we hear only later.
        self._is_closing = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._server is None:
            return
        self._server.close()
        for connection in tuple(self._connections):
            connection.abort()
        if self._connections:
            await self._all_lost.wait()

    def accepted(self, connection: Connection, peer: str) -> bool:
        """Count a new connection; False if there are too many, or the node stops."""
        if self._is_closing:
            return False
        self.metrics.connections_accepted += 1
        if len(self._connections) >= self._connections_max():
            self.metrics.error("connections_max")
            logger.warning("connection refused", extra={"client": peer, "reason": "too many"})
            return False
        self._connections.add(connection)
        self._all_lost.clear()
        self.metrics.connections_open = len(self._connections)
        logger.info("connection accepted", extra={"client": peer})
        return True

    def lost(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self.stalled.discard(connection)
        self.metrics.connections_open = len(self._connections)
        if not self._connections:
            self._all_lost.set()

    def _sweep(self) -> None:
        """Close connections that have been silent too long, or stuck within a frame."""
        now = self.loop.time()
        for connection in [each for each in self.partial if each.is_stuck(now)]:
            connection.close("slow", "no more bytes of a half-sent request")
        idle_before = now - self._idle_timeout_ms() / 1000
        for connection in [each for each in self._connections if each.last_active < idle_before]:
            connection.close("idle", "no request")
        self._sweeper = self.loop.call_later(SWEEP_INTERVAL_S, self._sweep)
