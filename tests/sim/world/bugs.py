"""Bugs planted on purpose, each a patch of one function, to show that campaigns find them.

Each has a profile: which faults come how often. It is generic, and says nothing of when or where.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from unittest.mock import patch

from sim.world.campaign import Campaign, Profile
from sim.world.cluster import Cluster
from sim.world.disk import SimulatedDisk
from sim.world.operator import Operator
from sim.world.watch import WatchedNode

from chronik.metadata.journal import Journal, begin_votes
from chronik.raft.types import HardState

LONG_LEASE_MS = 2_000
IDENTITY = "/data/node.json"


def counts_old_terms() -> AbstractContextManager[object]:
    """A leader has the bug of the paper's figure 8."""
    return patch.object(WatchedNode, "_may_count", lambda node, index: True)


def has_a_long_lease() -> AbstractContextManager[object]:
    """A leader's lease outlives the patience of the others."""
    has_lease = WatchedNode.has_lease

    def has_long_lease(node: WatchedNode, now_ms: int) -> bool:
        config = node.config
        node.config = replace(config)
        object.__setattr__(node.config, "lease_ms", LONG_LEASE_MS)
        try:
            return has_lease(node, now_ms)
        finally:
            node.config = config

    return patch.object(WatchedNode, "has_lease", has_long_lease)


def votes_at_once() -> AbstractContextManager[object]:
    """A voter has forgotten its promise, and does not wait for its end."""
    begin = WatchedNode.__post_init__

    def begin_without_promise(node: WatchedNode) -> None:
        begin(node)
        node._promised_until_ms = 0

    return patch.object(WatchedNode, "__post_init__", begin_without_promise)


def forgets_its_vote() -> AbstractContextManager[object]:
    """The vote is not written, though the file is."""
    save_vote = Journal.save_vote

    def save(journal: Journal, state: HardState) -> None:
        save_vote(journal, replace(state, vote=None))
        journal.state = state

    return patch.object(Journal, "save_vote", save)


@contextmanager
def lets_a_wiped_voter_in() -> Iterator[None]:
    """A voter without its log and vote passes for the one that it was, and nobody replaces it."""
    wipe = Cluster.wipe

    def wipe_all_but_the_name(cluster: Cluster, node_id: int) -> None:
        platter = cluster.machines[node_id].platter
        name = SimulatedDisk(platter).pread(IDENTITY, 1 << 20, 0)
        wipe(cluster, node_id)
        disk = SimulatedDisk(platter)
        disk.make_directory("/data")
        disk.sync_directory("/")
        disk.write_durably(IDENTITY, name)
        begin_votes(disk, "/data/__chronik_metadata")  # Without that it is refused.

    with (
        patch.object(Cluster, "wipe", wipe_all_but_the_name),
        patch.object(Operator, "replace", lambda operator, node_id: None),
    ):
        yield


DEFAULT = Profile()


@dataclass(frozen=True)
class Bug:
    """A bug, where to look for it, and the promise that it breaks."""

    planted: Callable[[], AbstractContextManager[object]]
    promise: str
    profile: Profile = DEFAULT

    def campaign(self, seed: int) -> Campaign:
        return Campaign(seed, self.profile)


CONTESTED = Profile(
    faults={"kill": 40, "partition": 20, "reset": 10},
    counts=(5,),
    restart_s=(0.001, 0.05, 0.5),
)
WIPED = Profile(
    faults={"wipe": 15, "kill": 15, "partition": 15, "isolate_leader": 20},
    counts=(3,),
    restart_s=(0.05, 0.5, 4.0),
)
QUICK_RESTARTS = Profile(
    faults={"kill_follower": 80, "part_from_leader": 20, "isolate_leader": 60},
    counts=(3,),
    restart_s=(0.001, 0.01),
    actions=60,
    delays_s=(0.002,),
    disks_s=(0.001,),
)

BUGS = {
    "a vote is not persisted": Bug(forgets_its_vote, "forgot its vote"),
    "an old term's entry is counted": Bug(counts_old_terms, "an earlier term's entry", CONTESTED),
    "a lease longer than the election timeout": Bug(has_a_long_lease, "stale read"),
    "a restarted voter votes at once": Bug(votes_at_once, "stale read", QUICK_RESTARTS),
    "a wiped voter is let in": Bug(
        lets_a_wiped_voter_in,
        "lacks a committed entry|two leaders|two entries|images differ",
        WIPED,
    ),
}
