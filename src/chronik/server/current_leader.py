"""Who leads instead: what Produce and Fetch tell a client that asked the wrong node (KIP-951)."""

from collections.abc import Iterable

from chronik.metadata.image import Image, Topic
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.produce import LeaderIdAndEpoch, NodeEndpoint

NOBODY = LeaderIdAndEpoch()
_ASKED_THE_WRONG_NODE = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


def current_leader(topic: Topic | None, index: int, error_code: int) -> LeaderIdAndEpoch:
    """The leader that this node knows of, if the error says that the client does not."""
    if error_code not in _ASKED_THE_WRONG_NODE or topic is None or index >= len(topic.partitions):
        return NOBODY
    partition = topic.partitions[index]
    return LeaderIdAndEpoch(leader_id=partition.leader, leader_epoch=partition.leader_epoch)


def endpoints(image: Image, leaders: Iterable[LeaderIdAndEpoch]) -> list[NodeEndpoint]:
    """Where these leaders are, so that the client need not ask."""
    ids = {leader.leader_id for leader in leaders}
    return (
        [
            NodeEndpoint(node_id=each.node_id, host=each.host, port=each.port, rack=each.rack)
            for each in image.online_brokers
            if each.node_id in ids
        ]
        if ids - {NOBODY.leader_id}
        else []
    )
