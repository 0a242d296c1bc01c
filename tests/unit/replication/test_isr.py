"""The leader's view of its followers: the high watermark, and who is in sync."""

from typing import Any

import pytest

from chronik.metadata.records import PartitionRecord
from chronik.replication.isr import UNKNOWN, InSync


def record(
    *isr: int,
    epoch: int = 0,
    replicas: tuple[int, ...] = (1, 2, 3),
    elr: tuple[int, ...] = (),
) -> PartitionRecord:
    return PartitionRecord(
        topic_id="t",
        partition=0,
        replicas=replicas,
        isr=isr,
        elr=elr,
        leader=1,
        partition_epoch=epoch,
    )


def led(*isr: int, **fields: Any) -> InSync:
    return InSync(1, record(*isr, **fields), now_ms=0)


def heard(in_sync: InSync, node_id: int, end: int, *, stored: int | None = None, **at: int) -> None:
    given = {"leader_end_offset": 100, "now_ms": 1_000} | at
    assert in_sync.progressed(node_id, 7, end, end if stored is None else stored, **given)


def test_alone_the_leader_is_everybody() -> None:
    assert led(1, replicas=(1,)).high_watermark(42, min_insync=1) == 42


def test_the_high_watermark_is_the_least_of_the_in_sync_set() -> None:
    in_sync = led(1, 2, 3)
    heard(in_sync, 2, 90)
    heard(in_sync, 3, 80)
    assert in_sync.high_watermark(100, 1) == 80
    assert in_sync.high_watermark(70, 1) == 70, "the leader's own counts too"


def test_what_is_not_stored_does_not_count() -> None:
    in_sync = led(1, 2, replicas=(1, 2))
    heard(in_sync, 2, 100, stored=60)
    assert in_sync.high_watermark(100, 1) == 60


def test_who_is_out_of_sync_does_not_count() -> None:
    in_sync = led(1, 2)
    heard(in_sync, 2, 90)
    heard(in_sync, 3, 5)
    assert in_sync.high_watermark(100, 1) == 90


def test_who_was_not_heard_of_in_this_epoch_holds_it_back() -> None:
    in_sync = led(1, 2, 3)
    heard(in_sync, 2, 90)
    assert in_sync.high_watermark(100, 1) == UNKNOWN


@pytest.mark.parametrize("proposed", [{1}, {1, 2, 3}])
def test_while_a_change_is_in_flight_both_sets_count(proposed: set[int]) -> None:
    in_sync = led(1, 2)
    heard(in_sync, 2, 90)
    heard(in_sync, 3, 50)
    in_sync.proposed = frozenset(proposed)
    assert in_sync.high_watermark(100, 1) == (50 if 3 in proposed else 90)


def test_a_later_state_of_the_partition_ends_the_proposal() -> None:
    in_sync = led(1, 2, epoch=4)
    in_sync.proposed = frozenset({1})
    in_sync.committed(record(1, 2, 3, epoch=4), now_ms=0)
    assert in_sync.proposed is not None, "the same state again says nothing"
    in_sync.committed(record(1, epoch=5), now_ms=0)
    assert (in_sync.isr, in_sync.proposed) == ((1,), None)


def test_it_stands_still_while_too_few_are_in_sync() -> None:
    in_sync = led(1)
    assert in_sync.high_watermark(100, 2) == UNKNOWN
    in_sync.proposed = frozenset({1, 2})
    heard(in_sync, 2, 100)
    assert in_sync.high_watermark(100, 2) == UNKNOWN, "what is proposed is not yet true"


def test_it_stands_still_while_somebody_else_is_eligible() -> None:
    """Whatever min.insync.replicas is here: whoever decides took another value for it."""
    in_sync = led(1, elr=(2,))
    assert in_sync.high_watermark(100, 1) == UNKNOWN
    in_sync.committed(record(1, epoch=1), now_ms=0)
    assert in_sync.high_watermark(100, 1) == 100


def test_min_insync_asks_for_no_more_replicas_than_there_are() -> None:
    assert led(1, replicas=(1,)).high_watermark(100, 2) == 100
    in_sync = led(1, 2, replicas=(1, 2))
    heard(in_sync, 2, 100)
    assert in_sync.high_watermark(100, 3) == 100


def test_who_has_all_of_the_log_never_lags() -> None:
    in_sync = led(1, 2, 3)
    heard(in_sync, 2, 100, now_ms=0)
    heard(in_sync, 3, 99, now_ms=0)
    assert in_sync.lagging(100, 30_001, 30_000) == {3}
    assert in_sync.lagging(100, 29_999, 30_000) == frozenset()


def test_who_keeps_up_with_a_log_that_grows_does_not_lag() -> None:
    in_sync = led(1, 2, replicas=(1, 2))
    for second in range(1, 120):
        # It always has what the leader had a second before.
        heard(in_sync, 2, 10 * (second - 1), leader_end_offset=10 * second, now_ms=1000 * second)
        assert not in_sync.lagging(10 * second, 1000 * second, 5_000)


def test_who_falls_behind_further_and_further_lags() -> None:
    in_sync = led(1, 2, replicas=(1, 2))
    for second in range(1, 20):
        heard(in_sync, 2, second, leader_end_offset=10 * second, now_ms=1000 * second)
    assert in_sync.lagging(190, 19_000, 5_000) == {2}


@pytest.mark.parametrize(
    ("stored", "high_watermark", "epoch_start", "is_caught_up"),
    [(50, 50, 0, True), (49, 50, 0, False), (50, 10, 60, False), (60, 10, 60, True)],
)
def test_a_follower_is_caught_up_at_the_high_watermark_and_in_this_epoch(
    stored: int, high_watermark: int, epoch_start: int, is_caught_up: bool
) -> None:
    in_sync = led(1, 2)
    heard(in_sync, 3, 100, stored=stored)
    assert in_sync.caught_up(3, high_watermark, epoch_start) is is_caught_up


def test_a_follower_whose_connection_is_gone_is_not_added() -> None:
    in_sync = led(1, 2)
    heard(in_sync, 3, 100)
    in_sync.lost(3)
    assert not in_sync.caught_up(3, 0, 0)
    heard(in_sync, 3, 100)
    assert in_sync.broker_epochs(frozenset({1, 2, 3})) == {3: 7}


def test_a_stranger_is_not_heard() -> None:
    assert not led(1, 2).progressed(9, 7, 1, 1, 1, 1)


def test_what_is_received_counts_as_far_as_memory_lasts() -> None:
    assert led(1, replicas=(1,)).received_offset(42, min_insync=1) == 42
    in_sync = led(1, 2, 3)
    heard(in_sync, 2, 90, stored=10)
    assert in_sync.received_offset(100, 1) == UNKNOWN
    heard(in_sync, 3, 80, stored=20)
    assert in_sync.received_offset(100, 1) == 80
    assert in_sync.received_offset(70, 1) == 70
    in_sync.proposed = frozenset({1, 2})
    assert in_sync.received_offset(100, 1) == 80, "both sets count while a change is in flight"
    assert led(1).received_offset(100, 2) == UNKNOWN, "too few are in sync"


def test_a_follower_is_not_caught_up_without_what_was_acknowledged_as_received() -> None:
    in_sync = led(1, 2)
    heard(in_sync, 3, 60, stored=50)
    assert in_sync.caught_up(3, 50, 0, received_offset=60)
    assert not in_sync.caught_up(3, 50, 0, received_offset=61)
