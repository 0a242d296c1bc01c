"""Keeps a topic's tables small while a pipeline runs: merges, retention, expiry, each when due."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from chronik.clock import Clock
from chronik.spark.lake.committer import Committer
from chronik.spark.lake.compaction import drop_old, may_rearrange, merge_change, plan_merges
from chronik.spark.lake.expiry import PIN_MS, expire
from chronik.spark.lake.reading import FilesOf
from chronik.spark.lake.table import LakeError, LakeTable, LiveFile, TableState
from chronik.spark.pipeline.config import TopicConfig
from chronik.spark.pipeline.task import MergeTask, TaskResult

COMMITS_A_MERGE: Final = 8
COMMITS_A_THINNING: Final = 20  # of Iceberg's snapshots: the work of a commit grows with them
EXPIRY_INTERVAL_S: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Merging:
    """A merge on its way: planned, done by a task, committed."""

    table: LakeTable
    state: TableState
    group: tuple[LiveFile, ...]
    task: MergeTask
    result: TaskResult | None = None

    def done(self, result: TaskResult) -> "Merging":
        return replace(self, result=result)

    def commit(self) -> None:
        """Replace the files, unless the task failed or they have changed meanwhile."""
        result = self.result
        if result is None or result.error is not None:
            raise LakeError(f"{self.table.name}: {result.error if result else 'not done'}")
        self.table.commit(merge_change(self.state, self.group, result.good))


class Upkeep:
    """What a topic's tables need beside new rows."""

    def __init__(self, committer: Committer, config: TopicConfig, clock: Clock) -> None:
        self.committer = committer
        self._config, self._clock = config, clock
        # What an earlier pipeline has left to merge is looked at soon.
        self._commits, self._commits_thinned = COMMITS_A_MERGE - 1, 0
        self._expired_at: float | None = None

    @property
    def _tables(self) -> Sequence[LakeTable]:
        return self.committer.table, self.committer.dead_letters

    def landed(self) -> None:
        """Note a commit."""
        self._commits += 1
        self._commits_thinned += 1

    def merges_if_due(self) -> list[Merging]:
        """The merges that a few more commits have made worth while."""
        if self._commits < COMMITS_A_MERGE:
            return []
        self._commits = 0
        return [merging for table in self._tables for merging in self._merges(table)]

    def _merges(self, table: LakeTable) -> list[Merging]:
        state = table.load()
        if not may_rearrange(state):
            return []
        return [
            Merging(
                table=table,
                state=state,
                group=group,
                task=MergeTask(
                    name=table.name,
                    files=FilesOf.table(table),
                    file_schema=table.file_schema(state),
                    group=group,
                ),
            )
            for group in plan_merges(state.files())
        ]

    def expire_if_due(self) -> None:
        """Forget old versions now and then, and every hour delete what nobody refers to."""
        now = self._clock.monotonic()
        now_ms = self._clock.wall_ms()
        if self._commits_thinned >= COMMITS_A_THINNING:
            self._commits_thinned = 0
            for table in self._tables:
                table.expire(now_ms, PIN_MS)
        if self._expired_at is None:
            self._expired_at = now  # The first rounds have better things to do.
        if now - self._expired_at < EXPIRY_INTERVAL_S:
            return
        self.expire()

    def expire(self) -> None:
        """Drop what is older than the topic's retention, and delete what nobody refers to."""
        self._expired_at = self._clock.monotonic()
        now_ms = self._clock.wall_ms()
        for table in self._tables:
            drop_old(table, now_ms=now_ms, retention_ms=self._config.table_retention_ms)
        expire(*self._tables, now_ms=now_ms)
