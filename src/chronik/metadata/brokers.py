"""Brokers come, go, rest and are removed: the commands, and all that follows, as one entry.

A registration belongs to a process (incarnation) on a data directory. A restart is a new
incarnation, which bumps the leader epoch of all that it leads: it may have lost a tail that nobody
acked. Another directory under the same node id has none of the data, so it is refused until the
old registration was removed. Two processes on one directory cannot be told from a restart here;
the lock of the directory keeps them apart.

Invariant: once a broker was registered, at least one is always shown to clients.
"""

from collections.abc import Iterator

import msgspec

from chronik.metadata.commands import (
    RegisterBroker,
    RemoveBroker,
    ResignLeadership,
    SetDiskFull,
    SetMaintenance,
    UpdateBrokerStatus,
)
from chronik.metadata.decision import Decision
from chronik.metadata.image import Image
from chronik.metadata.partitions import (
    MinInSync,
    after_full,
    after_loss,
    after_maintenance,
    after_return,
    changed,
    check_broker_epoch,
    no_longer_eligible,
)
from chronik.metadata.records import (
    NO_LEADER,
    BrokerRecord,
    BrokerRemovedRecord,
    BrokerStatus,
    LeaderEpochsRecord,
    Record,
)
from chronik.protocol.errors import ErrorCode, KafkaError


def register_broker(
    image: Image, command: RegisterBroker, next_index: int, min_isr: MinInSync
) -> Decision:
    known = image.brokers.get(command.node_id)
    if known is not None and known.directory_id != command.directory_id:
        raise KafkaError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"Node id {command.node_id} belongs to data directory {known.directory_id}, and this "
            f"node has {command.directory_id}: its data is not here. Start it with the old "
            "directory, give it another node id, or let replace-node remove the old one.",
        )
    if known is not None and known.incarnation_id == command.incarnation_id:
        return Decision((), known.epoch)  # Its own success, asked for again.
    in_maintenance = known is not None and known.in_maintenance
    record = BrokerRecord(
        node_id=command.node_id,
        epoch=next_index,
        incarnation_id=command.incarnation_id,
        directory_id=command.directory_id,
        host=command.host,
        port=command.port,
        rack=command.rack,
        status=BrokerStatus.MAINTENANCE if in_maintenance else BrokerStatus.ONLINE,
        in_maintenance=in_maintenance,
        internal_host=command.internal_host,
        internal_port=command.internal_port,
        memory_epoch=next_index if command.lost_memory else image.memory_epoch,
    )
    records: list[Record] = [record, LeaderEpochsRecord(node_id=command.node_id)]
    image = image.apply(records)
    if not command.is_clean:
        # As if it had died for good: whoever is in sync or eligible has what it may have lost.
        loss = after_loss(image, command.node_id, min_isr, is_unclean=True, is_back=True)
        records += loss
        image = image.apply(loss)
    if known is None:
        # Nor has this one anything that was given up with the one before it.
        gone = list(_given_up(image, command.node_id))
        records += gone
        image = image.apply(gone)
    back = after_return(image, command.node_id)
    # A restart may have brought a lower min.insync.replicas to whoever decides.
    stale = no_longer_eligible(image.apply(back), min_isr)
    return Decision((*records, *back, *stale), next_index)


def update_broker_status(image: Image, command: UpdateBrokerStatus, min_isr: MinInSync) -> Decision:
    node_id, status = command.node_id, command.status
    check_broker_epoch(image, node_id, command.broker_epoch)
    broker = image.brokers[node_id]
    if broker.status == status:
        return Decision(())
    is_offline = status is BrokerStatus.OFFLINE
    record = msgspec.structs.replace(
        broker,
        status=status,
        # One that comes back comes back to what it was.
        in_maintenance=broker.in_maintenance
        if is_offline or broker.is_full
        else status is BrokerStatus.MAINTENANCE,
    )
    follows: list[Record] = []
    if is_offline:
        _check_not_last(image, node_id)
        follows.extend(after_loss(image, node_id, min_isr))
    elif broker.status == BrokerStatus.OFFLINE:
        follows.extend(after_return(image, node_id))
    elif status is BrokerStatus.MAINTENANCE:
        follows.extend(after_maintenance(image, node_id))
    return Decision((record, *follows))


