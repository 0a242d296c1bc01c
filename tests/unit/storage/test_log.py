"""A log on a real disk: appending, rolling, reading, recovering, shortening."""

import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from batches import append, fill, make_batch, read_all, reopened

from chronik.protocol.batch import read_header, split
from chronik.storage.disk import FileDisk
from chronik.storage.errors import CorruptLog, LogFailed, OffsetOutOfRange
from chronik.storage.log import Log, LogConfig
from chronik.storage.memory import MemoryDisk

SMALL = LogConfig(segment_bytes=2000, index_interval_bytes=200)


@pytest.fixture
def disk() -> Iterator[FileDisk]:
    disk = FileDisk(open_files_max=8)
    yield disk
    disk.close()


@pytest.fixture
def directory(tmp_path: Path) -> str:
    return str(tmp_path / "topics" / "orders.id" / "0")


def test_a_log_without_batches_has_no_file(disk: FileDisk, directory: str) -> None:
    log = Log(disk, directory, SMALL)
    log.load()
    log.checkpoint()
    log.close()
    assert log.read(0, 1000, 10) == b""
    assert not os.path.exists(os.path.dirname(directory))


def test_batches_are_stored_verbatim_and_read_back(disk: FileDisk, directory: str) -> None:
    log = Log(disk, directory, SMALL)
    made = fill(log, 60)
    assert log.segment_count > 3
    assert read_all(log) == made
    assert log.size_bytes == sum(map(len, made))
    stored = b"".join(
        Path(directory, name).read_bytes() for name in os.listdir(directory) if ".log" in name
    )
    assert sorted(stored) == sorted(b"".join(made))


@pytest.mark.parametrize("max_bytes", [0, 1, 61, 150, 500, 1999, 5000])
@pytest.mark.parametrize("sealed", [False, True])
def test_reads_give_whole_batches_within_the_limits(
    disk: FileDisk, directory: str, max_bytes: int, sealed: bool
) -> None:
    log = Log(disk, directory, LogConfig(segment_bytes=6000, index_interval_bytes=200))
    made = fill(log, 40)
    if sealed:
        log.roll(0)
        log.sync()
        log.checkpoint()
        assert log.segments[0].index is None
    headers = [read_header(batch) for batch in made]
    for offset in range(log.end_offset):
        for limit in (offset + 1, offset + 7, log.end_offset):
            wanted: list[bytes] = []
            room = max_bytes
            for batch, header in zip(made, headers, strict=True):
                if header.last_offset < offset:
                    continue
                if header.last_offset >= limit or (wanted and len(batch) > room):
                    break
                wanted.append(batch)
                room -= len(batch)
            log._hint = None
            data = log.read(offset, max_bytes, limit, nowait=False)
            assert data is not None
            # A read ends at a segment's end at the latest.
            whole = b"".join(wanted)
            assert whole.startswith(data)
            assert len(split(data)) == len(wanted) or log.segment_count > 1


def test_a_read_without_one_whole_batch_is_empty_if_asked_so(
    disk: FileDisk, directory: str
) -> None:
    log = Log(disk, directory, SMALL)
    fill(log, 3)
    assert log.read(0, 10, log.end_offset, at_least_one_batch=False) == b""


def test_a_large_first_batch_is_read_whole(disk: FileDisk, directory: str) -> None:
    log = Log(disk, directory, LogConfig())
    batch = make_batch(0, b"x" * 300_000)
    append(log, batch)
    append(log, make_batch(1))
    assert log.read(0, 100, 2) == batch


def test_reading_outside_of_the_log_is_refused(disk: FileDisk, directory: str) -> None:
    log = Log(disk, directory, SMALL)
    fill(log, 30)
    log.advance_log_start(5)
    for offset in (4, log.end_offset + 1):
        with pytest.raises(OffsetOutOfRange):
            log.read(offset, 100, log.end_offset)
    assert log.read(log.end_offset, 100, log.end_offset) == b""


