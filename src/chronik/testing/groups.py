"""How a group is doing, for a test to wait for."""

from chronik.client.cluster import Cluster
from chronik.client.groups import Group, Groups
from chronik.client.offsets import EARLIEST, list_offsets
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
    """How many records a group has not committed yet; None as long as it reads nothing."""
    groups = Groups(cluster)
    if await _group(groups, group_id) is None:
        return None
    positions = await groups.positions(group_id)
    if not positions:
        return None
    unread = [each.partition for each in positions if each.committed_offset is None]
    starts = await list_offsets(cluster, dict.fromkeys(unread, EARLIEST)) if unread else {}
    return sum(
        each.lag if each.lag is not None else each.end_offset - starts[each.partition]
        for each in positions
    )


async def _group(groups: Groups, group_id: str) -> Group | None:
    try:
        return await groups.describe(group_id)
    except KafkaError as error:
        if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
            return None
        raise
