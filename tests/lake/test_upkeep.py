"""Few files, few versions, nothing left over; and never a file that somebody may be reading."""

import os
import random
from pathlib import Path

import pytest
from lake_world import (
    FORMATS,
    KEY,
    NOW_MS,
    append,
    new_table,
    offsets_in,
    rows,
    written,
)

from chronik.clock import SystemClock
from chronik.spark.lake.compaction import compact, drop_old, merge, plan_merges
from chronik.spark.lake.expiry import expire
from chronik.spark.lake.iceberg import IcebergLakeTable
from chronik.spark.lake.schemas import DEAD_LETTER_COLUMNS
from chronik.spark.lake.snapshots import SPACING_MS, kept
from chronik.spark.lake.table import Advance, Change, LakeTable, LiveFile, PartitionField, Refused
from chronik.spark.lake.warehouse import Warehouse

HOUR_MS = 3_600_000
COMMITS = int(os.environ.get("CHRONIK_TEST_COMMITS", "60"))


@pytest.fixture(params=FORMATS)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> LakeTable:
    return new_table(tmp_path, request.param)


def dead_letters_of(table: LakeTable, root: Path) -> LakeTable:
    return Warehouse(url=str(root)).open_or_create("dead", table.format, DEAD_LETTER_COLUMNS)


def test_plans_of_an_hour_of_commits_leave_few_files() -> None:
    """720 commits of one to four files of any size: never more than 100 files at rest."""
    chance = random.Random(11)
    for megabytes in (0.01, 1, 20):
        files: list[LiveFile] = []
        written_bytes = merged_bytes = 0
        for number in range(720):
            for part in range(chance.randint(1, 4)):
                size = int(chance.uniform(0.5, 1.5) * megabytes * 2**20)
                files.append(LiveFile(path=f"{number}-{part}", byte_count=size, row_count=1))
                written_bytes += size
            for group in plan_merges(files):
                merged_bytes += sum(each.byte_count for each in group)
                files = [each for each in files if each not in group]
                files.append(
                    LiveFile(
                        path=f"{number}-merged-{len(files)}",
                        byte_count=sum(each.byte_count for each in group),
                        row_count=1,
                    )
                )
            small = [each for each in files if each.byte_count < 64 * 2**20]
            assert len(small) < 40
        assert merged_bytes < 6 * written_bytes, "each byte is written again a few times only"
        if megabytes <= 1:
            assert len(files) <= 100


def test_merges_stay_within_a_part_and_a_size() -> None:
    files = [
        LiveFile(path=f"{part} {number}", byte_count=20 * 2**20, row_count=1, partition=(part,))
        for part in ("a", "b")
        for number in range(20)
    ]
    groups = plan_merges(files)
    assert groups
    for group in groups:
        assert len({each.partition for each in group}) == 1
        assert sum(each.byte_count for each in group) <= 128 * 2**20


def test_many_commits_stay_few_files_and_manifests(table: LakeTable, tmp_path: Path) -> None:
    dead = dead_letters_of(table, tmp_path)
    now_ms = SystemClock().wall_ms()
    for number in range(COMMITS):
        append(table, number * 2 or None, number * 2 + 2)
        if number % 8 == 7:
            compact(table, now_ms=now_ms)
        if number % 20 == 19:
            expire(table, dead, now_ms=now_ms)
    assert offsets_in(table) == list(range(COMMITS * 2))
    assert table.load().offset(KEY) == COMMITS * 2
    assert len(table.load().files()) <= 100
    if isinstance(table, IcebergLakeTable):
        loaded = table.load().table
        snapshot = loaded.current_snapshot()
        assert snapshot is not None
        assert len(snapshot.manifests(loaded.io)) <= 100
        assert len(loaded.metadata.snapshots) <= 100


def test_a_merge_keeps_rows_and_nulls_and_order(table: LakeTable) -> None:
    for start in range(0, 24, 3):
        append(table, start or None, start + 3)
    assert compact(table, now_ms=NOW_MS) == 8
    (file,) = table.load().files()
    assert file.row_count == 24
    assert offsets_in(table) == list(range(24))
    assert compact(table, now_ms=NOW_MS) == 0


@pytest.mark.parametrize("table_format", FORMATS)
def test_files_of_an_older_schema_are_merged(tmp_path: Path, table_format: str) -> None:
    import pyarrow as pa

    partitioning = (PartitionField("_timestamp", "day"), PartitionField("_partition", "identity"))
    table = new_table(tmp_path, table_format, partitioning=partitioning)
    for start in range(0, 16, 2):
        append(table, start or None, start + 2)
    table.evolve(pa.schema([("note", pa.string())]), pa.schema([]))
    assert compact(table, now_ms=NOW_MS) == 8
    assert offsets_in(table) == list(range(16))


