"""One member's way to its target: give back, move on, take over."""

import pytest

from chronik.coordinator.consumer.group import ConsumerMember, MemberState
from chronik.coordinator.consumer.reconciliation import reconcile

A, B = b"a" * 16, b"b" * 16
STABLE, UNREVOKED, UNRELEASED = (
    MemberState.STABLE,
    MemberState.UNREVOKED_PARTITIONS,
    MemberState.UNRELEASED_PARTITIONS,
)


def member(epoch, assigned, state=STABLE, pending=None):
    return ConsumerMember(
        member_id="m",
        member_epoch=epoch,
        previous_member_epoch=epoch,
        state=state,
        assigned={topic: dict.fromkeys(each, 1) for topic, each in assigned.items()},
        pending_revocation={
            topic: dict.fromkeys(each, 1) for topic, each in (pending or {}).items()
        },
    )


def step(start, epoch, target, *, taken=(), reported=None, subscribed=(A, B), changed=False):
    return reconcile(
        start,
        target_epoch=epoch,
        target={topic: frozenset(each) for topic, each in target.items()},
        subscribed_ids=frozenset(subscribed),
        is_owned=lambda topic, partition: (topic, partition) in taken,
        reported=reported,
        subscription_changed=changed,
    )


def shape(after):
    return (
        after.state,
        after.member_epoch,
        {topic: set(each) for topic, each in after.assigned.items()},
        {topic: set(each) for topic, each in after.pending_revocation.items()},
    )


def test_a_stable_member_at_its_target_stays():
    start = member(3, {A: {0}})
    assert step(start, 3, {A: {0}}) is start


def test_what_is_free_is_handed_out_at_once():
    after = step(member(1, {A: {0}}), 2, {A: {0, 1}})
    assert shape(after) == (STABLE, 2, {A: {0, 1}}, {})
    assert after.previous_member_epoch == 1
    assert after.assigned == {A: {0: 1, 1: 2}}, "each with the epoch in which it was given"


def test_what_is_owned_by_another_is_waited_for():
    after = step(member(1, {A: {0}}), 2, {A: {0, 1}, B: {0}}, taken={(A, 1)})
    assert shape(after) == (UNRELEASED, 2, {A: {0}, B: {0}}, {})
    assert step(after, 2, {A: {0, 1}, B: {0}}, taken={(A, 1)}) is after
    assert shape(step(after, 2, {A: {0, 1}, B: {0}})) == (STABLE, 2, {A: {0, 1}, B: {0}}, {})


def test_partitions_are_given_back_before_the_epoch_moves():
    start = member(1, {A: {0, 1, 2}})
    after = step(start, 2, {A: {0}, B: {0}}, reported={A: {0, 1, 2}})
    assert shape(after) == (UNREVOKED, 1, {A: {0}}, {A: {1, 2}})


@pytest.mark.parametrize("reported", [None, {A: {0, 1}}, {A: {1}}])
def test_a_member_that_does_not_let_go_stays(reported):
    start = member(1, {A: {0}}, UNREVOKED, {A: {1}})
    assert step(start, 2, {A: {0}}, reported=reported) is start


@pytest.mark.parametrize("reported", [{A: {0}}, {}, {B: {1}}])
def test_a_member_that_lets_go_moves_on(reported):
    start = member(1, {A: {0}}, UNREVOKED, {A: {1}})
    after = step(start, 2, {A: {0}, B: {5}}, reported=reported, taken={(A, 1)})
    assert shape(after) == (STABLE, 2, {A: {0}, B: {5}}, {})


def test_a_later_target_may_take_more_while_it_gives_back():
    start = member(1, {A: {0, 1}}, UNREVOKED, {A: {2}})
    after = step(start, 3, {A: {0}}, reported={A: {0, 1}})
    assert shape(after) == (UNREVOKED, 1, {A: {0}}, {A: {1}})


def test_a_later_target_may_give_again_what_was_given_back():
    start = member(1, {A: {0}}, UNREVOKED, {A: {1}})
    after = step(start, 3, {A: {0, 1}}, reported={A: {0}}, taken={(A, 0), (A, 1)})
    assert shape(after) == (STABLE, 3, {A: {0, 1}}, {})
    assert after.assigned[A] == {0: 1, 1: 3}


def test_what_is_given_back_already_is_not_waited_for():
    after = step(member(1, {A: {0, 1}}), 2, {A: {0}}, reported={A: {0}})
    assert shape(after) == (STABLE, 2, {A: {0}}, {})


def test_a_target_is_not_followed_into_unsubscribed_topics():
    after = step(member(1, {A: {0}}), 2, {A: {0}, B: {0}}, subscribed=[A])
    assert shape(after) == (STABLE, 2, {A: {0}}, {})


def test_unsubscribing_takes_back_before_there_is_a_target():
    start = member(2, {A: {0}, B: {0}})
    after = step(start, 2, {A: {0}, B: {0}}, subscribed=[A], changed=True, reported={B: {0}})
    assert shape(after) == (UNREVOKED, 2, {A: {0}}, {B: {0}})
    done = step(start, 2, {A: {0}, B: {0}}, subscribed=[A], changed=True, reported={A: {0}})
    assert shape(done) == (STABLE, 2, {A: {0}}, {})


def test_unsubscribing_while_giving_back_adds_to_it():
    start = member(2, {A: {0}, B: {0}}, UNREVOKED, {B: {1}})
    after = step(start, 3, {A: {0}}, subscribed=[A], changed=True, reported=None)
    assert shape(after) == (UNREVOKED, 2, {A: {0}}, {B: {0, 1}})


def test_a_member_in_an_unknown_state_begins_anew():
    after = step(member(2, {A: {0}}, MemberState.UNKNOWN), 3, {A: {0}}, reported={})
    assert shape(after) == (STABLE, 3, {A: {0}}, {})
