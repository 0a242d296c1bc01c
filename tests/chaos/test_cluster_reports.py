"""The five reports about an earlier system: none of them can happen here.

Each is a test, named after it, that fails on the behaviour which it describes. What they have in
common: Raft worked, and clients saw no brokers.

`CHRONIK_TEST_IDLE_S` is how long the third one leaves a cluster alone; `make chaos` takes the
report's own 90 s.
"""

import importlib.util
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_clients import create, read, write
from cluster_processes import ClusterProcesses, eventually
from confluent_kafka import Consumer, TopicPartition
from wire import Wire

from chronik.protocol import apis
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from chronik.protocol.messages.topics import CreatableTopic, CreateTopicsRequest

HERE = Path(__file__).parent
EVERYBODY = [1, 2, 3]
IDLE_S = float(os.environ.get("CHRONIK_TEST_IDLE_S", "2"))
LEASE_S = 0.3
ACK_S_MAX = 2.0
RETRIABLE = {ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_CONTROLLER}


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[ClusterProcesses]:
    """Three nodes, none of them started."""
    cluster = ClusterProcesses(tmp_path, 3, "--set", "group.initial.rebalance.delay.ms=0")
    yield cluster
    cluster.kill()


@pytest.fixture
def cluster(nodes: ClusterProcesses) -> ClusterProcesses:
    nodes.start()
    nodes.wait_for(EVERYBODY)
    return nodes


@pytest.fixture(scope="module")
def environments() -> Any:
    """The module that installs Kafka clients."""
    path = HERE.parents[1] / "scripts" / "clients" / "setup.py"
    spec = importlib.util.spec_from_file_location("client_environments", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # Dataclasses look their module up there.
    spec.loader.exec_module(module)
    return module


Snippet = Callable[..., dict[str, Any]]


@pytest.fixture(params=["kafka-python-2", "kafka-python-3"])
def snippet(request: pytest.FixtureRequest, environments: Any) -> Snippet:
    """Runs one of the reports' snippets with the client that they were written for."""
    try:
        python = environments.prepare(request.param)
    except environments.Unavailable as reason:
        if "CI" in os.environ:
            pytest.fail(str(reason))
        pytest.skip(str(reason))
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def run(*words: object) -> dict[str, Any]:
        done = subprocess.run(
            [str(python), str(HERE / "kafka_python_snippets.py"), *map(str, words)],
            capture_output=True,
            text=True,
            timeout=120,
            env=variables,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    return run


def address(cluster: ClusterProcesses, node_id: int) -> str:
    return f"127.0.0.1:{cluster.ports[node_id]}"


def metadata(cluster: ClusterProcesses, node_id: int, *names: str, version: int = 12) -> Any:
    """One node's answer for these topics, which it may create, or for all."""
    topics = [MetadataRequestTopic(name=name) for name in names] if names else None
    wire = Wire(address(cluster, node_id), 20.0)
    try:
        return wire.ask(apis.METADATA, version, MetadataRequest(topics=topics))
    finally:
        wire.close()


def brokers_of(answer: Any) -> list[int]:
    return sorted(broker.node_id for broker in answer.brokers)


# 000: Metadata requests reached nobody who knew a broker, and no topic could be created.


def test_000_old_clients_see_all_brokers_and_create_topics(
    cluster: ClusterProcesses, snippet: Snippet
) -> None:
    for node_id in EVERYBODY:
        made = snippet("create", address(cluster, node_id), f"t{node_id}", 10)
        assert made["created"] == 10
        seen = snippet("brokers", address(cluster, node_id))
        assert seen["cluster"].startswith(f"ClusterMetadata(brokers: 3, topics: {10 * node_id},")
        assert len(seen["topics"]) == 10 * node_id
    for node_id, version in itertools.product(EVERYBODY, (1, 12)):
        answer = metadata(cluster, node_id, version=version)  # 1 is what a client of 0.10 sends.
        assert brokers_of(answer) == EVERYBODY
        assert len(answer.topics) == 30


def test_000_three_thousand_topics(cluster: ClusterProcesses, snippet: Snippet) -> None:
    made = snippet("create", address(cluster, 2), "t", 3_000)
    assert made["created"] == 3_000
    catalogs = [
        {topic.name: topic for topic in metadata(cluster, node_id).topics} for node_id in EVERYBODY
    ]
    assert len(catalogs[0]) == 3_000
    assert catalogs[0] == catalogs[1] == catalogs[2]
    replicas = {len(each.replica_nodes) for t in catalogs[0].values() for each in t.partitions}
    assert replicas == {3}
    assert snippet("brokers", address(cluster, 3))["cluster"].startswith(
        "ClusterMetadata(brokers: 3, topics: 3000,"
    )


# 001: each broker was registered on its own node only, and a producer found nobody to write to.


def test_001_a_producer_is_acked_on_each_node_of_a_young_cluster(
    cluster: ClusterProcesses, snippet: Snippet
) -> None:
    for node_id in EVERYBODY:
        sent = snippet("send", address(cluster, node_id), f"auto-{node_id}")
        assert sent["seconds"] < ACK_S_MAX
        assert read(cluster, f"auto-{node_id}", 1, f"g{node_id}") == ["Hello"]


def test_001_each_node_lists_all_brokers_also_after_a_restart(cluster: ClusterProcesses) -> None:
    for _ in range(2):
        for node_id in EVERYBODY:
            command = [sys.executable, "-c", "from chronik.cli.main import main; main()"]
            command += ["cluster", "brokers", "--bootstrap", address(cluster, node_id)]
            shown = subprocess.run(command, capture_output=True, text=True, timeout=60)
            assert shown.stdout == "Brokers: 1, 2, 3\n", shown.stderr
        cluster.stop()
        cluster.start()
        cluster.wait_for(EVERYBODY)


# 002: registration waited for an election, which waited for registration.


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 1, 2)], ids=str)
def test_002_started_one_by_one(nodes: ClusterProcesses, order: tuple[int, ...]) -> None:
    for count, node_id in enumerate(order, 1):
        nodes.start(node_id)
        if count >= 2:  # A quorum is enough.
            nodes.wait_for(sorted(order[:count]))
    create(nodes, order[0], "t")
    assert all("t" in nodes.metadata(each).topics for each in order)  # type: ignore[union-attr]


