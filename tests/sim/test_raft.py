"""Raft against a bad minute, many times over; and against bugs that were planted on purpose.

A campaign has at least 3 nodes, 60 virtual seconds, 200 proposals and 10 faults, and the promises
in `raft_promises` hold after every event. A failing seed prints its replay command.

Each planted bug has a schedule that is mean to it. The simulator notices it by a broken promise,
and the code without the bug keeps all promises under the same schedule.

`make sim` runs more seeds (CHRONIK_SIM_SEEDS).
"""

import os
from collections import Counter

import pytest
from raft_chaos import CAMPAIGN_MS, PROPOSALS, Campaign, chaos
from raft_promises import Broken
from raft_world import Weather, World

from chronik.raft.messages import AppendEntries, RequestVote, TimeoutNow
from chronik.raft.types import Role

SEEDS = int(os.environ.get("CHRONIK_SIM_SEEDS", "150"))
BATCH = 25
ONLY = os.environ.get("CHRONIK_SIM_SEED")  # replays one
FIRST_SEEDS = range(0, SEEDS, BATCH) if ONLY is None else [int(ONLY)]
TOTAL: Counter[str] = Counter()
# With a crash now and then torn, 25 campaigns have all of these.
KINDS = {
    "loss", "duplicate", "reordering", "partition", "one-way partition", "lost in a partition",
    "crash", "unsynced bytes lost", "torn write", "pause", "slow disk", "clock ahead",
    "clock stands", "snapshot", "wiped disk", "member replaced", "learner added",
    "learner promoted", "member removed", "leader removed", "transfer",
}  # fmt: skip


def run(seed):
    """One campaign; a failure says how to see it again."""
    try:
        return chaos(seed)
    except AssertionError as error:
        command = f"CHRONIK_SIM_SEED={seed} pytest tests/sim/test_raft.py -k campaign"
        raise AssertionError(f"seed {seed}: {error}; replay with: {command}") from error


@pytest.mark.parametrize("first", FIRST_SEEDS)
def test_campaign(first):
    count = BATCH if ONLY is None else 1
    for seed in range(first, first + count):
        campaign = run(seed)
        world = campaign.world
        assert world.now_ms >= CAMPAIGN_MS
        assert len(world.disks) >= 3
        assert world.proposed >= PROPOSALS
        assert sum(world.faults.values()) >= 10
        assert campaign.reads > 0
        TOTAL.update(world.faults)


@pytest.mark.skipif(ONLY is not None, reason="one seed does not have everything")
def test_every_kind_of_fault_occurs(capsys):
    found = TOTAL or sum((run(seed).world.faults for seed in range(BATCH)), Counter())
    with capsys.disabled():
        print(f"\n{SEEDS} campaigns:", ", ".join(f"{n} {k}" for k, n in found.most_common()))
    assert found.keys() >= KINDS


def test_a_seed_is_replayed_exactly():
    first, second = Campaign(7), Campaign(7)
    assert first.run().faults == second.run().faults
    assert first.world.promises.leaders == second.world.promises.leaders
    assert first.world.promises.machines == second.world.promises.machines


def test_a_failure_names_its_replay_command(monkeypatch):
    def fails(seed):
        raise Broken("two leaders in term 3")

    monkeypatch.setitem(globals(), "chaos", fails)
    with pytest.raises(AssertionError, match=r"two leaders.*CHRONIK_SIM_SEED=17 pytest"):
        run(17)


# Quiet days.


def test_a_healthy_group_keeps_its_leader():
    world = World(1)
    world.run(2_000)
    term = world.leader.term
    for _ in range(600):
        assert world.propose()
        world.run(100)
    assert world.promises.leaders == {term: world.leader.node_id}


def test_slow_disks_cause_no_election():
    world = World(2)
    world.run(2_000)
    term, before = world.leader.term, world.promises.floor
    for disk in world.disks.values():
        disk.slow_until_ms = world.now_ms + 30_000
    for _ in range(300):
        world.propose()
        world.run(100)
    assert world.leader.term == term
    assert all(each.node.term == term for each in world.processes.values())
    assert world.promises.floor > before


