"""Topics and full produce load on all three nodes: leadership stays, nothing holds the loop."""

import re
import signal
import threading
import time
from collections import deque
from pathlib import Path

from bench.cluster_clients import create_in_batches, delete_topics, topic_names
from bench.cluster_nodes import NODE_IDS, ChronikNodes, wait_until_listed
from bench.cluster_rows import Rows

ROUND_TOPICS = 100
TOPICS_MAX = 6_000  # Twice the goal; then for each hundred that come the oldest hundred go.
RECORD_BYTES = 1000
ERRORS_SHOWN = 3
# Ten minutes of full load would fill a disk of a laptop.
RETENTION = (
    "log.segment.bytes=50000000",
    "log.retention.bytes=200000000",
    "log.retention.check.interval.ms=5000",
)
BUCKET = re.compile(r'le="([^"]+)"')


class Load:
    """Clients that create and write until they are told to end."""

    def __init__(self, nodes: ChronikNodes, topics: int) -> None:
        self._nodes = nodes
        self._end = threading.Event()
        self._lock = threading.Lock()
        self.errors: list[str] = []
        self.created = 0
        self.delivered = 0
        self._names = topic_names(12)
        first = create_in_batches(nodes.bootstrap, [*self._names, *topic_names(topics)])
        self.errors += first.errors
        self.created += first.count
        self._existing = first.count
        self._threads = [
            threading.Thread(target=self._create),
            *(threading.Thread(target=self._write, args=(number,)) for number in range(2)),
        ]
        for thread in self._threads:
            thread.start()

    def _create(self) -> None:
        rounds: deque[list[str]] = deque()
        while not self._end.wait(0.2):
            rounds.append(topic_names(ROUND_TOPICS))
            made = create_in_batches(self._nodes.bootstrap, rounds[-1])
            self.errors += made.errors
            self.created += made.count
            if self._existing + len(rounds) * ROUND_TOPICS > TOPICS_MAX:
                self.errors += delete_topics(self._nodes.bootstrap, rounds.popleft())

    def _write(self, number: int) -> None:
        from confluent_kafka import Producer

        producer = Producer(
            {
                "bootstrap.servers": self._nodes.bootstrap,
                "linger.ms": 5,
                "queue.buffering.max.messages": 20_000,
            }
        )

        def delivered(error: object, _: object) -> None:
            if error is not None:
                self.errors.append(f"write: {error}")
            with self._lock:
                self.delivered += error is None

        value = bytes(RECORD_BYTES)
        count = 0
        while not self._end.is_set():
            count += 1
            try:
                topic = self._names[(count // 100) % len(self._names)]
                producer.produce(topic, value, on_delivery=delivered)
            except BufferError:
                producer.poll(0.01)
            producer.poll(0)
        producer.flush(30)

    def end(self) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()


def measure(home: Path, seconds: float, topics: int, rows: Rows) -> None:
    """The load for some time, with all nodes up."""
    nodes = ChronikNodes(home, *RETENTION)
    try:
        nodes.start()
        wait_until_listed(nodes)
        terms = {nodes.metrics(each)["chronik_raft_term"] for each in NODE_IDS}
        load = Load(nodes, topics)
        before = [nodes.metrics(each) for each in NODE_IDS]
        began = time.monotonic()
        time.sleep(seconds)
        spent = time.monotonic() - began
        after = [nodes.metrics(each) for each in NODE_IDS]
        load.end()
        terms |= {each["chronik_raft_term"] for each in after}
    finally:
        nodes.remove()
    rows.add(f"load for {spent:.0f} s: terms", len(terms), 1, "count")
    rows.add("    errors", len(load.errors), 0, "count")
    for error in load.errors[:ERRORS_SHOWN]:
        print(f"    {error}")
    rows.add("    topics created", load.created, None, "count")
    rows.add("    records of 1,000 B written", load.delivered / 1000 / spent, None, "MB/s")
    pairs = list(zip(before, after, strict=True))
    for what, name in (("pause between Raft messages", "raft_gap"), ("loop lag", "loop_lag")):
        for share in (0.5, 0.99, 0.999):
            worst = max(quantile(*pair, f"chronik_{name}_seconds", share) for pair in pairs)
            rows.add(f"    {what}, p{share * 100:g} (at most)", worst * 1000, None, "ms")
        most = max(each[f"chronik_{name}_max_seconds"] for each in after)
        rows.add(f"    {what}, longest", most * 1000, None, "ms")


def quantile(before: dict[str, float], after: dict[str, float], name: str, share: float) -> float:
    """The upper bound of the bucket in which this share of the observations ends."""
    counts = {
        float(found[1]): value - before.get(key, 0.0)
        for key, value in after.items()
        if key.startswith(f"{name}_bucket") and (found := BUCKET.search(key)) is not None
    }
    total = max(counts.values())
    return min(bound for bound, count in counts.items() if count >= share * total)


def measure_callbacks(home: Path, seconds: float, topics: int, rows: Rows) -> None:
    """The same load on nodes whose every callback is measured; on a slower loop than usual.

    Then all of them end at once, and hand all partitions over until the last is alone.
    """
    nodes = ChronikNodes(home, *RETENTION, watched=True)
    try:
        nodes.start()
        wait_until_listed(nodes)
        load = Load(nodes, topics)
        time.sleep(seconds)
        load.end()
        for node_id in NODE_IDS:
            nodes.server(node_id).process.send_signal(signal.SIGUSR1)
        time.sleep(1)
        nodes.end(signal.SIGTERM)
        logs = "\n".join(nodes.log(each) for each in NODE_IDS)
    finally:
        nodes.remove()
    for phase, goal in (("working", 50), ("ending", None)):
        lines = re.findall(rf"^{phase} callback ([\d.]+) (.*)$", logs, re.MULTILINE)
        found = sorted(((float(spent), name) for spent, name in lines), reverse=True)
        rows.add(f"longest callback while {phase}, thread CPU time", found[0][0], goal, "ms")
        for spent, name in found[:5]:
            print(f"    {spent:8.1f} ms  {name}")