def test_a_clean_stop_brings_everything_back(disk: FileDisk, directory: str) -> None:
    log = Log(disk, directory, SMALL)
    made = fill(log, 50, epoch=2)
    log.close()
    again = reopened(disk, directory, SMALL)
    assert read_all(again) == made
    assert again.end_offset == again.durable_offset == log.end_offset
    assert again.leader_epochs == [(2, 0)]
    assert [s.max_timestamp for s in again.segments] == [s.max_timestamp for s in log.segments]
    made += fill(again, 20, epoch=3)
    again.close()
    assert read_all(reopened(disk, directory, SMALL)) == made


def test_a_clean_load_changes_no_file(disk: FileDisk, directory: str) -> None:
    log = Log(disk, directory, SMALL)
    fill(log, 50)
    log.close()
    before = {name: os.stat(f"{directory}/{name}").st_mtime_ns for name in os.listdir(directory)}
    reopened(disk, directory, SMALL).close()
    after = {name: os.stat(f"{directory}/{name}").st_mtime_ns for name in os.listdir(directory)}
    assert before == after


def test_a_process_that_died_without_sync_recovers_all(disk: FileDisk, directory: str) -> None:
    log = Log(disk, directory, SMALL)
    made = fill(log, 25)
    log.sync()
    made += fill(log, 25)
    again = reopened(disk, directory, SMALL)
    assert read_all(again) == made
    assert again.durable_offset == again.end_offset
    # What was recovered is below the recovery point of the next load.
    assert f"recovery_point {again.end_offset}\n" in Path(directory, "checkpoint").read_text()


def test_a_torn_tail_is_cut(disk: FileDisk, directory: str) -> None:
    log = Log(disk, directory, LogConfig())
    made = fill(log, 10)
    path = log.segments[-1].path
    os.truncate(path, log.size_bytes - 3)
    again = reopened(disk, directory)
    assert read_all(again) == made[:-1]
    assert os.path.getsize(path) == sum(map(len, made[:-1]))
    append(again, make_batch(again.end_offset))


def test_bytes_after_the_last_batch_are_cut(disk: FileDisk, directory: str) -> None:
    log = Log(disk, directory, LogConfig())
    made = fill(log, 10)
    with open(log.segments[-1].path, "ab") as file:
        file.write(bytes(5000))
    assert read_all(reopened(disk, directory)) == made


def _flip(path: str, position: int) -> None:
    with open(path, "r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 4]))


def test_a_bad_batch_before_a_valid_one_is_corruption(disk: FileDisk, directory: str) -> None:
    log = Log(disk, directory, LogConfig())
    made = fill(log, 10)
    _flip(log.segments[0].path, len(made[0]) + 70)
    with pytest.raises(CorruptLog) as caught:
        reopened(disk, directory)
    assert caught.value.position == len(made[0])
    assert caught.value.offset == read_header(made[1]).base_offset
    assert "checksum" in caught.value.reason


def test_a_lost_tail_below_the_recovery_point_is_corruption(disk: FileDisk, directory: str) -> None:
    log = Log(disk, directory, LogConfig())
    fill(log, 10)
    log.close()
    os.truncate(log.segments[0].path, log.size_bytes - 100)
    with pytest.raises(CorruptLog):
        reopened(disk, directory)


def test_a_missing_or_cut_sealed_segment_is_corruption(disk: FileDisk, directory: str) -> None:
    log = Log(disk, directory, SMALL)
    fill(log, 50)
    log.close()
    path = log.segments[1].path
    content = Path(path).read_bytes()
    os.truncate(path, len(content) - 1)
    with pytest.raises(CorruptLog, match="checkpoint says"):
        reopened(disk, directory, SMALL)
    os.unlink(path)
    disk.release(path)
    with pytest.raises(CorruptLog, match="missing"):
        reopened(disk, directory, SMALL)


def test_a_damaged_checkpoint_is_corruption(disk: FileDisk, directory: str) -> None:
    log = Log(disk, directory, SMALL)
    fill(log, 5)
    log.close()
    _flip(f"{directory}/checkpoint", 30)
    with pytest.raises(CorruptLog, match="checkpoint"):
        reopened(disk, directory, SMALL)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["missing", "truncated", "cut at an entry", "garbage", "longer"])
