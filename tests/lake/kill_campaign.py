"""Kills a committer at every step it takes, and looks whether table and dead letters are the log.

A plain module: `python kill_campaign.py --kills 5000` runs the whole campaign, the tests a part.
Tables and files are real, the log is a list. One kill point is: records arrive, a committer takes
up work under one idea of what decodes, and at one event (before or after a file is written or
deleted, or a commit lands) it dies, or stalls while another one works and then goes on. Then a
last one brings everything to the end, and each record must be there once.

Everything follows from the seed, which a failure names.
"""

import argparse
import multiprocessing
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog

from chronik.spark.lake.committer import Committer, RoundResult, Standing
from chronik.spark.lake.compaction import compact
from chronik.spark.lake.expiry import expire
from chronik.spark.lake.parquet import FileWriter
from chronik.spark.lake.reading import rows_of
from chronik.spark.lake.replay import finish_replay, replay
from chronik.spark.lake.schemas import DEAD_LETTER_COLUMNS, TIMESTAMP, table_schema
from chronik.spark.lake.storage import Storage
from chronik.spark.lake.table import LakeTable, PartitionKey, Refused
from chronik.spark.lake.warehouse import DEAD_LETTERS, Warehouse

COLUMNS = pa.schema([("item", pa.string())])
TOPIC_ID = bytes(range(16))
DAY_MS = 24 * 3_600_000
KILLS_A_WORLD = 20  # then tables are made anew, so that checking stays cheap
EVERYTHING_DECODES = 9


class Killed(BaseException):
    """The process has died, as far as the committer can tell."""


# Events: the committer's steps, before and after each.


class Events:
    """Counts the steps of the threads that take part, and does to one what was asked for."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._act: Callable[[str], None] | None = None

    @contextmanager
    def at(self, number: int, act: Callable[[str], None]) -> Iterator[None]:
        """Within: this thread's event of this number does something else first."""
        self._local.left, self._local.act = number, act
        try:
            yield
        finally:
            self._local.act = None

    def step(self, name: str) -> None:
        act = getattr(self._local, "act", None)
        if act is None:
            return
        self._local.left -= 1
        if self._local.left < 0:
            self._local.act = None
            act(name)


EVENTS = Events()


def _watched(owner: Any, name: str) -> None:
    real = getattr(owner, name)

    def call(*args: Any, **options: Any) -> Any:
        EVENTS.step(f"before {owner.__name__}.{name}")
        result = real(*args, **options)
        EVENTS.step(f"after {owner.__name__}.{name}")
        return result

    setattr(owner, name, call)


WATCHED = [
    (Storage, "create"),
    (Storage, "sync"),
    (Storage, "write"),
    (Storage, "delete"),
    (DeltaTable, "create_write_transaction"),
    (DeltaTable, "cleanup_metadata"),
    (SqlCatalog, "commit_table"),
    (SqlCatalog, "_write_metadata"),
]


@contextmanager
def watching() -> Iterator[None]:
    """Within: the steps of committers are events."""
    saved = [(owner, name, owner.__dict__.get(name)) for owner, name in WATCHED]
    for owner, name in WATCHED:
        if name in ("_write_metadata",):
            _watched_static(owner, name)
        else:
            _watched(owner, name)
    try:
        yield
    finally:
        for owner, name, original in saved:
            if original is None:
                delattr(owner, name)
            else:
                setattr(owner, name, original)


def _watched_static(owner: Any, name: str) -> None:
    real = getattr(owner, name)

    def call(*args: Any, **options: Any) -> Any:
        EVENTS.step(f"before {owner.__name__}.{name}")
        return real(*args, **options)

    setattr(owner, name, staticmethod(call))


# The log.