def test_002_started_all_together(nodes: ClusterProcesses) -> None:
    nodes.start()
    nodes.wait_for(EVERYBODY)
    create(nodes, nodes.controller(), "t")


def test_002_started_with_one_node_missing(nodes: ClusterProcesses) -> None:
    nodes.start(2, 3)
    nodes.wait_for([2, 3])
    create(nodes, 2, "t")
    write(nodes, 3, "t", ["a"])
    nodes.start(1)
    nodes.wait_for(EVERYBODY)
    assert "t" in nodes.metadata(1).topics  # type: ignore[union-attr]


def test_002_restarted_with_the_leader_last(cluster: ClusterProcesses) -> None:
    create(cluster, 1, "t")
    leader = cluster.controller()
    others = [node_id for node_id in EVERYBODY if node_id != leader]
    cluster.kill()
    cluster.start(*others)
    cluster.wait_for(others)
    create(cluster, others[0], "before")
    cluster.start(leader)
    cluster.wait_for(EVERYBODY)
    assert {"t", "before"} <= set(cluster.metadata(leader).topics)  # type: ignore[union-attr]


# 003: Metadata was answered only while a lease held, by asking a leader that nobody could name.


def test_003_metadata_long_after_the_election_and_after_leader_changes(
    cluster: ClusterProcesses,
) -> None:
    create(cluster, 1, "t")
    time.sleep(IDLE_S)
    _every_node_answers_and_creates(cluster, "idle")
    for number in range(2):
        leader = cluster.controller()
        cluster.signal(leader, signal.SIGSTOP)
        others = [node_id for node_id in EVERYBODY if node_id != leader]
        try:
            for node_id in others:
                eventually(
                    lambda: metadata(cluster, node_id).controller_id in others,  # noqa: B023
                    "another leader",
                )
        finally:
            cluster.signal(leader, signal.SIGCONT)
        cluster.wait_for(EVERYBODY)
        assert cluster.controller() != leader
        _every_node_answers_and_creates(cluster, f"change-{number}")


def _every_node_answers_and_creates(cluster: ClusterProcesses, prefix: str) -> None:
    for node_id in EVERYBODY:
        answer = metadata(cluster, node_id, "t", f"{prefix}-{node_id}")
        assert brokers_of(answer) == EVERYBODY
        assert [topic.error_code for topic in answer.topics] == [0, 0]


