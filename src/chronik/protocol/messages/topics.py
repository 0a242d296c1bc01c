"""Topics: CreateTopics, DeleteTopics, CreatePartitions, DeleteRecords, DescribeTopicPartitions."""

from collections.abc import Sequence
from typing import Annotated

from chronik.protocol.messages.metadata import OPERATIONS_OMITTED
from chronik.protocol.schema import (
    NO_UUID,
    Message,
    boolean,
    int8,
    int16,
    int32,
    int64,
    nullable_since,
    since,
    string,
    tagged,
    until,
    uuid,
)


class CreatableReplicaAssignment(Message):
    """The brokers that shall hold one partition, the preferred leader first."""

    partition_index: int32
    broker_ids: Sequence[int32]


class CreatableTopicConfig(Message):
    """A setting that the topic shall start with."""

    name: string
    value: string | None


class CreatableTopic(Message):
    """A topic to create; -1 for a count means the broker's default."""

    name: string
    num_partitions: int32
    replication_factor: int16
    assignments: Sequence[CreatableReplicaAssignment]
    configs: Sequence[CreatableTopicConfig]


class CreateTopicsRequest(Message):
    """Creates topics, or only says whether it could."""

    topics: Sequence[CreatableTopic]
    timeout_ms: int32 = 60_000
    validate_only: Annotated[boolean, since(1)] = False


class CreatableTopicConfigs(Message):
    """A setting of the created topic and where its value comes from."""

    name: string
    value: string | None
    read_only: boolean
    config_source: int8 = -1
    is_sensitive: boolean


class CreatableTopicResult(Message):
    """The created topic, or why it was refused."""

    name: string
    topic_id: Annotated[uuid, since(7)] = NO_UUID
    error_code: int16
    error_message: Annotated[string | None, since(1)] = None
    topic_config_error_code: Annotated[int16, tagged(0, since=5)] = 0
    num_partitions: Annotated[int32, since(5)] = -1
    replication_factor: Annotated[int16, since(5)] = -1
    configs: Annotated[Sequence[CreatableTopicConfigs] | None, since(5)] = ()


class CreateTopicsResponse(Message):
    """The outcome, topic by topic."""

    throttle_time_ms: Annotated[int32, since(2)] = 0
    topics: Sequence[CreatableTopicResult]


class DeleteTopicState(Message):
    """A topic to delete, by name or by id."""

    name: string | None = None
    topic_id: uuid = NO_UUID


class DeleteTopicsRequest(Message):
    """Deletes topics, by name alone before v6."""

    topics: Annotated[Sequence[DeleteTopicState], since(6)] = ()
    topic_names: Annotated[Sequence[string], until(5)] = ()
    timeout_ms: int32


class DeletableTopicResult(Message):
    """The deleted topic, or why it was not."""

    name: Annotated[string | None, nullable_since(6)]
    topic_id: Annotated[uuid, since(6)] = NO_UUID
    error_code: int16
    error_message: Annotated[string | None, since(5)] = None


class DeleteTopicsResponse(Message):
    """The outcome, topic by topic."""

    throttle_time_ms: Annotated[int32, since(1)] = 0
    responses: Sequence[DeletableTopicResult]


class CreatePartitionsAssignment(Message):
    """The brokers that shall hold one added partition."""

    broker_ids: Sequence[int32]


class CreatePartitionsTopic(Message):
    """A topic and the partition count that it shall have."""

    name: string
    count: int32
    assignments: Sequence[CreatePartitionsAssignment] | None


class CreatePartitionsRequest(Message):
    """Adds partitions to topics, or only says whether it could."""

    topics: Sequence[CreatePartitionsTopic]
    timeout_ms: int32
    validate_only: boolean


class CreatePartitionsTopicResult(Message):
    """Whether one topic grew."""

    name: string
    error_code: int16
    error_message: string | None = None


class CreatePartitionsResponse(Message):
    """The outcome, topic by topic."""

    throttle_time_ms: int32 = 0
    results: Sequence[CreatePartitionsTopicResult]


class DeleteRecordsPartition(Message):
    """A partition and its new log start offset; -1 means the high watermark."""

    partition_index: int32
    offset: int64


class DeleteRecordsTopic(Message):
    """The partitions of one topic."""

    name: string
    partitions: Sequence[DeleteRecordsPartition]


class DeleteRecordsRequest(Message):
    """Drops the records below given offsets."""

    topics: Sequence[DeleteRecordsTopic]
    timeout_ms: int32


class DeleteRecordsPartitionResult(Message):
    """Where the partition starts now."""

    partition_index: int32
    low_watermark: int64
    error_code: int16


class DeleteRecordsTopicResult(Message):
    """One topic's partitions."""

    name: string
    partitions: Sequence[DeleteRecordsPartitionResult]


class DeleteRecordsResponse(Message):
    """The outcome, partition by partition."""

    throttle_time_ms: int32 = 0
    topics: Sequence[DeleteRecordsTopicResult]


class Cursor(Message):
    """The partition from which a description goes on."""

    topic_name: string
    partition_index: int32


class TopicRequest(Message):
    """A topic to describe."""

    name: string


class DescribeTopicPartitionsRequest(Message):
    """Asks for partitions page by page; no topics means all of them."""

    topics: Sequence[TopicRequest]
    response_partition_limit: int32 = 2000
    cursor: Cursor | None = None


class DescribeTopicPartitionsResponsePartition(Message):
    """A partition, its replicas, and who may lead if none is in sync (KIP-966)."""

    error_code: int16
    partition_index: int32
    leader_id: int32
    leader_epoch: int32 = -1
    replica_nodes: Sequence[int32]
    isr_nodes: Sequence[int32]
    eligible_leader_replicas: Sequence[int32] | None = None
    last_known_elr: Sequence[int32] | None = None
    offline_replicas: Sequence[int32]


class DescribeTopicPartitionsResponseTopic(Message):
    """A topic, or why there is none."""

    error_code: int16
    name: string | None
    topic_id: uuid
    is_internal: boolean = False
    partitions: Sequence[DescribeTopicPartitionsResponsePartition]
    topic_authorized_operations: int32 = OPERATIONS_OMITTED


class DescribeTopicPartitionsResponse(Message):
    """One page, and where the next one begins."""

    throttle_time_ms: int32 = 0
    topics: Sequence[DescribeTopicPartitionsResponseTopic]
    next_cursor: Cursor | None = None
