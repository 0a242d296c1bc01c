"""Who leads a partition and who is in sync: decisions about partitions that exist.

A leader is always a member of the in-sync set whose broker is not offline. Where there is none the
partition has no leader, and its in-sync set stays as it is: it names who has the data.

Invariants
    The in-sync set is a part of the replicas and never empty; the leader, if any, is in it.
    A broker that goes offline leaves every in-sync set that has another member. So an offline
    broker is in sync only where nobody else is.
    Both epochs of a partition only grow; a new leader is a new leader epoch.

See KIP-497 (compare-and-set of the in-sync set), KIP-903 (broker epochs of added replicas) and
Kafka's ReplicationControlManager for the error codes.
"""

from collections.abc import Callable, Iterable

import msgspec

from chronik.metadata.commands import AssignPartition, SetPartitionLeader, UpdateISR
from chronik.metadata.decision import Decision
from chronik.metadata.image import Image, id_bytes
from chronik.metadata.records import (
    NO_LEADER,
    NO_NODE,
    BrokerStatus,
    PartitionLeadersRecord,
    PartitionRecord,
)
from chronik.protocol.errors import ErrorCode, KafkaError


def choose_leader(image: Image, candidates: Iterable[int]) -> int:
    """The first candidate that is online; else one in maintenance; else nobody."""
    resting = NO_LEADER
    for node_id in candidates:
        broker = image.brokers.get(node_id)
        if broker is None or broker.status == BrokerStatus.OFFLINE:
            continue
        if broker.status == BrokerStatus.ONLINE:
            return node_id
        if resting == NO_LEADER:
            resting = node_id
    return resting


# What follows from a broker's coming and going: one record for all its partitions.


def after_loss(image: Image, node_id: int) -> tuple[PartitionLeadersRecord, ...]:
    """A broker is gone: others lead where they can, and it is in sync only where it is alone."""

    def leader_without(partition: PartitionRecord) -> int | None:
        if node_id not in partition.isr:
            return None
        if partition.leader != node_id:
            return partition.leader if len(partition.isr) > 1 else None
        return _leader_besides(image, partition, node_id)

    return _leaders(image, leader_without, isr_without=node_id)


def after_return(image: Image, node_id: int) -> tuple[PartitionLeadersRecord, ...]:
    """A broker is back: it leads again what waits for it."""

    def leader_again(partition: PartitionRecord) -> int | None:
        waits = partition.leader == NO_LEADER and node_id in partition.isr
        return node_id if waits else None

    return _leaders(image, leader_again)


def after_maintenance(image: Image, node_id: int) -> tuple[PartitionLeadersRecord, ...]:
    """A broker is to be drained: others that are online lead; what only it can lead stays."""

    def leader_instead(partition: PartitionRecord) -> int | None:
        if partition.leader != node_id:
            return None
        leader = _leader_besides(image, partition, node_id)
        broker = image.brokers.get(leader)
        can_lead = broker is not None and broker.status == BrokerStatus.ONLINE
        return leader if can_lead else None

    return _leaders(image, leader_instead)


def _leader_besides(image: Image, partition: PartitionRecord, node_id: int) -> int:
    if len(partition.isr) == 1:
        return NO_LEADER
    isr = partition.isr
    candidates = (each for each in partition.replicas if each != node_id and each in isr)
    return choose_leader(image, candidates)


def _leaders(
    image: Image,
    choose: Callable[[PartitionRecord], int | None],
    isr_without: int = NO_NODE,
) -> tuple[PartitionLeadersRecord, ...]:
    """The record of each partition that `choose` has a leader for, or nothing."""
    topic_ids: list[str] = []
    indexes: list[tuple[int, ...]] = []
    leaders: list[tuple[int, ...]] = []
    for topic in image.topics.values():
        chosen = [
            (partition.partition, leader)
            for partition in topic.partitions
            if (leader := choose(partition)) is not None
        ]
        if chosen:
            topic_ids.append(topic.record.topic_id)
            indexes.append(tuple(index for index, _ in chosen))
            leaders.append(tuple(leader for _, leader in chosen))
    if not topic_ids:
        return ()
    record = PartitionLeadersRecord(
        topic_ids=tuple(topic_ids),
        partitions=tuple(indexes),
        leaders=tuple(leaders),
        isr_without=isr_without,
    )
    return (record,)


# Commands about one partition. Each answers with the partition as it is then.


def assign_partition(image: Image, command: AssignPartition) -> Decision:
    partition = _find(image, command.topic_id, command.partition)
    replicas = command.replicas
    check_replicas(image, replicas)
    isr = tuple(each for each in replicas if each in partition.isr)
    if not isr:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"None of the replicas {list(replicas)} has the partition's data: in sync are "
            f"{list(partition.isr)}.",
        )
    leader = partition.leader
    if leader not in isr:
        leader = choose_leader(image, isr)
    return _changed(partition, replicas=replicas, isr=isr, leader=leader)


