"""A disk whose work takes virtual time, and which forgets what was not synced when power fails.

What would run in a thread happens at the end of its time. If power fails before that, chance
decides how many of its operations were done; what they had not synced is lost, torn or kept, as
`crash_disk` says. A process that is only killed leaves all that it has written.

Invariant: of the disk of a dead process nothing can be changed any more.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from crash_disk import Crash, CrashDisk, Directory, File, Ignore, nothing_ignored

from chronik.protocol.schema import Buffer
from chronik.storage.disk import Done

if TYPE_CHECKING:
    from sim.world.loop import Scheduler

T = TypeVar("T")


class Platter:
    """What one machine has on its disk, and how fast that is."""

    def __init__(self, scheduler: Scheduler, chance: random.Random) -> None:
        self.scheduler = scheduler
        self.chance = chance
        self.root = Directory()
        self.boot_count = 1
        self.work_s = (0.0002, 0.003)
        self.slow_s = (0.3, 2.0)
        self.slow_until = 0.0
        self.is_full = False
        self.ignore: Ignore = nothing_ignored

    def delay(self) -> float:
        is_slow = self.scheduler.now < self.slow_until
        return self.chance.uniform(*(self.slow_s if is_slow else self.work_s))


class SimulatedDisk(CrashDisk):
    """The disk as one process sees it."""

    def __init__(self, platter: Platter) -> None:
        super().__init__(platter.ignore)
        self.root = platter.root
        self.is_dead = False
        self._platter = platter
        self._under_way: dict[int, Callable[[], Any]] = {}
        self._number = 0

    def _step(self) -> None:
        if self.is_dead:
            raise Crash
        super()._step()

    def boot_id(self) -> str:
        return f"boot {self._platter.boot_count}"

    def append(self, path: str, buffers: Sequence[Buffer]) -> None:
        self._check_room()
        super().append(path, buffers)

    def write(self, path: str, data: Buffer) -> None:
        self._check_room()
        super().write(path, data)

    def _check_room(self) -> None:
        if self._platter.is_full:
            raise OSError(errno.ENOSPC, "no space left on device")

    # Threads.

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        loop: Any = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def finish(result: Any, error: Exception | None) -> None:
            if future.cancelled():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        def done() -> None:
            result, error = None, None
            try:
                result = work()
            except Exception as failure:
                error = failure
            loop.arrived(finish, result, error)

        self._begin(work, done)
        return future

    def sync_all(self, files: Sequence[str], directories: Sequence[str], done: Done) -> None:
        loop: Any = asyncio.get_running_loop()
        # A sync promises what was written when it began, and no more.
        sizes = {path: len(self._file(path).content) for path in files if self.exists(path)}

        def work() -> dict[str, OSError]:
            for path, size in sizes.items():
                node = self._find(path)
                if isinstance(node, File):
                    self._sync_to(node, path, size)
            return self._sync_round([], directories)

        self._begin(work, lambda: loop.arrived(done, work()))

    def _sync_to(self, file: File, path: str, size: int) -> None:
        self._step()
        is_further = size > len(file.durable) or not file.content.startswith(file.durable)
        if is_further and not self.ignore("file", path, "sync_all"):
            file.durable = bytes(file.content[:size])

    def _begin(self, work: Callable[[], Any], done: Callable[[], None]) -> None:
        self._number += 1
        number = self._number
        self._under_way[number] = work

        def end() -> None:
            if self._under_way.pop(number, None) is not None and not self.is_dead:
                done()

        self._platter.scheduler.at(self._platter.delay(), end)

    # The end.

    def killed(self) -> None:
        """The process is gone; what its threads were doing is done up to somewhere."""
        self._do_some()
        self.is_dead = True

    def power_failed(self) -> None:
        """And the machine too: what was not synced is in the hands of chance."""
        self._do_some()
        self.is_dead = True
        self.crash(self._platter.chance.randrange(1 << 30))
        self._platter.boot_count += 1

    @property
    def is_working(self) -> bool:
        """Whether something is being written or synced."""
        return bool(self._under_way)

    def _do_some(self) -> None:
        works, self._under_way = list(self._under_way.values()), {}
        for work in works:
            self.operations_left = self._platter.chance.randrange(6)
            try:
                work()
            except Exception:
                continue  # It got so far.
        self.operations_left = -1
