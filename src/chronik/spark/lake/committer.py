"""Brings a topic's table and its dead letters forward together, exactly once.

Each row of the log is in the table or, if it does not decode, in the dead letters. They are two
tables, so a kill can fall between their commits. The order makes up for it: dead letters commit
first, each table carries its own offsets, and what lies between the two offsets is *unsettled*:
its bad rows are in the dead letters, the rest is nowhere yet.

Settling it must not classify again. A row that is in the dead letters stays there even if it
decodes today; a row that is not goes to the table, or, if it no longer decodes, to the dead
letters in a commit that moves no offset.

Invariants
    The dead letters are never behind their table.
    A round commits only if neither table has seen another commit since the round was planned.
    Before an unsettled range is settled, the table's fence is moved: whoever left it unsettled
    may still be alive, with good rows in hand that we are about to call bad.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from chronik.spark.lake.reading import rows_of
from chronik.spark.lake.table import (
    TOPIC,
    Advance,
    Change,
    DataFile,
    LakeError,
    LakeTable,
    PartitionKey,
    TableState,
    topic_mark,
)

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How far both tables have come: what a round is planned on."""

    table_fence: int
    dead_fence: int
    table_offsets: Mapping[PartitionKey, int | None]
    dead_offsets: Mapping[PartitionKey, int | None]
    # The dead letters among unsettled rows, by partition.
    settled: Mapping[PartitionKey, "pa.Int64Array"]

    def start_offset(self, key: PartitionKey, log_start_offset: int) -> int:
        """Where to read on."""
        committed = self.table_offsets[key]
        return log_start_offset if committed is None else committed

    def end_offset(self, key: PartitionKey, log_end_offset: int) -> int:
        """Up to where a round may read: an unsettled range is a round of its own."""
        dead = self.dead_offsets[key]
        return dead if self.is_unsettled(key) and dead is not None else log_end_offset

    def is_unsettled(self, key: PartitionKey) -> bool:
        dead, table = self.dead_offsets[key], self.table_offsets[key]
        return dead is not None and (table is None or table < dead)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """What the tasks of a round have written, and where it reaches to."""

    end_offsets: Mapping[PartitionKey, int]
    good: tuple[DataFile, ...] = ()
    bad: tuple[DataFile, ...] = ()


class Committer:
    """The one who commits to a topic's two tables."""

    def __init__(
        self, table: LakeTable, dead_letters: LakeTable, *, accept_recreated: bool = False
    ) -> None:
        self.table = table
        self.dead_letters = dead_letters
        self._accept_recreated = accept_recreated

    def stand(self, keys: Iterable[PartitionKey]) -> Standing:
        """Load both tables; if rows are unsettled, fence off whoever left them so."""
        wanted = list(keys)
        table, dead = self.table.load(), self.dead_letters.load()
        self._check_topic(table, wanted)
        table_offsets = {key: table.offset(key) for key in wanted}
        dead_offsets = {key: dead.offset(key) for key in wanted}
        standing = Standing(
            table_fence=table.fence,
            dead_fence=dead.fence,
            table_offsets=table_offsets,
            dead_offsets=dead_offsets,
            settled={},
        )
        self._check(standing)
        unsettled = [key for key in wanted if standing.is_unsettled(key)]
        if not unsettled:
            return standing
        self.table.commit(Change(planned_fence=table.fence))
        return Standing(
            table_fence=table.fence + 1,
            dead_fence=dead.fence,
            table_offsets=table_offsets,
            dead_offsets=dead_offsets,
            settled=self._dead_among(dead, {key: table_offsets[key] or 0 for key in unsettled}),
        )

    def _check_topic(self, table: TableState, keys: list[PartitionKey]) -> None:
        known = table.mark(TOPIC)
        marks = {topic_mark(key.topic_id) for key in keys}
        if known is None or not marks or self._accept_recreated or marks == {known}:
            return
        raise LakeError(
            f"topic {self.table.name} was deleted and created again, and its table "
            f"{self.table.location} holds the rows of the old one: move the table and its dead "
            "letters away to begin a new one, or add the new topic's rows to it by running once "
            "with --accept-loss"
        )

    def _check(self, standing: Standing) -> None:
        for key, committed in standing.table_offsets.items():
            dead = standing.dead_offsets[key]
            if committed is not None and dead is not None and dead < committed:
                raise LakeError(
                    f"the dead letters of {self.table.name} end at {dead} in partition "
                    f"{key.partition} and the table at {committed}: one of them was restored to "
                    "an older version; restore both to one moment, or drop both to begin again"
                )

    def _dead_among(
        self, dead: TableState, starts: Mapping[PartitionKey, int]
    ) -> dict[PartitionKey, "pa.Int64Array"]:
        import pyarrow as pa

        found: dict[PartitionKey, list[pa.Array]] = {key: [] for key in starts}
        columns = ["_topic_id", "_partition", "_offset"]
        for file in dead.files():
            for batch in rows_of(self.dead_letters, file, dead.schema, columns):
                for key, start_offset in starts.items():
                    mask = pc.and_(
                        pc.and_(
                            pc.equal(batch.column("_topic_id"), pa.scalar(key.topic_id)),
                            pc.equal(batch.column("_partition"), key.partition),
                        ),
                        pc.greater_equal(batch.column("_offset"), start_offset),
                    )
                    found[key].append(batch.column("_offset").filter(mask))
        return {
            key: pa.concat_arrays([pa.array([], pa.int64()), *parts])
            for key, parts in found.items()
        }

    def commit(self, standing: Standing, result: RoundResult) -> int:
        """Land a round, dead letters first; raises Refused if anybody else has committed since."""
        dead_ends = {
            key: max(end, standing.dead_offsets[key] or 0)
            for key, end in result.end_offsets.items()
        }
        self.dead_letters.commit(
            Change(
                added=result.bad,
                advances=_advances(standing.dead_offsets, dead_ends),
                planned_fence=standing.dead_fence,
            )
        )
        return self.table.commit(
            Change(
                added=result.good,
                advances=_advances(standing.table_offsets, result.end_offsets),
                marks=_topic_marks(result.end_offsets),
                planned_fence=standing.table_fence,
            )
        )


def _advances(
    starts: Mapping[PartitionKey, int | None], ends: Mapping[PartitionKey, int]
) -> tuple[Advance, ...]:
    return tuple(Advance(key, starts[key], end) for key, end in sorted(ends.items()))


def _topic_marks(keys: Iterable[PartitionKey]) -> dict[str, int]:
    ids = {key.topic_id for key in keys}
    assert len(ids) <= 1, "a round is of one topic"
    return {TOPIC: topic_mark(topic_id) for topic_id in ids}  # noqa: B035 (one at most)
