"""A move adds first, takes away when all are in sync, and can be undone."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronik.config.effective import BrokerConfig
from chronik.metadata.commands import InSyncChange, Reassignment, ReassignPartitions, UpdateISR
from chronik.metadata.controller import decide
from chronik.metadata.image import Image, id_text
from chronik.metadata.reassignments import under_way
from chronik.metadata.records import (
    BrokerRecord,
    BrokerStatus,
    PartitionRecord,
    TopicRecord,
    decode_records,
    encode_records,
)
from chronik.protocol.errors import ErrorCode

CONFIG = BrokerConfig(static={}, cluster={}, broker={})
TOPIC_ID = id_text((1).to_bytes(16))


def broker(node_id: int, status: BrokerStatus = BrokerStatus.ONLINE) -> BrokerRecord:
    return BrokerRecord(
        node_id=node_id,
        epoch=node_id * 10,
        incarnation_id="i",
        directory_id="d",
        host="h",
        port=1,
        status=status,
    )


@pytest.fixture
def image() -> Image:
    """t-0 on 1, 2 and 3, all in sync, led by 1; 4 to 6 have nothing to do with it."""
    return image_of(replicas=(1, 2, 3), isr=(1, 2, 3), leader=1)


def image_of(**fields: Any) -> Image:
    partition = PartitionRecord(
        topic_id=TOPIC_ID, partition=0, leader_epoch=5, partition_epoch=8, **fields
    )
    brokers = [broker(node_id) for node_id in range(1, 7)]
    return Image().apply([*brokers, TopicRecord(name="t", topic_id=TOPIC_ID), partition])


def of(image: Image) -> PartitionRecord:
    return image.topics["t"].partitions[0]


def reassign(
    image: Image, replicas: Sequence[int] | None, *, may_change_factor: bool = True, index: int = 0
) -> tuple[Image, int]:
    wanted = None if replicas is None else tuple(replicas)
    each = Reassignment(topic_id=TOPIC_ID, partition=index, replicas=wanted)
    command = ReassignPartitions(reassignments=(each,), may_change_factor=may_change_factor)
    decision = decide(image, command, CONFIG, 100)
    ((code, _),) = decision.response
    return image.apply(decision.records), code


def in_sync(image: Image, *isr: int) -> Image:
    """The leader proposes an in-sync set."""
    partition = of(image)
    change = InSyncChange(
        topic_id=TOPIC_ID,
        partition=0,
        isr=isr,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        broker_epochs={each: each * 10 for each in isr},
    )
    leader = partition.leader
    command = UpdateISR(node_id=leader, broker_epoch=leader * 10, changes=(change,))
    decision = decide(image, command, CONFIG, 100)
    assert decision.response == (ErrorCode.NONE,)
    return image.apply(decision.records)


def test_a_move_ends_when_all_that_are_added_are_in_sync(image: Image) -> None:
    image, code = reassign(image, (4, 5, 1))
    begun = of(image)
    assert code == ErrorCode.NONE
    assert (begun.replicas, begun.isr, begun.leader) == ((4, 5, 1, 2, 3), (1, 2, 3), 1)
    assert (begun.adding_replicas, begun.removing_replicas) == ((4, 5), (2, 3))
    assert begun.leader_epoch == 5
    assert [each.partition for _, each in under_way(image)] == [0]
    image = in_sync(image, 1, 2, 3, 4)
    assert of(image).is_moving
    image = in_sync(image, 1, 2, 3, 4, 5)
    done = of(image)
    assert (done.replicas, done.isr, done.leader) == ((4, 5, 1), (4, 5, 1), 1)
    assert not done.is_moving
    assert done.leader_epoch == 6  # Replicas have gone: what they said must not count any more.


def test_a_leader_that_goes_hands_over_to_the_first_that_stays(image: Image) -> None:
    image, _ = reassign(image, (5, 4))
    image = in_sync(image, 1, 4, 5)
    done = of(image)
    assert (done.replicas, done.isr, done.leader, done.leader_epoch) == ((5, 4), (5, 4), 5, 6)


def test_who_stays_and_lags_does_not_hold_up_the_end(image: Image) -> None:
    image, _ = reassign(image, (1, 2, 4))
    assert of(in_sync(image, 1, 3, 4)).isr == (1, 4)


def test_a_replica_goes_at_once_if_somebody_stays_who_is_in_sync(image: Image) -> None:
    image, code = reassign(image, (2,))
    done = of(image)
    assert (code, done.replicas, done.isr, done.leader) == (0, (2,), (2,), 2)


def test_nobody_goes_while_whoever_stays_has_nothing() -> None:
    image, _ = reassign(image_of(replicas=(1, 2), isr=(1,), leader=1), (2,))
    assert (of(image).removing_replicas, of(image).leader) == ((1,), 1)
    assert of(in_sync(image, 1, 2)).replicas == (2,)


def test_another_order_is_done_at_once_and_in_the_same_leader_epoch(image: Image) -> None:
    image, _ = reassign(image, (3, 1, 2))
    assert (of(image).replicas, of(image).leader, of(image).leader_epoch) == ((3, 1, 2), 1, 5)
    assert not of(image).is_moving
    assert reassign(image, (3, 1, 2))[0] == image


def test_a_move_is_undone(image: Image) -> None:
    image, _ = reassign(image, (4, 5))
    image = in_sync(image, 1, 2, 3, 4)
    image, code = reassign(image, None)
    back = of(image)
    assert code == ErrorCode.NONE
    assert (set(back.replicas), set(back.isr), back.leader) == ({1, 2, 3}, {1, 2, 3}, 1)
    assert not back.is_moving
    assert reassign(image, None)[1] == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def test_a_move_is_not_undone_if_that_would_lose_the_data() -> None:
    image = image_of(
        replicas=(4, 5, 1), isr=(4,), leader=4, adding_replicas=(4, 5), removing_replicas=(1,)
    )
    assert reassign(image, None)[1] == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_a_leader_that_was_added_hands_back_when_a_move_is_undone() -> None:
    image = image_of(
        replicas=(4, 5, 1), isr=(4, 1), leader=4, adding_replicas=(4, 5), removing_replicas=(1,)
    )
    image, _ = reassign(image, None)
    assert (of(image).replicas, of(image).isr, of(image).leader) == ((1,), (1,), 1)


def test_a_move_changes_its_aim(image: Image) -> None:
    image, _ = reassign(image, (4, 5, 1))
    image, _ = reassign(image, (5, 6, 1))
    now = of(image)
    assert now.replicas == (5, 6, 1, 4, 2, 3)
    assert (now.adding_replicas, now.removing_replicas) == ((5, 6), (4, 2, 3))


@pytest.mark.parametrize(
    ("replicas", "code"),
    [
        ((), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ((4, 4), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ((4, 99), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ((-1,), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
    ],
)
def test_what_cannot_be_is_refused(image: Image, replicas: Any, code: ErrorCode) -> None:
    after, found = reassign(image, replicas)
    assert (after, found) == (image, code)


def test_a_partition_that_is_not_there_is_refused(image: Image) -> None:
    assert reassign(image, (4,), index=7)[1] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_another_replication_factor_can_be_forbidden(image: Image) -> None:
    factor = ErrorCode.INVALID_REPLICATION_FACTOR
    assert reassign(image, (4, 5), may_change_factor=False)[1] == factor
    image, code = reassign(image, (4, 5, 6), may_change_factor=False)
    assert code == ErrorCode.NONE
    # While it moves there are more; what counts is how many there were.
    assert reassign(image, (1, 2, 3), may_change_factor=False)[1] == ErrorCode.NONE


def test_a_moving_partition_is_the_same_from_the_log(image: Image) -> None:
    image, _ = reassign(image, (4, 5, 1))
    assert decode_records(encode_records([of(image)])) == [of(image)]
    # A record of a release that knew no moves.
    old = encode_records([of(image)]).replace(b'"adding_replicas":[4,5],', b"")
    (record,) = decode_records(old)
    assert isinstance(record, PartitionRecord)
    assert record.adding_replicas == ()


replicas = st.permutations(range(1, 7)).flatmap(
    lambda ids: st.integers(1, 4).map(lambda count: tuple(ids[:count]))
)


@settings(deadline=None)  # a busy machine is no error
@given(st.lists(st.none() | replicas | st.sets(st.integers(1, 6), min_size=1), max_size=12))
def test_whoever_is_in_sync_is_a_replica_whatever_happens(steps: list[Any]) -> None:
    """Moves, undone moves and in-sync sets in any order: somebody always has the data."""
    image = image_of(replicas=(1, 2, 3), isr=(1, 2, 3), leader=1)
    for step in steps:
        before = of(image)
        if isinstance(step, set):
            isr = {before.leader, *(step & set(before.replicas))}
            image = in_sync(image, *isr)
        else:
            image, _ = reassign(image, step)
        now = of(image)
        assert now.isr
        assert set(now.isr) <= set(now.replicas)
        assert now.leader in now.isr
        assert set(now.adding_replicas) | set(now.removing_replicas) <= set(now.replicas)
        assert not set(now.adding_replicas) & set(now.removing_replicas)
        assert set(now.isr) & {*before.isr, *(step if isinstance(step, set) else ())}
        gone = set(before.replicas) - set(now.replicas)
        assert now.leader_epoch - before.leader_epoch == bool(gone or now.leader != before.leader)
        assert now.partition_epoch - before.partition_epoch == (now != before)
