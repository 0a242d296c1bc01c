"""OffsetCommit, OffsetFetch and OffsetDelete: how far a group has read.

v0 of the first two was meant for ZooKeeper and is stored like every other. v10 names topics by id.
"""

from collections.abc import Sequence
from typing import Annotated

from chronik.protocol.schema import (
    NO_UUID,
    Message,
    between,
    boolean,
    int16,
    int32,
    int64,
    nullable_since,
    since,
    string,
    until,
    uuid,
)


class OffsetCommitRequestPartition(Message):
    """A partition and the offset to read next."""

    partition_index: int32
    committed_offset: int64
    committed_leader_epoch: Annotated[int32, since(6)] = -1
    commit_timestamp: Annotated[int64, between(1, 1)] = -1
    committed_metadata: string | None


class OffsetCommitRequestTopic(Message):
    """The partitions of one topic."""

    name: Annotated[string, until(9)] = ""
    topic_id: Annotated[uuid, since(10)] = NO_UUID
    partitions: Sequence[OffsetCommitRequestPartition]


class OffsetCommitRequest(Message):
    """Commits offsets, as a member of the group or, with generation -1, from outside."""

    group_id: string
    generation_id_or_member_epoch: Annotated[int32, since(1)] = -1
    member_id: Annotated[string, since(1)] = ""
    group_instance_id: Annotated[string | None, since(7)] = None
    retention_time_ms: Annotated[int64, between(2, 4)] = -1
    topics: Sequence[OffsetCommitRequestTopic]


class OffsetCommitResponsePartition(Message):
    """Whether one partition's offset was stored."""

    partition_index: int32
    error_code: int16


class OffsetCommitResponseTopic(Message):
    """One topic's partitions."""

    name: Annotated[string, until(9)] = ""
    topic_id: Annotated[uuid, since(10)] = NO_UUID
    partitions: Sequence[OffsetCommitResponsePartition]


class OffsetCommitResponse(Message):
    """The outcome, partition by partition."""

    throttle_time_ms: Annotated[int32, since(3)] = 0
    topics: Sequence[OffsetCommitResponseTopic]


class OffsetFetchRequestTopic(Message):
    """The partitions of one topic."""

    name: Annotated[string, until(9)] = ""
    topic_id: Annotated[uuid, since(10)] = NO_UUID
    partition_indexes: Sequence[int32]


class OffsetFetchRequestGroup(Message):
    """A group and what to fetch of it; null topics mean all that have an offset."""

    group_id: string
    member_id: Annotated[string | None, since(9)] = None
    member_epoch: Annotated[int32, since(9)] = -1
    topics: Sequence[OffsetFetchRequestTopic] | None


class OffsetFetchRequest(Message):
    """Asks for the offsets of a group; from v8 on of several."""

    group_id: Annotated[string, until(7)] = ""
    topics: Annotated[Sequence[OffsetFetchRequestTopic] | None, until(7), nullable_since(2)] = ()
    groups: Annotated[Sequence[OffsetFetchRequestGroup], since(8)] = ()
    require_stable: Annotated[boolean, since(7)] = False


class OffsetFetchResponsePartition(Message):
    """The committed offset, or -1 if there is none."""

    partition_index: int32
    committed_offset: int64
    committed_leader_epoch: Annotated[int32, since(5)] = -1
    metadata: string | None
    error_code: int16


class OffsetFetchResponseTopic(Message):
    """One topic's offsets."""

    name: Annotated[string, until(9)] = ""
    topic_id: Annotated[uuid, since(10)] = NO_UUID
    partitions: Sequence[OffsetFetchResponsePartition]


class OffsetFetchResponseGroup(Message):
    """One group's offsets."""

    group_id: string
    topics: Sequence[OffsetFetchResponseTopic]
    error_code: int16 = 0


class OffsetFetchResponse(Message):
    """The offsets; before v2 a group's error stands at each partition."""

    throttle_time_ms: Annotated[int32, since(3)] = 0
    topics: Annotated[Sequence[OffsetFetchResponseTopic], until(7)] = ()
    error_code: Annotated[int16, between(2, 7)] = 0
    groups: Annotated[Sequence[OffsetFetchResponseGroup], since(8)] = ()


class OffsetDeleteRequestPartition(Message):
    """A partition whose offset shall be forgotten."""

    partition_index: int32


class OffsetDeleteRequestTopic(Message):
    """The partitions of one topic."""

    name: string
    partitions: Sequence[OffsetDeleteRequestPartition]


class OffsetDeleteRequest(Message):
    """Forgets offsets of a group that does not read those topics any more."""

    group_id: string
    topics: Sequence[OffsetDeleteRequestTopic]


class OffsetDeleteResponsePartition(Message):
    """Whether one offset was forgotten."""

    partition_index: int32
    error_code: int16


class OffsetDeleteResponseTopic(Message):
    """One topic's partitions."""

    name: string
    partitions: Sequence[OffsetDeleteResponsePartition]


class OffsetDeleteResponse(Message):
    """The outcome, partition by partition, or why the group was refused."""

    error_code: int16
    throttle_time_ms: int32 = 0
    topics: Sequence[OffsetDeleteResponseTopic]
