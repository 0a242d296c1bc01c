"""Records inside batches: round trips, golden bytes, compaction's rebuild, malformed input."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronik.protocol import codecs
from chronik.protocol.batch import (
    DELETE_HORIZON_FLAG,
    HEADER_SIZE,
    assemble,
    read_header,
    validate,
)
from chronik.protocol.errors import CorruptBatch, KafkaError, ProtocolError
from chronik.protocol.records import (
    BatchBuilder,
    Record,
    build_batch,
    iter_records,
    keyless_records,
    read_varint,
    rebuild_batch,
    size_max,
    varint,
)

VECTORS = Path(__file__).parents[2] / "vectors"

blobs = st.none() | st.binary(max_size=200)
header_lists = st.lists(st.tuples(st.text(max_size=20), blobs), max_size=4).map(tuple)
timestamps = st.integers(-1, 2**63 - 2)
record_lists = st.lists(
    st.tuples(timestamps, blobs, blobs, header_lists), min_size=1, max_size=20
).map(lambda rows: [Record(index, *row) for index, row in enumerate(rows)])


def raw_batch(payload: bytes, record_count: int = 1, **fields: int) -> bytes:
    """A batch with a right CRC around any payload."""
    header = read_header(build_batch([]))
    fields = {"last_offset_delta": record_count - 1, "record_count": record_count, **fields}
    return assemble(header._replace(**fields), payload)


@pytest.mark.parametrize("codec", codecs.NAMES)
@given(records=record_lists)
def test_round_trip(codec: int, records: list[Record]) -> None:
    data = build_batch(records, codec=codec)
    header = validate(data).header
    assert list(iter_records(data)) == records
    assert header.base_timestamp == records[0].timestamp
    assert header.max_timestamp == max(record.timestamp for record in records)
    assert keyless_records(data) == [
        index for index, record in enumerate(records) if record.key is None
    ]


@given(value=st.integers(-(2**31), 2**31 - 1))
def test_varint_round_trip(value: int) -> None:
    encoded = varint(value)
    assert len(encoded) <= 5
    assert read_varint(b"\xff" + encoded, 1) == (value, 1 + len(encoded))


def test_varint_of_known_values() -> None:
    known = {0: "00", -1: "01", 1: "02", 63: "7e", -64: "7f", 64: "8001", 8191: "fe7f"}
    known |= {8192: "808001", 2**31 - 1: "feffffff0f", -(2**31): "ffffffff0f"}
    assert {value: varint(value).hex() for value in known} == known


@pytest.mark.parametrize("codec", codecs.CODECS)
def test_batches_of_another_implementation(codec: str) -> None:
    data = bytes.fromhex((VECTORS / f"records_magic2_{codec}.hex").read_text())
    assert validate(data).header.codec == codecs.CODECS[codec]
    start = 1_700_000_000_000
    expected = [
        Record(0, start, b"key0", b"value0 " * 10),
        Record(1, start + 1_000, None, b"value1 " * 10),
        Record(2, start + 2_000, b"key2", None),
        Record(3, start + 3_000, b"key3", b"value3 " * 10, (("trace", b"x"), ("empty", None))),
    ]
    assert list(iter_records(data)) == expected
    if codec == "none":
        assert build_batch(expected, leader_epoch=0) == data


def test_all_header_fields_are_set() -> None:
    data = build_batch(
        [Record(105, 50, b"k"), Record(107, 60)],
        base_offset=100,
        leader_epoch=3,
        producer_id=9,
        producer_epoch=2,
        base_sequence=77,
        transactional=True,
        control=True,
        append_time_ms=1_234,
    )
    header = read_header(data)
    assert (header.base_offset, header.last_offset, header.leader_epoch) == (100, 107, 3)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 2, 77)
    assert header.is_transactional
    assert header.is_control
    assert header.is_append_time
    assert [(record.offset, record.timestamp) for record in iter_records(data)] == [
        (105, 1_234),
        (107, 1_234),
    ]


def test_builder_counts_offsets_and_size() -> None:
    builder = BatchBuilder()
    assert builder.size == HEADER_SIZE
    for index in range(300):
        headers = (("näme", b"1"), ("b", None)) if index % 2 else ()
        before = builder.size
        builder.append(10, b"key", bytes(index * 10), headers)
        assert builder.size - before <= size_max(b"key", bytes(index * 10), headers)
    data = builder.build()
    assert len(data) == builder.size
    assert builder.record_count == 300
    assert [record.offset for record in iter_records(data)] == list(range(300))


def test_header_keys_that_are_no_text_survive() -> None:
    payload = bytes.fromhex("14 00 00 00 01 01 02 04fffe 00".replace(" ", ""))
    data = raw_batch(payload)
    (record,) = iter_records(data)
    assert record.headers == (("\udcff\udcfe", b""),)
    assert build_batch([record])[HEADER_SIZE:] == payload


@given(records=record_lists, data=st.data(), codec=st.sampled_from(sorted(codecs.NAMES)))
def test_rebuild_keeps_what_identifies_a_batch(
    records: list[Record], data: st.DataObject, codec: int
) -> None:
    kept = [record for record in records if data.draw(st.booleans())]
    original = build_batch(
        records, codec=codec, leader_epoch=5, producer_id=1, producer_epoch=0, base_sequence=7
    )
    header = read_header(original)
    horizon = data.draw(st.none() | st.integers(0, 2**40))
    rebuilt = rebuild_batch(header, kept, delete_horizon_ms=horizon)
    other = read_header(rebuilt)
    assert list(iter_records(rebuilt)) == kept
    for name in ("base_offset", "last_offset", "producer_id", "base_sequence", "leader_epoch"):
        assert getattr(other, name) == getattr(header, name)
    assert other.codec == codec
    assert other.last_sequence == header.last_sequence
    assert bool(other.attributes & DELETE_HORIZON_FLAG) == (horizon is not None)
    if horizon is not None:
        assert other.base_timestamp == horizon
        again = read_header(rebuild_batch(other, kept, delete_horizon_ms=horizon + 1))
        assert again.base_timestamp == horizon, "a horizon is set once"


def test_rebuild_keeps_append_time() -> None:
    original = build_batch([Record(0, 5, b"a"), Record(1, 6, b"b")], append_time_ms=99)
    _, second = iter_records(original)
    rebuilt = rebuild_batch(read_header(original), [second])
    assert [record.timestamp for record in iter_records(rebuilt)] == [99]


GOOD = bytes.fromhex("0e00000002610100")  # length 7, deltas 0, key "a", null value, no headers


def test_the_good_record_is_good() -> None:
    assert list(iter_records(raw_batch(GOOD))) == [Record(0, -1, b"a")]


@pytest.mark.parametrize(
    ("payload", "record_count"),
    [
        (b"", 1),
        (GOOD, 2),
        (GOOD, 0),
        (GOOD + b"\x00", 1),
        (GOOD[:-1], 1),
        (b"\x0f" + GOOD[1:], 1),  # a negative length
        (b"\x0c" + GOOD[1:], 1),  # a length that is too small
        (b"\x10" + GOOD[1:] + b"\x00", 1),  # a length that is too large
        (b"\xff\xff\xff\xff\x7f" + GOOD[1:], 1),  # a length beyond 32 bits
        (bytes.fromhex("0e00000003610100"), 1),  # a key of length -2
        (bytes.fromhex("0e00000002610300"), 1),  # a value of length -2
        (bytes.fromhex("0e00000002610101"), 1),  # -1 headers
        (bytes.fromhex("0e000000026101fe"), 1),  # a header count that goes on
        (bytes.fromhex("0e00000060610100"), 1),  # a key beyond the end
        (bytes.fromhex("1200000002610102 0101".replace(" ", "")), 1),  # a header without key
        (bytes.fromhex("1200000002610102 0003".replace(" ", "")), 1),  # a header value of -2
        (bytes.fromhex("20" + "00" + "ff" * 10 + "00" + "000000"), 1),  # an endless varlong
        (bytes.fromhex("1e00" + "ff" * 9 + "03" + "00" + "0101"), 1),  # beyond 64 bits
    ],
)
def test_malformed_records(payload: bytes, record_count: int) -> None:
    with pytest.raises(CorruptBatch):
        list(iter_records(raw_batch(payload, record_count)))


def test_offsets_may_have_gaps_as_compaction_leaves_them() -> None:
    gap = build_batch([Record(0, 0), Record(2, 0)])
    assert [record.offset for record in iter_records(gap)] == [0, 2]


@pytest.mark.parametrize("count", [1, 63, 64, 65, 127, 128, 8191, 8192, 8193, 16_500])
def test_deltas_at_the_lengths_of_varints(count: int) -> None:
    records = [Record(index, index) for index in range(count)]
    assert list(iter_records(build_batch(records))) == records


@pytest.mark.parametrize("size", [0, 63, 64, 8191, 8192, 1_048_575, 1_048_576, 3_000_000])
def test_long_keys_values_and_headers(size: int) -> None:
    record = Record(0, -1, bytes(size), bytes(size), (("h", bytes(size)),))
    data = build_batch([record])
    assert list(iter_records(data)) == [record]


def test_all_timestamps_before_the_first() -> None:
    builder = BatchBuilder(base_timestamp=1_000)
    builder.append(900, None, None)
    builder.append(950, None, None)
    data = builder.build()
    assert [record.timestamp for record in iter_records(data)] == [900, 950]


@given(payload=st.binary(max_size=100), count=st.integers(-1, 5), codec=st.integers(0, 7))
def test_any_payload_raises_only_our_errors(payload: bytes, count: int, codec: int) -> None:
    data = raw_batch(payload, count, attributes=codec)
    for function in (lambda: list(iter_records(data)), lambda: keyless_records(data)):
        try:
            function()
        except (ProtocolError, KafkaError):
            pass


@given(data=st.binary(max_size=100))
def test_any_bytes_as_a_batch(data: bytes) -> None:
    for function in (lambda: list(iter_records(data)), lambda: keyless_records(data)):
        try:
            function()
        except (ProtocolError, KafkaError):
            pass


@given(data=st.data())
def test_damaged_records_raise_only_our_errors(data: st.DataObject) -> None:
    records = [Record(i, i, b"key", b"value" * i, (("h", b"x"),)) for i in range(4)]
    payload = bytearray(build_batch(records)[HEADER_SIZE:])
    position = data.draw(st.integers(0, len(payload) - 1))
    payload[position] = data.draw(st.integers(0, 255))
    damaged = raw_batch(bytes(payload), 4)
    try:
        read = list(iter_records(damaged))
    except CorruptBatch:
        return
    assert len(read) == 4


def test_decompression_is_bounded() -> None:
    data = build_batch([Record(0, 0, None, bytes(10_000_000))], codec=codecs.GZIP)
    for function in (iter_records, keyless_records):
        with pytest.raises(KafkaError):
            list(function(data, bytes_max=1_000))


def test_a_batch_that_is_cut_short() -> None:
    data = build_batch([Record(0, 0, b"k", b"v")])
    for end in (0, HEADER_SIZE - 1, len(data) - 1):
        with pytest.raises(CorruptBatch):
            list(iter_records(data[:end]))
