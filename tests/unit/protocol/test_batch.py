"""Batches as a whole: walking, checksums, what clients may send, rewritten headers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronik.protocol import batch as batches
from chronik.protocol import codecs
from chronik.protocol.batch import (
    CONTROL_FLAG,
    HEADER_SIZE,
    TIMESTAMP_TYPE_FLAG,
    TRANSACTIONAL_FLAG,
    Batch,
    BatchHeader,
    assemble,
    read_header,
    split,
    validate,
    verify_crc,
)
from chronik.protocol.errors import CorruptBatch, ErrorCode, KafkaError, ProtocolError
from chronik.protocol.records import Record, build_batch, iter_records

RECORDS = [Record(i, 1_000 + i, b"k%d" % i, b"v" * i) for i in range(5)]


def changed(data: bytes, **fields: int) -> bytes:
    """The batch with other header fields and a right CRC."""
    return assemble(read_header(data)._replace(**fields), data[HEADER_SIZE:])


def refused(data: bytes) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        validate(data)
    return caught.value.code


def test_a_good_batch_passes() -> None:
    data = build_batch(RECORDS, producer_id=7, producer_epoch=1, base_sequence=3)
    batch = validate(memoryview(data))
    assert batch.header == read_header(data)
    assert batch.data == data
    assert batch.payload == data[HEADER_SIZE:]
    verify_crc(batch)


def test_header_properties() -> None:
    header = read_header(build_batch(RECORDS, base_offset=0, producer_id=7, base_sequence=1))
    assert header.last_offset == 4
    assert header.next_offset == 5
    assert header.last_sequence == 5
    assert not header.is_append_time
    assert header._replace(base_sequence=-1).last_sequence == -1
    assert header._replace(base_sequence=2**31 - 3).last_sequence == 1


@pytest.mark.parametrize("position", range(batches.CRC_START, HEADER_SIZE + 10, 3))
def test_a_flipped_bit_is_a_corrupt_message(position: int) -> None:
    data = bytearray(build_batch(RECORDS))
    data[position] ^= 0x40
    assert refused(bytes(data)) == ErrorCode.CORRUPT_MESSAGE
    with pytest.raises(CorruptBatch):
        verify_crc(Batch(read_header(data), memoryview(data)))


def test_offset_and_epoch_lie_outside_the_crc() -> None:
    data = build_batch(RECORDS)
    header = read_header(data)
    stamped = batches.stamp(12_345, header.length, 9) + data[batches.STAMP_SIZE :]
    assert validate(stamped).header == header._replace(base_offset=12_345, leader_epoch=9)
    assert [record.offset for record in iter_records(stamped)] == list(range(12_345, 12_350))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        build_batch(RECORDS)[:60],
        build_batch(RECORDS)[:-1],
        build_batch(RECORDS) * 2,
        build_batch(RECORDS) + b"\x00",
        build_batch([]),
        changed(build_batch(RECORDS), magic=1),
        changed(build_batch(RECORDS), magic=3),
        changed(build_batch(RECORDS), record_count=4),
        changed(build_batch(RECORDS), record_count=-1, last_offset_delta=-2),
        changed(build_batch(RECORDS), last_offset_delta=5),
        changed(build_batch(RECORDS), attributes=CONTROL_FLAG),
        changed(build_batch(RECORDS), attributes=TRANSACTIONAL_FLAG),
        changed(build_batch(RECORDS), producer_id=1),
        changed(build_batch(RECORDS), producer_id=1, base_sequence=0),
        changed(build_batch(RECORDS), producer_id=1, producer_epoch=0),
        changed(build_batch(RECORDS), producer_id=-2),
    ],
)
def test_structure_is_checked(data: bytes) -> None:
    assert refused(data) == ErrorCode.INVALID_RECORD


def test_other_refusals() -> None:
    data = build_batch(RECORDS)
    short = read_header(data)._replace(length=48)
    assert refused(batches.pack_header(short)) == ErrorCode.CORRUPT_MESSAGE
    assert refused(changed(data, attributes=5)) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    flagged = changed(data, attributes=TIMESTAMP_TYPE_FLAG)
    assert refused(flagged) == ErrorCode.INVALID_TIMESTAMP


@given(data=st.binary(max_size=200))
def test_validate_and_split_of_any_bytes(data: bytes) -> None:
    for function in (validate, split, lambda data: split(data, partial_tail=True)):
        try:
            function(data)
        except (ProtocolError, KafkaError):
            pass


@given(counts=st.lists(st.integers(1, 4), max_size=5), cut=st.integers(1, 400))
def test_split_finds_every_batch_and_a_cut_tail(counts: list[int], cut: int) -> None:
    parts = [build_batch(RECORDS[:count], base_offset=0) for count in counts]
    data = b"".join(parts)
    assert [bytes(batch.data) for batch in split(data)] == parts
    assert [batch.header for batch in split(data)] == [read_header(part) for part in parts]

    whole: list[bytes] = []
    while len(whole) < len(parts) and sum(map(len, whole)) + len(parts[len(whole)]) <= cut:
        whole.append(parts[len(whole)])
    found = split(data[:cut], partial_tail=True)
    assert [bytes(batch.data) for batch in found] == whole
    if len(b"".join(whole)) < len(data[:cut]):
        with pytest.raises(CorruptBatch):
            split(data[:cut])


def test_split_refuses_what_is_no_batch_even_at_the_tail() -> None:
    data = build_batch(RECORDS)
    for other in (changed(data, magic=1), data[:8] + bytes(80)):
        with pytest.raises(CorruptBatch):
            split(data + other, partial_tail=True)
        with pytest.raises(CorruptBatch):
            split(other[:50], partial_tail=True)


@pytest.mark.parametrize("codec", codecs.NAMES)
def test_append_time(codec: int) -> None:
    data = build_batch(RECORDS, codec=codec)
    stamped = batches.with_append_time(validate(data), 5_000_000)
    header = read_header(stamped)
    assert header.is_append_time
    assert header.max_timestamp == 5_000_000
    assert header.crc == batches.compute_crc(stamped)
    assert stamped[HEADER_SIZE:] == data[HEADER_SIZE:]
    assert [record.timestamp for record in iter_records(stamped)] == [5_000_000] * 5


@pytest.mark.parametrize("source", codecs.NAMES)
@pytest.mark.parametrize("target", codecs.NAMES)
def test_recompress(source: int, target: int) -> None:
    data = build_batch(RECORDS * 1, codec=source, producer_id=4, producer_epoch=0, base_sequence=0)
    other = batches.recompress(validate(data), target)
    header = validate(other).header
    assert header.codec == target
    assert header.producer_id == 4
    assert list(iter_records(other)) == RECORDS


def test_recompress_is_bounded() -> None:
    data = build_batch([Record(0, 0, None, bytes(1_000_000))], codec=codecs.ZSTD)
    with pytest.raises(KafkaError) as caught:
        batches.recompress(validate(data), codecs.GZIP, bytes_max=100_000)
    assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE


def test_pack_header_is_the_inverse_of_read_header() -> None:
    header = BatchHeader(1, 49, 2, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
    assert read_header(batches.pack_header(header)) == header
