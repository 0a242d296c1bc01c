"""What a node does when its disk is full, and when it has room again."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from chronik.metadata.commands import SetDiskFull
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.replication.room import Room
from chronik.server.disk_space import BACK_BYTES, LOW_BYTES, PLENTY_BYTES, DiskSpace
from chronik.storage.memory import MemoryDisk

FULL = OSError(28, "No space left on device")


class SmallDisk(MemoryDisk):
    free = PLENTY_BYTES

    def free_bytes(self, directory: str) -> int:
        return self.free


class World:
    """A node with as much room as the test says."""

    def __init__(self) -> None:
        self.disk = SmallDisk()
        self.disk.make_directory("/data")
        self.room = Room()
        self.is_followed = True
        self.told: list[bool] = []
        self.refusal: KafkaError | None = None
        self.broker = SimpleNamespace(is_full=False)
        self.retries = 0
        following: Any = SimpleNamespace(pause=self._pause, resume=self._resume)
        metadata: Any = SimpleNamespace(
            submit=self._submit,
            image=SimpleNamespace(brokers={1: self.broker}),
            consensus=SimpleNamespace(retry=self._retry),
        )
        self.space = DiskSpace(
            disk=self.disk,
            data_dir="/data",
            room=self.room,
            following=following,
            metadata=metadata,
            node_id=1,
            broker_epoch=lambda: 7,
        )

    def _pause(self) -> None:
        self.is_followed = False

    def _resume(self) -> None:
        self.is_followed = True

    def _retry(self) -> None:
        self.retries += 1

    async def _submit(self, command: SetDiskFull) -> None:
        if self.refusal is not None:
            raise self.refusal
        assert (command.node_id, command.broker_epoch) == (1, 7)
        self.told.append(command.is_full)
        self.broker.is_full = command.is_full

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)

    @property
    def has_reserve(self) -> bool:
        return self.disk.exists("/data/reserve")


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[World], Awaitable[None]]], None]:
    monkeypatch.setattr("chronik.server.disk_space.CHECK_S", 0.0)

    async def play(story: Callable[[World], Awaitable[None]]) -> None:
        world = World()
        watch = asyncio.create_task(world.space.watch())
        await asyncio.wait_for(story(world), 10)
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)

    return lambda story: asyncio.run(play(story))


def test_a_node_rests_while_its_disk_is_full_and_comes_back(played: Any) -> None:
    async def story(world: World) -> None:
        world.disk.free = PLENTY_BYTES - 1
        await world.until(lambda: world.has_reserve)
        world.disk.free = LOW_BYTES - 1
        await world.until(lambda: world.told == [True] * 3)
        assert world.room.is_full
        assert not world.has_reserve, "it is the metadata log's now"
        assert world.retries == 1
        assert not world.is_followed
        world.disk.free = BACK_BYTES - 1
        looks = len(world.told) + 3
        await world.until(lambda: len(world.told) > looks)
        assert world.room.is_full, "the reserve that was given up is not enough to come back"
        world.disk.free = BACK_BYTES
        await world.until(lambda: world.is_followed)
        assert world.told[-1] is False
        assert world.has_reserve
        assert not world.room.is_full

    played(story)


def test_a_write_that_failed_is_enough_to_know(played: Any) -> None:
    async def story(world: World) -> None:
        world.disk.free = BACK_BYTES - 1
        world.room.failed(OSError(5, "Input/output error"))
        assert not world.room.is_full
        world.room.failed(FULL)
        assert world.room.is_full, "at once: what comes next must not get ahead"
        await world.until(lambda: bool(world.told))
        assert not world.is_followed

    played(story)


def test_a_quota_that_is_used_up_is_not_taken_for_room(played: Any) -> None:
    """The file system has room, and we may not use it: the reserve cannot be taken."""

    async def story(world: World) -> None:
        def allocate(path: str, size: int) -> None:
            raise OSError(122, "Disk quota exceeded")

        world.disk.allocate = allocate  # type: ignore[method-assign]
        world.room.failed(FULL)
        await world.until(lambda: len(world.told) > 3)
        assert all(world.told)

    played(story)


def test_it_says_so_until_somebody_hears_it(played: Any) -> None:
    async def story(world: World) -> None:
        world.refusal = KafkaError(ErrorCode.NOT_CONTROLLER)
        world.disk.free = 0
        await world.until(lambda: not world.is_followed)
        world.refusal = None
        await world.until(lambda: bool(world.told))
        world.refusal = KafkaError(ErrorCode.NOT_CONTROLLER)
        world.disk.free = BACK_BYTES
        await world.until(lambda: not world.room.is_full)
        for _ in range(20):
            await asyncio.sleep(0)
            assert not world.is_followed, "not before it was told: it may not be in sync yet"
        world.refusal = None
        await world.until(lambda: world.is_followed)

    played(story)
