"""Group commit: many appends, one fsync.

Logs that got batches are marked; one round at a time takes all marked ones, syncs their files and
new directory entries in threads, and reports in one callback on the loop. Batches that arrive
during a round go into the next.

Invariants
    One round at a time, so a later round never overtakes an earlier one.
    A log whose round failed is failed for good: which of its bytes are on disk is unknown.
    A log that began a segment gets its checkpoint within the round (see `recovery`).

The caller waits for durability in `on_durable`, or not at all if replication is its promise.
"""

import asyncio
from typing import Protocol

from chronik.storage.disk import Disk
from chronik.storage.log import Log


class OnDurable(Protocol):
    def __call__(self, log: Log) -> None:
        """`log.durable_offset` has moved."""


class OnFailed(Protocol):
    def __call__(self, log: Log, error: Exception) -> None:
        """The log is failed: it takes no more batches."""


class GroupCommit:
    """Runs on one event loop; `add` is all an appender calls."""

    def __init__(
        self, disk: Disk, on_durable: OnDurable, on_failed: OnFailed, interval_ms: int = 0
    ) -> None:
        self._disk = disk
        self._on_durable = on_durable
        self._on_failed = on_failed
        self._interval_ms = interval_ms  # 0: a round follows at once; more: batches gather
        self._dirty: dict[Log, None] = {}
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | asyncio.Handle | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self.round_count = 0

    def add(self, log: Log) -> None:
        """Mark a log that was appended to, so that the next round makes it durable."""
        self._dirty[log] = None
        if self._task is None and self._timer is None:
            self._schedule(self._interval_ms)

    def _schedule(self, delay_ms: int) -> None:
        self._idle.clear()
        loop = asyncio.get_running_loop()
        if delay_ms:
            self._timer = loop.call_later(delay_ms / 1000, self._start)
        else:
            # After the appends of this turn of the loop, not between them.
            self._timer = loop.call_soon(self._start)

    def _start(self) -> None:
        self._timer = None
        self._task = asyncio.get_running_loop().create_task(self._round(), name="group-commit")
        self._task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._task = None
        if self._dirty and not task.cancelled():
            self._schedule(self._interval_ms)
        else:
            self._idle.set()
        if not task.cancelled():
            task.result()  # An exception goes to the loop's handler: it is a broken invariant.

    async def _round(self) -> None:
        logs, self._dirty = [log for log in self._dirty if log.failed is None], {}
        self.round_count += 1
        files: list[str] = []
        directories: dict[str, None] = {}
        for log in logs:
            work = log.begin_sync()
            files += work.files
            directories.update(dict.fromkeys(work.directories))
        try:
            if files or directories:
                await self._disk.sync_all(files, list(directories))
        except Exception as error:
            self._fail(logs, error)
            return
        rolled = []
        for log in logs:
            if log.finish_sync():
                rolled.append(log)
            else:
                self._publish(log)
        if rolled:
            await self._finish_rolled(rolled)

    async def _finish_rolled(self, logs: list[Log]) -> None:
        checkpoints = [(log, self._disk.run(log.checkpoint)) for log in logs]
        for log, written in checkpoints:
            try:
                await written
            except Exception as error:
                self._fail([log], error)
            else:
                self._publish(log)

    def _publish(self, log: Log) -> None:
        log.publish_durable()
        self._on_durable(log)

    def _fail(self, logs: list[Log], error: Exception) -> None:
        for log in logs:
            log.failed = error
            self._on_failed(log, error)

    async def drain(self) -> None:
        """Wait until every log marked so far had its round, starting one now if need be."""
        if isinstance(self._timer, asyncio.TimerHandle):
            self._timer.cancel()
            self._schedule(0)
        await self._idle.wait()
