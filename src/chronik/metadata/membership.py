"""Who may be a member of the cluster: decisions about nodes that come, stay, and go.

A member is bound to the id of its data directory, because its vote and its log are there. Whoever
comes under its node id with another directory has forgotten what the member promised: it is no
member until the old one was removed and it is admitted anew, as a learner.

Each function looks and returns the members to propose; Raft takes one change at a time, and has
the last word (`raft.members.why_not`). Refusals are KafkaErrors with one line for a person.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from chronik.metadata.image import Image
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.raft.types import Membership


def admit(
    membership: Membership, image: Image, node_id: int | None, directory_id: str
) -> tuple[int, Membership]:
    """AddNode: the node's id, chosen if it has none, and the members with it as a learner.

    Asked again by the same directory, nothing changes. A founder that nobody has met yet is bound.
    """
    known = next((each for each, at in membership.directories.items() if at == directory_id), None)
    if known is not None:
        if node_id not in (None, known):
            raise _refused(f"This data directory is that of node {known}, not of node {node_id}.")
        return known, membership
    if node_id is None:
        node_id = 1 + max(_ids_in_use(membership, image), default=0)
    _check_free(membership, image, node_id, directory_id)
    directories = {**membership.directories, node_id: directory_id}
    if node_id in membership.members:
        return node_id, replace(membership, directories=directories)
    learners = membership.learners | {node_id}
    return node_id, Membership(membership.voters, learners, directories)


def _check_free(membership: Membership, image: Image, node_id: int, directory_id: str) -> None:
    broker = image.brokers.get(node_id)
    bound = membership.directories.get(node_id, broker.directory_id if broker else directory_id)
    if bound != directory_id:
        raise _refused(
            f"Node id {node_id} belongs to data directory {bound}, and this is another. Start the "
            f"node with that directory, give it another --node-id, or, if that directory is lost, "
            f"say so by `chronik cluster replace-node {node_id}` and start it again."
        )


def check_member(membership: Membership, node_id: int, directory_id: str) -> None:
    """Refuse the registration of a node that was removed while its request was on the way."""
    bound = membership.directories.get(node_id, directory_id)
    if node_id not in membership.members or bound != directory_id:
        raise KafkaError(
            ErrorCode.BROKER_ID_NOT_REGISTERED,
            f"Node {node_id} with data directory {directory_id} is no member of the cluster.",
        )


def _ids_in_use(membership: Membership, image: Image) -> set[int]:
    """Ids that mean somebody, be it only in a list of replicas."""
    replicas = {each for partition in image.partitions() for each in partition.replicas}
    return replicas | membership.members | set(image.brokers)


def bind(membership: Membership, directories: Mapping[int, str]) -> Membership:
    """Bind those members that are not bound yet to the directories they were seen with."""
    seen = {
        node_id: directory_id
        for node_id, directory_id in directories.items()
        if node_id in membership.members and node_id not in membership.directories
    }
    if not seen:
        return membership
    return replace(membership, directories={**membership.directories, **seen})


def promote(membership: Membership, caught_up: Collection[int]) -> Membership:
    """Let one learner vote that has everything; Raft changes one voter at a time."""
    ready = sorted(membership.learners & set(caught_up) & membership.directories.keys())
    if not ready:
        return membership
    node_id = ready[0]
    return replace(
        membership, voters=membership.voters | {node_id}, learners=membership.learners - {node_id}
    )


def remove(membership: Membership, node_id: int, heard: Collection[int]) -> Membership:
    """RemoveNode: the members without it, if those that answer can go on deciding."""
    if node_id not in membership.members:
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Node {node_id} is no member.")
    voters = membership.voters - {node_id}
    if not voters:
        raise _refused(f"Node {node_id} is the only voter: a cluster needs one.")
    answering = voters & set(heard)
    needed = len(voters) // 2 + 1
    if node_id in membership.voters and len(answering) < needed:
        silent = ", ".join(map(str, sorted(voters - answering)))
        raise _refused(
            f"Without node {node_id} there are {len(voters)} voters, of which {len(answering)} "
            f"answer and {needed} must: start node {silent} first, or remove that one instead."
        )
    directories = {each: at for each, at in membership.directories.items() if each != node_id}
    return Membership(voters, membership.learners - {node_id}, directories)


def successor(membership: Membership, leader_id: int, matched: Mapping[int, int]) -> int:
    """Who should lead next: of the other voters that answer, the one with the longest log."""
    others = {each: matched[each] for each in sorted(matched) if each in membership.voters}
    others.pop(leader_id, None)
    if not others:
        raise _refused("No other voter answers: there is nobody to hand over to.")
    return max(others, key=lambda each: others[each])


def _refused(reason: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, reason)
