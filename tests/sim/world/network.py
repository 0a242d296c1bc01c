"""Connections between processes that delay, stall, break, and are cut one way or both.

They are streams, as TCP's: what was sent arrives in order or not at all. A lost packet is sent
again, which delays everything behind it. What cannot be delivered waits; a sender whose bytes stay
unacknowledged for too long gives its end up, and the other end may not know for a while.

    killed process    its kernel closes what it had: the others see the end soon
    machine without power, or a cut link    silence; later nobody knows of the connection any more
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sim.world.loop import ProcessLoop, Scheduler

UNACKNOWLEDGED_S = 2.0  # as `client.internal_link` asks the kernel for
KEEP_ALIVE_S = (5.0, 11.0)  # until probes find out that nobody is there
CONNECT_AGAIN_S = 1.0  # a kernel's first new try
RESEND_S = (0.2, 0.4)  # what a lost packet costs


@dataclass
class Weather:
    """How bad the network is."""

    delay_s: tuple[float, float] = (0.0005, 0.005)
    loss: float = 0.0  # packets that are sent again, of all
    reset: float = 0.0  # packets that break their connection, of all


class Server:
    """A listening socket."""

    def __init__(self, network: Network, loop: ProcessLoop, make: Any, place: Any) -> None:
        self.loop = loop
        self.make = make
        self.is_serving = False
        self._network = network
        self._place = place

    @property
    def sockets(self) -> list[Server]:
        return [self]

    def getsockname(self) -> Any:
        return self._place

    async def start_serving(self) -> None:
        self.is_serving = True

    def close(self) -> None:
        self._network.servers.pop(self._place[1], None)


class Network:
    """Who listens where, which links are cut, and every connection."""

    def __init__(
        self, scheduler: Scheduler, chance: random.Random, node_of_port: Callable[[int], int]
    ) -> None:
        self.scheduler = scheduler
        self.chance = chance
        self.node_of_port = node_of_port
        self.weather = Weather()
        self.servers: dict[int, Server] = {}
        self.cut: Counter[tuple[int, int]] = Counter()  # from the first to the second all is lost
        self.dark: set[int] = set()  # machines without power
        self.faults: Counter[str] = Counter()
        self._ends: dict[End, None] = {}

    # Sockets.

    def listen(self, loop: ProcessLoop, make: Any, host: Any, port: int, serving: bool) -> Server:
        if port in self.servers:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        server = Server(self, loop, make, (host, port))
        server.is_serving = serving
        self.servers[port] = server
        return server

    async def connect(self, loop: ProcessLoop, make: Any, port: int) -> Any:
        node_id = self.node_of_port(port)
        reached: asyncio.Future[End] = loop.create_future()
        self.scheduler.at(self._delay(), self._knock, loop, make, port, node_id, reached)
        end = await reached
        return end, end.begin(make())

    def _knock(
        self,
        loop: ProcessLoop,
        make: Any,
        port: int,
        node_id: int,
        reached: asyncio.Future[End],
    ) -> None:
        if loop.is_dead or reached.done():
            return
        if not self.is_open(loop.node_id, node_id) or node_id in self.dark:
            arguments = (loop, make, port, node_id, reached)
            self.scheduler.at(CONNECT_AGAIN_S, self._knock, *arguments)
            return
        server = self.servers.get(port)
        if server is None or not server.is_serving or server.loop.is_dead:
            refused = ConnectionRefusedError(errno.ECONNREFUSED, "connection refused")
            self.scheduler.at(self._delay(), _tell, loop, reached, None, refused)
            return
        here, there = End(self, loop), End(self, server.loop)
        here.other, there.other = there, here
        there.make = server.make
        self._ends[here] = self._ends[there] = None
        self.scheduler.at(self._delay(), _tell, loop, reached, here, None)

    def _delay(self) -> float:
        return self.chance.uniform(*self.weather.delay_s)

    def delay(self) -> float | None:
        """How long a packet takes; None if it breaks the connection."""
        delay_s = self._delay()
        weather = self.weather
        if weather.loss and self.chance.random() < weather.loss:
            self.faults["packet lost"] += 1
            delay_s += self.chance.uniform(*RESEND_S)
        if weather.reset and self.chance.random() < weather.reset:
            self.faults["connection reset"] += 1
            return None
        return delay_s

    def forget(self, end: End) -> None:
        self._ends.pop(end, None)

    # Bad days.

    def is_open(self, one: int, other: int) -> bool:
        """Whether packets pass in both directions."""
        return self.cut[one, other] <= 0 and self.cut[other, one] <= 0

    def break_links(self, links: list[tuple[int, int]]) -> None:
        """From the first to the second of each nothing passes, until it is mended."""
        self.cut.update(links)

    def mend_links(self, links: list[tuple[int, int]]) -> None:
        """What waited goes on."""
        self.cut.subtract(links)
        for end in list(self._ends):
            end.go_on()

    def reset(self, one: int, other: int) -> None:
        """Break the connections between two nodes: what is under way is lost."""
        for end in list(self._ends):
            if (end.loop.node_id, end.other.loop.node_id) == (one, other):
                error = ConnectionResetError(errno.ECONNRESET, "reset")
                end.lose(error)
                end.other.lose(error)

    def process_ended(self, loop: ProcessLoop, is_silent: bool) -> None:
        """A process was killed, or without power: its sockets are gone."""
        for port, server in list(self.servers.items()):
            if server.loop is loop:
                del self.servers[port]
        for end in [each for each in self._ends if each.loop is loop]:
            end.vanish(is_silent)


def _tell(loop: ProcessLoop, future: asyncio.Future[Any], result: Any, error: Any) -> None:
    def tell() -> None:
        if future.done():
            if result is not None:
                result.vanish(False)
        elif error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    loop.arrived(tell)


def _hand_over(protocol: Any, data: bytes) -> None:
    if not isinstance(protocol, asyncio.BufferedProtocol):
        protocol.data_received(data)
        return
    while data:
        buffer = protocol.get_buffer(len(data))
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        protocol.buffer_updated(size)
        data = data[size:]


class End(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, network: Network, loop: ProcessLoop) -> None:
        super().__init__()
        self.loop = loop
        self.other: End
        self.make: Any = None
        self.protocol: Any = None
        self._network = network
        self._is_closing = False
        self._is_lost = False
        self._is_reading = True
        self._unread: deque[bytes | None] = deque()
        self._held: deque[bytes | None] = deque()  # on its way to us, behind a cut link
        self._last_arrival = 0.0
        self._stuck_since: float | None = None
        self._bytes_under_way = 0
        self._high = 64 * 1024
        self._is_full = False

    def begin(self, protocol: Any) -> Any:
        """Hand the socket to who has connected."""
        self.protocol = protocol
        protocol.connection_made(self)
        if self._is_lost:  # before anybody held it
            self.loop.call_soon(protocol.connection_lost, None)
        else:
            self.other.accept()
        return protocol

    def accept(self) -> None:
        """The other end has connected: hand the socket to whoever listens here."""
        self.loop.arrived(self._accepted)

    def _accepted(self) -> None:
        if not self._is_lost:
            self.protocol = self.make()
            self.protocol.connection_made(self)

    # What protocols ask of a transport.

    def write(self, data: Any) -> None:
        if self._is_closing or self._is_lost:
            return
        self._send(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high or self._high

    def get_write_buffer_size(self) -> int:
        return self._bytes_under_way

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self.loop.call_soon(self._read)

    def is_reading(self) -> bool:
        return self._is_reading

    def is_closing(self) -> bool:
        return self._is_closing or self._is_lost

    def close(self) -> None:
        if not self.is_closing():
            self._is_closing = True
            self._send(None)
            self.loop.call_soon(self._lose, None)

    def abort(self) -> None:
        self.close()

    # The way.

    def _send(self, data: bytes | None) -> None:
        network = self._network
        delay_s = network.delay()
        if delay_s is None:
            network.reset(self.loop.node_id, self.other.loop.node_id)
            return
        now = network.scheduler.now
        self._last_arrival = max(self._last_arrival, now + delay_s)
        if data is not None:
            self._bytes_under_way += len(data)
            if self._bytes_under_way > self._high and not self._is_full:
                self._is_full = True
                self.protocol.pause_writing()
        network.scheduler.at(self._last_arrival - now, self.other._arrives, data)

    def _arrives(self, data: bytes | None) -> None:
        network, here, there = self._network, self.loop.node_id, self.other.loop.node_id
        if network.cut[there, here] > 0 or here in network.dark or self._held:
            self._held.append(data)
            self.other._stuck()
            return
        if network.cut[here, there] > 0:
            self.other._stuck()  # It gets here, and its acknowledgement not back.
        if self._is_lost:
            self.other._later_lost(ConnectionResetError(errno.ECONNRESET, "reset"))
            return
        self._take(data)

    def _take(self, data: bytes | None) -> None:
        if data is not None:
            self.other._acknowledged(len(data))
        self._unread.append(data)
        self.loop.arrived(self._read)

    def _acknowledged(self, size: int) -> None:
        self._bytes_under_way -= size
        if self._is_full and self._bytes_under_way <= self._high // 4 and not self._is_lost:
            self._is_full = False
            self.loop.arrived(self.protocol.resume_writing)

    def _read(self) -> None:
        while self._unread and self._is_reading and not self.is_closing():
            data = self._unread.popleft()
            if data is None:
                self._is_closing = True
                self._lose(None)
            elif self.protocol is not None:
                _hand_over(self.protocol, data)

    # Silence and ends.

    def _stuck(self) -> None:
        if self._stuck_since is None and not self._is_lost:
            self._stuck_since = since = self._network.scheduler.now
            self._network.scheduler.at(UNACKNOWLEDGED_S, self._give_up, since)

    def _give_up(self, since: float) -> None:
        if self._stuck_since == since and not self._is_lost:
            self.lose(TimeoutError(errno.ETIMEDOUT, "unacknowledged"))
            self.other.probe()

    def probe(self) -> None:
        """Find out, some time, that nobody is at the other end."""
        delay_s = self._network.chance.uniform(*KEEP_ALIVE_S)
        self._network.scheduler.at(delay_s, self.lose, TimeoutError(errno.ETIMEDOUT, "silent"))

    def go_on(self) -> None:
        """The link may be open again."""
        network, here, there = self._network, self.loop.node_id, self.other.loop.node_id
        if network.cut[there, here] > 0 or here in network.dark:
            return
        held, self._held = self._held, deque()
        for data in held:
            self._arrives(data)
        if network.is_open(here, there) and not self._held:
            self.other._stuck_since = None

    def lose(self, error: Exception | None) -> None:
        """The connection is gone for this end."""
        self._later_lost(error)

    def _later_lost(self, error: Exception | None) -> None:
        if not self._is_lost:
            self.loop.arrived(self._lose, error)

    def _lose(self, error: Exception | None) -> None:
        if self._is_lost:
            return
        self._is_lost = True
        self._network.forget(self)
        if self.protocol is not None:
            self.protocol.connection_lost(error)

    def vanish(self, is_silent: bool) -> None:
        """The process of this end is gone, and with it the socket."""
        if self._is_lost:
            return
        self._is_lost = True
        self._network.forget(self)
        if is_silent:
            self.other.probe()
        elif not self._is_closing:
            self._send(None)
