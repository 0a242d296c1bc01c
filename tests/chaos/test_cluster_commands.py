"""`chronik cluster` with real processes: up, what it shows, down."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ports import INTERNAL_PORT_OFFSET, is_free

from chronik.cli.local_process import Roster, stop_all
from chronik.client.admin import QUORUM_REQUEST
from chronik.client.link import Address, Link
from chronik.protocol.apis import DESCRIBE_QUORUM
from chronik.protocol.messages.quorum import DescribeQuorumRequest

CHRONIK = (sys.executable, "-c", "from chronik.cli.main import main; main()")
TIMEOUT_S = 60.0


def free_ports(count: int) -> int:
    """The first of so many free ports in a row, with their internal ones."""
    # Below the range from which systems take ports for outgoing connections.
    for first in range(20_000 + os.getpid() % 5_000, 32_000, 10):
        wanted = range(first, first + count)
        if all(is_free(each) and is_free(each + INTERNAL_PORT_OFFSET) for each in wanted):
            return first
    raise AssertionError("no free ports")


class Commands:
    """Runs `chronik cluster` about one cluster."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.port = free_ports(3)

    def up(self, *options: str) -> list[str]:
        where = ["--data-dir", str(self.data_dir), "--port", str(self.port)]
        return [*CHRONIK, "cluster", "up", *where, *options]

    def run(self, command: list[str]) -> tuple[int, str, str]:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        return done.returncode, done.stdout, done.stderr

    def ask(self, command: str, node_id: int, *options: str) -> tuple[int, str, str]:
        address = f"127.0.0.1:{self.port + node_id - 1}"
        return self.run([*CHRONIK, "cluster", command, "--bootstrap", address, *options])

    def status(self, node_id: int) -> tuple[int, dict[str, Any]]:
        code, output, _ = self.ask("status", node_id, "--json", "--timeout", "2")
        return code, json.loads(output)

    def down(self) -> tuple[int, str, str]:
        return self.run([*CHRONIK, "cluster", "down", "--data-dir", str(self.data_dir)])


def leader_named_by(port: int) -> int:
    """Who leads, by an answer that is the leader's own, whichever node is asked."""

    async def ask() -> Any:
        link = await Link.connect(Address("127.0.0.1", port))
        request = DescribeQuorumRequest(topics=QUORUM_REQUEST.topics)
        answer = await link.send(request, DESCRIBE_QUORUM)
        link.close()
        return answer

    (log,) = asyncio.run(ask()).topics[0].partitions
    assert log.error_code == 0
    assert all(voter.log_end_offset >= log.high_watermark for voter in log.current_voters)
    return int(log.leader_id)


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    yield Commands(tmp_path / "cluster")
    stop_all(Roster(tmp_path / "cluster").running())


def test_up_detached_and_down(commands: Commands) -> None:
    code, output, _ = commands.run(commands.up("--detach"))
    assert code == 0
    assert output.startswith("3 of 3 brokers, controller ")
    for node_id in (1, 2, 3):
        assert commands.ask("brokers", node_id) == (0, "Brokers: 1, 2, 3\n", "")
    code, shown = commands.status(1)
    assert code == 0
    assert shown["lease"] is True
    assert [(node["id"], node["status"], node["lag"]) for node in shown["nodes"]] == [
        (node_id, "online", 0) for node_id in (1, 2, 3)
    ]
    (leader,) = [node["id"] for node in shown["nodes"] if node["role"] == "leader"]
    assert {commands.status(each)[1]["leader"] for each in (2, 3)} == {leader}
    assert {leader_named_by(commands.port + each) for each in range(3)} == {leader}
    again = commands.run(commands.up("--detach"))
    assert (again[0], "a cluster runs here" in again[2]) == (1, True)
    running = Roster(commands.data_dir).running()
    assert commands.down() == (0, "stopped node 1, 2, 3\n", "")
    assert len(running) == 3
    assert not any(each.is_running for each in running)
    for node_id in (1, 2, 3):
        log = (commands.data_dir / "logs" / f"{node_id}.log").read_text()
        assert log.splitlines()[-1].endswith(f"stopped node_id={node_id}")


def test_without_a_quorum_status_says_why(commands: Commands) -> None:
    assert commands.run(commands.up("--detach"))[0] == 0
    for node in Roster(commands.data_dir).running()[1:]:
        node.signal(signal.SIGKILL)
    shown: dict[str, Any] = {"leader": 1}
    while shown["leader"] is not None:  # A leader notices within an election's time.
        code, shown = commands.status(1)
    assert code == 1
    assert shown["reason"] == "1 of 3 voters answer and 2 are needed: start node 2, 3"
    assert commands.ask("brokers", 1)[0] == 0, "reads go on"
    assert commands.down()[1] == "stopped node 1\n"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_in_the_foreground_a_signal_ends_all_nodes(commands: Commands, how: signal.Signals) -> None:
    with subprocess.Popen(commands.up(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert any(line.startswith("3 of 3 brokers, controller ") for line in lines)
        running = Roster(commands.data_dir).running()
        process.send_signal(how)
        assert list(lines)[-1] == "stopping\n"
        assert process.wait(TIMEOUT_S) == 0
    assert len(running) == 3
    assert not any(each.is_running for each in running)
    assert not Roster(commands.data_dir).path.exists()


def test_a_node_that_ends_at_once_is_one_line_and_ends_all(commands: Commands) -> None:
    commands.data_dir.mkdir()
    (commands.data_dir / "2").write_text("no directory")
    code, output, errors = commands.run(commands.up("--detach"))
    assert (code, output) == (1, "")
    (line,) = errors.splitlines()
    assert line.startswith("chronik: node 2 ended: ")
    assert str(commands.data_dir / "logs" / "2.log") in line
    assert not Roster(commands.data_dir).path.exists()
    assert is_free(commands.port)
