"""Whole brokers against a bad minute, many times over.

A campaign has at least 3 nodes, 60 virtual seconds, 200 proposals and 10 faults; what `watch`
promises holds after every turn of every process, and what clients were told is true at the end. A
failing seed prints its replay command.

`make sim` runs more seeds (CHRONIK_SIM_SEEDS).
"""

import os
from collections import Counter

import pytest
from sim.world import campaign as campaigns
from sim.world.campaign import CAMPAIGN_S, PROPOSALS, Report

SEEDS = int(os.environ.get("CHRONIK_SIM_SEEDS", "24"))
BATCH = 50  # what one test runs, well within its timeout
ONLY = os.environ.get("CHRONIK_SIM_SEED")  # replays one, in this process
TOTAL: Counter[str] = Counter()
KINDS = {
    "message lost", "message repeated", "message late", "packet lost", "connection reset",
    "partition", "one-way partition", "process killed", "power failure", "crash during a write",
    "pause", "slow disk", "clock ahead", "clock stands", "wall clock jumps", "transfer",
    "clean stop", "wiped disk", "stranger refused", "member replaced", "member added",
    "member removed",
}  # fmt: skip


def check(report):
    """A failure says how to see it again."""
    if report.failure is not None:
        command = (
            f"CHRONIK_SIM_SEED={report.seed} PYTHONHASHSEED=0 pytest tests/sim/test_cluster.py"
        )
        pytest.fail(f"seed {report.seed}: {report.failure}; replay with: {command}")
    assert report.length_s >= CAMPAIGN_S
    assert report.node_count >= 3
    assert report.proposal_count >= PROPOSALS
    assert sum(report.faults.values()) >= 10
    assert report.read_count > 0


@pytest.mark.skipif(ONLY is not None, reason="one seed is replayed")
@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_campaigns(first, pool):
    for report in pool.map(campaigns.report, range(first, min(first + BATCH, SEEDS))):
        check(report)
        TOTAL.update(report.faults)


@pytest.mark.skipif(ONLY is not None, reason="one seed does not have everything")
def test_every_kind_of_fault_occurs(capsys, pool):
    if not TOTAL:
        for report in pool.map(campaigns.report, range(SEEDS)):
            TOTAL.update(report.faults)
    with capsys.disabled():
        print(f"\n{SEEDS} campaigns:", ", ".join(f"{n} {k}" for k, n in TOTAL.most_common()))
    assert TOTAL.keys() >= KINDS


@pytest.mark.skipif(ONLY is None, reason="no seed is named")
def test_one_seed():
    check(campaigns.report(int(ONLY or 0)))


@pytest.mark.skipif(ONLY is not None, reason="one seed is replayed")
def test_a_seed_is_replayed_exactly(pool):
    first, second = pool.map(campaigns.report, [7, 7])
    assert first == second
    assert first.event_count > 0


def test_a_failure_names_its_replay_command():
    failed = Report(seed=17, failure="two leaders in term 3")
    with pytest.raises(pytest.fail.Exception, match=r"two leaders.*CHRONIK_SIM_SEED=17 .*pytest"):
        check(failed)
