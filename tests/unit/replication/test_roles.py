"""New roles of many partitions: all of them once, in order, and never too many in one turn."""

import asyncio
from collections.abc import Sequence

import pytest

from chronik.metadata.image import Image, id_text
from chronik.metadata.records import (
    LeaderEpochsRecord,
    PartitionLeadersRecord,
    PartitionRecord,
    Record,
    TopicRecord,
)
from chronik.replication import roles
from chronik.replication.roles import RoleUpdates

OFFSETS = 7


def topic_id(number: int) -> bytes:
    return number.to_bytes(16)


def topic(number: int, partition_count: int) -> list[Record]:
    name = "__consumer_offsets" if number == OFFSETS else f"t{number}"
    text = id_text(topic_id(number))
    partitions = [
        PartitionRecord(topic_id=text, partition=index, replicas=(1,), isr=(1,), leader=index % 2)
        for index in range(partition_count)
    ]
    return [TopicRecord(name=name, topic_id=text), *partitions]


def leaders(*numbers: int) -> PartitionLeadersRecord:
    return PartitionLeadersRecord(
        topic_ids=tuple(id_text(topic_id(number)) for number in numbers),
        partitions=((0, 1),) * len(numbers),
        leaders=((1, 1),) * len(numbers),
    )


class World:
    def __init__(self) -> None:
        self.updated: list[tuple[int, list[int]]] = []
        self.updates = RoleUpdates(self._update)
        self.image = Image().apply([each for number in range(9) for each in topic(number, 2)])

    def _update(self, topic_id: bytes, indexes: Sequence[int]) -> None:
        self.updated.append((int.from_bytes(topic_id), list(indexes)))

    def change(self, *records: Record) -> None:
        for record in records:
            self.updates.add(self.image, record)
        self.updates.run(self.image)

    @property
    def numbers(self) -> list[int]:
        return [number for number, _ in self.updated]


def test_a_small_change_is_there_at_once() -> None:
    world = World()
    world.change(*topic(3, 2), leaders(1))
    assert world.updated == [(3, [0, 1]), (1, [0, 1])]
    world.change(LeaderEpochsRecord(node_id=1))
    assert world.updated[2:] == [(number, [1]) for number in world.numbers[2:]]
    assert sorted(world.numbers[2:]) == list(range(9))


def test_a_large_change_takes_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that comes meanwhile waits behind it; a partition that waits is not done twice."""
    monkeypatch.setattr(roles, "PARTITIONS_AT_ONCE", 4)
    world = World()

    async def main() -> None:
        world.change(leaders(0, 1, 2, 3, 4))
        assert world.numbers == [0, 1]
        world.change(leaders(0, 3, 5))
        assert world.numbers == [0, 1]
        await asyncio.sleep(0)
        assert world.numbers == [0, 1, 2, 3]
        for _ in range(3):
            await asyncio.sleep(0)
        assert world.numbers == [0, 1, 2, 3, 4, 0, 5]
        world.change(leaders(8))
        assert world.numbers[-1] == 8

    asyncio.run(main())


def test_coordinators_find_their_partitions_as_the_image_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(roles, "PARTITIONS_AT_ONCE", 2)
    world = World()

    async def main() -> None:
        world.change(leaders(0, 1, 2, OFFSETS))
        assert world.numbers == [OFFSETS, 0]
        world.change(leaders(OFFSETS))
        assert world.numbers == [OFFSETS, 0, OFFSETS]

    asyncio.run(main())
