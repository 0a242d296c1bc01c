"""The codecs: round trips, other implementations' bytes, and inputs that want too much memory."""

import gzip
import resource
import tracemalloc
from pathlib import Path

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronik.protocol import codecs
from chronik.protocol.errors import CorruptBatch, ErrorCode, KafkaError, ProtocolError

ALL = (codecs.NONE, codecs.GZIP, codecs.SNAPPY, codecs.LZ4, codecs.ZSTD)
COMPRESSING = ALL[1:]
SAMPLES = (b"", b"x", b"hello " * 5000, bytes(range(256)) * 1000, bytes(3_000_000))
BOMB_BYTES = 30_000_000
BOMB_BYTES_MAX = 1_000_000


@pytest.mark.parametrize("codec", ALL)
@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("data", SAMPLES, ids=len)
def test_round_trip(codec: int, magic: int, data: bytes) -> None:
    compressed = codecs.compress(codec, data, magic=magic)
    assert codecs.decompress(codec, compressed, bytes_max=len(data), magic=magic) == data


@pytest.mark.parametrize("codec", ALL)
@given(data=st.binary(max_size=2000), repeat=st.integers(1, 100))
def test_round_trip_of_any_bytes(codec: int, data: bytes, repeat: int) -> None:
    compressed = codecs.compress(codec, memoryview(data * repeat))
    assert codecs.decompress(codec, memoryview(compressed), bytes_max=1 << 20) == data * repeat


@pytest.mark.parametrize("codec", ALL)
@given(data=st.binary(max_size=300), magic=st.sampled_from([0, 2]))
def test_arbitrary_bytes_raise_only_our_errors(codec: int, data: bytes, magic: int) -> None:
    try:
        codecs.decompress(codec, data, bytes_max=10_000, magic=magic)
    except (ProtocolError, KafkaError):
        pass


@pytest.mark.parametrize("codec", COMPRESSING)
@given(data=st.data())
def test_damaged_bytes_raise_only_our_errors(codec: int, data: st.DataObject) -> None:
    compressed = bytearray(codecs.compress(codec, b"some text to compress " * 50))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(compressed) - 1))
        compressed[position] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(compressed)))
    try:
        codecs.decompress(codec, compressed[:cut], bytes_max=10_000, magic=2)
    except (ProtocolError, KafkaError):
        pass


@pytest.mark.parametrize("codec", COMPRESSING)
def test_bomb_is_refused_without_unfolding_it(codec: int) -> None:
    bomb = codecs.compress(codec, bytes(BOMB_BYTES))
    peak_before = _peak_kib()
    tracemalloc.start()
    try:
        with pytest.raises(KafkaError) as caught:
            codecs.decompress(codec, bomb, bytes_max=BOMB_BYTES_MAX)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE
    # A buffer is freed before the next larger one, so that the peak is little above the bound.
    assert peak < 2 * BOMB_BYTES_MAX
    # The native side, which tracemalloc does not see, has windows of up to 8 MiB.
    assert _peak_kib() - peak_before < BOMB_BYTES // 1024 // 2


def _peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.parametrize("codec", COMPRESSING)
def test_bound_is_exact(codec: int) -> None:
    compressed = codecs.compress(codec, bytes(100_000))
    assert len(codecs.decompress(codec, compressed, bytes_max=100_000)) == 100_000
    with pytest.raises(KafkaError):
        codecs.decompress(codec, compressed, bytes_max=99_999)


def test_uncompressed_is_bounded_too() -> None:
    with pytest.raises(KafkaError):
        codecs.decompress(codecs.NONE, bytes(11), bytes_max=10)


def test_lying_gzip_trailer() -> None:
    compressed = bytearray(gzip.compress(b"small"))
    compressed[-4:] = (0x7FFFFFFF).to_bytes(4, "little")
    with pytest.raises(CorruptBatch):
        codecs.decompress(codecs.GZIP, compressed, bytes_max=1 << 20)


def test_lying_zstd_content_size() -> None:
    # A single-segment frame whose 8-byte content size claims an exabyte, with one empty block.
    frame = b"\x28\xb5\x2f\xfd\xe0" + (1 << 60).to_bytes(8, "little") + b"\x01\x00\x00"
    with pytest.raises((CorruptBatch, KafkaError)):
        codecs.decompress(codecs.ZSTD, frame, bytes_max=1 << 20)


def test_lying_zstd_window() -> None:
    peak_before = _peak_kib()
    # A window of 2^41 bytes (descriptor 0xf8), then one raw block of 3 bytes.
    frame = b"\x28\xb5\x2f\xfd\x00\xf8" + b"\x19\x00\x00abc"
    with pytest.raises((CorruptBatch, KafkaError)):
        codecs.decompress(codecs.ZSTD, frame, bytes_max=1 << 20)
    assert _peak_kib() - peak_before < 64 * 1024


