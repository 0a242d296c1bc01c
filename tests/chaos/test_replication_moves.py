"""Partitions and leaders that move between real processes: nothing is lost, and all is the same."""

import json
import random
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_processes import ClusterProcesses, eventually
from confluent_kafka import Consumer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from member_processes import MemberProcesses
from replication_world import (
    Writer,
    held,
    move_to,
    moves_of,
    read_all,
    segments,
    wait_in_sync,
    with_cluster,
)

from chronik.client.admin import Admin
from chronik.client.moves import elect_preferred, reassign
from chronik.model import TopicPartition

PARTITIONS = 3


def create(bootstrap: str, name: str, factor: int, partitions: int = PARTITIONS) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(name, partitions, factor)])[name].result(20)


@pytest.fixture
def four(tmp_path: Path) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(tmp_path, 4) as cluster:
        yield cluster


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[MemberProcesses]:
    processes = MemberProcesses(tmp_path)
    yield processes
    processes.kill_all()


def joining(nodes: MemberProcesses) -> tuple[str, ...]:
    return ("--join", nodes.kafka("a"), "--secret", nodes.secret("a"))


def topics_on(bootstrap: str) -> dict[int, set[str]]:
    """Which topics each node has in its log directory, as it tells."""
    found = with_cluster(bootstrap, lambda cluster: Admin(cluster).log_dirs())
    return {
        node_id: {topic.name for result in results for topic in result.topics}
        for node_id, results in found.items()
    }


def check_all_there(writer: Writer, bootstrap: str, topic: str) -> None:
    assert writer.errors == []
    found = read_all(bootstrap, topic, {i: len(each) for i, each in writer.acked.items()})
    assert found == dict(writer.acked)  # Nothing lost, nothing twice, nothing out of order.


def test_partitions_move_under_load(four: ClusterProcesses) -> None:
    create(four.bootstrap, "t", 2)
    with Writer(four.bootstrap, "t", PARTITIONS) as writer:
        for plan in ([[1, 2], [2, 3], [3, 4]], [[3, 4], [4, 1], [1, 2]], [[2, 1], [3, 2], [4, 3]]):
            before = writer.count
            move_to(four.bootstrap, "t", dict(enumerate(plan)))
            eventually(lambda: writer.count > before + 500, "more is written")  # noqa: B023
    assert moves_of(four.bootstrap) == set()
    check_all_there(writer, four.bootstrap, "t")
    wait_in_sync(four.bootstrap, "t")
    for index, replicas in enumerate([(2, 1), (3, 2), (4, 3)]):
        eventually(lambda: same_everywhere(four, "t", index, replicas), f"t-{index}")  # noqa: B023


def test_a_moved_partition_has_its_files_after_a_restart_and_no_others(
    four: ClusterProcesses,
) -> None:
    create(four.bootstrap, "t", 1, 1)
    move_to(four.bootstrap, "t", {0: [1]})
    with Writer(four.bootstrap, "t", 1) as writer:
        eventually(lambda: writer.count > 200, "something is written")
    move_to(four.bootstrap, "t", {0: [2]})
    four.kill(1, 2)  # Node 1 may not have come to removing its files.
    four.start(1, 2)
    four.wait_for(four.ids)
    check_all_there(writer, four.bootstrap, "t")
    eventually(lambda: segments(four.data_dir(1), "t", 0) is None, "node 1 has nothing any more")
    assert [node_id for node_id, names in topics_on(four.bootstrap).items() if "t" in names] == [2]
    # It becomes a replica again, from nothing.
    move_to(four.bootstrap, "t", {0: [1, 2]})
    eventually(
        lambda: segments(four.data_dir(1), "t", 0) == segments(four.data_dir(2), "t", 0),
        "both are the same",
    )
    check_all_there(writer, four.bootstrap, "t")


