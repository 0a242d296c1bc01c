"""Metadata: the brokers, the topics, and who leads each partition."""

from collections.abc import Sequence
from typing import Annotated, Final

from chronik.protocol.schema import (
    NO_UUID,
    Message,
    between,
    boolean,
    int16,
    int32,
    nullable_since,
    since,
    string,
    uuid,
)

# Kafka's way to say "you did not ask": no set of operations has only the sign bit.
OPERATIONS_OMITTED: Final = -(2**31)


class MetadataRequestTopic(Message):
    """A topic that is asked for, by id where one is given, else by name."""

    topic_id: Annotated[uuid, since(10)] = NO_UUID
    name: Annotated[string | None, nullable_since(10)]


class MetadataRequest(Message):
    """Asks for some topics, or for all: null, or in v0 an empty list."""

    topics: Annotated[Sequence[MetadataRequestTopic] | None, nullable_since(1)]
    allow_auto_topic_creation: Annotated[boolean, since(4)] = True
    include_cluster_authorized_operations: Annotated[boolean, between(8, 10)] = False
    include_topic_authorized_operations: Annotated[boolean, since(8)] = False


class MetadataResponseBroker(Message):
    """A live broker, at the address for this listener."""

    node_id: int32
    host: string
    port: int32
    rack: Annotated[string | None, since(1)] = None


class MetadataResponsePartition(Message):
    """A partition, its leader and its replicas."""

    error_code: int16
    partition_index: int32
    leader_id: int32
    leader_epoch: Annotated[int32, since(7)] = -1
    replica_nodes: Sequence[int32]
    isr_nodes: Sequence[int32]
    offline_replicas: Annotated[Sequence[int32], since(5)] = ()


class MetadataResponseTopic(Message):
    """A topic, or why there is none."""

    error_code: int16
    name: Annotated[string | None, nullable_since(12)]
    topic_id: Annotated[uuid, since(10)] = NO_UUID
    is_internal: Annotated[boolean, since(1)] = False
    partitions: Sequence[MetadataResponsePartition]
    topic_authorized_operations: Annotated[int32, since(8)] = OPERATIONS_OMITTED


class MetadataResponse(Message):
    """The cluster as this node's committed image shows it."""

    throttle_time_ms: Annotated[int32, since(3)] = 0
    brokers: Sequence[MetadataResponseBroker]
    cluster_id: Annotated[string | None, since(2)] = None
    controller_id: Annotated[int32, since(1)] = -1
    topics: Sequence[MetadataResponseTopic]
    cluster_authorized_operations: Annotated[int32, between(8, 10)] = OPERATIONS_OMITTED
    error_code: Annotated[int16, since(13)] = 0
