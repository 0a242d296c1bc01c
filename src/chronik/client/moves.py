"""Partitions that move between nodes, as an administrator asks for it and watches it.

Over Kafka's own requests, so that it works with any cluster that has them. Where the replicas
should be is a plan of `assignments`; here it is asked for, throttled, waited for and undone.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from typing import Final, NamedTuple

from chronik.client.admin import Admin, Resource
from chronik.client.cluster import Cluster, check
from chronik.model import TopicPartition
from chronik.protocol.apis import (
    ALTER_PARTITION_REASSIGNMENTS,
    ELECT_LEADERS,
    LIST_PARTITION_REASSIGNMENTS,
)
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.reassignments import (
    PREFERRED,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ElectLeadersTopic,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    ReassignablePartition,
    ReassignableTopic,
)

# Partitions that move at once: enough to keep every disk busy, few enough that each soon arrives.
MOVING_MAX: Final = 200
ELECTIONS_MAX: Final = 1_000  # in one request
POLL_S: Final = 0.2
_RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
_REPLICAS: Final = (
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
)
_NOT_DONE: Final = frozenset({ErrorCode.NOT_CONTROLLER})

Plan = Mapping[TopicPartition, Sequence[int] | None]


class Held(NamedTuple):
    """Who holds and leads a partition now, and who of them is in sync."""

    replicas: tuple[int, ...]
    leader: int
    isr: tuple[int, ...]


async def held_partitions(admin: Admin) -> dict[TopicPartition, Held]:
    """Every partition of the cluster."""
    return {
        TopicPartition(topic.name or "", each.partition_index): Held(
            tuple(each.replica_nodes), each.leader_id, tuple(each.isr_nodes)
        )
        for topic in await admin.topics()
        for each in topic.partitions
    }


async def moving(cluster: Cluster) -> dict[TopicPartition, OngoingPartitionReassignment]:
    """The partitions that move now."""
    response: ListPartitionReassignmentsResponse = await cluster.send_to_controller(
        ListPartitionReassignmentsRequest(), LIST_PARTITION_REASSIGNMENTS
    )
    check(response.error_code, "moves", response.error_message)
    return {
        TopicPartition(topic.name, each.partition_index): each
        for topic in response.topics
        for each in topic.partitions
    }


class Copying(NamedTuple):
    """A partition on the move, and how much of it has arrived."""

    place: TopicPartition
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    bytes_there: int
    bytes_total: int


async def copying(cluster: Cluster) -> list[Copying]:
    """How far each partition that moves is, by the sizes of its replicas' files."""
    moves = await moving(cluster)
    sizes = await _sizes(cluster, {place.topic for place in moves})
    found = []
    for place, move in sorted(moves.items()):
        of_place = sizes.get(place, {})
        whole = max(of_place.values(), default=0)
        adding = tuple(move.adding_replicas)
        there = sum(min(of_place.get(each, 0), whole) for each in adding)
        removing = tuple(move.removing_replicas)
        found.append(Copying(place, adding, removing, there, whole * len(adding)))
    return found


async def _sizes(cluster: Cluster, topics: set[str]) -> dict[TopicPartition, dict[int, int]]:
    """How much each node that answers has of these topics' partitions."""
    found: dict[TopicPartition, dict[int, int]] = {}
    for node_id, results in (await Admin(cluster).log_dirs(skip_silent=True)).items():
        for topic in (each for result in results for each in result.topics):
            for each in topic.partitions if topic.name in topics else ():
                place = TopicPartition(topic.name, each.partition_index)
                found.setdefault(place, {})[node_id] = each.partition_size
    return found


