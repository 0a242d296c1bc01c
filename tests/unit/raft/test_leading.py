"""What a leader does, a test for each sentence that we rely on."""

import pytest
from raft_script import Group

from chronik.raft.leading import NotLeader, NotNow
from chronik.raft.messages import AppendEntries, AppendReply, InstallSnapshot, TimeoutNow
from chronik.raft.types import Membership, RaftConfig, Role

CONFIG = RaftConfig(node_id=1)


def led(count=3, voters=None, **settings):
    """A group that node 1 leads."""
    group = Group(count, voters, **settings)
    return group, group.elect(1)


def reply(sender, term=1, **fields):
    return AppendReply(term=term, sender=sender, recipient=1, **{"is_accepted": True, **fields})


def cut_off(group, node_id):
    group.cut |= {frozenset({node_id, other}) for other in group.members if other != node_id}


def beat(group, for_ms=CONFIG.heartbeat_ms):
    """Let time pass, and messages move, as often as a heart beats."""
    for _ in range(0, for_ms, CONFIG.heartbeat_ms):
        group.pass_time(CONFIG.heartbeat_ms)
        group.stabilize()


# Committing.


def test_only_a_leader_takes_proposals():
    group, _ = led()
    with pytest.raises(NotLeader) as refusal:
        group[2].propose(b"x")
    assert refusal.value.leader_id == 1


def test_an_entry_is_committed_once_a_majority_has_saved_it():
    group, leader = led()
    index = leader.propose(b"x")
    group.members[1].save()
    assert leader.commit_index == index - 1
    leader.step(reply(2, match_index=index, held_index=index), group.now_ms)
    assert leader.commit_index == index


def test_the_leaders_own_disk_is_one_of_the_majority():
    group, leader = led()
    index = leader.propose(b"x")
    group.members[1].pump()
    leader.step(reply(2, match_index=index, held_index=index), group.now_ms)
    assert leader.commit_index == index - 1
    group.members[1].save()
    assert leader.commit_index == index


def test_a_majority_without_the_leaders_disk_is_enough():
    group, leader = led()
    index = leader.propose(b"x")
    group.members[1].pump()
    for follower in (2, 3):
        leader.step(reply(follower, match_index=index, held_index=index), group.now_ms)
    assert leader.commit_index == index


def test_what_a_follower_holds_unsaved_does_not_count():
    group, leader = led()
    index = leader.propose(b"x")
    group.members[1].save()
    leader.step(reply(2, match_index=index - 1, held_index=index), group.now_ms)
    assert leader.commit_index == index - 1


def test_a_learner_does_not_count():
    group, leader = led(4, 3)
    leader.propose_membership(Membership(frozenset({1, 2, 3}), frozenset({4})))
    group.stabilize()
    index = leader.propose(b"x")
    group.members[1].save()
    leader.step(reply(4, match_index=index, held_index=index), group.now_ms)
    assert leader.commit_index == index - 1


def test_an_entry_of_an_earlier_term_is_committed_by_one_of_the_own():
    group, leader = led()
    cut_off(group, 1)
    leader.propose(b"x")
    group.collect()
    group.crash(1)
    group.start(1)
    group.cut.clear()
    group.forget_promises()
    group.hurry(1)
    while group[1].role is not Role.LEADER:
        group.deliver()
    leader = group[1]
    group.members[1].save()
    leader.step(reply(2, 2, match_index=2, held_index=2), group.now_ms)
    assert leader.commit_index == 1
    leader.step(reply(2, 2, match_index=3, held_index=3), group.now_ms)
    assert leader.commit_index == 3


def test_followers_learn_the_commit_index_without_waiting_for_a_heartbeat():
    group, leader = led()
    index = leader.propose(b"x")
    group.stabilize()
    assert [group[each].commit_index for each in (1, 2, 3)] == [index] * 3


# Replicating.


def test_proposals_of_one_turn_are_one_message():
    group, leader = led()
    for _ in range(100):
        leader.propose(b"x")
    sent = group.members[1].drain()
    assert [len(each.entries) for each in sent] == [100, 100]


def test_entries_are_sent_ahead_of_the_replies():
    group, leader = led()
    first, second = leader.propose(b"x"), None
    group.members[1].drain()
    second = leader.propose(b"y")
    sent = group.members[1].drain()
    assert [each.previous_index for each in sent] == [first, first]
    assert [each.entries[0].index for each in sent] == [second, second]


def test_as_many_as_may_be_on_their_way():
    group, leader = led(inflight_max=2)
    counts = []
    for _ in range(4):
        leader.propose(b"x")
        counts.append(len(group.members[1].drain()))
    assert counts == [2, 2, 0, 0]


def test_large_entries_go_in_several_messages():
    group, leader = led(append_bytes_max=10)
    for _ in range(3):
        leader.propose(b"12345678")
    sent = [each for each in group.members[1].drain() if each.recipient == 2]
    assert [len(each.entries) for each in sent] == [1, 1, 1]


