"""The quorum: DescribeQuorum, UnregisterBroker, and our own ChangeCluster.

To Kafka the metadata log is partition 0 of a topic; a Raft term is its leader epoch and the commit
index its high watermark. What Kafka has no field for are tagged fields of numbers that Kafka will
not reach: clients that do not know them skip them.
"""

from collections.abc import Sequence
from typing import Annotated, Final

from chronik.protocol.schema import (
    NO_UUID,
    Message,
    boolean,
    int16,
    int32,
    int64,
    since,
    string,
    tagged,
    uint16,
    uuid,
)

METADATA_TOPIC: Final = "__cluster_metadata"
OWN_TAG_FIRST: Final = 10_000  # Kafka counts its tags from 0, one by one.
NO_NODE: Final = -1

# What ChangeCluster can be asked for.
REMOVE_NODE: Final = "remove-node"
REPLACE_NODE: Final = "replace-node"
TRANSFER_LEADERSHIP: Final = "transfer-leadership"
MAINTENANCE_ON: Final = "maintenance-on"
MAINTENANCE_OFF: Final = "maintenance-off"


class DescribeQuorumRequestPartition(Message):
    """A partition that is asked for; there is only partition 0."""

    partition_index: int32


class DescribeQuorumRequestTopic(Message):
    """A topic that is asked for; there is only the metadata log."""

    topic_name: string
    partitions: Sequence[DescribeQuorumRequestPartition]


class DescribeQuorumRequest(Message):
    """Asks who leads the metadata log, and how far everybody is.

    With `is_own_view`, what the node that is asked knows by itself; else what the leader knows.
    """

    topics: Sequence[DescribeQuorumRequestTopic]
    is_own_view: Annotated[boolean, tagged(OWN_TAG_FIRST, since=0)] = False


class ReplicaState(Message):
    """How far one member's log is, and when the leader last heard of it (-1: unknown)."""

    replica_id: int32
    replica_directory_id: Annotated[uuid, since(2)] = NO_UUID
    log_end_offset: int64
    last_fetch_timestamp: Annotated[int64, since(1)] = -1
    last_caught_up_timestamp: Annotated[int64, since(1)] = -1


class DescribeQuorumPartition(Message):
    """The metadata log. The last two fields are about the node that answers, leader or not."""

    partition_index: int32
    error_code: int16
    error_message: Annotated[string | None, since(2)] = None
    leader_id: int32
    leader_epoch: int32
    high_watermark: int64
    current_voters: Sequence[ReplicaState]
    observers: Sequence[ReplicaState]
    applied_index: Annotated[int64, tagged(OWN_TAG_FIRST, since=0)] = -1
    has_lease: Annotated[boolean, tagged(OWN_TAG_FIRST + 1, since=0)] = False


class DescribeQuorumTopic(Message):
    """One topic that was asked for."""

    topic_name: string
    partitions: Sequence[DescribeQuorumPartition]


class DescribeQuorumListener(Message):
    """One of a node's addresses."""

    name: string
    host: string
    port: uint16


class DescribeQuorumNode(Message):
    """A registered node, its addresses and its status: online, offline or maintenance."""

    node_id: int32
    listeners: Sequence[DescribeQuorumListener]
    status: Annotated[string, tagged(OWN_TAG_FIRST, since=0)] = ""
    leader_count: Annotated[int32, tagged(OWN_TAG_FIRST + 1, since=0)] = 0
    replica_count: Annotated[int32, tagged(OWN_TAG_FIRST + 2, since=0)] = 0


class FollowerLag(Message):
    """How far a follower is behind the node that answers, over all partitions led there."""

    node_id: int32
    partition_count: int32
    lagging_count: int32
    records_max: int64
    records_total: int64


class PartitionCounts(Message):
    """How all partitions of the cluster are doing, as the image of the node that answers says."""

    partition_count: int32
    under_replicated_count: int32
    under_min_isr_count: int32
    offline_count: int32
    moving_count: int32
    not_preferred_count: int32
    topics_below_factor: Sequence[string]


class DescribeQuorumResponse(Message):
    """The state of the quorum as its leader sees it."""

    error_code: int16
    error_message: Annotated[string | None, since(2)] = None
    topics: Sequence[DescribeQuorumTopic]
    nodes: Annotated[Sequence[DescribeQuorumNode], since(2)] = ()
    # One, or none if nobody asked for the node's own view.
    counts: Annotated[Sequence[PartitionCounts], tagged(OWN_TAG_FIRST, since=0)] = ()
    follower_lags: Annotated[Sequence[FollowerLag], tagged(OWN_TAG_FIRST + 1, since=0)] = ()


class UnregisterBrokerRequest(Message):
    """Asks to forget a broker."""

    broker_id: int32


class UnregisterBrokerResponse(Message):
    """Whether the broker is forgotten."""

    throttle_time_ms: int32 = 0
    error_code: int16
    error_message: string | None = None


class ChangeClusterRequest(Message):
    """Asks for a change of the nodes: to remove, replace or drain one, or to have another lead.

    Without `accepts_loss`, a node that alone has the data of some partition is not removed.
    """

    change: string
    node_id: int32 = NO_NODE
    accepts_loss: boolean = False


class ChangeClusterResponse(Message):
    """Whether it is done and committed, and which node it was about."""

    throttle_time_ms: int32 = 0
    error_code: int16
    error_message: string | None = None
    node_id: int32 = NO_NODE
