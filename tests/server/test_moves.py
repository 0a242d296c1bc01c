"""ElectLeaders and the reassignment requests on one node: each partition has its own answer."""

import pytest

from chronik.protocol import apis
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from chronik.protocol.messages.quorum import (
    METADATA_TOPIC,
    DescribeQuorumRequest,
    DescribeQuorumRequestPartition,
    DescribeQuorumRequestTopic,
)
from chronik.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ElectLeadersTopic,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopic,
    ReassignablePartition,
    ReassignableTopic,
)


def elect(wire, version, topics, election_type=0):
    asked = None if topics is None else [
        ElectLeadersTopic(topic=name, partitions=indexes) for name, indexes in topics.items()
    ]  # fmt: skip
    request = ElectLeadersRequest(election_type=election_type, topic_partitions=asked)
    response = wire.ask(apis.ELECT_LEADERS, version, request)
    return response.error_code, {
        (topic.topic, each.partition_id): each.error_code
        for topic in response.replica_election_results
        for each in topic.partition_result
    }


@pytest.mark.parametrize("version", [0, 1, 2])
def test_an_election_that_is_not_needed(wire, say, version):
    say.create(wire, "t", partitions=2)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert elect(wire, version, {"t": [0, 5], "nowhere": [0]}) == (
        0,
        {
            ("t", 0): ErrorCode.ELECTION_NOT_NEEDED,
            ("t", 5): unknown,
            ("nowhere", 0): unknown,
        },
    )
    assert elect(wire, version, None) == (0, {})


def test_an_unclean_election_where_somebody_leads(wire, say):
    say.create(wire, "t")
    assert elect(wire, 2, {"t": [0]}, 1) == (0, {("t", 0): ErrorCode.ELECTION_NOT_NEEDED})
    assert elect(wire, 2, None, 1) == (0, {})


def test_an_election_of_a_kind_that_there_is_not(wire, say):
    say.create(wire, "t")
    assert elect(wire, 2, {"t": [0]}, 7) == (ErrorCode.INVALID_REQUEST, {})


def reassign(wire, version, partitions, *, topic="t", allow_change=True):
    wanted = [
        ReassignablePartition(partition_index=index, replicas=replicas)
        for index, replicas in partitions.items()
    ]
    request = AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name=topic, partitions=wanted)],
        allow_replication_factor_change=allow_change,
    )
    response = wire.ask(apis.ALTER_PARTITION_REASSIGNMENTS, version, request)
    assert response.error_code == 0
    return {
        each.partition_index: each.error_code
        for found in response.responses
        for each in found.partitions
    }


@pytest.mark.parametrize("version", [0, 1])
def test_each_reassignment_has_its_answer(wire, say, version):
    say.create(wire, "t", partitions=4)
    assert reassign(wire, version, {0: [1], 1: [7], 2: None, 3: [], 9: [1]}) == {
        0: ErrorCode.NONE,
        1: ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        2: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        3: ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert reassign(wire, version, {0: [1]}, topic="nowhere") == {0: unknown}


def test_nothing_moves_on_one_node(wire, say):
    say.create(wire, "t")
    for topics in (
        None,
        [ListPartitionReassignmentsTopic(name="t", partition_indexes=[0, 9])],
        [ListPartitionReassignmentsTopic(name="nowhere", partition_indexes=[0])],
    ):
        request = ListPartitionReassignmentsRequest(topics=topics)
        response = wire.ask(apis.LIST_PARTITION_REASSIGNMENTS, 0, request)
        assert (response.error_code, list(response.topics)) == (0, [])


def test_throttles_are_settings_of_topics_and_brokers(wire, say):
    say.create(wire, "t")

    def alter(kind, name, operation, **settings):
        configs = [
            IncrementalAlterableConfig(
                name=key.replace("_", "."), config_operation=operation, value=value
            )
            for key, value in settings.items()
        ]
        resource = IncrementalAlterConfigsResource(
            resource_type=kind, resource_name=name, configs=configs
        )
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
        (result,) = wire.ask(apis.INCREMENTAL_ALTER_CONFIGS, 1, request).responses
        return result.error_code

    replicas = "leader_replication_throttled_replicas"
    assert alter(2, "t", 0, **{replicas: "0:1,1:2"}) == 0
    assert alter(2, "t", 2, **{replicas: "2:1"}) == 0
    assert alter(2, "t", 0, **{replicas: "*"}) == 0
    assert alter(2, "t", 0, **{replicas: "everything"}) == ErrorCode.INVALID_CONFIG
    assert alter(2, "t", 1, **{replicas: None}) == 0
    assert alter(4, "1", 0, leader_replication_throttled_rate="1000") == 0
    assert alter(4, "1", 0, leader_replication_throttled_rate="-1") == ErrorCode.INVALID_CONFIG
    assert alter(4, "1", 1, leader_replication_throttled_rate=None) == 0


def test_the_own_view_counts_partitions(wire, say):
    say.create(wire, "t", partitions=3)
    log = DescribeQuorumRequestTopic(
        topic_name=METADATA_TOPIC, partitions=[DescribeQuorumRequestPartition(partition_index=0)]
    )
    own = wire.ask(apis.DESCRIBE_QUORUM, 2, DescribeQuorumRequest(topics=[log], is_own_view=True))
    (counts,) = own.counts
    assert (counts.partition_count, counts.under_replicated_count, counts.offline_count) == (
        3,
        0,
        0,
    )
    assert [(node.leader_count, node.replica_count) for node in own.nodes] == [(3, 3)]
    other = wire.ask(apis.DESCRIBE_QUORUM, 2, DescribeQuorumRequest(topics=[log]))
    assert list(other.counts) == []
