"""Moving leaders and replicas: ElectLeaders, AlterPartitionReassignments and what lists them."""

from collections.abc import Sequence
from typing import Annotated, Final

from chronik.protocol.schema import Message, boolean, int8, int16, int32, since, string

PREFERRED: Final = 0
UNCLEAN: Final = 1


class ElectLeadersTopic(Message):
    """Partitions of one topic that shall have another leader."""

    topic: string
    partitions: Sequence[int32]


class ElectLeadersRequest(Message):
    """Asks for leaders: the preferred ones or, where there are none, any. Null means everywhere."""

    election_type: Annotated[int8, since(1)] = PREFERRED
    topic_partitions: Sequence[ElectLeadersTopic] | None
    timeout_ms: int32 = 60_000


class ElectLeadersPartitionResult(Message):
    """What became of one partition."""

    partition_id: int32
    error_code: int16
    error_message: string | None = None


class ReplicaElectionResult(Message):
    """What became of one topic's partitions."""

    topic: string
    partition_result: Sequence[ElectLeadersPartitionResult]


class ElectLeadersResponse(Message):
    """What became of the elections."""

    throttle_time_ms: int32 = 0
    error_code: Annotated[int16, since(1)] = 0
    replica_election_results: Sequence[ReplicaElectionResult]


class ReassignablePartition(Message):
    """The replicas that a partition shall have; null undoes what is under way."""

    partition_index: int32
    replicas: Sequence[int32] | None = None


class ReassignableTopic(Message):
    """Partitions of one topic that shall move."""

    name: string
    partitions: Sequence[ReassignablePartition]


class AlterPartitionReassignmentsRequest(Message):
    """Asks for partitions to be moved to other replicas."""

    timeout_ms: int32 = 60_000
    allow_replication_factor_change: Annotated[boolean, since(1)] = True
    topics: Sequence[ReassignableTopic]


class ReassignablePartitionResponse(Message):
    """Whether one partition moves."""

    partition_index: int32
    error_code: int16
    error_message: string | None = None


class ReassignableTopicResponse(Message):
    """Whether one topic's partitions move."""

    name: string
    partitions: Sequence[ReassignablePartitionResponse]


class AlterPartitionReassignmentsResponse(Message):
    """Which partitions move from now on."""

    throttle_time_ms: int32 = 0
    allow_replication_factor_change: Annotated[boolean, since(1)] = True
    error_code: int16 = 0
    error_message: string | None = None
    responses: Sequence[ReassignableTopicResponse]


class ListPartitionReassignmentsTopic(Message):
    """Partitions of one topic that are asked about."""

    name: string
    partition_indexes: Sequence[int32]


class ListPartitionReassignmentsRequest(Message):
    """Asks which partitions move: of these, or with null of all."""

    timeout_ms: int32 = 60_000
    topics: Sequence[ListPartitionReassignmentsTopic] | None = None


class OngoingPartitionReassignment(Message):
    """A partition that moves."""

    partition_index: int32
    replicas: Sequence[int32]
    adding_replicas: Sequence[int32]
    removing_replicas: Sequence[int32]


class OngoingTopicReassignment(Message):
    """The partitions of one topic that move."""

    name: string
    partitions: Sequence[OngoingPartitionReassignment]


class ListPartitionReassignmentsResponse(Message):
    """What moves now."""

    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    error_message: string | None = None
    topics: Sequence[OngoingTopicReassignment]