@pytest.mark.parametrize("which", [0, -1])
def test_damaged_indexes_are_rebuilt(
    disk: FileDisk, directory: str, suffix: str, damage: str, which: int
) -> None:
    log = Log(disk, directory, SMALL)
    made = []
    for i in range(50):
        batch = make_batch(log.end_offset, b"x" * (i % 9 * 10), timestamp=1000 + i)
        append(log, batch)
        made.append(batch)
    log.close()
    path = log.segments[which].stem + suffix
    whole = Path(path).read_bytes()
    width = 8 if suffix == ".index" else 12
    match damage:
        case "missing":
            os.unlink(path)
        case "truncated":
            Path(path).write_bytes(whole[:-3])
        case "cut at an entry":
            Path(path).write_bytes(whole[:-width])
        case "garbage":
            Path(path).write_bytes(os.urandom(len(whole)))
        case "longer":
            Path(path).write_bytes(whole + bytes(2 * width))
    again = reopened(disk, directory, SMALL)
    assert read_all(again) == made
    for i in range(50):
        again._hint = None
        assert again.read(i, 1, 50, nowait=False) == made[i]
        found = again.find_timestamp(1000 + i)
        assert found is not None
        assert found.base_offset == i
    again.close()
    # Random entries may go unused: they slow a search down until one is caught.
    assert damage == "garbage" or Path(path).read_bytes() == whole


def test_finding_batches_by_time(disk: FileDisk, directory: str) -> None:
    log = Log(disk, directory, SMALL)
    times = [100 + (i * 37) % 50 + i for i in range(80)]
    for timestamp in times:
        append(log, make_batch(log.end_offset, b"x" * 40, timestamp=timestamp))
    for config in (None, SMALL):
        if config is not None:
            log.close()
            log = reopened(disk, directory, config)
        for wanted in range(90, 240):
            expected = next((i for i, t in enumerate(times) if t >= wanted), None)
            found = log.find_timestamp(wanted)
            assert (found and found.base_offset) == expected
        latest = log.max_timestamp_batch()
        assert latest is not None
        assert latest.base_offset == times.index(max(times))
        assert read_header(latest.data).max_timestamp == max(times) == log.max_timestamp


def test_time_search_respects_the_log_start(disk: FileDisk, directory: str) -> None:
    log = Log(disk, directory, LogConfig(index_interval_bytes=100))
    for timestamp in (5, 90, 10, 20, 15):
        append(log, make_batch(log.end_offset, timestamp=timestamp))
    log.advance_log_start(2)
    latest = log.max_timestamp_batch()
    assert latest is not None
    assert latest.base_offset == 3
    found = log.find_timestamp(6)
    assert found is not None
    assert found.base_offset == 2


def test_a_log_rolls_by_size_and_age_and_relative_offset(disk: FileDisk, directory: str) -> None:
    log = Log(disk, directory, LogConfig(segment_bytes=500, segment_ms=1000))
    append(log, make_batch(0, b"x" * 300))
    append(log, make_batch(1, b"x" * 300))
    assert log.segment_count == 2
    append(log, make_batch(2, timestamp=2001), 2001)
    assert log.segment_count == 3
    assert not log.roll_if_due(3001)
    assert log.roll_if_due(3002)
    assert not log.roll_if_due(9999)
    assert log.segment_count == 4
    append(log, make_batch(3, timestamp=9000))
    append(log, make_batch(3 + 2**32, timestamp=9000))
    assert log.segment_count == 5
    assert len(read_all(log)) == 5


