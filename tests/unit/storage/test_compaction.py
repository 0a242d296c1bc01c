"""Compaction: what stays, what a crash in the middle leaves, and that each fsync is needed."""

import asyncio
import random
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from pathlib import Path

import pytest
from batches import append, read_all, reopened
from crash_disk import Crash, CrashDisk, Ignore, nothing_ignored

from chronik.model import NO_PRODUCER_ID
from chronik.protocol.batch import DELETE_HORIZON_FLAG, read_header, split
from chronik.protocol.codecs import GZIP
from chronik.protocol.records import Record, build_batch, iter_records
from chronik.storage import compaction
from chronik.storage.compaction import clean, compact, dirty_part, is_due
from chronik.storage.disk import Disk, FileDisk
from chronik.storage.errors import StorageError
from chronik.storage.log import Log, LogConfig
from chronik.storage.memory import MemoryDisk

DIRECTORY = "/data/topics/prices.id/0"
CONFIG = LogConfig(
    segment_bytes=1000, index_interval_bytes=100, compact=True, delete=False, segment_ms=10**12
)
NOW = 50_000


def put(log: Log, *pairs: tuple[str, str | None], **header: int) -> None:
    """Append a batch of key-value pairs; None is a tombstone."""
    records = [
        Record(
            log.end_offset + i, 1000 + log.end_offset, k.encode(), v if v is None else v.encode()
        )
        for i, (k, v) in enumerate(pairs)
    ]
    batch = build_batch(records, base_offset=log.end_offset, leader_epoch=0, **header)
    append(log, batch)


def seal(log: Log) -> None:
    """Make all so far durable and sealed."""
    log.roll(0)
    log.sync()
    log.checkpoint()


def run(slices: Generator[compaction.Slice, None, None]) -> None:
    for work in slices:
        if work is not None:
            try:
                work()
            except Exception as error:
                slices.throw(error)


