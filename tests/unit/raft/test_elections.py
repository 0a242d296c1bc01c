"""Elections, a test for each sentence that safety and liveness rest on."""

import pytest
from raft_script import Group, Member

from chronik.raft.messages import AppendEntries, RequestVote, TimeoutNow, VoteReply
from chronik.raft.types import (
    Entry,
    EntryKind,
    HardState,
    Membership,
    RaftConfig,
    Role,
)

THREE = Membership(frozenset({1, 2, 3}))
MIN_MS = RaftConfig(node_id=1).election_ms_min
MAX_MS = RaftConfig(node_id=1).election_ms_max


def member(node_id=1, founding=THREE, *, terms=(), free=True, **state):
    """A node with a log of these terms; free of its promise unless told."""
    entries = [
        Entry(term=term, index=index, kind=EntryKind.COMMAND) for index, term in enumerate(terms, 1)
    ]
    state.setdefault("term", max(terms, default=0))
    found = Member(
        RaftConfig(node_id=node_id, directory_id="here"),
        founding,
        state=HardState(**state),
        entries=entries,
    )
    if free:
        found.now_ms = MIN_MS
    return found


def vote(term, sender=2, last=(0, 0), **options):
    last_term, last_index = last
    return RequestVote(
        term=term, sender=sender, recipient=1, last_term=last_term, last_index=last_index, **options
    )


def heartbeat(term, sender=2):
    return AppendEntries(term=term, sender=sender, recipient=1, previous_index=0, previous_term=0)


def granted(term, sender, *, is_pre_vote=False, is_granted=True):
    return VoteReply(
        term=term, sender=sender, recipient=1, is_pre_vote=is_pre_vote, is_granted=is_granted
    )


def pre_candidate():
    found = member()
    found.tick(MAX_MS)
    assert found.node.role is Role.PRE_CANDIDATE
    return found


def candidate():
    found = pre_candidate()
    found.step(granted(1, 2, is_pre_vote=True))
    assert found.node.role is Role.CANDIDATE
    return found


# Standing for election.


def test_a_follower_that_hears_nobody_asks_for_pre_votes_and_changes_nothing():
    found = member(term=4)
    sent = found.tick(MAX_MS)
    assert [(each.recipient, each.term, each.is_pre_vote) for each in sent] == [
        (2, 5, True),
        (3, 5, True),
    ]
    assert found.node.term == 4
    assert found.state == HardState(term=4)


def test_a_majority_of_pre_votes_begins_a_term_with_a_vote_for_itself():
    found = candidate()
    assert found.state == HardState(term=1, vote=1)


def test_a_candidate_asks_for_votes_once_its_own_is_saved():
    found = pre_candidate()
    found.node.step(granted(1, 2, is_pre_vote=True), found.now_ms)
    found.pump()
    assert found.outbox == []
    sent = found.drain()
    assert [(each.recipient, each.term, each.is_pre_vote) for each in sent] == [
        (2, 1, False),
        (3, 1, False),
    ]


def test_a_majority_of_votes_makes_a_leader_with_an_entry_of_its_term():
    found = candidate()
    sent = found.step(granted(1, 3))
    assert found.node.role is Role.LEADER
    assert found.node.leader_id == 1
    assert [(each.recipient, each.entries[0].kind) for each in sent] == [
        (2, EntryKind.NO_OP),
        (3, EntryKind.NO_OP),
    ]


def test_a_vote_counts_once():
    found = member(founding=Membership(frozenset(range(1, 6))))
    found.tick(MAX_MS)
    for _ in range(5):
        found.step(granted(1, 2, is_pre_vote=True))
    assert found.node.role is Role.PRE_CANDIDATE


def test_a_vote_of_nobody_known_does_not_count():
    found = candidate()
    found.step(granted(1, 9))
    assert found.node.role is Role.CANDIDATE


def test_a_vote_of_another_term_does_not_count():
    found = candidate()
    found.step(granted(0, 2))
    assert found.node.role is Role.CANDIDATE


def test_a_pre_vote_is_no_vote():
    found = candidate()
    found.step(granted(2, 2, is_pre_vote=True))
    assert found.node.role is Role.CANDIDATE


