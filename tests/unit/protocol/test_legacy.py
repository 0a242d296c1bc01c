"""Message sets of magic 0 and 1: golden bytes, both directions, wrappers and garbage.

`message` writes the format by hand, so that reader and writer are not only tested on each other.
"""

from pathlib import Path
from struct import pack
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronik.protocol import codecs
from chronik.protocol.batch import (
    HEADER_SIZE,
    TIMESTAMP_TYPE_FLAG,
    assemble,
    read_header,
    stamp,
    validate,
    with_append_time,
)
from chronik.protocol.errors import CorruptBatch, ErrorCode, KafkaError, ProtocolError
from chronik.protocol.legacy import from_batches, magic_of, to_batches
from chronik.protocol.records import Record, build_batch, iter_records

VECTORS = Path(__file__).parents[2] / "vectors"
OLD_CODECS = ("none", "gzip", "snappy", "lz4")


def blob(value: bytes | None) -> bytes:
    return b"\xff\xff\xff\xff" if value is None else pack(">i", len(value)) + value


def message(
    magic: int,
    offset: int,
    key: bytes | None,
    value: bytes | None,
    timestamp: int = -1,
    attributes: int = 0,
) -> bytes:
    body = pack(">bb", magic, attributes) + (pack(">q", timestamp) if magic == 1 else b"")
    body += blob(key) + blob(value)
    return pack(">qiI", offset, len(body) + 4, crc32(body)) + body


def wrapped(magic: int, codec: int, inner: bytes, offset: int = 0, timestamp: int = -1) -> bytes:
    value = codecs.compress(codec, inner, magic=magic)
    return message(magic, offset, None, value, timestamp, codec)


def parse(data: bytes) -> list[tuple[int, int, int, bytes | None, bytes | None]]:
    """(offset, attributes, timestamp, key, value) of each message, read by hand."""
    messages = []
    while data:
        offset = int.from_bytes(data[:8])
        size = int.from_bytes(data[8:12])
        body, data = data[16 : 12 + size], data[12 + size :]
        magic, attributes = body[0], body[1]
        body = body[2:]
        timestamp = -1
        if magic == 1:
            timestamp = int.from_bytes(body[:8], signed=True)
            body = body[8:]
        fields: list[bytes | None] = []
        for _ in range(2):
            length = int.from_bytes(body[:4], signed=True)
            fields.append(None if length < 0 else body[4 : 4 + length])
            body = body[4 + max(length, 0) :]
        assert body == b""
        messages.append((offset, attributes, timestamp, *fields))
    return messages


def converted(data: bytes) -> list[list[Record]]:
    return [list(iter_records(validate(batch).data)) for batch in to_batches(data)]


def refused(data: bytes) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        to_batches(data)
    return caught.value.code


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", OLD_CODECS)
def test_sets_of_another_implementation(magic: int, codec: str) -> None:
    data = bytes.fromhex((VECTORS / f"records_magic{magic}_{codec}.hex").read_text())
    assert magic_of(data) == magic
    (batch,) = to_batches(memoryview(data))
    assert validate(batch).header.codec == codecs.CODECS[codec]
    times = [1_700_000_000_000 + index * 1_000 if magic else -1 for index in range(4)]
    assert list(iter_records(batch)) == [
        Record(0, times[0], b"key0", b"value0 " * 10),
        Record(1, times[1], None, b"value1 " * 10),
        Record(2, times[2], b"key2", None),
        Record(3, times[3], b"key3", b"value3 " * 10),
    ]
    if codec == "none":
        assert from_batches(batch, magic) == data


def test_magic_of() -> None:
    assert magic_of(b"") is None
    assert magic_of(bytes(16)) is None
    assert magic_of(build_batch([Record(0, 0)])) == 2


def test_plain_messages_become_one_batch_whatever_their_offsets() -> None:
    data = message(1, 17, b"a", b"1", 10) + message(1, 3, None, None, 20)
    assert converted(data) == [[Record(0, 10, b"a", b"1"), Record(1, 20)]]
    assert to_batches(b"") == []


@pytest.mark.parametrize("codec", [codecs.GZIP, codecs.SNAPPY, codecs.LZ4])
def test_wrappers_and_plain_messages_keep_their_order(codec: int) -> None:
    inner = message(0, 5, b"b", b"2") + message(0, 6, b"c", b"3")
    data = message(0, 0, b"a", b"1") + wrapped(0, codec, inner) + message(0, 0, b"d", b"4")
    values = [[record.value for record in records] for records in converted(data)]
    assert values == [[b"1"], [b"2", b"3"], [b"4"]]
    kept = [read_header(batch).codec for batch in to_batches(data)]
    assert kept == [codecs.NONE, codec, codecs.NONE]
    other = to_batches(data, codec=codecs.ZSTD, level=1)
    assert {read_header(batch).codec for batch in other} == {codecs.ZSTD}


