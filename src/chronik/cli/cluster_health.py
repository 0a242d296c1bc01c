"""How partitions and followers are doing, as `chronik cluster status` shows it.

Counts are the same on every node, so one answer has them. How far a follower is behind is known to
whoever leads, so all that answered are asked, and the worst and the sum are shown.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from chronik.client.admin import Quorum
from chronik.client.moves import Copying
from chronik.protocol.messages.quorum import DescribeQuorumNode, PartitionCounts

MOVES_SHOWN: Final = 10  # of partitions on the move, to a person; --json has all


def partition_counts(counts: PartitionCounts | None) -> dict[str, Any] | None:
    """The counts as JSON has them."""
    if counts is None:
        return None
    return {
        "count": counts.partition_count,
        "under_replicated": counts.under_replicated_count,
        "under_min_isr": counts.under_min_isr_count,
        "offline": counts.offline_count,
        "reassigning": counts.moving_count,
        "not_led_by_preferred": counts.not_preferred_count,
        "topics_below_factor": list(counts.topics_below_factor),
    }


def follower_lag(quorums: Iterable[Quorum], node_id: int) -> dict[str, int]:
    """How many records a node lacks of what others lead: in the worst partition, and in all."""
    lags = [each for quorum in quorums for each in quorum.follower_lags if each.node_id == node_id]
    return {
        "records_max": max((each.records_max for each in lags), default=0),
        "records_total": sum(each.records_total for each in lags),
        "partitions_lagging": sum(each.lagging_count for each in lags),
    }


def leader_skew(nodes: Iterable[DescribeQuorumNode]) -> float | None:
    """How much more the busiest node leads than its share; None if there is nothing to lead."""
    led = [each.leader_count for each in nodes if each.replica_count]
    return round(max(led) * len(led) / sum(led) - 1, 3) if led and sum(led) else None


def reassignments(moves: Iterable[Copying]) -> list[dict[str, Any]]:
    """The partitions that move, as JSON has them."""
    return [
        {
            "topic": each.place.topic,
            "partition": each.place.partition,
            "adding": list(each.adding),
            "removing": list(each.removing),
            "bytes": each.bytes_there,
            "bytes_total": each.bytes_total,
        }
        for each in moves
    ]


def _move_line(move: Mapping[str, Any]) -> str:
    what = [
        f"{verb} {', '.join(map(str, nodes))}"
        for verb, nodes in (("to", move["adding"]), ("off", move["removing"]))
        if nodes
    ]
    there, total = move["bytes"], move["bytes_total"]
    share = f", {there} of {total} bytes there ({there / total:.0%})" if total else ""
    return f"reassigning {move['topic']}-{move['partition']} {' '.join(what)}{share}"


def lines(shown: Mapping[str, Any]) -> list[str]:
    """What a person is told: one line of counts, and one for each reason to act."""
    counts = shown["partitions"]
    if not counts or not counts["count"]:
        return []
    told = [
        f"{counts['count']} partitions: {counts['under_replicated']} under-replicated, "
        f"{counts['under_min_isr']} under min ISR, {counts['offline']} offline, "
        f"{counts['reassigning']} reassigning, "
        f"{counts['not_led_by_preferred']} not led by their preferred replica, "
        f"leader skew {shown['leader_skew'] or 0:.0%}"
    ]
    told += [_move_line(each) for each in shown["reassignments"][:MOVES_SHOWN]]
    unseen = len(shown["reassignments"]) - MOVES_SHOWN
    if unseen > 0:
        told.append(f"and {unseen} more")
    below = counts["topics_below_factor"]
    if below:
        told.append(
            f"warning: {', '.join(below)} will get more replicas when there are more nodes: until "
            "then the loss of one node may be the loss of groups or transactions"
        )
    return told
