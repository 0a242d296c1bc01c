"""What comes behind a batch that was refused is refused alike."""

import pytest

from chronik.model import TopicPartition
from chronik.protocol.batch import BatchHeader, read_header
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.records import Record, build_batch
from chronik.replication.producers import Producers
from chronik.replication.refusals import REFUSALS_MAX, REFUSED_MS, Refusals

PLACE = TopicPartition("t", 0)
NOW_MS = 1_000_000
OUT_OF_ORDER = KafkaError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
FEW = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)


def batch(sequence: int, producer_id: int = 7, epoch: int = 0) -> bytes:
    return build_batch(
        [Record(0, 1, None, b"v")],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


def code(
    refusals: Refusals, data: bytes, error: KafkaError, index: int = 0, now_ms: int = NOW_MS
) -> ErrorCode:
    return refusals.answer(TopicPartition("t", index), data, error, now_ms).code


@pytest.mark.parametrize(
    "reason",
    [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
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
    refusals.accepted(PLACE, batch(5))
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


def producers(*batches: bytes) -> Producers:
    """The state of a log with these batches."""
    state = Producers()
    for offset, data in enumerate(batches):
        header = read_header(data)
        state.append(BatchHeader(offset, *header[1:]))
    return state


def test_what_was_cut_away_counts_as_refused() -> None:
    """A leader appended 5 to 7 and lost 6 and 7 to another; it leads again when 8 arrives."""
    refusals = Refusals()
    before = producers(batch(5), batch(6), batch(2, producer_id=8), batch(7), batch(0, epoch=1))
    refusals.cut(PLACE, before, producers(batch(5)), NOW_MS)
    assert code(refusals, batch(1, epoch=1), OUT_OF_ORDER) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert code(refusals, batch(3, producer_id=8), OUT_OF_ORDER) is (
        ErrorCode.NOT_LEADER_OR_FOLLOWER
    )
    refusals.accepted(PLACE, batch(2, producer_id=8))
    assert code(refusals, batch(4, producer_id=8), OUT_OF_ORDER) is OUT_OF_ORDER.code


def test_a_cut_names_the_first_sequence_that_is_missing() -> None:
    refusals = Refusals()
    before = producers(batch(5), batch(6), batch(7))
    refusals.cut(PLACE, before, producers(batch(5)), NOW_MS)
    assert code(refusals, batch(8), OUT_OF_ORDER) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert code(refusals, batch(5), OUT_OF_ORDER) is OUT_OF_ORDER.code, "not behind it"
    refusals.accepted(PLACE, batch(6))
    refusals.cut(PLACE, before, before, NOW_MS)
    assert len(refusals) == 0, "nothing was cut"


def test_nothing_passes_for_the_first_batch_of_a_producer_whose_first_was_refused() -> None:
    refusals = Refusals()
    code(refusals, batch(0), FEW)
    with pytest.raises(KafkaError) as refused:
        refusals.check(PLACE, batch(1), Producers(), NOW_MS)
    assert refused.value.code is FEW.code
    refusals.check(PLACE, batch(0), Producers(), NOW_MS)
    refusals.check(PLACE, batch(1, producer_id=8), Producers(), NOW_MS)
    refusals.check(PLACE, batch(1), producers(batch(0)), NOW_MS)


def test_after_a_while_nothing_can_be_on_its_way_any_more() -> None:
    """Whoever is out of order by then is told so, and a producer that expired may begin anew."""
    refusals = Refusals()
    code(refusals, batch(5), FEW)
    later_ms = NOW_MS + REFUSED_MS
    assert code(refusals, batch(6), OUT_OF_ORDER, now_ms=later_ms) is FEW.code
    code(refusals, batch(7), FEW, now_ms=later_ms)
    assert code(refusals, batch(6), OUT_OF_ORDER, now_ms=later_ms + REFUSED_MS) is FEW.code
    later_ms += REFUSED_MS + 1
    refusals.check(PLACE, batch(6), Producers(), later_ms)
    assert code(refusals, batch(6), OUT_OF_ORDER, now_ms=later_ms) is OUT_OF_ORDER.code
    assert len(refusals) == 0


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