def test_003_metadata_with_expired_leases(cluster: ClusterProcesses) -> None:
    """Nobody has a lease, then nobody leads: whoever is asked tells what it knows."""
    create(cluster, 1, "t")
    leader = cluster.controller()
    others = [node_id for node_id in EVERYBODY if node_id != leader]
    cluster.kill(*others)
    time.sleep(2 * LEASE_S)
    for _ in range(20):
        answer = metadata(cluster, leader)
        assert leader in brokers_of(answer)
        assert "t" in {topic.name for topic in answer.topics}
        time.sleep(0.05)
    cluster.start(others[0])  # A quorum again, with one who has forgotten its promises.
    cluster.wait_for(sorted([leader, others[0]]))
    _create_directly(cluster, others[0], "again", ErrorCode.NONE, timeout_ms=30_000)


def test_003_without_a_quorum_writes_are_refused_in_time(cluster: ClusterProcesses) -> None:
    create(cluster, 1, "t")
    leader = cluster.controller()
    follower = next(node_id for node_id in EVERYBODY if node_id != leader)
    for alone in (leader, follower):
        gone = [node_id for node_id in EVERYBODY if node_id != alone]
        cluster.kill(*gone)
        began = time.monotonic()
        _create_directly(cluster, alone, f"never-{alone}", *RETRIABLE, timeout_ms=1_000)
        assert time.monotonic() - began < 3
        # A topic that cannot be made now does not keep the rest of the answer.
        began = time.monotonic()
        answer = metadata(cluster, alone, "t", f"missing-{alone}")
        assert time.monotonic() - began < 5
        assert alone in brokers_of(answer)
        assert answer.topics[1].error_code == ErrorCode.LEADER_NOT_AVAILABLE
        cluster.start(*gone)
        cluster.wait_for(EVERYBODY)
        for node_id in EVERYBODY:
            assert "t" in {topic.name for topic in metadata(cluster, node_id).topics}


def test_003_a_node_that_starts_without_a_quorum_tells_what_it_knew(
    cluster: ClusterProcesses,
) -> None:
    create(cluster, 1, "t")
    time.sleep(1.5)  # What is known to be committed is saved once a second.
    cluster.kill(*EVERYBODY)
    cluster.start(2)
    eventually(lambda: cluster.brokers(2) == EVERYBODY, "it tells of all brokers")
    assert "t" in {topic.name for topic in metadata(cluster, 2).topics}
    _create_directly(cluster, 2, "never", *RETRIABLE, timeout_ms=500)
    cluster.start(1, 3)
    cluster.wait_for(EVERYBODY)
    create(cluster, 2, "later")


def _create_directly(
    cluster: ClusterProcesses, node_id: int, name: str, *expected: ErrorCode, timeout_ms: int
) -> None:
    """Create a topic by a request to this very node, which may not lead."""
    topic = CreatableTopic(
        name=name, num_partitions=1, replication_factor=1, assignments=(), configs=()
    )
    wire = Wire(address(cluster, node_id), 35.0)
    try:
        request = CreateTopicsRequest(topics=[topic], timeout_ms=timeout_ms)
        (result,) = wire.ask(apis.CREATE_TOPICS, 7, request).topics
    finally:
        wire.close()
    assert result.error_code in expected


# 004: after a restart offsets were recovered, and brokers were not.


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_004_a_restart_recovers_offsets_and_brokers(cluster: ClusterProcesses, how: str) -> None:
    create(cluster, 2, "t")
    values = [f"{number:03}" for number in range(100)]
    write(cluster, 1, "t", values)
    assert read(cluster, "t", 100) == values
    before = _offsets(cluster)
    cluster.stop() if how == "stopped" else cluster.kill()
    cluster.start()
    for node_id in EVERYBODY:
        assert node_id in _first_brokers(cluster, node_id), "from the first answer on"
    cluster.wait_for(EVERYBODY)
    assert _offsets(cluster) == before
    write(cluster, 3, "t", ["more"])
    assert read(cluster, "t", 1) == ["more"]  # The group goes on where it was.
    assert read(cluster, "t", 101, "another") == sorted([*values, "more"])


def _first_brokers(cluster: ClusterProcesses, node_id: int) -> list[int]:
    found: list[int] = []

    def answers() -> bool:
        try:
            found[:] = brokers_of(metadata(cluster, node_id))
        except OSError:
            return False
        return True

    eventually(answers, f"node {node_id} answers")
    return found


def _offsets(cluster: ClusterProcesses) -> list[tuple[tuple[int, int], int]]:
    """Where the log of each partition begins and ends, and what the group has committed."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g", "log_level": 0})
    places = [TopicPartition("t", partition) for partition in range(3)]
    try:
        committed = consumer.committed(places, timeout=20)
        ends = [consumer.get_watermark_offsets(place, timeout=20) for place in places]
    finally:
        consumer.close()
    return [(end, place.offset) for end, place in zip(ends, committed, strict=True)]
