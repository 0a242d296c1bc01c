"""Scanning headers with control batches, and checking and salvaging a log that has some."""

import pytest
from batches import append, make_batch, reopened

from chronik.protocol.control import EndTxnMarker, build_marker, read_marker
from chronik.storage.check import Problem, check, salvage
from chronik.storage.errors import CorruptLog
from chronik.storage.log import Log, LogConfig
from chronik.storage.memory import MemoryDisk
from chronik.storage.scan import scan

DIRECTORY = "/data/topics/t.id/0"


def marker(offset: int, *, commit: bool) -> bytes:
    data = build_marker(
        EndTxnMarker(commit, offset), producer_id=1, producer_epoch=0, timestamp=1000
    )
    return offset.to_bytes(8) + data[8:12] + bytes(4) + data[16:]


@pytest.fixture
def log() -> Log:
    made = Log(MemoryDisk(), DIRECTORY, LogConfig(segment_bytes=400, index_interval_bytes=100))
    for n in range(20):
        offset = made.end_offset
        append(made, marker(offset, commit=n % 2 == 0) if n % 4 == 3 else make_batch(offset))
    made.sync()
    made.checkpoint()
    return made


def test_only_control_batches_are_read(log: Log) -> None:
    assert log.segment_count > 2
    scanned = list(scan(log, 0))
    assert [header for header, _ in scanned] == list(log.scan_headers(0))
    assert [header.base_offset for header, data in scanned if data] == [3, 7, 11, 15, 19]
    for header, data in scanned:
        if data:
            assert read_marker(data) == EndTxnMarker(False, header.base_offset)
    assert [header.base_offset for header, _ in scan(log, 17)] == [17, 18, 19]


def test_check_and_salvage_know_control_batches(log: Log) -> None:
    assert not check(log.disk, DIRECTORY).damaged
    segment = log.segments[1]
    data = bytearray(log.disk.pread(segment.path, segment.size, 0))
    (damaged,) = [h for h, control in scan(log, 0) if control and h.base_offset == 7]
    position = sum(h.size for h in log.scan_headers(segment.base_offset) if h.base_offset < 7)
    data[position + damaged.size - 1] ^= 1
    log.disk.write(segment.path, bytes(data))
    with pytest.raises(CorruptLog):
        list(scan(log, 0))
    found = check(log.disk, DIRECTORY).findings
    assert [f.first_offset for f in found if f.problem is Problem.CORRUPTION] == [7]
    salvage(log.disk, DIRECTORY)
    again = reopened(log.disk, DIRECTORY)
    assert [h.base_offset for h, control in scan(again, 0) if control] == [3, 11, 15, 19]