def test_lying_snappy_length() -> None:
    for claim in (b"\xff\xff\xff\xff\x0f", b"\x80\x80\x80\x40"):
        with pytest.raises(CorruptBatch, match="claims more"):
            codecs.decompress(codecs.SNAPPY, claim + b"\x00a", bytes_max=1 << 31)


def test_lying_lz4_content_size() -> None:
    frame = bytearray(codecs.compress(codecs.LZ4, b"small"))
    frame[4] |= 0x08
    frame[6:7] = (1 << 62).to_bytes(8, "little") + b"\x00"
    with pytest.raises(CorruptBatch):  # Magic 0 puts the header's checksum right.
        codecs.decompress(codecs.LZ4, frame, bytes_max=1 << 20, magic=0)


def test_unknown_codec() -> None:
    for function in (codecs.compress, codecs.decompress):
        with pytest.raises(KafkaError) as caught:
            function(5, b"")
        assert caught.value.code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_gzip_is_gzip() -> None:
    data = b"readable by all " * 100
    assert gzip.decompress(codecs.compress(codecs.GZIP, data)) == data
    assert codecs.decompress(codecs.GZIP, gzip.compress(data)) == data


def test_levels_matter() -> None:
    data = Path(tracemalloc.__file__).read_bytes()  # Any text of some size.
    for codec, low, high in ((codecs.GZIP, 1, 9), (codecs.ZSTD, 1, 19), (codecs.LZ4, 0, 9)):
        fast, small = (codecs.compress(codec, data, level) for level in (low, high))
        assert len(small) < len(fast)
        assert codecs.decompress(codec, small) == data


def test_snappy_has_xerial_framing() -> None:
    data = bytes(range(256)) * 300
    framed = codecs.compress(codecs.SNAPPY, data)
    assert framed[:16] == b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
    unfolded = b""
    position = 16
    while position < len(framed):
        length = int.from_bytes(framed[position : position + 4])
        block = framed[position + 4 : position + 4 + length]
        unfolded += bytes(cramjam.snappy.decompress_raw(block))
        position += 4 + length
    assert unfolded == data


def test_bare_snappy_is_read() -> None:
    bare = bytes(cramjam.snappy.compress_raw(b"no frame " * 100))
    assert codecs.decompress(codecs.SNAPPY, bare) == b"no frame " * 100


@pytest.mark.parametrize(
    "rest", [b"\x00", b"\x00\x00\x00\x00", b"\x00\x00\x00\x09ab", b"\xff\xff\xff\xffab"]
)
def test_broken_xerial_frames(rest: bytes) -> None:
    header = codecs.compress(codecs.SNAPPY, b"")
    with pytest.raises(CorruptBatch):
        codecs.decompress(codecs.SNAPPY, header + rest)
    with pytest.raises(CorruptBatch):
        codecs.decompress(codecs.SNAPPY, header[:12])


def test_lz4_blocks_are_independent_and_content_is_not_hashed() -> None:
    frame = codecs.compress(codecs.LZ4, bytes(200_000))
    assert frame[:4] == b"\x04\x22\x4d\x18"
    assert frame[4] >> 6 == 1  # the frame's version
    assert frame[4] & 0x20, "Java refuses linked blocks"
    assert not frame[4] & 0x04


def test_lz4_header_checksums_of_known_frames() -> None:
    # 0x82 is what every lz4 tool writes after 60 40; 0x1a is what kafka-python sends in magic 0.
    frame = b"\x04\x22\x4d\x18\x60\x40\x00\x00\x00\x00\x00"
    assert codecs._with_header_checksum(frame, broken=False)[6] == 0x82
    assert codecs._with_header_checksum(frame, broken=True)[6] == 0x1A


def test_lz4_of_magic_0_has_the_old_header_checksum() -> None:
    right, broken = (codecs.compress(codecs.LZ4, b"data", magic=magic) for magic in (1, 0))
    assert right[:6] == broken[:6]
    assert right[6] != broken[6]
    assert right[7:] == broken[7:]
    with pytest.raises(CorruptBatch):
        codecs.decompress(codecs.LZ4, broken, magic=1)
    assert codecs.decompress(codecs.LZ4, broken, magic=0) == b"data"
    assert codecs.decompress(codecs.LZ4, right, magic=0) == b"data"


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x04\x22\x4d\x18\x60\x40",
        b"\x04\x22\x4d\x18\x68\x40\x00",
        b"\x04\x22\x4d\x18\x61\x40\x00",
    ],
)
def test_short_lz4_headers_of_magic_0(frame: bytes) -> None:
    with pytest.raises(CorruptBatch):
        codecs.decompress(codecs.LZ4, frame, magic=0)
