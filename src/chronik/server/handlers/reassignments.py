"""ElectLeaders, AlterPartitionReassignments, ListPartitionReassignments.

Versions: ElectLeaders 0-2 (1 adds the type), AlterPartitionReassignments 0-1 (1 can forbid another
replication factor), ListPartitionReassignments 0.

Behaviour
    Each partition succeeds or fails by itself; all of one request are one command, decided by the
    controller whoever is asked.
    An election everywhere lists only those partitions to which something happened, or to which it
    should have happened and could not.
    What moves is told from this node's image, which every node has.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from chronik.metadata.commands import Elected, ElectLeaders, Reassignment, ReassignPartitions
from chronik.metadata.elections import leaderless
from chronik.metadata.image import Topic, id_bytes
from chronik.metadata.reassignments import under_way
from chronik.metadata.records import NO_LEADER, PartitionRecord
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.reassignments import (
    PREFERRED,
    UNCLEAN,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersPartitionResult,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
    ReplicaElectionResult,
)
from chronik.server.context import Context
from chronik.server.handlers.topics import submit

UNCLEAN_COUNT_MAX = 1_000  # partitions of one unclean election everywhere; the rest is asked again

T = TypeVar("T")


async def elect_leaders(context: Context, request: ElectLeadersRequest) -> ElectLeadersResponse:
    try:
        if request.election_type not in (PREFERRED, UNCLEAN):
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        named, unknown = _named(context, request)
        elected: list[Elected]
        if request.election_type == UNCLEAN:
            elected = await _elect_unclean(context, named)
        else:
            partitions = None if named is None else _by_topic_id(named)
            elected = list(
                await submit(context, ElectLeaders(partitions=partitions), request.timeout_ms)
            )
    except KafkaError as error:
        return ElectLeadersResponse(error_code=error.code, replica_election_results=())
    results = [(_name(context, each.topic_id), _result(each)) for each in elected]
    return ElectLeadersResponse(
        error_code=ErrorCode.NONE,
        replica_election_results=[
            ReplicaElectionResult(topic=name, partition_result=found)
            for name, found in _grouped([*results, *unknown])
        ],
    )


def _named(
    context: Context, request: ElectLeadersRequest
) -> tuple[
    list[tuple[Topic, PartitionRecord]] | None, list[tuple[str, ElectLeadersPartitionResult]]
]:
    """The partitions that a request names (None: all), and the answers for those there are not."""
    if request.topic_partitions is None:
        return None, []
    found: dict[tuple[bytes, int], tuple[Topic, PartitionRecord]] = {}
    unknown = []
    for asked in request.topic_partitions:
        topic = context.image.topics.get(asked.topic)
        for index in asked.partitions:
            if topic is not None and 0 <= index < len(topic.partitions):
                found[topic.id, index] = (topic, topic.partitions[index])
                continue
            result = ElectLeadersPartitionResult(
                partition_id=index,
                error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                error_message=f"There is no partition {asked.topic}-{index}.",
            )
            unknown.append((asked.topic, result))
    return list(found.values()), unknown


def _by_topic_id(
    named: Sequence[tuple[Topic, PartitionRecord]],
) -> tuple[tuple[str, tuple[int, ...]], ...]:
    grouped = _grouped((each.topic_id, each.partition) for _, each in named)
    return tuple((topic_id, tuple(indexes)) for topic_id, indexes in grouped)


async def _elect_unclean(
    context: Context, named: list[tuple[Topic, PartitionRecord]] | None
) -> list[Elected]:
    if named is None:
        named = leaderless(context.image, lambda topic: True, UNCLEAN_COUNT_MAX)
    led = [each for _, each in named if each.leader != NO_LEADER]
    elected = await context.node.unclean_elections.elect(
        [(topic, each) for topic, each in named if each.leader == NO_LEADER]
    )
    code, reason = ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for partition."
    return [*elected, *(Elected(each.topic_id, each.partition, code, reason) for each in led)]


def _name(context: Context, topic_id: str) -> str:
    return context.image.topic_names.get(id_bytes(topic_id), "")


def _result(elected: Elected) -> ElectLeadersPartitionResult:
    return ElectLeadersPartitionResult(
        partition_id=elected.partition,
        error_code=elected.error_code,
        error_message=elected.message,
    )


def _grouped(pairs: Iterable[tuple[str, T]]) -> list[tuple[str, list[T]]]:
    groups: dict[str, list[T]] = {}
    for name, each in pairs:
        groups.setdefault(name, []).append(each)
    return list(groups.items())


async def alter_partition_reassignments(
    context: Context, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    asked: list[tuple[str, Reassignment]] = []
    results: list[tuple[str, ReassignablePartitionResponse]] = []
    for topic in request.topics:
        known = context.image.topics.get(topic.name)
        for each in topic.partitions:
            if known is None:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                results.append((topic.name, _reassigned(each.partition_index, code, None)))
                continue
            wanted = None if each.replicas is None else tuple(each.replicas)
            reassignment = Reassignment(
                topic_id=known.record.topic_id, partition=each.partition_index, replicas=wanted
            )
            asked.append((topic.name, reassignment))
    command = ReassignPartitions(
        reassignments=tuple(each for _, each in asked),
        may_change_factor=request.allow_replication_factor_change,
    )
    try:
        outcomes = await submit(context, command, request.timeout_ms) if asked else ()
    except KafkaError as error:
        return AlterPartitionReassignmentsResponse(
            error_code=error.code, error_message=error.message, responses=()
        )
    for (name, reassignment), (code, message) in zip(asked, outcomes, strict=True):
        results.append((name, _reassigned(reassignment.partition, code, message)))
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        responses=[
            ReassignableTopicResponse(name=name, partitions=found)
            for name, found in _grouped(results)
        ],
    )


def _reassigned(index: int, code: int, message: str | None) -> ReassignablePartitionResponse:
    return ReassignablePartitionResponse(
        partition_index=index, error_code=code, error_message=message
    )


def list_partition_reassignments(
    context: Context, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    moving = [(topic.name, _ongoing(each)) for topic, each in _asked_about(context, request)]
    return ListPartitionReassignmentsResponse(
        topics=[
            OngoingTopicReassignment(name=name, partitions=found)
            for name, found in _grouped(moving)
        ]
    )


def _asked_about(
    context: Context, request: ListPartitionReassignmentsRequest
) -> Iterator[tuple[Topic, PartitionRecord]]:
    if request.topics is None:
        yield from under_way(context.image)
        return
    for asked in request.topics:
        topic = context.image.topics.get(asked.name)
        for index in asked.partition_indexes if topic is not None else ():
            assert topic is not None
            if 0 <= index < len(topic.partitions) and topic.partitions[index].is_moving:
                yield topic, topic.partitions[index]


def _ongoing(partition: PartitionRecord) -> OngoingPartitionReassignment:
    return OngoingPartitionReassignment(
        partition_index=partition.partition,
        replicas=partition.replicas,
        adding_replicas=partition.adding_replicas,
        removing_replicas=partition.removing_replicas,
    )