@pytest.mark.slow
def test_partitions_move_while_nodes_are_killed(four: ClusterProcesses) -> None:
    create(four.bootstrap, "t", 3, 4)
    chance = random.Random(6)
    with Writer(four.bootstrap, "t", 4) as writer:
        for _ in range(6):
            plan = {
                TopicPartition("t", index): chance.sample(list(four.ids), 3)
                for index in chance.sample(range(4), 2)
            }
            with_cluster(four.bootstrap, lambda cluster: reassign(cluster, plan))  # noqa: B023
            node_id = chance.choice(four.ids)
            four.kill(node_id)
            before = writer.count
            eventually(lambda: writer.count > before + 500, "more is written")  # noqa: B023
            four.start(node_id)
            four.wait_for(four.ids)
        eventually(lambda: moves_of(four.bootstrap) == set(), "all have arrived", 60)
    check_all_there(writer, four.bootstrap, "t")
    wait_in_sync(four.bootstrap, "t")
    for index, partition in held(four.bootstrap, "t").items():
        eventually(lambda: same_everywhere(four, "t", index, partition.replicas), f"t-{index}")  # noqa: B023


def same_everywhere(
    cluster: ClusterProcesses, topic: str, index: int, replicas: tuple[int, ...]
) -> bool:
    """Whether these have the same bytes, and nobody else has any."""
    logs = {each: segments(cluster.data_dir(each), topic, index) for each in cluster.ids}
    others = [each for each in cluster.ids if each not in replicas]
    return len({logs[each] for each in replicas}) == 1 and not any(logs[each] for each in others)


def test_leaders_come_back_to_the_preferred_replica(four: ClusterProcesses) -> None:
    create(four.bootstrap, "t", 3)
    move_to(four.bootstrap, "t", {0: [1, 2, 3], 1: [1, 3, 2], 2: [1, 2, 3]})
    four.kill(1)
    eventually(
        lambda: all(each.leader in (2, 3) for each in held(four.bootstrap, "t").values()),
        "others lead",
    )
    four.start(1)
    wait_in_sync(four.bootstrap, "t")
    places = [TopicPartition("t", index) for index in range(PARTITIONS)]
    elected = with_cluster(four.bootstrap, lambda cluster: elect_preferred(cluster, places[:1]))
    assert elected == 1
    assert held(four.bootstrap, "t")[0].leader == 1
    eventually(
        lambda: all(each.leader == 1 for each in held(four.bootstrap, "t").values()),
        "the controller lets it lead the others by itself",
        25,
    )


def test_rebalance_after_a_join_and_remove_node_drains(nodes: MemberProcesses) -> None:
    nodes.begin("a")
    nodes.begin("b", *joining(nodes))
    nodes.wait_voters("a", 1, 2)
    create(nodes.kafka("a"), "t", 2, 6)
    with Writer(nodes.kafka("a"), "t", 6) as writer:
        eventually(lambda: writer.count > 500, "something is written")
        nodes.begin("c", *joining(nodes))
        nodes.wait_voters("a", 1, 2, 3)
        code, output, errors = nodes.run("a", "rebalance", "--dry-run", "--json")
        assert code == 0, errors
        assert json.loads(output)["applied"] is False
        assert {
            each for part in held(nodes.kafka("a"), "t").values() for each in part.replicas
        } == {1, 2}
        code, output, errors = nodes.run("a", "rebalance", "--throttle", "50000000", "--json")
        assert code == 0, errors
        replicas = [each for part in held(nodes.kafka("a"), "t").values() for each in part.replicas]
        assert Counter(replicas) == {1: 4, 2: 4, 3: 4}
        assert nodes.run("a", "rebalance", "--dry-run")[1] == "replicas are spread evenly\n"
        code, output, errors = nodes.run("a", "remove-node", "3")
        assert (code, output) == (0, "removed node 3\n"), errors
        assert "removed from the cluster" in nodes.refused("c")
        replicas = [each for part in held(nodes.kafka("a"), "t").values() for each in part.replicas]
        assert Counter(replicas) == {1: 6, 2: 6}
        code, _, errors = nodes.run("a", "remove-node", "2")
        assert (code, "more replicas than there would be nodes" in errors) == (1, True)
    check_all_there(writer, nodes.kafka("a"), "t")


