"""The follower's side of one leader node: what is appended there comes here.

One connection carries all partitions that this node follows from the other. Each is named once,
with where its log ends; then its batches come, are checked and appended as they are, and the leader
is told how far this replica has come, at once when it has written and again when that is durable.

If the leader says that the logs part, this one is cut back to where they agree and named again
(KIP-101, KIP-595). A replica that lies behind the leader's log start begins anew there.

Invariants
    A partition is followed in the leader epoch of this node's image, from one leader.
    While a log is cut nothing is appended to it: its handle has ended, and a new one has not begun.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Final, Protocol

from chronik.clock import Clock
from chronik.protocol.batch import split
from chronik.protocol.errors import CorruptBatch, ErrorCode, KafkaError, ProtocolError
from chronik.protocol.replication import (
    Data,
    Diverged,
    Follow,
    Following,
    Portion,
    Position,
    Progress,
    Rejected,
    ReplicationMessage,
    Unfollow,
    decode,
    encode,
    portions,
)
from chronik.protocol.schema import Buffer
from chronik.replication.partition import Partition
from chronik.replication.throttle import Throttle

logger = logging.getLogger(__name__)

Key = tuple[bytes, int]  # topic id and partition

NAMED_AT_ONCE: Final = 200  # partitions in one message: 10 KB, a millisecond or two of the leader
LOADED_AT_ONCE: Final = 16  # keeps the disk's threads busy; more would only queue
RECONNECT_S_MIN: Final = 0.05
RECONNECT_S_MAX: Final = 1.0
RETRY_S: Final = 0.1  # a leader that does not know of it yet soon will


class FetcherLink(Protocol):
    """A connection to the leader's node, past its handshake."""

    on_frame: Callable[[bytes], None]

    def write_parts(self, parts: list[Buffer]) -> None: ...

    def abort(self, reason: str) -> None: ...

    async def wait_closed(self) -> None: ...


class Followed(Protocol):
    """Where a fetcher finds the partitions that this node follows."""

    def find_followed(self, key: Key) -> Partition | None:
        """The partition, if this node still follows it."""

    def is_in_sync(self, key: Key) -> bool:
        """Whether this node's replica is in the in-sync set."""

    async def load(self, partition: Partition) -> None: ...

    async def truncate(self, partition: Partition, to_offset: int) -> None:
        """Cut a log back."""

    async def begin_anew(self, partition: Partition, offset: int) -> None:
        """Drop what a log holds; it goes on at an offset."""


