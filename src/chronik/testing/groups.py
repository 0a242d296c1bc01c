"""How a group is doing, for a test to wait for."""

from chronik.client.cluster import Cluster
from chronik.client.groups import Group, Groups
from chronik.client.offsets import EARLIEST, LATEST, list_offsets
from chronik.model import TopicPartition
from chronik.protocol.errors import ErrorCode, KafkaError

STABLE = "Stable"


async def is_assigned(cluster: Cluster, group_id: str, members: int) -> bool:
    """Whether a group is stable with so many members, and nothing that they read is unread."""
    group = await _group(Groups(cluster), group_id)
    if group is None or group.state != STABLE or len(group.members) < members:
        return False
    owned = {each for member in group.members for each in member.partitions}
    topics = {each.topic for each in owned}
    counts = [len((await cluster.topic(topic)).partitions) for topic in topics]
    return bool(owned) and len(owned) == sum(counts)


async def lag_of(cluster: Cluster, group_id: str) -> int | None:
    """How many records a group has not committed yet; None as long as it reads nothing.

    Every partition of what it reads counts, those without an offset from where they begin.
    """
    groups = Groups(cluster)
    group = await _group(groups, group_id)
    if group is None:
        return None
    committed = await groups.committed(group_id)
    partitions = await _partitions(cluster, _topics(group, {each.topic for each in committed}))
    if not partitions:
        return None
    starts = await list_offsets(cluster, dict.fromkeys(partitions, EARLIEST))
    ends = await list_offsets(cluster, dict.fromkeys(partitions, LATEST))
    reached = starts | {each: committed[each][0] for each in partitions if each in committed}
    return sum(max(ends[each] - reached[each], 0) for each in partitions)


def _topics(group: Group, committed: set[str]) -> set[str]:
    """What the group reads: what its members ask for or own, or without any what it has read."""
    if not group.members:
        return committed
    is_classic = group.kind == "classic"
    if is_classic and group.state != STABLE:
        return set()  # What its members ask for is told when they are assigned.
    read = {name for member in group.members for name in member.subscribed_topics}
    read |= {each.topic for member in group.members for each in member.partitions}
    # Members that are no consumers do not say, but may keep offsets: Kafka Connect's do.
    return committed if is_classic and not read else read


async def _partitions(cluster: Cluster, topics: set[str]) -> list[TopicPartition]:
    """All partitions of those of the topics that are there."""
    if not topics:
        return []
    found = (await cluster.refresh(sorted(topics))).topics
    return [
        TopicPartition(topic.name, each.partition_index)
        for topic in found
        if topic.name is not None and not topic.error_code
        for each in topic.partitions
    ]


async def _group(groups: Groups, group_id: str) -> Group | None:
    try:
        return await groups.describe(group_id)
    except KafkaError as error:
        if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
            return None
        raise
