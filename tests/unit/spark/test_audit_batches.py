"""What an audit says of a single batch."""

import pytest

from chronik.protocol.batch import HEADER_SIZE, Batch, read_header, split
from chronik.protocol.records import Record, build_batch, rebuild_batch
from chronik.spark.audit.replicas import check_batch


def batch(*offsets: int, base: int | None = None) -> Batch:
    records = [Record(offset, 1, b"k", b"value %d" % offset) for offset in offsets]
    (found,) = split(build_batch(records, base_offset=offsets[0] if base is None else base))
    return found


def kind(found: Batch, expected_offset: int, *, is_compacted: bool = False) -> str | None:
    wrong = check_batch(found, expected_offset, is_compacted=is_compacted)
    return None if wrong is None else wrong[0]


def test_a_batch_that_follows_the_last_one_is_fine() -> None:
    assert kind(batch(5, 6, 7), 5) is None


@pytest.mark.parametrize("place", [HEADER_SIZE, HEADER_SIZE + 9, 30, 17])
def test_a_flipped_byte_is_found(place: int) -> None:
    data = bytearray(batch(5, 6).data)
    data[place] ^= 1
    (found,) = split(bytes(data))
    assert kind(found, 5) == "crc"


def test_offsets_between_batches_must_be_there() -> None:
    assert check_batch(batch(8, 9), 5, is_compacted=False) == (
        "gap",
        "offsets 5 to 7 are missing",
    )
    assert kind(batch(8, 9), 5, is_compacted=True) is None


def test_offsets_must_not_come_twice() -> None:
    assert check_batch(batch(3, 4, 5), 5, is_compacted=False) == (
        "duplicate",
        "offsets 3 to 4 are there twice",
    )
    assert kind(batch(3, 4, 5), 5, is_compacted=True) == "duplicate"


def test_offsets_within_a_batch_are_its_own() -> None:
    whole = batch(5, 6, 7)
    left = rebuild_batch(read_header(whole.data), [Record(6, 1, b"k", b"v")])
    (compacted,) = split(left)
    assert kind(compacted, 5) == "gap"
    assert kind(compacted, 5, is_compacted=True) is None
    assert kind(batch(6, 8, base=5), 5) == "gap"