def test_a_majority_of_refusals_ends_a_campaign():
    found = candidate()
    found.step(granted(1, 2, is_granted=False))
    found.step(granted(1, 3, is_granted=False))
    assert found.node.role is Role.FOLLOWER


def test_a_refusal_teaches_a_later_term():
    found = pre_candidate()
    found.step(granted(7, 2, is_pre_vote=True, is_granted=False))
    assert (found.node.role, found.node.term) == (Role.FOLLOWER, 7)
    assert found.state == HardState(term=7)


def test_a_leader_of_the_same_term_ends_a_campaign():
    found = candidate()
    found.step(heartbeat(1, sender=3))
    assert (found.node.role, found.node.leader_id) == (Role.FOLLOWER, 3)


def test_a_candidate_that_is_not_elected_asks_again_first():
    found = candidate()
    sent = found.tick(MAX_MS)
    assert found.node.term == 1
    assert all(each.is_pre_vote for each in sent)


def test_a_candidate_with_a_slow_disk_waits_for_it():
    found = pre_candidate()
    found.node.step(granted(1, 2, is_pre_vote=True), found.now_ms)
    found.pump()
    for _ in range(20):
        found.now_ms += MAX_MS
        found.node.tick(found.now_ms)
        found.pump()
    assert (found.node.role, found.node.term) == (Role.CANDIDATE, 1)


def test_the_others_have_their_time_once_they_are_asked():
    found = pre_candidate()
    found.node.step(granted(1, 2, is_pre_vote=True), found.now_ms)
    found.pump()
    found.now_ms += MIN_MS - 1
    found.node.tick(found.now_ms)
    found.drain()
    assert found.node.next_deadline_ms >= found.now_ms + MIN_MS


def test_a_group_of_one_elects_itself_at_once():
    found = member(founding=Membership(frozenset({1})), free=False)
    assert found.tick(0) == []
    assert (found.node.role, found.node.commit_index) == (Role.LEADER, 1)
    assert found.node.has_lease(0)


def test_a_group_of_one_with_a_slow_disk_begins_one_term():
    found = member(founding=Membership(frozenset({1})), free=False)
    for now_ms in range(0, 5_000, 10):
        found.node.tick(now_ms)
        found.pump()
    assert found.node.term == 1
    assert found.node.role is not Role.LEADER
    found.save()
    assert found.node.role is Role.LEADER


@pytest.mark.parametrize(
    "founding",
    [
        Membership(),
        Membership(frozenset({2, 3})),
        Membership(frozenset({2, 3}), frozenset({1})),
        Membership(frozenset({1, 2, 3}), directories={1: "elsewhere"}),
        Membership(frozenset({1}), directories={1: "elsewhere"}),
    ],
)
def test_who_is_no_voter_never_campaigns(founding):
    found = member(founding=founding)
    for _ in range(10):
        assert found.tick(MAX_MS) == []
    assert found.node.role is Role.FOLLOWER
    assert found.node.next_deadline_ms > found.now_ms
    assert found.step(TimeoutNow(term=1, sender=2, recipient=1)) == []


# Voting.


def test_a_vote_is_saved_before_it_is_sent():
    found = member()
    found.node.step(vote(1), found.now_ms)
    found.pump()
    assert found.outbox == []
    assert found.drain() == [
        VoteReply(term=1, sender=1, recipient=2, is_pre_vote=False, is_granted=True)
    ]
    assert found.state == HardState(term=1, vote=2)


def test_one_vote_in_a_term():
    found = member()
    assert found.step(vote(1, 2))[0].is_granted
    assert not found.step(vote(1, 3))[0].is_granted
    assert found.step(vote(1, 2))[0].is_granted


def test_a_vote_is_remembered_over_a_restart():
    found = member(term=1, vote=2)
    assert not found.step(vote(1, 3))[0].is_granted


def test_a_later_term_is_a_new_vote():
    found = member(term=1, vote=2)
    assert found.step(vote(2, 3))[0].is_granted


def test_an_earlier_term_is_refused_with_ours():
    (reply,) = member(term=5).step(vote(4))
    assert (reply.term, reply.is_granted) == (5, False)


