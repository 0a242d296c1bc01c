"""What can be asked of the controller. Values only; `controller` decides about them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from chronik.metadata.records import BrokerStatus

Assignments = Mapping[int, Sequence[int]]  # partition to replicas, the preferred leader first


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBroker:
    """A broker has started: its addresses, and the ids of its process and data directory.

    The response is its broker epoch. Asked again by the same process, it is the same one.
    """

    node_id: int
    incarnation_id: str
    directory_id: str
    host: str
    port: int
    rack: str | None = None
    internal_host: str = ""
    internal_port: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateBrokerStatus:
    """A registration goes, comes back, or is drained. A later registration is not meant."""

    node_id: int
    broker_epoch: int
    status: BrokerStatus


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
    """Set (or with null remove) settings of a topic, a broker, or with name "" all brokers.

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
class UpdateISR:
    """The leader's new in-sync set, if both epochs of the partition are still those it knows.

    `node_id` and `broker_epoch` are the leader's own; `broker_epochs` are those of the replicas
    that are added, as the leader saw them fetch (KIP-903).
    """

    node_id: int
    broker_epoch: int
    topic_id: str
    partition: int
    isr: tuple[int, ...]
    leader_epoch: int
    partition_epoch: int
    broker_epochs: Mapping[int, int] = field(default_factory=dict)


Command = (
    RegisterBroker
    | UpdateBrokerStatus
    | RemoveBroker
    | AssignPartition
    | SetPartitionLeader
    | UpdateISR
    | CreateTopic
    | DeleteTopic
    | CreatePartitions
    | AlterConfig
    | AllocateProducerIds
)
