"""Numbered records through a chain of three topics, while all who take part are killed.

Two workers a hop (`chaos/chain.py`) consume, transform and produce in transactions, the first hop
as a classic group, the second as one of KIP-848. In the end each topic holds exactly the records of
the first one, in their order; a reader of committed data never saw anything else meanwhile, and
nobody saw a committed offset go back.
"""

import asyncio
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, NewTopic

from chronik.client.cluster import Cluster
from chronik.client.groups import Groups
from chronik.client.link import ConnectionFailed, parse_bootstrap
from chronik.model import TopicPartition
from chronik.protocol.errors import KafkaError

RECORDS = int(os.environ.get("CHRONIK_TEST_RECORDS", "20000"))
# The short run takes about half a minute; a long one feeds faster and lasts longer.
FEED_S = max(20.0, RECORDS / 4_000)
NODE_KILLS, WORKER_KILLS = 3, 5  # at the least
PARTITIONS = 4
WORKERS = 2  # a hop
# Source, sink, group and protocol of each hop.
HOPS = (("a", "b", "hop-1", "cooperative-sticky"), ("b", "c", "hop-2", "consumer"))
# Options of a node: the dead are missed soon: a run is short.
SETTINGS = {
    "group.min.session.timeout.ms": 500,
    "group.initial.rebalance.delay.ms": 100,
    "group.consumer.min.session.timeout.ms": 500,
    "group.consumer.session.timeout.ms": 2_000,
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.heartbeat.interval.ms": 300,
}
LINK = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 200,
    "metadata.recovery.strategy": "none",
    "log_level": 0,
}
OPTIONS = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
STALL_S = 60.0  # several sessions and transactions may have to time out one after the other


class Background:
    """Work in a thread that a test ends, and whose failure is the test's."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def work(self) -> None:
        raise NotImplementedError

    def _run(self) -> None:
        try:
            self.work()
        except BaseException as error:
            self._failure = error

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self.ended.set()
        self._thread.join()
        self.check()

    def check(self) -> None:
        """Raise what the work raised."""
        if self._failure is not None:
            raise self._failure


class Feeder(Background):
    """Writes the numbers into the first topic, each once, over a while."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__()
        settings = {**LINK, "bootstrap.servers": bootstrap, "enable.idempotence": True}
        self._producer = Producer(settings | {"message.timeout.ms": 300_000})
        self.done = threading.Event()

    def work(self) -> None:
        began = time.monotonic()
        sent = 0
        while sent < RECORDS and not self.ended.is_set():
            due = min(RECORDS, int((time.monotonic() - began) / FEED_S * RECORDS) + 1)
            while sent < due:
                self._producer.produce("a", str(sent).encode(), partition=sent % PARTITIONS)
                sent += 1
                if sent % 1_000 == 0:
                    self._producer.poll(0)
            self._producer.poll(0.01)
        assert self._producer.flush(60) == 0
        self.done.set()


class Watcher(Background):
    """Asks for the committed offsets of the groups, and remembers when one went back.

    It asks by our own client: librdkafka's admin client aborts its process when a node dies at
    the wrong moment.
    """

    def __init__(self, bootstrap: str, groups: Sequence[str]) -> None:
        super().__init__()
        self._bootstrap = bootstrap
        self._groups = groups
        self.highest: dict[tuple[str, str, int], int] = {}
        self.went_back: list[str] = []
        self.looks = 0

    def work(self) -> None:
        asyncio.run(self._watch())

    async def _watch(self) -> None:
        while not self.ended.is_set():
            # The node is down at times, and loads at others.
            with suppress(ConnectionFailed, KafkaError):
                async with Cluster(parse_bootstrap(self._bootstrap)) as cluster:
                    while not self.ended.is_set():
                        for group in self._groups:
                            self._compare(group, await Groups(cluster).committed(group))
                        await asyncio.sleep(0.1)
            await asyncio.sleep(0.1)

    def _compare(
        self, group: str, committed: Mapping[TopicPartition, tuple[int, str | None]]
    ) -> None:
        self.looks += 1
        seen = {(group, at.topic, at.partition): offset for at, (offset, _) in committed.items()}
        for place, before in self.highest.items():
            if place[0] == group and seen.get(place, -1) < before:
                self.went_back.append(f"{place}: {before}, then {seen.get(place)}")
        self.highest.update(seen)


