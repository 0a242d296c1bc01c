"""Partitions, groups and transactions through a bad half minute, many times over.

What `ledger` promises holds whenever a replica writes, cuts or counts; what producers, groups and
transactions were told is true at the end; and after all faults are healed every replica is in sync
again, and equal. Every second seed has durability "replicated". A failing seed prints its replay
command.

`make sim` runs more seeds (half of CHRONIK_SIM_SEEDS).
"""

import os
from collections import Counter

import pytest
from sim.world import data_campaign as campaigns
from sim.world.data_campaign import DataReport

SEEDS = int(os.environ.get("CHRONIK_SIM_SEEDS", "32")) // 2  # They take longer than those of Raft.
BATCH = 50  # what one test runs, well within its timeout
ONLY = os.environ.get("CHRONIK_SIM_DATA_SEED")  # replays one, in this process
TOTAL: Counter[str] = Counter()
KINDS = {
    "packet lost", "partition", "leader isolated", "process killed", "power failure",
    "pause", "slow disk", "connection reset", "clean stop", "wiped disk", "member replaced",
}  # fmt: skip


def check(report):
    """A failure says how to see it again."""
    if report.failure is not None:
        command = (
            f"CHRONIK_SIM_DATA_SEED={report.seed} PYTHONHASHSEED=0 pytest tests/sim/test_data.py"
        )
        pytest.fail(f"seed {report.seed}: {report.failure}; replay with: {command}")
    assert report.acked_count > 0
    assert sum(report.faults.values()) >= 10


@pytest.mark.skipif(ONLY is not None, reason="one seed is replayed")
@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_campaigns(first, pool):
    for report in pool.map(campaigns.report, range(first, min(first + BATCH, SEEDS))):
        check(report)
        TOTAL.update(report.faults)
        TOTAL["records acknowledged"] += report.acked_count
        TOTAL["transactions committed"] += report.committed_count
        TOTAL["partitions"] += report.place_count
        TOTAL["void partitions"] += report.void_count


@pytest.mark.skipif(ONLY is not None, reason="one seed does not have everything")
def test_every_kind_of_fault_occurs(capsys):
    if not TOTAL:
        pytest.skip("no campaign was run")
    with capsys.disabled():
        print(f"\n{SEEDS} campaigns:", ", ".join(f"{n} {k}" for k, n in TOTAL.most_common()))
    assert TOTAL.keys() >= KINDS
    assert TOTAL["records acknowledged"] >= 20 * SEEDS
    assert TOTAL["transactions committed"] >= 2 * SEEDS
    # A partition of which every copy is lost shows nothing, so that these must be few.
    assert TOTAL["void partitions"] <= TOTAL["partitions"] / 5


@pytest.mark.skipif(ONLY is None, reason="no seed is named")
def test_one_seed():
    check(campaigns.report(int(ONLY or 0)))


@pytest.mark.skipif(ONLY is not None, reason="one seed is replayed")
def test_a_seed_is_replayed_exactly(pool):
    first, second = pool.map(campaigns.report, [7, 7])
    assert first == second
    assert first.event_count > 0


def test_a_failure_names_its_replay_command():
    failed = DataReport(seed=17, failure="the replicas of safe-0 differ")
    with pytest.raises(pytest.fail.Exception, match=r"differ.*CHRONIK_SIM_DATA_SEED=17 .*pytest"):
        check(failed)
