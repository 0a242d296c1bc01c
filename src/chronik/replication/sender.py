"""The leader's side of one follower node: what is appended here goes there.

One connection carries all partitions that the other node follows from this one. A feed is one of
them: it knows where the follower's log ends, and sends from there as soon as there is more, a
portion at a time: the next leaves when the follower has said that it has this one. What is
appended in one turn of the loop leaves in one message.

A follower is sent what the leader has not yet made durable itself (DESIGN, rule 19); what the
follower says it has stored is what moves the high watermark. A high watermark that moved without
new batches is told a moment later: most often the next batches take it along.

Invariants
    Nothing is sent in another leader epoch than the one the follower named.
    A feed has one portion under way, so a slow follower costs a portion a partition.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final, Protocol

from chronik.clock import Clock
from chronik.metadata.image import Image
from chronik.protocol.errors import ErrorCode, KafkaError, ProtocolError
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
)
from chronik.protocol.schema import Buffer
from chronik.replication.leader_epochs import check_leader_epoch, end_offset_for_epoch
from chronik.replication.partition import Partition
from chronik.replication.throttle import Throttle
from chronik.storage.errors import CorruptLog

logger = logging.getLogger(__name__)

PORTION_BYTES_MAX: Final = 1024 * 1024  # Kafka's replica.fetch.max.bytes
MESSAGE_BYTES_MAX: Final = 4 * 1024 * 1024  # some milliseconds of the wire
FEEDS_AT_ONCE: Final = 500  # in one turn of the loop: some milliseconds, if all are refused
FOLLOWED_AT_ONCE: Final = 16  # partitions that are loaded, and begin in one turn of the loop
HIGH_WATERMARK_DELAY_S: Final = 0.005  # how late a follower may hear of one without batches


class ReplicationLink(Protocol):
    """A connection to the other node."""

    is_writable: bool

    def write_parts(self, parts: list[Buffer]) -> None: ...


class Led(Protocol):
    """Where a sender finds the partitions that this node leads."""

    @property
    def image(self) -> Image: ...

    def find_led(self, topic_id: bytes, index: int) -> Partition:
        """The partition, or KafkaError."""

    async def load(self, partition: Partition) -> None: ...

    @property
    def damaged(self) -> set[Partition]:
        """Partitions whose log turned out to be damaged."""

    def follower_caught_up(self, partition: Partition, node_id: int) -> None:
        """Somebody may have come far enough to be in sync."""


class _Feed:
    """One partition on its way to one follower."""

    __slots__ = ("end_offset", "handle", "leader_epoch", "partition", "sender", "told")

    def __init__(self, sender: "Sender", following: Following, partition: Partition) -> None:
        self.sender = sender
        self.partition = partition
        self.handle = following.handle
        self.leader_epoch = following.leader_epoch
        self.end_offset = following.end_offset  # the follower's, as far as it has said
        self.told = (-1, -1)  # high watermark and log start, as the follower knows them

    def appended(self) -> None:
        self.sender.feed_soon(self)

    def moved(self, partition: Partition, bytes_appended: int, bytes_stable: int) -> None:
        self.sender.tell_soon(self)
        if not bytes_appended:
            self.sender.feed_soon(self)  # Something else happened: it finds out what.

    @property
    def offsets(self) -> tuple[int, int]:
        return self.partition.high_watermark, self.partition.log.log_start_offset


class Sender:
    """Feeds one follower node over one connection."""

    def __init__(
        self,
        node_id: int,
        link: ReplicationLink,
        led: Led,
        clock: Clock,
        read_cold: Callable[[Callable[[], Buffer | None]], "asyncio.Future[Buffer | None]"],
        throttle: Throttle | None = None,
    ) -> None:
        self._node_id = node_id
        self._link = link
        self._led = led
        self._clock = clock
        self._read_cold = read_cold
        self._throttle = throttle
        self._broker_epoch = -1
        self._feeds: dict[int, _Feed] = {}
        self._ready: dict[_Feed, None] = {}
        self._under_way: dict[_Feed, int] = {}  # where the log will end with what was sent
        self._to_tell: dict[_Feed, None] = {}
        self._unwanted: set[int] = set()  # handles that ended, maybe before they began
        self._flush_is_due = False
        self._telling: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    # What the follower says.

    def on_frame(self, frame: bytes) -> None:
        """A message of the follower."""
        message, rest = decode(frame)
        if len(rest):
            raise ProtocolError("batches from a follower")
        match message:
            case Progress():
                self._progress(message)
            case Follow():
                self._broker_epoch = message.broker_epoch
                self._start(self._follow(message), f"follow-{self._node_id}")
            case Unfollow():
                for handle in message.handles:
                    self._unwanted.add(handle)
                    self._unfollowed(handle)
            case _:
                raise ProtocolError(f"{type(message).__name__} from a follower")

    def _unfollowed(self, handle: int) -> None:
        """The follower does not want it any more, or will say anew where it is."""
        feed = self._feeds.get(handle)
        self._forget(handle)
        if feed is not None and feed.partition.in_sync is not None:
            feed.partition.in_sync.lost(self._node_id)

    async def _follow(self, message: Follow) -> None:
        for first in range(0, len(message.partitions), FOLLOWED_AT_ONCE):
            some = message.partitions[first : first + FOLLOWED_AT_ONCE]
            await self._load(some)
            for following in some:
                try:
                    partition = self._led.find_led(following.topic_id, following.partition)
                    if not self._is_closed and following.handle not in self._unwanted:
                        self._begin(partition, following)
                except KafkaError as error:
                    self._send(Rejected(following.handle, error.code))
        self._unwanted.clear()

    async def _load(self, followed: Sequence[Following]) -> None:
        """Recover the logs that were not used yet."""
        unloaded = []
        for following in followed:
            with suppress(KafkaError):  # It is told when it begins.
                partition = self._led.find_led(following.topic_id, following.partition)
                if not partition.is_loaded and partition.failure is None:
                    unloaded.append(partition)
        await asyncio.gather(*map(self._led.load, unloaded))

    def _begin(self, partition: Partition, following: Following) -> None:
        if partition.failure is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
        if not partition.is_loaded:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)  # Being cut back just now.
        check_leader_epoch(partition, following.leader_epoch)
        if partition.in_sync is None or self._node_id not in partition.in_sync.followers:
            # The follower knows already that it is one, and will ask again: what it says now would
            # be forgotten, and of a partition at rest it says nothing else.
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        handle, end_offset = following.handle, following.end_offset
        log_start_offset = partition.log.log_start_offset
        diverged = _divergence(partition, following)
        if diverged is not None:
            self._send(diverged)
        elif end_offset < log_start_offset:
            self._send(Rejected(handle, ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset))
        else:
            feed = self._feeds[handle] = _Feed(self, following, partition)
            if partition.feeds is None:
                partition.feeds = {}
            partition.feeds[feed] = None
            partition.watch(feed)
            self._moved(feed, Position(handle, end_offset, following.stored_offset))
            self.tell_soon(feed)

    def _progress(self, message: Progress) -> None:
        for position in message.positions:
            feed = self._feeds.get(position.handle)
            if feed is not None:  # Else it is of a handle that has ended meanwhile.
                self._moved(feed, position)

    def _moved(self, feed: _Feed, position: Position) -> None:
        partition = feed.partition
        if not self._is_current(feed):
            return
        feed.end_offset = position.end_offset
        if self._under_way.get(feed, position.end_offset) <= position.end_offset:
            self._under_way.pop(feed, None)
            if position.end_offset < partition.log.end_offset:
                self.feed_soon(feed)
        partition.replica_progressed(
            self._node_id,
            self._broker_epoch,
            position.end_offset,
            position.stored_offset,
            int(self._clock.monotonic() * 1000),
        )
        self._led.follower_caught_up(partition, self._node_id)

    def _is_current(self, feed: _Feed) -> bool:
        partition = feed.partition
        return partition.in_sync is not None and partition.leader_epoch == feed.leader_epoch

    # What goes to the follower.

    def feed_soon(self, feed: _Feed) -> None:
        """At the end of this turn of the loop, send what there is."""
        self._ready[feed] = None
        if not self._flush_is_due:
            self._flush_is_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def tell_soon(self, feed: _Feed) -> None:
        """Tell the high watermark with the next batches, or in a moment."""
        self._to_tell[feed] = None
        if self._telling is None:
            loop = asyncio.get_running_loop()
            self._telling = loop.call_later(HIGH_WATERMARK_DELAY_S, self._tell)

    def _tell(self) -> None:
        self._telling = None
        feeds, self._to_tell = self._to_tell, {}
        told = [each for each in feeds if each.handle in self._feeds and each.offsets != each.told]
        if told:
            self._send_portions([(feed, b"") for feed in told])

    def flush(self) -> None:
        """The connection takes more again."""
        if self._ready and not self._flush_is_due:
            self._flush_is_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        portions: list[tuple[_Feed, Buffer]] = []
        size = 0
        for feed in list(islice(self._ready, FEEDS_AT_ONCE)):
            if not self._link.is_writable or size >= MESSAGE_BYTES_MAX:
                break
            self._ready.pop(feed, None)
            if self._feeds.get(feed.handle) is not feed or feed in self._under_way:
                continue  # It is gone, or will be looked at when the follower has answered.
            throttle = self._throttle_of(feed)
            if throttle is not None and (delay_s := throttle.delay_s()) > 0:
                asyncio.get_running_loop().call_later(delay_s, self.feed_soon, feed)
                continue
            data = self._read(feed)
            if len(data):
                portions.append((feed, data))
                size += len(data)
        if portions:
            self._send_portions(portions)
        if self._ready and self._link.is_writable:
            self.flush()

    def _throttle_of(self, feed: _Feed) -> Throttle | None:
        """What holds this feed back: only replicas that are not in sync are."""
        partition, throttle = feed.partition, self._throttle
        replicas = partition.config.leader_throttled_replicas
        if throttle is None or not throttle.concerns(replicas, partition.index):
            return None
        in_sync = partition.in_sync
        return None if in_sync is not None and self._node_id in in_sync.isr else throttle

    def _portion_bytes(self, feed: _Feed) -> int:
        throttle = self._throttle_of(feed)
        return PORTION_BYTES_MAX if throttle is None else throttle.portion_bytes(PORTION_BYTES_MAX)

    def _read(self, feed: _Feed) -> Buffer:
        """The next portion, if it can be had now."""
        partition = feed.partition
        try:
            if not self._is_current(feed):
                raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
            data = partition.read_for_follower(feed.end_offset, self._portion_bytes(feed))
        except KafkaError as error:
            self._reject(feed, error)
            return b""
        if data is None:
            self._under_way[feed] = feed.end_offset + 1  # So that nobody reads it twice.
            self._start(self._read_from_disk(feed), f"replicate-{partition}")
            return b""
        return data

    async def _read_from_disk(self, feed: _Feed) -> None:
        offset, partition = feed.end_offset, feed.partition
        bytes_max = self._portion_bytes(feed)
        try:
            data = await self._read_cold(
                lambda: partition.read_for_follower(offset, bytes_max, nowait=False)
            )
            if not self._is_current(feed):
                raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        except KafkaError as error:
            self._reject(feed, error)
            return
        self._under_way.pop(feed, None)
        if data is not None and len(data) and self._feeds.get(feed.handle) is feed:
            self._send_portions([(feed, data)])

    def _send_portions(self, portions: list[tuple[_Feed, Buffer]]) -> None:
        heads = []
        for feed, data in portions:
            feed.told = feed.offsets
            heads.append(Portion(feed.handle, *feed.told, len(data)))
            if len(data):
                self._under_way[feed] = feed.end_offset + 1
                throttle = self._throttle_of(feed)
                if throttle is not None:
                    throttle.passed(len(data))
        self._send(Data(tuple(heads)), [data for _, data in portions if len(data)])

    def _send(self, message: ReplicationMessage, batches: list[Buffer] | None = None) -> None:
        if not self._is_closed:
            self._link.write_parts(encode(message, batches or ()))

    def _reject(self, feed: _Feed, error: KafkaError) -> None:
        if isinstance(error.__cause__, CorruptLog):
            self._led.damaged.add(feed.partition)  # Others have it whole, and shall lead.
        if self._feeds.get(feed.handle) is feed:
            start = feed.partition.log.log_start_offset
            self._send(Rejected(feed.handle, error.code, start))
            self._forget(feed.handle)

    # The end.

    def _forget(self, handle: int) -> None:
        feed = self._feeds.pop(handle, None)
        if feed is None:
            return
        partition = feed.partition
        self._ready.pop(feed, None)
        self._under_way.pop(feed, None)
        self._to_tell.pop(feed, None)
        partition.unwatch(feed)
        if partition.feeds is not None:
            partition.feeds.pop(feed, None)
            if not partition.feeds:
                partition.feeds = None

    def close(self) -> None:
        """The connection is gone."""
        self._is_closed = True
        for handle, feed in tuple(self._feeds.items()):
            self._forget(handle)
            in_sync = feed.partition.in_sync
            if in_sync is not None and not self._is_fed_by_another(feed.partition):
                in_sync.lost(self._node_id)
        if self._telling is not None:
            self._telling.cancel()
        for task in self._tasks:
            task.cancel()

    def _is_fed_by_another(self, partition: Partition) -> bool:
        """Whether the follower has come back before anybody noticed that it was gone."""
        feeds = (each for each in partition.feeds or () if isinstance(each, _Feed))
        return any(each.sender._node_id == self._node_id for each in feeds)

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _divergence(partition: Partition, following: Following) -> Diverged | None:
    """Where the follower's log and ours part, if its last epoch says so (KIP-595)."""
    asked, handle = following.last_epoch, following.handle
    epochs = partition.log.leader_epochs
    epoch, end_offset = end_offset_for_epoch(partition, asked) if asked >= 0 else (-1, -1)
    if epoch < 0:
        # It has nothing, or nothing that we still have: the same up to where ours begins.
        end_offset = epochs[0][1] if epochs else partition.log.end_offset
        is_same = following.end_offset <= end_offset
    else:
        is_same = epoch == asked and following.end_offset <= end_offset
    return None if is_same else Diverged(handle, epoch, end_offset)
