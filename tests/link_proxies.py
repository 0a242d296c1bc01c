"""The links between the nodes of a cluster, to be cut and mended by tests.

Each node's internal port is reached through a proxy at another loopback address, under the same
port number. Who connects is known from the first word that it says. A cut link is silent: nothing
is delivered, in either direction of its connections, until it is mended or they are closed.
"""

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any

from chronik.protocol.errors import ProtocolError
from chronik.protocol.internal import FRAME_HEADER, Identity, decode_message

HOST = "127.0.1.1"  # All of 127/8 is the machine itself.
NODES_HOST = "127.0.0.1"
CHUNK_BYTES = 64 * 1024

Link = tuple[int, int]  # who connects, to whom


class LinkProxies:
    """One proxy for each node, on a loop in a thread of its own."""

    def __init__(self, internal_ports: Mapping[int, int]) -> None:
        self._ports = internal_ports
        self._cut: set[Link] = set()
        self._connections: dict[Link, set[asyncio.StreamWriter]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links")

    def __enter__(self) -> "LinkProxies":
        self._thread.start()
        self._run(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def cut(self, links: Iterable[Link]) -> None:
        """From now on nothing passes here."""
        self._cut = self._cut | set(links)

    def mend(self) -> None:
        """Everything passes again, also what waited."""
        self._cut = set()

    def close(self, links: Iterable[Link]) -> None:
        """End the connections of these links, as a router does that restarts."""
        for link in links:
            self._loop.call_soon_threadsafe(self._close_link, link)

    def _close_link(self, link: Link) -> None:
        for writer in self._connections.pop(link, ()):
            writer.transport.abort()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _listen(self) -> None:
        self._servers = [
            await asyncio.start_server(self._serving(node_id), HOST, port)
            for node_id, port in self._ports.items()
        ]

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for link in tuple(self._connections):
            self._close_link(link)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _serving(self, target: int) -> Any:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await self._serve(target, reader, writer)
            writer.transport.abort()

        return serve

    async def _serve(
        self, target: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        head = await reader.readexactly(FRAME_HEADER.size)
        frame = await reader.readexactly(FRAME_HEADER.unpack(head)[0])
        link = (_sender(frame), target)
        await self._passable(link)
        there, onward = await asyncio.open_connection(NODES_HOST, self._ports[target])
        writers = self._connections.setdefault(link, set())
        writers |= {writer, onward}
        try:
            onward.write(head + frame)
            pumps = (self._pump(link, reader, onward), self._pump(link, there, writer))
            tasks = [asyncio.ensure_future(pump) for pump in pumps]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            writers -= {writer, onward}
            onward.transport.abort()

    async def _pump(
        self, link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while data := await reader.read(CHUNK_BYTES):
            await self._passable(link)
            writer.write(data)
            await writer.drain()

    async def _passable(self, link: Link) -> None:
        while link in self._cut:  # noqa: ASYNC110 (cut from another thread)
            await asyncio.sleep(0.01)


def _sender(frame: bytes) -> int:
    """Whose first word this is; 0 if it is no introduction."""
    try:
        message = decode_message(frame)
    except ProtocolError:
        return 0
    return message.node_id if isinstance(message, Identity) else 0
