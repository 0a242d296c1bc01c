"""What comes behind a batch that was refused is refused alike."""

import pytest

from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.records import Record, build_batch
from chronik.replication.refusals import REFUSALS_MAX, Refusals

TOPIC = bytes(16)
OUT_OF_ORDER = KafkaError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
FEW = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)


def batch(sequence: int, producer_id: int = 7, epoch: int = 0) -> bytes:
    return build_batch(
        [Record(0, 1, None, b"v")],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


def code(refusals: Refusals, data: bytes, error: KafkaError, index: int = 0) -> ErrorCode:
    return refusals.answer(TOPIC, index, data, error).code


@pytest.mark.parametrize(
    "reason",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.KAFKA_STORAGE_ERROR,
    ],
)
def test_until_it_has_come_again(reason: ErrorCode) -> None:
    refusals = Refusals()
    assert code(refusals, batch(5), KafkaError(reason)) is reason
    assert code(refusals, batch(6), OUT_OF_ORDER) is reason
    assert code(refusals, batch(7), OUT_OF_ORDER) is reason
    refusals.accepted(TOPIC, 0, batch(5))
    assert len(refusals) == 0
    assert code(refusals, batch(7), OUT_OF_ORDER) is OUT_OF_ORDER.code


def test_the_first_one_counts() -> None:
    refusals = Refusals()
    code(refusals, batch(6), FEW)
    code(refusals, batch(5), KafkaError(ErrorCode.KAFKA_STORAGE_ERROR))
    code(refusals, batch(8), FEW)
    assert code(refusals, batch(6), OUT_OF_ORDER) is ErrorCode.KAFKA_STORAGE_ERROR
    assert code(refusals, batch(4), OUT_OF_ORDER) is OUT_OF_ORDER.code, "not behind it"


def test_sequences_go_round() -> None:
    refusals = Refusals()
    code(refusals, batch(2**31 - 1), FEW)
    assert code(refusals, batch(0), OUT_OF_ORDER) is FEW.code
    assert code(refusals, batch(2**31 - 2), OUT_OF_ORDER) is OUT_OF_ORDER.code


def test_only_the_same_producer_epoch_and_partition() -> None:
    refusals = Refusals()
    code(refusals, batch(5), FEW)
    assert code(refusals, batch(6, producer_id=8), OUT_OF_ORDER) is OUT_OF_ORDER.code
    assert code(refusals, batch(6, epoch=1), OUT_OF_ORDER) is OUT_OF_ORDER.code
    assert code(refusals, batch(6), OUT_OF_ORDER, index=1) is OUT_OF_ORDER.code


def test_what_is_wrong_for_good_or_has_no_sequence_is_not_remembered() -> None:
    refusals = Refusals()
    code(refusals, batch(5), KafkaError(ErrorCode.MESSAGE_TOO_LARGE))
    code(refusals, batch(-1, producer_id=-1, epoch=-1), FEW)
    code(refusals, b"", FEW)
    assert len(refusals) == 0


def test_there_is_a_bound() -> None:
    refusals = Refusals()
    data = batch(5)
    for index in range(REFUSALS_MAX + 10):
        code(refusals, data, FEW, index=index)
    assert len(refusals) == REFUSALS_MAX
    assert code(refusals, batch(6), OUT_OF_ORDER, index=0) is OUT_OF_ORDER.code
