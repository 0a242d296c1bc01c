"""How far followers are behind the partitions that this node leads. Pure.

Records that a follower lacks, not time: an idle partition lags by nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from chronik.replication.partition import Partition


@dataclass(slots=True)
class FollowerLag:
    """One follower node, over all partitions that it follows from here."""

    partition_count: int = 0
    lagging_count: int = 0
    records_max: int = 0
    records_total: int = 0


def follower_lags(partitions: Iterable[Partition]) -> dict[int, FollowerLag]:
    """The lag of each follower node."""
    found: dict[int, FollowerLag] = {}
    for partition in partitions:
        in_sync = partition.in_sync
        if in_sync is None:
            continue
        end_offset = partition.log.end_offset
        for node_id, follower in in_sync.followers.items():
            lag = found.get(node_id)
            if lag is None:
                lag = found[node_id] = FollowerLag()
            lag.partition_count += 1
            # One that was not heard of yet has nothing, as far as is known.
            records = end_offset - max(follower.end_offset, partition.log.log_start_offset)
            if records > 0:
                lag.lagging_count += 1
                lag.records_max = max(lag.records_max, records)
                lag.records_total += records
    return found
