"""OffsetForLeaderEpoch: where an epoch ended, so that a reader finds where its log diverged."""

from collections.abc import Sequence
from typing import Annotated, Final

from chronik.protocol.schema import Message, int16, int32, int64, since, string

# Before v3 the request does not say who asks; Kafka calls that replica -2.
ANY_REPLICA_ID: Final = -2


class OffsetForLeaderPartition(Message):
    """A partition and the epoch in question."""

    partition: int32
    current_leader_epoch: Annotated[int32, since(2)] = -1
    leader_epoch: int32


class OffsetForLeaderTopic(Message):
    """The partitions of one topic."""

    topic: string
    partitions: Sequence[OffsetForLeaderPartition]


class OffsetForLeaderEpochRequest(Message):
    """Asks where epochs ended."""

    replica_id: Annotated[int32, since(3)] = ANY_REPLICA_ID
    topics: Sequence[OffsetForLeaderTopic]


class EpochEndOffset(Message):
    """The greatest epoch that is not above the asked one, and its end offset."""

    error_code: int16
    partition: int32
    leader_epoch: Annotated[int32, since(1)] = -1
    end_offset: int64 = -1


class OffsetForLeaderTopicResult(Message):
    """One topic's partitions."""

    topic: string
    partitions: Sequence[EpochEndOffset]


class OffsetForLeaderEpochResponse(Message):
    """The end offsets, partition by partition."""

    throttle_time_ms: Annotated[int32, since(2)] = 0
    topics: Sequence[OffsetForLeaderTopicResult]
