"""ListOffsets: where a partition starts, ends, or reaches a timestamp.

v0 asks for a number of segment starts before a time and gets a list; every later version asks for
one offset.
"""

from collections.abc import Sequence
from typing import Annotated

from chronik.protocol.schema import Message, int8, int16, int32, int64, since, string, until


class ListOffsetsPartition(Message):
    """A partition and the timestamp, or one of the negative ones with a meaning of their own."""

    partition_index: int32
    current_leader_epoch: Annotated[int32, since(4)] = -1
    timestamp: int64
    max_num_offsets: Annotated[int32, until(0)] = 1


class ListOffsetsTopic(Message):
    """The partitions of one topic."""

    name: string
    partitions: Sequence[ListOffsetsPartition]


class ListOffsetsRequest(Message):
    """Asks for offsets by timestamp."""

    replica_id: int32
    isolation_level: Annotated[int8, since(2)] = 0
    topics: Sequence[ListOffsetsTopic]
    timeout_ms: Annotated[int32, since(10)] = 0


class ListOffsetsPartitionResponse(Message):
    """The offset that was found, or -1."""

    partition_index: int32
    error_code: int16
    old_style_offsets: Annotated[Sequence[int64], until(0)] = ()
    timestamp: Annotated[int64, since(1)] = -1
    offset: Annotated[int64, since(1)] = -1
    leader_epoch: Annotated[int32, since(4)] = -1


class ListOffsetsTopicResponse(Message):
    """One topic's offsets."""

    name: string
    partitions: Sequence[ListOffsetsPartitionResponse]


class ListOffsetsResponse(Message):
    """The offsets, partition by partition."""

    throttle_time_ms: Annotated[int32, since(2)] = 0
    topics: Sequence[ListOffsetsTopicResponse]
