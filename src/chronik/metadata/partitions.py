"""Who leads a partition and who is in sync: decisions about partitions that exist.

A leader is always a member of the in-sync set whose broker is not offline; if there is none, an
eligible replica (KIP-966), which is then the only one in sync. Where there is none either the
partition has no leader, and its in-sync set stays as it is: it names who has the data, if anybody
still does.

Invariants
    The in-sync set is a part of the replicas; the leader, if any, is in it. It is empty only where
    the last that was in sync was given up by force: then nobody has everything that is committed.
    A broker that goes offline leaves every in-sync set that has another member. So an offline
    broker is in sync only where nobody else is.
    Both epochs of a partition only grow; a new leader is a new leader epoch.
    Eligible replicas have all that is committed: there are none where enough are in sync.

See KIP-497 (compare-and-set of the in-sync set), KIP-903 (broker epochs of added replicas) and
Kafka's ReplicationControlManager for the error codes.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from chronik.config.effective import BrokerConfig
from chronik.metadata.commands import (
    AssignPartition,
    InSyncChange,
    LeaveInSync,
    SetPartitionLeader,
    UpdateISR,
)
from chronik.metadata.decision import Decision
from chronik.metadata.image import TOPIC, Image, Topic, id_bytes
from chronik.metadata.records import (
    NO_LEADER,
    NO_NODE,
    BrokerStatus,
    PartitionLeadersRecord,
    PartitionRecord,
    Record,
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

MinInSync = Callable[[str], int]  # a topic's min.insync.replicas, by its name


def min_in_sync(image: Image, config: BrokerConfig) -> MinInSync:
    """How many replicas of a topic must be in sync for acks=all."""
    default = config.integer("min.insync.replicas")

    def of(name: str) -> int:
        value = image.config(TOPIC, name).get("min.insync.replicas")
        return default if value is None else int(value)

    return of


def after_loss(
    image: Image,
    node_id: int,
    min_isr: MinInSync,
    *,
    is_unclean: bool = False,
    is_back: bool = False,
) -> tuple[PartitionLeadersRecord, ...]:
    """A broker is gone: others lead where they can, and it is in sync only where it is alone.

    If it may have lost what it had (`is_unclean`), it is not eligible anywhere either. If it is
    back, it leads what nobody else has any data of.
    """

    def leader_without(partition: PartitionRecord) -> int | None:
        is_eligible = is_unclean and node_id in partition.elr
        if node_id not in partition.isr:
            return partition.leader if is_eligible else None
        if partition.leader != node_id and partition.leader != NO_LEADER:
            return partition.leader if len(partition.isr) > 1 else None
        leader = _leader_besides(image, partition, node_id)
        others = (*partition.isr, *partition.elr)
        if is_back and all(each == node_id for each in others):
            return None  # Nobody else has the data either: it leads with what it has.
        return leader

    return _leaders(
        image, leader_without, isr_without=node_id, min_isr=min_isr, is_unclean=is_unclean
    )


def after_return(image: Image, node_id: int) -> tuple[PartitionLeadersRecord, ...]:
    """A broker is back: it leads again what waits for it."""

    def leader_again(partition: PartitionRecord) -> int | None:
        may_lead = node_id in partition.isr or node_id in partition.elr
        return node_id if partition.leader == NO_LEADER and may_lead else None

    return _leaders(image, leader_again)


def after_maintenance(image: Image, node_id: int) -> tuple[PartitionLeadersRecord, ...]:
    """A broker is to be drained: others that are online lead; what only it can lead stays."""

    def leader_instead(partition: PartitionRecord) -> int | None:
        if partition.leader != node_id:
            return None
        leader = _leader_besides(image, partition, node_id, with_eligible=False)
        return leader if _is_online(image, leader) else None

    return _leaders(image, leader_instead)


def after_full(
    image: Image, node_id: int, min_isr: MinInSync
) -> tuple[PartitionLeadersRecord, ...]:
    """A broker's disk is full: others lead where they can, and nobody waits for it."""

    def leader_instead(partition: PartitionRecord) -> int | None:
        if node_id not in partition.isr or len(partition.isr) == 1:
            return None
        if partition.leader != node_id:
            return None if partition.leader == NO_LEADER else partition.leader
        leader = _leader_besides(image, partition, node_id, with_eligible=False)
        return leader if _is_online(image, leader) else None

    return _leaders(image, leader_instead, isr_without=node_id, min_isr=min_isr)


def _is_online(image: Image, node_id: int) -> bool:
    broker = image.brokers.get(node_id)
    return broker is not None and broker.status == BrokerStatus.ONLINE