def set_maintenance(image: Image, command: SetMaintenance) -> Decision:
    _check_registered(image, command.node_id)
    broker = image.brokers[command.node_id]
    if broker.in_maintenance == command.in_maintenance:
        return Decision(())
    record = _resting(msgspec.structs.replace(broker, in_maintenance=command.in_maintenance))
    if record.status == BrokerStatus.OFFLINE or not command.in_maintenance:
        return Decision((record,))
    return Decision((record, *after_maintenance(image, command.node_id)))


def set_disk_full(image: Image, command: SetDiskFull, min_isr: MinInSync) -> Decision:
    node_id = command.node_id
    check_broker_epoch(image, node_id, command.broker_epoch)
    broker = image.brokers[node_id]
    records: list[Record] = []
    if broker.is_full != command.is_full:
        records.append(_resting(msgspec.structs.replace(broker, is_full=command.is_full)))
    if command.is_full:
        records.extend(after_full(image, node_id, min_isr))
    return Decision(records)


def _resting(broker: BrokerRecord) -> BrokerRecord:
    """A broker with the status that its flags ask for, unless it is offline."""
    if broker.status == BrokerStatus.OFFLINE:
        return broker
    is_resting = broker.in_maintenance or broker.is_full
    status = BrokerStatus.MAINTENANCE if is_resting else BrokerStatus.ONLINE
    return msgspec.structs.replace(broker, status=status)


def _check_registered(image: Image, node_id: int) -> None:
    if node_id not in image.brokers:
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker {node_id} is not registered.")


def resign_leadership(image: Image, command: ResignLeadership) -> Decision:
    check_broker_epoch(image, command.node_id, command.broker_epoch)
    return Decision(after_maintenance(image, command.node_id))


def remove_broker(image: Image, command: RemoveBroker, min_isr: MinInSync) -> Decision:
    node_id = command.node_id
    _check_registered(image, node_id)
    _check_not_last(image, node_id)
    if not command.accepts_loss:
        _check_no_loss(image, node_id)
    loss = after_loss(image, node_id, min_isr, is_unclean=True)
    removed = BrokerRemovedRecord(node_id=node_id)
    given_up = _given_up(image.apply(loss), node_id)
    return Decision((removed, *_remembering(image, image.apply([removed])), *loss, *given_up))


def _given_up(image: Image, node_id: int) -> Iterator[Record]:
    """Partitions that only this broker had everything of: now nobody has.

    Another directory may come under its number, and must not pass for the one that was in sync.
    """
    for partition in image.partitions():
        if partition.isr == (node_id,):
            without = changed(partition, isr=(), leader=NO_LEADER)
            assert without is not None
            yield without


def _remembering(before: Image, after: Image) -> list[Record]:
    """The memory epoch outlives the broker that had it."""
    if after.memory_epoch == before.memory_epoch:
        return []
    stays = after.brokers[min(after.brokers)]
    return [msgspec.structs.replace(stays, memory_epoch=before.memory_epoch)]


def is_last(image: Image, node_id: int) -> bool:
    """Whether no other broker is shown to clients."""
    return image.online_ids <= {node_id}


def _check_not_last(image: Image, node_id: int) -> None:
    if is_last(image, node_id):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Broker {node_id} stays: no other is online, and clients need one to ask.",
        )


def _check_no_loss(image: Image, node_id: int) -> None:
    alone = [
        f"{topic.name}-{partition.partition}"
        for topic in image.topics.values()
        for partition in topic.partitions
        if partition.isr == (node_id,)
    ]
    if alone:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Broker {node_id} alone has the data of {len(alone)} partition(s), such as "
            f"{min(alone)}: give them other replicas or delete them first.",
        )
