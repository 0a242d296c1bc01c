"""Checking and salvaging damaged logs."""

import pytest
from batches import append, fill, make_batch, read_all, reopened

from chronik.protocol.batch import read_header, split
from chronik.storage.check import Problem, Report, check, salvage
from chronik.storage.errors import CorruptLog
from chronik.storage.log import Log, LogConfig
from chronik.storage.memory import MemoryDisk

DIRECTORY = "/data/topics/orders.id/0"
CONFIG = LogConfig(segment_bytes=1500, index_interval_bytes=200)


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk()


@pytest.fixture
def log(disk: MemoryDisk) -> Log:
    return Log(disk, DIRECTORY, CONFIG)


def flip(disk: MemoryDisk, path: str, position: int) -> None:
    disk._files[path][position] ^= 0x10


def problems(report: Report) -> list[Problem]:
    return [finding.problem for finding in report.findings]


def test_a_sound_log_has_no_findings(disk: MemoryDisk, log: Log) -> None:
    made = fill(log, 40)
    log.close()
    files = dict(disk._files)
    report = check(disk, DIRECTORY)
    assert report.findings == []
    assert not report.damaged
    assert (report.batch_count, report.size_bytes) == (40, sum(map(len, made)))
    assert (report.segment_count, report.end_offset) == (log.segment_count, log.end_offset)
    assert salvage(disk, DIRECTORY).salvage_directory is None
    assert disk._files == files


def test_a_torn_tail_is_no_damage(disk: MemoryDisk, log: Log) -> None:
    fill(log, 5)
    disk.append(log.segments[-1].path, [b"torn"])
    report = check(disk, DIRECTORY)
    assert problems(report) == [Problem.TORN_TAIL]
    assert report.findings[0].position == log.size_bytes
    assert not report.damaged


def test_a_log_that_lost_its_beginning_and_checkpoint_can_be_salvaged(
    disk: MemoryDisk, log: Log
) -> None:
    fill(log, 40)
    log.close()
    disk.remove(f"{DIRECTORY}/checkpoint")
    disk.remove(log.segments[0].path)
    with pytest.raises(CorruptLog):
        reopened(disk, DIRECTORY)
    report = check(disk, DIRECTORY)
    assert report.damaged
    assert Problem.BAD_CHECKPOINT in problems(report)
    kept = [
        bytes(batch.data)
        for segment in log.segments[1:]
        if segment.size
        for batch in split(disk.pread(segment.path, segment.size, 0))
    ]
    salvage(disk, DIRECTORY)
    again = reopened(disk, DIRECTORY)
    assert read_all(again) == kept
    assert again.end_offset == log.end_offset


def test_segments_after_a_torn_tail_are_reported(disk: MemoryDisk, log: Log) -> None:
    fill(log, 40)
    disk.truncate(log.segments[0].path, 50)
    report = check(disk, DIRECTORY)
    assert set(problems(report)) == {Problem.TORN_TAIL}
    assert len(report.findings) == log.segment_count
    assert reopened(disk, DIRECTORY, CONFIG).end_offset == 0


@pytest.mark.parametrize("damage", ["cut", "flip", "remove"])
def test_a_damaged_index_is_reported(disk: MemoryDisk, log: Log, damage: str) -> None:
    fill(log, 40)
    log.close()
    path = log.segments[0].index_path
    match damage:
        case "cut":
            disk.truncate(path, 9)
        case "flip":
            flip(disk, path, 7)
        case "remove":
            disk.remove(path)
    report = check(disk, DIRECTORY)
    assert problems(report) == [Problem.BAD_INDEX]
    assert not report.damaged


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("at", [3, 9, 16, 25, 70])
def test_a_flipped_bit_is_found_and_salvaged(
    disk: MemoryDisk, log: Log, closed: bool, at: int
) -> None:
    made = fill(log, 50)
    log.sync()
    if closed:
        log.close()
    segment = log.segments[-1]
    header, _, *_ = log.scan_headers(segment.base_offset)
    flip(disk, segment.path, at)
    report = check(disk, DIRECTORY)
    assert report.damaged
    damage = next(f for f in report.findings if f.problem is Problem.CORRUPTION)
    assert (damage.path, damage.position, damage.size) == (segment.path, 0, header.size)
    assert (damage.first_offset, damage.end_offset) == (header.base_offset, header.next_offset)
    with pytest.raises(CorruptLog):
        read_all(reopened(disk, DIRECTORY, CONFIG))

    salvaged = salvage(disk, DIRECTORY)
    assert salvaged.salvage_directory == f"{DIRECTORY}/salvage-1"
    copy = salvaged.salvage_directory + "/" + segment.path.rpartition("/")[2]
    assert disk.size(copy) == segment.size
    again = reopened(disk, DIRECTORY, CONFIG)
    expected = [b for b in made if read_header(b).base_offset != header.base_offset]
    assert read_all(again) == expected
    assert again.end_offset == log.end_offset
    assert again.leader_epochs == log.leader_epochs
    append(again, make_batch(again.end_offset))
    again.close()
    assert not check(disk, DIRECTORY).damaged
    assert len(read_all(reopened(disk, DIRECTORY, CONFIG))) == len(expected) + 1


def test_lost_offsets_are_not_used_again(disk: MemoryDisk, log: Log) -> None:
    made = fill(log, 40)
    log.close()
    last = log.segments[-1]
    disk.write(last.path, b"nothing of it is left")
    with pytest.raises(CorruptLog):
        reopened(disk, DIRECTORY, CONFIG)
    report = salvage(disk, DIRECTORY)
    assert report.damaged
    again = reopened(disk, DIRECTORY, CONFIG)
    assert again.end_offset == log.end_offset
    assert read_all(again) == [b for b in made if read_header(b).base_offset < last.base_offset]


def test_a_missing_segment_is_salvaged_around(disk: MemoryDisk, log: Log) -> None:
    made = fill(log, 60)
    log.close()
    gone = log.segments[1]
    disk.remove(gone.path)
    report = check(disk, DIRECTORY)
    assert Problem.MISSING_SEGMENT in problems(report)
    salvage(disk, DIRECTORY)
    again = reopened(disk, DIRECTORY, CONFIG)
    assert read_all(again) == [
        b for b in made if not gone.base_offset <= read_header(b).base_offset < gone.next_offset
    ]


def test_a_damaged_checkpoint_is_salvaged(disk: MemoryDisk, log: Log) -> None:
    made = fill(log, 40)
    log.close()
    flip(disk, f"{DIRECTORY}/checkpoint", 25)
    assert problems(check(disk, DIRECTORY)) == [Problem.BAD_CHECKPOINT]
    salvage(disk, DIRECTORY)
    assert read_all(reopened(disk, DIRECTORY, CONFIG)) == made


def test_gaps_are_told_but_no_damage(disk: MemoryDisk) -> None:
    log = Log(disk, DIRECTORY, LogConfig(compact=True))
    for offset in (0, 5, 6, 20):
        append(log, make_batch(offset))
    log.close()
    report = check(disk, DIRECTORY)
    assert [(f.first_offset, f.end_offset) for f in report.findings] == [(1, 5), (7, 20)]
    assert not report.damaged