class Fetcher:
    """Follows the partitions that one other node leads."""

    def __init__(
        self,
        leader_id: int,
        connect: Callable[[int], Awaitable[FetcherLink]],
        followed: Followed,
        clock: Clock,
        broker_epoch: Callable[[], int],
        throttle: Throttle | None = None,
    ) -> None:
        self.leader_id = leader_id
        self._connect = connect
        self._followed = followed
        self._clock = clock
        self._broker_epoch = broker_epoch
        self._throttle = throttle
        self._held: set[Key] = set()  # what these have is told later: they come too fast
        self._link: FetcherLink | None = None
        self._wanted: dict[Key, None] = {}
        self._handles: dict[Key, int] = {}
        self._keys: dict[int, Key] = {}
        self._next_handle = 0
        self._to_name: dict[Key, None] = {}
        self._refused: dict[Key, None] = {}  # named again a little later, all at once
        self._to_report: dict[Key, None] = {}
        self._report_is_due = False
        self._busy: set[Key] = set()  # what follows the end of a handle is under way
        self._naming: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._running: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._wanted)

    # What to follow.

    def follow(self, keys: Iterable[Key]) -> None:
        """Follow these, from where their logs end now; again, if they were followed before."""
        keys = tuple(keys)
        self.unfollow(keys)
        self._wanted.update(dict.fromkeys(keys))
        self._name(keys)
        if self._running is None and self._wanted:
            self._running = asyncio.get_running_loop().create_task(
                self._run(), name=f"fetcher-{self.leader_id}"
            )

    def unfollow(self, keys: Iterable[Key]) -> None:
        """Do not follow these any more."""
        ended = []
        for key in keys:
            self._wanted.pop(key, None)
            self._to_name.pop(key, None)
            self._to_report.pop(key, None)
            handle = self._handles.pop(key, None)
            if handle is not None:
                del self._keys[handle]
                ended.append(handle)
                partition = self._followed.find_followed(key)
                if partition is not None and partition.on_stored == self._stored:
                    partition.on_stored = None
        if ended:
            self._send(Unfollow(tuple(ended)))

    def unfollow_all(self) -> None:
        """Do not follow anything any more."""
        self.unfollow(tuple(self._wanted))

    def _name(self, keys: Iterable[Key]) -> None:
        self._to_name.update(dict.fromkeys(keys))
        if self._link is not None and self._naming is None and self._to_name:
            self._naming = self._start(self._name_all(), f"name-{self.leader_id}")

    async def _name_all(self) -> None:
        """Tell the leader where the logs end, loading those that were not used yet."""
        try:
            while self._to_name and self._link is not None:
                keys = [key for key, _ in zip(self._to_name, range(NAMED_AT_ONCE), strict=False)]
                await self._load(keys)
                named = [each for key in keys if (each := self._following(key)) is not None]
                if named:
                    self._send(Follow(self._broker_epoch(), tuple(named)))
                await asyncio.sleep(0)
        finally:
            self._naming = None

    async def _load(self, keys: list[Key]) -> None:
        """Recover the logs that were not used yet, some at a time."""
        found = [each for each in map(self._followed.find_followed, keys) if each is not None]
        unloaded = [each for each in found if not each.is_loaded and each.failure is None]
        for first in range(0, len(unloaded), LOADED_AT_ONCE):
            some = unloaded[first : first + LOADED_AT_ONCE]
            await asyncio.gather(*map(self._followed.load, some))

    def _following(self, key: Key) -> Following | None:
        partition = self._followed.find_followed(key)
        if self._to_name.pop(key, key) is not None or partition is None:
            return None  # Not wanted any more.
        is_ready = partition.is_loaded and partition.failure is None and partition.in_sync is None
        if not is_ready or key in self._busy:
            return None
        handle = self._next_handle = self._next_handle + 1
        self._handles[key], self._keys[handle] = handle, key
        partition.on_stored = self._stored
        log = partition.log
        epochs = log.leader_epochs
        return Following(
            handle,
            *key,
            partition.leader_epoch,
            log.end_offset,
            epochs[-1][0] if epochs else -1,
            partition.stored_offset,
        )

    # The connection.

    async def _run(self) -> None:
        delay_s = RECONNECT_S_MIN
        while not self._is_closed:
            try:
                link = await self._connect(self.leader_id)
            except (OSError, KafkaError) as error:
                logger.debug("leader away", extra={"leader": self.leader_id, "reason": str(error)})
            else:
                delay_s = RECONNECT_S_MIN
                await self._use(link)
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, RECONNECT_S_MAX)

    async def _use(self, link: FetcherLink) -> None:
        link.on_frame = self._on_frame
        self._link = link
        self._name(self._wanted)
        try:
            await link.wait_closed()
        finally:
            self._link = None
            self._handles.clear()
            self._keys.clear()
            self._to_name.clear()

    def _send(self, message: ReplicationMessage) -> None:
        if self._link is not None:
            self._link.write_parts(encode(message))

    # What the leader says.

    def _on_frame(self, frame: bytes) -> None:
        message, batches = decode(frame)
        match message:
            case Data():
                self._received(portions(message, batches))
            case Diverged():
                self._mend(message.handle, lambda key: self._cut(key, message))
            case Rejected(error_code=ErrorCode.OFFSET_OUT_OF_RANGE):
                self._mend(message.handle, lambda key: self._begin_anew(key, message))
            case Rejected():
                self._name_later(message.handle)
            case _:
                raise ProtocolError(f"{type(message).__name__} from a leader")

    def _received(self, received: list[tuple[Portion, memoryview]]) -> None:
        now_ms = self._clock.wall_ms()
        for portion, data in received:
            key = self._keys.get(portion.handle)
            partition = None if key is None else self._followed.find_followed(key)
            if key is None or partition is None:
                continue  # Sent before the leader heard that nobody wants it.
            try:
                if len(data):
                    partition.append_replicated(split(data), now_ms)
                    self._to_report[key] = None
                    self._hold_back(key, partition, len(data))
                partition.leader_moved(portion.high_watermark, portion.log_start_offset)
            except (KafkaError, CorruptBatch) as error:
                logger.error(
                    "replication failed", extra={"partition": str(partition), "error": str(error)}
                )
                self._name_later(portion.handle)
        self._report()

    def _hold_back(self, key: Key, partition: Partition, size: int) -> None:
        """Let the leader wait for the answer, and so with more, if a throttle says so."""
        throttle = self._throttle
        replicas = partition.config.follower_throttled_replicas
        if throttle is None or not throttle.concerns(replicas, partition.index):
            return
        if self._followed.is_in_sync(key):
            return
        throttle.passed(size)
        delay_s = throttle.delay_s()
        if delay_s > 0:
            self._held.add(key)
            asyncio.get_running_loop().call_later(delay_s, self._let_go, key)

    def _let_go(self, key: Key) -> None:
        self._held.discard(key)
        self._to_report[key] = None
        self._report()

    def _end(self, handle: int) -> Key | None:
        """A handle has ended; whose it was."""
        key = self._keys.pop(handle, None)
        if key is not None:
            del self._handles[key]
            self._to_report.pop(key, None)
            self._send(Unfollow((handle,)))
        return key

    def _name_later(self, handle: int) -> None:
        """Name a partition again in a while, with whatever else is refused until then."""
        key = self._end(handle)
        if key is not None:
            if not self._refused:
                asyncio.get_running_loop().call_later(RETRY_S, self._name_refused)
            self._refused[key] = None

    def _name_refused(self) -> None:
        refused, self._refused = self._refused, {}
        self._name(key for key in refused if key in self._wanted and key not in self._handles)

    def _mend(self, handle: int, then: Callable[[Key], Awaitable[None]]) -> None:
        """Do what a log needs before it is named again; that may take a while."""
        key = self._end(handle)
        if key is not None:
            self._start(self._resume(key, then), f"resume-{self.leader_id}")

    async def _resume(self, key: Key, then: Callable[[Key], Awaitable[None]]) -> None:
        self._busy.add(key)
        try:
            await then(key)
        except (OSError, KafkaError) as error:
            logger.error("replication failed", extra={"partition": key[1], "error": str(error)})
            await asyncio.sleep(RECONNECT_S_MAX)
        finally:
            self._busy.discard(key)
        if key in self._wanted and key not in self._handles:
            self._name((key,))

    async def _cut(self, key: Key, diverged: Diverged) -> None:
        partition = self._followed.find_followed(key)
        if partition is None or partition.in_sync is not None:
            return
        to_offset = diverged.end_offset
        if diverged.epoch >= 0:
            _, own_end_offset = partition.log.end_offset_for_epoch(diverged.epoch)
            to_offset = min(to_offset, max(own_end_offset, 0))
        await self._followed.truncate(partition, to_offset)

    async def _begin_anew(self, key: Key, rejected: Rejected) -> None:
        partition = self._followed.find_followed(key)
        if partition is not None:
            await self._followed.begin_anew(partition, rejected.log_start_offset)

    # What this replica has.

    def _stored(self, partition: Partition) -> None:
        """More of a log is durable."""
        self._to_report[partition.topic_id, partition.index] = None
        if not self._report_is_due:
            self._report_is_due = True
            asyncio.get_running_loop().call_soon(self._report)

    def _report(self) -> None:
        self._report_is_due = False
        keys, self._to_report = self._to_report, {}
        positions = []
        for key in keys:
            if key in self._held:
                continue
            handle = self._handles.get(key)
            partition = self._followed.find_followed(key)
            if handle is not None and partition is not None:
                log = partition.log
                positions.append(Position(handle, log.end_offset, partition.stored_offset))
        if positions:
            self._send(Progress(tuple(positions)))

    # The end.

    async def close(self) -> None:
        """Follow nothing any more; no task is left."""
        self._is_closed = True
        self.unfollow(tuple(self._wanted))
        if self._link is not None:
            self._link.abort("closed by us")
        tasks = [*self._tasks, *([self._running] if self._running is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
