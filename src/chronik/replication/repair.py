"""Replicas whose log is damaged are filled again from those that are not.

A damaged replica does not know what it has lost, so it first stops counting: it leaves the in-sync
set and is not eligible, as a committed change. Only then is its log thrown away, and it follows its
leader from the beginning. Where nobody else has the data it stays: a person may salvage it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from chronik.metadata.commands import Command, LeaveInSync
from chronik.metadata.image import id_text
from chronik.metadata.records import NO_LEADER, PartitionRecord
from chronik.protocol.errors import KafkaError
from chronik.replication.partition import Partition
from chronik.replication.replicas import Replicas

logger = logging.getLogger(__name__)

CHECK_S: Final = 1.0  # damage is rare, and found when a log is read: it is no hurry


class Repair:
    """Mends the damaged replicas of one node."""

    def __init__(
        self,
        node_id: int,
        replicas: Replicas,
        submit: Callable[[Command], Awaitable[Any]],
        broker_epoch: Callable[[], int],
    ) -> None:
        self._node_id = node_id
        self._replicas = replicas
        self._submit = submit
        self._broker_epoch = broker_epoch

    async def run(self) -> None:
        """Mend what is damaged, for ever."""
        while True:
            await asyncio.sleep(CHECK_S)
            if self._replicas.damaged:
                try:
                    await self.mend()
                except (KafkaError, OSError) as error:
                    logger.warning("not mended yet", extra={"reason": str(error)})

    async def mend(self) -> None:
        """One step for each damaged replica."""
        counting = []
        for partition in tuple(self._replicas.damaged):
            record = self._record(partition)
            if record is None:
                self._replicas.damaged.discard(partition)
            elif self._counts(record):
                counting.append((id_text(partition.topic_id), partition.index))
            elif record.leader not in (self._node_id, NO_LEADER):
                logger.warning("damaged replica begins anew", extra={"partition": str(partition)})
                await self._replicas.refill(partition)
        if counting:
            command = LeaveInSync(
                node_id=self._node_id,
                broker_epoch=self._broker_epoch(),
                partitions=tuple(counting),
            )
            await self._submit(command)

    def _record(self, partition: Partition) -> PartitionRecord | None:
        topic = self._replicas.image.topic_by_id(partition.topic_id)
        if topic is None or partition.is_deleted:
            return None
        return topic.partitions[partition.index]

    def _counts(self, record: PartitionRecord) -> bool:
        return self._node_id in (*record.isr, *record.elr, record.leader)
