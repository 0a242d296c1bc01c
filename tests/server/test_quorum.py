"""DescribeQuorum and UnregisterBroker on the wire of a node that is alone."""

from typing import Any

import pytest

from chronik.protocol import apis
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.quorum import (
    METADATA_TOPIC,
    DescribeQuorumRequest,
    DescribeQuorumRequestPartition,
    DescribeQuorumRequestTopic,
    UnregisterBrokerRequest,
)


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
