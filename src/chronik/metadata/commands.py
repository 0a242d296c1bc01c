"""What can be asked of the controller. Values only; `controller` decides about them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from chronik.metadata.records import BrokerStatus

Assignments = Mapping[int, Sequence[int]]  # partition to replicas, the preferred leader first


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBroker:
    """A broker has started: its addresses, and the ids of its process and data directory.

    `is_clean` says that it has all that it ever told anybody it had; `lost_memory` that its machine
    went down, and with it what was written and not yet on disk. The response is its broker epoch.
    Asked again by the same process, it is the same one.
    """

    node_id: int
    incarnation_id: str
    directory_id: str
    host: str
    port: int
    rack: str | None = None
    internal_host: str = ""
    internal_port: int = 0
    is_clean: bool = True
    lost_memory: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateBrokerStatus:
    """A registration goes, comes back, or is drained. A later registration is not meant."""

    node_id: int
    broker_epoch: int
    status: BrokerStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class SetMaintenance:
    """Drain a broker, or end that. One that is offline stays so, and comes back to it."""

    node_id: int
    in_maintenance: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SetDiskFull:
    """A broker's disk is full, or has room again. Said again, it moves what others can lead now."""

    node_id: int
    broker_epoch: int
    is_full: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ResignLeadership:
    """A broker is about to stop: others lead what it leads, where they can."""

    node_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveBroker:
    """Forget a broker: its node id may then be registered with another data directory.

    Refused while some partition has its data nowhere else, unless `accepts_loss`.
    """

    node_id: int
    accepts_loss: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopic:
    """The node that was asked chooses the topic id, so that a repeated command is known again.

    A partition count or replication factor of -1 asks for the default.
    """

    name: str
    topic_id: str
    partition_count: int = -1
    replication_factor: int = -1
    assignments: Assignments = field(default_factory=dict)
    configs: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopic:
    topic_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitions:
    """Grow a topic to `count` partitions; `assignments` are for those that are added."""

    name: str
    count: int
    assignments: Sequence[Sequence[int]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfig:
    """Set (or with null remove) settings of a topic, a group, a broker, or (name "") all brokers.

    `replace_all` also removes every setting that is not named.
    """

    resource: str
    resource_name: str
    changes: Mapping[str, str | None]
    replace_all: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerIds:
    node_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignPartition:
    """Other replicas for a partition, the preferred leader first; some in-sync one must stay."""

    topic_id: str
    partition: int
    replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetPartitionLeader:
    """Let another in-sync replica lead, if the leader epoch is still the one that is named."""

    topic_id: str
    partition: int
    leader: int
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InSyncChange:
    """A partition's new in-sync set, if both its epochs are still those that the leader knows.

    `broker_epochs` are those of the replicas that are added, as the leader heard them (KIP-903).
    """

    topic_id: str
    partition: int
    isr: tuple[int, ...]
    leader_epoch: int
    partition_epoch: int
    broker_epochs: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveInSync:
    """A broker's replicas of these partitions are damaged: they count for nothing from now on.

    Where no other replica has the data nothing changes.
    """

    node_id: int
    broker_epoch: int
    partitions: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateISR:
    """New in-sync sets of partitions that this node leads; each succeeds or fails by itself.

    The response is an error code for each.
    """

    node_id: int
    broker_epoch: int
    changes: tuple[InSyncChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassignment:
    """The replicas that a partition shall have; None ends a move and undoes it."""

    topic_id: str
    partition: int
    replicas: tuple[int, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignPartitions:
    """Move partitions to other replicas; each succeeds or fails by itself.

    The response is an error code and a message (or None) for each.
    """

    reassignments: tuple[Reassignment, ...]
    may_change_factor: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeaders:
    """Let the preferred replica lead, the first of its partition, where it is in sync and online.

    Partitions are named by topic id; without any, all are meant. The response is an `Elected` for
    each that was named, or of all those to which something happened or could not.
    """

    partitions: tuple[tuple[str, tuple[int, ...]], ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UncleanChoice:
    """Who shall lead a partition without a leader, of those that may have lost records."""

    topic_id: str
    partition: int
    leader: int
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectUncleanLeaders:
    """Leaders for partitions that have none, and nobody online who is in sync or eligible.

    Whoever asks has compared their logs. The response is an `Elected` for each.
    """

    choices: tuple[UncleanChoice, ...]


class Elected(NamedTuple):
    """What became of one partition's election."""

    topic_id: str
    partition: int
    error_code: int
    message: str | None = None


Command = (
    RegisterBroker
    | UpdateBrokerStatus
    | SetMaintenance
    | SetDiskFull
    | ResignLeadership
    | RemoveBroker
    | AssignPartition
    | SetPartitionLeader
    | UpdateISR
    | LeaveInSync
    | ReassignPartitions
    | ElectLeaders
    | ElectUncleanLeaders
    | CreateTopic
    | DeleteTopic
    | CreatePartitions
    | AlterConfig
    | AllocateProducerIds
)
