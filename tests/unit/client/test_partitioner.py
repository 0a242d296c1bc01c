"""The partitioner agrees with Java's."""

import pytest

from chronik.client.partitioner import murmur2, partition_of


@pytest.mark.parametrize(
    ("key", "java"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_as_java_shows_it(key: bytes, java: int) -> None:
    assert murmur2(key) == java & 0xFFFFFFFF


def test_partition_ignores_the_sign_bit() -> None:
    assert murmur2(b"foobar") >> 31 == 1
    assert partition_of(b"foobar", 7) == (-790332482 & 0x7FFFFFFF) % 7


def test_every_partition_gets_some_keys() -> None:
    assert {partition_of(b"%d" % number, 5) for number in range(100)} == set(range(5))