def test_a_lost_append_is_found_by_the_next_heartbeat():
    group, leader = led()
    cut_off(group, 1)
    leader.propose(b"x")
    group.stabilize()
    group.cut.clear()
    beat(group)
    assert group[3].commit_index == leader.commit_index == leader.log.last_index


def test_a_lost_append_is_found_even_if_the_leader_has_forgotten_it():
    group, leader = led(inflight_max=1)
    group.cut.add(frozenset({1, 3}))
    for _ in range(3):
        leader.propose(b"x")
        group.stabilize()
    group.members[1].compact()
    group.cut.clear()
    beat(group, 4 * CONFIG.heartbeat_ms)
    assert group[3].log.snapshot.index == leader.log.snapshot.index
    assert group[3].commit_index == leader.commit_index


def test_a_follower_that_is_gone_gets_heartbeats_only():
    group, leader = led(inflight_max=1)
    leader.propose(b"x" * 1000)
    group.members[1].drain()
    group.pass_time(CONFIG.heartbeat_ms)
    sent = group.members[1].drain()
    assert [each.entries for each in sent] == [(), ()]


def test_a_follower_that_needs_what_is_forgotten_gets_a_snapshot_once():
    group, leader = led()
    group.crash(3)
    leader.propose(b"x")
    group.stabilize()
    group.members[1].compact()
    refusal = reply(3, is_accepted=False, conflict_index=1, conflict_term=1)
    leader.step(refusal, group.now_ms)
    sent = [each for each in group.members[1].drain() if each.recipient == 3]
    assert [type(each) for each in sent] == [InstallSnapshot]
    beats = []
    for _ in range(5):
        group.pass_time(CONFIG.heartbeat_ms)
        beats += [each for each in group.members[1].drain() if each.recipient == 3]
    assert {type(each) for each in beats} == {AppendEntries}
    leader.snapshot_failed(3)
    (again,) = [each for each in group.members[1].drain() if each.recipient == 3]
    assert isinstance(again, InstallSnapshot)
    for other in (2, 9):
        leader.snapshot_failed(other)  # It got none.
    assert group.members[1].drain() == []


def test_a_lost_answer_to_a_snapshot_is_found_by_the_next_heartbeat():
    group, leader = led()
    group.crash(3)
    leader.propose(b"x")
    group.stabilize()
    group.members[1].compact()
    group.start(3)
    beat(group)
    leader.propose(b"y")
    group.stabilize()
    assert group[3].commit_index == leader.commit_index


def test_late_and_repeated_replies_are_harmless():
    group, leader = led()
    for _ in range(5):
        leader.propose(b"x")
    group.stabilize()
    before = leader.commit_index, leader.progress[2].match_index
    for late in (
        reply(2, match_index=1, held_index=1),
        reply(2, is_accepted=False),
        reply(2, is_accepted=False, conflict_index=3, conflict_term=1),
        reply(2, 0, match_index=9, held_index=9),
        reply(9, match_index=9, held_index=9),
    ):
        leader.step(late, group.now_ms)
        group.stabilize()
    assert (leader.commit_index, leader.progress[2].match_index) == before
    assert leader.role is Role.LEADER


def test_a_reply_of_a_later_term_ends_a_leadership():
    group, leader = led()
    leader.step(reply(2, 7, is_accepted=False), group.now_ms)
    assert (leader.role, leader.term, leader.leader_id) == (Role.FOLLOWER, 7, None)


# Leases and reads.


def test_a_lease_counts_from_when_the_heartbeat_was_sent():
    group, leader = led()
    group.pass_time(CONFIG.heartbeat_ms)
    sent_ms = group.now_ms
    group.collect()
    group.pass_time(50)
    group.stabilize()
    group.cut |= {frozenset({1, 2}), frozenset({1, 3})}
    assert leader.has_lease(sent_ms + CONFIG.lease_ms - 1)
    assert not leader.has_lease(sent_ms + CONFIG.lease_ms)


def test_no_lease_before_an_entry_of_the_own_term_is_committed():
    group = Group()
    group.campaign(1)
    while group[1].role is not Role.LEADER:
        group.deliver()
    leader = group[1]
    leader.step(reply(2, round=leader._round), group.now_ms)
    assert not leader.has_lease(group.now_ms)


def test_a_read_under_a_lease_is_answered_at_once():
    group, leader = led()
    leader.read_index("r", group.now_ms)
    ready = leader.ready()
    assert ready.reads == (("r", leader.commit_index),)
    assert ready.messages == ()


def test_a_read_without_a_lease_waits_for_a_heartbeat_sent_after_it():
    group, leader = led()
    group.now_ms += CONFIG.lease_ms
    old = leader._round
    leader.read_index("r", group.now_ms)
    member = group.members[1]
    assert len(member.drain()) == 2
    leader.step(reply(2, round=old), group.now_ms)
    assert member.drain() == []
    assert member.reads == []
    leader.step(reply(2, round=old + 1), group.now_ms)
    member.pump()
    assert member.reads == [("r", leader.commit_index)]


