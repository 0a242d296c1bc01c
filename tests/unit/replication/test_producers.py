"""Producers: what is a repeat, what is refused, and that replay gives the live state."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronik.protocol.batch import MAGIC, TRANSACTIONAL_FLAG, BatchHeader, read_header
from chronik.protocol.control import EndTxnMarker, build_marker, read_marker
from chronik.protocol.errors import ErrorCode, KafkaError, ProtocolError
from chronik.replication import verification
from chronik.replication.producer import Appended, ProducerState
from chronik.replication.producers import Producers
from chronik.replication.transactions import AbortedTxn

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


Stored = tuple[BatchHeader, bytes]  # as a log gives it to a replay


def marker(
    offset: int,
    *,
    producer_id: int = 1,
    epoch: int = 0,
    commit: bool = True,
    coordinator_epoch: int = 0,
    timestamp: int = 1_000,
) -> Stored:
    data = build_marker(
        EndTxnMarker(commit, coordinator_epoch),
        producer_id=producer_id,
        producer_epoch=epoch,
        timestamp=timestamp,
    )
    return read_header(data)._replace(base_offset=offset), data


def end(producers: Producers, stored: Stored) -> None:
    producers.append(stored[0], marker=read_marker(stored[1]))


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
    producers.replay([(header(0, timestamp=500), b"")])
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

    end(producers, marker(13))
    assert producers.first_unstable_offset() == 10, "the high watermark has not passed the marker"
    producers.on_high_watermark(13)
    assert producers.first_unstable_offset() == 10
    producers.on_high_watermark(14)
    assert producers.first_unstable_offset() == 11
    assert producers.check(header(2)) is None, "a marker of the same epoch keeps the sequence"
    end(producers, marker(14, producer_id=2, epoch=1))
    producers.on_high_watermark(15)
    assert producers.first_unstable_offset() is None
    bumped = header(1, producer_id=2, epoch=1)
    assert refused(producers, bumped) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producers.check(header(0, producer_id=2, epoch=1)) is None
    assert producers.aborted() == []


def test_the_oldest_open_transaction_bounds_an_aborted_ones_stable_offset() -> None:
    producers = after(
        header(0, offset=0, flags=TRANSACTIONAL_FLAG),
        header(0, offset=1, producer_id=2, flags=TRANSACTIONAL_FLAG),
    )
    end(producers, marker(2, producer_id=2, commit=False))
    end(producers, marker(3, commit=False))
    end(producers, marker(4, commit=False))  # Nothing was open: nothing was aborted.
    assert producers.aborted() == [AbortedTxn(2, 1, 2, 0), AbortedTxn(1, 0, 3, 4)]
    assert producers.has_aborted(3)
    assert not producers.has_aborted(4)


def test_reads_learn_the_aborted_transactions_that_touch_them() -> None:
    producers = Producers()
    for n in range(50):  # Transactions of one record each, at 2n with a marker at 2n + 1.
        producers.append(header(n, offset=2 * n, flags=TRANSACTIONAL_FLAG))
        end(producers, marker(2 * n + 1, commit=n % 2 == 0))
    offsets = [each.first_offset for each in producers.aborted_between(10, 20)]
    assert offsets == [10, 14, 18]
    assert [each.first_offset for each in producers.aborted_between(11, 11)] == [10]
    assert producers.aborted_between(100, 200) == []
    assert producers.forget_aborted(15)
    assert not producers.forget_aborted(15)
    producers.trim(11)
    assert [each.first_offset for each in producers.aborted_between(0, 20)] == [10, 18]
    producers.trim(12)
    assert [each.first_offset for each in producers.aborted_between(0, 20)] == [18]


def test_a_long_transaction_is_found_behind_short_ones() -> None:
    producers = after(header(0, offset=0, producer_id=9, flags=TRANSACTIONAL_FLAG))
    for n in range(1, 10):
        producers.append(header(n, offset=2 * n, flags=TRANSACTIONAL_FLAG))
        end(producers, marker(2 * n + 1, commit=False))
    end(producers, marker(100, producer_id=9, commit=False))
    found = producers.aborted_between(4, 5)
    assert [(each.producer_id, each.first_offset) for each in found] == [(1, 4), (9, 0)]


def marker_refused(
    producers: Producers, epoch: int, coordinator_epoch: int, version: int
) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        producers.check_marker(1, epoch, coordinator_epoch, version)
    return caught.value.code


def test_markers_of_old_epochs_and_coordinators_are_fenced() -> None:
    producers = after(header(0, epoch=3, flags=TRANSACTIONAL_FLAG))
    producers.check_marker(77, 0, 0)  # Of an unknown producer: nothing says that it is stale.
    assert marker_refused(producers, 2, 5, 1) == ErrorCode.INVALID_PRODUCER_EPOCH
    producers.check_marker(1, 3, 5, 1)
    producers.check_marker(1, 4, 5, 1)
    end(producers, marker(1, epoch=3, coordinator_epoch=5))
    assert marker_refused(producers, 3, 4, 1) == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    producers.check_marker(1, 3, 5, 1)


def test_markers_of_transaction_version_2_bump_the_epoch() -> None:
    producers = after(header(0, epoch=3, flags=TRANSACTIONAL_FLAG))
    assert marker_refused(producers, 3, 0, 2) == ErrorCode.INVALID_PRODUCER_EPOCH
    producers.check_marker(1, 4, 0, 2)
    end(producers, marker(1, epoch=4))
    producers.check_marker(1, 4, 0, 2)  # The same marker once more: there is nothing to end.
    assert marker_refused(producers, 3, 0, 2) == ErrorCode.INVALID_PRODUCER_EPOCH
    last = after(header(0, epoch=32767, flags=TRANSACTIONAL_FLAG))
    last.check_marker(1, 32767, 0, 2)  # There is no later epoch.


def test_a_coordinators_batches_have_an_epoch_but_no_sequence() -> None:
    producers = after(header(5, epoch=2))
    internal = header(-1, epoch=2, offset=1, flags=TRANSACTIONAL_FLAG)
    producers.check_internal(internal)
    producers.append(internal)
    assert producers.first_unstable_offset() == 1
    with pytest.raises(KafkaError) as caught:
        producers.check_internal(header(-1, epoch=1, flags=TRANSACTIONAL_FLAG))
    assert caught.value.code == ErrorCode.INVALID_PRODUCER_EPOCH
    with pytest.raises(KafkaError) as caught:
        producers.check_internal(header(-1, epoch=2))
    assert caught.value.code == ErrorCode.INVALID_TXN_STATE
    producer = producers.get(1)
    assert producer is not None
    assert producer.last_sequence == 5
    producers.check_internal(header(-1, producer_id=9))


def test_producers_can_be_described() -> None:
    producers = after(header(4, 2, epoch=3, offset=7, flags=TRANSACTIONAL_FLAG))
    assert producers.describe() == [ProducerState(1, 3, 5, 1_000, -1, 7)]
    end(producers, marker(9, epoch=4, coordinator_epoch=6, timestamp=2_000))
    assert producers.describe() == [ProducerState(1, 4, -1, 2_000, 6, -1)]
    assert producers.marker_epochs() == {1: 4}
    assert producers.last_offsets() == {}


def test_a_control_batch_that_is_no_marker_says_nothing() -> None:
    producers = after(header(0, flags=TRANSACTIONAL_FLAG))
    stored, _ = marker(1)
    producers.append(stored)
    assert producers.first_unstable_offset() == 0
    assert producers.end_offset == 2


def test_opening_a_transaction_needs_a_valid_guard() -> None:
    first = header(0, flags=TRANSACTIONAL_FLAG)
    producers = Producers()

    def code(guard: object = None, batch: BatchHeader = first) -> ErrorCode | None:
        try:
            producers.check(batch, guard, verify=True)  # type: ignore[arg-type]
        except KafkaError as error:
            return error.code
        return None

    assert producers.needs_verification(1, 0)
    assert code() == ErrorCode.INVALID_TXN_STATE
    other = producers.begin_verification(2, 0)
    assert code(other) == ErrorCode.INVALID_TXN_STATE
    guard = producers.begin_verification(1, 0)
    assert code(guard) is None
    producers.append(first)
    assert not producers.needs_verification(1, 0)
    assert producers.needs_verification(1, 1)
    assert code(None, header(1, flags=TRANSACTIONAL_FLAG)) is None, "it is open"
    assert producers.check(first, verify=True) is not None, "a repeat needs no guard"
    end(producers, marker(1))
    again = header(1, offset=2, flags=TRANSACTIONAL_FLAG)
    assert code(guard, again) == ErrorCode.INVALID_TXN_STATE, "used by the first append"
    guard = producers.begin_verification(1, 0)
    end(producers, marker(2))
    assert code(guard, again) == ErrorCode.INVALID_TXN_STATE, "a marker came in between"
    assert producers.check(again) is None, "verification is switched off"


def test_concurrent_verifications_share_a_guard_and_keep_their_order() -> None:
    producers = Producers()
    guard = producers.begin_verification(1, 0, sequence=0)
    assert producers.begin_verification(1, 0, sequence=3) is guard
    with pytest.raises(KafkaError) as caught:
        producers.check(header(3, flags=TRANSACTIONAL_FLAG), guard, verify=True)
    assert caught.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    producers.check(header(0, flags=TRANSACTIONAL_FLAG), guard, verify=True)
    producers.begin_verification(1, 1, sequence=2)  # Of a later epoch: it counts from there.
    producers.check(header(2, epoch=1, flags=TRANSACTIONAL_FLAG), guard, verify=True)


def test_a_client_that_bumps_epochs_begins_at_zero() -> None:
    producers = Producers()
    guard = producers.begin_verification(1, 0, sequence=4, supports_epoch_bump=True)
    with pytest.raises(KafkaError) as caught:
        producers.check(header(4, flags=TRANSACTIONAL_FLAG), guard, verify=True)
    assert caught.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    older = Producers()
    guard = older.begin_verification(1, 0, sequence=4)
    assert older.check(header(4, flags=TRANSACTIONAL_FLAG), guard, verify=True) is None


def test_guards_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "GUARDS_MAX", 3)
    producers = Producers()
    guards = [producers.begin_verification(n, 0) for n in range(5)]
    valid = []
    for n, guard in enumerate(guards):
        batch = header(0, producer_id=n, flags=TRANSACTIONAL_FLAG)
        try:
            producers.check(batch, guard, verify=True)
        except KafkaError:
            continue
        valid.append(n)
    assert valid == [2, 3, 4]


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


# What is tried: (producer, epoch step, sequence step, count, what).
Rows = list[tuple[int, int, int, int, str]]
attempts = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.sampled_from([0, 0, 0, 0, 1, -1]),
        st.sampled_from([0, 0, 0, 0, -1, -3, 1]),
        st.integers(1, 4),
        st.sampled_from(["plain", "transactional", "transactional", "commit", "abort"]),
    ),
    max_size=40,
)


def attempt(live: Producers, row: tuple[int, int, int, int, str], offset: int, now: int) -> Stored:
    """A batch or marker as somebody sends it; raises KafkaError if it is refused."""
    producer_id, epoch_step, sequence_step, count, what = row
    known = live.get(producer_id)
    epoch = max(0, (known.epoch if known else 0) + epoch_step)
    if what in ("commit", "abort"):
        live.check_marker(producer_id, epoch, now)
        return marker(
            offset,
            producer_id=producer_id,
            epoch=epoch,
            commit=what == "commit",
            coordinator_epoch=now,
            timestamp=now,
        )
    last = known.last_sequence if known else -1
    batch = header(
        max(0, (0 if epoch_step else last + 1) + sequence_step),
        count,
        producer_id=producer_id,
        epoch=epoch,
        offset=offset,
        timestamp=now,
        flags=TRANSACTIONAL_FLAG if what == "transactional" else 0,
    )
    if live.check(batch) is not None:
        raise KafkaError(ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
    return batch, b""


def appended(rows: Rows) -> tuple[Producers, list[Stored]]:
    """Run the attempts as a leader would, and return its state and its log."""
    live = Producers()
    log: list[Stored] = []
    for row in rows:
        offset = log[-1][0].next_offset if log else 0
        try:
            stored = attempt(live, row, offset, len(log))
        except KafkaError:
            continue
        live.append(stored[0], marker=read_marker(stored[1]) if stored[1] else None)
        log.append(stored)
    return live, log


@given(rows=attempts, cut=st.integers(0, 40))
def test_replay_and_snapshot_give_the_live_state(rows: Rows, cut: int) -> None:
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
    restored.replay(each for each in log if each[0].base_offset >= restored.end_offset)
    assert restored == live
    for producers in (live, replayed, restored):
        producers.on_high_watermark(live.end_offset)
    assert replayed.first_unstable_offset() == live.first_unstable_offset()
    assert restored.first_unstable_offset() == live.first_unstable_offset()


@given(rows=attempts)
def test_transactions_against_a_slow_model(rows: Rows) -> None:
    """The stable offset and the aborted transactions, computed anew from the whole log."""
    _, log = appended(rows)
    producers = Producers()
    seen: list[Stored] = []
    stable_before = 0
    for stored in log:
        seen.append(stored)
        producers.replay([stored])
        open_at: dict[int, int] = {}
        aborted = []
        for each, control in seen:
            if control:
                first_offset = open_at.pop(each.producer_id, None)
                said = read_marker(control)
                if first_offset is not None and said is not None and not said.commit:
                    aborted.append((each.producer_id, first_offset, each.base_offset))
            elif each.is_transactional:
                open_at.setdefault(each.producer_id, each.base_offset)
        producers.on_high_watermark(stored[0].next_offset)
        assert producers.first_unstable_offset() == min(open_at.values(), default=None)
        assert [each[:3] for each in producers.aborted()] == aborted
        stable = producers.first_unstable_offset()
        stable = stored[0].next_offset if stable is None else stable
        assert stable >= stable_before
        stable_before = stable
        for offset in range(0, stable, 3):
            for end_offset in range(offset + 1, stable + 1, 4):
                assert [each[:3] for each in producers.aborted_between(offset, end_offset)] == [
                    each for each in aborted if each[2] >= offset and each[1] < end_offset
                ]


@given(rows=attempts, cut=st.integers(0, 60))
def test_truncation_never_knows_more_than_a_replay(rows: Rows, cut: int) -> None:
    live, log = appended(rows)
    ends = [0, *(batch.next_offset for batch, _ in log)]
    to_offset = max(end for end in ends if end <= cut)
    exact = live.truncate(to_offset)
    replayed = Producers()
    replayed.replay(each for each in log if each[0].next_offset <= to_offset)
    if exact:
        assert live == replayed
    for producer_id in (1, 2, 3):
        known, real = live.get(producer_id), replayed.get(producer_id)
        if known is not None:
            assert real is not None
            assert set(known.batches) <= set(real.batches) or known.epoch != real.epoch
    assert set(live.aborted()) <= set(replayed.aborted())


@given(rows=attempts)
def test_what_is_in_the_log_is_dense_in_sequence(rows: Rows) -> None:
    _, log = appended(rows)
    for producer_id in (1, 2, 3):
        expected: dict[int, int] = {}
        for batch, _ in log:
            if batch.producer_id != producer_id or batch.is_control:
                continue
            assert batch.base_sequence == expected.get(batch.producer_epoch, batch.base_sequence)
            expected[batch.producer_epoch] = batch.last_sequence + 1
