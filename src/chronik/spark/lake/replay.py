"""Replays dead letters: rows that decode by now move to the table.

They are two tables, so a replay is three commits, and what it has decided is on disk before the
first. From then on it is only ever carried forward, by whoever finds it, never taken back:

1. the files: good rows for the table, the remainder for the dead letters; and the *intent*, a
   JSON file that names both and the files that they replace;
2. the dead letters take the mark of this replay: from now on nobody rearranges their files;
3. the table takes the good rows and the mark, in one commit;
4. the dead letters swap the old files for the remainder and note that the replay is done.

Invariant
    If the table has the mark, it has the rows; if it has not, it has none of them.

Rows that the table has not passed yet are left alone: recovery (`committer`) counts on them.
"""

import json
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from chronik.spark.lake.parquet import FileWriter, described
from chronik.spark.lake.reading import rows_of
from chronik.spark.lake.schemas import DEAD_LETTER_COLUMNS
from chronik.spark.lake.table import (
    EXPIRY,
    INTENTS,
    REPLAY,
    REPLAY_DONE,
    Change,
    DataFile,
    LakeTable,
    LiveFile,
    PartitionKey,
    Refused,
    TableState,
)

# Dead letters in; out come rows for the table, and a mask that says which letters they were.
Decode = Callable[[pa.RecordBatch], tuple[pa.RecordBatch, pa.BooleanArray]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What a replay did."""

    row_count: int
    remaining_count: int


def replay(table: LakeTable, dead_letters: LakeTable, decode: Decode, *, now_ms: int) -> Replayed:
    """Move what decodes by now. Raises Refused if another replay does the same."""
    finish_replay(table, dead_letters)
    state, dead = table.load(), dead_letters.load()
    files = tuple(dead.files())
    if not files:
        return Replayed(row_count=0, remaining_count=0)
    good, remainder = _sorted_out(table, state, dead_letters, dead, files, decode, now_ms)
    replayed = Replayed(row_count=_rows(good), remaining_count=_rows(remainder))
    if not good:
        return replayed
    replay_id = secrets.randbelow(2**62) + 1
    intent = {
        "replaces": [file.path for file in files],
        "good": [[file.path, list(file.partition)] for file in good],
        "remainder": [file.path for file in remainder],
        "previous": state.mark(REPLAY),
    }
    dead_letters.storage.write(_intent_path(replay_id), json.dumps(intent).encode())
    begun = Change(
        required=files,
        marks={REPLAY: replay_id},
        marks_expected={
            REPLAY: dead.mark(REPLAY),
            REPLAY_DONE: dead.mark(REPLAY),
            EXPIRY: dead.mark(EXPIRY),  # else what was just written may be deleted again
        },
    )
    dead_letters.commit(begun)
    finish_replay(table, dead_letters)
    return replayed


def finish_replay(table: LakeTable, dead_letters: LakeTable) -> bool:
    """Carry a replay that was begun to its end; returns whether there was one."""
    dead = dead_letters.load()
    replay_id = dead.mark(REPLAY)
    if replay_id is None or replay_id == dead.mark(REPLAY_DONE):
        return False
    try:
        intent = json.loads(dead_letters.storage.read(_intent_path(replay_id)))
        if table.load().mark(REPLAY) != replay_id:
            _append_good(table, intent, replay_id)
        _swap(dead_letters, dead, intent, replay_id)
    except FileNotFoundError:
        # Files go only after the end: has somebody else carried the replay there meanwhile?
        if dead_letters.load().mark(REPLAY_DONE) != replay_id:
            raise
    dead_letters.storage.delete(_intent_path(replay_id))
    return True


def pending_files(dead_letters: LakeTable) -> frozenset[str]:
    """The files that a replay has written and that no table refers to yet."""
    dead = dead_letters.load()
    replay_id = dead.mark(REPLAY)
    if replay_id is None or replay_id == dead.mark(REPLAY_DONE):
        return frozenset()
    try:
        intent = json.loads(dead_letters.storage.read(_intent_path(replay_id)))
    except FileNotFoundError:
        return frozenset()  # It was finished just now.
    return frozenset([*(path for path, _ in intent["good"]), *intent["remainder"]])


def _append_good(table: LakeTable, intent: dict[str, Any], replay_id: int) -> None:
    good = tuple(described(table.storage, path, tuple(part)) for path, part in intent["good"])
    change = Change(
        added=good, marks={REPLAY: replay_id}, marks_expected={REPLAY: intent["previous"]}
    )
    try:
        table.commit(change)
    except Refused:
        # Somebody else carries the same replay forward, and was faster.
        if table.load().mark(REPLAY) != replay_id:
            raise


def _swap(
    dead_letters: LakeTable, dead: TableState, intent: dict[str, Any], replay_id: int
) -> None:
    replaced = set(intent["replaces"])
    change = Change(
        added=tuple(described(dead_letters.storage, path, ()) for path in intent["remainder"]),
        removed=tuple(file for file in dead.files() if file.path in replaced),
        marks={REPLAY_DONE: replay_id},
        marks_expected={REPLAY: replay_id, REPLAY_DONE: dead.mark(REPLAY_DONE)},
    )
    try:
        dead_letters.commit(change)
    except Refused:
        if dead_letters.load().mark(REPLAY_DONE) != replay_id:
            raise


def _sorted_out(
    table: LakeTable,
    state: TableState,
    dead_letters: LakeTable,
    dead: TableState,
    files: tuple[LiveFile, ...],
    decode: Decode,
    now_ms: int,
) -> tuple[tuple[DataFile, ...], tuple[DataFile, ...]]:
    to_table = FileWriter(
        table.storage, table.file_schema(state), table.partitioning, now_ms=now_ms
    )
    to_dead = FileWriter(dead_letters.storage, dead_letters.file_schema(dead), now_ms=now_ms)
    with to_table, to_dead:
        for batch in _batches(dead_letters, dead, files):
            rows, is_good = decode(batch)
            is_good = pc.and_(is_good, _is_passed(batch, state))
            to_table.write(rows.filter(is_good))
            to_dead.write(batch.filter(pc.invert(is_good)))
        return to_table.close(), to_dead.close()


def _batches(
    dead_letters: LakeTable, dead: TableState, files: tuple[LiveFile, ...]
) -> Iterator[pa.RecordBatch]:
    for file in files:
        yield from rows_of(dead_letters, file, dead.schema, DEAD_LETTER_COLUMNS.names)


def _is_passed(batch: pa.RecordBatch, state: TableState) -> pa.BooleanArray:
    """Which letters lie below the offset that the table has come to."""
    passed = pa.array([False] * batch.num_rows)
    pairs = pa.table(
        {"id": batch.column("_topic_id"), "partition": batch.column("_partition")}
    ).group_by(["id", "partition"])
    for pair in pairs.aggregate([]).to_pylist():
        end = state.offset(PartitionKey(pair["id"], pair["partition"]))
        mask = pc.and_(
            pc.and_(
                pc.equal(batch.column("_topic_id"), pa.scalar(pair["id"], pa.binary())),
                pc.equal(batch.column("_partition"), pair["partition"]),
            ),
            pc.less(batch.column("_offset"), 0 if end is None else end),
        )
        passed = pc.or_(passed, mask)
    return passed


def _rows(files: tuple[DataFile, ...]) -> int:
    return sum(file.row_count for file in files)


def _intent_path(replay_id: int) -> str:
    return f"{INTENTS}/replay-{replay_id}.json"
