"""Bugs planted in whole brokers are found by campaigns of random seeds, not by a schedule."""

import pytest
from sim.world.bugs import BUGS
from sim.world.data_bugs import DATA_BUGS
from sim.world.hunt import hunt


@pytest.mark.parametrize("name", BUGS | DATA_BUGS)
def test_a_planted_bug_is_found(name, pool):
    pool.submit(hunt, name).result()