def test_retention_by_time_drops_whole_segments(disk: FileDisk, directory: str) -> None:
    log = Log(disk, directory, LogConfig(segment_bytes=200, retention_ms=1000, segment_ms=10**6))
    for i in range(10):
        append(log, make_batch(i, b"x" * 100, timestamp=i * 1000))
    assert log.segment_count == 10
    assert not log.retain(1000)
    assert log.retain(3500, limit_offset=2)
    assert log.log_start_offset == 2
    assert log.retain(3500)
    assert log.log_start_offset == 3
    log.sync()
    log.checkpoint()
    assert f"{0:020d}.log" not in os.listdir(directory)
    assert reopened(disk, directory).log_start_offset == 3
    # The active segment goes too once it is expired as a whole.
    assert log.retain(10**6)
    assert log.log_start_offset == log.end_offset == 10
    assert log.size_bytes == 0
    log.checkpoint()
    assert os.listdir(directory) == ["checkpoint"]
    again = reopened(disk, directory)
    assert (again.log_start_offset, again.end_offset) == (10, 10)
    append(again, make_batch(10))
    assert len(read_all(again)) == 1


def test_retention_by_bytes(disk: FileDisk, directory: str) -> None:
    config = LogConfig(segment_bytes=200, retention_ms=-1, retention_bytes=500)
    log = Log(disk, directory, config)
    for i in range(10):
        append(log, make_batch(i, b"x" * 100))
    assert log.retain(0)
    assert 500 <= log.size_bytes < 500 + 200
    assert not log.retain(0)
    log.config = LogConfig(retention_bytes=0, retention_ms=-1, delete=False, compact=True)
    assert not log.retain(0)


def test_deleted_records_stay_deleted(disk: FileDisk, directory: str) -> None:
    log = Log(disk, directory, SMALL)
    fill(log, 50, epoch=1)
    log.sync()
    middle = log.segments[2].base_offset + 3
    assert log.advance_log_start(middle)
    assert not log.advance_log_start(middle)
    log.checkpoint()
    again = reopened(disk, directory, SMALL)
    assert again.log_start_offset == middle
    assert again.leader_epochs == [(1, middle)]
    assert len([name for name in os.listdir(directory) if name.endswith(".log")]) == (
        again.segment_count
    )


@pytest.mark.parametrize("to_offset", [1, 7, 33, 50, 98])
def test_truncation_leaves_a_prefix(disk: FileDisk, directory: str, to_offset: int) -> None:
    log = Log(disk, directory, SMALL)
    made = fill(log, 50)
    log.sync()
    log.checkpoint()
    log.truncate(to_offset)
    kept = [batch for batch in made if read_header(batch).last_offset < to_offset]
    assert read_all(log) == kept
    assert log.end_offset == (read_header(kept[-1]).next_offset if kept else 0)
    assert log.durable_offset == log.end_offset
    assert read_all(reopened(disk, directory, SMALL)) == kept
    append(log, make_batch(log.end_offset, b"after", epoch=4))
    log.sync()
    again = reopened(disk, directory, SMALL)
    assert len(read_all(again)) == len(kept) + 1
    assert again.leader_epochs[-1][0] == 4


def test_a_reset_log_begins_anew_at_its_offset(disk: FileDisk, directory: str) -> None:
    log = Log(disk, directory, SMALL)
    fill(log, 50)
    log.sync()
    for start in (1000, 20):
        log.reset(start)
        again = reopened(disk, directory, SMALL)
        for one in (log, again):
            assert (one.log_start_offset, one.end_offset) == (start, start)
        append(log, make_batch(start))
        log.sync()
        assert len(read_all(reopened(disk, directory, SMALL))) == 1


