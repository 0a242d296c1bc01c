"""Peers that form a cluster: whoever is empty, wrong or wiped finds out, and the others go on."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cluster_processes import ClusterProcesses, eventually
from confluent_kafka.admin import NewTopic
from ports import free_port

from chronik.client.admin import QUORUM_REQUEST
from chronik.metadata.image import id_text
from chronik.protocol import apis
from chronik.protocol.messages.quorum import DescribeQuorumRequest

CHRONIK = (sys.executable, "-c", "from chronik.cli.main import main; main()")
EVERYBODY = [1, 2, 3]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcesses]:
    nodes = ClusterProcesses(tmp_path)
    nodes.start()
    nodes.wait_for(EVERYBODY)
    yield nodes
    nodes.kill()


def create(cluster: ClusterProcesses, node_id: int, name: str) -> None:
    admin = cluster.admin(node_id)
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(20)


def command(
    cluster: ClusterProcesses, node_id: int, *words: str
) -> subprocess.CompletedProcess[str]:
    where = ("--bootstrap", f"127.0.0.1:{cluster.ports[node_id]}")
    return subprocess.run(
        [*CHRONIK, "cluster", *words, *where],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def start_alone(tmp_path: Path, *options: str) -> str:
    """Start a node that must refuse to; the one line that says why."""
    done = subprocess.run(
        [*CHRONIK, "start", "--http-port", "-1", "--data-dir", str(tmp_path / "alone"), *options],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    lines = [each for each in done.stderr.splitlines() if each.startswith("chronik: ")]
    assert (done.returncode, len(lines)) == (1, 1), done.stderr
    return lines[0]


def wipe(cluster: ClusterProcesses, *node_ids: int) -> None:
    cluster.kill(*node_ids)
    for node_id in node_ids:
        shutil.rmtree(cluster.data_dir(node_id))


def test_a_wiped_founder_comes_back_once_it_was_replaced(
    cluster: ClusterProcesses, tmp_path: Path
) -> None:
    create(cluster, 1, "t")
    leader = cluster.controller()
    victim, other = [node_id for node_id in EVERYBODY if node_id != leader]
    wipe(cluster, victim)
    cluster.start(victim)
    said = f"chronik cluster replace-node {victim}"
    eventually(lambda: said in (tmp_path / f"{victim}.log").read_text(), said)
    cluster.stop(victim)

    def is_replaced() -> bool:
        """As long as it was heard of a moment ago, it is not taken for lost."""
        return command(cluster, other, "replace-node", str(victim), "--force").returncode == 0

    eventually(is_replaced, "it is replaced")
    cluster.start(victim)
    cluster.wait_for(EVERYBODY)

    def votes() -> bool:
        return json.loads(command(cluster, other, "status", "--json").stdout)["voters"] == EVERYBODY

    eventually(votes, "it votes")
    assert "t" in cluster.metadata(victim).topics  # type: ignore[union-attr]


def test_empty_nodes_form_no_cluster_where_there_is_one(
    cluster: ClusterProcesses, tmp_path: Path
) -> None:
    """Two of three could elect each other, if they did not ask the third what it knows.

    That one refuses them by its committed members as long as it believes to lead. Without a quorum
    it soon does not, and they wait.
    """
    create(cluster, 1, "t")
    eventually(lambda: "t" in cluster.metadata(1).topics, "the topic")  # type: ignore[union-attr]
    wipe(cluster, 2, 3)
    logs = {node_id: (tmp_path / f"{node_id}.log").stat().st_size for node_id in (2, 3)}
    cluster.start(2, 3)

    def says(node_id: int) -> str:
        return (tmp_path / f"{node_id}.log").read_text()[logs[node_id] :]

    def is_kept_out(node_id: int) -> bool:
        refusal = f"Node id {node_id} belongs to data directory"
        return "not let into the cluster yet" in says(node_id) or refusal in says(node_id)

    for node_id in (2, 3):
        eventually(lambda: is_kept_out(node_id), "it is kept out")  # noqa: B023
        assert "ready" not in says(node_id)
        assert '"cluster_id":""' in (cluster.data_dir(node_id) / "node.json").read_text()
    assert "t" in cluster.metadata(1).topics  # type: ignore[union-attr]


def test_a_second_process_under_a_nodes_id_is_refused(
    cluster: ClusterProcesses, tmp_path: Path
) -> None:
    kafka, internal = free_port(), free_port()
    options = ("--node-id", "2", "--peers", cluster.peers, "--port", str(kafka))
    line = start_alone(tmp_path, *options, "--internal", f"127.0.0.1:{internal}")
    assert "Node id 2 belongs to data directory" in line
    assert cluster.brokers(1) == EVERYBODY


def test_founders_are_bound_to_their_directories(cluster: ClusterProcesses, connect: Any) -> None:
    wire = connect(SimpleNamespace(bootstrap=f"127.0.0.1:{cluster.ports[1]}"))
    request = DescribeQuorumRequest(topics=QUORUM_REQUEST.topics)

    def bound() -> dict[int, str]:
        (log,) = wire.ask(apis.DESCRIBE_QUORUM, 2, request).topics[0].partitions
        return {each.replica_id: id_text(each.replica_directory_id) for each in log.current_voters}

    def own(node_id: int) -> str:
        identity = json.loads((cluster.data_dir(node_id) / "node.json").read_text())
        return str(identity["directory_id"])

    wanted = {node_id: own(node_id) for node_id in EVERYBODY}
    eventually(lambda: bound() == wanted, "all are bound")


def test_wrong_peers_are_told(cluster: ClusterProcesses, tmp_path: Path) -> None:
    one, two, _ = cluster.peers.split(",")
    own_ports = f"{free_port()}:{free_port()}"
    swapped = one.replace("1@", "2@") + "," + two.replace("2@", "1@")
    line = start_alone(tmp_path, "--node-id", "3", "--peers", f"{swapped},3@127.0.0.1:{own_ports}")
    assert "was expected here" in line
    line = start_alone(tmp_path, "--node-id", "4", "--peers", f"{one},4@127.0.0.1:{own_ports}")
    assert "which another list of peers has formed" in line
    assert "--join" in line
    line = start_alone(
        tmp_path, "--node-id", "4", "--peers", f"{one},4@127.0.0.1:{own_ports}", "--secret", "x"
    )
    assert "cluster secret of the two nodes differs" in line
    assert cluster.brokers(1) == EVERYBODY


def test_founders_must_agree_on_the_peers(tmp_path: Path) -> None:
    """Those that do not agree say so and wait: others may come that do."""
    nodes = ClusterProcesses(tmp_path)
    extra = f"{free_port()}:{free_port()}"
    everybody = nodes.peers
    for node_id, peers in ((1, f"{everybody},4@127.0.0.1:{extra}"), (2, everybody)):
        nodes.peers = peers
        nodes.start(node_id)

    def logs(*node_ids: int) -> str:
        return "".join((tmp_path / f"{node_id}.log").read_text() for node_id in node_ids)

    try:
        for node_id in (1, 2):
            line = "another node has another list of peers"
            eventually(lambda: line in logs(node_id), "a line about it")  # noqa: B023
        assert "ready" not in logs(1, 2)
        nodes.start(3)  # It agrees with node 2.
        nodes.wait_for([2, 3], on=[2, 3])
        # Two of node 1's four peers are none: it can never form what it was told to.
        eventually(lambda: "chronik: --peers" in logs(1), "node 1 ends")
    finally:
        nodes.kill()


def test_empty_nodes_with_another_secret_form_no_cluster_either(
    cluster: ClusterProcesses, tmp_path: Path
) -> None:
    """Whoever has a cluster is not away, though it does not know this secret."""
    wipe(cluster, 2, 3)
    both = [
        subprocess.Popen(
            [
                *CHRONIK, "start", "--http-port", "-1", "--node-id", str(node_id),
                "--peers", cluster.peers, "--secret", "rotated",
                "--data-dir", str(cluster.data_dir(node_id)),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for node_id in (2, 3)
    ]  # fmt: skip
    try:
        for process in both:
            _, errors = process.communicate(timeout=20)
            assert process.returncode == 1
            assert "cluster secret of the two nodes differs" in errors
    finally:
        for process in both:
            process.kill()
            process.wait()


def test_two_empty_founders_do_not_wait_for_each_other(tmp_path: Path) -> None:
    """Three of five have formed; each of the others could ask the other one for ever."""
    nodes = ClusterProcesses(tmp_path, 5)
    try:
        nodes.start(3, 4, 5)
        nodes.wait_for([3, 4, 5], on=[3])
        nodes.start(1, 2)
        nodes.wait_for([1, 2, 3, 4, 5])
    finally:
        nodes.kill()


def test_one_wrong_founder_does_not_end_the_others(tmp_path: Path) -> None:
    nodes = ClusterProcesses(tmp_path)
    where = ("--node-id", "3", "--peers", nodes.peers, "--data-dir", str(tmp_path / "wrong"))
    stranger = subprocess.Popen(
        [*CHRONIK, "start", "--http-port", "-1", *where, "--secret", "wrong"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        nodes.start(1)
        line = "cluster secret of the two nodes differs"
        eventually(lambda: line in (tmp_path / "1.log").read_text(), "node 1 tells of it")
        nodes.start(2)
        nodes.wait_for([1, 2], on=[1, 2])
        _, errors = stranger.communicate(timeout=20)
        said = [each for each in errors.splitlines() if each.startswith("chronik: ")]
        assert (stranger.returncode, len(said)) == (1, 1)
        nodes.start(3)  # The right one.
        nodes.wait_for(EVERYBODY)
    finally:
        stranger.kill()
        stranger.wait()
        nodes.kill()