def test_old_messages_have_no_timestamp_until_the_broker_gives_one() -> None:
    (batch,) = to_batches(message(0, 0, b"a", b"1"))
    header = read_header(batch)
    assert (header.base_timestamp, header.max_timestamp) == (-1, -1)
    stamped = with_append_time(validate(batch), 77)
    assert [record.timestamp for record in iter_records(stamped)] == [77]


def test_refusals_of_plain_sets() -> None:
    good = message(1, 0, b"key", b"value", 5)
    assert refused(good[:-1]) == ErrorCode.CORRUPT_MESSAGE
    assert refused(good + good[:10]) == ErrorCode.CORRUPT_MESSAGE
    assert refused(good[:-1] + b"X") == ErrorCode.CORRUPT_MESSAGE
    assert refused(good + message(0, 0, b"k", b"v")) == ErrorCode.INVALID_RECORD
    assert refused(good[:16] + b"\x02" + good[17:]) == ErrorCode.INVALID_RECORD
    assert refused(message(1, 0, b"k", b"v", 5, TIMESTAMP_TYPE_FLAG)) == ErrorCode.INVALID_TIMESTAMP
    assert refused(message(1, 0, b"k", b"v", -2)) == ErrorCode.INVALID_TIMESTAMP
    assert refused(message(1, 0, b"k", b"v", 2**63 - 1)) == ErrorCode.INVALID_TIMESTAMP


def with_body(body: bytes) -> bytes:
    return pack(">qiI", 0, len(body) + 4, crc32(body)) + body


@pytest.mark.parametrize(
    "body",
    [
        b"\x00\x00" + blob(b"k") + blob(b"v") + b"\x00",  # something follows
        b"\x00\x00" + pack(">i", -2) + blob(b"v"),
        b"\x00\x00" + blob(b"k") + pack(">i", 100) + b"v",
        b"\x00\x00" + pack(">i", 4) + b"1234" + b"",  # no room for the value's length
        b"\x01\x00" + pack(">q", 1) + b"\x00\x00\x00",
    ],
)
def test_lengths_within_a_message(body: bytes) -> None:
    assert refused(with_body(body)) in (ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE)


def test_refusals_of_wrappers() -> None:
    inner = message(1, 0, b"k", b"v", 5)
    for codec in (codecs.ZSTD, 5, 7):
        bad = message(1, 0, None, b"zzz", 5, codec)
        assert refused(bad) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert refused(message(1, 0, None, None, 5, codecs.GZIP)) == ErrorCode.INVALID_RECORD
    assert refused(wrapped(1, codecs.GZIP, b"")) == ErrorCode.INVALID_RECORD
    twice = wrapped(1, codecs.GZIP, wrapped(1, codecs.GZIP, inner))
    assert refused(twice) == ErrorCode.INVALID_RECORD
    mixed = wrapped(1, codecs.GZIP, message(0, 0, b"k", b"v"))
    assert refused(mixed) == ErrorCode.INVALID_RECORD
    damaged = wrapped(1, codecs.GZIP, inner[:-1] + b"X")
    assert refused(damaged) == ErrorCode.CORRUPT_MESSAGE
    with pytest.raises(CorruptBatch):
        to_batches(message(1, 0, None, b"no gzip", 5, codecs.GZIP))


@pytest.mark.parametrize("codec", [codecs.GZIP, codecs.SNAPPY, codecs.LZ4])
def test_conversion_is_bounded(codec: int) -> None:
    inner = message(1, 0, None, bytes(5_000_000), 5)
    with pytest.raises(KafkaError) as caught:
        to_batches(wrapped(1, codec, inner), bytes_max=100_000)
    assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE
    batch = build_batch([Record(0, 0, None, bytes(5_000_000))], codec=codec)
    with pytest.raises(KafkaError):
        from_batches(batch, 1, bytes_max=100_000)


STORED = [
    Record(100, 10, b"a", b"1", (("h", b"x"),)),
    Record(103, 30, None, b"2"),
    Record(104, 20, b"c", None),
]


@pytest.mark.parametrize("magic", [0, 1])
def test_plain_batches_become_messages_from_the_fetch_offset_on(magic: int) -> None:
    data = build_batch(STORED, base_offset=100) + build_batch([Record(7, 1)], base_offset=7)
    messages = parse(from_batches(data, magic, fetch_offset=102))
    assert messages == [
        (103, 0, 30 if magic else -1, None, b"2"),
        (104, 0, 20 if magic else -1, b"c", None),
    ]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [codecs.GZIP, codecs.SNAPPY, codecs.LZ4])
