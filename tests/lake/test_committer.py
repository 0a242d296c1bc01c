"""A table and its dead letters move together, and a row is never judged twice."""

import random
from pathlib import Path

import pytest
from kill_campaign import Log, World, as_rows, check, letters, offsets_in, work_round
from lake_world import FORMATS

from chronik.clock import SystemClock
from chronik.spark.lake.committer import Committer, RoundResult, Standing
from chronik.spark.lake.parquet import FileWriter
from chronik.spark.lake.schemas import DEAD_LETTER_COLUMNS
from chronik.spark.lake.table import Advance, Change, DataFile, LakeError, LakeTable, Refused
from chronik.spark.lake.warehouse import Warehouse


@pytest.fixture(params=FORMATS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    log = Log(seed=1, partition_count=1)
    log.offsets, log.ends = [list(range(6))], [6]
    return World(Warehouse(url=str(tmp_path)), request.param, log, SystemClock().wall_ms())


def good_and_bad(committer: Committer, good: list[int], bad: list[int]) -> RoundResult:
    table, dead = committer.table, committer.dead_letters
    ends = dict.fromkeys(Log(seed=1, partition_count=1).partitions(), 6)
    return RoundResult(end_offsets=ends, good=_file(table, good, False), bad=_file(dead, bad, True))


def _file(table: LakeTable, offsets: list[int], are_letters: bool) -> tuple[DataFile, ...]:
    schema = DEAD_LETTER_COLUMNS if are_letters else table.file_schema(table.load())
    with FileWriter(table.storage, schema, now_ms=1) as writer:
        batch = letters(0, offsets)
        writer.write(batch if are_letters else as_rows(batch))
        return writer.close()


def only_dead_letters(committer: Committer, standing: Standing, result: RoundResult) -> None:
    """The first half of a commit."""
    (key,) = result.end_offsets
    advance = Advance(key, standing.dead_offsets[key], 6)
    committer.dead_letters.commit(
        Change(added=result.bad, advances=(advance,), planned_fence=standing.dead_fence)
    )


def test_what_was_judged_bad_stays_bad_and_what_was_not_is_judged_now(world: World) -> None:
    committer = world.committer()
    (key,) = world.log.partitions()
    standing = committer.stand([key])
    only_dead_letters(committer, standing, good_and_bad(committer, [], [1, 4]))
    recovered = world.committer()
    standing = recovered.stand([key])
    assert standing.is_unsettled(key)
    assert (standing.start_offset(key, 0), standing.end_offset(key, 99)) == (0, 6)
    assert sorted(standing.settled[key].to_pylist()) == [1, 4]
    # Meanwhile 3 has become bad, and 4 would decode: 4 is left out, as the task does.
    recovered.commit(standing, good_and_bad(recovered, [0, 2, 5], [3]))
    assert sorted(offset for _, offset in offsets_in(recovered.dead_letters)) == [1, 3, 4]
    check(world)


def test_whoever_left_rows_unsettled_is_fenced_off(world: World) -> None:
    """It wakes up with good rows in hand that somebody else has called bad by now."""
    zombie, heir = world.committer(), world.committer()
    (key,) = world.log.partitions()
    planned = zombie.stand([key])
    in_hand = good_and_bad(zombie, [0, 2, 3, 5], [1, 4])
    only_dead_letters(zombie, planned, in_hand)
    standing = heir.stand([key])
    with pytest.raises(Refused):
        zombie.table.commit(
            Change(
                added=in_hand.good,
                advances=(Advance(key, None, 6),),
                planned_fence=planned.table_fence,
            )
        )
    heir.commit(standing, good_and_bad(heir, [0, 2, 5], [3]))
    check(world)


def test_two_pipelines_at_once(world: World) -> None:
    first, second = world.committer(), world.committer()
    (key,) = world.log.partitions()
    plan, other = first.stand([key]), second.stand([key])
    first.commit(plan, good_and_bad(first, [0, 1, 2], [3, 4, 5]))
    with pytest.raises(Refused):
        second.commit(other, good_and_bad(second, [0, 1, 2, 3], [4, 5]))
    check(world)


def test_dead_letters_behind_their_table_are_an_error(world: World) -> None:
    committer = world.committer()
    work_round(world, committer, 0, random.Random(1), to_the_end=True)
    (key,) = world.log.partitions()
    committer.table.commit(Change(advances=(Advance(key, 6, 9),)))
    with pytest.raises(LakeError, match="restored to an older version"):
        committer.stand([key])
