"""Produce: record batches for partitions, and where they went.

Up to v2 `records` is a message set of magic 0 or 1, from v3 on one batch of magic 2; to the codec
both are bytes. v13 names topics by id only.
"""

from collections.abc import Sequence
from typing import Annotated

from chronik.protocol.schema import (
    NO_UUID,
    Message,
    int16,
    int32,
    int64,
    records,
    since,
    string,
    tagged,
    until,
    uuid,
)


class PartitionProduceData(Message):
    """What to append to one partition."""

    index: int32
    records: records | None


class TopicProduceData(Message):
    """What to append to one topic."""

    name: Annotated[string, until(12)] = ""
    topic_id: Annotated[uuid, since(13)] = NO_UUID
    partition_data: Sequence[PartitionProduceData]


class ProduceRequest(Message):
    """Appends batches; with `acks` 0 nobody answers."""

    transactional_id: Annotated[string | None, since(3)] = None
    acks: int16
    timeout_ms: int32
    topic_data: Sequence[TopicProduceData]


class BatchIndexAndErrorMessage(Message):
    """A record that made its batch fail."""

    batch_index: int32
    batch_index_error_message: string | None = None


class LeaderIdAndEpoch(Message):
    """Who leads instead, so that the client need not ask."""

    leader_id: int32 = -1
    leader_epoch: int32 = -1


class PartitionProduceResponse(Message):
    """Where a partition's records begin, or why they were refused."""

    index: int32
    error_code: int16
    base_offset: int64
    log_append_time_ms: Annotated[int64, since(2)] = -1
    log_start_offset: Annotated[int64, since(5)] = -1
    record_errors: Annotated[Sequence[BatchIndexAndErrorMessage], since(8)] = ()
    error_message: Annotated[string | None, since(8)] = None
    current_leader: Annotated[LeaderIdAndEpoch, tagged(0, since=10)] = LeaderIdAndEpoch()


class TopicProduceResponse(Message):
    """One topic's partitions."""

    name: Annotated[string, until(12)] = ""
    topic_id: Annotated[uuid, since(13)] = NO_UUID
    partition_responses: Sequence[PartitionProduceResponse]


class NodeEndpoint(Message):
    """The address of a leader named above."""

    node_id: int32
    host: string
    port: int32
    rack: string | None = None


class ProduceResponse(Message):
    """The outcome, partition by partition."""

    responses: Sequence[TopicProduceResponse]
    throttle_time_ms: Annotated[int32, since(1)] = 0
    node_endpoints: Annotated[Sequence[NodeEndpoint], tagged(0, since=10)] = ()