def test_many_reads_need_one_heartbeat():
    group, leader = led()
    group.now_ms += CONFIG.lease_ms
    for number in range(100):
        leader.read_index(number, group.now_ms)
    assert len(group.members[1].drain()) == 2


def test_a_read_waits_until_the_leader_knows_what_was_committed():
    group = Group()
    group.campaign(1)
    while group[1].role is not Role.LEADER:
        group.deliver()
    leader = group[1]
    leader.read_index("r", group.now_ms)
    group.stabilize()
    assert group.members[1].reads == [("r", 1)]


def test_a_leader_without_a_quorum_steps_down():
    group, leader = led()
    cut_off(group, 1)
    beat(group, CONFIG.election_ms_max + CONFIG.election_ms_min + CONFIG.heartbeat_ms)
    assert leader.role is not Role.LEADER
    with pytest.raises(NotLeader):
        leader.read_index("r", group.now_ms)


def test_ready_tells_that_nobody_leads_any_more():
    group, leader = led()
    while leader.role is Role.LEADER:
        group.members[1].drain()
        group.now_ms += CONFIG.heartbeat_ms
        leader.tick(group.now_ms)
    ready = leader.ready()
    assert (ready.role, ready.leader_id) == (Role.FOLLOWER, None)
    assert not ready.must_sync


# Members.


def test_no_change_before_an_entry_of_the_own_term_is_committed():
    group = Group()
    group.campaign(1)
    while group[1].role is not Role.LEADER:
        group.deliver()
    with pytest.raises(NotNow, match="own term"):
        group[1].propose_membership(Membership(frozenset({1, 2})))


def test_one_change_at_a_time():
    group, leader = led()
    leader.propose_membership(Membership(frozenset({1, 2})))
    with pytest.raises(NotNow, match="under way"):
        leader.propose_membership(Membership(frozenset({1, 2, 3})))
    group.stabilize()
    leader.propose_membership(Membership(frozenset({1, 2}), frozenset({3})))


def test_a_change_counts_as_soon_as_it_is_appended():
    group, leader = led()
    group.crash(3)
    leader.propose_membership(Membership(frozenset({1, 2})))
    assert leader.membership.quorum == 2
    assert 3 not in leader.progress


def test_a_new_voter_has_caught_up():
    group, leader = led(4, 3)
    group.crash(4)
    leader.propose_membership(Membership(frozenset({1, 2, 3}), frozenset({4})))
    group.stabilize()
    with pytest.raises(NotNow, match="caught up"):
        leader.propose_membership(Membership(frozenset({1, 2, 3, 4})))
    group.start(4)
    beat(group)
    leader.propose_membership(Membership(frozenset({1, 2, 3, 4})))


def test_a_leader_that_is_removed_steps_down_once_that_is_committed():
    group, leader = led()
    leader.propose_membership(Membership(frozenset({2, 3})))
    group.members[1].save()
    assert leader.role is Role.LEADER
    group.stabilize()
    assert leader.role is Role.FOLLOWER
    assert group[2].commit_index == leader.commit_index == 2


# Handing over.


def test_a_transfer_ends_the_lease_and_stops_proposals():
    group, leader = led()
    assert leader.has_lease(group.now_ms)
    leader.transfer(2, group.now_ms)
    assert not leader.has_lease(group.now_ms)
    with pytest.raises(NotLeader) as refusal:
        leader.propose(b"x")
    assert refusal.value.leader_id == 2
    group.stabilize()
    assert group[2].role is Role.LEADER


def test_the_other_begins_once_it_has_everything():
    group, leader = led()
    index = leader.propose(b"x")
    group.members[1].drain()
    leader.transfer(2, group.now_ms)
    assert group.members[1].drain() == []
    leader.step(reply(2, match_index=index, held_index=index), group.now_ms)
    sent = group.members[1].drain()
    assert TimeoutNow(term=1, sender=1, recipient=2) in sent


def test_a_lost_word_to_begin_is_said_again():
    group, leader = led()
    leader.transfer(2, group.now_ms)
    group.members[1].drain()
    beat(group)
    assert group[2].role is Role.LEADER


def test_a_transfer_that_does_not_happen_is_given_up_and_the_lease_with_it():
    group, leader = led()
    leader.transfer(2, group.now_ms)
    group.collect()
    group.wire.clear()
    group.crash(2)
    beat(group, CONFIG.election_ms_max + CONFIG.heartbeat_ms)
    leader.propose(b"x")
    group.stabilize()
    assert leader.commit_index == 2
    assert not leader.has_lease(group.now_ms)


@pytest.mark.parametrize("to", [1, 4, 9])
def test_leadership_goes_to_another_voter(to):
    group, leader = led(4, 3)
    leader.propose_membership(Membership(frozenset({1, 2, 3}), frozenset({4})))
    group.stabilize()
    with pytest.raises(NotNow, match="no other voter"):
        leader.transfer(to, group.now_ms)
