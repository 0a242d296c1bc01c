"""Few files: small ones are merged, old ones dropped, by the same commit as everything else.

Files are merged by size class, eight of one class into one of the next, so that each row is
written again only about log8(target / first size) times and a table has a few dozen small files
at most, however often rows are committed.

A merge keeps all rows and moves no offset. It lands only if its files are still there: of two
merges of the same files one is refused (`table.check_change`).
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from chronik.spark.lake.parquet import TARGET_BYTES, FileWriter
from chronik.spark.lake.reading import FilesOf, rows_of
from chronik.spark.lake.table import (
    EXPIRY,
    REPLAY,
    REPLAY_DONE,
    Change,
    DataFile,
    LakeTable,
    LiveFile,
    TableState,
)

if TYPE_CHECKING:
    import pyarrow as pa

FANOUT: Final = 8
SMALLEST_CLASS_BYTES: Final = 256 * 1024  # below this, size says nothing about cost
MERGED_FILES_MAX: Final = 64


def plan_merges(
    files: Iterable[LiveFile], *, target_bytes: int = TARGET_BYTES, fanout: int = FANOUT
) -> list[tuple[LiveFile, ...]]:
    """Groups of files of which each should become one."""
    classes: dict[tuple[tuple[str | None, ...], int], list[LiveFile]] = defaultdict(list)
    for file in files:
        if file.byte_count < target_bytes // 2:
            classes[file.partition, _size_class(file.byte_count, fanout)].append(file)
    return [
        group
        for members in classes.values()
        if len(members) >= fanout
        for group in _groups(members, target_bytes, fanout)
    ]


def _size_class(byte_count: int, fanout: int) -> int:
    if byte_count <= SMALLEST_CLASS_BYTES:
        return 0
    return 1 + int(math.log(byte_count / SMALLEST_CLASS_BYTES, fanout))


def _groups(members: list[LiveFile], target_bytes: int, fanout: int) -> list[tuple[LiveFile, ...]]:
    groups: list[tuple[LiveFile, ...]] = []
    group: list[LiveFile] = []
    size = 0
    for file in sorted(members, key=lambda each: each.byte_count):
        if group and (size + file.byte_count > target_bytes or len(group) >= MERGED_FILES_MAX):
            groups.append(tuple(group))
            group, size = [], 0
        group.append(file)
        size += file.byte_count
    groups.append(tuple(group))
    return [each for each in groups if len(each) >= max(2, fanout // 2)]


def may_rearrange(state: TableState) -> bool:
    """Whether files may be replaced: not while a replay counts on them."""
    return state.mark(REPLAY) == state.mark(REPLAY_DONE)


def merge(
    table: LakeTable, state: TableState, group: tuple[LiveFile, ...], *, now_ms: int
) -> tuple[DataFile, ...]:
    """Write the rows of some files to one, in order of offset as far as the files were."""
    return merge_files(FilesOf.table(table), table.file_schema(state), group, now_ms=now_ms)


def merge_files(
    files: FilesOf, schema: "pa.Schema", group: tuple[LiveFile, ...], *, now_ms: int
) -> tuple[DataFile, ...]:
    """The same where there is no table at hand, only what its files look like."""
    with FileWriter(
        files.storage, schema, files.partitioning, now_ms=now_ms, target_bytes=2 * TARGET_BYTES
    ) as writer:
        for file in group:
            for batch in rows_of(files, file, schema, schema.names):
                writer.write_part(file.partition, batch)
        return writer.close()


def merge_change(
    state: TableState, group: tuple[LiveFile, ...], merged: tuple[DataFile, ...]
) -> Change:
    """The commit of a merge that was planned on this state."""
    assert sum(file.row_count for file in group) == sum(file.row_count for file in merged)
    return Change(
        added=merged,
        removed=group,
        # No replay has begun, and nothing was deleted that we have just written.
        marks_expected={REPLAY: state.mark(REPLAY), EXPIRY: state.mark(EXPIRY)},
        is_rearrangement=True,
    )


def compact(table: LakeTable, *, now_ms: int) -> int:
    """Merge what should be merged, here and now; returns how many files were replaced."""
    state = table.load()
    if not may_rearrange(state):
        return 0
    replaced = 0
    for group in plan_merges(state.files()):
        merged = merge(table, state, group, now_ms=now_ms)
        table.commit(merge_change(state, group, merged))
        replaced += len(group)
    return replaced


def drop_old(table: LakeTable, *, now_ms: int, retention_ms: int) -> int:
    """Take files out of the table whose newest row is older than this; returns how many."""
    state = table.load()
    if retention_ms < 0 or not may_rearrange(state):
        return 0
    old = tuple(
        file
        for file in state.files()
        if file.newest_ms is not None and file.newest_ms < now_ms - retention_ms
    )
    if old:
        table.commit(Change(removed=old, marks_expected={REPLAY: state.mark(REPLAY)}))
    return len(old)
