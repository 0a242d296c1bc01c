"""Deletes what no reader can need any more: old versions, and files that nobody refers to.

Unreferenced files come from killed tasks, from commits that were refused, and from versions that
have expired. They are deleted once they are older than a day: no task, and no reader of a version
that it pinned, takes that long. A committer that was suspended for longer might still come back
and commit them. So before anything is deleted the table's fence is moved, which refuses what was
planned before, and both tables are marked, which refuses a merge or a replay from before.
"""

from typing import Final

from chronik.spark.lake.replay import finish_replay, pending_files
from chronik.spark.lake.table import EXPIRY, INTENTS, REPLAY, REPLAY_DONE, Change, LakeTable

PIN_MS: Final = 3_600_000  # how long a version's files stay after it was current
UNREFERENCED_AGE_MS: Final = 24 * 3_600_000


def expire(
    table: LakeTable,
    dead_letters: LakeTable,
    *,
    now_ms: int,
    pin_ms: int = PIN_MS,
    age_ms: int = UNREFERENCED_AGE_MS,
) -> int:
    """Expire versions of both and delete files; returns how many files were deleted."""
    for each in (table, dead_letters):
        each.expire(now_ms, pin_ms)
    if not any(_unreferenced(each, now_ms, age_ms) for each in (table, dead_letters)):
        return 0
    finish_replay(table, dead_letters)
    _refuse_earlier_plans(table, dead_letters)
    deleted = 0
    for each in (table, dead_letters):
        # Looked up again: what was in flight may have landed before the fence moved.
        unreferenced = _unreferenced(each, now_ms, age_ms)
        pending = pending_files(dead_letters)  # of a replay that has begun since
        for path in unreferenced:
            if path not in pending:
                each.storage.delete(path)
                deleted += 1
    return deleted


def _refuse_earlier_plans(table: LakeTable, dead_letters: LakeTable) -> None:
    dead = dead_letters.load()
    done, number = dead.mark(REPLAY_DONE), dead.mark(EXPIRY)
    dead_letters.commit(
        Change(
            marks={EXPIRY: (number or 0) + 1},
            marks_expected={REPLAY: done, REPLAY_DONE: done, EXPIRY: number},
        )
    )
    number = table.load().mark(EXPIRY)
    table.commit(Change(marks={EXPIRY: (number or 0) + 1}, marks_expected={EXPIRY: number}))


def _unreferenced(table: LakeTable, now_ms: int, age_ms: int) -> list[str]:
    return table.unreferenced(now_ms, age_ms) + _stale_intents(table, now_ms - age_ms)


def _stale_intents(table: LakeTable, before_ms: int) -> list[str]:
    """Intents of replays that were killed before they began."""
    pending = str(table.load().mark(REPLAY))
    return [
        f"{INTENTS}/{path}"
        for path, _, changed_ms in table.storage.at(INTENTS).list()
        if changed_ms <= before_ms and pending not in path
    ]
