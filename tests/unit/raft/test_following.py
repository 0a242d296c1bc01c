"""What a follower does, and what the runtime is told to save, a test for each sentence."""

import pytest
from raft_script import Member

from chronik.raft.members import encode_membership
from chronik.raft.messages import AppendEntries, InstallSnapshot
from chronik.raft.node import RaftNode
from chronik.raft.types import (
    Entry,
    EntryKind,
    HardState,
    Membership,
    RaftConfig,
    Role,
    Snapshot,
)

THREE = Membership(frozenset({1, 2, 3}))


def entry(index, term, data=b"", kind=EntryKind.COMMAND):
    return Entry(term=term, index=index, kind=kind, data=data)


def member(*terms, **state):
    entries = [entry(index, term) for index, term in enumerate(terms, 1)]
    state.setdefault("term", max(terms, default=0))
    return Member(RaftConfig(node_id=1), THREE, state=HardState(**state), entries=entries)


def append(term, previous=(0, 0), entries=(), commit=0, round_number=1):
    previous_term, previous_index = previous
    return AppendEntries(
        term=term,
        sender=2,
        recipient=1,
        previous_index=previous_index,
        previous_term=previous_term,
        entries=tuple(entries),
        commit_index=commit,
        round=round_number,
    )


def snapshot(index, term, leader_term=None, membership=THREE):
    found = Snapshot(index, term, membership)
    return InstallSnapshot(term=leader_term or term, sender=2, recipient=1, snapshot=found, round=1)


def terms(found):
    return [each.term for each in found.node.log.entries]


# Taking over.


def test_entries_after_a_common_one_are_taken_over():
    found = member(1)
    found.step(append(1, (1, 1), [entry(2, 1)]))
    assert terms(found) == [1, 1]
    assert found.entries == found.node.log.entries


def test_entries_after_another_one_are_refused():
    found = member(1)
    (reply,) = found.step(append(3, (2, 5), [entry(6, 3)]))
    assert (reply.is_accepted, reply.conflict_index, reply.conflict_term) == (False, 1, 1)


def test_a_refusal_skips_what_is_later_than_the_leader_has():
    found = member(1, 1, 3, 3, 3)
    (reply,) = found.step(append(5, (1, 4)))
    assert (reply.conflict_index, reply.conflict_term) == (2, 1)


def test_conflicting_entries_are_replaced():
    found = member(1, 2, 2)
    found.step(append(3, (1, 1), [entry(2, 3)]))
    assert terms(found) == [1, 3]
    assert found.entries == found.node.log.entries


def test_an_old_message_drops_nothing():
    found = member(1, 1, 1)
    found.step(append(1, (0, 0), [entry(1, 1)]))
    assert terms(found) == [1, 1, 1]


def test_the_commit_index_is_no_further_than_the_common_part():
    found = member(1, 1, 2)
    found.step(append(3, (1, 2), commit=9))
    assert found.node.commit_index == 2
    assert [each.index for each in found.applied] == [1, 2]


def test_the_commit_index_does_not_go_back():
    found = member(1, 1)
    found.step(append(1, (1, 2), commit=2))
    found.step(append(1, (1, 2), commit=1))
    assert found.node.commit_index == 2


def test_an_earlier_term_is_told_ours():
    found = member(term=5)
    (reply,) = found.step(append(4))
    assert (reply.term, reply.is_accepted) == (5, False)
    assert found.node.leader_id is None


def test_a_later_term_is_taken_over_and_saved():
    found = member(term=1, vote=3)
    found.step(append(4))
    assert found.state == HardState(term=4)
    assert (found.node.role, found.node.leader_id) == (Role.FOLLOWER, 2)


def test_a_configuration_counts_when_it_is_appended_and_goes_when_it_is_replaced():
    found = member(1)
    data = encode_membership(Membership(frozenset({1, 2})))
    found.step(append(1, (1, 1), [entry(2, 1, data, EntryKind.CONFIGURATION)]))
    assert found.node.membership.voters == {1, 2}
    found.step(append(2, (1, 1), [entry(2, 2)]))
    assert found.node.membership == THREE


# Saving.


def test_an_append_is_acknowledged_once_it_is_saved():
    found = member()
    found.node.step(append(1, entries=[entry(1, 1)]), 0)
    found.pump()
    (early,) = found.outbox
    assert (early.match_index, early.held_index) == (0, 1)
    assert found.drain()[-1].match_index == 1


def test_a_heartbeat_is_answered_while_the_disk_is_busy():
    found = member()
    found.node.step(append(1, entries=[entry(1, 1)]), 0)
    for number in range(2, 5):
        found.node.step(append(1, (1, 1), round_number=number), 0)
    found.pump()
    assert [(each.round, each.match_index) for each in found.outbox] == [
        (1, 0), (2, 0), (3, 0), (4, 0)
    ]  # fmt: skip


def test_entries_in_one_round_are_answered_once_when_they_are_saved():
    found = member()
    for index in (1, 2, 3):
        previous = (1, index - 1) if index > 1 else (0, 0)
        found.node.step(append(1, previous, [entry(index, 1)]), 0)
    found.pump()
    assert len(found.outbox) == 1
    assert [each.match_index for each in found.drain()] == [0, 1, 2, 3]