def test_internal_topics_get_their_replicas_as_nodes_join(nodes: MemberProcesses) -> None:
    nodes.begin("a")
    create(nodes.kafka("a"), "t", 1, 1)
    consumer = Consumer({"bootstrap.servers": nodes.kafka("a"), "group.id": "g"})
    consumer.subscribe(["t"])
    eventually(lambda: consumer.poll(0.1) is None and bool(consumer.assignment()), "a group")
    assert nodes.status("a")["partitions"]["topics_below_factor"] == ["__consumer_offsets"]
    for name in ("b", "c"):
        nodes.begin(name, *joining(nodes))
    nodes.wait_voters("a", 1, 2, 3)

    def is_raised() -> bool:
        offsets = held(nodes.kafka("a"), "__consumer_offsets").values()
        return all(len(each.isr) == len(each.replicas) == 3 for each in offsets)

    eventually(is_raised, "three replicas of __consumer_offsets", 30)
    consumer.close()
    shown = nodes.status("b")["partitions"]
    assert (shown["topics_below_factor"], shown["under_replicated"]) == ([], 0)


def test_a_wiped_node_is_refilled(nodes: MemberProcesses) -> None:
    nodes.begin("a")
    for name in ("b", "c"):
        nodes.begin(name, *joining(nodes))
    nodes.wait_voters("a", 1, 2, 3)
    create(nodes.kafka("a"), "t", 3)
    with Writer(nodes.kafka("a"), "t", PARTITIONS) as writer:
        eventually(lambda: writer.count > 1000, "something is written")
        nodes.end("b", signal.SIGKILL)
        shutil.rmtree(nodes.data_dir("b"))
        nodes.wait_status("a", 2, "offline")
        assert nodes.run("a", "replace-node", "2")[0] == 0
        nodes.begin("b", "--node-id", "2", *joining(nodes))
        wait_in_sync(nodes.kafka("a"), "t", 60)
    check_all_there(writer, nodes.kafka("a"), "t")
    for index in range(PARTITIONS):
        eventually(
            lambda: len({segments(nodes.data_dir(n), "t", index) for n in "abc"}) == 1,  # noqa: B023
            f"t-{index} is the same everywhere",
        )


def test_an_unclean_election_only_where_it_is_allowed(tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path, 3) as cluster:
        create(cluster.bootstrap, "t", 2, 1)
        move_to(cluster.bootstrap, "t", {0: [1, 2]})
        with Writer(cluster.bootstrap, "t", 1) as writer:
            eventually(lambda: writer.count > 100, "something is written")
        cluster.kill(2)
        eventually(lambda: held(cluster.bootstrap, "t")[0].isr == (1,), "only node 1 is in sync")
        with Writer(cluster.bootstrap, "t", 1) as later:
            eventually(lambda: later.count > 100, "more is written")
        cluster.kill(1)
        cluster.start(2)
        cluster.wait_for([2, 3])
        assert held(cluster.bootstrap, "t")[0].leader == -1
        admin = cluster.admin(3)
        allowed = ConfigEntry(
            "unclean.leader.election.enable",
            "true",
            incremental_operation=AlterConfigOpType.SET,
        )
        topic = ConfigResource(ResourceType.TOPIC, "t", incremental_configs=[allowed])
        admin.incremental_alter_configs([topic])[topic].result(10)
        eventually(lambda: held(cluster.bootstrap, "t")[0].leader == 2, "node 2 leads")
        found = read_all(cluster.bootstrap, "t", {0: len(writer.acked[0])})
        assert found[0] == writer.acked[0]
        cluster.start(1)
        wait_in_sync(cluster.bootstrap, "t")  # What node 2 never had, node 1 has no more.
        assert segments(cluster.data_dir(1), "t", 0) == segments(cluster.data_dir(2), "t", 0)
