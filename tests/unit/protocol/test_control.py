"""Transaction markers: their bytes, and what is none."""

import pytest

from chronik.protocol.batch import Batch as StoredBatch
from chronik.protocol.batch import read_header, validate, verify_crc
from chronik.protocol.control import EndTxnMarker, build_marker, read_marker
from chronik.protocol.errors import CorruptBatch, ErrorCode, KafkaError
from chronik.protocol.records import Record, build_batch, iter_records


def control(key: bytes | None, value: bytes | None) -> bytes:
    record = Record(0, 1, key, value)
    return build_batch([record], producer_id=1, producer_epoch=0, transactional=True, control=True)


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_says_what_was_written(commit: bool) -> None:
    marker = EndTxnMarker(commit, coordinator_epoch=12)
    data = build_marker(marker, producer_id=7, producer_epoch=3, timestamp=99)
    assert read_marker(data) == marker
    header = read_header(data)
    verify_crc(StoredBatch(header, memoryview(data)))
    assert header.is_control
    assert header.is_transactional
    assert not header.is_append_time
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, -1)
    assert (header.record_count, header.max_timestamp) == (1, 99)
    (record,) = iter_records(data)
    assert record.key == bytes([0, 0, 0, int(commit)])
    assert record.value == bytes([0, 0, 0, 0, 0, 12])
    appended = build_marker(marker, producer_id=7, producer_epoch=3, timestamp=99, append_time=True)
    assert read_header(appended).is_append_time


def test_later_versions_may_be_longer() -> None:
    data = control(bytes([0, 1, 0, 1, 9, 9]), bytes([0, 1, 0, 0, 0, 5, 9, 9]))
    assert read_marker(data) == EndTxnMarker(True, 5)


def test_other_control_records_are_no_markers() -> None:
    assert read_marker(control(bytes([0, 0, 0, 2]), b"")) is None
    assert read_marker(build_batch([], transactional=True, control=True)) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [(None, b""), (b"\0\0\0", b""), (bytes(4), b"\0\0\0\0\0"), (bytes(4), None)],
)
def test_cut_markers_are_corrupt(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(CorruptBatch):
        read_marker(control(key, value))


def test_clients_may_not_write_them() -> None:
    data = build_marker(EndTxnMarker(True, 0), producer_id=1, producer_epoch=0, timestamp=1)
    with pytest.raises(KafkaError) as caught:
        validate(data)
    assert caught.value.code == ErrorCode.INVALID_RECORD
