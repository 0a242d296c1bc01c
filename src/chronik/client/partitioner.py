"""Which partition a record goes to: by its key as Java's client does it, else in turn.

Keyed records must land where every other client puts them, so the hash is Kafka's murmur2, bit for
bit. Records without a key stay on one partition for a whole batch, which compresses and travels
better than a batch of one record for each partition.
"""

from typing import Final

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The hash as an unsigned 32-bit number; Java shows the same bits as a signed one."""
    size = len(data)
    value = _SEED ^ size
    whole = size & ~3
    for start in range(0, whole, 4):
        k = int.from_bytes(data[start : start + 4], "little") * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        value = value * _M & _MASK ^ k
    if whole < size:
        value = (value ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    value = (value ^ value >> 13) * _M & _MASK
    return value ^ value >> 15


def partition_of(key: bytes, partition_count: int) -> int:
    """The partition of a keyed record."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count
