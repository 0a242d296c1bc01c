"""Nodes that join, leave and are replaced, as real processes; and those that are refused."""

import json
import shutil
import signal
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_processes import eventually
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from member_processes import MemberProcesses

VALUES = [f"{number:03}" for number in range(60)]


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[MemberProcesses]:
    processes = MemberProcesses(tmp_path)
    yield processes
    processes.kill_all()


@pytest.fixture
def three(nodes: MemberProcesses) -> MemberProcesses:
    """A node that two others have joined."""
    nodes.begin("a")
    for number, name in enumerate(("b", "c"), 2):
        assert nodes.begin(name, *joining(nodes)) == number
    nodes.wait_voters("a", 1, 2, 3)
    return nodes


def joining(nodes: MemberProcesses) -> tuple[str, ...]:
    return ("--join", nodes.kafka("a"), "--secret", nodes.secret("a"))


def write(bootstrap: str, topic: str, values: list[str]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    errors: list[object] = []
    for number, value in enumerate(values):
        producer.produce(
            topic,
            value,
            partition=number % 3,
            on_delivery=lambda error, _: error and errors.append(error),
        )
    assert producer.flush(30) == 0
    assert errors == []


def read(bootstrap: str, topic: str, group: str, count: int) -> list[str]:
    """Read as a group, and commit what was read."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    found: list[str] = []

    def enough() -> bool:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            found.append(message.value().decode())
        return len(found) >= count

    eventually(enough, f"{count} records of {topic}", 30)
    consumer.commit(asynchronous=False)
    consumer.close()
    return sorted(found)


def committed(bootstrap: str, topic: str, group: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    found = consumer.committed([TopicPartition(topic, each) for each in range(3)], timeout=20)
    consumer.close()
    return [each.offset for each in found]


def create(bootstrap: str, topic: str, partitions: int = 3) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(20)


# Growing.


def test_one_node_with_data_grows_to_three_and_loses_nothing(nodes: MemberProcesses) -> None:
    assert nodes.begin("a") == 1
    create(nodes.kafka("a"), "t")
    write(nodes.kafka("a"), "t", VALUES)
    assert read(nodes.kafka("a"), "t", "g", 60) == VALUES
    mode = (nodes.data_dir("a") / "secret").stat().st_mode
    assert stat.S_IMODE(mode) == 0o600
    # By the Kafka port of any node, or by its internal one.
    assert nodes.begin("b", *joining(nodes)) == 2
    internal = ("--join", nodes.internal("b"), "--secret", nodes.secret("b"))
    assert nodes.begin("c", *internal) == 3
    nodes.wait_voters("b", 1, 2, 3)
    for name in ("a", "b", "c"):
        assert nodes.run(name, "brokers")[1] == "Brokers: 1, 2, 3\n"
        assert read(nodes.kafka(name), "t", f"g-{name}", 60) == VALUES
        assert committed(nodes.kafka(name), "t", "g") == [20, 20, 20]
    # The metadata outlives the node that all began with.
    nodes.end("a", signal.SIGKILL)
    eventually(lambda: nodes.status("b")["leader"] in (2, 3), "another leader")
    create(nodes.kafka("c"), "later")
    assert (
        "later"
        in AdminClient({"bootstrap.servers": nodes.kafka("b")}).list_topics(timeout=5).topics
    )
    nodes.begin("a")
    assert read(nodes.kafka("c"), "t", "again", 60) == VALUES
    # A restart needs nothing but the directory, and --join does no harm.
    nodes.end("b")
    nodes.end("c")
    nodes.start("b")
    nodes.start("c", *joining(nodes))
    assert (nodes.ready("b"), nodes.ready("c")) == (2, 3)
    assert nodes.roles("a").keys() == {1, 2, 3}


def test_a_node_that_comes_back_elsewhere_is_found(three: MemberProcesses) -> None:
    for name in ("a", "b", "c"):
        three.end(name)
    three.move("a")
    three.move("c")
    for name in ("a", "b", "c"):
        three.start(name)
    assert [three.ready(name) for name in ("a", "b", "c")] == [1, 2, 3]
    addresses = {node["address"] for node in three.status("b")["nodes"]}
    assert addresses == {three.kafka(name) for name in ("a", "b", "c")}


# Leaving, handing over, resting.


def test_leadership_is_handed_over(three: MemberProcesses) -> None:
    leader = three.status("a")["leader"]
    others = [each for each in (1, 2, 3) if each != leader]
    assert three.run("b", "transfer-leadership", str(others[0])) == (
        0,
        f"node {others[0]} leads\n",
        "",
    )
    assert three.status("c")["leader"] == others[0]
    code, output, _ = three.run("a", "transfer-leadership")
    assert code == 0
    assert output != f"node {others[0]} leads\n"
    code, _, errors = three.run("a", "transfer-leadership", "9")
    assert (code, "no other voter" in errors) == (1, True)


def test_a_removed_node_stops_and_stays_out(three: MemberProcesses) -> None:
    assert three.run("a", "remove-node", "3") == (0, "removed node 3\n", "")
    assert "removed from the cluster" in three.refused("c")
    assert three.status("a")["voters"] == [1, 2]
    assert three.run("b", "brokers")[1] == "Brokers: 1, 2\n"
    three.start("c")  # Its directory still says that it is a member.
    eventually(lambda: "is no member of this cluster" in three.log("c"), "a line that says why")
    three.end("c")
    code, _, errors = three.run("a", "remove-node", "3")
    assert (code, "There is no node 3" in errors) == (1, True)
    # The leader hands over before it goes.
    leader = three.status("a")["leader"]
    three.run("a", "transfer-leadership", "1") if leader != 1 else None
    create(three.kafka("a"), "t")
    code, _, errors = three.run("a", "remove-node", "1", "--no-drain")
    assert (code, "alone has the data of" in errors) == (1, True)
    assert three.run("b", "remove-node", "1", "--force", "--no-drain") == (
        0,
        "removed node 1\n",
        "",
    )
    assert three.status("b")["voters"] == [2]
    code, _, errors = three.run("b", "remove-node", "2")
    assert (code, "no other is online" in errors) == (1, True)


def test_a_removal_that_would_end_all_decisions_is_refused(three: MemberProcesses) -> None:
    three.run("a", "transfer-leadership", "1")
    three.end("c", signal.SIGKILL)
    three.wait_status("a", 3, "offline")
    _, output, _ = three.run("a", "describe", "--json")
    assert [node["fenced"] for node in json.loads(output)["nodes"]] == [False, False, True]
    code, _, errors = three.run("a", "remove-node", "2")
    assert (code, "start node 3 first" in errors) == (1, True)
    assert three.run("a", "remove-node", "3")[0] == 0
    assert three.status("b")["voters"] == [1, 2]


def test_a_node_in_maintenance_gets_no_partitions(three: MemberProcesses) -> None:
    assert three.run("b", "maintenance", "on", "2")[1] == "node 2 is in maintenance\n"
    create(three.kafka("a"), "t", 6)
    admin = AdminClient({"bootstrap.servers": three.kafka("a")})
    partitions = admin.list_topics("t", timeout=5).topics["t"].partitions.values()
    assert {each.leader for each in partitions} == {1, 3}
    three.wait_status("a", 2, "maintenance")
    # What was stopped meanwhile comes back to it, and ending it does not bring it back.
    three.end("b")
    three.wait_status("a", 2, "offline")
    assert three.run("a", "maintenance", "off", "2")[0] == 0
    three.wait_status("a", 2, "offline")
    assert three.run("c", "brokers")[1] == "Brokers: 1, 3\n"
    three.begin("b")
    three.wait_status("a", 2, "online")


def test_add_node_tells_how_and_waits(nodes: MemberProcesses) -> None:
    nodes.begin("a")
    code, output, _ = nodes.run("a", "add-node")
    assert code == 0
    assert output.startswith(f"chronik start --join {nodes.kafka('a')} ")
    nodes.start("b", *joining(nodes))
    code, output, errors = nodes.run("a", "add-node", "--wait", "0.1")
    assert code in (0, 1), errors
    nodes.wait_voters("a", 1, 2)


def test_topics_are_created_while_members_come_and_go(nodes: MemberProcesses) -> None:
    """Whatever was acked is on every node afterwards, whoever led and voted meanwhile."""
    nodes.begin("a")
    acked: list[str] = []
    is_over = threading.Event()

    def work() -> None:
        number = 0
        while not is_over.is_set():
            number += 1
            bootstrap = ",".join(nodes.kafka(name) for name in tuple(nodes.ports))
            admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
            name = f"t{number}"
            try:
                admin.create_topics([NewTopic(name, 1, 1)], request_timeout=3)[name].result(5)
            except KafkaException:
                continue  # Its outcome is unknown; only what is acked counts.
            acked.append(name)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        for name in ("b", "c", "d"):
            nodes.begin(name, *joining(nodes))
        nodes.wait_voters("b", 1, 2, 3, 4)
        nodes.end("a", signal.SIGKILL)
        eventually(lambda: nodes.status("b")["leader"] in (2, 3, 4), "another leader")
        nodes.begin("a")
        # Who has just begun may not lead yet, who has just died may still pass for alive.
        eventually(lambda: nodes.run("b", "transfer-leadership", "1")[0] == 0, "1 leads")
        assert nodes.run("b", "remove-node", "4", "--force")[0] == 0
        nodes.refused("d")
        nodes.end("c", signal.SIGKILL)
        shutil.rmtree(nodes.data_dir("c"))
        nodes.wait_status("a", 3, "offline")
        eventually(lambda: nodes.run("a", "replace-node", "3", "--force")[0] == 0, "3 is replaced")
        nodes.begin("c", "--node-id", "3", *joining(nodes))
        nodes.wait_voters("b", 1, 2, 3)
    finally:
        is_over.set()
        worker.join()
    assert len(acked) > 20
    for name in ("a", "b", "c"):
        admin = AdminClient({"bootstrap.servers": nodes.kafka(name), "log_level": 0})
        assert set(acked) <= admin.list_topics(timeout=10).topics.keys()


# Lost directories.


def test_a_wiped_node_is_replaced_and_votes_again(three: MemberProcesses) -> None:
    create(three.kafka("a"), "t")
    three.end("b", signal.SIGKILL)
    shutil.rmtree(three.data_dir("b"))
    three.start("b", "--node-id", "2", *joining(three))
    assert "replace-node 2" in three.refused("b")
    assert three.roles("a")[2] == "voter"
    code, _, errors = three.run("a", "replace-node", "2")
    assert (code, "alone has the data of" in errors) == (1, True)
    assert three.run("a", "replace-node", "2", "--force")[0] == 0
    assert three.status("a")["voters"] == [1, 3]
    assert three.begin("b", "--node-id", "2", *joining(three)) == 2
    three.wait_voters("a", 1, 2, 3)
    # Its vote counts: with it and one other there is a majority.
    three.end("c", signal.SIGKILL)
    create(three.kafka("b"), "after")


def test_a_node_that_answers_is_not_replaced(three: MemberProcesses) -> None:
    code, _, errors = three.run("a", "replace-node", "3")
    assert (code, "Node 3 answers" in errors) == (1, True)
    assert three.status("a")["voters"] == [1, 2, 3]


# Refused in one line, and the others go on.


def test_a_wrong_secret_is_refused(nodes: MemberProcesses) -> None:
    nodes.begin("a")
    for given in (("--secret", "wrong"), ()):
        nodes.start("b", "--join", nodes.kafka("a"), *given)
        line = nodes.refused("b")
        assert "cluster secret of the two nodes differs" in line
        assert "--secret" in line
    assert nodes.begin("b", *joining(nodes)) == 2


def test_a_wrong_secret_at_a_restart_is_not_kept(three: MemberProcesses) -> None:
    kept = three.secret("b")
    three.end("b")
    three.start("b", "--secret", "wrong")
    eventually(lambda: "secret" in three.log("b"), "it is told")
    three.end("b")
    assert three.secret("b") == kept
    three.begin("b")
    three.wait_status("a", 2, "online")


def test_a_node_id_that_runs_is_not_taken_twice(three: MemberProcesses) -> None:
    for number in ("1", "3"):
        three.start("d", "--node-id", number, *joining(three))
        line = three.refused("d")
        assert f"two nodes have the id {number}" in line or f"Node id {number} belongs" in line
    assert three.run("a", "brokers")[1] == "Brokers: 1, 2, 3\n"


def test_a_directory_of_another_cluster_is_not_let_in(nodes: MemberProcesses) -> None:
    nodes.begin("a")
    nodes.begin("b", *joining(nodes))
    nodes.begin("x", "--secret", nodes.secret("a"))
    nodes.end("x")
    # The stranger stands where node 2 was.
    nodes.end("b")
    nodes.ports["x"] = nodes.ports["b"]
    nodes.start("x")
    eventually(lambda: "is of cluster" in nodes.log("a"), "a line that says why")
    nodes.end("x")
    assert nodes.begin("b") == 2
    nodes.wait_voters("a", 1, 2)


def test_a_node_that_could_not_serve_does_not_join(nodes: MemberProcesses) -> None:
    nodes.begin("a")
    taken = nodes.kafka("a").rpartition(":")[2]
    nodes.start("b", *joining(nodes), "--http-port", taken)
    assert "(--http-port)" in nodes.refused("b")
    assert nodes.roles("a") == {1: "leader"}


def test_nobody_to_join_is_told(nodes: MemberProcesses) -> None:
    nodes.start("b", "--join", nodes.kafka("a"))
    eventually(lambda: "not let into the cluster yet" in nodes.log("b"), "a line that says why")
    nodes.end("b")
    # It does not become a cluster of its own, and joins once there is one.
    nodes.start("b")
    assert "asked for a cluster" in nodes.refused("b")
    nodes.begin("a")
    assert nodes.begin("b", *joining(nodes)) == 2
