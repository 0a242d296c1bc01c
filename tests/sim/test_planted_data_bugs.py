"""Bugs planted in replication are found by campaigns of random seeds, not by a schedule.

The same seed without the bug breaks nothing, so it is the bug that was found.
"""

import re

import pytest
from raft_promises import Broken
from sim.world.data_bugs import DATA_BUGS
from sim.world.data_campaign import DataCampaign

SEEDS_MAX = 20  # About one seed in three finds the rarest of them.


def found(bug):
    """The first seed that breaks a promise, and which."""
    with bug.planted():
        for seed in range(SEEDS_MAX):
            try:
                DataCampaign(seed, bug.profile, bug.durability).run()
            except Broken as broken:
                return seed, str(broken)
    pytest.fail(f"nobody noticed in {SEEDS_MAX} campaigns")


@pytest.mark.parametrize("name", DATA_BUGS)
def test_a_planted_bug_is_found(name):
    bug = DATA_BUGS[name]
    seed, promise = found(bug)
    assert re.search(bug.promise, promise), f"seed {seed}: {promise}"
    DataCampaign(seed, bug.profile, bug.durability).run()
