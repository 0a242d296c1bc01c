"""DescribeQuorum, UnregisterBroker and ChangeCluster on the wire of a node that is alone."""

from typing import Any

import msgspec
import pytest

from chronik.metadata.image import id_text
from chronik.protocol import apis
from chronik.protocol.coordinator_apis import FIND_COORDINATOR
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.groups import FindCoordinatorRequest
from chronik.protocol.messages.quorum import (
    METADATA_TOPIC,
    ChangeClusterRequest,
    DescribeQuorumRequest,
    DescribeQuorumRequestPartition,
    DescribeQuorumRequestTopic,
    UnregisterBrokerRequest,
)
from chronik.server.formation import Join, Joined
from chronik.testing import Broker


def described(wire: Any, version: int, topic: str = METADATA_TOPIC, *partitions: int) -> Any:
    asked = [DescribeQuorumRequestPartition(partition_index=each) for each in partitions or (0,)]
    topics = [DescribeQuorumRequestTopic(topic_name=topic, partitions=asked)]
    return wire.ask(apis.DESCRIBE_QUORUM, version, DescribeQuorumRequest(topics=topics))


@pytest.mark.parametrize("version", range(3))
def test_the_leader_describes_its_quorum(wire: Any, version: int) -> None:
    answer = described(wire, version)
    assert answer.error_code == 0
    (log,) = answer.topics[0].partitions
    (voter,) = log.current_voters
    assert (log.error_code, log.leader_id, log.observers) == (0, 1, [])
    assert log.leader_epoch >= 1
    assert log.high_watermark == log.applied_index == voter.log_end_offset > 0
    assert log.has_lease
    assert voter.replica_id == 1
    assert voter.last_fetch_timestamp == -1
    assert (voter.last_caught_up_timestamp > 0) == (version >= 1)
    assert [(node.node_id, node.status) for node in answer.nodes] == [(1, "online")] * (version > 1)


def test_the_commit_index_moves_with_what_is_decided(wire: Any, say: Any) -> None:
    before = described(wire, 2).topics[0].partitions[0].high_watermark
    say.create(wire, "t")
    assert described(wire, 2).topics[0].partitions[0].high_watermark > before


@pytest.mark.parametrize(("topic", "partitions"), [("t", (0,)), (METADATA_TOPIC, (1, 0))])
def test_nothing_but_the_metadata_log_has_a_quorum(
    wire: Any, topic: str, partitions: tuple[int, ...]
) -> None:
    (found,) = described(wire, 2, topic, *partitions).topics
    assert found.topic_name == topic
    assert [(each.partition_index, each.error_code) for each in found.partitions] == [
        (each, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) for each in partitions
    ]


@pytest.mark.parametrize(
    ("broker_id", "code", "word"),
    [
        (7, ErrorCode.BROKER_ID_NOT_REGISTERED, "7 is not registered"),
        (1, ErrorCode.INVALID_REQUEST, "no other is online"),
    ],
)
def test_a_broker_that_cannot_be_forgotten(
    wire: Any, broker_id: int, code: ErrorCode, word: str
) -> None:
    request = UnregisterBrokerRequest(broker_id=broker_id)
    answer = wire.ask(apis.UNREGISTER_BROKER, 0, request)
    assert answer.error_code == code
    assert word in answer.error_message


def change(wire: Any, what: str, node_id: int = -1, **fields: Any) -> Any:
    request = ChangeClusterRequest(change=what, node_id=node_id, **fields)
    return wire.ask(apis.CHANGE_CLUSTER, 0, request)


def members(wire: Any) -> tuple[list[int], list[int]]:
    (log,) = described(wire, 2).topics[0].partitions
    return [each.replica_id for each in log.current_voters], [
        each.replica_id for each in log.observers
    ]


def test_a_node_that_is_let_in_is_an_observer_until_it_is_removed(
    broker: Broker, wire: Any
) -> None:
    async def join(node_id: int | None, number: int) -> Joined:
        assert broker.node is not None
        body = msgspec.json.encode(Join(node_id, id_text(bytes([number] * 16))))
        answer = await broker.node.members.on_call("join", body)  # type: ignore[misc]
        return msgspec.json.decode(answer, type=Joined)

    joined = broker._run_in_broker(join(None, 7))
    assert (joined.node_id, list(joined.members)) == (2, [1])
    assert members(wire) == ([1], [2])
    assert broker._run_in_broker(join(2, 7)) == joined
    (observer,) = described(wire, 2).topics[0].partitions[0].observers
    assert observer.replica_directory_id == bytes([7] * 16)
    assert observer.last_fetch_timestamp == -1, "it was never heard"
    assert change(wire, "transfer-leadership", 2).error_code == ErrorCode.INVALID_REQUEST
    assert change(wire, "replace-node", 2).error_code == 0
    assert members(wire) == ([1], [])
    assert broker._run_in_broker(join(2, 8)).node_id == 2
    assert change(wire, "remove-node", 2).node_id == 2
    assert members(wire) == ([1], [])


@pytest.mark.parametrize(
    ("what", "node_id", "code", "word"),
    [
        ("dance", 1, ErrorCode.INVALID_REQUEST, "no change 'dance'"),
        ("remove-node", 1, ErrorCode.INVALID_REQUEST, "no other is online"),
        ("remove-node", 7, ErrorCode.BROKER_ID_NOT_REGISTERED, "no node 7"),
        ("transfer-leadership", -1, ErrorCode.INVALID_REQUEST, "nobody to hand over to"),
        ("transfer-leadership", 7, ErrorCode.INVALID_REQUEST, "no other voter"),
        ("maintenance-on", 7, ErrorCode.BROKER_ID_NOT_REGISTERED, "not registered"),
    ],
)
def test_a_change_that_cannot_be(
    wire: Any, what: str, node_id: int, code: ErrorCode, word: str
) -> None:
    answer = change(wire, what, node_id)
    assert answer.error_code == code
    assert word in answer.error_message


def test_a_node_rests_and_works_again(wire: Any, say: Any) -> None:
    for what, status in (("maintenance-on", "maintenance"), ("maintenance-off", "online")):
        for _ in range(2):  # Asked for again, it is done.
            assert change(wire, what, 1).error_code == 0
        assert [node.status for node in described(wire, 2).nodes] == [status]
    say.create(wire, "t")


def test_a_node_that_rests_coordinates_what_it_leads(wire: Any) -> None:
    def found(key_type: int) -> tuple[int, int]:
        request = FindCoordinatorRequest(key="k", key_type=key_type)
        answer = wire.ask(FIND_COORDINATOR, 1, request)
        return answer.error_code, answer.node_id

    assert (found(0), found(1)) == ((0, 1), (0, 1))
    assert change(wire, "maintenance-on", 1).error_code == 0
    assert (found(0), found(1)) == ((0, 1), (0, 1))