def test_of_two_merges_at_once_one_is_refused(table: LakeTable) -> None:
    for start in range(0, 16, 2):
        append(table, start or None, start + 2)
    state = table.load()
    (group,) = plan_merges(state.files())
    late = merge(table, state, group, now_ms=NOW_MS)
    compact(table, now_ms=NOW_MS)
    with pytest.raises(Refused):
        table.commit(Change(added=late, removed=group, is_rearrangement=True))
    assert offsets_in(table) == list(range(16))


def test_old_files_are_dropped_and_offsets_stay(table: LakeTable) -> None:
    append(table, None, 3)
    later = written(table, rows(3, 6, timestamp_ms=NOW_MS + 10 * HOUR_MS))
    table.commit(Change(added=later, advances=(Advance(KEY, 3, 6),)))
    assert drop_old(table, now_ms=NOW_MS + 11 * HOUR_MS, retention_ms=5 * HOUR_MS) == 1
    assert offsets_in(table) == [3, 4, 5]
    assert table.load().offset(KEY) == 6
    assert drop_old(table, now_ms=NOW_MS + 11 * HOUR_MS, retention_ms=-1) == 0


def test_what_killed_tasks_left_is_deleted_once_a_day_old(table: LakeTable, tmp_path: Path) -> None:
    dead = dead_letters_of(table, tmp_path)
    append(table, None, 3)
    (left,) = written(table, rows(3, 6))
    now_ms = SystemClock().wall_ms()
    expire(table, dead, now_ms=now_ms + 23 * HOUR_MS)
    assert left.path in _on_disk(table)
    expire(table, dead, now_ms=now_ms + 25 * HOUR_MS)
    assert left.path not in _on_disk(table)
    assert offsets_in(table) == [0, 1, 2]
    append(table, 3, 5)
    assert offsets_in(table) == list(range(5))


def test_files_of_expired_versions_are_deleted_once_a_day_old(
    table: LakeTable, tmp_path: Path
) -> None:
    dead = dead_letters_of(table, tmp_path)
    for start in range(0, 16, 2):
        append(table, start or None, start + 2)
    old = {each.path for each in table.load().files()}
    compact(table, now_ms=SystemClock().wall_ms())
    for number in range(25):  # so that the old versions are not among the latest few
        append(table, 16 + number, 17 + number)
    now_ms = SystemClock().wall_ms()
    expire(table, dead, now_ms=now_ms)
    assert old <= _on_disk(table)
    expire(table, dead, now_ms=now_ms + 26 * HOUR_MS)
    assert not old & _on_disk(table)
    gone = set(table.unreferenced(now_ms + 26 * HOUR_MS, 24 * HOUR_MS)) & old
    assert not gone, "what was deleted is not to be deleted again"
    assert offsets_in(table) == list(range(41))


def test_a_plan_older_than_an_expiry_is_refused(table: LakeTable, tmp_path: Path) -> None:
    """Its files are gone: a committer that was suspended for a day must not commit them."""
    dead = dead_letters_of(table, tmp_path)
    append(table, None, 3)
    planned = table.load().fence
    files = written(table, rows(3, 6))
    expire(table, dead, now_ms=SystemClock().wall_ms() + 25 * HOUR_MS)
    change = Change(added=files, advances=(Advance(KEY, 3, 6),), planned_fence=planned)
    with pytest.raises(Refused):
        table.commit(change)
    assert offsets_in(table) == [0, 1, 2]


def _on_disk(table: LakeTable) -> set[str]:
    return {path for path, _, _ in table.storage.list()}


def test_kept_versions_cover_every_pin() -> None:
    """A file a day old that was live within the hour is in a version that is kept."""
    chance = random.Random(5)
    for _ in range(200):
        moment, made = 0, []
        for version in range(chance.randint(1, 300)):
            moment += int(chance.expovariate(1 / chance.choice([5_000, 60_000, HOUR_MS])))
            made.append((version, moment))
        now_ms = moment + chance.randint(0, 2 * HOUR_MS)
        keep = kept(made, now_ms=now_ms, pin_ms=HOUR_MS, latest=3)
        assert made[-1][0] in keep
        assert len(keep) <= 3 + 1 + HOUR_MS // SPACING_MS + 1
        # The versions that a reader may have pinned within the hour, and what they hold: a file
        # is there from version a to version b, and is old if a was made a day ago.
        for _ in range(20):
            first = chance.randrange(len(made))
            last = chance.randrange(first, len(made))
            was_made_ms = made[first][1]
            gone_ms = made[last + 1][1] if last + 1 < len(made) else now_ms + 1
            is_old = was_made_ms <= now_ms - 24 * HOUR_MS
            if is_old and gone_ms > now_ms - HOUR_MS:
                assert any(first <= version <= last for version in keep)
