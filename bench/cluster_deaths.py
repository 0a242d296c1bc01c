"""How long clients wait after a start, an election, a death or a silence.

A thread for each node asks it for Metadata without a pause and notes what it said and when. Times
count from the signal that was sent, or the moment in which a quorum could be reached.
"""

import contextlib
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from bench.cluster_clients import topic_names
from bench.cluster_nodes import LIMIT_S, NODE_IDS, ChronikNodes, Nodes, wait_until_listed
from bench.cluster_rows import Rows

PAUSE_S = 0.004
SETTLE_S = 1.5  # between two deaths: heartbeats flow again, leases are renewed


def measure_starts(home: Path, rounds: int, rows: Rows) -> None:
    """All three started together, each time from nothing."""
    times = []
    for number in range(rounds):
        nodes = ChronikNodes(home / str(number))
        try:
            nodes.start()
            quorum_at = _quorum_at(nodes)
            wait_until_listed(nodes)
            times.append(time.monotonic() - quorum_at)
        finally:
            nodes.remove()
    rows.add("start: a quorum is up to three brokers on each", max(times), 1)


def _quorum_at(nodes: Nodes) -> float:
    """When the second internal port took a connection."""
    left = set(NODE_IDS)
    while len(left) > 1:
        for node_id in tuple(left):
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", nodes.internal[node_id]), 1),
            ):
                left.discard(node_id)
        time.sleep(PAUSE_S)
    return time.monotonic()


class Watch:
    """What some nodes say of brokers and controller, asked all the time."""

    def __init__(self, nodes: Nodes, node_ids: Iterable[int]) -> None:
        self._nodes = nodes
        self._said: dict[int, tuple[list[int], int]] = {}
        self._end = threading.Event()
        self._threads = [
            threading.Thread(target=self._ask, args=(node_id,)) for node_id in node_ids
        ]
        self.fewest = len(NODE_IDS)
        for thread in self._threads:
            thread.start()

    def _ask(self, node_id: int) -> None:
        while not self._end.is_set():
            try:
                with self._nodes.wire(node_id, 5.0) as wire:
                    while not self._end.wait(PAUSE_S):
                        answer = wire.metadata([])
                        brokers = sorted(each.node_id for each in answer.brokers)
                        self.fewest = min(self.fewest, len(brokers))
                        self._said[node_id] = (brokers, answer.controller_id)
            except OSError:
                self._said.pop(node_id, None)

    def wait(self, holds: Callable[[list[int], int], bool], what: str) -> float:
        """Wait until all of them say so; when that was."""
        limit = time.monotonic() + LIMIT_S
        while True:
            said = dict(self._said)
            agree = (
                len(said) == len(self._threads) and len({each[1] for each in said.values()}) == 1
            )
            if agree and all(holds(*each) for each in said.values()):
                return time.monotonic()
            if time.monotonic() > limit:
                raise TimeoutError(f"{what}: {said}")
            time.sleep(0.001)

    def close(self) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()


def controller(nodes: Nodes) -> int:
    """Whom all nodes name."""
    watch = Watch(nodes, NODE_IDS)
    try:
        watch.wait(lambda brokers, _: brokers == list(NODE_IDS), "three brokers")
        return watch._said[NODE_IDS[0]][1]
    finally:
        watch.close()


def measure(nodes: ChronikNodes, rounds: int, rows: Rows) -> None:
    """Kill and silence the leader and a follower, several times; the worst of each counts."""
    leader_kills, writes, leader_gone, silences, listed = [], [], [], [], []
    for _ in range(rounds):
        replaced, written, gone = _kill(nodes, controller(nodes))
        leader_kills.append(replaced)
        writes.append(written)
        leader_gone.append(gone)
    follower_gone = [_kill(nodes, _follower(nodes))[2] for _ in range(rounds)]
    for _ in range(rounds):
        replaced, complete = _silence(nodes, controller(nodes))
        silences.append(replaced)
        listed.append(complete)
    rows.add("leader killed -9: replaced", max(leader_kills), 1)
    rows.add("leader killed -9: the next topic is created", max(writes), None)
    rows.add("leader killed -9: gone from every Metadata", max(leader_gone), 2)
    rows.add("follower killed -9: gone from every Metadata", max(follower_gone), 1)
    rows.add("leader silent: replaced", max(silences), 3)
    rows.add("election to three brokers on each node", max(listed), 0.5)


def _follower(nodes: Nodes) -> int:
    leader = controller(nodes)
    return next(each for each in NODE_IDS if each != leader)


def _kill(nodes: ChronikNodes, victim: int) -> tuple[float, float, float]:
    """Seconds until another leads, until a topic is created, until the victim is not told of."""
    left = [each for each in NODE_IDS if each != victim]
    watch = Watch(nodes, left)
    written: list[float] = []
    try:
        watch.wait(lambda brokers, _: len(brokers) == len(NODE_IDS), "all brokers")
        began = time.monotonic()
        nodes.end(signal.SIGKILL, [victim])
        writer = threading.Thread(target=lambda: written.append(_create(nodes, left[0])))
        writer.start()
        replaced = watch.wait(lambda _, leader: leader in left, "another leader")
        gone = watch.wait(lambda brokers, _: brokers == left, "a death")
        writer.join()
    finally:
        watch.close()
    nodes.start([victim])
    wait_until_listed(nodes)
    time.sleep(SETTLE_S)
    return replaced - began, written[0] - began, gone - began


def _create(nodes: Nodes, node_id: int) -> float:
    with nodes.wire(node_id) as wire:
        for name in topic_names(100):
            # Refused while two brokers are left for three replicas: that is decided, too.
            if wire.create(name) in (0, 38):
                return time.monotonic()
            time.sleep(0.02)
    raise AssertionError("nothing is decided")


def _silence(nodes: ChronikNodes, victim: int) -> tuple[float, float]:
    """Stop the leader's process: seconds to another one, and from it to all brokers told again."""
    left = [each for each in NODE_IDS if each != victim]
    watch = Watch(nodes, left)
    try:
        watch.wait(lambda brokers, _: len(brokers) == len(NODE_IDS), "all brokers")
        began = time.monotonic()
        nodes.signal(victim, signal.SIGSTOP)
        try:
            replaced = watch.wait(lambda _, leader: leader in left, "another leader")
        finally:
            nodes.signal(victim, signal.SIGCONT)
        complete = watch.wait(lambda brokers, _: len(brokers) == len(NODE_IDS), "all brokers")
    finally:
        watch.close()
    wait_until_listed(nodes)
    time.sleep(SETTLE_S)
    return replaced - began, complete - replaced
