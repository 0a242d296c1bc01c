"""What partitions need from time to time: retention, compaction, checkpoints, producer expiry.

Everything runs in small steps between requests: a partition at a time, files removed in threads.
Partitions that nobody used since the start are looked at through their directory, and loaded only
if there may be something to remove.

Invariants
    What fails for one partition, or in one pass, is logged; the next one goes on.
    Whatever is awaited may end with the topic gone: it is looked up again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from chronik.clock import Clock
from chronik.config.effective import BrokerConfig
from chronik.metadata.image import Topic
from chronik.protocol.errors import KafkaError, ProtocolError
from chronik.replication.partition import Partition
from chronik.replication.replicas import Replicas, is_clean
from chronik.storage.cleaned_transactions import TransactionState
from chronik.storage.compaction import compact, is_due
from chronik.storage.disk import Disk
from chronik.storage.errors import StorageError, is_no_room

logger = logging.getLogger(__name__)

CHECKPOINT_INTERVAL_S: Final = 60.0  # bounds what a start after a crash must verify
CHECKPOINT_PAUSE_S: Final = 0.03  # between two: thousands at once would be seconds of a core
PRODUCER_EXPIRY_INTERVAL_S: Final = 600.0  # Kafka's producer.id.expiration.check.interval.ms
RETENTION_INITIAL_DELAY_S: Final = 30.0  # Kafka's log.initial.task.delay.ms: first let it start
IN_SYNC_CHECK_S_MIN: Final = 0.1
CAUGHT_UP_CHECK_S: Final = 1.0  # a look at 9,000 partitions takes a few milliseconds
HIGH_WATERMARK_INTERVAL_S: Final = 5.0  # Kafka's replica.high.watermark.checkpoint.interval.ms
YIELD_EVERY: Final = 20  # partitions handled between two turns of the loop

_EXPECTED: Final = (OSError, StorageError, ProtocolError, KafkaError)  # no traceback needed


class Maintenance:
    """The background work of one node's partitions."""

    def __init__(
        self, replicas: Replicas, disk: Disk, clock: Clock, config: Callable[[], BrokerConfig]
    ) -> None:
        self._replicas = replicas
        self._disk = disk
        self._clock = clock
        self._config = config

    # The tasks.

    async def retention(self) -> None:
        """Drop what retention allows, for ever."""
        interval_s = self._config().integer("log.retention.check.interval.ms") / 1000
        await asyncio.sleep(min(RETENTION_INITIAL_DELAY_S, interval_s))
        while True:
            await _guarded("retention", self.retain_all())
            await asyncio.sleep(interval_s)

    async def compaction(self) -> None:
        """Compact what has become dirty enough, for ever."""
        while True:
            await asyncio.sleep(max(self._config().integer("log.cleaner.backoff.ms"), 100) / 1000)
            if self._config().flag("log.cleaner.enable"):
                await _guarded("compaction", self.compact_all())

    async def checkpoints(self) -> None:
        """Save how far each log is known good, for ever."""
        while True:
            await asyncio.sleep(CHECKPOINT_INTERVAL_S)
            await _guarded("checkpoints", self.checkpoint_all(CHECKPOINT_PAUSE_S))

    async def producer_expiry(self) -> None:
        """Forget producers that were idle too long, for ever."""
        while True:
            await asyncio.sleep(PRODUCER_EXPIRY_INTERVAL_S)
            await _guarded("producer expiry", self.expire_all())

    async def in_sync_sets(self) -> None:
        """Take replicas that lag out of the in-sync sets, for ever."""
        while True:
            lag_max_ms = self._config().integer("replica.lag.time.max.ms")
            await asyncio.sleep(max(lag_max_ms / 2000, IN_SYNC_CHECK_S_MIN))
            if self._replicas.isr_updates is not None:
                self._replicas.isr_updates.shrink(self._replicas.loaded(), lag_max_ms)

    async def caught_up_replicas(self) -> None:
        """Take replicas into the in-sync sets whose catching up was not noticed, for ever."""
        while True:
            await asyncio.sleep(CAUGHT_UP_CHECK_S)
            if self._replicas.isr_updates is not None:
                self._replicas.isr_updates.expand(self._replicas.loaded())

    async def high_watermarks(self) -> None:
        """Save what is committed, for ever."""
        while True:
            await asyncio.sleep(HIGH_WATERMARK_INTERVAL_S)
            await _guarded("high watermarks", self._replicas.save_high_watermarks())

    # One pass of each.

    async def retain_all(self) -> None:
        """One pass over all partitions."""
        await self._load_where(self._may_expire)
        await self._each("retention", self._replicas.loaded(), self._retain)

    async def compact_all(self) -> None:
        """One pass over all compacted partitions."""
        await self._load_where(self._may_compact)
        compacted = (each for each in self._replicas.loaded() if each.config.compact)
        await self._each("compaction", compacted, self._compact)

    async def checkpoint_all(self, pause_s: float = 0.0) -> None:
        """One pass over all partitions that were written to, with a pause after each."""
        changed = [each for each in self._replicas.loaded() if not is_clean(each)]

        async def checkpoint(partition: Partition) -> None:
            await self._checkpoint(partition)
            await asyncio.sleep(pause_s)

        await self._each("checkpoint", changed, checkpoint)

    async def expire_all(self) -> None:
        """One pass over the producers of all partitions."""
        expiration_ms = self._config().integer("producer.id.expiration.ms")

        async def expire(partition: Partition) -> None:
            partition.producers.expire(self._clock.wall_ms(), expiration_ms)

        await self._each("producer expiry", self._replicas.loaded(), expire)

    async def _each(
        self,
        what: str,
        partitions: Iterable[Partition],
        work: Callable[[Partition], Awaitable[None]],
    ) -> None:
        for count, partition in enumerate(partitions):
            if count % YIELD_EVERY == 0:
                await asyncio.sleep(0)
            if partition.is_deleted:
                continue
            try:
                await work(partition)
            except Exception as error:
                if not partition.is_deleted:
                    _log_failure(what, str(partition), error)

    # Partitions that nobody used.

    async def _load_where(self, wanted: Callable[[Topic, int], Awaitable[bool]]) -> None:
        """Load the partitions with files that a pass may have work with."""
        for count, (seen, index) in enumerate(tuple(self._replicas.unloaded())):
            if count % YIELD_EVERY == 0:
                await asyncio.sleep(0)
            topic = self._replicas.image.topic_by_id(seen.id)
            if topic is None:
                continue
            try:
                if await wanted(topic, index):
                    topic = self._replicas.image.topic_by_id(seen.id)
                    if topic is not None:
                        await self._replicas.load(self._replicas.find(topic, index))
            except Exception as error:
                _log_failure("load", f"{seen.name}-{index}", error)

    async def _may_expire(self, topic: Topic, index: int) -> bool:
        config = self._replicas.config_of(topic.name).log
        if not config.delete:
            return False
        size = sum(await self._segment_sizes(topic, index))
        return size > 0 and (config.retention_ms >= 0 or 0 <= config.retention_bytes < size)

    async def _may_compact(self, topic: Topic, index: int) -> bool:
        if not self._replicas.config_of(topic.name).log.compact:
            return False
        return len(await self._segment_sizes(topic, index)) > 1

    async def _segment_sizes(self, topic: Topic, index: int) -> list[int]:
        return await self._disk.run(lambda: self._replicas.segment_sizes(topic, index))

    # One partition.

    async def _retain(self, partition: Partition) -> None:
        now_ms = self._clock.wall_ms()
        log = partition.log
        log.roll_if_due(now_ms)
        if log.config.delete and log.retain(now_ms, partition.high_watermark):
            extra = {"partition": str(partition), "log_start_offset": log.log_start_offset}
            logger.info("retention", extra=extra)
            await self._disk.run(log.checkpoint)
            partition.log_start_moved()

    async def _compact(self, partition: Partition) -> None:
        log, now_ms = partition.log, self._clock.wall_ms()
        log.roll_if_due(now_ms)
        limit_offset = partition.last_stable_offset
        if not is_due(log, now_ms, limit_offset):
            return
        if partition.snapshot_is_stale:
            # It lists aborted transactions whose markers this pass may remove.
            await self._replicas.checkpoint(partition)
        before = log.size_bytes
        last_offsets = partition.producers.last_offsets()
        with self._replicas.removals.holding(log.directory):
            await compact(log, now_ms, limit_offset, last_offsets, _transaction_state(partition))
        if not partition.is_deleted:
            sizes = {"partition": str(partition), "bytes_before": before, "bytes": log.size_bytes}
            logger.info("compacted", extra=sizes)

    async def _checkpoint(self, partition: Partition) -> None:
        if is_clean(partition):
            return
        try:
            await self._replicas.checkpoint(partition)
        except (OSError, StorageError) as error:
            if partition.is_deleted:
                return
            if is_no_room(error):
                # Nothing is lost: a crash now means more to verify, and space may come back.
                _log_failure("checkpoint", str(partition), error)
            else:
                partition.fail(str(error))


async def _guarded(what: str, work: Awaitable[None]) -> None:
    """One pass of a task that must not end."""
    try:
        await work
    except Exception as error:
        _log_failure(what, "", error)


def _log_failure(what: str, partition: str, error: Exception) -> None:
    trace = None if isinstance(error, _EXPECTED) else error
    extra = {"partition": partition, "error": str(error)}
    logger.error("%s failed", what, exc_info=trace, extra=extra)


def _transaction_state(partition: Partition) -> TransactionState:
    """What compaction must know of transactions, and how it tells which are gone."""
    producers = partition.producers

    def forget(last_offset: int) -> None:
        if producers.forget_aborted(last_offset):
            partition.snapshot_is_stale = True

    return TransactionState(
        aborted=[each[:3] for each in producers.aborted()],
        marker_epochs=producers.marker_epochs(),
        snapshot_offset=partition.snapshot_offset,
        forget=forget,
    )
