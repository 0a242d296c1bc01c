"""`chronik cluster`: its arguments, and what it makes of the nodes' answers."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from chronik.cli.cluster import Answers, summary
from chronik.cli.commands import app
from chronik.cli.local_cluster import View, is_formed, status_text
from chronik.cli.local_process import NodeProcess, Roster, start_time, stop_all
from chronik.client.admin import Quorum
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.cluster import DescribeClusterBroker, DescribeClusterResponse
from chronik.protocol.messages.quorum import (
    DescribeQuorumNode,
    DescribeQuorumPartition,
    ReplicaState,
)

NODE_IDS = (1, 2, 3)


def invoke(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["cluster", *map(str, arguments)])
    return result.exit_code, " ".join(result.output.split())


# Arguments.


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["up", "--nodes", "0"], "--nodes"),
        (["up", "--nodes", "10"], "--nodes"),
        (["up", "--port", "0"], "--port"),
        (["up", "--port", "65500"], "--port"),
        (["up", "--nodes", "many"], "--nodes"),
        (["down", "--nodes", "3"], "--nodes"),
        (["status", "--bootstrap", "nowhere"], "'nowhere' is not HOST:PORT"),
        (["brokers", "extra"], "extra"),
    ],
)
def test_wrong_arguments_are_usage_errors(arguments: list[str], word: str) -> None:
    code, output = invoke(*arguments)
    assert code == 2
    assert word in output


@pytest.mark.parametrize("offset", [1, 101])
def test_a_port_in_use_is_one_line_and_nothing_is_started(tmp_path: Path, offset: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        data_dir = tmp_path / "data"
        code, output = invoke("up", "--port", port - offset, "--data-dir", data_dir)
    assert code == 1
    named = re.search(r"cannot listen on 127\.0\.0\.1:(\d+): address already in use", output)
    assert named is not None
    # Somebody else may have one of the others, too.
    ports = {port - offset + each + way for each in range(3) for way in (0, 100)}
    assert int(named[1]) in ports
    assert output.count("chronik: ") == 1
    assert not data_dir.exists()


def test_down_needs_a_cluster(tmp_path: Path) -> None:
    code, output = invoke("down", "--data-dir", tmp_path)
    assert (code, output.startswith("chronik: ")) == (1, True)
    assert "no cluster was started here" in output


def test_a_damaged_list_of_processes_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text("{")
    for command in ("up", "down"):
        code, output = invoke(command, "--data-dir", tmp_path)
        assert code == 1
        assert "is no list of processes" in output


# Processes.


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that does nothing until it is ended."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_a_process_is_known_by_its_start_time(sleeper: subprocess.Popen[bytes]) -> None:
    node = NodeProcess.of(1, sleeper.pid, 9092)
    assert node.is_running
    assert start_time(os.getpid()) is not None
    assert stop_all([node]) == []
    assert not node.is_running
    assert sleeper.wait() == -signal.SIGTERM


def test_somebody_elses_process_under_the_same_id_is_left_alone(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    roster = Roster(tmp_path)
    roster.save([NodeProcess(1, sleeper.pid, "another time", 9092)])
    assert invoke("down", "--data-dir", tmp_path) == (0, "no node was running")
    assert sleeper.poll() is None
    assert not roster.path.exists()


def test_a_second_cluster_in_the_same_directory_is_refused(tmp_path: Path) -> None:
    Roster(tmp_path).save([NodeProcess.of(1, os.getpid(), 9092)])
    code, output = invoke("up", "--data-dir", tmp_path)
    assert code == 1
    assert f"a cluster runs here (processes {os.getpid()})" in output


# The status line of `up`.


def view(*broker_ids: int, leader_id: int = 2, term: int = 1) -> View:
    return View(broker_ids, max(leader_id, 1), leader_id, term)


@pytest.mark.parametrize(
    ("views", "text", "formed"),
    [
        ({}, "no node answers yet", False),
        (
            {each: view(*NODE_IDS) for each in NODE_IDS},
            "3 of 3 brokers, controller 2, term 1",
            True,
        ),
        (
            {1: view(1, 2), 2: view(1, 2)},
            "2 of 3 brokers, controller 2, term 1, no answer from 3",
            False,
        ),
        (
            {1: view(1, 2, 3), 2: view(1, 2, 3), 3: view(3, leader_id=-1, term=0)},
            "1 of 3 brokers, controller 2, term 1",
            False,
        ),
        (
            {each: view(*NODE_IDS, leader_id=-1, term=4) for each in NODE_IDS},
            "3 of 3 brokers, no controller, term 4",
            False,
        ),
        (
            {1: view(1, 2, 3), 2: view(1, 2, 3), 3: view(1, 2, 3, leader_id=1, term=2)},
            "3 of 3 brokers, controller 1, term 2",
            False,
        ),
    ],
)
def test_status_line(views: dict[int, View], text: str, formed: bool) -> None:
    assert status_text(NODE_IDS, views) == text
    assert is_formed(NODE_IDS, views) is formed


# `cluster status`.


def quorum(
    *, leads: bool, leader_id: int = 1, ends: tuple[int, int, int] = (9, 9, 9), **fields: Any
) -> Quorum:
    given = {
        "partition_index": 0,
        "error_code": ErrorCode.NONE if leads else ErrorCode.NOT_LEADER_OR_FOLLOWER,
        "leader_id": leader_id,
        "leader_epoch": 3,
        "high_watermark": 8,
        "applied_index": 7,
        "has_lease": leads,
        "current_voters": [
            ReplicaState(replica_id=node_id, log_end_offset=end if leads else -1)
            for node_id, end in zip(NODE_IDS, ends, strict=True)
        ],
        "observers": [],
    }
    nodes = [DescribeQuorumNode(node_id=3, listeners=[], status="maintenance")]
    return Quorum(DescribeQuorumPartition(**(given | fields)), nodes)


def answers(quorums: dict[int, Quorum], **failures: str) -> Answers:
    nodes = [DescribeClusterBroker(broker_id=each, host="h", port=each) for each in NODE_IDS]
    cluster = DescribeClusterResponse(error_code=0, cluster_id="c", controller_id=1, brokers=nodes)
    return Answers(cluster, quorums, {int(name[1:]): why for name, why in failures.items()})


def test_status_is_the_leaders_word_and_each_nodes_own() -> None:
    quorums = {
        1: quorum(leads=True, ends=(9, 9, 4)),
        2: quorum(leads=False, applied_index=6),
        3: quorum(leads=False, leader_epoch=2, high_watermark=4, applied_index=4),
    }
    shown = summary(answers(quorums))
    head = ("leader", "term", "commit_index", "applied_index", "lease", "reason")
    assert [shown[name] for name in head] == [1, 3, 8, 7, True, None]
    names = ("id", "status", "role", "term", "commit_index", "applied_index", "lag")
    assert [tuple(node[name] for name in names) for node in shown["nodes"]] == [
        (1, "online", "leader", 3, 8, 7, 0),
        (2, "online", "voter", 3, 8, 6, 0),
        (3, "maintenance", "voter", 2, 4, 4, 5),
    ]


def test_status_says_why_nobody_leads() -> None:
    lost = summary(answers({1: quorum(leads=False, leader_id=-1)}, n2="refused", n3="refused"))
    assert lost["leader"] is None
    assert lost["lease"] is False
    assert lost["reason"] == "1 of 3 voters answer and 2 are needed: start node 2, 3"
    assert [node["status"] for node in lost["nodes"]] == ["online", "silent", "silent"]
    assert lost["nodes"][1]["error"] == "refused"
    voting = {each: quorum(leads=False, leader_id=-1) for each in (1, 2)}
    assert summary(answers(voting, n3="refused"))["reason"] == "an election is under way"


def test_two_that_claim_to_lead_are_told_apart_by_their_term() -> None:
    old = quorum(leads=True, leader_id=2, leader_epoch=2)
    assert summary(answers({2: old, 1: quorum(leads=True)}))["leader"] == 1


def test_status_is_json_throughout() -> None:
    shown = summary(answers({1: quorum(leads=True)}, n2="refused", n3="refused"))
    assert json.loads(json.dumps(shown)) == shown
