"""The compression codecs of record batches and message sets, by their ids in the attributes.

cramjam does the work. This file adds what Kafka's own formats ask for, and a bound: a payload is
decompressed into a buffer of limited size, so that a few bytes that claim or unfold to gigabytes
cost no more memory than `bytes_max`.

    gzip     as everywhere
    snappy   xerial's frame: a 16-byte header, then blocks with a big-endian length. Some clients
             send one bare block, which is accepted too.
    lz4      a frame of independent blocks without content checksum: all that Java reads. Clients
             that speak magic 0 hash the frame's magic number into the header checksum, and
             expect it so (KAFKA-3160): that is accepted, and written, for magic 0.
    zstd     as everywhere

Bytes that do not decompress raise `CorruptBatch`. Too many bytes, or an unknown codec, are a
`KafkaError`, since the client can be told.
"""

from collections.abc import Callable
from struct import Struct
from typing import Final

import cramjam

from chronik.protocol.errors import CorruptBatch, ErrorCode, KafkaError
from chronik.protocol.schema import Buffer

NONE: Final = 0
GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4

CODEC_MAX: Final = ZSTD
CODECS: Final = {"none": NONE, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}
NAMES: Final = {codec: name for name, codec in CODECS.items()}

# What Kafka's own defaults mean: gzip's and zstd's usual levels, and lz4's fast compressor.
_DEFAULT_LEVELS: Final = {GZIP: 6, LZ4: 0, ZSTD: 3}

# The whole of a request may be this large, and so may what it unfolds to.
DECOMPRESSED_BYTES_MAX: Final = 100 * 1024 * 1024

_XERIAL_HEADER: Final = b"\x82SNAPPY\x00" + (1).to_bytes(4) + (1).to_bytes(4)
_XERIAL_MAGIC: Final = _XERIAL_HEADER[:8]
_XERIAL_BLOCK_SIZE: Final = 32 * 1024  # what Java's snappy stream writes
_LENGTH: Final = Struct(">i")

# A copy in snappy yields at most 64 bytes for its 3, so a larger claim is a lie.
_SNAPPY_RATIO_MAX: Final = 22
# The first output buffer is small in proportion to the input, so that a lying size costs nothing.
_FIRST_GUESS_RATIO: Final = 8
_FIRST_GUESS_BYTES_MIN: Final = 16 * 1024
_GROWTH: Final = 4
# How cramjam reports that the output does not fit.
_BUFFER_FULL: Final = "failed to write whole buffer"

_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_LZ4_CONTENT_SIZE_FLAG: Final = 0x08
_LZ4_DICTIONARY_FLAG: Final = 0x01


def compress(codec: int, data: Buffer, level: int | None = None, *, magic: int = 2) -> bytes:
    """The data as a batch or a message set of that magic carries it."""
    if level is None:
        level = _DEFAULT_LEVELS.get(codec)
    match codec:
        case 0:
            return bytes(data)
        case 1:
            return bytes(cramjam.gzip.compress(data, level))
        case 2:
            return _compress_snappy(data)
        case 3:
            framed = _compress_lz4(data, level)
            return _with_header_checksum(framed, broken=True) if magic == 0 else framed
        case 4:
            return bytes(cramjam.zstd.compress(data, level))
        case _:
            raise _unknown(codec)


def decompress(
    codec: int, data: Buffer, *, bytes_max: int = DECOMPRESSED_BYTES_MAX, magic: int = 2
) -> Buffer:
    """What was compressed, at most `bytes_max` bytes of it; more is MESSAGE_TOO_LARGE."""
    match codec:
        case 0:
            if len(data) > bytes_max:
                raise _too_large(bytes_max)
            return data
        case 1:
            return _decompress(cramjam.gzip.decompress_into, data, bytes_max)
        case 2:
            return _decompress_snappy(data, bytes_max)
        case 3:
            if magic == 0:
                data = _with_header_checksum(data, broken=False)
            return _decompress(cramjam.lz4.decompress_into, data, bytes_max)
        case 4:
            return _decompress(cramjam.zstd.decompress_into, data, bytes_max)
        case _:
            raise _unknown(codec)


def _unknown(codec: int) -> KafkaError:
    return KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"unknown compression codec {codec}")


def _too_large(bytes_max: int) -> KafkaError:
    return KafkaError(
        ErrorCode.MESSAGE_TOO_LARGE, f"records decompress to more than {bytes_max} bytes"
    )


