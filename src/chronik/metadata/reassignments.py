"""Partitions move to other replicas: begun, undone, and what is under way.

A move adds replicas first and takes others away when all that were added are in sync: at any time
everybody who is in sync is a replica. The end of a move is decided with the in-sync set that
brings it about (`partitions.completion`), or at once if nobody has to be added.

Invariants
    While a partition moves its replicas are the wanted ones and then those that will go; adding
    and removing replicas are parts of them and have nobody in common.
    A move is undone only while somebody is in sync who was a replica before it.

See KIP-455 and Kafka's ReplicationControlManager for the error codes.
"""

from collections.abc import Iterator

from chronik.metadata.commands import Reassignment, ReassignPartitions
from chronik.metadata.decision import Decision
from chronik.metadata.image import Image, Topic
from chronik.metadata.partitions import (
    changed,
    check_replicas,
    choose_leader,
    completion,
    find,
)
from chronik.metadata.records import PartitionRecord, Record
from chronik.protocol.errors import ErrorCode, KafkaError


def reassign_partitions(image: Image, command: ReassignPartitions) -> Decision:
    records: list[Record] = []
    outcomes: list[tuple[int, str | None]] = []
    for each in command.reassignments:
        try:
            record = _reassigned(image, each, command.may_change_factor)
        except KafkaError as error:
            outcomes.append((error.code, error.message))
            continue
        outcomes.append((ErrorCode.NONE, None))
        if record is not None:
            records.append(record)
            image = image.apply((record,))  # The same partition may be named again.
    return Decision(records, tuple(outcomes))


def _reassigned(
    image: Image, reassignment: Reassignment, may_change_factor: bool
) -> PartitionRecord | None:
    _, partition = find(image, reassignment.topic_id, reassignment.partition)
    wanted = reassignment.replicas
    if wanted is None:
        return _undone(image, partition)
    check_replicas(image, wanted)
    before = _without(partition.replicas, partition.adding_replicas)
    if not may_change_factor and len(wanted) != len(before):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor is changed from {len(before)} to {len(wanted)}.",
        )
    removing = _without(partition.replicas, wanted)
    added = _without(wanted, partition.replicas)
    # Who is still on the way from a move before goes on with this one.
    coming = tuple(each for each in partition.adding_replicas if each in wanted)
    begun = changed(
        partition,
        replicas=(*wanted, *removing),
        adding_replicas=tuple(each for each in wanted if each in (*added, *coming)),
        removing_replicas=removing,
    )
    if begun is None:
        return None
    done = completion(image, begun, begun.isr)
    return begun if done is None else changed(partition, **done)


def _undone(image: Image, partition: PartitionRecord) -> PartitionRecord | None:
    if not partition.is_moving:
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    replicas = _without(partition.replicas, partition.adding_replicas)
    isr = _without(partition.isr, partition.adding_replicas)
    if not isr:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"None of the replicas {list(replicas)} has the partition's data any more: in sync "
            f"are {list(partition.isr)}.",
        )
    leader = partition.leader
    if leader not in isr:
        leader = choose_leader(image, (each for each in replicas if each in isr))
    return changed(
        partition,
        replicas=replicas,
        isr=isr,
        elr=_without(partition.elr, partition.adding_replicas),
        adding_replicas=(),
        removing_replicas=(),
        leader=leader,
    )


def _without(nodes: tuple[int, ...], gone: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(each for each in nodes if each not in gone)


def under_way(image: Image) -> Iterator[tuple[Topic, PartitionRecord]]:
    """The partitions that move now."""
    for topic in image.topics.values():
        for partition in topic.partitions:
            if partition.is_moving:
                yield topic, partition