def test_leader_epochs_answer_as_kafka_does(disk: FileDisk, directory: str) -> None:
    log = Log(disk, directory, SMALL)
    assert log.end_offset_for_epoch(0) == (-1, -1)
    for epoch in (2, 2, 5, 7):
        append(log, make_batch(log.end_offset, epoch=epoch))
    assert log.leader_epochs == [(2, 0), (5, 2), (7, 3)]
    assert log.end_offset_for_epoch(1) == (1, 0)
    assert log.end_offset_for_epoch(2) == (2, 2)
    assert log.end_offset_for_epoch(4) == (2, 2)
    assert log.end_offset_for_epoch(5) == (5, 3)
    assert log.end_offset_for_epoch(7) == (7, 4)
    assert log.end_offset_for_epoch(8) == (-1, -1)


def test_headers_are_scanned_from_an_offset(disk: FileDisk, directory: str) -> None:
    log = Log(disk, directory, SMALL)
    headers = [read_header(batch) for batch in fill(log, 50)]
    for offset in (0, 1, 20, 77, log.end_offset):
        expected = [header for header in headers if header.last_offset >= offset]
        assert list(log.scan_headers(offset)) == expected


class FullDisk(MemoryDisk):
    """Writes half of what it is given, then says that it is full."""

    full = False
    broken = False

    def append(self, path: str, buffers) -> None:  # type: ignore[no-untyped-def]
        if self.full:
            data = b"".join(buffers)
            super().append(path, [data[: len(data) // 2]])
            raise OSError(28, "No space left on device")
        super().append(path, buffers)

    def truncate(self, path: str, size: int) -> None:
        if self.broken:
            raise OSError(5, "Input/output error")
        super().truncate(path, size)


def test_a_failed_append_leaves_no_torn_bytes() -> None:
    disk = FullDisk()
    log = Log(disk, "/data/t/0", SMALL)
    made = fill(log, 5)
    disk.full = True
    with pytest.raises(OSError):
        append(log, make_batch(log.end_offset))
    disk.full = False
    made += fill(log, 5)
    assert read_all(log) == made
    assert read_all(reopened(disk, "/data/t/0", SMALL)) == made


def test_a_log_that_cannot_undo_a_failed_append_fails() -> None:
    disk = FullDisk()
    log = Log(disk, "/data/t/0", SMALL)
    fill(log, 5)
    disk.full = disk.broken = True
    with pytest.raises(OSError):
        append(log, make_batch(log.end_offset))
    disk.full = disk.broken = False
    with pytest.raises(LogFailed):
        append(log, make_batch(log.end_offset))


def test_gaps_of_a_compacted_leader_are_kept(disk: FileDisk, directory: str) -> None:
    config = LogConfig(segment_bytes=400, compact=True, index_interval_bytes=100)
    log = Log(disk, directory, config)
    offsets = [0, 10, 11, 500, 501, 9000]
    for offset in offsets:
        append(log, make_batch(offset, b"x" * 60))
    assert [read_header(batch).base_offset for batch in read_all(log)] == offsets
    data = log.read(12, 10_000, log.end_offset)
    assert data is not None
    assert read_header(data).base_offset == 500
    again = reopened(disk, directory, config)
    assert [read_header(batch).base_offset for batch in read_all(again)] == offsets


def test_idle_logs_cost_little_memory_and_no_descriptor(disk: FileDisk, tmp_path: Path) -> None:
    directories = [f"{tmp_path}/topics/some-topic.0123456789012345678901/{i}" for i in range(300)]
    for directory in directories:
        log = Log(disk, directory, SMALL)
        append(log, make_batch(0))
        log.close()
    before = len(os.listdir("/proc/self/fd"))
    tracemalloc.start()
    empty = [Log(disk, directory + "-unused", SMALL) for directory in directories]
    empty_bytes = tracemalloc.get_traced_memory()[0] / len(empty)
    stored = [reopened(disk, directory, SMALL) for directory in directories]
    stored_bytes = tracemalloc.get_traced_memory()[0] / len(stored) - empty_bytes
    tracemalloc.stop()
    assert len(os.listdir("/proc/self/fd")) <= before
    assert empty_bytes < 700
    assert stored_bytes < 2048
