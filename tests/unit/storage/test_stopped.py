"""A log that nobody uses is read as it lies there, and stays so."""

import pytest
from batches import fill
from test_check import CONFIG, DIRECTORY, flip

from chronik.protocol.batch import Batch
from chronik.storage.disk import FileDisk
from chronik.storage.errors import DirectoryLocked
from chronik.storage.log import Log
from chronik.storage.memory import MemoryDisk
from chronik.storage.recovery import swap_path
from chronik.storage.segment import LOG_SUFFIX
from chronik.storage.stopped import Hole, StoppedLog


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk()


@pytest.fixture
def made(disk: MemoryDisk) -> list[bytes]:
    log = Log(disk, DIRECTORY, CONFIG)
    batches = fill(log, 40)
    log.close()
    return batches


def offsets(log: StoppedLog, from_offset: int = 0) -> list[int]:
    return [
        piece.header.base_offset for piece in log.batches(from_offset) if isinstance(piece, Batch)
    ]


def test_every_batch_is_there_and_nothing_changes(disk: MemoryDisk, made: list[bytes]) -> None:
    before = {path: bytes(data) for path, data in disk._files.items()}
    log = StoppedLog(disk, DIRECTORY)
    pieces = list(log.batches(0))
    assert [bytes(piece.data) for piece in pieces if isinstance(piece, Batch)] == made
    assert log.end_offset() == log.checkpoint.recovery_point
    assert log.shortened() == []
    middle = offsets(log)[20]
    assert offsets(log, middle) == offsets(log)[20:]
    assert {path: bytes(data) for path, data in disk._files.items()} == before


def test_a_log_that_was_never_written(disk: MemoryDisk) -> None:
    log = StoppedLog(disk, DIRECTORY)
    assert list(log.batches(0)) == []
    assert log.end_offset() == 0


def test_damaged_bytes_are_passed_over(disk: MemoryDisk, made: list[bytes]) -> None:
    path = f"{DIRECTORY}/{0:020d}{LOG_SUFFIX}"
    flip(disk, path, len(made[0]) + 16)  # the magic of the second batch
    first, hole, third, *_ = StoppedLog(disk, DIRECTORY).batches(0)
    assert isinstance(first, Batch)
    assert isinstance(hole, Hole)
    assert (hole.position, hole.is_tail) == (len(made[0]), False)
    assert isinstance(third, Batch)
    assert bytes(third.data) == made[2]


def test_a_torn_tail_is_the_last_piece(disk: MemoryDisk, made: list[bytes]) -> None:
    log = StoppedLog(disk, DIRECTORY)
    end_offset = log.end_offset()
    disk.append(log._segments[-1].path, [made[0][:40]])
    *_, last = log.batches(0)
    assert isinstance(last, Hole)
    assert last.is_tail
    assert log.end_offset() == end_offset


def test_a_compacted_copy_counts_instead_of_what_it_replaces(
    disk: MemoryDisk, made: list[bytes]
) -> None:
    log = Log(disk, DIRECTORY, CONFIG)
    log.load()
    first, second = log.segments[:2]
    disk.write(swap_path(DIRECTORY, [first, second]), made[0])
    disk.remove(first.path)  # A crash came while it was put in place.
    stopped = StoppedLog(disk, DIRECTORY)
    assert offsets(stopped)[:2] == [0, log.segments[2].base_offset]


def test_a_segment_that_was_cut(disk: MemoryDisk, made: list[bytes]) -> None:
    path = f"{DIRECTORY}/{0:020d}{LOG_SUFFIX}"
    disk.truncate(path, len(made[0]))
    assert StoppedLog(disk, DIRECTORY).shortened() == [path]


def test_who_looks_keeps_nodes_away_and_writes_nothing(tmp_path: object) -> None:
    node, first, second = FileDisk(), FileDisk(read_only=True), FileDisk(read_only=True)
    path = f"{tmp_path}/lock"
    try:
        first.lock_shared(path)  # A copy without the file: nobody can hold it.
        assert not first.exists(path)
        node.lock(path)
        with pytest.raises(DirectoryLocked):
            first.lock_shared(path)
        node.close()
        node = FileDisk()
        first.lock_shared(path)
        second.lock_shared(path)
        with pytest.raises(DirectoryLocked):
            node.lock(path)
        with pytest.raises(OSError, match="Bad file descriptor"):
            first.append(path, [b"x"])
    finally:
        for disk in (node, first, second):
            disk.close()
