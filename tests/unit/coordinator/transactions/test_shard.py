"""The transaction machine: given records and a request, then records and an answer."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transaction_world import A0, A1, B0, HOUR_MS, TIMEOUT_MS, Driver, new_shard

from chronik.coordinator.effects import Effects, ProducerStamp
from chronik.coordinator.transactions.shard import (
    BUSY_WAIT_MS,
    Outcome,
    Verified,
    WriteMarkers,
)
from chronik.coordinator.transactions.transaction import EPOCH_MAX, S
from chronik.model import TopicPartition
from chronik.protocol.errors import ErrorCode


def ok(producer_id: int, epoch: int) -> Outcome:
    return Outcome(ErrorCode.NONE, ProducerStamp(producer_id, epoch))


def error(code: ErrorCode) -> Outcome:
    return Outcome(code)


@pytest.fixture
def driver() -> Driver:
    return Driver()


def begun(driver: Driver, version: int = 1) -> ProducerStamp:
    stamp: ProducerStamp = driver.init().stamp
    assert driver.add(stamp, A0, version=version).error_code is ErrorCode.NONE
    return stamp


def test_first_init_gives_a_fresh_id_and_the_next_one_a_new_epoch(driver: Driver) -> None:
    assert driver.init() == ok(100, 0)
    assert driver.init() == ok(100, 1)
    assert driver.init("other") == ok(101, 0)


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_timeout_must_be_in_bounds(driver: Driver, timeout_ms: int) -> None:
    refused = driver.init(timeout_ms=timeout_ms)
    assert refused == error(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
    assert not driver.log


def test_commit_writes_prepare_markers_complete(driver: Driver) -> None:
    stamp = begun(driver)
    assert driver.add(stamp, A1, B0) == ok(*stamp)
    assert driver.end(stamp) is None
    ending = driver.tokens
    assert driver.known.state is S.PREPARE_COMMIT
    assert driver.markers == [
        WriteMarkers("t", stamp, True, frozenset([A0, A1, B0]), transaction_version=1)
    ]
    driver.write_markers()
    assert driver.answers[ending] == ok(*stamp)
    assert driver.known.state is S.COMPLETE_COMMIT
    assert driver.known.partitions == frozenset()
    states = [record.value.transaction_status for record in driver.log]
    assert states == [S.EMPTY, S.ONGOING, S.ONGOING, S.PREPARE_COMMIT, S.COMPLETE_COMMIT]


def test_adding_what_is_there_writes_nothing(driver: Driver) -> None:
    stamp = begun(driver)
    before = len(driver.log)
    assert driver.add(stamp, A0) == ok(*stamp)
    assert len(driver.log) == before


def test_a_second_transaction_waits_for_the_markers_of_the_first(driver: Driver) -> None:
    stamp = begun(driver)
    driver.end(stamp)
    assert driver.add(stamp, B0) is None
    assert driver.verify(stamp, B0) is None
    driver.write_markers()
    adding, verifying = driver.tokens - 1, driver.tokens
    assert driver.answers[adding] == ok(*stamp)
    assert driver.answers[verifying] == Verified(ErrorCode.NONE)
    assert driver.known.partitions == frozenset([B0])


def test_the_end_is_told_before_it_is_logged_that_it_is_over(driver: Driver) -> None:
    stamp = begun(driver)
    driver.end(stamp)
    assert driver.add(stamp, A1) is None
    effects = driver.shard.markers_written("t", stamp, driver.now_ms)
    assert [answer for _, answer in effects.told] == [ok(*stamp)]
    # The next transaction is another matter: it must not begin unless this one is over.
    assert [answer for _, answer in effects.replies] == [ok(*stamp)]
    assert [record.value.transaction_status for record in effects.records] == [
        S.COMPLETE_COMMIT,
        S.ONGOING,
    ]


def test_who_waits_too_long_for_markers_is_told(driver: Driver) -> None:
    stamp = begun(driver)
    driver.end(stamp)
    assert driver.add(stamp, B0) is None
    driver.tick(BUSY_WAIT_MS)
    assert driver.answers[driver.tokens] == error(ErrorCode.CONCURRENT_TRANSACTIONS)
    driver.write_markers()
    assert driver.known.state is S.COMPLETE_COMMIT


def test_a_decided_end_is_answered_even_if_the_markers_take_long(driver: Driver) -> None:
    stamp = begun(driver)
    assert driver.end(stamp) is None
    driver.tick(BUSY_WAIT_MS)
    assert driver.answers[driver.tokens] == ok(*stamp)


def test_verification_names_what_was_not_added(driver: Driver) -> None:
    stamp = begun(driver)
    assert driver.verify(stamp, A0, B0) == Verified(ErrorCode.NONE, frozenset([B0]))
    other = ProducerStamp(stamp.producer_id, stamp.producer_epoch + 1)
    assert driver.verify(other, A0).error_code is ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("request_of", ["add", "verify", "end"])
def test_old_epochs_and_wrong_ids_are_refused(driver: Driver, request_of: str) -> None:
    old = begun(driver)
    driver.end(old)
    driver.write_markers()
    driver.init()
    ask = {
        "add": lambda stamp: driver.add(stamp, A0),
        "verify": lambda stamp: driver.verify(stamp, A0),
        "end": lambda stamp: driver.end(stamp),
    }[request_of]
    assert ask(old).error_code is ErrorCode.PRODUCER_FENCED
    wrong = ProducerStamp(old.producer_id + 7, 0)
    assert ask(wrong).error_code is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_unknown_transactional_id_is_an_invalid_mapping(driver: Driver) -> None:
    stamp = ProducerStamp(1, 0)
    mapping = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert driver.add(stamp, A0).error_code is mapping
    assert driver.verify(stamp, A0).error_code is mapping
    assert driver.end(stamp).error_code is mapping


@pytest.mark.parametrize("committed", [True, False])
def test_ending_twice_is_answered_and_the_other_end_is_refused(
    driver: Driver, committed: bool
) -> None:
    stamp = begun(driver)
    driver.end(stamp, committed)
    assert driver.end(stamp, not committed) == error(ErrorCode.INVALID_TXN_STATE)
    assert driver.end(stamp, committed) is None
    waiting = driver.tokens
    driver.write_markers()
    assert driver.answers[waiting] == ok(*stamp)
    assert driver.end(stamp, committed) == ok(*stamp)
    assert driver.end(stamp, not committed) == error(ErrorCode.INVALID_TXN_STATE)
    assert not driver.markers


def test_ending_nothing_is_refused(driver: Driver) -> None:
    stamp = driver.init().stamp
    assert driver.end(stamp, True) == error(ErrorCode.INVALID_TXN_STATE)
    assert driver.end(stamp, False) == error(ErrorCode.INVALID_TXN_STATE)


def test_init_aborts_what_the_last_producer_had_open_and_fences_it(driver: Driver) -> None:
    old = begun(driver)
    assert driver.init() is None
    waiting = driver.tokens
    assert driver.known.state is S.PREPARE_ABORT
    fence = ProducerStamp(old.producer_id, old.producer_epoch + 1)
    assert driver.markers == [WriteMarkers("t", fence, False, frozenset([A0]), 1)]
    assert driver.end(old, False) == error(ErrorCode.PRODUCER_FENCED)
    driver.write_markers()
    assert driver.answers[waiting] == ok(old.producer_id, old.producer_epoch + 2)
    assert driver.end(old, True).error_code is ErrorCode.PRODUCER_FENCED


def test_time_out_aborts_and_fences(driver: Driver) -> None:
    stamp = begun(driver)
    driver.tick(TIMEOUT_MS - 1)
    assert driver.known.state is S.ONGOING
    driver.tick(1)
    assert driver.known.state is S.PREPARE_ABORT
    driver.write_markers()
    assert driver.end(stamp, True).error_code is ErrorCode.PRODUCER_FENCED
    # The producer itself may go on after it has asked for an epoch (KIP-588 clients do).
    assert driver.init() == ok(stamp.producer_id, stamp.producer_epoch + 2)


def test_adding_partitions_does_not_move_the_time_out(driver: Driver) -> None:
    stamp = begun(driver)
    driver.tick(TIMEOUT_MS // 2)
    driver.add(stamp, B0)
    driver.tick(TIMEOUT_MS // 2)
    assert driver.known.state is S.PREPARE_ABORT


def test_times_out_when_open_transactions_are_looked_at_next(driver: Driver) -> None:
    driver.shard = new_shard(
        transaction_abort_timed_out_transaction_cleanup_interval_ms=10_000,
    )
    driver.now_ms += 3_000
    begun(driver)
    driver.tick(TIMEOUT_MS)
    assert driver.known.state is S.ONGOING
    driver.tick(6_999)
    assert driver.known.state is S.ONGOING
    driver.tick(1)
    assert driver.known.state is S.PREPARE_ABORT


def test_ids_are_forgotten_when_they_are_looked_at_next(driver: Driver) -> None:
    driver.shard = new_shard(
        transactional_id_expiration_ms=4_000,
        transaction_remove_expired_transaction_cleanup_interval_ms=10_000,
    )
    driver.finish(begun(driver))
    assert driver.now_ms % 10_000 == 0
    driver.tick(9_999)
    assert "t" in driver.shard.transactions
    driver.tick(1)
    assert "t" not in driver.shard.transactions


def test_unused_ids_are_forgotten_after_a_week(driver: Driver) -> None:
    stamp = begun(driver)
    driver.end(stamp)
    driver.write_markers()
    driver.tick(7 * 24 * HOUR_MS - 1)
    assert "t" in driver.shard.transactions
    driver.tick(HOUR_MS)  # So often they are looked at.
    assert "t" not in driver.shard.transactions
    assert driver.log[-1].value is None
    assert driver.add(stamp, A0).error_code is ErrorCode.INVALID_PRODUCER_ID_MAPPING


# KIP-360: a producer that names its epoch.


def test_named_epoch_is_bumped_once_even_if_asked_twice(driver: Driver) -> None:
    stamp = driver.init().stamp
    assert driver.init(expected=stamp) == ok(stamp.producer_id, 1)
    assert driver.init(expected=stamp) == ok(stamp.producer_id, 1)
    assert driver.init() == ok(stamp.producer_id, 2)
    assert driver.init(expected=stamp) == error(ErrorCode.PRODUCER_FENCED)


def test_a_fenced_producer_aborts_nobody(driver: Driver) -> None:
    old = driver.init().stamp
    new = driver.init().stamp
    driver.add(new, A0)
    assert driver.init(expected=old) == error(ErrorCode.PRODUCER_FENCED)
    assert driver.known.state is S.ONGOING
    assert driver.finish(new) == ok(*new)


def exhaust(driver: Driver, epoch: int = EPOCH_MAX - 1) -> ProducerStamp:
    stamp = driver.init().stamp
    changed = dataclasses.replace(driver.known, producer_epoch=epoch)
    driver.shard.transactions["t"] = changed
    driver.log.append(Effects().write(changed.key, changed.to_value()))
    return ProducerStamp(stamp.producer_id, epoch)


def test_a_new_id_follows_the_last_epoch(driver: Driver) -> None:
    stamp = exhaust(driver)
    assert driver.init() == ok(stamp.producer_id + 1, 0)


def test_a_new_id_is_given_once_to_a_producer_that_names_its_last_epoch(driver: Driver) -> None:
    stamp = exhaust(driver)
    assert driver.init(expected=stamp) == ok(101, 0)
    again = driver.init(expected=stamp)
    assert again == ok(101, 0)


# KIP-890: transaction version 2.


def test_each_end_gives_the_next_epoch(driver: Driver) -> None:
    stamp = begun(driver, version=2)
    assert driver.finish(stamp, version=2) == ok(stamp.producer_id, 1)
    assert driver.add(stamp, A0, version=2).error_code is ErrorCode.PRODUCER_FENCED
    following = ProducerStamp(stamp.producer_id, 1)
    assert driver.add(following, A0, version=2) == ok(*following)
    assert driver.end(following, False, version=2) is None
    assert driver.markers[0].stamp == ProducerStamp(stamp.producer_id, 2)
    driver.write_markers()
    assert driver.answers[driver.tokens] == ok(stamp.producer_id, 2)


def test_repeated_end_of_version_2_gets_the_same_epoch(driver: Driver) -> None:
    stamp = begun(driver, version=2)
    driver.end(stamp, version=2)
    assert driver.end(stamp, version=2) is None
    waiting = driver.tokens
    driver.write_markers()
    assert driver.answers[waiting] == ok(stamp.producer_id, 1)
    assert driver.end(stamp, version=2) == ok(stamp.producer_id, 1)
    assert driver.end(stamp, False, version=2) == error(ErrorCode.INVALID_TXN_STATE)
    driver.crash()
    assert driver.end(stamp, version=2) == ok(stamp.producer_id, 1)


def test_version_2_may_abort_an_empty_transaction_but_not_commit_one(driver: Driver) -> None:
    stamp = driver.init().stamp
    assert driver.end(stamp, True, version=2) == error(ErrorCode.INVALID_TXN_STATE)
    assert driver.finish(stamp, False, version=2) == ok(stamp.producer_id, 1)
    following = ProducerStamp(stamp.producer_id, 1)
    assert driver.finish(following, False, version=2) == ok(stamp.producer_id, 2)


def test_end_of_the_last_epoch_goes_on_with_a_new_id(driver: Driver) -> None:
    stamp = exhaust(driver)
    driver.add(stamp, A0, version=2)
    assert driver.end(stamp, version=2) is None
    ending = driver.tokens
    assert driver.markers[0].stamp == ProducerStamp(stamp.producer_id, EPOCH_MAX)
    driver.write_markers()
    answer = driver.answers[ending]
    assert answer == ok(driver.next_id, 0)
    assert driver.end(stamp, version=2) == answer
    assert driver.add(answer.stamp, A0, version=2) == answer


def test_after_a_time_out_a_producer_of_version_2_aborts_and_goes_on(driver: Driver) -> None:
    stamp = begun(driver, version=2)
    driver.tick(TIMEOUT_MS)
    driver.write_markers()
    assert driver.end(stamp, True, version=2) == error(ErrorCode.INVALID_TXN_STATE)
    following = driver.end(stamp, False, version=2)
    assert following == ok(stamp.producer_id, stamp.producer_epoch + 1)
    assert driver.add(stamp, A0, version=2).error_code is ErrorCode.PRODUCER_FENCED
    assert driver.add(following.stamp, A0, version=2) == following


def test_a_fenced_producer_of_version_2_has_no_way_back(driver: Driver) -> None:
    old = begun(driver, version=2)
    assert driver.init() is None
    waiting = driver.tokens
    driver.write_markers()
    assert driver.answers[waiting] == ok(old.producer_id, old.producer_epoch + 2)
    for committed in (True, False):
        assert driver.end(old, committed, version=2) == error(ErrorCode.PRODUCER_FENCED)


# Crashes.


def test_a_decided_end_is_finished_after_a_crash(driver: Driver) -> None:
    stamp = begun(driver)
    driver.end(stamp)
    markers = driver.markers
    driver.crash()
    assert driver.markers == markers
    driver.write_markers()
    assert driver.known.state is S.COMPLETE_COMMIT


def test_time_outs_survive_a_crash(driver: Driver) -> None:
    begun(driver)
    driver.now_ms += TIMEOUT_MS // 2
    driver.crash()
    driver.tick(TIMEOUT_MS // 2)
    assert driver.known.state is S.PREPARE_ABORT


STEPS = st.lists(
    st.sampled_from(
        [
            "init",
            "add",
            "commit",
            "decide-commit",
            "decide-abort",
            "abort",
            "markers",
            "tick",
            "crash",
            "zombie-add",
            "zombie-commit",
            "zombie-abort",
        ]
    ),
    max_size=60,
)


@given(STEPS, st.sampled_from([1, 2]))
@settings(max_examples=150, deadline=None)
def test_any_schedule_keeps_the_promises(steps: list[str], version: int) -> None:
    """Epochs only grow, a decided end is the only end, and replay gives the live state."""
    driver = Driver()
    current: ProducerStamp | None = None
    zombies: list[ProducerStamp] = []
    decided: dict[tuple[ProducerStamp, frozenset[TopicPartition]], bool] = {}
    highest = ProducerStamp(-1, -1)
    for step in steps:
        match step:
            case "init":
                answer = driver.init()
                while answer is None:
                    assert driver.markers, "it waits for nothing"
                    driver.write_markers()
                    answer = driver.answers.get(driver.tokens)
                if current is not None:
                    zombies.append(current)
                assert answer.stamp > highest, "an epoch was given twice"
                current = highest = answer.stamp
            case "add" if current is not None:
                driver.add(current, A0, version=version)
            case "commit" | "abort" if current is not None:
                answer = driver.end(current, step == "commit", version)
                if answer is None:
                    driver.write_markers()
                    answer = driver.answers.get(driver.tokens)
                if answer is not None and answer.error_code is ErrorCode.NONE:
                    current = answer.stamp if version == 2 else current
                    highest = max(highest, current)
            case "decide-commit" | "decide-abort" if current is not None:
                driver.end(current, step == "decide-commit", version)
            case "zombie-add" if zombies:
                answer = driver.add(zombies[-1], B0, version=version)
                if answer is not None:
                    assert answer.error_code is ErrorCode.PRODUCER_FENCED
            case "zombie-commit" | "zombie-abort" if zombies:
                answer = driver.end(zombies[-1], step == "zombie-commit", version)
                if answer is not None:
                    assert answer.error_code is not ErrorCode.NONE
            case "markers":
                driver.write_markers()
            case "tick":
                driver.tick(TIMEOUT_MS)
            case "crash":
                driver.crash()
            case _:
                pass
        if not any(each.is_ending for each in driver.shard.transactions.values()):
            decided.clear()  # What is ended next is another transaction.
        for marker in driver.markers:
            key = (marker.stamp, marker.partitions)
            assert decided.setdefault(key, marker.committed) == marker.committed
        assert_replay_is_live(driver)


def assert_replay_is_live(driver: Driver) -> None:
    replayed = new_shard()
    for record in driver.log:
        replayed.replay(record, None)
    assert {name: each.to_value() for name, each in replayed.transactions.items()} == {
        name: each.to_value() for name, each in driver.shard.transactions.items()
    }