@dataclass
class Log:
    """Partitions as lists of offsets: a transaction's markers and aborted records leave gaps."""

    seed: int
    partition_count: int = 2
    ends: list[int] = field(default_factory=list)
    offsets: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ends = [0] * self.partition_count
        self.offsets = [[] for _ in range(self.partition_count)]

    def grow(self, chance: random.Random) -> None:
        for partition in range(self.partition_count):
            for _ in range(chance.randint(0, 6)):
                if chance.random() < 0.85:
                    self.offsets[partition].append(self.ends[partition])
                self.ends[partition] += 1

    def decodes(self, partition: int, offset: int, idea: int) -> bool:
        """Whether a record decodes: some always, some never, some under some ideas only."""
        kind = random.Random(f"{self.seed} {partition} {offset}").randrange(20)
        if kind < 2:
            return idea == EVERYTHING_DECODES
        return kind >= 8 or (kind + idea) % 3 > 0

    def partitions(self) -> list[PartitionKey]:
        return [PartitionKey(TOPIC_ID, each) for each in range(self.partition_count)]


# The committer's work.


@dataclass
class World:
    """One warehouse with one topic's tables."""

    warehouse: Warehouse
    table_format: str
    log: Log
    now_ms: int

    def committer(self) -> Committer:
        warehouse = self.warehouse
        schema = table_schema(COLUMNS, self.table_format)
        dead = f"orders{DEAD_LETTERS}"
        return Committer(
            warehouse.open_or_create("orders", self.table_format, schema),
            warehouse.open_or_create(dead, self.table_format, DEAD_LETTER_COLUMNS),
        )


def letters(partition: int, offsets: list[int]) -> pa.RecordBatch:
    count = len(offsets)
    values = {
        "_topic": pa.array(["orders"] * count, pa.string()),
        "_partition": pa.array([partition] * count, pa.int32()),
        "_offset": pa.array(offsets, pa.int64()),
        "_timestamp": pa.array([0] * count, pa.int64()).cast(TIMESTAMP),
        "_key": pa.nulls(count, pa.binary()),
        "_headers": pa.nulls(count, DEAD_LETTER_COLUMNS.field("_headers").type),
        "_value": pa.array([b"%d" % each for each in offsets], pa.binary()),
        "_reason": pa.array(["does not decode"] * count, pa.string()),
        "_topic_id": pa.array([TOPIC_ID] * count, pa.binary()),
    }
    return pa.record_batch(list(values.values()), schema=DEAD_LETTER_COLUMNS)


def as_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    item = batch.column("_value").cast(pa.string())
    names = batch.schema.names[:6]
    return pa.record_batch([*batch.columns[:6], item], names=[*names, "item"])


def work_round(
    world: World,
    committer: Committer,
    idea: int,
    chance: random.Random,
    *,
    to_the_end: bool = False,
) -> bool:
    """One round, as the pipeline does it; returns whether there was anything to do."""
    log, keys = world.log, world.log.partitions()
    standing = committer.stand(keys)
    table, dead = committer.table, committer.dead_letters
    ends: dict[PartitionKey, int] = {}
    good = FileWriter(table.storage, table.file_schema(table.load()), now_ms=world.now_ms)
    bad = FileWriter(dead.storage, DEAD_LETTER_COLUMNS, now_ms=world.now_ms)
    with good, bad:
        for key in keys:
            start = standing.start_offset(key, 0)
            end = standing.end_offset(key, log.ends[key.partition])
            if not standing.is_unsettled(key) and end > start and not to_the_end:
                end = chance.randint(start + 1, end)
            if end <= start:
                continue
            ends[key] = end
            _classified(world, standing, key, (start, end), idea, good, bad)
        result = RoundResult(end_offsets=ends, good=good.close(), bad=bad.close())
    if ends:
        committer.commit(standing, result)
    return bool(ends)


def _classified(
    world: World,
    standing: Standing,
    key: PartitionKey,
    offsets: tuple[int, int],
    idea: int,
    good: FileWriter,
    bad: FileWriter,
) -> None:
    log = world.log
    settled = set(standing.settled[key].to_pylist()) if key in standing.settled else set()
    todo = [
        each
        for each in log.offsets[key.partition]
        if offsets[0] <= each < offsets[1] and each not in settled
    ]
    decoding = [each for each in todo if log.decodes(key.partition, each, idea)]
    good.write(as_rows(letters(key.partition, decoding)))
    bad.write(letters(key.partition, [each for each in todo if each not in set(decoding)]))


