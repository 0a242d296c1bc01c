"""Thousands of topics: made in three ways, told by each node, kept over a restart, cheap."""

import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from bench.cluster_clients import (
    METADATA_VERSION,
    SCRIPTS,
    Catalog,
    Wire,
    catalog,
    topic_names,
)
from bench.cluster_nodes import (
    LIMIT_S,
    NODE_IDS,
    ChronikNodes,
    KafkaNodes,
    Nodes,
    wait_until_listed,
)
from bench.cluster_rows import Rows
from chronik.protocol.apis import METADATA
from chronik.protocol.messages.metadata import MetadataRequest

IDLE_S = 10.0
CLIENTS = 50
SINGLE_TOPICS = 300
ALL_TOPICS = MetadataRequest(topics=None)


def measure(home: Path, count: int, rows: Rows, *, with_kafka: bool) -> None:
    """Every way on a fresh cluster; what the topics cost, on the last one."""
    for name in SCRIPTS:
        kafka_s = _kafka(home / "kafka", name, count, rows) if with_kafka else None
        nodes = ChronikNodes(home / "chronik")
        try:
            nodes.start()
            wait_until_listed(nodes)
            _create(nodes, name, count, rows, None if kafka_s is None else kafka_s / 2)
            if name == list(SCRIPTS)[-1]:
                _costs(nodes, rows)
            _restart(nodes, signal.SIGTERM, count, rows)
        finally:
            nodes.remove()


def _create(nodes: Nodes, name: str, count: int, rows: Rows, goal_s: float | None) -> float:
    made = SCRIPTS[name](nodes.bootstrap, topic_names(count))
    what = f"{nodes.name}: {count} topics, {name}"
    rows.add(what, made.seconds, goal_s)
    rows.add(f"{what}: not created", count - made.count, 0, "topics")
    for error in made.errors[:3]:
        print(f"    {error}")
    return made.seconds


def _kafka(home: Path, name: str, count: int, rows: Rows) -> float:
    nodes = KafkaNodes(home)
    try:
        nodes.start()
        wait_until_listed(nodes)
        return _create(nodes, name, count, rows, None)
    finally:
        nodes.remove()
        shutil.rmtree(home, ignore_errors=True)


def _restart(nodes: ChronikNodes, how: signal.Signals, count: int, rows: Rows) -> None:
    """Stop all, start all: when does each node tell of all brokers, and do they agree?

    Leaders may differ from before: a node that ends cleanly hands its partitions over.
    """
    before = _catalogs(nodes)
    rows.add("    nodes whose catalog differs", _odd(before), 0, "nodes")
    nodes.end(how)
    began = time.monotonic()
    nodes.start()
    wait_until_listed(nodes)
    rows.add("    restart of all nodes to every node's answer", time.monotonic() - began, 5)
    after = _catalogs(nodes)
    rows.add("    nodes whose catalog differs after it", _odd(after), 0, "nodes")
    moved = _placement(before[0]).items() ^ _placement(after[0]).items()
    rows.add("    topics that are not as before", len({name for name, _ in moved}), 0, "topics")
    assert len(before[0]) >= count


def _placement(catalog: Catalog) -> dict[str, tuple[object, ...]]:
    """Each topic's id and its partitions' replicas, whoever leads."""
    return {
        name: (topic_id, *(replicas for _, replicas in partitions))
        for name, (topic_id, *partitions) in catalog.items()
    }


def _catalogs(nodes: Nodes) -> list[Catalog]:
    found = []
    for node_id in NODE_IDS:
        with nodes.wire(node_id) as wire:
            found.append(catalog(wire))
    return found


def _odd(catalogs: list[Catalog]) -> int:
    return sum(each != catalogs[0] for each in catalogs)


# What they cost.


def _costs(nodes: ChronikNodes, rows: Rows) -> None:
    _single_topics(nodes, rows)
    _metadata(nodes, rows)
    memory = max(nodes.server(each).memory_mb() for each in NODE_IDS)
    rows.add("    anonymous memory of a node", memory, 150, "MB")
    shares = _cpu(nodes, lambda: time.sleep(IDLE_S))
    rows.add("    idle CPU of a node", max(shares) / IDLE_S * 100, 5, "% of a core")


def _cpu(nodes: Nodes, work: Callable[[], object]) -> list[float]:
    before = [nodes.server(each).cpu_s() for each in NODE_IDS]
    work()
    return [nodes.server(each).cpu_s() - cpu for each, cpu in zip(NODE_IDS, before, strict=True)]


def _single_topics(nodes: Nodes, rows: Rows) -> None:
    """One after the other, on each node in turn: two of three are forwarded."""
    wires = [nodes.wire(each) for each in NODE_IDS]
    times = []
    for number, name in enumerate(topic_names(SINGLE_TOPICS)):
        began = time.monotonic()
        code = wires[number % len(wires)].create(name)
        times.append((time.monotonic() - began) * 1000)
        assert code == 0, f"error {code} for {name}"
    times.sort()
    rows.add("    one topic, median", times[len(times) // 2], None, "ms")
    rows.add("    one topic, p99", times[int(len(times) * 0.99) - 1], 50, "ms")


def _metadata(nodes: Nodes, rows: Rows) -> None:
    """CPU time of a node for an answer of all topics, alone and when many clients wait at once."""
    with nodes.wire(1) as wire:
        wire.metadata(None)
        server = nodes.server(1)
        rounds = 100
        before = server.cpu_s()
        for _ in range(rounds):
            wire.send(METADATA, METADATA_VERSION, ALL_TOPICS)
            wire.receive()
        each_ms = (server.cpu_s() - before) / rounds * 1000
        rows.add("    Metadata of all topics, CPU of the node", each_ms, 20, "ms")
    wires = [nodes.wire(1) for _ in range(CLIENTS)]
    with nodes.wire(2) as other:
        assert other.create(topic_names(1)[0]) == 0  # Something has changed since.
    time.sleep(0.2)
    before = server.cpu_s()
    threads = [threading.Thread(target=_ask, args=(each,)) for each in wires]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    waiting_ms = (server.cpu_s() - before) / CLIENTS * 1000
    rows.add(f"    the same for each of {CLIENTS} that wait", waiting_ms, 20, "ms")


def _ask(wire: Wire) -> None:
    with wire:
        wire.send(METADATA, METADATA_VERSION, ALL_TOPICS)
        wire.receive()
