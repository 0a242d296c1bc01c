"""Files of partitions and topics that this node does not hold any more, on their way out.

A directory is renamed first, so that what a crash leaves is known at the next start and whoever
still writes there finds no place, and then removed, both in a thread. A topic's directory has its
id in its name and never comes back. A partition's may, when the node becomes its replica again:
whoever opens it then waits here first.

Invariant: a directory goes only when nobody works in it: not while its log is loaded or compacted.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Final

from chronik.storage.disk import Disk

logger = logging.getLogger(__name__)

LEFT: Final = ".left"  # behind the number of a partition whose files are going


class Removals:
    """Directories that are being removed, and those that must not be yet."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._held: Counter[str] = Counter()
        self._released: dict[str, asyncio.Event] = {}

    def begin(self, directory: str, renamed: str, after: Awaitable[object] | None = None) -> None:
        """Remove a directory by and by, under another name; first wait for something to end."""
        before = self._tasks.get(directory)
        work = self._remove(directory, renamed, before, after)
        task = asyncio.get_running_loop().create_task(work, name=f"remove-{directory}")
        self._tasks[directory] = task
        task.add_done_callback(lambda done: self._ended(directory, done))

    def _ended(self, directory: str, done: "asyncio.Task[None]") -> None:
        if self._tasks.get(directory) is done:
            del self._tasks[directory]

    async def _remove(
        self,
        directory: str,
        renamed: str,
        before: "asyncio.Task[None] | None",
        after: Awaitable[object] | None,
    ) -> None:
        for awaited in (before, after):
            if awaited is not None:
                await asyncio.gather(awaited, return_exceptions=True)
        while self._held[directory]:
            await self._released.setdefault(directory, asyncio.Event()).wait()

        def remove() -> None:
            with self._disk.exclusive(directory):
                if self._disk.exists(directory):
                    self._disk.rename(directory, renamed)
            self._disk.remove_tree(renamed)

        try:
            await self._disk.run(remove)
        except OSError as error:
            # What is left is removed at the next start.
            extra = {"directory": directory, "error": str(error)}
            logger.error("files not removed", extra=extra)

    @contextmanager
    def holding(self, directory: str) -> Iterator[None]:
        """The directory is in use by a thread meanwhile."""
        self._held[directory] += 1
        try:
            yield
        finally:
            self._held[directory] -= 1
            if not self._held[directory]:
                del self._held[directory]
                released = self._released.pop(directory, None)
                if released is not None:
                    released.set()

    def is_going(self, directory: str) -> bool:
        """Whether this directory is being removed."""
        return directory in self._tasks

    async def wait(self, directory: str) -> None:
        """Until this directory is removed, if it is being so.

        Not for a removal that begins later: that one waits in turn for whoever waits here.
        """
        task = self._tasks.get(directory)
        if task is not None:
            await asyncio.wait((task,))

    async def close(self) -> None:
        """Until all are removed."""
        while self._tasks:
            await asyncio.wait(self._tasks.values())