def test_a_slow_disk_of_a_follower_does_not_delay_the_others():
    world = World(3)
    world.run(2_000)
    slow = next(each for each in world.processes if each != world.leader.node_id)
    world.disks[slow].slow_until_ms = world.now_ms + 10_000
    before = world.promises.floor
    world.propose()
    world.run(60)
    assert world.promises.floor == before + 1


def test_a_removed_node_that_does_not_know_does_not_disturb():
    campaign = Campaign(4)
    world = campaign.world = World(4, 5)
    campaign.operator.world = world
    world.run(2_000)
    leader = world.leader
    victim = next(each for each in world.processes if each != leader.node_id)
    campaign.operator.tasks.append(("remove", victim))
    campaign.operator.work()
    world.run(20_000)
    assert victim not in leader.membership.members
    assert victim in world.node(victim).membership.members  # It does not know.
    assert world.leader is leader
    assert world.node(victim).term == leader.term


# Planted bugs, each with a schedule that is mean to it.


def calm(count=3, bug="", **settings):
    """A group whose network and disks are quick, without a leader, and free to vote."""
    weather = Weather(delay_ms=(1, 1), save_ms=(1, 1), slow_ms=(5_000, 5_000), torn=0.0)
    world = World(0, count, weather, bug, **settings)
    world.run(world.node(1).config.election_ms_min)
    return world


def heal(world):
    """Peace, and everybody back."""
    world.cut.clear()
    world.is_lost = lambda message: False
    for node_id in world.disks:
        world.restart(node_id)
    world.run(5_000)
    assert world.leader is not None


def is_real_vote(message, sender):
    return isinstance(message, RequestVote) and message.sender == sender and not message.is_pre_vote


def has_entries(message):
    return isinstance(message, AppendEntries) and bool(message.entries)


def forget_a_vote(bug):
    """Node 2 votes for 1, restarts, and is asked by 3 in the same term."""
    world = calm(bug=bug)
    held = []

    def is_lost(message):
        if is_real_vote(message, 3):
            held.append(message)
        return is_real_vote(message, 3) or isinstance(message, AppendEntries)

    world.is_lost = is_lost
    world.cut[1, 3] = world.cut[3, 1] = 1
    world.hurry(3)
    world.hurry(1)
    world.run(20)
    assert world.node(1).role is Role.LEADER
    assert world.node(3).role is Role.CANDIDATE
    assert world.node(3).term == world.node(1).term
    world.clock_ahead_ms[3] -= 2_000  # Its clock stands, so that it does not give up.
    world.crash(2)
    world.restart(2)
    world.run(400)
    world.deliver(next(message for message in held if message.recipient == 2))
    world.run(100)
    heal(world)


def count_an_old_term(bug):
    """Figure 8 of the paper: an entry of an early term is on a majority, and is replaced."""
    world = calm(5, bug, append_bytes_max=0)  # one entry in each message
    world.elect(1)
    world.is_lost = lambda message: has_entries(message) and message.recipient != 2
    assert world.propose(world.node(1))
    world.run(20)
    world.crash(1)
    world.isolate(2)
    world.is_lost = has_entries
    world.run(400)
    world.elect(5)
    world.crash(5)
    world.cut.clear()
    world.restart(1)
    world.is_lost = lambda message: (
        (isinstance(message, RequestVote) and message.sender != 1)
        or (has_entries(message) and message.entries[-1].index > 2)
        or (has_entries(message) and message.recipient == 4)
    )
    world.run(800)
    world.elect(1)
    world.run(200)
    assert [world.node(each).log.term_at(2) for each in (1, 2, 3)] == [1, 1, 1]
    world.crash(1)
    world.isolate(2)
    world.is_lost = lambda message: isinstance(message, RequestVote) and message.sender != 5
    world.restart(5)
    world.run(800)
    world.elect(5)
    heal(world)


def outlive_a_lease(bug):
    """The leader is cut off, and the others elect another."""
    world = calm(bug=bug)
    world.elect(1)
    world.run(500)
    world.isolate(1)
    world.run(1_500)
    assert len(world.promises.leaders) > 1
    heal(world)