def test_the_saved_commit_index_is_never_beyond_the_saved_log():
    found = member()
    found.node.step(append(1, entries=[entry(1, 1), entry(2, 1)], commit=2), 0)
    ready = found.node.ready()
    assert ready.hard_state == HardState(term=1)
    assert len(ready.committed) == 2
    found.node.advance(ready)
    found.node.saved(ready)
    later = found.node.ready()
    assert later.hard_state == HardState(term=1, commit_index=2)
    assert not later.must_sync


def test_saves_end_in_the_order_in_which_they_began():
    found = member()
    readies = []
    for term in (1, 2):
        found.node.step(append(term), 0)
        readies.append(found.node.ready())
        found.node.advance(readies[-1])
    with pytest.raises(AssertionError, match="out of order"):
        found.node.saved(readies[1])


def test_entries_replaced_before_they_were_saved_are_not_saved():
    found = member(1)
    found.node.step(append(2, (1, 1), [entry(2, 2), entry(3, 2)]), 0)
    found.node.step(append(3, (1, 1), [entry(2, 3)]), 0)
    ready = found.node.ready()
    assert [(each.index, each.term) for each in ready.entries] == [(2, 3)]


def test_ready_is_empty_when_there_is_nothing_to_do():
    found = member(1)
    found.drain()
    assert found.node.ready() is None


# Snapshots.


def test_a_snapshot_takes_the_place_of_what_is_missing():
    found = member(1, 1)
    (first, last) = found.step(snapshot(9, 3))
    assert (first.match_index, last.match_index) == (0, 9)
    assert (found.node.commit_index, found.node.applied_index) == (9, 9)
    assert (found.snapshot.index, found.entries) == (9, [])


def test_entries_that_follow_a_snapshot_are_kept_if_they_fit():
    found = member(1, 1, 1)
    (reply,) = found.step(snapshot(2, 1))
    assert terms(found) == [1, 1, 1]
    assert found.node.commit_index == reply.match_index == 2


def test_entries_that_contradict_a_snapshot_go():
    found = member(1, 1, 1)
    found.step(snapshot(2, 2))
    assert found.node.log.last_index == 2
    assert found.entries == []


def test_an_old_snapshot_changes_nothing():
    found = member(1, 1, 1, commit_index=3)
    (reply,) = found.step(snapshot(2, 1))
    assert found.node.log.last_index == 3
    assert reply.match_index == 3


def test_a_snapshot_older_than_our_own_changes_nothing():
    found = member()
    found.step(snapshot(9, 3))
    (reply,) = found.step(snapshot(7, 2, leader_term=3))
    assert (found.snapshot.index, found.node.commit_index) == (9, 9)
    assert reply.match_index == 9


def test_a_snapshot_says_who_the_members_are():
    found = member()
    found.step(snapshot(9, 3, membership=Membership(frozenset({1, 2}))))
    assert found.node.membership.voters == {1, 2}


def test_entries_before_the_snapshot_are_answered_with_what_is_committed():
    found = member()
    found.step(snapshot(9, 3))
    (reply,) = found.step(append(3, (1, 4), [entry(5, 1)], round_number=2))
    assert (reply.is_accepted, reply.match_index) == (True, 9)


def test_entries_after_a_snapshot_follow_it():
    found = member()
    found.node.step(snapshot(9, 3), 0)
    found.node.step(append(3, (3, 9), [entry(10, 3)], commit=10), 0)
    ready = found.node.ready()
    assert ready.snapshot.index == 9
    assert [each.index for each in ready.entries] == [10]
    assert [each.index for each in ready.committed] == [10]


# Starting.


def restored(state, found=(), taken=None):
    return RaftNode.restore(
        RaftConfig(node_id=1),
        state=state,
        snapshot=taken or Snapshot(),
        entries=found,
        founding=THREE,
        jitter=lambda: 0.5,
        now_ms=0,
    )


def test_what_was_committed_is_applied_again_at_once():
    node = restored(HardState(term=1, commit_index=1), [entry(1, 1), entry(2, 1)])
    assert [each.index for each in node.ready().committed] == [1]


def test_a_snapshot_newer_than_the_saved_commit_index_counts():
    node = restored(HardState(term=1, commit_index=1), [entry(6, 1)], Snapshot(5, 1, THREE))
    assert (node.commit_index, node.applied_index) == (5, 5)
    assert node.ready().committed == ()


def test_a_log_that_ends_before_what_was_committed_is_refused():
    with pytest.raises(AssertionError, match="lost committed entries"):
        restored(HardState(term=1, commit_index=3), [entry(1, 1)])


def test_a_log_of_a_later_term_than_the_vote_is_refused():
    with pytest.raises(AssertionError, match="later term"):
        restored(HardState(term=1), [entry(1, 2)])


def test_time_does_not_go_back():
    node = restored(HardState())
    node.tick(300)
    node.tick(100)
    assert node.now_ms == 300


def test_a_lease_is_shorter_than_an_election():
    with pytest.raises(AssertionError):
        RaftConfig(node_id=1, lease_ms=400)
