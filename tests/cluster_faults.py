"""What goes wrong with a cluster of three processes, by chance. Each fault ends before the next."""

import random
import signal
import time
from collections import Counter
from collections.abc import Callable

from cluster_processes import ClusterProcesses
from link_proxies import LinkProxies

EVERYBODY = [1, 2, 3]


class Faults:
    """Nodes that are killed -9 or stopped for a while, links that are cut; tests add their own."""

    def __init__(
        self,
        cluster: ClusterProcesses,
        links: LinkProxies,
        chance: random.Random,
        *,
        stop_s_max: float,
        cut_s_max: float,
    ) -> None:
        self._cluster = cluster
        self._links = links
        self._chance = chance
        self._stop_s_max = stop_s_max
        self._cut_s_max = cut_s_max
        self.counts: Counter[str] = Counter()

    def kinds(self) -> list[Callable[[], None]]:
        """What there is to choose from."""
        return [self._kill, self._stop, self._cut]

    def once(self) -> None:
        """One fault, and its end."""
        fault = self._chance.choice(self.kinds())
        self.counts[fault.__name__.strip("_")] += 1
        fault()

    def _pause(self, least_s: float, most_s: float) -> None:
        time.sleep(self._chance.uniform(least_s, most_s))

    def _some(self) -> list[int]:
        """Mostly one node, sometimes two or all."""
        count = self._chance.choices((1, 2, 3), weights=(6, 2, 1))[0]
        return self._chance.sample(EVERYBODY, count)

    def _kill(self) -> None:
        nodes = self._some()
        self._cluster.kill(*nodes)
        self._pause(0, 2)
        for node_id in nodes:
            self._cluster.start(node_id)
            self._pause(0, 0.3)

    def _stop(self) -> None:
        nodes = self._some()
        for node_id in nodes:
            self._cluster.signal(node_id, signal.SIGSTOP)
        self._pause(0.1, self._stop_s_max)
        for node_id in nodes:
            self._cluster.signal(node_id, signal.SIGCONT)

    def _cut(self) -> None:
        one, other = self._chance.sample(EVERYBODY, 2)
        links = self._chance.choice(
            [
                [(one, other)],
                [(one, other), (other, one)],
                [(one, each) for each in EVERYBODY],
                [pair for each in EVERYBODY for pair in ((one, each), (each, one))],
            ]
        )
        self._links.cut(links)
        self._pause(0.1, self._cut_s_max)
        if self._chance.random() < 0.5:
            self._links.close(links)
        self._links.mend()
