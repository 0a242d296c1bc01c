"""Another node of the cluster, as seen from this one: Raft messages, calls and snapshots to it.

Two connections, so that nothing waits behind something large: one that is kept open and carries
Raft messages only, and one that is opened on demand for calls and the parts of snapshots.

Raft messages are sent and forgotten. While the peer is away, or slower than we are, they wait in a
bounded queue, in which a newer heartbeat takes the place of an older one; what does not fit is
dropped, for Raft sends it again. `send` never waits.

A call has an answer, an error by code, or ConnectionFailed, within its timeout. If that is NotSent,
the peer certainly never saw the call.

`on_lost` says that a Raft connection that had worked is gone, and whose process was at its other
end: usually it has died. It names the incarnation, because by then there may be another.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from chronik.client.internal_calls import CallLink
from chronik.client.internal_link import FrameLink, NotSent, PeerRefused, open_link
from chronik.client.link import Address, ConnectionFailed
from chronik.protocol.errors import KafkaError, ProtocolError
from chronik.protocol.internal import (
    SNAPSHOT_CHUNK_BYTES,
    Answer,
    Call,
    Challenge,
    Identity,
    InternalMessage,
    Purpose,
    Raft,
    SnapshotData,
    encode_frame,
)

__all__ = ["ConnectionFailed", "NotSent", "Peer", "PeerRefused", "SendQueue"]

logger = logging.getLogger(__name__)

BACKOFF_S_MIN: Final = 0.05
BACKOFF_S_MAX: Final = 1.0
# Queued for an open connection: all the appends that Raft has on their way to one follower (16 of
# 1 MiB), and acknowledgements beside them.
QUEUE_BYTES_MAX: Final = 20 * 1024 * 1024
QUEUE_MESSAGES_MAX: Final = 1_000
# Queued while there is no connection: votes and replies, for the moment in which it comes. An
# append would be out of date by then.
AWAY_BYTES_MAX: Final = 64 * 1024
AWAY_MESSAGES_MAX: Final = 100
WRITE_BYTES: Final = 64 * 1024  # joined into one write
SNAPSHOT_PART_TIMEOUT_S: Final = 10.0  # a MiB at a tenth of a MiB a second
REFUSALS_REMEMBERED_MAX: Final = 16


class SendQueue:
    """Frames that wait for the connection, oldest first; of those that supersede, one of a kind."""

    def __init__(self) -> None:
        self.bytes_queued = 0
        self.dropped_count = 0
        self._frames: dict[object, bytes] = {}

    def __len__(self) -> int:
        return len(self._frames)

    def put(self, message: Raft, *, supersedes: bool, is_away: bool) -> None:
        """Queue a message, if there is room for it."""
        try:
            frame = encode_frame(message)
        except ProtocolError as error:
            logger.error("Raft message dropped", extra={"reason": str(error)})
            self.dropped_count += 1
            return
        key: object = message.kind if supersedes else object()
        self._forget(key)
        if is_away:
            # The oldest go first: what is most out of date helps nobody.
            while self._frames and not self._fits(frame, AWAY_BYTES_MAX, AWAY_MESSAGES_MAX):
                self._forget(next(iter(self._frames)))
                self.dropped_count += 1
            fits = self._fits(frame, AWAY_BYTES_MAX, AWAY_MESSAGES_MAX)
        else:
            # The newest go first: an append after a gap would only be refused. Heartbeats always
            # fit; there is one of each kind.
            fits = supersedes or self._fits(frame, QUEUE_BYTES_MAX, QUEUE_MESSAGES_MAX)
        if fits:
            self._frames[key] = frame
            self.bytes_queued += len(frame)
        else:
            self.dropped_count += 1

    def take(self) -> bytes:
        """The next frames, joined for one write."""
        taken: list[bytes] = []
        size = 0
        while self._frames and size < WRITE_BYTES:
            frame = self._forget(next(iter(self._frames)))
            taken.append(frame)
            size += len(frame)
        return b"".join(taken)

    def clear(self) -> None:
        self._frames.clear()
        self.bytes_queued = 0

    def _fits(self, frame: bytes, bytes_max: int, messages_max: int) -> bool:
        return self.bytes_queued + len(frame) <= bytes_max and len(self._frames) < messages_max

    def _forget(self, key: object) -> bytes:
        frame = self._frames.pop(key, b"")
        self.bytes_queued -= len(frame)
        return frame


class Peer:
    """A node that we talk to. Without a node id it is whoever listens there: only for calls."""

    def __init__(
        self,
        node_id: int | None,
        addresses: Sequence[Address],
        *,
        identity: Callable[[], Identity],
        secret: bytes,
        own_address: tuple[str, int] = ("", 0),
        admit: Callable[[Identity], str | None] | None = None,
        on_connected: Callable[[Identity], None] | None = None,
        on_lost: Callable[[Identity], None] | None = None,
        on_refused: Callable[[str], None] | None = None,
        on_snapshot_failed: Callable[[int], None] | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        assert addresses
        self.node_id = node_id
        self.addresses = tuple(addresses)
        self.reached: Identity | None = None  # who answered last, as it has proved
        self.queue = SendQueue()
        self._identity = identity
        self._secret = secret
        self._own_address = own_address
        self._admit = admit
        self._on_connected = on_connected
        self._on_lost = on_lost
        self._on_refused = on_refused
        self._on_snapshot_failed = on_snapshot_failed
        self._jitter = jitter
        self._raft: FrameLink | None = None
        self._calls: CallLink | None = None
        self._opening = asyncio.Lock()
        self._open_failures = 0
        self._last_failure: NotSent | None = None
        self._flush_is_due = False
        self._is_closed = False
        self._wake = asyncio.Event()
        self._refusals: set[str] = set()
        self._links: set[FrameLink] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._snapshot: asyncio.Task[None] | None = None

    @property
    def is_connected(self) -> bool:
        """Whether Raft messages leave at once."""
        return self._raft is not None

    def start(self) -> None:
        """Keep a Raft connection open from now on."""
        assert self.node_id is not None
        self._task(self._keep_open(), f"peer-{self.node_id}")

    def move(self, addresses: Sequence[Address]) -> None:
        """The peer listens elsewhere; connections that work stay."""
        assert addresses
        if tuple(addresses) != self.addresses:
            self.addresses = tuple(addresses)
            self.wake()

    def wake(self) -> None:
        """There is a reason to believe that the peer is there: try it without more delay."""
        self._wake.set()

    async def close(self) -> None:
        """End both connections; no task is left."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for link in tuple(self._links):
            link.abort("closed by us")
            await link.wait_closed()
        self._raft = self._calls = None
        self.queue.clear()

    async def open_replication(self) -> FrameLink:
        """A connection for following partitions that the peer leads, or NotSent."""
        link, _ = await self._open("replicate")
        link.on_closed = lambda _: self._links.discard(link)
        return link

    # Raft messages.

    def send(self, message: Raft, *, supersedes: bool = False) -> None:
        """Send a Raft message, or drop it; one that supersedes replaces one of its kind."""
        if self._is_closed:
            return
        self.queue.put(message, supersedes=supersedes, is_away=self._raft is None)
        if self._raft is not None and not self._flush_is_due:
            self._flush_is_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        while self._raft is not None and self._raft.is_writable and self.queue:
            self._raft.write(self.queue.take())

    async def _keep_open(self) -> None:
        loop = asyncio.get_running_loop()
        delay_s = BACKOFF_S_MIN
        while True:
            self._wake.clear()
            try:
                link, peer = await self._open("raft")
            except NotSent as error:
                logger.debug("peer away", extra={"peer": self.node_id, "reason": str(error)})
            else:
                opened = loop.time()
                await self._use(link, peer)
                # One that ends at once counts as a failure, or two nodes would knock without end.
                if loop.time() - opened > BACKOFF_S_MAX:
                    delay_s = BACKOFF_S_MIN
            await self._pause(delay_s * (0.5 + self._jitter() / 2))
            delay_s = min(delay_s * 2, BACKOFF_S_MAX)

    async def _use(self, link: FrameLink, peer: Challenge) -> None:
        """Send over this connection until it is gone."""
        link.on_writable = self._flush
        self._raft = link
        self._flush()
        if self._on_connected is not None:
            self._on_connected(peer)
        await link.wait_closed()
        self._raft = None
        self._links.discard(link)
        self.queue.clear()  # What follows on what was lost is of no use.
        logger.info("peer lost", extra={"peer": self.node_id})
        if self._on_lost is not None:
            self._on_lost(peer)

    async def _pause(self, delay_s: float) -> None:
        try:
            async with asyncio.timeout(delay_s):
                await self._wake.wait()
        except TimeoutError:
            pass

    # Calls and snapshots.

    async def call(self, method: str, body: bytes, timeout_s: float) -> bytes:
        """The peer's answer; KafkaError if it refuses, ConnectionFailed if there is none."""
        answer = await self._ask(lambda number: Call(number, method, body), method, timeout_s)
        return answer.body

    def send_snapshot(self, message: Raft, data: bytes) -> None:
        """Send a snapshot part by part, instead of one that is under way; failure is reported."""
        if self._is_closed:
            return
        if self._snapshot is not None:
            self._snapshot.cancel()
        name = f"snapshot-{self.node_id}"
        self._snapshot = self._task(self._send_snapshot(message, data), name)

    async def _send_snapshot(self, message: Raft, data: bytes) -> None:
        size = len(data)
        try:
            for position in range(0, size or 1, SNAPSHOT_CHUNK_BYTES):
                part = data[position : position + SNAPSHOT_CHUNK_BYTES]
                await self._send_part(message, position, size, part)
        except (KafkaError, ConnectionFailed) as error:
            extra = {"peer": self.node_id, "bytes": size, "reason": str(error)}
            logger.warning("snapshot not delivered", extra=extra)
            if self._on_snapshot_failed is not None and self.node_id is not None:
                self._on_snapshot_failed(self.node_id)

    async def _send_part(self, message: Raft, position: int, size: int, part: bytes) -> None:
        def make(number: int) -> InternalMessage:
            return SnapshotData(number, message, position, size, part)

        await self._ask(make, "a part of a snapshot", SNAPSHOT_PART_TIMEOUT_S)

    async def _ask(
        self, make: Callable[[int], InternalMessage], what: str, timeout_s: float
    ) -> Answer:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        try:
            async with asyncio.timeout_at(deadline):
                calls = await self._call_link()
        except TimeoutError:
            reason = f"not reached within {timeout_s:g} s"
            raise NotSent(self.addresses[0], reason) from None
        return await calls.ask(make, what, deadline)

    async def _call_link(self) -> CallLink:
        failures = self._open_failures
        async with self._opening:
            if self._calls is not None and self._calls.link.is_open:
                return self._calls
            if self._open_failures != failures and self._last_failure is not None:
                # Somebody tried while we waited for our turn: once is enough.
                failure = self._last_failure
                raise type(failure)(failure.address, failure.reason)
            try:
                link, _ = await self._open("call")
            except NotSent as error:
                self._open_failures += 1
                self._last_failure = type(error)(error.address, error.reason)
                raise
            if self._calls is not None:
                self._links.discard(self._calls.link)
            self._calls = CallLink(link, self.addresses[0])
            return self._calls

    # Connecting.

    async def _open(self, purpose: Purpose) -> tuple[FrameLink, Challenge]:
        """A connection to the first address that works."""
        failure: NotSent | None = None
        if self._is_closed:
            raise NotSent(self.addresses[0], "closed by us")
        for address in self.addresses:
            link = FrameLink()
            self._links.add(link)
            try:
                peer = await open_link(
                    link,
                    address,
                    identity=self._identity(),
                    purpose=purpose,
                    secret=self._secret,
                    node_id=self.node_id,
                    own_address=self._own_address,
                )
                await self._check(link, address, peer)
            except BaseException as error:
                self._links.discard(link)
                if not isinstance(error, NotSent):
                    raise
                failure = error
                if isinstance(error, PeerRefused):
                    self._refused(str(error))
                continue
            self.reached = peer
            self._refusals.clear()
            return link, peer
        assert failure is not None
        raise failure

    async def _check(self, link: FrameLink, address: Address, peer: Challenge) -> None:
        """Whom we would not let in, we do not talk to either."""
        reason = None if self._admit is None else self._admit(peer)
        if reason is not None:
            link.abort(reason)
            await link.wait_closed()
            raise PeerRefused(address, reason)

    def _refused(self, reason: str) -> None:
        if reason in self._refusals or len(self._refusals) >= REFUSALS_REMEMBERED_MAX:
            return
        self._refusals.add(reason)
        logger.warning("peer refused", extra={"peer": self.node_id, "reason": reason})
        if self._on_refused is not None:
            self._on_refused(reason)

    def _task(self, work: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
