"""Exactly once under fire: a chain of transactions (`chain_world`) on one node and on three.

Workers and nodes are killed with -9 every second or two and started again. On three nodes each
worker knows one node only, and whichever is killed leads partitions, coordinates groups and
transactions, and may lead Raft.

`CHRONIK_TEST_RECORDS` makes it longer (`make chaos`).
"""

import os
import random
import time
from collections.abc import Sequence
from pathlib import Path

from chain_world import OPTIONS, run_chain
from cluster_processes import ClusterProcesses
from node_process import Node

SEED = int(os.environ.get("CHRONIK_SEED", "0")) or random.randrange(1, 10**6)


class OneNode:
    """A node that is killed."""

    replication_factor = 1

    def __init__(self, node: Node) -> None:
        self._node = node

    @property
    def bootstraps(self) -> Sequence[str]:
        return [self._node.bootstrap]

    def strike(self, chance: random.Random) -> None:
        self._node.kill()
        self._node.start()

    def end(self) -> None:
        assert self._node.stop() == 0


class ThreeNodes:
    """A cluster of which one node after the other is killed."""

    replication_factor = 3

    def __init__(self, cluster: ClusterProcesses) -> None:
        self._cluster = cluster

    @property
    def bootstraps(self) -> Sequence[str]:
        return [f"127.0.0.1:{self._cluster.ports[each]}" for each in self._cluster.ids]

    def strike(self, chance: random.Random) -> None:
        victim = chance.choice(self._cluster.ids)
        self._cluster.kill(victim)
        time.sleep(chance.uniform(0, 2))
        self._cluster.start(victim)

    def end(self) -> None:
        self._cluster.stop()


def test_every_record_passes_the_chain_once(tmp_path: Path) -> None:
    with Node(tmp_path / "data", *OPTIONS) as node:
        run_chain(OneNode(node), tmp_path, SEED)


def test_every_record_passes_the_chain_once_over_nodes(tmp_path: Path) -> None:
    settings = [*OPTIONS, "--set", "min.insync.replicas=2"]
    with ClusterProcesses(tmp_path, 3, *settings) as cluster:
        run_chain(ThreeNodes(cluster), tmp_path, SEED)
