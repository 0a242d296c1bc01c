"""What goes from the page cache to a socket: all of it, in order, and never something else."""

import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from batches import append, make_batch, reopened

from chronik.protocol.batch import split
from chronik.storage.disk import FileDisk
from chronik.storage.file_range import CAN_SEND_FILES, RANGE_BYTES_MIN, FileRange, is_cached
from chronik.storage.log import Log, LogConfig

pytestmark = pytest.mark.skipif(not CAN_SEND_FILES, reason="the kernel is not Linux")
SIZE = 3 * RANGE_BYTES_MIN


@pytest.fixture
def disk() -> Iterator[FileDisk]:
    disk = FileDisk(open_files_max=4)
    yield disk
    disk.close()


@pytest.fixture
def content() -> bytes:
    return random.Random(1).randbytes(SIZE)


@pytest.fixture
def path(disk: FileDisk, tmp_path: Path, content: bytes) -> str:
    path = f"{tmp_path}/file"
    disk.write(path, content)
    return path


def taken(part: FileRange) -> bytes:
    """What a peer with room for everything gets."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        got = b""
        while len(got) < len(part):
            part.send(ours.fileno())
            got += theirs.recv(1 << 20)
        assert not part.rest()
        return got


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_socket_takes_a_part_of_a_file(disk: FileDisk, path: str, content: bytes) -> None:
    part = disk.file_range(path, 1_001, SIZE - 2_000)
    assert part is not None
    assert len(part) == SIZE - 2_000
    assert taken(part) == content[1_001 : SIZE - 999]


def test_what_a_socket_has_no_room_for_is_the_rest(
    disk: FileDisk, path: str, content: bytes
) -> None:
    part = disk.file_range(path, 5, SIZE - 5)
    assert part is not None
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        part.send(ours.fileno())
        rest = bytes(part.rest())
        assert 0 < len(rest) < SIZE - 5
        got = b""
        while len(got) + len(rest) < SIZE - 5:
            got += theirs.recv(1 << 20)
        assert got + rest == content[5:]


def test_a_peer_that_is_gone_leaves_the_rest(disk: FileDisk, path: str, content: bytes) -> None:
    part = disk.file_range(path, 0, SIZE)
    assert part is not None
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours:
        part.send(ours.fileno())
    assert part.rest() == content


def test_a_file_without_a_name_is_sent_all_the_same(
    disk: FileDisk, path: str, content: bytes
) -> None:
    open_before = descriptors()
    part = disk.file_range(path, 0, SIZE)
    assert part is not None
    disk.remove(path)
    disk.write(path, b"another file")
    assert taken(part) == content
    del part
    disk.release(path)
    assert descriptors() <= open_before


def test_a_file_that_was_cut_is_an_error(disk: FileDisk, path: str) -> None:
    part = disk.file_range(path, 0, SIZE)
    assert part is not None
    disk.truncate(path, 10)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        part.send(ours.fileno())
        with pytest.raises(OSError, match="shorter"):
            part.rest()


def test_what_is_not_cached_is_not_sent(disk: FileDisk, path: str) -> None:
    descriptor = os.open(path, os.O_RDWR)
    assert is_cached(descriptor, 0, SIZE)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    if is_cached(descriptor, 0, 1):
        os.close(descriptor)
        pytest.skip("this file system keeps all of its files in memory")
    os.pread(descriptor, 1, 0)  # The kernel reads ahead, but not that far.
    assert not is_cached(descriptor, 0, SIZE)
    os.close(descriptor)
    open_before = descriptors()
    assert disk.file_range(path, 0, SIZE) is None
    assert descriptors() <= open_before + 1  # cached by its name, and used by nobody
    disk.release(path)
    assert descriptors() <= open_before


def test_a_file_that_is_not_there_is_an_error_as_in_reads(disk: FileDisk, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        disk.file_range(f"{tmp_path}/nothing", 0, SIZE)


@pytest.mark.parametrize("seed", range(6))
def test_ranges_of_a_log_are_what_reads_of_it_give(
    disk: FileDisk, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    config = LogConfig(
        segment_bytes=chance.choice([700_000, 1 << 30]),
        index_interval_bytes=chance.choice([1, 4096, 100_000]),
    )
    log = Log(disk, f"{tmp_path}/log", config)
    sizes = chance.choice([(1, 300), (1_000, 40_000), (1, 150_000)])
    while log.size_bytes < 2_000_000:
        value = chance.randbytes(chance.randint(*sizes))
        append(log, make_batch(log.end_offset, value, count=chance.randint(1, 3)))
    log.checkpoint()  # Sealed segments have their index in files from now on.
    offset = found = 0
    while offset < log.end_offset:
        max_bytes = chance.choice([RANGE_BYTES_MIN, 500_000, 1 << 20])
        limit_offset = chance.choice([log.end_offset, min(offset + 40, log.end_offset)])
        wanted = log.read(offset, max_bytes, limit_offset, nowait=False)
        part = log.file_range(offset, max_bytes, limit_offset)
        if part is not None:
            found += 1
            data = taken(part)
            assert RANGE_BYTES_MIN <= len(data) <= max_bytes
            assert wanted is not None
            assert bytes(wanted[: len(data)]) == data
            assert sum(len(batch.data) for batch in split(data)) == len(data), "whole batches"
            wanted = data
        offset = split(wanted)[-1].header.next_offset if wanted else offset + 1
        offset = min(offset + chance.choice([0, 0, 0, 3]), log.end_offset)
    assert found or config.index_interval_bytes == 100_000 or sizes[1] == 300


def test_what_an_earlier_process_wrote_is_verified_and_so_read(
    disk: FileDisk, tmp_path: Path
) -> None:
    log = Log(disk, f"{tmp_path}/log", LogConfig())
    for _ in range(40):
        append(log, make_batch(log.end_offset, bytes(10_000)))
    assert log.file_range(0, 1 << 20, log.end_offset) is not None
    log.close()
    found = reopened(disk, f"{tmp_path}/log")
    assert found.file_range(0, 1 << 20, found.end_offset) is None
    begin = found.end_offset
    for _ in range(40):
        append(found, make_batch(found.end_offset, bytes(10_000)))
    assert found.file_range(begin, 1 << 20, found.end_offset) is not None


def test_a_range_obeys_the_limits_of_a_read(disk: FileDisk, tmp_path: Path) -> None:
    log = Log(disk, f"{tmp_path}/log", LogConfig())
    for _ in range(40):
        append(log, make_batch(log.end_offset, bytes(10_000)))
    assert log.file_range(0, RANGE_BYTES_MIN - 1, log.end_offset) is None
    assert log.file_range(0, 1 << 20, 0) is None
    assert log.file_range(35, 1 << 20, log.end_offset) is None, "too few bytes are left"
    assert log.file_range(log.end_offset, 1 << 20, log.end_offset) is None
    log.advance_log_start(20)
    assert log.file_range(10, 1 << 20, log.end_offset) is None
    part = log.file_range(20, 1 << 20, 35)
    assert part is not None
    assert split(taken(part))[-1].header.next_offset <= 35