def work(world: World, idea: int, chance: random.Random, tasks: list[str]) -> None:
    """What one incarnation of the committer does in its life."""
    committer = world.committer()
    table, dead = committer.table, committer.dead_letters
    for task in tasks:
        match task:
            case "round":
                work_round(world, committer, idea, chance)
            case "compact":
                compact(table, now_ms=world.now_ms)
                compact(dead, now_ms=world.now_ms)
            case "replay":
                replay(table, dead, _decoder(world, idea), now_ms=world.now_ms)
            case "expire":
                expire(table, dead, now_ms=world.now_ms, pin_ms=0)


def _decoder(world: World, idea: int) -> Callable[..., tuple[pa.RecordBatch, pa.BooleanArray]]:
    def decode(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.BooleanArray]:
        partitions = batch.column("_partition").to_pylist()
        offsets = batch.column("_offset").to_pylist()
        mask = [
            world.log.decodes(partition, offset, idea)
            for partition, offset in zip(partitions, offsets, strict=True)
        ]
        return as_rows(batch), pa.array(mask, pa.bool_())

    return decode


def some_tasks(chance: random.Random) -> list[str]:
    tasks = chance.choices(
        ["round", "compact", "replay", "expire"], weights=[6, 1, 2, 1], k=chance.randint(1, 3)
    )
    return tasks if "round" in tasks or chance.random() < 0.3 else ["round", *tasks]


# One kill point.


def kill_point(world: World, chance: random.Random) -> str:
    """Records arrive, a committer dies or stalls somewhere, and a last one brings all to the end.

    Returns what happened, for the campaign's summary.
    """
    world.log.grow(chance)
    event, idea, tasks = chance.randint(0, 30), chance.randrange(3), some_tasks(chance)
    if chance.random() < 0.6:
        happened = _killed(world, chance, event, idea, tasks)
    else:
        happened = _stalled(world, chance, event, idea, tasks)
    _bring_to_the_end(world, chance)
    check(world)
    return happened


def _killed(world: World, chance: random.Random, event: int, idea: int, tasks: list[str]) -> str:
    def die(name: str) -> None:
        raise Killed(name)

    try:
        with EVENTS.at(event, die):
            work(world, idea, chance, tasks)
    except Killed as killed:
        return f"killed {killed}"
    return "finished"


def _stalled(world: World, chance: random.Random, event: int, idea: int, tasks: list[str]) -> str:
    """Two committers at once: one stalls at an event, another works, then the first goes on."""
    stalled, go_on, done = threading.Event(), threading.Event(), []
    mine = random.Random(chance.random())

    def stall(name: str) -> None:
        done.append(f"stalled {name}")
        stalled.set()
        go_on.wait()

    def first() -> None:
        try:
            with EVENTS.at(event, stall):
                work(world, idea, mine, tasks)
        except Refused:
            done.append("refused")
        except FileNotFoundError:
            done.append("too late")  # it has stalled for days, and its files were deleted
        except BaseException as error:
            done.append(error)
        stalled.set()

    thread = threading.Thread(target=first)
    thread.start()
    stalled.wait()
    try:
        if chance.random() < 0.5:
            world.log.grow(chance)
        _killed(world, chance, chance.randint(0, 60), chance.randrange(3), some_tasks(chance))
    except Refused:
        pass
    finally:
        go_on.set()
        thread.join()
    for outcome in done:
        if isinstance(outcome, BaseException):
            raise outcome
    return " then ".join(str(each) for each in done) or "finished"


def _bring_to_the_end(world: World, chance: random.Random) -> None:
    committer = world.committer()
    finish_replay(committer.table, committer.dead_letters)
    idea = chance.randrange(3)
    while work_round(world, committer, idea, chance, to_the_end=True):
        pass


# What must be true.


