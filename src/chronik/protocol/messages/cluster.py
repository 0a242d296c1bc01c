"""Cluster: DescribeCluster and DescribeLogDirs."""

from collections.abc import Sequence
from typing import Annotated

from chronik.protocol.messages.metadata import OPERATIONS_OMITTED
from chronik.protocol.schema import Message, boolean, int8, int16, int32, int64, since, string


class DescribeClusterRequest(Message):
    """Asks for the brokers (endpoint type 1) or the controllers (2)."""

    include_cluster_authorized_operations: boolean
    endpoint_type: Annotated[int8, since(1)] = 1
    include_fenced_brokers: Annotated[boolean, since(2)] = False


class DescribeClusterBroker(Message):
    """A broker and whether it is fenced off from clients."""

    broker_id: int32
    host: string
    port: int32
    rack: string | None = None
    is_fenced: Annotated[boolean, since(2)] = False


class DescribeClusterResponse(Message):
    """The cluster's id, nodes and controller."""

    throttle_time_ms: int32 = 0
    error_code: int16
    error_message: string | None = None
    endpoint_type: Annotated[int8, since(1)] = 1
    cluster_id: string
    controller_id: int32 = -1
    brokers: Sequence[DescribeClusterBroker]
    cluster_authorized_operations: int32 = OPERATIONS_OMITTED


class DescribableLogDirTopic(Message):
    """The partitions of one topic that are asked for."""

    topic: string
    partitions: Sequence[int32]


class DescribeLogDirsRequest(Message):
    """Asks what partitions take up on disk; null means all of them."""

    topics: Sequence[DescribableLogDirTopic] | None


class DescribeLogDirsPartition(Message):
    """A replica in this directory and its size in bytes."""

    partition_index: int32
    partition_size: int64
    offset_lag: int64
    is_future_key: boolean


class DescribeLogDirsTopic(Message):
    """One topic's replicas in this directory."""

    name: string
    partitions: Sequence[DescribeLogDirsPartition]


class DescribeLogDirsResult(Message):
    """A directory, what it holds, and the room on its volume (-1: unknown)."""

    error_code: int16
    log_dir: string
    topics: Sequence[DescribeLogDirsTopic]
    total_bytes: Annotated[int64, since(4)] = -1
    usable_bytes: Annotated[int64, since(4)] = -1
    is_cordoned: Annotated[boolean, since(5)] = False


class DescribeLogDirsResponse(Message):
    """This node's directories."""

    throttle_time_ms: int32 = 0
    error_code: Annotated[int16, since(3)] = 0
    results: Sequence[DescribeLogDirsResult]
