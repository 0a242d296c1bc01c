"""`python -m bench.coordinators`: how fast groups become stable, commit and go on.

One node with its defaults, stock consumers for the groups, raw requests for the offsets. Each
figure stands beside its goal; results are also written to bench/results/ as JSON.

How long others pause while a member is added depends on the client, too: it is the median of some
rounds, and with `--peer kafka` an Apache Kafka has the same rounds in turn.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from struct import pack
from typing import Any, TypeVar

from bench.ratios import interleaved, medians
from bench.servers import Server, start_chronik, start_kafka
from chronik.client.cluster import Cluster
from chronik.client.groups import Groups
from chronik.client.link import parse_bootstrap
from chronik.model import TopicPartition
from chronik.protocol.codec import encode
from chronik.protocol.coordinator_apis import OFFSET_COMMIT
from chronik.protocol.errors import KafkaError
from chronik.protocol.messages.headers import RequestHeader, encode_request_header
from chronik.protocol.messages.offset_commits import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)

T = TypeVar("T")

MEMBERS, PARTITIONS = 10, 100
CROWD, MANY_PARTITIONS = 4, 500
LIMIT_S = 60.0
COMMIT_VERSION = 9
CONNECTIONS, INFLIGHT = 16, 20  # as many commits at once as a busy node sees
GOALS = {
    "classic: end of the initial delay to stable, s": ("<=", 0.5),
    "KIP-848: last join to stable, s": ("<=", 1.0),
    "offset commits/s": (">=", 3_000),
    "offset commits per CPU second of the node": (">=", 3_000),
    "fetch of 10,000 committed offsets, ms": ("<=", 100),
}


def create_topic(server: Server, name: str, partitions: int) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(30)


class Member:
    """A stock consumer in a thread of its own, and when it got what."""

    def __init__(self, server: Server, topic: str, group: str, **settings: Any) -> None:
        from confluent_kafka import Consumer

        self._topic = topic
        self._consumer = Consumer(
            {
                "bootstrap.servers": server.bootstrap,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "latest",
                **settings,
            }
        )
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.owned: set[int] = set()
        self.arrivals: list[float] = []

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        self._consumer.subscribe([self._topic])
        while not self._end.is_set():
            messages = self._consumer.consume(1_000, 0.01)
            if messages:
                self.arrivals.append(time.monotonic())
            self.owned = {each.partition for each in self._consumer.assignment()}
        self._consumer.close()

    def stop(self) -> None:
        self._end.set()
        self._thread.join()

    def longest_gap_s(self, since: float, until: float) -> float:
        """The longest time without a record."""
        times = [since, *(each for each in self.arrivals if since < each < until), until]
        return max(after - before for before, after in pairwise(times))


def is_complete(members: list[Member], partitions: int) -> bool:
    owned = [each.owned for each in members]
    return all(owned) and sum(map(len, owned)) == len(set().union(*owned)) == partitions


def wait_until(is_done: Callable[[], bool], about: str) -> float:
    """When it came true."""
    deadline = time.monotonic() + LIMIT_S
    while not is_done():
        if time.monotonic() > deadline:
            raise TimeoutError(about)
        time.sleep(0.002)
    return time.monotonic()


class Forming:
    """Looks at a group again and again, and knows when it was last seen without its members.

    For a classic group its initial delay counts as forming, too.
    """

    def __init__(self, server: Server, group: str) -> None:
        self._server, self._group = server, group
        self._end = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._watch()), daemon=True)
        self.last_seen = time.monotonic()
        self.is_over = False

    async def _watch(self) -> None:
        async with Cluster(parse_bootstrap(self._server.bootstrap)) as cluster:
            while not self._end.is_set() and not self.is_over:
                asked = time.monotonic()
                try:
                    group = await Groups(cluster).describe(self._group)
                    is_full = len(group.members) == MEMBERS
                    self.is_over = is_full and group.state != "PreparingRebalance"
                except KafkaError:
                    pass  # It is not there yet.
                if not self.is_over:
                    self.last_seen = asked
                await asyncio.sleep(0.005)

    def __enter__(self) -> "Forming":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


def time_to_stable_s(server: Server, **settings: Any) -> float:
    """From the end of the initial delay (classic) or the last join (KIP-848) to all assigned."""
    topic = group = f"stable-{uuid.uuid4().hex[:8]}"
    create_topic(server, topic, PARTITIONS)
    members = [Member(server, topic, group, **settings) for _ in range(MEMBERS)]
    with Forming(server, group) as forming:
        for member in members:
            member.start()
        stable = wait_until(
            lambda: forming.is_over and is_complete(members, PARTITIONS), "all partitions"
        )
    for member in members:
        member.stop()
    return stable - forming.last_seen


class Load:
    """A producer that writes to all partitions in turn, some thousand records a second."""

    def __init__(self, server: Server, topic: str) -> None:
        from confluent_kafka import Producer

        self._producer = Producer({"bootstrap.servers": server.bootstrap, "linger.ms": 2})
        self._topic = topic
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        number = 0
        while not self._end.wait(0.01):
            for _ in range(20):
                self._producer.produce(self._topic, b"x", partition=number % MANY_PARTITIONS)
                number += 1
            self._producer.poll(0)
        self._producer.flush(10)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


def pauses_ms(server: Server, **settings: Any) -> tuple[float, float, float]:
    """Longest pause of the others: before a member is added and after; and how long it took."""
    topic = group = f"pause-{uuid.uuid4().hex[:8]}"
    create_topic(server, topic, MANY_PARTITIONS)
    members = [Member(server, topic, group, **settings) for _ in range(CROWD)]
    with Load(server, topic):
        for member in members:
            member.start()
        wait_until(lambda: is_complete(members, MANY_PARTITIONS), "a full group")
        time.sleep(2)
        quiet = time.monotonic()
        time.sleep(3)
        added = Member(server, topic, group, **settings)
        began = time.monotonic()
        added.start()
        done = wait_until(lambda: is_complete([*members, added], MANY_PARTITIONS), "a new member")
        until = done + 1
        time.sleep(1)
    for member in (*members, added):
        member.stop()
    before = max(member.longest_gap_s(quiet, began) for member in members)
    after = max(member.longest_gap_s(began, until) for member in members)
    return before * 1000, after * 1000, (done - began) * 1000


def commit_frame(number: int, group: str, topic: str) -> bytes:
    """An OffsetCommit as it goes over the wire."""
    header = RequestHeader(
        request_api_key=OFFSET_COMMIT.key,
        request_api_version=COMMIT_VERSION,
        correlation_id=number,
        client_id="bench",
    )
    each = OffsetCommitRequestPartition(
        partition_index=number % PARTITIONS, committed_offset=number, committed_metadata=""
    )
    topics = [OffsetCommitRequestTopic(name=topic, partitions=[each])]
    request = OffsetCommitRequest(group_id=group, topics=topics)
    head = encode_request_header(header, OFFSET_COMMIT.request_header_version(COMMIT_VERSION))
    body = encode(request, COMMIT_VERSION, OFFSET_COMMIT.is_flexible(COMMIT_VERSION))
    return pack(">i", len(head) + len(body)) + head + body


async def commit_many(server: Server, topic: str, group: str, count: int) -> None:
    """Send commits on one connection, a window of them at a time, and count the answers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    frames = [commit_frame(number, group, topic) for number in range(count)]
    sent = 0
    for answered in range(count):
        while sent < min(answered + INFLIGHT, count):
            writer.write(frames[sent])
            sent += 1
        size = int.from_bytes(await reader.readexactly(4), "big")
        answer = await reader.readexactly(size)
        # The flexible answer ends in the error code and the three tag counts around it.
        assert answer[-5:-3] == b"\0\0", answer
    writer.close()
    await writer.wait_closed()