@pytest.mark.parametrize("is_pre_vote", [False, True])
@pytest.mark.parametrize(
    ("last", "is_granted"), [((2, 3), True), ((3, 1), True), ((2, 2), False), ((1, 9), False)]
)
def test_nobody_votes_for_a_log_that_lacks_something(last, is_granted, is_pre_vote):
    found = member(terms=(1, 2, 2))
    (reply,) = found.step(vote(3, last=last, is_pre_vote=is_pre_vote))
    assert reply.is_granted is is_granted


def test_a_pre_vote_changes_nothing_and_waits_for_no_disk():
    found = member(term=3)
    found.node.step(vote(4, is_pre_vote=True), found.now_ms)
    found.pump()
    assert found.outbox == [
        VoteReply(term=4, sender=1, recipient=2, is_pre_vote=True, is_granted=True)
    ]
    assert (found.node.term, found.node.state.vote) == (3, None)


def test_a_pre_vote_for_a_term_that_has_begun_is_refused():
    (reply,) = member(term=4).step(vote(4, is_pre_vote=True))
    assert (reply.term, reply.is_granted) == (4, False)


def test_a_learner_votes_when_a_candidate_says_it_is_a_voter():
    found = member(founding=Membership(frozenset({2}), frozenset({1})))
    assert found.step(vote(1))[0].is_granted


@pytest.mark.parametrize(
    "founding",
    [
        Membership(),
        Membership(frozenset({2, 3})),
        Membership(frozenset({1, 2, 3}), directories={1: "elsewhere"}),
    ],
)
@pytest.mark.parametrize("is_pre_vote", [False, True])
def test_who_is_no_member_with_this_directory_does_not_vote(founding, is_pre_vote):
    assert member(founding=founding).step(vote(9, is_pre_vote=is_pre_vote)) == []


# The promise that leases rest on.


@pytest.mark.parametrize("is_pre_vote", [False, True])
def test_a_voter_that_heard_a_leader_gives_no_answer(is_pre_vote):
    found = member()
    found.step(heartbeat(1, sender=3))
    found.now_ms += MIN_MS - 1
    assert found.step(vote(2, is_pre_vote=is_pre_vote)) == []
    assert found.node.term == 1
    found.now_ms += 1
    assert found.step(vote(2, is_pre_vote=is_pre_vote))[0].is_granted


@pytest.mark.parametrize("is_pre_vote", [False, True])
def test_a_node_that_was_just_started_gives_no_answer(is_pre_vote):
    found = member(free=False)
    found.now_ms = MIN_MS - 1
    assert found.step(vote(1, is_pre_vote=is_pre_vote)) == []
    found.now_ms = MIN_MS
    assert found.step(vote(1, is_pre_vote=is_pre_vote))[0].is_granted


def test_a_node_that_was_just_started_does_not_campaign():
    found = member(free=False)
    assert found.node.next_deadline_ms >= MIN_MS
    assert found.tick(MIN_MS - 1) == []


def test_the_silence_lasts_longer_than_any_lease():
    config = RaftConfig(node_id=1)
    assert config.election_ms_min > config.lease_ms


def test_a_promise_outlives_a_change_of_term():
    found = member()
    found.step(heartbeat(1, sender=3))
    found.step(granted(5, 3, is_granted=False))
    assert found.node.term == 5
    assert found.step(vote(6)) == []


def test_a_leader_that_is_heard_votes_for_nobody():
    group = Group()
    leader = group.elect(1)
    leader.step(vote(9), group.now_ms)
    assert (leader.role, leader.term) == (Role.LEADER, 1)


def test_a_leader_that_hands_over_sets_its_voters_free():
    found = member()
    found.step(heartbeat(1, sender=3))
    assert found.step(vote(2, is_transfer=True))[0].is_granted


def test_a_node_that_is_told_to_begin_asks_for_votes_at_once():
    found = member(free=False, term=1)
    sent = found.step(TimeoutNow(term=1, sender=2, recipient=1))
    assert [(each.term, each.is_pre_vote, each.is_transfer) for each in sent] == [
        (2, False, True),
        (2, False, True),
    ]


def test_an_old_word_to_begin_is_ignored():
    found = member(term=2)
    assert found.step(TimeoutNow(term=1, sender=2, recipient=1)) == []
    assert found.node.role is Role.FOLLOWER
