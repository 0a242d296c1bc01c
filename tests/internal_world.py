"""Nodes of the internal port over real sockets, and a look at what a test left behind."""

import asyncio
import gc
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import uvloop

from chronik.client.link import Address
from chronik.client.peer import Peer
from chronik.metadata.raft_wire import encode_raft, supersedes
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.internal import (
    Hello,
    Identity,
)
from chronik.raft.messages import AppendEntries, InstallSnapshot, Message
from chronik.raft.types import Entry, EntryKind, Snapshot
from chronik.server.internal_listener import InternalListener

WAIT_S = 10.0
SECRET = b"the secret of the cluster"


def runs_on(loop_name: str) -> Callable[[Callable[[], Awaitable[None]]], None]:
    """Runs a test on a loop of its own, and looks for what it left behind."""
    factory = uvloop.new_event_loop if loop_name == "uvloop" else asyncio.new_event_loop

    async def checked(test: Callable[[], Awaitable[None]]) -> None:
        before, others = sockets(), listening_ports()
        async with asyncio.timeout(WAIT_S):
            await test()
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert not left, left
        gc.collect()
        # uvloop gives a closed listening socket back some turns later. Somebody may have connected
        # to brokers of earlier tests that live as long as the session: that is not this test's.
        async with asyncio.timeout(WAIT_S):
            while left_behind(before, others):  # noqa: ASYNC110 Nobody tells of it.
                await asyncio.sleep(0.02)

    def runner(test: Callable[[], Awaitable[None]]) -> None:
        with asyncio.Runner(loop_factory=factory) as loop:
            loop.get_loop().set_exception_handler(_unhandled)
            loop.run(checked(test))
        assert not unhandled, unhandled.pop()

    unhandled: list[dict[str, Any]] = []

    def _unhandled(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        unhandled.append(context)

    return runner


def sockets() -> set[str]:
    """The sockets that are open; a loop opens files of other kinds as it needs them."""
    links = (os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd"))
    targets = {os.readlink(link) for link in links if os.path.lexists(link)}
    return {target for target in targets if target.startswith("socket:")}


def left_behind(before: set[str], others: set[int]) -> set[str]:
    """Sockets that are new, and not those of a listener that was there before."""
    local_ports = {inode: port for inode, port, _ in tcp_sockets()}
    return {each for each in sockets() - before if local_ports.get(each) not in others}


def listening_ports() -> set[int]:
    return {port for _, port, is_listening in tcp_sockets() if is_listening}


def tcp_sockets() -> Iterator[tuple[str, int, bool]]:
    """Those of this machine: as a descriptor's link names it, its port, whether it listens."""
    with open("/proc/self/net/tcp") as table:
        for fields in (line.split() for line in table.readlines()[1:]):
            local_port = int(fields[1].rpartition(":")[2], 16)
            yield f"socket:[{fields[9]}]", local_port, fields[3] == "0A"


class Node:
    """A listener that writes down what it is told."""

    def __init__(self, node_id: int = 2, *, secret: bytes = SECRET, cluster_id: str = "c") -> None:
        self.identity = Identity(cluster_id, node_id, f"directory-{node_id}", f"process-{node_id}")
        self.secret = secret
        self.heard: list[Message] = []
        self.snapshots: list[tuple[InstallSnapshot, bytes]] = []
        self.refusal: str | None = None
        self.connected: list[Hello] = []
        self.reached: list[Identity] = []  # as the peers that talk to this node see it
        self.events: list[Any] = []  # of the peers that talk to this node
        self.gate = asyncio.Event()
        self.calls_under_way = 0
        self.port = 0
        self._changed = asyncio.Event()
        self.listener = self._listener()

    def _listener(self) -> InternalListener:
        return InternalListener(
            identity=lambda: self.identity,
            secret=self.secret,
            admit=lambda hello: self.refusal,
            on_raft=self.note(self.heard),
            on_snapshot=lambda message, data: self.note(self.snapshots)((message, data)),
            on_call=self.call,
            on_connected=self.note(self.connected),
        )

    def note(self, notes: list[Any]) -> Callable[[Any], None]:
        def noted(what: Any) -> None:
            notes.append(what)
            self._changed.set()

        return noted

    async def until(self, condition: Callable[[], Any]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    def call(self, hello: Hello, method: str, body: bytes) -> Awaitable[bytes] | bytes:
        match method:
            case "echo":
                return f"{hello.node_id}:".encode() + body
            case "large":
                return bytes(int(body))
            case "refuse":
                raise KafkaError(ErrorCode.NOT_CONTROLLER, "not me")
            case "wait":
                return self.wait(body)
        raise AssertionError(method)

    async def wait(self, body: bytes) -> bytes:
        self.calls_under_way += 1
        self._changed.set()
        try:
            await self.gate.wait()
        finally:
            self.calls_under_way -= 1
            self._changed.set()
        if body == b"refuse":
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)
        return body

    async def start(self) -> None:
        _, self.port = await self.listener.bind("127.0.0.1", self.port)
        await self.listener.serve()

    async def restart(self) -> None:
        self.listener = self._listener()
        await self.start()

    def peer(self, node_id: int | None = None, sender: int = 1, **options: Any) -> Peer:
        cluster_id = options.pop("cluster_id", "c")
        identity = Identity(cluster_id, sender, f"directory-{sender}", f"process-{sender}")
        given = {
            "identity": lambda: identity,
            "secret": SECRET,
            "on_connected": self.note(self.reached),
            "on_lost": lambda lost: self.note(self.events)(("lost", lost.incarnation_id)),
            "on_refused": lambda reason: self.note(self.events)(("refused", reason)),
            "on_snapshot_failed": lambda node: self.note(self.events)(("snapshot failed", node)),
        } | options
        reached = self.identity.node_id if node_id is None else node_id
        return Peer(reached, [Address("127.0.0.1", self.port)], **given)


@asynccontextmanager
async def node(**options: Any) -> AsyncIterator[Node]:
    """A node that listens."""
    started = Node(**options)
    await started.start()
    try:
        yield started
    finally:
        await started.listener.close()


@asynccontextmanager
async def pair(**options: Any) -> AsyncIterator[tuple[Node, Peer]]:
    """A node, and a peer that is connected to it."""
    async with node() as there:
        talker = there.peer(**options)
        talker.start()
        try:
            await there.until(lambda: there.reached)
            yield there, talker
        finally:
            await talker.close()


def heartbeat(round: int, sender: int = 1) -> AppendEntries:
    return AppendEntries(
        term=1, sender=sender, recipient=2, previous_index=0, previous_term=0, round=round
    )


def append(index: int, size: int = 10) -> AppendEntries:
    entry = Entry(term=1, index=index, kind=EntryKind.COMMAND, data=bytes(size))
    return AppendEntries(
        term=1, sender=1, recipient=2, previous_index=index - 1, previous_term=1, entries=(entry,)
    )


def send(talker: Peer, message: Message) -> None:
    talker.send(encode_raft(message), supersedes=supersedes(message))


INSTALL = InstallSnapshot(term=1, sender=1, recipient=2, snapshot=Snapshot(index=9, term=1))
