"""Registrations that are taken away, and what brokers leave behind that rest or are gone."""

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_processes import ClusterProcesses, eventually
from confluent_kafka.admin import AdminClient, NewTopic
from member_processes import MemberProcesses
from replication_world import Writer, held, read_all, wait_in_sync, with_cluster

from chronik.client.moves import elect_preferred
from chronik.model import TopicPartition
from chronik.protocol.apis import UNREGISTER_BROKER
from chronik.protocol.messages.quorum import UnregisterBrokerRequest

PLACE = TopicPartition("t", 0)


@pytest.fixture
def three(tmp_path: Path) -> Iterator[MemberProcesses]:
    nodes = MemberProcesses(tmp_path)
    nodes.begin("a")
    for name in ("b", "c"):
        nodes.begin(name, "--join", nodes.kafka("a"), "--secret", nodes.secret("a"))
    nodes.wait_voters("a", 1, 2, 3)
    yield nodes
    nodes.kill_all()


def create(nodes: MemberProcesses, replicas: list[int]) -> None:
    admin = AdminClient({"bootstrap.servers": nodes.kafka("a"), "log_level": 0})
    admin.create_topics([NewTopic("t", 1, replica_assignment=[replicas])])["t"].result(20)


def test_a_broker_that_is_unregistered_while_it_lives_comes_back_into_sync(tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path, 3) as cluster:
        bootstrap = cluster.bootstrap
        cluster.wait_for([1, 2, 3])
        with Writer(bootstrap, "t", 1) as writer:
            eventually(lambda: writer.count > 100, "something is written")
            wait_in_sync(bootstrap, "t")
            for node_id in (1, 2, 3):
                request = UnregisterBrokerRequest(broker_id=node_id)
                response = with_cluster(
                    bootstrap,
                    lambda each: each.send_to_controller(request, UNREGISTER_BROKER),  # noqa: B023
                )
                assert response.error_code == 0
                cluster.wait_for([1, 2, 3])
                wait_in_sync(bootstrap, "t")
                count = writer.count
                eventually(lambda: writer.count > count + 100, "more is written")  # noqa: B023
        assert writer.errors == []
        found = read_all(bootstrap, "t", {0: len(writer.acked[0])})
        assert found[0] == writer.acked[0]
        cluster.stop(1, 2, 3)  # Cleanly: none of its tasks has ended before.
        assert "Traceback" not in "".join(cluster.log(node_id) for node_id in (1, 2, 3))


def test_the_longest_log_leads_where_the_only_copy_was_given_up(three: MemberProcesses) -> None:
    create(three, [3, 1])
    with Writer(three.kafka("a"), "t", 1) as writer:
        eventually(lambda: writer.count > 100, "something is written")
    three.end("a", signal.SIGKILL)
    eventually(lambda: held(three.kafka("b"), "t")[0].isr == (3,), "only node 3 is in sync")
    three.end("c", signal.SIGKILL)
    shutil.rmtree(three.data_dir("c"))
    three.begin("a")
    three.wait_status("a", 3, "offline")
    assert three.run("a", "replace-node", "3")[0] == 1
    assert three.run("a", "replace-node", "3", "--force")[0] == 0
    joining = ("--join", three.kafka("a"), "--secret", three.secret("a"))
    three.begin("c", "--node-id", "3", *joining)
    eventually(lambda: held(three.kafka("a"), "t")[0].leader == 1, "node 1 leads")
    wait_in_sync(three.kafka("a"), "t")
    found = read_all(three.kafka("b"), "t", {0: len(writer.acked[0])})
    assert found[0] == writer.acked[0]


def test_maintenance_gives_away_later_what_nobody_else_could_lead(three: MemberProcesses) -> None:
    create(three, [2, 3])
    three.end("c", signal.SIGKILL)
    eventually(lambda: held(three.kafka("a"), "t")[0].isr == (2,), "only node 2 is in sync")
    assert three.run("a", "maintenance", "on", "2")[0] == 0
    assert held(three.kafka("a"), "t")[0].leader == 2
    three.begin("c")
    eventually(lambda: held(three.kafka("a"), "t")[0].leader == 3, "node 3 leads")
    assert with_cluster(three.kafka("a"), lambda each: elect_preferred(each, [PLACE])) == 0