def commits_per_s(server: Server, count: int) -> tuple[float, float]:
    """Commits a second, and per CPU second of the node."""
    topic = f"commits-{uuid.uuid4().hex[:8]}"
    create_topic(server, topic, PARTITIONS)
    groups = [f"{topic}-{number}" for number in range(CONNECTIONS)]

    async def run() -> None:
        async with Cluster(parse_bootstrap(server.bootstrap)) as cluster:
            for group in groups:
                await Groups(cluster).commit(group, {TopicPartition(topic, 0): 1})
        each = count // CONNECTIONS
        await asyncio.gather(*(commit_many(server, topic, group, each) for group in groups))

    began, cpu_s = time.perf_counter(), server.cpu_s()
    asyncio.run(run())
    return count / (time.perf_counter() - began), count / (server.cpu_s() - cpu_s)


def fetch_10_000_ms(server: Server) -> float:
    """How long it takes to be told 10,000 committed offsets; the median of five."""
    names = [f"offsets-{uuid.uuid4().hex[:8]}" for _ in range(10)]
    for name in names:
        create_topic(server, name, 1_000)
    offsets = {TopicPartition(name, index): index for name in names for index in range(1_000)}

    async def timed(ask: Callable[[], Awaitable[T]]) -> float:
        began = time.perf_counter()
        await ask()
        return (time.perf_counter() - began) * 1000

    async def run() -> float:
        async with Cluster(parse_bootstrap(server.bootstrap)) as cluster:
            groups = Groups(cluster)
            await groups.commit("many", offsets)
            assert len(await groups.committed("many")) == len(offsets)
            times = [await timed(lambda: groups.committed("many")) for _ in range(5)]
        return statistics.median(times)

    return asyncio.run(run())


