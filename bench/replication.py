"""`python -m bench.replication`: three nodes and three replicas, beside a three-node Apache Kafka.

    --records N       of 1 KiB a round (200,000)
    --rounds N        of each measurement (3)
    --deaths N        leaders killed for the longest gap between acks (3)
    --missed MB       what a node misses before it catches up (1,000)
    --partitions      also 9,000 partitions with a record each: acked, idle, back after a kill
    --only PART ...   only these: cold warm alone

First each cluster by itself, fresh for each figure, so that both kinds are cold: that is how the
goals were set. Then all at the same time, warmed up and measured in turn. Run it alone.
"""

import argparse
import json
import signal
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench import measures
from bench.cluster_nodes import ChronikNodes, KafkaNodes, Nodes, wait_until_listed
from bench.cluster_rows import Rows as GoalRows
from bench.ratios import Rows, interleaved, medians, show

GOALS = {
    "cold: acks=1 MB/s": ">= 2",
    "cold: acks=all MB/s": ">= 2",
    "cold: p99 ms at 2,000 records/s": "<= 0.5",
    "acks=1 MB/s": ">= 2",
    "acks=all MB/s": ">= 2",
    "p99 ms at 2,000 records/s": "<= 0.5",
    "longest gap between acks, s": "<= 0.15",
}
REPLICAS = 3
PARTITIONS = 3
IDLE_S = 10.0
LIMIT_S = 120.0
PARTS = ("cold", "warm", "alone")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="bench.replication",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--deaths", type=int, default=3)
    parser.add_argument("--missed", type=int, default=1_000)
    parser.add_argument("--partitions", action="store_true")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    arguments = parser.parse_args()
    rows: Rows = {}
    alone = GoalRows()
    with tempfile.TemporaryDirectory(prefix="chronik-bench-") as name:
        if "cold" in arguments.only:
            rows |= _cold(Path(name), arguments)
            show(rows, GOALS)
        if "warm" in arguments.only:
            rows |= _beside_kafka(Path(name), arguments)
            show(rows, GOALS)
        if "alone" in arguments.only:
            _alone(Path(name), arguments, alone)
            alone.show()
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    found = {"beside Kafka": rows, "alone": alone.as_json()}
    (results / f"replication-{stamp}.json").write_text(json.dumps(found, indent=2) + "\n")


def _clusters(home: Path) -> Iterator[tuple[str, Nodes]]:
    """Each kind of cluster, none of them started."""
    yield "kafka", KafkaNodes(home / "kafka")
    for durability in ("fsync", "replicated"):
        yield durability, ChronikNodes(home / durability, durability=durability)


def _cold(home: Path, arguments: argparse.Namespace) -> Rows:
    def fresh(work: Callable[[Nodes], float]) -> dict[str, float]:
        found: dict[str, list[float]] = {}
        for _ in range(arguments.rounds):
            for name, nodes in _clusters(home / "cold"):
                try:
                    nodes.start()
                    wait_until_listed(nodes)
                    found.setdefault(name, []).append(work(nodes))
                finally:
                    nodes.remove()
        return medians(found, float)

    def throughput(acks: str) -> Callable[[Nodes], float]:
        return lambda nodes: _produce(nodes, arguments.records, acks=acks).mb_per_s

    return {
        "cold: acks=1 MB/s": fresh(throughput("1")),
        "cold: acks=all MB/s": fresh(throughput("all")),
        "cold: p99 ms at 2,000 records/s": fresh(
            lambda nodes: _produce(nodes, 40_000, rate=2000).p99_ms
        ),
    }


def _beside_kafka(home: Path, arguments: argparse.Namespace) -> Rows:
    clusters = dict(_clusters(home))
    try:
        for nodes in clusters.values():
            nodes.start()
            wait_until_listed(nodes)
        return _measure(clusters, arguments)
    finally:
        for nodes in clusters.values():
            nodes.remove()


def _measure(clusters: dict[str, Nodes], arguments: argparse.Namespace) -> Rows:
    rows: Rows = {}
    records, rounds = arguments.records, arguments.rounds

    for nodes in clusters.values():
        _produce(nodes, records)  # The JVM's warming up.
    for acks in ("1", "all"):
        produced = interleaved(clusters, rounds, lambda each: _produce(each, records, acks=acks))  # noqa: B023
        rows[f"acks={acks} MB/s"] = medians(produced, lambda each: each.mb_per_s)
    rows["CPU s per GB, all nodes, acks=all"] = medians(produced, lambda each: each.cpu_s_per_gb)
    rows["memory under load, MB a node"] = medians(produced, lambda each: each.memory_mb)
    slow = interleaved(
        clusters, rounds, lambda each: _produce(each, 40_000, rate=2000, warm_up=20_000)
    )
    rows["p50 ms at 2,000 records/s"] = medians(slow, lambda each: each.p50_ms)
    rows["p99 ms at 2,000 records/s"] = medians(slow, lambda each: each.p99_ms)
    gaps = interleaved(clusters, arguments.deaths, longest_gap)
    rows["longest gap between acks, s"] = medians(gaps, float)
    return rows


def _produce(nodes: Nodes, count: int, **how: Any) -> measures.Produced:
    return measures.produce(nodes, count, topic=new_topic(nodes), **how)


