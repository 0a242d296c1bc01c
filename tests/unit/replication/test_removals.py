"""Directories go when nobody works in them, and come back only after that."""

import asyncio

from chronik.replication.removals import Removals
from chronik.storage.memory import MemoryDisk


def disk_with(*paths: str) -> MemoryDisk:
    disk = MemoryDisk()
    for path in paths:
        disk.make_directory(path.rpartition("/")[0])
        disk.append(path, [b"x"])
    return disk


def test_a_directory_is_removed_under_another_name():
    disk = disk_with("/topics/t/0/a.log", "/topics/t/1/a.log")

    async def remove() -> None:
        removals = Removals(disk)
        removals.begin("/topics/t/0", "/topics/t/0.left")
        assert removals.is_going("/topics/t/0")
        await removals.wait("/topics/t/0")
        assert not removals.is_going("/topics/t/0")

    asyncio.run(remove())
    assert list(disk.list("/topics/t")) == ["1"]


def test_it_waits_for_whoever_works_there():
    disk = disk_with("/topics/t/0/a.log")

    async def remove() -> None:
        removals = Removals(disk)
        loading: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with removals.holding("/topics/t/0"):
            removals.begin("/topics/t/0", "/topics/t/0.left", loading)
            await asyncio.sleep(0)
            loading.set_exception(OSError("it cannot be read"))  # It is over all the same.
            for _ in range(5):
                await asyncio.sleep(0)
            assert disk.exists("/topics/t/0/a.log")
        await removals.close()

    asyncio.run(remove())
    assert not disk.exists("/topics/t/0/a.log")


def test_a_second_removal_comes_after_the_first():
    disk = disk_with("/topics/t/0/a.log")

    async def remove() -> None:
        removals = Removals(disk)
        removals.begin("/topics/t/0", "/topics/t/0.left")
        removals.begin("/topics/t/0", "/topics/t/0.left")
        await removals.wait("/topics/t/0")
        assert not removals.is_going("/topics/t/0")

    asyncio.run(remove())
    assert list(disk.list("/topics/t")) == []


def test_who_waits_is_not_held_up_by_a_removal_that_waits_for_it():
    disk = disk_with("/topics/t/0/a.log")

    async def remove() -> None:
        removals = Removals(disk)
        removals.begin("/topics/t/0", "/topics/t/0.left")
        loading = asyncio.ensure_future(removals.wait("/topics/t/0"))
        await asyncio.sleep(0)
        removals.begin("/topics/t/0", "/topics/t/0.left", loading)
        async with asyncio.timeout(5):
            await removals.close()

    asyncio.run(remove())
