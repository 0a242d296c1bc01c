"""Who the members are, as a log says it."""

import pytest

from chronik.raft.members import Members, decode_membership, encode_membership, why_not
from chronik.raft.types import Entry, EntryKind, Membership, Snapshot


def of(voters, learners=(), **directories):
    named = {int(key[1:]): value for key, value in directories.items()}
    return Membership(frozenset(voters), frozenset(learners), named)


def configuration(index, membership):
    data = encode_membership(membership)
    return Entry(term=1, index=index, kind=EntryKind.CONFIGURATION, data=data)


FOUNDING = of({1, 2, 3})


def test_round_trip():
    membership = of({3, 1}, {2}, n1="a", n2="b")
    assert decode_membership(encode_membership(membership)) == membership


def test_people_can_read_it():
    assert encode_membership(of({2, 1}, (), n1="a")) == (
        b'{"directories": {"1": "a"}, "learners": [], "voters": [1, 2]}'
    )


@pytest.mark.parametrize(("count", "quorum"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_a_quorum_is_a_majority_of_voters(count, quorum):
    assert of(range(count), {9}).quorum == quorum


def test_the_newest_configuration_counts_as_soon_as_it_is_appended():
    members = Members.restore(FOUNDING, Snapshot(), [configuration(4, of({1, 2}))])
    assert members.current == of({1, 2})
    assert members.changed_index == 4
    assert members.at(3) == FOUNDING


def test_other_entries_and_repeated_ones_change_nothing():
    members = Members([(4, FOUNDING)])
    assert not members.note(Entry(term=1, index=5, kind=EntryKind.COMMAND, data=b"{}"))
    assert not members.note(configuration(4, of({1})))
    assert members.current == FOUNDING


def test_a_replaced_entry_takes_its_configuration_along():
    members = Members([(0, FOUNDING)])
    members.note(configuration(4, of({1, 2})))
    members.truncate(5)
    assert members.current == of({1, 2})
    members.truncate(4)
    assert members.current == FOUNDING


def test_a_snapshot_keeps_the_configuration_of_its_time():
    members = Members.restore(
        FOUNDING, Snapshot(), [configuration(4, of({1, 2})), configuration(9, of({1}))]
    )
    members.compact(6)
    assert members.history == [(6, of({1, 2})), (9, of({1}))]
    members.reset(Snapshot(20, 3, FOUNDING))
    assert members.current == FOUNDING


def test_a_snapshot_says_who_the_members_are_at_a_start():
    members = Members.restore(FOUNDING, Snapshot(7, 1, of({5})), [])
    assert (members.changed_index, members.current) == (7, of({5}))


@pytest.mark.parametrize(
    ("old", "after", "reason"),
    [
        (of({1}), of(()), "one voter must remain"),
        (of({1, 2}), of({1, 2}, {2}), "not both"),
        (of({1, 2, 3}), of({1}), "one voter"),
        (of({1}, {2, 3}), of({1, 2, 3}), "one voter"),
        (of({1}), of({1, 2}), "must have been a learner"),
        (of({1, 2}, (), n2="a"), of({1, 2}, (), n2="b"), "another directory"),
        (of({1, 2}, (), n2="a"), of({1}, {2}), "another directory"),
        (of({1}), of({1}, {2}), None),
        (of({1}, {2}), of({1, 2}), None),
        (of({1, 2}, {3, 4}), of({1, 2}), None),
        (of({1, 2}), of({2}), None),
        (of({1, 2}, (), n2="a"), of({1}), None),
        (of({1, 2}), of({1, 2}, (), n2="a"), None),
    ],
)
def test_one_step_at_a_time(old, after, reason):
    found = why_not(old, after)
    assert (found is None) if reason is None else (reason in (found or ""))
