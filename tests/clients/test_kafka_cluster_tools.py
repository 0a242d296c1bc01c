"""Kafka's tools for partitions that move, against a cluster of real processes."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from clients.test_kafka_tools import Tools
from cluster_processes import ClusterProcesses, eventually
from replication_world import Writer, held, move_to, moves_of, wait_in_sync


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    settings = ("--set", "auto.leader.rebalance.enable=false")
    with ClusterProcesses(tmp_path_factory.mktemp("cluster"), 3, *settings) as processes:
        yield processes


@pytest.fixture
def tools(tools_class_path: str, cluster: ClusterProcesses) -> Tools:
    return Tools(tools_class_path, cluster.bootstrap)


def create(tools: Tools, topic: str, assignment: str) -> None:
    tools.ask("kafka-topics", "--create", "--topic", topic, "--replica-assignment", assignment)


def test_a_reassignment_from_its_plan_to_its_end(tools, cluster, tmp_path):
    create(tools, "plan", "1:2,2:1,1:2,2:1")
    topics = tmp_path / "topics.json"
    topics.write_text(json.dumps({"version": 1, "topics": [{"topic": "plan"}]}))
    told = tools.ask(
        "kafka-reassign-partitions",
        *("--topics-to-move-json-file", str(topics), "--broker-list", "1,2,3", "--generate"),
    )
    plan = tmp_path / "plan.json"
    plan.write_text(told.strip().splitlines()[-1])
    wanted = {
        each["partition"]: tuple(each["replicas"])
        for each in json.loads(plan.read_text())["partitions"]
    }
    assert {3} <= {node for replicas in wanted.values() for node in replicas}
    file = ("--reassignment-json-file", str(plan))
    run = ("kafka-reassign-partitions", *file)
    told = tools.ask(*run, "--execute", "--throttle", "100000000")
    assert "Successfully started partition reassignments" in told
    eventually(lambda: moves_of(cluster.bootstrap) == set(), "all have arrived")
    told = tools.ask(*run, "--verify")
    assert told.count("is completed.") == 4
    assert "Clearing broker-level throttles on brokers 1,2,3" in told
    assert {i: each.replicas for i, each in held(cluster.bootstrap, "plan").items()} == wanted
    entity = ("--entity-type", "topics", "--entity-name", "plan")
    assert "throttled" not in tools.ask("kafka-configs", "--describe", *entity)


def test_a_throttled_reassignment_is_listed_and_cancelled(tools, cluster, tmp_path):
    create(tools, "slow", "1:2")
    with Writer(cluster.bootstrap, "slow", 1) as writer:
        eventually(lambda: writer.count > 5_000, "something is written")
    move = {"topic": "slow", "partition": 0, "replicas": [3, 2]}
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [move]}))
    run = ("kafka-reassign-partitions", "--reassignment-json-file", str(plan))
    tools.ask(*run, "--execute", "--throttle", "1000")
    told = tools.ask("kafka-reassign-partitions", "--list")
    assert "slow-0: replicas: 3,2,1. adding: 3. removing: 1." in told
    described = tools.ask("kafka-topics", "--describe", "--topic", "slow")
    assert "Adding Replicas: 3" in described
    assert "Removing Replicas: 1" in described
    assert "still in progress" in tools.ask(*run, "--verify", "--preserve-throttles")
    told = tools.ask(*run, "--cancel")
    assert "Successfully cancelled partition reassignment for: slow-0" in told
    assert moves_of(cluster.bootstrap) == set()
    assert sorted(held(cluster.bootstrap, "slow")[0].replicas) == [1, 2]


def test_leader_elections(tools, cluster):
    create(tools, "led", "1:2,2:3")
    wait_in_sync(cluster.bootstrap, "led")
    move_to(cluster.bootstrap, "led", {0: [2, 1]})
    assert held(cluster.bootstrap, "led")[0].leader == 1
    preferred = ("kafka-leader-election", "--election-type", "preferred")
    told = tools.ask(*preferred, "--topic", "led", "--partition", "0")
    assert "Successfully completed leader election (PREFERRED) for partitions led-0" in told
    assert held(cluster.bootstrap, "led")[0].leader == 2
    told = tools.ask(*preferred, "--topic", "led", "--partition", "1")
    assert "Valid replica already elected for partitions led-1" in told
    tools.ask(*preferred, "--all-topic-partitions")
    unclean = ("kafka-leader-election", "--election-type", "unclean")
    told = tools.ask(*unclean, "--topic", "led", "--partition", "0")
    assert "Valid replica already elected for partitions led-0" in told
    refusal = tools.refusal(*preferred, "--topic", "led", "--partition", "7")
    assert "UnknownTopicOrPartitionException: There is no partition led-7." in refusal