def _leader_besides(
    image: Image, partition: PartitionRecord, node_id: int, *, with_eligible: bool = True
) -> int:
    isr = partition.isr
    in_sync = (each for each in partition.replicas if each != node_id and each in isr)
    leader = choose_leader(image, in_sync)
    if leader == NO_LEADER and with_eligible:
        leader = choose_leader(image, (each for each in partition.elr if each != node_id))
    return leader


def _leaders(
    image: Image,
    choose: Callable[[PartitionRecord], int | None],
    isr_without: int = NO_NODE,
    min_isr: MinInSync | None = None,
    is_unclean: bool = False,
) -> tuple[PartitionLeadersRecord, ...]:
    """The record of each partition that `choose` has a leader for, or nothing.

    Of partitions with the same replicas in the same state it is asked once: they are thousands.
    """
    choices: dict[tuple[object, ...], tuple[int, bool] | None] = {}
    topic_ids: list[str] = []
    indexes: list[tuple[int, ...]] = []
    leaders: list[tuple[int, ...]] = []
    eligible: list[tuple[bool, ...]] = []
    for topic in image.topics.values():
        least = 0 if min_isr is None or is_unclean else min_isr(topic.record.name)
        chosen = []
        for each in topic.partitions:
            state = (each.leader, each.replicas, each.isr, each.elr, least)
            if state not in choices:
                leader = choose(each)
                stays_eligible = len(each.isr) - 1 < min(least, len(each.replicas))
                choices[state] = None if leader is None else (leader, stays_eligible)
            choice = choices[state]
            if choice is not None:
                chosen.append((each.partition, *choice))
        if chosen:
            of_topic = tuple(zip(*chosen, strict=True))
            topic_ids.append(topic.record.topic_id)
            indexes.append(of_topic[0])
            leaders.append(of_topic[1])
            eligible.append(of_topic[2])
    if not topic_ids:
        return ()
    record = PartitionLeadersRecord(
        topic_ids=tuple(topic_ids),
        partitions=tuple(indexes),
        leaders=tuple(leaders),
        isr_without=isr_without,
        stays_eligible=tuple(eligible) if any(map(any, eligible)) else (),
        is_unclean=is_unclean,
    )
    return (record,)


def no_longer_eligible(image: Image, min_isr: MinInSync) -> list[Record]:
    """Partitions with enough in sync, by a min.insync.replicas that was lowered: the rest is out.

    From now on more is committed there, and whoever was eligible misses it.
    """
    return [
        msgspec.structs.replace(each, elr=(), partition_epoch=each.partition_epoch + 1)
        for topic in image.topics.values()
        for each in topic.partitions
        if each.elr and len(each.isr) >= min(min_isr(topic.name), len(each.replicas))
    ]


# Commands about one partition. Each answers with the partition as it is then.


def assign_partition(image: Image, command: AssignPartition) -> Decision:
    _, partition = find(image, command.topic_id, command.partition)
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
    elr = tuple(each for each in partition.elr if each in replicas)
    return _decision(partition, replicas=replicas, isr=isr, elr=elr, leader=leader)


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
    _, partition = find(image, command.topic_id, command.partition)
    check_leader_epoch(partition, command.leader_epoch)
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
    return _decision(partition, leader=leader)


def update_isr(image: Image, command: UpdateISR, min_isr: MinInSync) -> Decision:
    check_broker_epoch(image, command.node_id, command.broker_epoch)
    records: list[Record] = []
    codes: list[int] = []
    for change in command.changes:
        try:
            records += _in_sync_change(image, command.node_id, change, min_isr)
        except KafkaError as error:
            codes.append(error.code)
        else:
            codes.append(ErrorCode.NONE)
    return Decision(records, tuple(codes))


def _in_sync_change(
    image: Image, node_id: int, change: InSyncChange, min_isr: MinInSync
) -> Sequence[Record]:
    topic, partition = find(image, change.topic_id, change.partition)
    check_leader_epoch(partition, change.leader_epoch)
    if change.partition_epoch > partition.partition_epoch:
        raise KafkaError(ErrorCode.NOT_CONTROLLER, "The asker knows a later partition epoch.")
    if node_id != partition.leader:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Broker {node_id} does not lead the partition, {partition.leader} does.",
        )
    if change.partition_epoch < partition.partition_epoch:
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"The partition epoch is {partition.partition_epoch}, not {change.partition_epoch}.",
        )
    _check_isr(image, change, partition)
    isr = tuple(each for each in partition.replicas if each in change.isr)
    elr: tuple[int, ...] = ()
    if len(isr) < min(min_isr(topic.name), len(partition.replicas)):
        before = dict.fromkeys((*partition.elr, *partition.isr))
        elr = tuple(each for each in before if each not in isr)
    changes = completion(image, partition, isr) or {"isr": isr, "elr": elr}
    return _decision(partition, **changes).records