async def reassign(cluster: Cluster, plan: Plan) -> None:
    """Let these partitions have these replicas; with None, undo what is under way."""
    by_topic: dict[str, list[ReassignablePartition]] = {}
    for place, replicas in plan.items():
        wanted = ReassignablePartition(partition_index=place.partition, replicas=replicas)
        by_topic.setdefault(place.topic, []).append(wanted)
    request = AlterPartitionReassignmentsRequest(
        timeout_ms=int(cluster.timeout_s * 1000),
        topics=[ReassignableTopic(name=k, partitions=v) for k, v in by_topic.items()],
    )

    async def ask() -> None:
        response: AlterPartitionReassignmentsResponse
        response = await cluster.send_to_controller(request, ALTER_PARTITION_REASSIGNMENTS)
        check(response.error_code, "moves", response.error_message)
        for topic in response.responses:
            for each in topic.partitions:
                place = TopicPartition(topic.name, each.partition_index)
                check(each.error_code, str(place), each.error_message)

    await cluster.retry(ask, codes=_NOT_DONE)


async def move(
    cluster: Cluster, plan: Plan, progress: Callable[[int, int], None] = lambda done, total: None
) -> None:
    """Reassign and wait until all have arrived, some at a time."""
    waiting = dict(plan)
    under_way: set[TopicPartition] = set()
    told = -1
    while waiting or under_way:
        begun = dict(islice(waiting.items(), MOVING_MAX - len(under_way)))
        if begun:
            await reassign(cluster, begun)
            under_way |= begun.keys()
            waiting = {place: ids for place, ids in waiting.items() if place not in begun}
        under_way &= (await cluster.retry(lambda: moving(cluster))).keys()
        done = len(plan) - len(waiting) - len(under_way)
        if done != told:
            told = done
            progress(done, len(plan))
        if under_way:
            await asyncio.sleep(POLL_S)


async def elect_preferred(cluster: Cluster, places: Iterable[TopicPartition]) -> int:
    """Let the first replica of these partitions lead, where it can; how many do so newly."""
    count = 0
    for some in _chunks(sorted(places), ELECTIONS_MAX):
        by_topic: dict[str, list[int]] = {}
        for place in some:
            by_topic.setdefault(place.topic, []).append(place.partition)
        response: ElectLeadersResponse = await cluster.send_to_controller(
            ElectLeadersRequest(
                election_type=PREFERRED,
                topic_partitions=[
                    ElectLeadersTopic(topic=name, partitions=indexes)
                    for name, indexes in by_topic.items()
                ],
                timeout_ms=int(cluster.timeout_s * 1000),
            ),
            ELECT_LEADERS,
        )
        check(response.error_code, "elections")
        for topic in response.replica_election_results:
            count += sum(each.error_code == ErrorCode.NONE for each in topic.partition_result)
    return count


def _chunks(places: Sequence[TopicPartition], size: int) -> Iterator[Sequence[TopicPartition]]:
    for first in range(0, len(places), size):
        yield places[first : first + size]


@asynccontextmanager
async def throttled(
    admin: Admin, nodes: Iterable[int], plan: Plan, bytes_per_s: int | None
) -> AsyncIterator[None]:
    """Meanwhile these partitions move no faster than this, at each node; None: as fast as can be.

    As Kafka's own tool does it: a rate for each node, and the replicas of each topic that it is
    about. Both are taken away at the end, however that comes.
    """
    if bytes_per_s is None or not plan:
        yield
        return
    node_ids = [str(each) for each in nodes]
    topics = sorted({place.topic for place in plan})
    try:
        for name in node_ids:
            rates = dict.fromkeys(_RATES, str(bytes_per_s))
            await admin.alter_configs(Resource.BROKER, name, sets=rates)
        for topic in topics:
            await admin.alter_configs(Resource.TOPIC, topic, sets=dict.fromkeys(_REPLICAS, "*"))
        yield
    finally:
        await _unthrottle(admin, node_ids, topics)


async def _unthrottle(admin: Admin, node_ids: Sequence[str], topics: Sequence[str]) -> None:
    places = [(Resource.BROKER, each, _RATES) for each in node_ids]
    places += [(Resource.TOPIC, each, _REPLICAS) for each in topics]
    for resource, name, settings in places:
        try:
            await admin.alter_configs(resource, name, deletes=settings)
        except KafkaError as error:
            # Deleted meanwhile, or removed: then nothing is throttled either.
            if error.code not in (
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                ErrorCode.INVALID_REQUEST,
            ):
                raise
