"""Who is proposed for an in-sync set, and asked for again."""

import asyncio
from types import SimpleNamespace
from typing import Any

from chronik.clock import SystemClock
from chronik.metadata.commands import UpdateISR
from chronik.metadata.records import PartitionRecord
from chronik.protocol.errors import ErrorCode
from chronik.replication.isr import InSync
from chronik.replication.isr_updates import REFUSED_S, InSyncUpdates


class Stub(SimpleNamespace):
    """Partitions are keys."""

    __hash__ = object.__hash__


class Clock(SystemClock):
    now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


def idle_partition() -> Any:
    """Led by 1; 2 has everything and was in sync until its broker was fenced. Nothing happens."""
    record = PartitionRecord(
        topic_id="", partition=0, replicas=(1, 2), isr=(1,), leader=1, partition_epoch=4
    )
    in_sync = InSync(1, record, now_ms=0)
    in_sync.progressed(2, 30, 10, 10, 10, now_ms=0)
    return Stub(
        in_sync=in_sync,
        high_watermark=10,
        epoch_start_offset=0,
        received_offset=0,
        is_deleted=False,
        topic_id=bytes(16),
        index=0,
        leader_epoch=0,
        recount=lambda: None,
    )


def test_a_follower_that_says_nothing_is_taken_in_again_though_it_was_refused_first() -> None:
    asked: list[UpdateISR] = []
    codes = [ErrorCode.INELIGIBLE_REPLICA, ErrorCode.NONE]

    async def submit(command: Any) -> Any:
        asked.append(command)
        return (codes[len(asked) - 1],)

    async def main() -> None:
        clock = Clock()
        updates = InSyncUpdates(1, submit, lambda: 20, clock)
        partition = idle_partition()
        for _ in range(2):
            updates.expand([partition])
            for _ in range(5):
                await asyncio.sleep(0)
        assert len(asked) == 1, "a refusal has a cause that does not pass in a moment"
        assert partition.in_sync.proposed is None
        clock.now_s += REFUSED_S
        updates.expand([partition])
        for _ in range(5):
            await asyncio.sleep(0)
        assert [command.changes[0].isr for command in asked] == [(1, 2)] * 2
        assert asked[0].changes[0].broker_epochs == {2: 30}
        await updates.close()

    asyncio.run(main())