def completion(
    image: Image, partition: PartitionRecord, isr: tuple[int, ...]
) -> dict[str, Any] | None:
    """What ends a move, if with this in-sync set it is done: all that are added are in sync.

    Those that are to go do so now. Somebody who stays must have the data.
    """
    if not partition.is_moving or not set(partition.adding_replicas) <= set(isr):
        return None
    replicas = _without(partition.replicas, partition.removing_replicas)
    staying = tuple(each for each in replicas if each in isr)
    if not staying:
        return None
    is_led = partition.leader in staying
    return {
        "replicas": replicas,
        "isr": staying,
        "elr": (),
        "adding_replicas": (),
        "removing_replicas": (),
        "leader": partition.leader if is_led else choose_leader(image, staying),
    }


def _without(nodes: tuple[int, ...], gone: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(each for each in nodes if each not in gone)


def _check_isr(image: Image, change: InSyncChange, partition: PartitionRecord) -> None:
    asked = set(change.isr)
    is_valid = len(asked) == len(change.isr) and asked <= set(partition.replicas)
    if not is_valid or partition.leader not in asked:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"The in-sync set {list(change.isr)} is not one of replicas "
            f"{list(partition.replicas)} with the leader {partition.leader} in it.",
        )
    for node_id in asked.difference(partition.isr):
        broker = image.brokers.get(node_id)
        reason = None
        if broker is None or broker.status == BrokerStatus.OFFLINE:
            reason = "is not online"
        elif broker.is_full:
            reason = "has no room on its disk"
        elif change.broker_epochs.get(node_id) != broker.epoch:
            reason = f"has broker epoch {broker.epoch}: what was seen of it was before its restart"
        if reason is not None:
            raise KafkaError(ErrorCode.INELIGIBLE_REPLICA, f"Broker {node_id} {reason}.")


def leave_in_sync(image: Image, command: LeaveInSync) -> Decision:
    node_id = command.node_id
    check_broker_epoch(image, node_id, command.broker_epoch)
    records: list[Record] = []
    for topic_id, index in command.partitions:
        _, partition = find(image, topic_id, index)
        isr = tuple(each for each in partition.isr if each != node_id)
        elr = tuple(each for each in partition.elr if each != node_id)
        if not isr:
            isr, elr = elr, ()
        if isr:
            leader = partition.leader
            if leader in (node_id, NO_LEADER):
                leader = choose_leader(image, isr)
            # In a new epoch everybody tells anew how far it is. What the leader has heard of this
            # replica was before it lost something, and must not bring it back.
            epoch = partition.leader_epoch + 1
            changed = _decision(partition, leader=leader, isr=isr, elr=elr).records
            records += [msgspec.structs.replace(each, leader_epoch=epoch) for each in changed]
    return Decision(records)


def check_broker_epoch(image: Image, node_id: int, broker_epoch: int) -> None:
    """Raise STALE_BROKER_EPOCH unless this is the broker's present registration."""
    broker = image.brokers.get(node_id)
    if broker is None or broker.epoch != broker_epoch:
        raise KafkaError(ErrorCode.STALE_BROKER_EPOCH)


def find(image: Image, topic_id: str, index: int) -> tuple[Topic, PartitionRecord]:
    """A topic and its partition, or KafkaError."""
    topic = image.topic_by_id(id_bytes(topic_id))
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
    if not 0 <= index < len(topic.partitions):
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return topic, topic.partitions[index]


def check_leader_epoch(partition: PartitionRecord, leader_epoch: int) -> None:
    """Raise KafkaError unless this is the partition's leader epoch."""
    if leader_epoch < partition.leader_epoch:
        raise KafkaError(
            ErrorCode.FENCED_LEADER_EPOCH,
            f"The leader epoch is {partition.leader_epoch}, not {leader_epoch}.",
        )
    if leader_epoch > partition.leader_epoch:
        # Whoever decides knows all that is committed, so this node decides no longer.
        raise KafkaError(ErrorCode.NOT_CONTROLLER, "The asker knows a later leader epoch.")


def _decision(partition: PartitionRecord, **changes: Any) -> Decision:
    record = changed(partition, **changes)
    return Decision((), partition) if record is None else Decision((record,), record)


def changed(partition: PartitionRecord, **changes: Any) -> PartitionRecord | None:
    """The partition with these changes in new epochs; None if it is so already.

    A replica that goes begins a new leader epoch too: it may come back with less than it had, and
    what it said before must not count then.
    """
    if all(getattr(partition, name) == value for name, value in changes.items()):
        return None
    leader = changes.get("leader", partition.leader)
    loses_some = not set(partition.replicas) <= set(changes.get("replicas", partition.replicas))
    return msgspec.structs.replace(
        partition,
        **changes,
        leader_epoch=partition.leader_epoch + (leader != partition.leader or loses_some),
        partition_epoch=partition.partition_epoch + 1,
    )
