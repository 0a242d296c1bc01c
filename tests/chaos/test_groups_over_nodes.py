"""One group over three nodes: each member knows another node, and all of them die in turn.

The coordinator, the members and the leaders of partitions are killed -9 one after the other. Every
record is read at least once, nothing is read that was not written, and no committed offset is ever
seen to go back.
"""

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from chain_world import OPTIONS, Watcher
from cluster_processes import ClusterProcesses, eventually
from replicated_topics import create_on, leaders
from replication_load import Load
from wire import Wire

from chronik.protocol.coordinator_apis import FIND_COORDINATOR, TXN_OFFSET_COMMIT
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.groups import FindCoordinatorRequest
from chronik.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

EVERYBODY = [1, 2, 3]
TOPIC, GROUP = "t", "g"
PARTITIONS = 6
ROUNDS = 2


class Members:
    """The processes of a group, each with one node as its bootstrap."""

    def __init__(self, cluster: ClusterProcesses, directory: Path, protocol: str) -> None:
        self._cluster, self._directory, self._protocol = cluster, directory, protocol
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, number: int) -> None:
        bootstrap = f"127.0.0.1:{self._cluster.ports[number]}"
        program = str(Path(__file__).parent / "member.py")
        arguments = [bootstrap, TOPIC, GROUP, self._protocol, str(self._file(number))]
        with open(self._directory / f"member-{number}.log", "ab") as log:
            self._running[number] = subprocess.Popen(
                [sys.executable, program, *arguments], stdout=log, stderr=log
            )

    def kill(self, number: int) -> None:
        process = self._running.pop(number)
        assert process.poll() is None, f"member {number} ended by itself"
        process.kill()
        process.wait()

    def kill_all(self) -> None:
        for number in tuple(self._running):
            self.kill(number)

    def _file(self, number: int) -> Path:
        return self._directory / f"member-{number}.txt"

    def read_by(self, number: int) -> set[tuple[int, int, str]]:
        """Partition, offset and value of each record that this member has read."""
        path = self._file(number)
        lines = path.read_text().splitlines() if path.exists() else []
        # The last line may be cut: its writer was killed.
        rows = [line.split(" ") for line in lines]
        return {(int(row[0]), int(row[1]), row[2]) for row in rows if len(row) == 3}

    def read(self) -> set[tuple[int, int, str]]:
        return set.union(*map(self.read_by, EVERYBODY))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(tmp_path, 3, *OPTIONS, "--set", "min.insync.replicas=2") as running:
        yield running


def coordinator(cluster: ClusterProcesses) -> int:
    """Who coordinates the group, once somebody does."""
    found: list[int] = []

    def is_there() -> bool:
        for node_id in cluster.running:
            wire = Wire(f"127.0.0.1:{cluster.ports[node_id]}")
            answer = wire.ask(FIND_COORDINATOR, 2, FindCoordinatorRequest(key=GROUP))
            wire.close()
            if answer.error_code == 0:
                found[:] = [answer.node_id]
                return answer.node_id in cluster.running
        return False

    eventually(is_there, "a coordinator")
    return found[0]


@pytest.mark.parametrize("protocol", ["consumer", "cooperative-sticky"])
def test_members_at_different_nodes_are_one_group(
    cluster: ClusterProcesses, tmp_path: Path, protocol: str
) -> None:
    create_on(cluster, TOPIC, *([[1, 2, 3], [2, 3, 1], [3, 1, 2]] * 2))
    members = Members(cluster, tmp_path, protocol)
    load = Load(cluster.bootstrap, TOPIC, "p", PARTITIONS, pause_s=0.002)
    watcher = Watcher(cluster.bootstrap, [GROUP])
    load.start()
    watcher.start()
    try:
        for number in EVERYBODY:
            members.start(number)
        eventually(lambda: all(map(members.read_by, EVERYBODY)), "all members read", 30)
        for _ in range(ROUNDS):
            _kill_in_turn(cluster, members)
        load.stop()
        written = set(load.acked)
        # All that was acknowledged; of what is left in the log, nothing was made up.
        eventually(lambda: {row[2] for row in members.read()} >= written, "all is read", 60)
    finally:
        members.kill_all()
    watcher.end()
    found = members.read()
    assert len({row[:2] for row in found}) == len(found), "two records at one offset"
    assert len({row[2] for row in found}) == len(found), "one record at two offsets"
    assert {row[2] for row in found} == written
    assert watcher.looks > 3
    assert not watcher.went_back
    print(f"{len(written)} records, {watcher.looks} looks at committed offsets, none went back")


def test_offsets_of_a_transaction_at_another_node_are_sent_to_the_coordinator(
    cluster: ClusterProcesses,
) -> None:
    """Any other code than NOT_COORDINATOR would have librdkafka ask the same node for ever."""
    create_on(cluster, TOPIC, [1, 2, 3])
    offset = TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_metadata=None
    )
    request = TxnOffsetCommitRequest(
        transactional_id="x",
        group_id=GROUP,
        producer_id=1,
        producer_epoch=0,
        topics=[TxnOffsetCommitRequestTopic(name=TOPIC, partitions=[offset])],
    )
    others = [each for each in EVERYBODY if each != coordinator(cluster)]
    for node_id in others:
        wire = Wire(f"127.0.0.1:{cluster.ports[node_id]}")
        answer = wire.ask(TXN_OFFSET_COMMIT, 3, request)
        wire.close()
        assert answer.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR


def _kill_in_turn(cluster: ClusterProcesses, members: Members) -> None:
    """The coordinator, each member, and a leader of a partition."""
    node_id = coordinator(cluster)
    cluster.kill(node_id)
    time.sleep(1)
    cluster.start(node_id)
    for number in EVERYBODY:
        members.kill(number)
        time.sleep(random.uniform(0, 1))
        members.start(number)
    cluster.wait_for(EVERYBODY)
    leader = next(each for each in leaders(cluster, TOPIC, coordinator(cluster)) if each > 0)
    cluster.kill(leader)
    time.sleep(1)
    cluster.start(leader)
    cluster.wait_for(EVERYBODY)
