"""The leader's side of a follower: who is fed, and who is asked to come again."""

import asyncio
from typing import Any

import pytest

from chronik.clock import SystemClock
from chronik.config.effective import BrokerConfig
from chronik.metadata.records import PartitionRecord
from chronik.protocol.errors import ErrorCode
from chronik.protocol.replication import Data, Follow, Following, Rejected, decode, encode
from chronik.protocol.schema import Buffer
from chronik.replication import sender as senders
from chronik.replication.partition import Partition
from chronik.replication.room import Room
from chronik.replication.sender import Sender
from chronik.replication.topic_config import topic_config
from chronik.storage.log import Log
from chronik.storage.memory import MemoryDisk

LEADER, FOLLOWER = 4, 3
TOPIC_ID = bytes(16)


class Commit:
    def add(self, log: Log) -> None:
        pass


class Link:
    """A connection that keeps what is written to it."""

    is_writable = True

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def write_parts(self, parts: list[Buffer]) -> None:
        frame = b"".join(map(bytes, parts))
        self.sent.append(decode(frame[4:])[0])


def record(*replicas: int, epoch: int) -> PartitionRecord:
    return PartitionRecord(
        topic_id="", partition=0, replicas=replicas, isr=(LEADER,), leader=LEADER,
        leader_epoch=0, partition_epoch=epoch,
    )  # fmt: skip


def led(*replicas: int) -> Partition:
    config = topic_config({}, BrokerConfig(static={}, cluster={}, broker={}))
    fields: Any = {"commit": Commit(), "durability": "replicated", "room": Room()}
    partition = Partition(
        name="t",
        topic_id=TOPIC_ID,
        node_id=LEADER,
        record=record(*replicas, epoch=0),
        log=Log(MemoryDisk(), "/data/topics/t.id/0", config.log),
        config=config,
        **fields,
    )
    partition.lead(record(*replicas, epoch=0), now_ms=0)
    partition.loaded()
    return partition


class Led:
    """What the sender knows of this node: one partition, and who came far enough."""

    image: Any = None
    damaged: set[Partition] = set()

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self.caught_up: list[int] = []

    def find_led(self, topic_id: bytes, index: int) -> Partition:
        return self._partition

    async def load(self, partition: Partition) -> None:
        raise AssertionError("it is loaded")

    def follower_caught_up(self, partition: Partition, node_id: int) -> None:
        self.caught_up.append(node_id)


def test_a_follower_that_knows_of_its_part_before_the_leader_comes_again() -> None:
    """Else a partition at rest would never hear that its new replica has everything."""

    async def main() -> None:
        partition, link = led(LEADER), Link()
        node = Led(partition)
        sender: Any = Sender(FOLLOWER, link, node, SystemClock(), lambda work: None)  # type: ignore[arg-type,return-value]

        async def follow(handle: int) -> None:
            asked = Following(handle, TOPIC_ID, 0, 0, 0, -1, 0)
            frame = b"".join(map(bytes, encode(Follow(7, (asked,)))))
            sender.on_frame(frame[4:])
            for _ in range(5):
                await asyncio.sleep(0)

        await follow(1)
        assert link.sent == [Rejected(1, ErrorCode.NOT_LEADER_OR_FOLLOWER)]
        assert node.caught_up == []
        partition.lead(record(FOLLOWER, LEADER, epoch=1), now_ms=0)
        await follow(2)
        assert partition.in_sync is not None
        assert partition.in_sync.followers[FOLLOWER].broker_epoch == 7
        assert node.caught_up == [FOLLOWER]
        await asyncio.sleep(0.2)
        assert isinstance(link.sent[-1], Data)
        sender.close()

    asyncio.run(main())


def test_thousands_of_feeds_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """When their leader leads no more, all are refused, but not in one turn of the loop."""
    monkeypatch.setattr(senders, "FEEDS_AT_ONCE", 2)

    async def main() -> None:
        partition, link = led(FOLLOWER, LEADER), Link()
        sender: Any = Sender(FOLLOWER, link, Led(partition), SystemClock(), lambda work: None)  # type: ignore[arg-type,return-value]
        asked = tuple(Following(handle, TOPIC_ID, 0, 0, 0, -1, 0) for handle in range(5))
        sender.on_frame(b"".join(map(bytes, encode(Follow(7, asked))))[4:])
        for _ in range(5):
            await asyncio.sleep(0)
        link.sent.clear()
        partition.follow(1)
        for feed in list(sender._feeds.values()):
            sender.feed_soon(feed)
        counts = []
        for _ in range(4):
            await asyncio.sleep(0)
            counts.append(len(link.sent))
        assert counts == [2, 4, 5, 5]
        assert {each.handle for each in link.sent} == set(range(5))
        assert {each.error_code for each in link.sent} == {ErrorCode.FENCED_LEADER_EPOCH}
        sender.close()

    asyncio.run(main())