def pause_rows(servers: Mapping[str, Server], rounds: int) -> dict[str, float]:
    """The pauses of both protocols, on each server."""
    kinds = {
        "cooperative": {"partition.assignment.strategy": "cooperative-sticky"},
        "KIP-848": {"group.protocol": "consumer"},
    }
    figures = (
        "longest pause of others before",
        "longest pause of others as a member is added",
        "until the new member has its share",
    )
    rows: dict[str, float] = {}
    for kind, settings in kinds.items():
        measured = interleaved(
            servers, rounds, lambda each, given=settings: pauses_ms(each, **given)
        )  # type: ignore[misc]
        for number, figure in enumerate(figures):
            for name, median in medians(measured, lambda each, at=number: each[at]).items():  # type: ignore[misc]
                rows[f"{kind}, {name}: {figure}, ms"] = median
    return rows


def measure(
    server: Server, peers: Mapping[str, Server], commit_count: int, rounds: int
) -> dict[str, float]:
    rows: dict[str, float] = {}
    rows["classic: end of the initial delay to stable, s"] = time_to_stable_s(server)
    rows["KIP-848: last join to stable, s"] = time_to_stable_s(
        server, **{"group.protocol": "consumer"}
    )
    rows |= pause_rows({"chronik": server, **peers}, rounds)
    rows["offset commits/s"], per_cpu_s = commits_per_s(server, commit_count)
    rows["offset commits per CPU second of the node"] = per_cpu_s
    rows["fetch of 10,000 committed offsets, ms"] = fetch_10_000_ms(server)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.coordinators", description=__doc__)
    parser.add_argument("--peer", choices=["kafka"], help="have the same pauses measured on it")
    parser.add_argument("--rounds", type=int, default=3, help="of the pauses")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="chronik-bench-") as home, ExitStack() as stack:
        server = start_chronik(Path(home) / "node")
        stack.callback(server.stop)
        peers = {}
        if arguments.peer:
            peers[arguments.peer] = start_kafka(Path(home) / "peer")
            stack.callback(peers[arguments.peer].stop)
        rows = measure(server, peers, 40_000, arguments.rounds)
    for name, figure in rows.items():
        goal = GOALS.get(name)
        print(f"{name:72}{figure:12.2f}  {f'{goal[0]} {goal[1]}' if goal else ''}")
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    name = f"coordinators-{time.strftime('%Y%m%d-%H%M%S')}.json"
    (results / name).write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