def check_replicas(image: Image, replicas: tuple[int, ...]) -> None:
    """Raise INVALID_REPLICA_ASSIGNMENT unless these are different registered brokers."""
    reason = None
    if not replicas:
        reason = "an empty replica list"
    elif len(set(replicas)) != len(replicas):
        reason = f"duplicate replicas {list(replicas)}"
    else:
        unknown = [node_id for node_id in replicas if node_id not in image.brokers]
        if unknown:
            reason = f"broker {unknown[0]}, which is not registered"
    if reason is not None:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"The manual partition assignment includes {reason}.",
        )


def set_partition_leader(image: Image, command: SetPartitionLeader) -> Decision:
    partition = _find(image, command.topic_id, command.partition)
    _check_leader_epoch(partition, command.leader_epoch)
    leader = command.leader
    if leader == partition.leader:
        raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED, f"Broker {leader} leads already.")
    if leader not in partition.isr or leader not in image.online_ids:
        is_preferred = leader == partition.replicas[0]
        raise KafkaError(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
            if is_preferred
            else ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
            f"Broker {leader} is not in sync or not online; in sync are {list(partition.isr)}.",
        )
    return _changed(partition, leader=leader)


def update_isr(image: Image, command: UpdateISR) -> Decision:
    check_broker_epoch(image, command.node_id, command.broker_epoch)
    partition = _find(image, command.topic_id, command.partition)
    _check_leader_epoch(partition, command.leader_epoch)
    if command.partition_epoch > partition.partition_epoch:
        raise KafkaError(ErrorCode.NOT_CONTROLLER, "The asker knows a later partition epoch.")
    if command.node_id != partition.leader:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Broker {command.node_id} does not lead the partition, {partition.leader} does.",
        )
    if command.partition_epoch < partition.partition_epoch:
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"The partition epoch is {partition.partition_epoch}, not {command.partition_epoch}.",
        )
    _check_isr(image, command, partition)
    isr = tuple(each for each in partition.replicas if each in command.isr)
    return _changed(partition, isr=isr)


def _check_isr(image: Image, command: UpdateISR, partition: PartitionRecord) -> None:
    asked = set(command.isr)
    is_valid = len(asked) == len(command.isr) and asked <= set(partition.replicas)
    if not is_valid or partition.leader not in asked:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"The in-sync set {list(command.isr)} is not one of replicas "
            f"{list(partition.replicas)} with the leader {partition.leader} in it.",
        )
    for node_id in asked.difference(partition.isr):
        broker = image.brokers.get(node_id)
        reason = None
        if broker is None or broker.status == BrokerStatus.OFFLINE:
            reason = "is not online"
        elif command.broker_epochs.get(node_id) != broker.epoch:
            reason = f"has broker epoch {broker.epoch}: what was seen of it was before its restart"
        if reason is not None:
            raise KafkaError(ErrorCode.INELIGIBLE_REPLICA, f"Broker {node_id} {reason}.")


def check_broker_epoch(image: Image, node_id: int, broker_epoch: int) -> None:
    """Raise STALE_BROKER_EPOCH unless this is the broker's present registration."""
    broker = image.brokers.get(node_id)
    if broker is None or broker.epoch != broker_epoch:
        raise KafkaError(ErrorCode.STALE_BROKER_EPOCH)


def _find(image: Image, topic_id: str, index: int) -> PartitionRecord:
    topic = image.topic_by_id(id_bytes(topic_id))
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
    if not 0 <= index < len(topic.partitions):
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return topic.partitions[index]


def _check_leader_epoch(partition: PartitionRecord, leader_epoch: int) -> None:
    if leader_epoch < partition.leader_epoch:
        raise KafkaError(
            ErrorCode.FENCED_LEADER_EPOCH,
            f"The leader epoch is {partition.leader_epoch}, not {leader_epoch}.",
        )
    if leader_epoch > partition.leader_epoch:
        # Whoever decides knows all that is committed, so this node decides no longer.
        raise KafkaError(ErrorCode.NOT_CONTROLLER, "The asker knows a later leader epoch.")


def _changed(
    partition: PartitionRecord,
    *,
    leader: int | None = None,
    isr: tuple[int, ...] | None = None,
    replicas: tuple[int, ...] | None = None,
) -> Decision:
    leader = partition.leader if leader is None else leader
    isr = partition.isr if isr is None else isr
    replicas = partition.replicas if replicas is None else replicas
    if (leader, isr, replicas) == (partition.leader, partition.isr, partition.replicas):
        return Decision((), partition)
    record = msgspec.structs.replace(
        partition,
        leader=leader,
        isr=isr,
        replicas=replicas,
        leader_epoch=partition.leader_epoch + (leader != partition.leader),
        partition_epoch=partition.partition_epoch + 1,
    )
    return Decision((record,), record)
