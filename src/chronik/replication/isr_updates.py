"""Changes of in-sync sets on their way to the controller, and what becomes of them.

A follower that has caught up is proposed for the in-sync set, one that lags for too long is to
leave it. All proposals of one turn of the loop are one command: when a node comes back, thousands
of partitions get it back at once.

Invariants
    A partition has one proposal under way. It ends when the image shows a later state of the
    partition, or when the controller has certainly refused it; while its outcome is unknown it is
    asked again, for until then both sets may be true (see `isr`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Any, Final

from chronik.clock import Clock
from chronik.metadata.commands import Command, InSyncChange, UpdateISR
from chronik.metadata.image import id_text
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.replication.partition import Partition

logger = logging.getLogger(__name__)

CHANGES_MAX: Final = 1_000  # in one command: 150 KB of the metadata log
RETRY_S: Final = 0.2
REFUSED_S: Final = 0.5  # a refusal has a cause that does not pass in a millisecond
AFTER_REFUSAL_S: Final = 0.01  # so that a clock that is a little behind has passed it, too
SHRINK_CHECK_S_MIN: Final = 0.1


class InSyncUpdates:
    """Proposes in-sync sets for the partitions that this node leads."""

    def __init__(
        self,
        node_id: int,
        submit: Callable[[Command], Awaitable[Any]],
        broker_epoch: Callable[[], int],
        clock: Clock,
    ) -> None:
        self._node_id = node_id
        self._submit = submit
        self._broker_epoch = broker_epoch
        self._clock = clock
        self._to_send: dict[Partition, None] = {}
        self._refused_until: dict[Partition, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def caught_up(self, partition: Partition, node_id: int) -> None:
        """A follower may have come far enough to be in sync."""
        in_sync = partition.in_sync
        if in_sync is None or node_id in in_sync.isr or in_sync.proposed is not None:
            return
        if in_sync.caught_up(
            node_id,
            partition.high_watermark,
            partition.epoch_start_offset,
            partition.received_offset,
        ):
            self._propose(partition, frozenset((*in_sync.isr, node_id)))

    def expand(self, partitions: Iterable[Partition]) -> None:
        """Take in whoever has caught up and was not told of, or was refused.

        A follower of an idle partition says nothing, also when its broker is taken in again.
        """
        for partition in partitions:
            in_sync = partition.in_sync
            if in_sync is not None and len(in_sync.isr) < in_sync.replica_count:
                for node_id in in_sync.followers:
                    self.caught_up(partition, node_id)

    def shrink(self, partitions: Iterable[Partition], lag_max_ms: int) -> None:
        """Take out whoever lags for too long."""
        now_ms = int(self._clock.monotonic() * 1000)
        for partition in partitions:
            in_sync = partition.in_sync
            if in_sync is None or len(in_sync.isr) < 2 or in_sync.proposed is not None:
                continue
            lagging = in_sync.lagging(partition.log.end_offset, now_ms, lag_max_ms)
            if lagging:
                extra = {"partition": str(partition), "lagging": sorted(lagging)}
                logger.warning("replicas lag", extra=extra)
                self._propose(partition, frozenset(in_sync.isr) - lagging)

    def _propose(self, partition: Partition, isr: frozenset[int]) -> None:
        if self._refused_until.get(partition, 0.0) > self._clock.monotonic():
            return
        self._refused_until.pop(partition, None)
        assert partition.in_sync is not None
        partition.in_sync.proposed = isr
        if not self._to_send:
            asyncio.get_running_loop().call_soon(self._send)
        self._to_send[partition] = None

    def _send(self) -> None:
        partitions, self._to_send = list(self._to_send), {}
        for first in range(0, len(partitions), CHANGES_MAX):
            work = self._update(partitions[first : first + CHANGES_MAX])
            task = asyncio.get_running_loop().create_task(work, name="update-isr")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _update(self, partitions: list[Partition]) -> None:
        """Ask until the outcome is known of each."""
        while True:
            changes = {each: _change(each) for each in partitions}
            asked = {each: change for each, change in changes.items() if change is not None}
            if not asked:
                return
            command = UpdateISR(
                node_id=self._node_id,
                broker_epoch=self._broker_epoch(),
                changes=tuple(asked.values()),
            )
            try:
                codes = await self._submit(command)
            except KafkaError as error:
                if error.code is ErrorCode.STALE_BROKER_EPOCH:
                    self._refused(list(asked.items()))
                    return
                await asyncio.sleep(RETRY_S)
                partitions = list(asked)
                continue
            refused = [
                (each, change)
                for (each, change), code in zip(asked.items(), codes, strict=True)
                if code != ErrorCode.NONE
            ]
            self._refused(refused)
            self.look_again(asked)
            return

    def look_again(self, partitions: Iterable[Partition]) -> None:
        """Whoever caught up while a proposal was under way may not be heard of for long.

        Nor may one that was taken for dead, and so out of the set, and whose connection lives.
        """
        for partition in partitions:
            if partition.in_sync is not None:
                for node_id in partition.in_sync.followers:
                    self.caught_up(partition, node_id)

    def _refused(self, refused: list[tuple[Partition, InSyncChange]]) -> None:
        """The controller did not do it: the proposed set is not true, and never was."""
        for partition, change in refused:
            in_sync = partition.in_sync
            self._refused_until[partition] = self._clock.monotonic() + REFUSED_S
            if in_sync is not None and _is_under_way(partition, change):
                in_sync.proposed = None
                partition.recount()
        if refused:
            loop = asyncio.get_running_loop()
            again = [partition for partition, _ in refused]
            loop.call_later(REFUSED_S + AFTER_REFUSAL_S, self.look_again, again)

    async def close(self) -> None:
        """Ask for nothing any more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _is_under_way(partition: Partition, change: InSyncChange) -> bool:
    """Whether this is what the partition waits for; a follower may have restarted since."""
    now = _change(partition)
    return now is not None and now == replace(change, broker_epochs=now.broker_epochs)


def _change(partition: Partition) -> InSyncChange | None:
    in_sync = partition.in_sync
    if in_sync is None or in_sync.proposed is None or partition.is_deleted:
        return None
    return InSyncChange(
        topic_id=id_text(partition.topic_id),
        partition=partition.index,
        isr=tuple(sorted(in_sync.proposed)),
        leader_epoch=partition.leader_epoch,
        partition_epoch=in_sync.partition_epoch,
        broker_epochs=in_sync.broker_epochs(in_sync.proposed),
    )
