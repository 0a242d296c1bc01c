"""Dead letters that decode by now move to the table, once, whoever carries the replay on."""

import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from kill_campaign import (
    DAY_MS,
    EVENTS,
    EVERYTHING_DECODES,
    Killed,
    Log,
    World,
    _decoder,
    check,
    offsets_in,
    watching,
    work_round,
)
from lake_world import FORMATS

from chronik.clock import SystemClock
from chronik.spark.lake.compaction import compact, may_rearrange
from chronik.spark.lake.expiry import expire
from chronik.spark.lake.replay import finish_replay, replay
from chronik.spark.lake.table import REPLAY, Change, LakeTable, Refused
from chronik.spark.lake.warehouse import Warehouse


@pytest.fixture(params=FORMATS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    log = Log(seed=1)
    for _ in range(4):
        log.grow(random.Random(2))
    made = World(Warehouse(url=str(tmp_path)), request.param, log, SystemClock().wall_ms())
    work_round(made, made.committer(), 0, random.Random(3), to_the_end=True)
    return made


def test_what_decodes_moves_and_the_rest_stays(world: World) -> None:
    committer = world.committer()
    table, dead = committer.table, committer.dead_letters
    letters = sum(offsets_in(dead).values())
    assert letters > 3
    replayed = replay(table, dead, _decoder(world, 1), now_ms=world.now_ms)
    assert replayed.row_count > 0
    assert replayed.remaining_count == letters - replayed.row_count
    check(world)
    rest = replay(table, dead, _decoder(world, EVERYTHING_DECODES), now_ms=world.now_ms)
    assert rest.row_count == replayed.remaining_count
    assert not offsets_in(dead)
    check(world)
    assert replay(table, dead, _decoder(world, 1), now_ms=world.now_ms).row_count == 0


def test_a_replay_that_was_killed_is_finished_by_anybody(world: World) -> None:
    """At each event in turn, until one replay gets through."""

    def die(name: str) -> None:
        raise Killed(name)

    pending = 0
    with watching():
        for event in range(24):
            committer = world.committer()
            table, dead = committer.table, committer.dead_letters
            try:
                with EVENTS.at(event, die):
                    replay(table, dead, _decoder(world, event % 3), now_ms=world.now_ms)
            except Killed:
                pending += finish_replay(table, dead)
                check(world)
                assert not finish_replay(table, dead)
                world.log.grow(random.Random(event))
                work_round(world, committer, event % 3, random.Random(event), to_the_end=True)
    assert pending >= 2


def test_a_replay_in_the_middle_keeps_compaction_away(world: World) -> None:
    committer = world.committer()
    table, dead = committer.table, committer.dead_letters
    real, seen = table.commit, []

    def look(change: Change) -> int:
        state = dead.load()
        seen.append(may_rearrange(state))
        assert compact(dead, now_ms=world.now_ms) == 0
        merge = Change(removed=tuple(state.files()), marks_expected={REPLAY: None})
        with pytest.raises(Refused):
            dead.commit(merge)  # planned before the replay began
        return real(change)

    table.commit = look  # type: ignore[method-assign]
    replay(table, dead, _decoder(world, 1), now_ms=world.now_ms)
    assert seen == [False]
    assert may_rearrange(dead.load())
    check(world)


def test_rows_that_the_table_has_not_passed_stay(world: World) -> None:
    """Between the commits of a round only the dead letters know which rows were bad."""
    committer = world.committer()
    table, dead = committer.table, committer.dead_letters
    world.log.grow(random.Random(8))
    world.log.grow(random.Random(9))

    def die(*_: object) -> int:
        raise Killed("between the two commits")

    real, committer.table.commit = table.commit, die  # type: ignore[method-assign]
    with pytest.raises(Killed):
        work_round(world, committer, 0, random.Random(4), to_the_end=True)
    committer.table.commit = real  # type: ignore[method-assign]
    replay(table, dead, _decoder(world, EVERYTHING_DECODES), now_ms=world.now_ms)
    work_round(world, world.committer(), 2, random.Random(4), to_the_end=True)
    check(world)


def test_an_expiry_leaves_a_replay_its_files(world: World) -> None:
    """A replay may begin while an expiry, late, is about to delete what nobody refers to."""
    committer = world.committer()
    table, dead = committer.table, committer.dead_letters
    (table.storage.create("data/left.parquet")).close()

    def die(*_: object) -> int:
        raise Killed("before the table takes the rows")

    def begin() -> None:
        real, table.commit = table.commit, die  # type: ignore[method-assign]
        with pytest.raises(Killed):
            replay(table, dead, _decoder(world, 1), now_ms=world.now_ms)
        table.commit = real  # type: ignore[method-assign]

    _expire_with(world, table, dead, begin)
    assert finish_replay(table, dead)
    check(world)


def _expire_with(world: World, table: LakeTable, dead: LakeTable, act: Callable[[], None]) -> None:
    """An expiry that is interrupted after it has marked both tables, before it looks again."""
    real = table.commit

    def marked(change: Change) -> int:
        version = real(change)
        table.commit = real  # type: ignore[method-assign]
        act()
        return version

    table.commit = marked  # type: ignore[method-assign]
    assert expire(table, dead, now_ms=world.now_ms + 2 * DAY_MS, pin_ms=0) >= 1


def test_two_replays_at_once(world: World) -> None:
    committer = world.committer()
    table, dead = committer.table, committer.dead_letters

    def overtake(name: str) -> None:
        replay(table, dead, _decoder(world, 1), now_ms=world.now_ms)

    with watching(), EVENTS.at(4, overtake), pytest.raises(Refused):
        replay(table, dead, _decoder(world, 2), now_ms=world.now_ms)
    check(world)


def test_a_letter_keeps_every_byte(world: World) -> None:
    dead = world.committer().dead_letters
    state = dead.load()
    assert state.schema.field("_value").type == pa.binary()
    assert state.schema.names[-2:] == ["_reason", "_topic_id"]
