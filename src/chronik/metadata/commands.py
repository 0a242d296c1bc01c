"""What can be asked of the controller. Values only; `controller` decides about them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Assignments = Mapping[int, Sequence[int]]  # partition to replicas, the preferred leader first


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBroker:
    """A broker has started: its addresses, and the ids of its process and data directory."""

    node_id: int
    incarnation_id: str
    directory_id: str
    host: str
    port: int
    rack: str | None = None


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


Command = (
    RegisterBroker
    | CreateTopic
    | DeleteTopic
    | CreatePartitions
    | AlterConfig
    | AllocateProducerIds
)
