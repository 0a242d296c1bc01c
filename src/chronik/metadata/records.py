"""What the metadata log holds: JSON records, each with a `type`, that change the image.

A record is fully validated before it is logged. One that cannot be decoded stops the node: to
skip it would let this node's image differ from the others'. Fields that this release does not
know are kept in `unknown` and written again with the record, so that an older node's snapshot
loses nothing of a newer one's.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, ClassVar, Final

import msgspec

NO_LEADER: Final = -1
NO_NODE: Final = -1


class BrokerStatus(StrEnum):
    """Whether a broker serves, is gone, or serves only what nobody else can."""

    ONLINE = "online"
    OFFLINE = "offline"
    MAINTENANCE = "maintenance"


class UndecodableRecord(Exception):
    """A committed record that this release cannot read."""


class Record(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The parent of all records. None is part of a cycle: the collector need not look at them."""

    type: ClassVar[str]
    unknown: dict[str, Any] = {}


class BrokerRecord(Record, frozen=True, kw_only=True):
    """A broker as it registered itself. `epoch` is the index of that registration.

    `in_maintenance` outlives the time that it is offline: a broker that was stopped for
    maintenance comes back to it. One whose disk `is_full` rests as if it were in maintenance.
    `memory_epoch` is the last registration, of whichever broker, that came after its machine had
    gone down: see `Image.memory_epoch`.
    """

    type: ClassVar[str] = "broker"
    node_id: int
    epoch: int
    incarnation_id: str
    directory_id: str
    host: str
    port: int
    rack: str | None = None
    status: BrokerStatus = BrokerStatus.ONLINE
    in_maintenance: bool = False
    internal_host: str = ""
    internal_port: int = 0
    is_full: bool = False
    memory_epoch: int = 0


class BrokerRemovedRecord(Record, frozen=True, kw_only=True):
    """A broker is not registered any more. Replica lists may still name it."""

    type: ClassVar[str] = "broker-removed"
    node_id: int


class LeaderEpochsRecord(Record, frozen=True, kw_only=True):
    """Every partition that this node leads begins a new leader epoch.

    It goes with each registration: a restarted broker may have lost a tail that nobody acked, and
    must not write other records under the same offsets and epoch.
    """

    type: ClassVar[str] = "leader-epochs"
    node_id: int


class TopicRecord(Record, frozen=True, kw_only=True):
    """A topic exists. Its partitions follow in the same entry."""

    type: ClassVar[str] = "topic"
    name: str
    topic_id: str


class PartitionRecord(Record, frozen=True, kw_only=True):
    """The whole state of one partition.

    `elr` are replicas that left the in-sync set while it was smaller than min.insync.replicas: the
    high watermark stands still then, so they have all that is committed, and may lead (KIP-966).

    While the partition moves, `replicas` are those that it shall have and after them those that it
    shall lose: `removing_replicas`. `adding_replicas` are not in sync yet, or were not at first.
    """

    type: ClassVar[str] = "partition"
    topic_id: str
    partition: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int = 0
    partition_epoch: int = 0
    elr: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()

    @property
    def is_moving(self) -> bool:
        """Whether a reassignment is under way."""
        return bool(self.adding_replicas or self.removing_replicas)


class PartitionLeadersRecord(Record, frozen=True, kw_only=True):
    """Leaders of many partitions at once: what follows from a broker's death or return.

    The arrays are parallel: for each topic id its partitions, for each partition its leader. A
    leader that differs begins a new leader epoch; one that does not only a new partition epoch.
    A leader that was not in sync but eligible is then the only one in sync, and the others are
    eligible. `isr_without` also leaves each in-sync set that has another member; it stays eligible
    where `stays_eligible` (parallel too, or empty) says so, and if `is_unclean` nowhere. So 9,000
    partitions take 120 KB, where a record for each would take 1.5 MB.
    """

    type: ClassVar[str] = "partition-leaders"
    topic_ids: tuple[str, ...]
    partitions: tuple[tuple[int, ...], ...]
    leaders: tuple[tuple[int, ...], ...]
    isr_without: int = NO_NODE
    stays_eligible: tuple[tuple[bool, ...], ...] = ()
    is_unclean: bool = False


def change_count(record: Record) -> int:
    """How much a record changes, in about as many objects."""
    return len(record.topic_ids) if isinstance(record, PartitionLeadersRecord) else 1


class TopicRemovedRecord(Record, frozen=True, kw_only=True):
    """A topic, its partitions and its settings are gone."""

    type: ClassVar[str] = "topic-removed"
    topic_id: str


class ConfigRecord(Record, frozen=True, kw_only=True):
    """A setting of a topic, a group, one broker or (with no name) all brokers; null removes."""

    type: ClassVar[str] = "config"
    resource: str
    resource_name: str
    name: str
    value: str | None


class ProducerIdsRecord(Record, frozen=True, kw_only=True):
    """A block of producer ids was handed out; the next block begins here."""

    type: ClassVar[str] = "producer-ids"
    node_id: int
    next_producer_id: int


_OF_PARTITIONS: Final = (PartitionRecord, PartitionLeadersRecord)

_RECORDS: Final[dict[str, type[Record]]] = {
    record.type: record
    for record in (
        BrokerRecord,
        BrokerRemovedRecord,
        LeaderEpochsRecord,
        TopicRecord,
        PartitionRecord,
        PartitionLeadersRecord,
        TopicRemovedRecord,
        ConfigRecord,
        ProducerIdsRecord,
    )
}
_FIELDS: Final = {kind: frozenset(record.__struct_fields__) for kind, record in _RECORDS.items()}


def encode_records(records: Iterable[Record]) -> bytes:
    """Records as one JSON array."""
    return msgspec.json.encode([_document(record) for record in records])


def encode_readable(records: Iterable[Record]) -> bytes:
    """Records for the log: what no node could read must not get there, so UndecodableRecord.

    Partitions are made here, of what was read from the wire, and may be thousands: not they.
    """
    decode_records(encode_records(each for each in records if not isinstance(each, _OF_PARTITIONS)))
    return encode_records(records)


def decode_records(data: bytes) -> list[Record]:
    """The records of one entry, or UndecodableRecord."""
    try:
        documents = msgspec.json.decode(data, type=list[dict[str, Any]])
        return [_record(document) for document in documents]
    except (msgspec.MsgspecError, KeyError) as reason:
        raise UndecodableRecord(str(reason)) from None


def _document(record: Record) -> dict[str, Any]:
    document: dict[str, Any] = {"type": record.type}
    for name in record.__struct_fields__:
        if name != "unknown":
            document[name] = getattr(record, name)
    return document | record.unknown


def _record(document: dict[str, Any]) -> Record:
    kind = document.pop("type")
    record = _RECORDS.get(kind)
    if record is None:
        raise UndecodableRecord(f"a record of unknown type {kind!r}")
    strange = document.keys() - _FIELDS[kind]
    unknown = {name: document.pop(name) for name in strange}
    if unknown:
        document["unknown"] = unknown
    return msgspec.convert(document, record)
