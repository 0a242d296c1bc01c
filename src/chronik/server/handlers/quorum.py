"""DescribeQuorum and UnregisterBroker: who decides in this cluster, and who is gone from it.

Versions: DescribeQuorum 0-2 (1 adds timestamps, 2 nodes and messages), UnregisterBroker 0.

Behaviour
    The metadata log is partition 0 of __cluster_metadata; nothing else is described.
    Only the leader knows how far the others are, and any other node asks it: Java's administrator
    stays with one node, whoever that is. If the leader does not answer, or the node's own view is
    asked for, it says NOT_LEADER_OR_FOLLOWER, who leads as far as it knows, its own term, commit
    index and applied index, and who the voters are.
    Indexes stand where Kafka has offsets: a member's log end offset is the last index it has saved,
    so that Kafka's lag, a difference of two, is ours.
"""

from typing import Final

from chronik.client.link import Address, ConnectionFailed, Link
from chronik.coordinator.internal_topics import wanted_factors
from chronik.metadata.commands import RemoveBroker
from chronik.metadata.health import Health, below_factor, health
from chronik.metadata.image import id_bytes
from chronik.metadata.partitions import min_in_sync
from chronik.metadata.records import BrokerRecord
from chronik.protocol.apis import DESCRIBE_QUORUM
from chronik.protocol.errors import ErrorCode, KafkaError, ProtocolError
from chronik.protocol.messages.quorum import (
    METADATA_TOPIC,
    DescribeQuorumListener,
    DescribeQuorumNode,
    DescribeQuorumPartition,
    DescribeQuorumRequest,
    DescribeQuorumRequestTopic,
    DescribeQuorumResponse,
    DescribeQuorumTopic,
    FollowerLag,
    PartitionCounts,
    ReplicaState,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from chronik.protocol.schema import NO_UUID
from chronik.raft.types import Role
from chronik.replication.lag import follower_lags
from chronik.server.context import Context

UNKNOWN: Final = -1
# A leader that is there answers within milliseconds; one that is gone is replaced within seconds.
LEADER_TIMEOUT_S: Final = 2.0


async def describe_quorum(
    context: Context, request: DescribeQuorumRequest
) -> DescribeQuorumResponse:
    places = [
        (topic.topic_name, each.partition_index)
        for topic in request.topics
        for each in topic.partitions
    ]
    if places != [(METADATA_TOPIC, 0)]:
        topics = [_unknown(topic) for topic in request.topics]
        return DescribeQuorumResponse(error_code=ErrorCode.NONE, topics=topics)
    if not (request.is_own_view or context.node.metadata.is_leading):
        answer = await _ask_leader(context, request)
        if answer is not None:
            return answer
    code = ErrorCode.NONE if context.node.metadata.is_leading else ErrorCode.NOT_LEADER_OR_FOLLOWER
    image = context.image
    found = cluster_health(context) if request.is_own_view else Health()
    return DescribeQuorumResponse(
        error_code=code,
        topics=[DescribeQuorumTopic(topic_name=METADATA_TOPIC, partitions=[_log(context, code)])],
        nodes=[_node(image.brokers[node_id], found) for node_id in sorted(image.brokers)],
        counts=[_counts(context, found)] if request.is_own_view else (),
        follower_lags=_follower_lags(context) if request.is_own_view else (),
    )


def cluster_health(context: Context) -> Health:
    """How the partitions are doing, as this node's image says."""
    image = context.image
    return health(image, min_in_sync(image, context.node.broker_config()))


def _counts(context: Context, found: Health) -> PartitionCounts:
    image = context.image
    return PartitionCounts(
        partition_count=found.partition_count,
        under_replicated_count=found.under_replicated_count,
        under_min_isr_count=found.under_min_isr_count,
        offline_count=found.offline_count,
        moving_count=found.moving_count,
        not_preferred_count=found.not_preferred_count,
        topics_below_factor=below_factor(image, wanted_factors(context.node.broker_config())),
    )


def _follower_lags(context: Context) -> list[FollowerLag]:
    return [
        FollowerLag(
            node_id=node_id,
            partition_count=lag.partition_count,
            lagging_count=lag.lagging_count,
            records_max=lag.records_max,
            records_total=lag.records_total,
        )
        for node_id, lag in sorted(follower_lags(context.node.replicas.loaded()).items())
    ]


async def _ask_leader(
    context: Context, request: DescribeQuorumRequest
) -> DescribeQuorumResponse | None:
    """The leader's own view, so that nobody is asked in a circle; None if there is no answer."""
    leader_id = context.node.metadata.consensus.node.leader_id
    leader = None if leader_id is None else context.image.brokers.get(leader_id)
    if leader is None:
        return None
    own_view = DescribeQuorumRequest(topics=request.topics, is_own_view=True)
    try:
        link = await Link.connect(Address(leader.host, leader.port), timeout_s=LEADER_TIMEOUT_S)
        try:
            answer: DescribeQuorumResponse = await link.send(
                own_view, DESCRIBE_QUORUM, timeout_s=LEADER_TIMEOUT_S
            )
        finally:
            link.close()
    except (ConnectionFailed, KafkaError, ProtocolError):
        return None
    return answer


def _unknown(topic: DescribeQuorumRequestTopic) -> DescribeQuorumTopic:
    return DescribeQuorumTopic(
        topic_name=topic.topic_name,
        partitions=[
            DescribeQuorumPartition(
                partition_index=each.partition_index,
                error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                leader_id=UNKNOWN,
                leader_epoch=UNKNOWN,
                high_watermark=UNKNOWN,
                current_voters=(),
                observers=(),
            )
            for each in topic.partitions
        ],
    )


def _log(context: Context, code: ErrorCode) -> DescribeQuorumPartition:
    metadata = context.node.metadata
    raft = metadata.consensus.node
    now_ms = int(context.node.clock.monotonic() * 1000)
    members = raft.membership
    return DescribeQuorumPartition(
        partition_index=0,
        error_code=code,
        leader_id=UNKNOWN if raft.leader_id is None else raft.leader_id,
        leader_epoch=raft.term,
        high_watermark=raft.commit_index,
        current_voters=[_replica(context, each, now_ms) for each in sorted(members.voters)],
        observers=[_replica(context, each, now_ms) for each in sorted(members.learners)],
        applied_index=metadata.applied_index,
        has_lease=raft.has_lease(now_ms),
    )


def _replica(context: Context, node_id: int, now_ms: int) -> ReplicaState:
    """A member as the leader sees it; to any other node only its own log is known."""
    raft = context.node.metadata.consensus.node
    wall_ms = context.node.clock.wall_ms()
    end, fetched_ms, caught_up_ms = UNKNOWN, UNKNOWN, UNKNOWN
    progress = raft.progress.get(node_id) if raft.role is Role.LEADER else None
    if node_id == raft.node_id:
        end = raft.log.last_index
        if raft.role is Role.LEADER:
            caught_up_ms = wall_ms
    elif progress is not None:
        end = progress.match_index
        if progress.answered_round:  # Else it counts from the election, and nobody was heard.
            fetched_ms = wall_ms - (now_ms - progress.heard_ms)
        if end >= raft.log.last_index:
            caught_up_ms = fetched_ms
    directory = raft.membership.directories.get(node_id)
    return ReplicaState(
        replica_id=node_id,
        replica_directory_id=NO_UUID if directory is None else id_bytes(directory),
        log_end_offset=end,
        last_fetch_timestamp=fetched_ms,
        last_caught_up_timestamp=caught_up_ms,
    )


def _node(broker: BrokerRecord, found: Health) -> DescribeQuorumNode:
    listeners = [DescribeQuorumListener(name="PLAINTEXT", host=broker.host, port=broker.port)]
    if broker.internal_port:
        host = broker.internal_host
        listeners.append(
            DescribeQuorumListener(name="INTERNAL", host=host, port=broker.internal_port)
        )
    return DescribeQuorumNode(
        node_id=broker.node_id,
        listeners=listeners,
        status=broker.status.value,
        leader_count=found.leaders[broker.node_id],
        replica_count=found.replicas[broker.node_id],
    )


async def unregister_broker(
    context: Context, request: UnregisterBrokerRequest
) -> UnregisterBrokerResponse:
    try:
        await context.node.metadata.submit(RemoveBroker(node_id=request.broker_id))
    except KafkaError as error:
        return UnregisterBrokerResponse(error_code=error.code, error_message=error.message)
    return UnregisterBrokerResponse(error_code=ErrorCode.NONE)