def new_topic(nodes: Nodes, name: str | None = None) -> str:
    """A topic with three partitions and three replicas."""
    from confluent_kafka.admin import AdminClient, NewTopic

    name = name or f"bench-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": nodes.bootstrap})
    admin.create_topics([NewTopic(name, PARTITIONS, REPLICAS)])[name].result(LIMIT_S)
    return name


def _partitions(nodes: Nodes, topic: str | None = None) -> list[Any]:
    from confluent_kafka.admin import AdminClient

    found = AdminClient({"bootstrap.servers": nodes.bootstrap}).list_topics(topic, timeout=LIMIT_S)
    return [each for topic in found.topics.values() for each in topic.partitions.values()]


def _wait_in_sync(nodes: Nodes, topic: str | None, count: int) -> float:
    """Seconds until so many partitions have all their replicas in sync."""
    began = time.monotonic()
    while sum(len(each.isrs) == REPLICAS for each in _partitions(nodes, topic)) < count:
        if time.monotonic() - began > LIMIT_S:
            raise TimeoutError(f"not {count} partitions are in sync")
        time.sleep(0.1)
    return time.monotonic() - began


def longest_gap(nodes: Nodes) -> float:
    """Kill -9 the leader of a partition under a stock producer; seconds without any ack."""
    from confluent_kafka import Producer

    topic = new_topic(nodes)
    producer = Producer({"bootstrap.servers": nodes.bootstrap, "acks": "all", "linger.ms": 1})
    acked: list[float] = []

    def on_delivery(error: Any, _: Any) -> None:
        assert error is None, error
        acked.append(time.monotonic())

    def produce_for(seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            producer.produce(topic, b"x" * 100, partition=0, on_delivery=on_delivery)
            producer.poll(0.002)

    produce_for(3)
    victim = next(each.leader for each in _partitions(nodes, topic) if each.id == 0)
    nodes.end(signal.SIGKILL, [victim])
    produce_for(5)
    before = len(acked)
    while len(acked) == before and len(producer):
        producer.poll(0.05)  # However long it takes.
    produce_for(1)
    producer.flush(60)
    nodes.start([victim])
    wait_until_listed(nodes)
    _wait_in_sync(nodes, topic, PARTITIONS)
    return max(late - early for early, late in pairwise(acked))


def _alone(home: Path, arguments: argparse.Namespace, rows: GoalRows) -> None:
    """What Kafka has no figure for: catching up, and 9,000 partitions."""
    nodes = ChronikNodes(home / "alone")
    try:
        nodes.start()
        wait_until_listed(nodes)
        _catch_up(nodes, arguments.missed, rows)
        if arguments.partitions:
            _many_partitions(nodes, rows)
    finally:
        nodes.remove()


def _catch_up(nodes: Nodes, missed_mb: int, rows: GoalRows) -> None:
    topic = new_topic(nodes)
    nodes.end(signal.SIGKILL, [3])
    count = missed_mb * 1_000_000 // measures.RECORD_SIZE
    measures.produce(nodes, count, topic=topic)
    nodes.start([3])
    wait_until_listed(nodes)
    seconds = _wait_in_sync(nodes, topic, PARTITIONS)
    rows.add(f"catching up with {missed_mb} MB, once it is registered", seconds)
    rows.add("which is", missed_mb / max(seconds, 0.001), unit="MB/s")


def _many_partitions(nodes: ChronikNodes, rows: GoalRows) -> None:
    from confluent_kafka import Producer

    from bench.cluster_clients import create_in_batches, topic_names

    names = topic_names(3_000)
    create_in_batches(nodes.bootstrap, names)
    producer = Producer(
        {"bootstrap.servers": nodes.bootstrap, "acks": "all", "message.timeout.ms": 120_000}
    )
    failed: list[str] = []
    began = time.monotonic()
    for name in names:
        for index in range(PARTITIONS):
            producer.produce(
                name,
                b"x",
                partition=index,
                on_delivery=lambda error, _: failed.append(str(error)) if error else None,
            )
        producer.poll(0)
    assert producer.flush(LIMIT_S) == 0
    assert not failed, failed[:3]
    rows.add("a record acked by each of 9,000 partitions", time.monotonic() - began, 60)
    rows.add("anonymous memory, the largest node", nodes.memory_mb(), 250, "MB")
    time.sleep(2)
    cpu = {each: nodes.server(each).cpu_s() for each in nodes.running}
    time.sleep(IDLE_S)
    idle = [nodes.server(each).cpu_s() - used for each, used in cpu.items()]
    rows.add("idle, the busiest node", max(idle) / IDLE_S * 100, 10, "% of a core")
    answers, back = [], []
    for victim in nodes.running:
        nodes.end(signal.SIGKILL, [victim])
        time.sleep(2)
        nodes.start([victim])
        answers.append(wait_until_listed(nodes))
        back.append(answers[-1] + _wait_in_sync(nodes, None, len(names) * PARTITIONS))
    rows.add("killed node answers after its start", statistics.median(answers), 5)
    rows.add("and is in every in-sync set again", statistics.median(back), 15)


if __name__ == "__main__":
    main()
