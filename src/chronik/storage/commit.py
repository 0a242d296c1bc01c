"""Group commit: many appends, one fsync.

Logs that got batches are marked; one round at a time takes all marked ones, syncs their files and
new directory entries in threads, and reports in one callback on the loop. Batches that arrive
during a round go into the next. A log that nobody waits for yet may wait for others.

Invariants
    One round at a time, so a later round never overtakes an earlier one.
    A log whose file or directory failed is failed for good: which of its bytes are on disk is
    unknown. The other logs of its round are not.
    A log that began a segment gets its checkpoint within the round (see `recovery`); if there is no
    room for it, its batches are reported after a later round that found some.

The caller waits for durability in `on_durable`, or not at all if replication is its promise.
"""

import asyncio
from collections.abc import Mapping
from typing import Final, Protocol

from chronik.storage.disk import Disk
from chronik.storage.errors import is_no_room
from chronik.storage.log import Log, SyncWork

RETRY_S: Final = 0.5  # after a checkpoint for which there was no room
TARRY_MS: Final = 5  # if nobody waits: 200 rounds a second cost little, and readers wait no longer


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
        self._round: list[tuple[Log, SyncWork]] | None = None
        self._checkpoints: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | asyncio.Handle | None = None
        self._is_urgent = False  # whether somebody waits for a log that is marked
        self._idle = asyncio.Event()
        self._idle.set()
        self.round_count = 0

    def add(self, log: Log, *, may_wait: bool = False) -> None:
        """Mark a log that was appended to, so that the next round makes it durable.

        With `may_wait` nobody waits for that: the round may come a little later.
        """
        self._dirty[log] = None
        if not may_wait and not self._is_urgent:
            self._is_urgent = True
            if not self._interval_ms and isinstance(self._timer, asyncio.TimerHandle):
                self._timer.cancel()
                self._timer = None
        if self._round is None and self._timer is None:
            self._schedule(self._delay_ms)

    @property
    def _delay_ms(self) -> int:
        return self._interval_ms or (0 if self._is_urgent else TARRY_MS)

    def _schedule(self, delay_ms: int) -> None:
        self._idle.clear()
        loop = asyncio.get_running_loop()
        if delay_ms:
            self._timer = loop.call_later(delay_ms / 1000, self._start)
        else:
            # After the appends of this turn of the loop, not between them.
            self._timer = loop.call_soon(self._start)

    def _start(self) -> None:
        """Begin a round with all logs that are marked."""
        self._timer = None
        dirty, self._dirty = self._dirty, {}
        self._is_urgent = False
        self.round_count += 1
        self._round = [(log, log.begin_sync()) for log in dirty if log.failed is None]
        files = [path for _, work in self._round for path in work.files]
        directories = dict.fromkeys(path for _, work in self._round for path in work.directories)
        if files or directories:
            self._disk.sync_all(files, list(directories), self._synced)
        else:
            self._synced({})

    def _synced(self, errors: Mapping[str, OSError]) -> None:
        """The round's work is done: begin the next one, then report this one's logs.

        In that order, so that the disk works while the acks of this round leave. Only a log that
        began a segment holds the next round up: its checkpoint comes first.
        """
        assert self._round is not None
        finished, rolled = [], []
        for log, work in self._round:
            failed = next((p for p in (*work.files, *work.directories) if p in errors), None)
            if failed is not None:
                self._fail(log, errors[failed])
            elif log.finish_sync():
                rolled.append(log)
            else:
                finished.append(log)
        if rolled:
            loop = asyncio.get_running_loop()
            work_left = self._finish_rolled(rolled)
            self._checkpoints = loop.create_task(work_left, name="commit-checkpoints")
        else:
            self._end()
        for log in finished:
            self._publish(log)

    async def _finish_rolled(self, logs: list[Log]) -> None:
        try:
            for log in logs:
                try:
                    await self._disk.run(log.checkpoint)
                except Exception as error:
                    self._not_checkpointed(log, error)
                else:
                    self._publish(log)
        finally:
            self._checkpoints = None
            self._end()

    def _end(self) -> None:
        self._round = None
        if not self._dirty:
            self._idle.set()
        elif self._delay_ms:
            self._schedule(self._delay_ms)
        else:
            self._start()

    def _publish(self, log: Log) -> None:
        log.publish_durable()
        self._on_durable(log)

    def _not_checkpointed(self, log: Log, error: Exception) -> None:
        if is_no_room(error):
            # What was synced stays so, but is not reported; another round tries again.
            asyncio.get_running_loop().call_later(RETRY_S, self.add, log)
        else:
            self._fail(log, error)

    def _fail(self, log: Log, error: Exception) -> None:
        log.failed = error
        self._on_failed(log, error)

    async def drain(self) -> None:
        """Wait until every log marked so far had its round, starting one now if need be."""
        if isinstance(self._timer, asyncio.TimerHandle):
            self._timer.cancel()
            self._schedule(0)
        await self._idle.wait()