def restart_a_voter(bug):
    """The leader's lease rests on node 2, which restarts and is asked by node 3."""
    world = calm(bug=bug)
    world.elect(1)
    world.cut[1, 3] = world.cut[3, 1] = 1
    world.run_until(lambda: world.node(3).role is Role.PRE_CANDIDATE)
    assert world.node(1).has_lease(world.now_ms)
    world.crash(2)
    world.isolate(1)
    world.restart(2)
    world.hurry(3)
    world.run(2_000)
    assert world.leader.node_id != 1
    heal(world)


def let_a_wiped_voter_in(bug):
    """Nodes 1 and 2 have committed an entry; node 2 comes back empty, and only 3 is there."""
    world = calm(bug=bug)
    world.elect(1)
    world.isolate(3)
    assert world.propose(world.node(1))
    world.run(100)
    assert world.node(1).commit_index == 2
    world.crash(1)
    world.wipe(2)
    world.cut.clear()
    world.run(3_000)
    assert not world.leaders()
    heal(world)


def acknowledge_before_the_save(bug):
    """Node 2's disk is slow; it crashes before the entry is on it."""
    world = calm(bug=bug)
    world.elect(1)
    world.isolate(3)
    world.disks[2].slow_until_ms = world.now_ms + 1_000
    assert world.propose(world.node(1))
    world.run(100)
    world.crash(2)
    world.crash(1)
    world.cut.clear()
    world.restart(2)
    world.run(3_000)
    heal(world)


def hand_over_late(bug):
    """The word to begin arrives after the leader has given up handing over."""
    world = calm(bug=bug)
    world.elect(1)
    held = []

    def is_lost(message):
        if isinstance(message, TimeoutNow):
            held.append(message)
        return isinstance(message, TimeoutNow)

    world.is_lost = is_lost
    world.ask(world.node(1), lambda node: node.transfer(2, world.now_ms))
    world.run(1_000)
    assert world.propose(world.node(1))
    world.run(100)
    world.isolate(1)
    world.deliver(held[0])
    world.run(100)
    assert world.leader.node_id == 2
    heal(world)


SCHEDULES = [
    ("vote", forget_a_vote, "two leaders in term"),
    ("count", count_an_old_term, "lacks a committed entry"),
    ("lease", outlive_a_lease, "stale read"),
    ("silence", restart_a_voter, "stale read"),
    ("wiped", let_a_wiped_voter_in, "lacks a committed entry"),
    ("ack", acknowledge_before_the_save, "lacks a committed entry"),
    ("transfer", hand_over_late, "stale read"),
]


@pytest.mark.parametrize(("bug", "schedule", "promise"), SCHEDULES, ids=[s[0] for s in SCHEDULES])
def test_a_planted_bug_is_found(bug, schedule, promise):
    with pytest.raises(Broken, match=promise):
        schedule(bug)


@pytest.mark.parametrize("schedule", [s[1] for s in SCHEDULES], ids=[s[0] for s in SCHEDULES])
def test_without_the_bug_the_same_schedule_breaks_nothing(schedule):
    schedule("")


@pytest.mark.parametrize("stands_ms", [0, 99])
def test_a_lease_survives_a_clock_that_stands_within_the_margin(stands_ms):
    let_the_leaders_clock_stand(stands_ms)


def test_a_clock_that_stands_longer_is_noticed():
    with pytest.raises(Broken, match="stale read"):
        let_the_leaders_clock_stand(600)


def let_the_leaders_clock_stand(for_ms):
    """The leader is cut off, and the others elect another as soon as they may."""
    world = calm()
    world.elect(1)
    world.run(500)
    world.run_until(lambda: world.node(1)._lease_from_ms == world.now_ms - 2)
    world.isolate(1)
    world.clock_ahead_ms[1] -= for_ms
    world.run(world.node(2).config.election_ms_min - 2)
    world.elect(2)
    world.run(500)
    assert len(world.promises.leaders) == 2


def test_campaigns_find_a_long_lease_by_themselves():
    seeds = iter(range(60))
    with pytest.raises(Broken, match="stale read"):
        all(chaos(seed, "lease") for seed in seeds)