def records(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    return [
        (record.offset, record.key, record.value)
        for batch in read_all(log)
        for record in iter_records(batch)
    ]


def latest(log: Log) -> dict[bytes | None, bytes]:
    """The table that a reader of the whole log ends up with."""
    table = {}
    for _, key, value in records(log):
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value
    return table


@pytest.fixture
def log() -> Log:
    return Log(MemoryDisk(), DIRECTORY, CONFIG)


def test_the_last_value_of_each_key_stays_at_its_offset(log: Log) -> None:
    put(log, ("a", "1"), ("b", "1"))
    put(log, ("a", "2"), ("c", "1"))
    put(log, ("a", "3"))
    seal(log)
    put(log, ("c", "active"))
    run(clean(log, NOW, log.end_offset, {}))
    assert records(log) == [
        (1, b"b", b"1"),
        (3, b"c", b"1"),
        (4, b"a", b"3"),
        (5, b"c", b"active"),
    ]
    assert log.cleaned_offset == 5
    assert [h.base_offset for h in log.scan_headers(0)] == [0, 2, 4, 5]
    assert read_all(reopened(log.disk, DIRECTORY, CONFIG)) == read_all(log)


def test_nothing_changes_for_a_log_without_superseded_records(log: Log) -> None:
    put(log, ("a", "1"), ("b", "1"))
    seal(log)
    before = log.segments[0]
    run(clean(log, NOW, log.end_offset, {}))
    assert log.segments[0] is before
    assert log.disk.list(DIRECTORY) == sorted(log.disk.list(DIRECTORY))
    assert not any(name.endswith((".cleaned", ".swap")) for name in log.disk.list(DIRECTORY))


def test_a_tombstone_stays_for_its_retention(log: Log) -> None:
    log.config = LogConfig(compact=True, delete_retention_ms=1000)
    put(log, ("a", "1"))
    put(log, ("a", None), ("b", "1"))
    seal(log)
    run(clean(log, NOW, log.end_offset, {}))
    assert records(log) == [(1, b"a", None), (2, b"b", b"1")]
    header = next(log.scan_headers(0))
    assert header.attributes & DELETE_HORIZON_FLAG
    assert header.base_timestamp == NOW + 1000
    for now, expected in ((NOW + 999, 2), (NOW + 1000, 1)):
        put(log, ("x", "1"))
        seal(log)
        run(clean(log, now, log.end_offset, {}))
        assert len([r for r in records(log) if r[1] != b"x"]) == expected
    first = next(iter_records(read_all(log)[0]))
    assert (first.offset, first.timestamp) == (2, 1001)


def test_a_producers_last_batch_stays_without_records(log: Log) -> None:
    put(log, ("a", "1"), producer_id=7, producer_epoch=1, base_sequence=4)
    put(log, ("a", "2"), ("b", "1"), producer_id=8, producer_epoch=0, base_sequence=0)
    put(log, ("b", "2"), ("a", "3"), producer_id=8, producer_epoch=0, base_sequence=2)
    seal(log)
    run(clean(log, NOW, log.end_offset, {7: 0, 8: 4}))
    headers = list(log.scan_headers(0))
    assert [(h.producer_id, h.record_count, h.base_sequence) for h in headers] == [
        (7, 0, 4),
        (8, 2, 2),
    ]
    assert headers[0].base_offset == headers[0].last_offset == 0
    # Once the producer has a later batch or is forgotten, it goes.
    put(log, ("z", "1"))
    seal(log)
    run(clean(log, NOW, log.end_offset, {8: 4}))
    assert [h.producer_id for h in log.scan_headers(0)] == [8, NO_PRODUCER_ID]


def test_control_batches_and_codecs_stay(log: Log) -> None:
    put(log, ("a", "1"), ("b", "x" * 50), codec=GZIP)
    put(log, ("commit", ""), control=True, transactional=True)
    put(log, ("a", "2"))
    seal(log)
    run(clean(log, NOW, log.end_offset, {}))
    headers = list(log.scan_headers(0))
    assert [h.codec for h in headers] == [GZIP, 0, 0]
    assert headers[1].is_control
    assert records(log)[0] == (1, b"b", b"x" * 50)


def test_the_active_segment_and_the_limit_are_respected(log: Log) -> None:
    for i in range(6):
        put(log, ("a", str(i)))
        seal(log)
    put(log, ("a", "active"))
    run(clean(log, NOW, 3, {}))
    assert [offset for offset, _, _ in records(log)] == [2, 3, 4, 5, 6]
    assert dirty_part(log, NOW, 3) is None


def test_small_neighbours_are_merged_and_empty_ones_removed(log: Log) -> None:
    for i in range(6):
        put(log, (f"k{i}", "v"))
        seal(log)
    assert log.segment_count == 7
    run(clean(log, NOW, log.end_offset, {}))
    assert log.segment_count == 2
    assert len(log.disk.list(DIRECTORY)) <= 4
    put(log, *((f"k{i}", "new") for i in range(6)))
    seal(log)
    log.config = LogConfig(segment_bytes=1, compact=True)
    run(clean(log, NOW, log.end_offset, {}))
    assert records(log)[0][0] == 6
    assert log.read(0, 10_000, log.end_offset) is not None
    again = reopened(log.disk, DIRECTORY, CONFIG)
    assert again.log_start_offset == 0
    assert records(again) == records(log)


def test_dirty_ratio_and_lags_decide_when(log: Log) -> None:
    def configure(**settings: float) -> None:
        log.config = LogConfig(compact=True, **settings)  # type: ignore[arg-type]

    assert not is_due(log, NOW, 0)
    put(log, ("a", "1"), ("b", "2"))
    seal(log)
    assert is_due(log, NOW, log.end_offset)
    run(clean(log, NOW, log.end_offset, {}))
    assert not is_due(log, NOW, log.end_offset)
    put(log, ("a", "2"))
    seal(log)
    configure(min_cleanable_dirty_ratio=0.9)
    assert not is_due(log, NOW, log.end_offset)
    configure(min_cleanable_dirty_ratio=0.9, max_compaction_lag_ms=1000)
    assert is_due(log, NOW, log.end_offset)
    assert not is_due(log, 1500, log.end_offset)
    configure(min_cleanable_dirty_ratio=0.1, min_compaction_lag_ms=1000)
    assert not is_due(log, 1500, log.end_offset)
    assert is_due(log, NOW, log.end_offset)
    log.config = LogConfig(compact=False)
    assert not is_due(log, NOW, log.end_offset)


def test_a_full_key_map_cleans_up_to_there(log: Log) -> None:
    for i in range(40):
        put(log, (f"k{i % 20}", str(i)))
    seal(log)
    table = latest(log)
    run(clean(log, NOW, log.end_offset, {}, key_map_bytes_max=2000))
    assert 0 < log.cleaned_offset < log.end_offset
    for _ in range(10):
        assert latest(log) == table
        run(clean(log, NOW, log.end_offset, {}, key_map_bytes_max=2000))
    assert log.cleaned_offset == log.end_offset
    assert len(records(log)) == 20


def test_large_batches_are_done_in_threads(log: Log) -> None:
    log.config = LogConfig(compact=True)
    put(log, *((f"k{i % 10}", str(i)) for i in range(5000)))
    put(log, *((f"k{i % 10}", str(i)) for i in range(5000)))
    seal(log)
    run(clean(log, NOW, log.end_offset, {}))
    assert len(records(log)) == 10


def test_retention_may_take_segments_away_meanwhile(log: Log) -> None:
    log.config = LogConfig(segment_bytes=1, compact=True)
    for i in range(6):
        put(log, ("a", str(i)))
    seal(log)

    async def main() -> None:
        slices = clean(log, NOW, log.end_offset, {})
        for work in slices:
            log.advance_log_start(4)
            if work is not None:
                await log.disk.run(work)
            log.checkpoint()

    with pytest.raises(FileNotFoundError):
        asyncio.run(main())
    assert [offset for offset, _, _ in records(log)] == [4, 5]
    assert records(reopened(log.disk, DIRECTORY, CONFIG)) == records(log)
    asyncio.run(compact(log, NOW, log.end_offset, {}))
    assert [offset for offset, _, _ in records(log)] == [5]


def random_life(disk: Disk, seed: int, promised: dict[str, object]) -> None:
    """Write, seal and compact at random; keeps in `promised` what is durable and what is there."""
    rng = random.Random(seed)
    log = reopened(disk, DIRECTORY, CONFIG)
    for _ in range(60):
        if rng.random() < 0.7:
            pairs = [
                (f"k{rng.randrange(6)}", rng.choice((None, str(rng.random())))) for _ in range(2)
            ]
            promised["pending"].append((log.end_offset, pairs))  # type: ignore[attr-defined]
            put(log, *pairs)
        elif rng.random() < 0.6:
            seal(log)
            promised["durable"] = log.durable_offset
        else:
            # Long after every horizon, so that tombstones go as soon as they may.
            run(clean(log, rng.choice((NOW, 10**12)), log.end_offset, {}))


def check_table(log: Log, promised: dict[str, object]) -> None:
    """Readers of the compacted log must end up where readers of the whole log do."""
    table: dict[bytes, bytes] = {}
    assert log.end_offset >= promised["durable"]  # type: ignore[operator]
    for offset, pairs in promised["pending"]:  # type: ignore[attr-defined]
        if offset < log.end_offset:
            for key, value in pairs:
                if value is None:
                    table.pop(key.encode(), None)
                else:
                    table[key.encode()] = value.encode()
    offsets = [offset for offset, _, _ in records(log)]
    assert offsets == sorted(set(offsets))
    assert latest(log) == table


def crashed_life(seed: int, ignore: Ignore = nothing_ignored) -> None:
    rng = random.Random(seed)
    disk = CrashDisk(ignore)
    disk.make_directory("/data/topics")
    for path in ("", "/data"):
        disk.sync_directory(path)
    promised: dict[str, object] = {"pending": [], "durable": 0}
    for _ in range(4):
        disk.operations_left = rng.randrange(300)
        try:
            random_life(disk, rng.randrange(1 << 30), promised)
        except Crash:
            pass
        disk.crash(rng.randrange(1 << 30))
        log = reopened(disk, DIRECTORY, CONFIG)
        check_table(log, promised)
        pending = promised["pending"]
        promised["pending"] = [p for p in pending if p[0] < log.end_offset]  # type: ignore


@pytest.mark.parametrize("seed", range(100))
def test_no_crash_changes_what_readers_end_up_with(seed: int) -> None:
    crashed_life(seed)


@pytest.mark.parametrize(
    "ignore",
    [
        pytest.param(lambda kind, path, caller: kind == "file" and ".cleaned" in path, id="copy"),
        pytest.param(lambda kind, path, caller: caller == "_seal", id="copy-and-rename"),
        pytest.param(
            lambda kind, path, caller: caller == "_seal" and kind == "directory", id="rename"
        ),
        pytest.param(lambda kind, path, caller: caller == "finish_swap", id="removal"),
        pytest.param(lambda kind, path, caller: kind == "replaced file", id="checkpoint"),
    ],
)
def test_without_any_one_fsync_compaction_loses_something(ignore: Ignore) -> None:
    for seed in range(300):
        try:
            crashed_life(seed, ignore)
        except (AssertionError, StorageError, FileNotFoundError):
            return
    pytest.fail("nobody noticed")


def test_readers_and_appends_go_on_during_compaction(tmp_path: Path) -> None:
    disk = FileDisk(open_files_max=4)
    log = Log(disk, str(tmp_path / "t" / "0"), CONFIG)
    rng = random.Random(1)
    table = {}

    def write() -> None:
        key, value = f"k{rng.randrange(30)}", str(rng.random())
        table[key.encode()] = value.encode()
        put(log, (key, value))

    async def read_forever(stop: asyncio.Event) -> int:
        reads = 0
        while not stop.is_set():
            offset = rng.randrange(log.end_offset)
            data = await disk.run(
                lambda offset=offset: log.read(offset, 500, log.end_offset, nowait=False)
            )
            if data:
                assert split(data)[0].header.last_offset >= offset
            reads += 1
        return reads

    async def live() -> None:
        for _ in range(300):
            write()
        stop = asyncio.Event()
        readers = [asyncio.create_task(read_forever(stop)) for _ in range(3)]
        for _ in range(10):
            seal(log)
            for work in clean(log, NOW, log.end_offset, {}):
                write()
                if work is None:
                    await asyncio.sleep(0)
                else:
                    await disk.run(work)
        stop.set()
        assert all([await reader > 5 for reader in readers])
        await compact(log, NOW, log.end_offset, {})

    asyncio.run(live())
    assert latest(log) == table
    log.close()
    assert latest(reopened(disk, log.directory, CONFIG)) == table
    disk.close()


@pytest.mark.parametrize("stop_after", range(1, 40))
def test_a_cleaning_can_be_given_up_at_any_slice(stop_after: int) -> None:
    log = Log(MemoryDisk(), DIRECTORY, CONFIG)
    for i in range(30):
        put(log, (f"k{i % 3}", str(i)), (f"k{i}", str(i)))
    seal(log)
    table = latest(log)
    slices = clean(log, NOW, log.end_offset, {})
    for work, _ in zip(slices, range(stop_after), strict=False):
        if work is not None:
            work()
    slices.close()
    assert latest(log) == table
    assert not any(".cleaned" in n or ".swap" in n for n in log.disk.list(DIRECTORY))
    assert latest(reopened(log.disk, DIRECTORY, CONFIG)) == table
    header = read_header(read_all(log)[0])
    assert header.base_offset >= 0


@pytest.mark.parametrize("cancel_at", range(8))
def test_a_cancelled_cleaning_waits_for_its_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cancel_at: int
) -> None:
    """A node that stops while a thread swaps segments: the swap must not be done a second time."""
    finish_swap = compaction.finish_swap

    def slow(*arguments: object) -> None:
        time.sleep(0.02)
        finish_swap(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(compaction, "finish_swap", slow)
    disk = FileDisk()
    log = Log(disk, f"{tmp_path}/t/0", CONFIG)
    for number in range(12):
        put(log, (f"k{number % 3}", str(number)))
        seal(log)
    expected = latest(log)

    async def main() -> None:
        calls = 0
        run_in_thread = disk.run

        def counted(work: Callable[[], object]) -> "asyncio.Future[object]":
            nonlocal calls
            future = run_in_thread(work)
            if calls == cancel_at:
                asyncio.get_running_loop().call_later(0.005, task.cancel)
            calls += 1
            return future

        monkeypatch.setattr(disk, "run", counted)
        task = asyncio.create_task(compact(log, 10_000, log.end_offset, {}))
        with suppress(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert latest(log) == expected
    assert latest(reopened(disk, log.directory, CONFIG)) == expected
    disk.close()
