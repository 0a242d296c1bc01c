"""Decides about commands: looks at an image, changes nothing, returns records and a response.

Each `decide` case validates fully, so that no record that was logged can fail to apply. A
command that cannot be is answered with a KafkaError. The records of one command are one entry of
the log: a topic appears with all its partitions and settings, or not at all.

Topics, settings and producer ids are decided here; `brokers`, `partitions`, `elections` and
`reassignments` decide the rest.

See Kafka's ReplicationControlManager for the error codes, which clients depend on.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from chronik.config import limits
from chronik.config.broker_settings import BROKER_SETTINGS
from chronik.config.definitions import Definition, InvalidSetting, Update, render
from chronik.config.effective import BrokerConfig
from chronik.config.group_settings import GROUP_SETTINGS, check_group
from chronik.config.topic_settings import TOPIC_SETTINGS
from chronik.metadata import brokers, elections, partitions, reassignments
from chronik.metadata.commands import (
    AllocateProducerIds,
    AlterConfig,
    AssignPartition,
    Command,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    ElectLeaders,
    ElectUncleanLeaders,
    LeaveInSync,
    ReassignPartitions,
    RegisterBroker,
    RemoveBroker,
    ResignLeadership,
    SetDiskFull,
    SetMaintenance,
    SetPartitionLeader,
    UpdateBrokerStatus,
    UpdateISR,
)
from chronik.metadata.decision import Decision as Decision  # callers know it from here
from chronik.metadata.image import BROKER, GROUP, TOPIC, Image, Topic, collision_key, id_bytes
from chronik.metadata.placement import place, rack_ring, turn_after
from chronik.metadata.records import (
    NO_LEADER,
    ConfigRecord,
    PartitionRecord,
    ProducerIdsRecord,
    Record,
    TopicRecord,
    TopicRemovedRecord,
)
from chronik.protocol.errors import ErrorCode, KafkaError

MIN_IN_SYNC: Final = "min.insync.replicas"
_LEGAL_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")


def decide(image: Image, command: Command, config: BrokerConfig, next_index: int) -> Decision:
    """The records and the response of a command, or KafkaError."""
    match command:
        case CreateTopic():
            return create_topic(image, command, config)
        case DeleteTopic():
            return delete_topic(image, command)
        case CreatePartitions():
            return create_partitions(image, command)
        case AlterConfig():
            return alter_config(image, command, config)
        case AllocateProducerIds():
            return allocate_producer_ids(image, command)
        case (
            RegisterBroker()
            | UpdateBrokerStatus()
            | SetMaintenance()
            | SetDiskFull()
            | ResignLeadership()
            | RemoveBroker()
        ):
            return _decide_broker(image, command, config, next_index)
        case ReassignPartitions() | ElectLeaders() | ElectUncleanLeaders():
            return _decide_move(image, command)
        case AssignPartition() | SetPartitionLeader() | UpdateISR() | LeaveInSync():
            return _decide_partition(image, command, config)


def _decide_broker(
    image: Image,
    command: RegisterBroker
    | UpdateBrokerStatus
    | SetMaintenance
    | SetDiskFull
    | ResignLeadership
    | RemoveBroker,
    config: BrokerConfig,
    next_index: int,
) -> Decision:
    min_isr = partitions.min_in_sync(image, config)
    match command:
        case RegisterBroker():
            return brokers.register_broker(image, command, next_index, min_isr)
        case UpdateBrokerStatus():
            return brokers.update_broker_status(image, command, min_isr)
        case SetMaintenance():
            return brokers.set_maintenance(image, command)
        case SetDiskFull():
            return brokers.set_disk_full(image, command, min_isr)
        case ResignLeadership():
            return brokers.resign_leadership(image, command)
        case RemoveBroker():
            return brokers.remove_broker(image, command, min_isr)


def _decide_partition(
    image: Image,
    command: AssignPartition | SetPartitionLeader | UpdateISR | LeaveInSync,
    config: BrokerConfig,
) -> Decision:
    match command:
        case AssignPartition():
            return partitions.assign_partition(image, command)
        case SetPartitionLeader():
            return partitions.set_partition_leader(image, command)
        case LeaveInSync():
            return partitions.leave_in_sync(image, command)
        case UpdateISR():
            return partitions.update_isr(image, command, partitions.min_in_sync(image, config))


def _decide_move(
    image: Image, command: ReassignPartitions | ElectLeaders | ElectUncleanLeaders
) -> Decision:
    match command:
        case ReassignPartitions():
            return reassignments.reassign_partitions(image, command)
        case ElectLeaders():
            return elections.elect_leaders(image, command)
        case ElectUncleanLeaders():
            return elections.elect_unclean_leaders(image, command)


def create_topic(image: Image, command: CreateTopic, config: BrokerConfig) -> Decision:
    repeated = image.topic_by_id(id_bytes(command.topic_id))
    if repeated is not None:
        return Decision((), repeated)  # Our own success, asked for again.
    check_topic_name(command.name)
    if command.name in image.topics:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{command.name}' already exists.")
    other = image.collision_keys.get(collision_key(command.name))
    if other is not None:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic '{command.name}' collides with existing topic: {other}",
        )
    configs = checked_changes(TOPIC_SETTINGS, command.configs, TOPIC)
    replicas = _topic_replicas(image, command, config)
    topic = TopicRecord(name=command.name, topic_id=command.topic_id)
    created = tuple(
        _partition(image, command.topic_id, index, ids) for index, ids in enumerate(replicas)
    )
    settings = [
        ConfigRecord(resource=TOPIC, resource_name=command.name, name=name, value=value)
        for name, value in configs.items()
    ]
    response = Topic(topic, id_bytes(command.topic_id), created)
    return Decision((topic, *created, *settings), response)


def check_topic_name(name: str) -> None:
    """Raise INVALID_TOPIC_EXCEPTION unless a topic may have this name."""
    reason = None
    if not name:
        reason = "the empty string is not allowed"
    elif name in (".", ".."):
        reason = f"'{name}' is not allowed"
    elif len(name) > limits.TOPIC_NAME_LENGTH_MAX:
        reason = f"it is longer than {limits.TOPIC_NAME_LENGTH_MAX} characters"
    elif not _LEGAL_NAME.fullmatch(name):
        reason = f"'{name}' has a character other than ASCII letters, digits, '.', '_' and '-'"
    if reason is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {reason}")


def _topic_replicas(
    image: Image, command: CreateTopic, config: BrokerConfig
) -> list[tuple[int, ...]]:
    if command.assignments:
        return _assigned_replicas(image, command)
    count = command.partition_count
    if count == -1:
        count = config.integer("num.partitions")
    if count <= 0:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid "
            f"non-positive value: {count}"
        )  # fmt: skip
    _check_partition_count(count)
    factor = command.replication_factor
    ring = rack_ring(image.placeable_brokers)
    if factor == -1:
        factor = config.integer("default.replication.factor")
        if not config.is_set("default.replication.factor"):
            factor = min(factor, max(len(ring), 1))
    if factor <= 0:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if factor > len(ring):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {factor} time(s): the target replication factor "
            f"of {factor} cannot be reached because only {len(ring)} broker(s) are online.",
        )
    return place(ring, image.partition_count, count, factor)


def _check_partition_count(count: int) -> None:
    if count > limits.PARTITIONS_PER_TOPIC_MAX:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"A topic has at most {limits.PARTITIONS_PER_TOPIC_MAX} partitions, not {count}.",
        )


def _assigned_replicas(image: Image, command: CreateTopic) -> list[tuple[int, ...]]:
    if command.partition_count != -1 or command.replication_factor != -1:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but the partition count or the "
            "replication factor was not set to -1.",
        )
    _check_partition_count(len(command.assignments))
    if sorted(command.assignments) != list(range(len(command.assignments))):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "The manual partition assignment must name partitions 0, 1, 2 and so on.",
        )
    replicas = [tuple(command.assignments[index]) for index in range(len(command.assignments))]
    _check_assignments(image, replicas, len(replicas[0]))
    return replicas


def _check_assignments(
    image: Image, assignments: Sequence[Sequence[int]], replication_factor: int
) -> None:
    for replicas in assignments:
        partitions.check_replicas(image, tuple(replicas))
        reason = None
        if len(replicas) != replication_factor:
            reason = f"{len(replicas)} replicas where others have {replication_factor}"
        elif not image.online_ids.intersection(replicas):
            reason = f"replicas {list(replicas)}, none of which is online"
        if reason is not None:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"The manual partition assignment includes {reason}.",
            )


def _partition(
    image: Image, topic_id: str, partition: int, replicas: tuple[int, ...]
) -> PartitionRecord:
    leader = partitions.choose_leader(image, replicas)
    assert leader != NO_LEADER, "replicas were checked"
    online = tuple(each for each in replicas if each in image.online_ids)
    return PartitionRecord(
        topic_id=topic_id,
        partition=partition,
        replicas=replicas,
        isr=replicas if online == replicas else online,  # One object: there may be many thousands.
        leader=leader,
    )


def delete_topic(image: Image, command: DeleteTopic) -> Decision:
    if image.topic_by_id(id_bytes(command.topic_id)) is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
    return Decision((TopicRemovedRecord(topic_id=command.topic_id),), None)


def create_partitions(image: Image, command: CreatePartitions) -> Decision:
    topic = image.topics.get(command.name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    current = len(topic.partitions)
    if command.count == current:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {current} partition(s).")
    if command.count < current:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {command.name} currently has {current} partition(s); {command.count} "
            "would not be an increase.",
        )
    _check_partition_count(command.count)
    added = command.count - current
    factor = len(topic.partitions[0].replicas)
    if command.assignments is None:
        ring = rack_ring(image.placeable_brokers)
        if factor > len(ring):
            raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, "Too few brokers are online.")
        turn = turn_after(ring, topic.partitions[-1].replicas[0], image.partition_count)
        replicas = place(ring, turn, added, factor)
    else:
        if len(command.assignments) != added:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Attempted to add {added} additional partition(s), but only "
                f"{len(command.assignments)} assignment(s) were specified.",
            )
        _check_assignments(image, command.assignments, factor)
        replicas = [tuple(ids) for ids in command.assignments]
    topic_id = topic.record.topic_id
    records = [_partition(image, topic_id, current + n, ids) for n, ids in enumerate(replicas)]
    return Decision(records, None)


def alter_config(image: Image, command: AlterConfig, config: BrokerConfig) -> Decision:
    resource, name = command.resource, command.resource_name
    if resource == TOPIC:
        check_topic_name(name)
        if name not in image.topics:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist."
            )
        changes = checked_changes(TOPIC_SETTINGS, command.changes, resource)
    elif resource == GROUP:
        changes = checked_changes(GROUP_SETTINGS, command.changes, resource)
    else:
        assert resource == BROKER
        changes = checked_changes(BROKER_SETTINGS, command.changes, resource)
        _check_dynamic(changes, name)
    current = image.config(resource, name)
    if command.replace_all:
        changes = {**dict.fromkeys(current), **changes}
    if resource == GROUP:
        _check_group({**current, **changes}, changes, config)
    records: list[Record] = [
        ConfigRecord(resource=resource, resource_name=name, name=key, value=value)
        for key, value in changes.items()
        if current.get(key) != value
    ]
    if MIN_IN_SYNC in changes:
        after = image.apply(records)
        then = replace(config, cluster=after.config(BROKER, ""))
        records += partitions.no_longer_eligible(after, partitions.min_in_sync(after, then))
    return Decision(records, None)


def checked_changes(
    definitions: Mapping[str, Definition], changes: Mapping[str, str | None], resource: str
) -> dict[str, str | None]:
    """Changes with their values in canonical form, or INVALID_CONFIG."""
    checked: dict[str, str | None] = {}
    for name, value in changes.items():
        definition = definitions.get(name)
        if definition is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown {resource} config name: {name}")
        try:
            checked[name] = None if value is None else render(definition.parse(value))
        except InvalidSetting as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None
    return checked


def _check_group(
    wanted: Mapping[str, str | None], changed: Iterable[str], config: BrokerConfig
) -> None:
    overrides = {name: value for name, value in wanted.items() if value is not None}
    try:
        check_group(changed, overrides, config)
    except InvalidSetting as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None


def _check_dynamic(changes: Mapping[str, str | None], broker_name: str) -> None:
    for name, value in changes.items():
        update = BROKER_SETTINGS[name].update
        if update is Update.READ_ONLY:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Cannot update the broker config {name} dynamically: it is read at the start.",
            )
        if name == MIN_IN_SYNC and broker_name != "" and value is not None:
            # Who leads and who decides must not take different numbers for it.
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"{name} cannot be set for a single broker: set it for all, or for a topic.",
            )
        if update is Update.PER_BROKER and broker_name == "":
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Cannot set a default for {name}: it belongs to a single broker.",
            )


def allocate_producer_ids(image: Image, command: AllocateProducerIds) -> Decision:
    partitions.check_broker_epoch(image, command.node_id, command.broker_epoch)
    first = image.next_producer_id
    after = first + limits.PRODUCER_ID_BLOCK
    record = ProducerIdsRecord(node_id=command.node_id, next_producer_id=after)
    return Decision((record,), range(first, after))