def test_compressed_batches_become_wrappers(magic: int, codec: int) -> None:
    data = build_batch(STORED, base_offset=98, codec=codec)
    ((offset, attributes, timestamp, key, value),) = parse(from_batches(data, magic, 104))
    assert (offset, attributes, key) == (104, codec, None)
    assert timestamp == (30 if magic else -1)
    assert value is not None
    inner = parse(bytes(codecs.decompress(codec, value, magic=magic)))
    offsets = [entry[0] for entry in inner]
    assert offsets == ([0, 3, 4] if magic else [100, 103, 104])
    # What a consumer computes from relative offsets.
    if magic:
        assert [offset - offsets[-1] + relative for relative in offsets] == [100, 103, 104]
    assert [entry[3:] for entry in inner] == [(b"a", b"1"), (None, b"2"), (b"c", None)]


@pytest.mark.parametrize("codec", [codecs.NONE, codecs.LZ4])
def test_append_time_is_carried_by_magic_1(codec: int) -> None:
    data = with_append_time(validate(build_batch([Record(0, 5)], codec=codec)), 99)
    ((_, attributes, timestamp, _, _),) = parse(from_batches(data, 1))
    assert (attributes, timestamp) == (TIMESTAMP_TYPE_FLAG | codec, 99)
    ((_, attributes, _, _, _),) = parse(from_batches(data, 0))
    assert attributes == codec


def test_control_and_empty_batches_are_left_out() -> None:
    control = build_batch([Record(0, 0, b"\x00\x00\x00\x01", b"")], control=True)
    empty = build_batch([], codec=codecs.GZIP)
    # No records compress to something, so that the header's codec alone does not tell.
    assert from_batches(control + empty, 1) == b""


def test_zstd_cannot_be_read_by_old_consumers() -> None:
    with pytest.raises(KafkaError) as caught:
        from_batches(build_batch([Record(0, 0)], codec=codecs.ZSTD), 1)
    assert caught.value.code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_offsets_and_timestamps_beyond_64_bits() -> None:
    data = build_batch([Record(0, 0), Record(1, 2**40)])
    for fields in ({"base_offset": 2**63 - 1}, {"base_timestamp": 2**63 - 1}):
        bad = assemble(read_header(data)._replace(**fields), data[HEADER_SIZE:])
        with pytest.raises(CorruptBatch):
            from_batches(bad, 1)


blobs = st.none() | st.binary(max_size=100)


@pytest.mark.parametrize("magic", [0, 1])
@given(
    rows=st.lists(st.tuples(st.integers(-1, 2**62), blobs, blobs), min_size=1, max_size=10),
    codec=st.sampled_from([codecs.CODECS[name] for name in OLD_CODECS]),
    base_offset=st.integers(0, 2**50),
)
def test_down_and_up_again(
    magic: int,
    rows: list[tuple[int, bytes | None, bytes | None]],
    codec: int,
    base_offset: int,
) -> None:
    records = [Record(index, *row) for index, row in enumerate(rows)]
    data = build_batch(records, codec=codec)
    stored = stamp(base_offset, read_header(data).length, 1) + data[16:]
    (again,) = to_batches(from_batches(stored, magic, base_offset))
    if magic:
        assert list(iter_records(again)) == records
    else:
        assert [(record.key, record.value) for record in iter_records(again)] == [
            (record.key, record.value) for record in records
        ]


@given(data=st.binary(max_size=200))
def test_any_bytes_raise_only_our_errors(data: bytes) -> None:
    for function in (to_batches, lambda data: from_batches(data, 0), magic_of):
        try:
            function(data)
        except (ProtocolError, KafkaError):
            pass


@given(inner=st.binary(max_size=200), codec=st.integers(0, 7), magic=st.integers(0, 1))
def test_any_bytes_inside_a_wrapper_raise_only_our_errors(
    inner: bytes, codec: int, magic: int
) -> None:
    value = codecs.compress(codec, inner, magic=magic) if codec <= codecs.ZSTD else inner
    for content in (value, inner):
        try:
            to_batches(message(magic, 0, None, content, 0, codec))
        except (ProtocolError, KafkaError):
            pass


@given(payload=st.binary(max_size=100), codec=st.integers(0, 7), magic=st.integers(0, 1))
def test_any_stored_payload_raises_only_our_errors(payload: bytes, codec: int, magic: int) -> None:
    header = read_header(build_batch([Record(0, 0)]))._replace(attributes=codec)
    try:
        from_batches(assemble(header, payload), magic)
    except (ProtocolError, KafkaError):
        pass