class Reader(Background):
    """Reads the committed records of a topic as they come: (offset, value) by partition."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__()
        self._topic = topic
        settings = {**LINK, "bootstrap.servers": bootstrap, "group.id": f"reader-of-{topic}"}
        self._consumer = Consumer(
            settings | {"enable.auto.commit": False, "isolation.level": "read_committed"}
        )
        self.found: list[list[tuple[int, bytes]]] = [[] for _ in range(PARTITIONS)]
        self.count = 0

    def work(self) -> None:
        self._consumer.assign([Place(self._topic, index, 0) for index in range(PARTITIONS)])
        while not self.ended.is_set():
            for message in self._consumer.consume(5_000, 0.1):
                if message.error() is None:
                    self._keep(message.partition(), message.offset(), message.value())
        self._consumer.close()

    def _keep(self, partition: int | None, offset: int | None, value: bytes | None) -> None:
        assert partition is not None
        assert offset is not None
        assert value is not None
        self.found[partition].append((offset, value))
        self.count += 1


class Nodes(Protocol):
    """What a chain runs on: one node or several."""

    @property
    def bootstraps(self) -> Sequence[str]:
        """Where the clients begin: each one at another."""

    @property
    def replication_factor(self) -> int: ...

    def strike(self, chance: random.Random) -> None:
        """Kill a node, and start it again."""

    def end(self) -> None:
        """Stop, and complain if that was not clean."""


class Workers:
    """The worker processes of all hops."""

    def __init__(self, bootstraps: Sequence[str], directory: Path) -> None:
        names = ((hop, f"{hop[2]}-{number}") for hop in HOPS for number in range(WORKERS))
        self._commands = {
            name: [bootstraps[count % len(bootstraps)], *hop[:3], name, hop[3]]
            for count, (hop, name) in enumerate(names)
        }
        self._directory = directory
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def names(self) -> list[str]:
        return list(self._commands)

    def start(self, name: str) -> None:
        program = Path(__file__).parent / "chaos" / "chain.py"
        with self._log(name).open("ab") as log:
            self._running[name] = subprocess.Popen(
                [sys.executable, str(program), *self._commands[name]],
                stdout=subprocess.DEVNULL,
                stderr=log,
            )

    def kill(self, name: str) -> None:
        process = self._running.pop(name)
        assert process.poll() is None, f"{name} ended by itself: {self.log(name)[-2000:]}"
        process.kill()
        process.wait()

    def kill_all(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()

    def _log(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    def log(self, name: str) -> str:
        return self._log(name).read_text()


class Fire:
    """Kills workers and nodes, and starts them again."""

    def __init__(self, nodes: Nodes, workers: Workers, chance: random.Random) -> None:
        self._nodes, self._workers, self._chance = nodes, workers, chance
        self.node_kills = self.worker_kills = 0

    def strike(self) -> None:
        time.sleep(self._chance.uniform(0.5, 2.5))
        what = self._chance.choice(("worker", "worker", "node", "both"))
        names = self._chance.sample(self._workers.names, self._chance.choice((1, 1, 2)))
        if what != "node":
            for name in names:
                self._workers.kill(name)
                self.worker_kills += 1
        if what != "worker":
            self._nodes.strike(self._chance)
            self.node_kills += 1
        if what != "node":
            for name in names:
                self._workers.start(name)

    @property
    def is_enough(self) -> bool:
        return self.node_kills >= NODE_KILLS and self.worker_kills >= WORKER_KILLS


def run_chain(nodes: Nodes, directory: Path, seed: int) -> None:
    """Feed, kill, and check what came out."""
    print(f"CHRONIK_SEED={seed}")
    workers = Workers(nodes.bootstraps, directory)
    try:
        _run_and_check(nodes, workers, random.Random(seed))
    finally:
        workers.kill_all()


def _run_and_check(nodes: Nodes, workers: Workers, chance: random.Random) -> None:
    began = time.monotonic()
    bootstrap = ",".join(nodes.bootstraps)
    _create_topics(bootstrap, nodes.replication_factor)
    feeder, watcher = Feeder(bootstrap), Watcher(bootstrap, [hop[2] for hop in HOPS])
    live = Reader(bootstrap, "c")
    for part in (feeder, watcher, live):
        part.start()
    for name in workers.names:
        workers.start(name)
    fire = Fire(nodes, workers, chance)
    while not (feeder.done.is_set() and fire.is_enough):
        feeder.check()
        fire.strike()
    fed_s = time.monotonic() - began
    _wait(lambda: live.count >= RECORDS, lambda: live.count, workers)
    drained_s = time.monotonic() - began
    for part in (feeder, live):
        part.end()
    topics = {name: _read(bootstrap, name) for name in "abc"}
    _check_groups(watcher, topics)
    watcher.end()
    assert [len(part) for part in live.found] == [len(part) for part in topics["c"]]
    assert live.found == topics["c"], "what was read meanwhile is what stays"
    for name, topic in topics.items():
        _check_topic(name, topic)
    assert not watcher.went_back
    nodes.end()
    given_up = sum(workers.log(name).count("aborted:") for name in workers.names)
    anew = sum(workers.log(name).count("began anew:") for name in workers.names)
    total = sum(range(RECORDS))
    print(
        f"{RECORDS} records through a -> b -> c in {drained_s:.0f} s ({fed_s:.0f} s under fire): "
        f"{fire.worker_kills} kills of workers, {fire.node_kills} of nodes; "
        f"{given_up} transactions refused and aborted, {anew} clients begun anew; in b and in c "
        f"every number once and in order, sum {total}; "
        f"{watcher.looks} looks at committed offsets, none went back"
    )


def _create_topics(bootstrap: str, replication_factor: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = [NewTopic(name, PARTITIONS, replication_factor) for name in "abc"]
    made = admin.create_topics(wanted)
    for each in made.values():
        each.result(10)


def _wait(done: Callable[[], bool], progress: Callable[[], int], workers: Workers) -> None:
    """Wait for the rest of the records, as long as they come."""
    last, since = progress(), time.monotonic()
    while not done():
        time.sleep(0.05)
        if progress() != last:
            last, since = progress(), time.monotonic()
        stuck = f"stuck at {last}: " + "".join(workers.log(name) for name in workers.names)
        assert time.monotonic() - since < STALL_S, stuck[-4000:]


def _read(bootstrap: str, topic: str) -> list[list[tuple[int, bytes]]]:
    reader = Reader(bootstrap, topic)
    reader.start()
    began = time.monotonic()
    while reader.count < RECORDS and time.monotonic() < began + STALL_S:
        time.sleep(0.01)
    time.sleep(0.3)  # If there were more than there should be, they would come now.
    reader.end()
    return reader.found


def _check_topic(name: str, topic: list[list[tuple[int, bytes]]]) -> None:
    trail = "abc"[1 : "abc".index(name) + 1]
    numbers = []
    for index, records in enumerate(topic):
        values = [value.decode().split() for _, value in records]
        found = [int(value[0]) for value in values]
        assert found == list(range(index, RECORDS, PARTITIONS)), f"{name}-{index}"
        assert all(value[1:] == list(trail) for value in values), f"{name}-{index}"
        offsets = [offset for offset, _ in records]
        assert offsets == sorted(set(offsets))
        numbers += found
    assert len(numbers) == RECORDS
    assert sum(numbers) == sum(range(RECORDS))


def _check_groups(watcher: Watcher, topics: dict[str, list[list[tuple[int, bytes]]]]) -> None:
    """The groups have committed all that they have read: behind the last record of each."""
    for source, _, group, _ in HOPS:
        for index, records in enumerate(topics[source]):
            wanted = records[-1][0] + 1
            deadline = time.monotonic() + 10
            while watcher.highest.get((group, source, index), -1) < wanted:
                assert time.monotonic() < deadline, (group, source, index, watcher.highest)
                time.sleep(0.05)