def _decompress(
    decompress_into: Callable[[Buffer, Buffer], int], data: Buffer, bytes_max: int
) -> Buffer:
    """Decompress into a buffer that grows until the data fits or the bound is reached."""
    size = min(bytes_max, max(_FIRST_GUESS_BYTES_MIN, len(data) * _FIRST_GUESS_RATIO))
    while True:
        output = bytearray(size)
        try:
            written = decompress_into(data, output)
        except cramjam.DecompressionError as error:
            if _BUFFER_FULL not in str(error):
                raise CorruptBatch(f"records do not decompress: {error}") from None
        else:
            return memoryview(output)[:written]
        if size == bytes_max:
            raise _too_large(bytes_max)
        size = min(bytes_max, size * _GROWTH)


def _compress_snappy(data: Buffer) -> bytes:
    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_SIZE):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_SIZE]))
        parts += (_LENGTH.pack(len(block)), block)
    return b"".join(parts)


def _decompress_snappy(data: Buffer, bytes_max: int) -> Buffer:
    view = memoryview(data)
    blocks = _xerial_blocks(view) if view[:8] == _XERIAL_MAGIC else [view]
    try:
        sizes = [cramjam.snappy.decompress_raw_len(block) for block in blocks]
        if any(
            size > _SNAPPY_RATIO_MAX * len(block) for size, block in zip(sizes, blocks, strict=True)
        ):
            raise CorruptBatch("a snappy block claims more than it can hold")
        if sum(sizes) > bytes_max:
            raise _too_large(bytes_max)
        output = memoryview(bytearray(sum(sizes)))
        position = 0
        for size, block in zip(sizes, blocks, strict=True):
            if size:
                cramjam.snappy.decompress_raw_into(block, output[position : position + size])
            position += size
    except cramjam.DecompressionError as error:
        raise CorruptBatch(f"records do not decompress: {error}") from None
    return output


def _xerial_blocks(view: memoryview) -> list[memoryview]:
    blocks = []
    position = len(_XERIAL_HEADER)
    if len(view) < position:
        raise CorruptBatch("a snappy header is cut short")
    while position < len(view):
        start = position + _LENGTH.size
        if start > len(view):
            raise CorruptBatch("a snappy block is cut short")
        (length,) = _LENGTH.unpack_from(view, position)
        position = start + length
        if length <= 0 or position > len(view):
            raise CorruptBatch(f"a snappy block has length {length}")
        blocks.append(view[start:position])
    return blocks


def _compress_lz4(data: Buffer, level: int | None) -> bytes:
    # cramjam's plain `compress` links its blocks, which Java refuses.
    compressor = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
    compressor.compress(bytes(data))  # It takes nothing but bytes.
    return bytes(compressor.finish())


def _with_header_checksum(data: Buffer, *, broken: bool) -> bytes:
    """The same frame with its header checksum set: right, or as magic 0 has it."""
    frame = bytearray(data)
    if len(frame) < 7 or frame[:4] != _LZ4_MAGIC:
        raise CorruptBatch("not an lz4 frame")
    end = 6
    if frame[4] & _LZ4_CONTENT_SIZE_FLAG:
        end += 8
    if frame[4] & _LZ4_DICTIONARY_FLAG:
        end += 4
    if end >= len(frame):
        raise CorruptBatch("an lz4 header is cut short")
    hashed = frame[:end] if broken else frame[4:end]
    frame[end] = _xxh32(hashed) >> 8 & 0xFF
    return bytes(frame)


_PRIMES: Final = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1)
_MASK: Final = 0xFFFFFFFF


def _xxh32(data: Buffer) -> int:
    """XXH32 with seed 0 of fewer than 16 bytes: all that an lz4 header needs."""
    assert len(data) < 16
    prime1, prime2, prime3, prime4, prime5 = _PRIMES
    value = (prime5 + len(data)) & _MASK
    lanes_end = len(data) & ~3
    for start in range(0, lanes_end, 4):
        lane = int.from_bytes(data[start : start + 4], "little")
        value = _rotated(value + lane * prime3, 17) * prime4 & _MASK
    for byte in data[lanes_end:]:
        value = _rotated(value + byte * prime5, 11) * prime1 & _MASK
    value = (value ^ value >> 15) * prime2 & _MASK
    value = (value ^ value >> 13) * prime3 & _MASK
    return value ^ value >> 16


def _rotated(value: int, bits: int) -> int:
    value &= _MASK
    return value << bits | value >> 32 - bits
