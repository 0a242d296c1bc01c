"""What partitions need from time to time: retention, compaction, checkpoints, producer expiry.

Everything runs in small steps between requests: a partition at a time, files removed in threads.
Partitions that nobody used since the start are looked at through their directory, and loaded only
if there may be something to remove.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from chronik.clock import Clock
from chronik.config.effective import BrokerConfig
from chronik.metadata.image import Topic
from chronik.protocol.errors import ProtocolError
from chronik.replication.partition import Partition
from chronik.replication.replicas import Replicas
from chronik.storage.compaction import compact, is_due
from chronik.storage.disk import Disk
from chronik.storage.errors import StorageError

logger = logging.getLogger(__name__)

CHECKPOINT_INTERVAL_S: Final = 60.0  # bounds what a start after a crash must verify
PRODUCER_EXPIRY_INTERVAL_S: Final = 600.0  # Kafka's producer.id.expiration.check.interval.ms
RETENTION_INITIAL_DELAY_S: Final = 30.0  # Kafka's log.initial.task.delay.ms: first let it start
YIELD_EVERY: Final = 20  # partitions handled between two turns of the loop


class Maintenance:
    """The background work of one node's partitions."""

    def __init__(
        self, replicas: Replicas, disk: Disk, clock: Clock, config: Callable[[], BrokerConfig]
    ) -> None:
        self._replicas = replicas
        self._disk = disk
        self._clock = clock
        self._config = config
        self._checkpointed: dict[Partition, int] = {}

    async def retention(self) -> None:
        """Drop what retention allows, for ever."""
        interval_ms = self._config().integer("log.retention.check.interval.ms")
        await asyncio.sleep(min(RETENTION_INITIAL_DELAY_S, interval_ms / 1000))
        while True:
            await self.retain_all()
            await asyncio.sleep(interval_ms / 1000)

    async def retain_all(self) -> None:
        """One pass over all partitions."""
        for count, (topic, index) in enumerate(tuple(self._replicas.unloaded())):
            if count % YIELD_EVERY == 0:
                await asyncio.sleep(0)
            if await self._disk.run(lambda: self._may_expire(topic, index)):  # noqa: B023
                await self._replicas.load(self._replicas.find(topic, index))
        for count, partition in enumerate(self._replicas.loaded()):
            if count % YIELD_EVERY == 0:
                await asyncio.sleep(0)
            await self._retain(partition)

    def _may_expire(self, topic: Topic, index: int) -> bool:
        """Whether an unloaded partition may hold something that retention removes. Blocking."""
        config = self._replicas.config_of(topic.name).log
        if not config.delete:
            return False
        size = sum(self._segment_sizes(topic, index))
        return size > 0 and (config.retention_ms >= 0 or 0 <= config.retention_bytes < size)

    def _segment_sizes(self, topic: Topic, index: int) -> list[int]:
        directory = self._replicas.directory_of(topic, index)
        names = [name for name in self._disk.list(directory) if name.endswith(".log")]
        return [self._disk.size(f"{directory}/{name}") for name in names]

    async def _retain(self, partition: Partition) -> None:
        now_ms = self._clock.wall_ms()
        log = partition.log
        try:
            log.roll_if_due(now_ms)
            if log.config.delete and log.retain(now_ms, partition.high_watermark):
                logger.info(
                    "retention",
                    extra={"partition": str(partition), "log_start_offset": log.log_start_offset},
                )
                await self._disk.run(log.checkpoint)
                partition.log_start_moved()
        except (OSError, StorageError) as error:
            logger.error("retention failed", extra={"partition": str(partition), "error": error})

    async def compaction(self) -> None:
        """Compact what has become dirty enough, for ever."""
        while True:
            await asyncio.sleep(max(self._config().integer("log.cleaner.backoff.ms"), 100) / 1000)
            if self._config().flag("log.cleaner.enable"):
                await self.compact_all()

    async def compact_all(self) -> None:
        """One pass over all compacted partitions."""
        for topic, index in tuple(self._replicas.unloaded()):
            config = self._replicas.config_of(topic.name).log
            if config.compact and len(self._segment_sizes(topic, index)) > 1:
                await self._replicas.load(self._replicas.find(topic, index))
        for count, partition in enumerate(self._replicas.loaded()):
            if count % YIELD_EVERY == 0:
                await asyncio.sleep(0)
            if partition.config.compact:
                await self._compact(partition)

    async def _compact(self, partition: Partition) -> None:
        log, now_ms = partition.log, self._clock.wall_ms()
        log.roll_if_due(now_ms)
        limit_offset = partition.last_stable_offset
        if not is_due(log, now_ms, limit_offset):
            return
        before = log.size_bytes
        try:
            await compact(log, now_ms, limit_offset, partition.producers.last_offsets())
        except (OSError, StorageError, ProtocolError) as error:
            if not partition.is_deleted:
                extra = {"partition": str(partition), "error": error}
                logger.error("compaction failed", extra=extra)
            return
        sizes = {"partition": str(partition), "bytes_before": before, "bytes": log.size_bytes}
        logger.info("compacted", extra=sizes)

    async def checkpoints(self) -> None:
        """Save how far each log is known good, for ever."""
        while True:
            await asyncio.sleep(CHECKPOINT_INTERVAL_S)
            for partition in self._replicas.loaded():
                end_offset = partition.log.durable_offset
                if self._checkpointed.get(partition, 0) >= end_offset:
                    continue
                try:
                    await self._replicas.checkpoint(partition)
                except (OSError, StorageError) as error:
                    partition.fail(str(error))
                else:
                    self._checkpointed[partition] = end_offset

    async def producer_expiry(self) -> None:
        """Forget producers that were idle too long, for ever."""
        while True:
            await asyncio.sleep(PRODUCER_EXPIRY_INTERVAL_S)
            expiration_ms = self._config().integer("producer.id.expiration.ms")
            for count, partition in enumerate(self._replicas.loaded()):
                if count % YIELD_EVERY == 0:
                    await asyncio.sleep(0)
                partition.producers.expire(self._clock.wall_ms(), expiration_ms)