def offsets_in(table: LakeTable) -> Counter[tuple[int, int]]:
    state = table.load()
    found: Counter[tuple[int, int]] = Counter()
    for file in state.files():
        for batch in rows_of(table, file, state.schema, ["_partition", "_offset"]):
            found.update(zip(*(column.to_pylist() for column in batch.columns), strict=True))
    return found


def check(world: World) -> None:
    """Each record of the log is in one of the two tables, once."""
    committer = world.committer()
    table, dead = offsets_in(committer.table), offsets_in(committer.dead_letters)
    expected = Counter(
        (partition, offset)
        for partition, offsets in enumerate(world.log.offsets)
        for offset in offsets
    )
    both = table + dead
    assert both == expected, (
        f"missing {sorted(expected - both)}, too many {sorted(both - expected)} "
        f"(table {sorted(table & (both - expected))})"
    )
    table_state, dead_state = committer.table.load(), committer.dead_letters.load()
    for key in world.log.partitions():
        end = world.log.ends[key.partition]
        assert (table_state.offset(key) or 0) == end
        assert (dead_state.offset(key) or 0) == end


# The campaign.


def campaign(place: Warehouse, table_format: str, seed: int, kills: int) -> Counter[str]:
    """So many kill points; what happened, counted. A failure names its seed."""
    summary: Counter[str] = Counter()
    number = 0
    with watching():
        while number < kills:
            world_seed = seed * 1_000_003 + number
            chance = random.Random(f"{table_format} {world_seed}")
            log = Log(seed=world_seed)
            now_ms = int(time.time() * 1000) + 2 * DAY_MS  # what is unreferenced is old
            warehouse = replace(place, url=f"{place.url}/{world_seed}")
            world = World(warehouse, table_format, log, now_ms)
            for _ in range(min(KILLS_A_WORLD, kills - number)):
                try:
                    summary[kill_point(world, chance)] += 1
                except Exception as error:
                    raise AssertionError(f"{table_format}, seed {world_seed}: {error}") from error
                number += 1
    return summary


def run_and_exit(place: Warehouse, table_format: str, seed: int) -> None:
    """In a process of its own: work until an event, then end it with no more ado."""
    chance = random.Random(seed)
    world = World(place, table_format, Log(seed=seed), int(time.time() * 1000) + 2 * DAY_MS)
    world.log.grow(chance)
    with watching(), EVENTS.at(chance.randint(2, 8), lambda name: os._exit(17)):
        for _ in range(3):
            work(world, chance.randrange(3), chance, ["round", "compact", "replay"])


def process_kill(place: Warehouse, table_format: str, seed: int) -> int:
    """Kill a real process; returns its exit code once table and dead letters were the log."""
    process = multiprocessing.get_context("spawn").Process(
        target=run_and_exit, args=(place, table_format, seed)
    )
    process.start()
    process.join()
    chance = random.Random(seed)
    world = World(place, table_format, Log(seed=seed), int(time.time() * 1000) + 2 * DAY_MS)
    world.log.grow(chance)
    _bring_to_the_end(world, chance)
    check(world)
    return process.exitcode or 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=5000)
    parser.add_argument("--processes", type=int, default=40)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    for table_format in ("delta", "iceberg"):
        started = time.monotonic()
        summary: Counter[str] = Counter()
        share = options.kills // 2
        for part in range(0, share, 100):
            with tempfile.TemporaryDirectory() as root:
                seed = options.seed + part
                place = Warehouse(url=root)
                summary += campaign(place, table_format, seed, min(100, share - part))
            print(f"{table_format}: {summary.total()} kill points", end="\r", flush=True)
        killed = sum(count for name, count in summary.items() if name != "finished")
        for name, count in sorted(summary.items()):
            print(f"{count:6} {name}")
        exits = 0
        for number in range(options.processes // 2):
            with tempfile.TemporaryDirectory() as root:
                place = Warehouse(url=root)
                exits += process_kill(place, table_format, options.seed + number) == 17
        print(
            f"{table_format}: {share} kill points ({killed} struck), {exits} processes ended, "
            f"table and dead letters were the log each time; {time.monotonic() - started:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
