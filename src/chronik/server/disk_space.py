"""A full disk: the node lets others lead, serves reads and deletes, and comes back by itself.

Once a second it looks how much room there is, and at once if a write failed for want of it. While
the disk is full partitions take no records, what others lead is not fetched, and the cluster is
told: whoever can leads instead, and nobody waits for this replica. The reserve is given up to the
metadata log. When enough was deleted the reserve is taken again, and all of this ends.

Invariant: the cluster is told that there is room only after the reserve was taken, and this node
follows others again only after it was told: who is caught up may then be in sync.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from chronik.metadata.commands import SetDiskFull
from chronik.metadata.runtime import MetadataRuntime
from chronik.protocol.errors import KafkaError
from chronik.replication.following import Following
from chronik.replication.room import Room
from chronik.storage.disk import Disk
from chronik.storage.reserve import RESERVE_BYTES, Reserve

logger = logging.getLogger(__name__)

CHECK_S: Final = 1.0
# Far more than can be written between two looks: as long as there is this much, no reserve is held.
PLENTY_BYTES: Final = 4 * 1024 * 1024 * 1024
# Checkpoints and other small files of thousands of partitions find room below this.
LOW_BYTES: Final = 16 * 1024 * 1024
# With less the next seconds would fill it again.
BACK_BYTES: Final = 2 * LOW_BYTES + RESERVE_BYTES


class DiskSpace:
    """Watches the room in one data directory."""

    def __init__(
        self,
        *,
        disk: Disk,
        data_dir: str,
        room: Room,
        following: Following,
        metadata: MetadataRuntime,
        node_id: int,
        broker_epoch: Callable[[], int],
    ) -> None:
        self._disk = disk
        self._data_dir = data_dir
        self._room = room
        self._following = following
        self._metadata = metadata
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._reserve = Reserve(disk, data_dir)
        self._ran_out = asyncio.Event()
        self._is_logged = False
        room.on_full = self._ran_out.set

    async def watch(self) -> None:
        """For ever."""
        while True:
            try:
                await self._look()
            except (OSError, KafkaError) as error:
                logger.warning("disk space", extra={"error": str(error)})
            try:
                async with asyncio.timeout(CHECK_S):
                    await self._ran_out.wait()
            except TimeoutError:
                pass
            self._ran_out.clear()

    async def _look(self) -> None:
        """One look, and what follows from it. All of it may be done twice."""
        free_bytes = await self._disk.run(lambda: self._disk.free_bytes(self._data_dir))
        if self._room.is_full and free_bytes >= BACK_BYTES:
            self._room.is_full = not await self._disk.run(self._reserve.take)
        elif free_bytes < LOW_BYTES:
            self._room.is_full = True
        self._log(free_bytes)
        if self._room.is_full:
            await self._rest()
        else:
            await self._go_on(free_bytes)

    async def _rest(self) -> None:
        self._following.pause()
        if self._reserve.is_held:
            await self._disk.run(self._reserve.give_up)
            self._metadata.consensus.retry()
        # Each time: others may have come into sync since, and can lead now.
        await self._tell(is_full=True)

    async def _go_on(self, free_bytes: int) -> None:
        if free_bytes < PLENTY_BYTES and not self._reserve.is_held:
            await self._disk.run(self._reserve.take)
        elif free_bytes > 2 * PLENTY_BYTES and self._reserve.is_held:
            await self._disk.run(self._reserve.give_up)
        own = self._metadata.image.brokers.get(self._node_id)
        if own is not None and own.is_full:
            await self._tell(is_full=False)
        if not self._room.is_full:  # It may have run out meanwhile.
            self._following.resume()

    async def _tell(self, *, is_full: bool) -> None:
        command = SetDiskFull(
            node_id=self._node_id, broker_epoch=self._broker_epoch(), is_full=is_full
        )
        await self._metadata.submit(command)

    def _log(self, free_bytes: int) -> None:
        if self._room.is_full != self._is_logged:
            self._is_logged = self._room.is_full
            if self._is_logged:
                logger.error("disk is full", extra={"free_bytes": free_bytes})
            else:
                logger.info("disk has room again", extra={"free_bytes": free_bytes})
