"""Fetch: whole batches from partitions, for consumers and followers alike.

From v7 on a request may carry only what changed in its session (KIP-227). v13 names topics by id
only. In responses `records` takes any number of buffers, so that file contents are never copied.
"""

from collections.abc import Sequence
from typing import Annotated, Final

from chronik.protocol.messages.produce import LeaderIdAndEpoch, NodeEndpoint
from chronik.protocol.schema import (
    NO_UUID,
    Message,
    int8,
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

MAX_INT32: Final = 2**31 - 1  # no limit was given
MAX_INT64: Final = 2**63 - 1  # no high watermark was given


class ReplicaState(Message):
    """Which follower asks, in which incarnation; a consumer is -1."""

    replica_id: int32 = -1
    replica_epoch: int64 = -1


class FetchPartition(Message):
    """A partition to read from, and how much of it."""

    partition: int32
    current_leader_epoch: Annotated[int32, since(9)] = -1
    fetch_offset: int64
    last_fetched_epoch: Annotated[int32, since(12)] = -1
    log_start_offset: Annotated[int64, since(5)] = -1
    partition_max_bytes: int32
    replica_directory_id: Annotated[uuid, tagged(0, since=17)] = NO_UUID
    high_watermark: Annotated[int64, tagged(1, since=18)] = MAX_INT64


class FetchTopic(Message):
    """A topic to read from."""

    topic: Annotated[string, until(12)] = ""
    topic_id: Annotated[uuid, since(13)] = NO_UUID
    partitions: Sequence[FetchPartition]


class ForgottenTopic(Message):
    """Partitions to drop from the session."""

    topic: Annotated[string, until(12)] = ""
    topic_id: Annotated[uuid, since(13)] = NO_UUID
    partitions: Sequence[int32]


class FetchRequest(Message):
    """Reads from many partitions, waiting up to `max_wait_ms` for `min_bytes`."""

    cluster_id: Annotated[string | None, tagged(0, since=12)] = None
    replica_id: Annotated[int32, until(14)] = -1
    replica_state: Annotated[ReplicaState, tagged(1, since=15)] = ReplicaState()
    max_wait_ms: int32
    min_bytes: int32
    max_bytes: Annotated[int32, since(3)] = MAX_INT32
    isolation_level: Annotated[int8, since(4)] = 0
    session_id: Annotated[int32, since(7)] = 0
    session_epoch: Annotated[int32, since(7)] = -1
    topics: Sequence[FetchTopic]
    forgotten_topics_data: Annotated[Sequence[ForgottenTopic], since(7)] = ()
    rack_id: Annotated[string, since(11)] = ""


class EpochEndOffset(Message):
    """The epoch up to which a follower's log agrees with ours, and where it ends."""

    epoch: int32 = -1
    end_offset: int64 = -1


class SnapshotId(Message):
    """The snapshot to load where the log no longer reaches back."""

    end_offset: int64 = -1
    epoch: int32 = -1


class AbortedTransaction(Message):
    """A transaction whose records a read_committed consumer skips."""

    producer_id: int64
    first_offset: int64


class PartitionData(Message):
    """What was read from one partition."""

    partition_index: int32
    error_code: int16
    high_watermark: int64
    last_stable_offset: Annotated[int64, since(4)] = -1
    log_start_offset: Annotated[int64, since(5)] = -1
    diverging_epoch: Annotated[EpochEndOffset, tagged(0, since=12)] = EpochEndOffset()
    current_leader: Annotated[LeaderIdAndEpoch, tagged(1, since=12)] = LeaderIdAndEpoch()
    snapshot_id: Annotated[SnapshotId, tagged(2, since=12)] = SnapshotId()
    aborted_transactions: Annotated[Sequence[AbortedTransaction] | None, since(4)] = ()
    preferred_read_replica: Annotated[int32, since(11)] = -1
    records: records | None


class FetchableTopicResponse(Message):
    """What was read from one topic."""

    topic: Annotated[string, until(12)] = ""
    topic_id: Annotated[uuid, since(13)] = NO_UUID
    partitions: Sequence[PartitionData]


class FetchResponse(Message):
    """The records, and the session they belong to."""

    throttle_time_ms: Annotated[int32, since(1)] = 0
    error_code: Annotated[int16, since(7)] = 0
    session_id: Annotated[int32, since(7)] = 0
    responses: Sequence[FetchableTopicResponse]
    node_endpoints: Annotated[Sequence[NodeEndpoint], tagged(0, since=16)] = ()
