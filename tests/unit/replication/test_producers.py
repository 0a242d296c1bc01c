"""Idempotent producers: what is a repeat, what is refused, and that replay gives the live state."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronik.protocol.batch import CONTROL_FLAG, MAGIC, TRANSACTIONAL_FLAG, BatchHeader
from chronik.protocol.errors import ErrorCode, KafkaError, ProtocolError
from chronik.replication.producers import Appended, Producers

SEQUENCE_MAX = 2**31 - 1


def header(
    sequence: int,
    count: int = 1,
    *,
    producer_id: int = 1,
    epoch: int = 0,
    offset: int = 0,
    timestamp: int = 1_000,
    flags: int = 0,
) -> BatchHeader:
    return BatchHeader(
        base_offset=offset,
        length=49,
        leader_epoch=0,
        magic=MAGIC,
        crc=0,
        attributes=flags,
        last_offset_delta=count - 1,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        record_count=count,
    )


def refused(producers: Producers, batch: BatchHeader) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        producers.check(batch)
    return caught.value.code


def after(*batches: BatchHeader) -> Producers:
    producers = Producers()
    for batch in batches:
        assert producers.check(batch) is None
        producers.append(batch)
    return producers


def test_batches_in_order_are_accepted() -> None:
    producers = after(header(0, 3), header(3, 2, offset=3), header(5, offset=5))
    assert producers.end_offset == 6
    producer = producers.get(1)
    assert producer is not None
    assert producer.last_sequence == 5


def test_a_gap_and_a_step_back_are_out_of_order() -> None:
    producers = after(header(0, 3))
    for sequence in (0, 1, 2, 4, 100):
        assert refused(producers, header(sequence)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producers.check(header(3)) is None


def test_the_last_five_batches_are_known_again() -> None:
    producers = after(*(header(i * 2, 2, offset=10 + i * 2, timestamp=i) for i in range(6)))
    for i in range(1, 6):
        assert producers.check(header(i * 2, 2)) == Appended(i * 2, 10 + i * 2, 1, i)
    assert refused(producers, header(0, 2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_repeat_must_have_the_same_length() -> None:
    producers = after(header(0, 3))
    assert refused(producers, header(0, 2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producers.check(header(0, 3)) is not None


def test_an_unknown_producer_may_begin_anywhere() -> None:
    producers = after(header(42))
    assert refused(producers, header(44)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producers.check(header(43)) is None


def test_sequences_wrap() -> None:
    producers = after(header(SEQUENCE_MAX - 1, 2))
    assert refused(producers, header(1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producers.check(header(0)) is None

    across = after(header(SEQUENCE_MAX, 3, offset=8))
    producer = across.get(1)
    assert producer is not None
    assert producer.last_sequence == 1
    assert across.check(header(SEQUENCE_MAX, 3)) == Appended(SEQUENCE_MAX, 8, 2, 1_000)
    assert across.check(header(2)) is None


def test_an_older_epoch_is_fenced() -> None:
    producers = after(header(0, epoch=5))
    assert refused(producers, header(1, epoch=4)) == ErrorCode.INVALID_PRODUCER_EPOCH
    # Even a batch that would be a repeat in its own epoch.
    assert refused(producers, header(0, epoch=4)) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_later_epoch_begins_at_zero_and_forgets_the_one_before() -> None:
    producers = after(header(0), header(1, offset=1))
    assert refused(producers, header(2, epoch=1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producers.check(header(0, epoch=1)) is None
    producers.append(header(0, epoch=1, offset=2))
    assert producers.check(header(0, epoch=1)) == Appended(0, 2, 0, 1_000)
    producer = producers.get(1)
    assert producer is not None
    assert len(producer.batches) == 1


def test_producers_do_not_know_each_other() -> None:
    producers = after(header(0), header(7, producer_id=2, offset=1))
    assert len(producers) == 2
    assert producers.check(header(1)) is None
    assert producers.check(header(8, producer_id=2)) is None


def test_batches_without_a_producer_leave_no_trace() -> None:
    producers = after(header(-1, producer_id=-1, epoch=-1))
    assert len(producers) == 0
    assert producers.check(header(-1, producer_id=-1, epoch=-1)) is None


def test_expiration_counts_from_when_a_producer_was_seen() -> None:
    producers = Producers()
    producers.append(header(0, timestamp=5), now_ms=1_000)
    producers.append(header(0, producer_id=2, timestamp=9_999), now_ms=2_000)
    assert producers.expire(1_999, 1_000) == 0
    assert producers.expire(2_000, 1_000) == 1
    assert producers.get(1) is None
    assert producers.get(2) is not None
    # It is unknown again, and may go on where it was.
    assert producers.check(header(17)) is None


def test_a_replayed_producer_was_seen_when_its_batch_says() -> None:
    producers = Producers()
    producers.replay([header(0, timestamp=500)])
    assert producers.expire(1_499, 1_000) == 0
    assert producers.expire(1_500, 1_000) == 1


def test_transactions_open_and_end() -> None:
    producers = after(
        header(0, offset=10, flags=TRANSACTIONAL_FLAG),
        header(0, offset=11, producer_id=2, flags=TRANSACTIONAL_FLAG),
        header(1, offset=12, flags=TRANSACTIONAL_FLAG),
    )
    assert producers.first_unstable_offset() == 10
    assert refused(producers, header(2)) == ErrorCode.INVALID_TXN_STATE
    assert producers.expire(10**12, 1) == 0

    marker = TRANSACTIONAL_FLAG | CONTROL_FLAG
    producers.append(header(-1, offset=13, flags=marker))
    assert producers.first_unstable_offset() == 11
    assert producers.check(header(2)) is None, "a marker of the same epoch keeps the sequence"
    producers.append(header(-1, offset=14, producer_id=2, epoch=1, flags=marker))
    assert producers.first_unstable_offset() is None
    fenced = header(-1, producer_id=2, epoch=0, flags=marker)
    assert refused(producers, fenced) == ErrorCode.INVALID_PRODUCER_EPOCH
    bumped = header(1, producer_id=2, epoch=1)
    assert refused(producers, bumped) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producers.check(header(0, producer_id=2, epoch=1)) is None


def test_truncation_says_whether_the_state_is_exact() -> None:
    batches = [header(i, offset=i) for i in range(4)]
    batches.append(header(0, offset=4, producer_id=2, flags=TRANSACTIONAL_FLAG))
    producers = after(*batches)
    assert producers.truncate(5)
    assert producers == after(*batches)
    assert not producers.truncate(2)
    assert producers == after(*batches[:2])
    assert producers.end_offset == 2
    assert producers.first_unstable_offset() is None
    assert producers.check(header(2)) is None


def test_a_snapshot_may_speak_for_the_whole_log() -> None:
    producers = after(header(0, offset=5))
    assert Producers.from_snapshot(producers.snapshot()).end_offset == 6
    restored = Producers.from_snapshot(producers.snapshot(log_end_offset=900))
    assert restored.end_offset == 900
    assert restored == producers


def test_equality() -> None:
    assert after(header(0)) == after(header(0))
    assert after(header(0)) != after(header(1))
    assert after(header(0)) != "something else"
    assert after(header(0)).get(1) != "something else"


def test_an_idle_producer_is_small() -> None:
    producer = after(header(0)).get(1)
    assert producer is not None
    assert not hasattr(producer, "__dict__")
    (batch,) = producer.batches
    size = sum(map(sys.getsizeof, (producer, producer.batches, batch, *batch)))
    assert size < 500


@pytest.mark.parametrize("position", range(0, 60, 3))
def test_a_damaged_snapshot_is_refused(position: int) -> None:
    data = bytearray(after(header(0), header(1, offset=1)).snapshot())
    data[position] ^= 1
    with pytest.raises(ProtocolError):
        Producers.from_snapshot(bytes(data))
    with pytest.raises(ProtocolError):
        Producers.from_snapshot(bytes(data[:position]))


@given(data=st.binary(max_size=100))
def test_any_bytes_as_a_snapshot(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        Producers.from_snapshot(data)


# What a client may try: (producer, epoch step, sequence step, count, flags).
attempts = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.sampled_from([0, 0, 0, 0, 1, -1]),
        st.sampled_from([0, 0, 0, 0, -1, -3, 1]),
        st.integers(1, 4),
        st.sampled_from([0, 0, TRANSACTIONAL_FLAG, TRANSACTIONAL_FLAG | CONTROL_FLAG]),
    ),
    max_size=40,
)


def appended(rows: list[tuple[int, int, int, int, int]]) -> tuple[Producers, list[BatchHeader]]:
    """Run the attempts as a leader would, and return its state and its log."""
    live = Producers()
    log: list[BatchHeader] = []
    for producer_id, epoch_step, sequence_step, count, flags in rows:
        known = live.get(producer_id)
        epoch = max(0, (known.epoch if known else 0) + epoch_step)
        last = known.last_sequence if known else -1
        sequence = max(0, (0 if epoch_step else last + 1) + sequence_step)
        offset = log[-1].next_offset if log else 0
        batch = header(
            sequence,
            count,
            producer_id=producer_id,
            epoch=epoch,
            offset=offset,
            timestamp=len(log),
            flags=flags,
        )
        try:
            if live.check(batch) is not None:
                continue
        except KafkaError:
            continue
        live.append(batch)
        log.append(batch)
    return live, log


@given(rows=attempts, cut=st.integers(0, 40))
def test_replay_and_snapshot_give_the_live_state(
    rows: list[tuple[int, int, int, int, int]], cut: int
) -> None:
    live, log = appended(rows)
    replayed = Producers()
    replayed.replay(log)
    assert replayed == live
    assert replayed.end_offset == live.end_offset

    early = Producers()
    early.replay(log[:cut])
    restored = Producers.from_snapshot(early.snapshot())
    assert restored == early
    assert restored.end_offset == early.end_offset
    restored.replay(batch for batch in log if batch.base_offset >= restored.end_offset)
    assert restored == live


@given(rows=attempts, cut=st.integers(0, 60))
def test_truncation_never_knows_more_than_a_replay(
    rows: list[tuple[int, int, int, int, int]], cut: int
) -> None:
    live, log = appended(rows)
    ends = [0, *(batch.next_offset for batch in log)]
    to_offset = max(end for end in ends if end <= cut)
    exact = live.truncate(to_offset)
    replayed = Producers()
    replayed.replay(batch for batch in log if batch.next_offset <= to_offset)
    if exact:
        assert live == replayed
    for producer_id in (1, 2, 3):
        known, real = live.get(producer_id), replayed.get(producer_id)
        if known is not None:
            assert real is not None
            assert set(known.batches) <= set(real.batches) or known.epoch != real.epoch


@given(rows=attempts)
def test_what_is_in_the_log_is_dense_in_sequence(
    rows: list[tuple[int, int, int, int, int]],
) -> None:
    _, log = appended(rows)
    for producer_id in (1, 2, 3):
        expected: dict[int, int] = {}
        for batch in log:
            if batch.producer_id != producer_id or batch.is_control:
                continue
            assert batch.base_sequence == expected.get(batch.producer_epoch, batch.base_sequence)
            expected[batch.producer_epoch] = batch.last_sequence + 1
