"""What `cluster status` says of partitions, and of those on the move."""

from typing import Any

from chronik.cli.cluster_health import MOVES_SHOWN, leader_skew, lines, reassignments
from chronik.client.moves import Copying
from chronik.model import TopicPartition
from chronik.protocol.messages.quorum import DescribeQuorumNode

COUNTS = {
    "count": 6,
    "under_replicated": 1,
    "under_min_isr": 0,
    "offline": 0,
    "reassigning": 1,
    "not_led_by_preferred": 2,
    "topics_below_factor": [],
}


def told(*moves: Copying) -> list[str]:
    shown: dict[str, Any] = {"partitions": COUNTS, "leader_skew": 0.5}
    return lines(shown | {"reassignments": reassignments(moves)})


def test_counts_and_skew_are_one_line() -> None:
    (line,) = told()
    assert line == (
        "6 partitions: 1 under-replicated, 0 under min ISR, 0 offline, 1 reassigning, "
        "2 not led by their preferred replica, leader skew 50%"
    )


def test_a_partition_on_the_move_says_how_much_has_arrived() -> None:
    move = Copying(TopicPartition("t", 3), (2, 3), (1,), bytes_there=50, bytes_total=200)
    assert told(move)[1:] == ["reassigning t-3 to 2, 3 off 1, 50 of 200 bytes there (25%)"]
    leaving = Copying(TopicPartition("t", 3), (), (1,), bytes_there=0, bytes_total=0)
    assert told(leaving)[1:] == ["reassigning t-3 off 1"]


def test_a_person_is_not_shown_thousands() -> None:
    moves = [Copying(TopicPartition("t", each), (2,), (), 0, 0) for each in range(3_000)]
    shown = told(*moves)[1:]
    assert len(shown) == MOVES_SHOWN + 1
    assert shown[-1] == f"and {3_000 - MOVES_SHOWN} more"


def test_skew_is_how_much_more_the_busiest_leads_than_its_share() -> None:
    def node(node_id: int, leads: int) -> DescribeQuorumNode:
        return DescribeQuorumNode(
            node_id=node_id, listeners=[], status="online", leader_count=leads, replica_count=9
        )

    assert leader_skew([node(1, 6), node(2, 3), node(3, 3)]) == 0.5
    assert leader_skew([]) is None
