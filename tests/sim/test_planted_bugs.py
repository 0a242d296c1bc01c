"""Bugs planted in whole brokers are found by campaigns of random seeds, not by a schedule.

The same seed without the bug breaks nothing, so it is the bug that was found.
"""

import re

import pytest
from raft_promises import Broken
from sim.world.bugs import BUGS
from sim.world.campaign import Campaign

SEEDS_MAX = 40  # About one seed in six finds the rarest of them.


def found(bug):
    """The first seed that breaks a promise, and which."""
    with bug.planted():
        for seed in range(SEEDS_MAX):
            try:
                Campaign(seed, bug.profile, bug.raft_node).run()
            except Broken as broken:
                return seed, str(broken)
    pytest.fail(f"nobody noticed in {SEEDS_MAX} campaigns")


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name):
    bug = BUGS[name]
    seed, promise = found(bug)
    assert re.search(bug.promise, promise), f"seed {seed}: {promise}"
    Campaign(seed, bug.profile).run()
