"""The search for a planted bug: one campaign after the other, until a promise is broken."""

from __future__ import annotations

import re

from raft_promises import Broken, require
from sim.world.bugs import BUGS, Bug
from sim.world.data_bugs import DATA_BUGS, DataBug

SEEDS_MAX = 40  # About one seed in six finds the rarest of them.


def hunt(name: str) -> None:
    """Find a bug by the promise that it breaks; for a pool of processes.

    The same seed without the bug breaks nothing, so it is the bug that was found.
    """
    bug: Bug | DataBug = BUGS.get(name) or DATA_BUGS[name]
    seed, broken = _first_broken(bug)
    require(re.search(bug.promise, broken) is not None, f"{name}: seed {seed}: {broken}")
    bug.campaign(seed).run()


def _first_broken(bug: Bug | DataBug) -> tuple[int, str]:
    with bug.planted():
        for seed in range(SEEDS_MAX):
            try:
                bug.campaign(seed).run()
            except Broken as broken:
                return seed, str(broken)
    raise AssertionError(f"nobody noticed in {SEEDS_MAX} campaigns")
