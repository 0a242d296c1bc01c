"""The state of the cluster's metadata: immutable, changed only by applying records.

Readers look at a committed image; decisions look at a pending one, which also holds what is still
in flight. With an immutable image these are two references. Maps are persistent (a change shares
all but a few nodes with its parent), so that one topic more costs the same at ten thousand.

Invariant: replaying the records of the log, or those of `to_records`, gives an equal image.
"""

import base64
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import groupby, repeat

import msgspec
from immutables import Map

from chronik.metadata.records import (
    BrokerRecord,
    BrokerRemovedRecord,
    BrokerStatus,
    ConfigRecord,
    LeaderEpochsRecord,
    PartitionLeadersRecord,
    PartitionRecord,
    ProducerIdsRecord,
    Record,
    TopicRecord,
    TopicRemovedRecord,
)

TOPIC = "topic"
BROKER = "broker"
GROUP = "group"
INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state")


def id_text(raw: bytes) -> str:
    """A 16-byte id as Kafka's tools print it: base64url without padding."""
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


@lru_cache(maxsize=1_000)  # A topic's records come together, and each of them names it.
def id_bytes(text: str) -> bytes:
    """The 16 bytes of an id that was written by `id_text`."""
    return base64.urlsafe_b64decode(text + "==")


def collision_key(topic_name: str) -> str:
    """Names that are equal here collide in metric names, where '.' becomes '_'."""
    return topic_name.replace(".", "_")


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic with its partitions, in order."""

    record: TopicRecord
    id: bytes
    partitions: tuple[PartitionRecord, ...] = ()

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS


@dataclass(frozen=True, slots=True)
class Image:
    """Everything that the metadata log says so far."""

    brokers: Map[int, BrokerRecord] = field(default_factory=Map)
    topics: Map[str, Topic] = field(default_factory=Map)
    topic_names: Map[bytes, str] = field(default_factory=Map)
    collision_keys: Map[str, str] = field(default_factory=Map)
    configs: Map[tuple[str, str], Map[str, str]] = field(default_factory=Map)
    producer_ids: ProducerIdsRecord | None = None
    # Both follow from the maps above, and are kept so that nobody counts ten thousand partitions.
    partition_count: int = 0
    online_ids: frozenset[int] = frozenset()

    @property
    def memory_epoch(self) -> int:
        """Changes whenever a broker comes back that has lost what was in its memory only.

        A transaction that began under another one may lack records that were acknowledged.
        """
        return max((each.memory_epoch for each in self.brokers.values()), default=0)

    def topic_by_id(self, topic_id: bytes) -> Topic | None:
        name = self.topic_names.get(topic_id)
        return None if name is None else self.topics[name]

    def partition(self, topic: str, partition: int) -> PartitionRecord | None:
        found = self.topics.get(topic)
        if found is None or not 0 <= partition < len(found.partitions):
            return None
        return found.partitions[partition]

    def config(self, resource: str, name: str) -> Mapping[str, str]:
        """The settings that were made for a topic, a group, a broker, or (name "") all brokers."""
        return self.configs.get((resource, name), _NO_CONFIG)

    @property
    def next_producer_id(self) -> int:
        return 0 if self.producer_ids is None else self.producer_ids.next_producer_id

    @property
    def online_brokers(self) -> list[BrokerRecord]:
        """Brokers that clients are told of, by id: a broker in maintenance may still lead."""
        return [self.brokers[node_id] for node_id in sorted(self.online_ids)]

    @property
    def placeable_brokers(self) -> list[BrokerRecord]:
        """Brokers that may get replicas and leaders, by id."""
        return [each for each in self.online_brokers if each.status == BrokerStatus.ONLINE]

    def offline_replicas(self, partition: PartitionRecord) -> tuple[int, ...]:
        """Replicas whose broker is gone."""
        if self.online_ids.issuperset(partition.replicas):
            return ()
        return tuple(each for each in partition.replicas if each not in self.online_ids)

    def partitions(self) -> Iterator[PartitionRecord]:
        """Every partition. A walk over ten thousand takes about a millisecond."""
        for topic in self.topics.values():
            yield from topic.partitions

    def apply(self, records: Iterable[Record]) -> "Image":
        """The image after these records."""
        image = self
        for topic_id, group in groupby(records, key=_partition_of):
            if topic_id is not None:
                image = image._set_partitions(topic_id, group)
                continue
            for record in group:
                image = image._apply(record)
        return image

    def _apply(self, record: Record) -> "Image":
        match record:
            case BrokerRecord():
                return self._set_brokers(self.brokers.set(record.node_id, record))
            case BrokerRemovedRecord():
                return self._set_brokers(self.brokers.delete(record.node_id))
            case LeaderEpochsRecord():
                return self._bump_leader_epochs(record.node_id)
            case PartitionLeadersRecord():
                return self._set_leaders(record)
            case TopicRecord():
                return self._add_topic(record)
            case TopicRemovedRecord():
                return self._remove_topic(id_bytes(record.topic_id))
            case ConfigRecord():
                return self._set_config(record)
            case ProducerIdsRecord():
                return replace(self, producer_ids=record)
        raise AssertionError(f"no rule applies {type(record).__name__}")

    def _set_brokers(self, brokers: Map[int, BrokerRecord]) -> "Image":
        online = (each for each in brokers.values() if each.status != BrokerStatus.OFFLINE)
        online_ids = frozenset(each.node_id for each in online)
        return replace(self, brokers=brokers, online_ids=online_ids)

    def _set_leaders(self, record: PartitionLeadersRecord) -> "Image":
        """A thousand partitions take about a millisecond."""
        topics = self.topics.mutate()
        sync_sets: _SyncSets = {}
        for number, topic_id in enumerate(record.topic_ids):
            topic = self.topics[self.topic_names[id_bytes(topic_id)]]
            partitions = list(topic.partitions)
            indexes, leaders = record.partitions[number], record.leaders[number]
            stay = record.stays_eligible[number] if record.stays_eligible else repeat(False)
            for index, leader, stays in zip(indexes, leaders, stay, strict=False):
                partitions[index] = _led(partitions[index], leader, record, stays, sync_sets)
            topics[topic.record.name] = Topic(topic.record, topic.id, tuple(partitions))
        return replace(self, topics=topics.finish())

    def _bump_leader_epochs(self, node_id: int) -> "Image":
        topics = self.topics.mutate()
        for name, topic in self.topics.items():
            if any(partition.leader == node_id for partition in topic.partitions):
                bumped = tuple(_bumped(each, node_id) for each in topic.partitions)
                topics[name] = replace(topic, partitions=bumped)
        return replace(self, topics=topics.finish())

    def _add_topic(self, record: TopicRecord) -> "Image":
        topic = Topic(record, id_bytes(record.topic_id))
        return replace(
            self,
            topics=self.topics.set(record.name, topic),
            topic_names=self.topic_names.set(topic.id, record.name),
            collision_keys=self.collision_keys.set(collision_key(record.name), record.name),
        )

    def _set_partitions(self, topic_id: str, records: Iterable[Record]) -> "Image":
        """Neighbouring records of one topic at once: a topic of n partitions costs n, not n²."""
        topic = self.topic_by_id(id_bytes(topic_id))
        assert topic is not None, f"partition of an unknown topic {topic_id}"
        partitions = list(topic.partitions)
        for record in records:
            assert isinstance(record, PartitionRecord)
            if record.partition == len(partitions):
                partitions.append(record)
            else:
                assert record.partition < len(partitions), "partitions come in order"
                partitions[record.partition] = record
        added = len(partitions) - len(topic.partitions)
        topic = replace(topic, partitions=tuple(partitions))
        return replace(
            self,
            topics=self.topics.set(topic.name, topic),
            partition_count=self.partition_count + added,
        )

    def _remove_topic(self, topic_id: bytes) -> "Image":
        name = self.topic_names[topic_id]
        configs = self.configs
        if (TOPIC, name) in configs:
            configs = configs.delete((TOPIC, name))
        return replace(
            self,
            topics=self.topics.delete(name),
            topic_names=self.topic_names.delete(topic_id),
            collision_keys=self.collision_keys.delete(collision_key(name)),
            configs=configs,
            partition_count=self.partition_count - len(self.topics[name].partitions),
        )

    def _set_config(self, record: ConfigRecord) -> "Image":
        key = (record.resource, record.resource_name)
        values = self.configs.get(key, _NO_CONFIG)
        if record.value is not None:
            values = values.set(record.name, record.value)
        elif record.name in values:
            values = values.delete(record.name)
        configs = self.configs.set(key, values) if values else self.configs
        if not values and key in configs:
            configs = configs.delete(key)
        return replace(self, configs=configs)

    def to_records(self) -> Iterator[Record]:
        """Records that rebuild this image: what a snapshot holds, in a fixed order."""
        for node_id in sorted(self.brokers):
            yield self.brokers[node_id]
        for name in sorted(self.topics):
            topic = self.topics[name]
            yield topic.record
            yield from topic.partitions
        for resource, resource_name in sorted(self.configs):
            for name, value in sorted(self.configs[resource, resource_name].items()):
                yield ConfigRecord(
                    resource=resource, resource_name=resource_name, name=name, value=value
                )
        if self.producer_ids is not None:
            yield self.producer_ids


_NO_CONFIG: Map[str, str] = Map()


def _partition_of(record: Record) -> str | None:
    return record.topic_id if isinstance(record, PartitionRecord) else None


def _bumped(partition: PartitionRecord, node_id: int) -> PartitionRecord:
    if partition.leader != node_id:
        return partition
    return msgspec.structs.replace(
        partition,
        leader_epoch=partition.leader_epoch + 1,
        partition_epoch=partition.partition_epoch + 1,
    )


_Nodes = tuple[int, ...]
_SyncSets = dict[tuple[_Nodes, _Nodes, int, bool], tuple[_Nodes, _Nodes]]


def _led(
    partition: PartitionRecord,
    leader: int,
    record: PartitionLeadersRecord,
    stays_eligible: bool,
    sync_sets: _SyncSets,
) -> PartitionRecord:
    """A partition as the record has it; `sync_sets` remembers those of others that are alike."""
    alike = (partition.isr, partition.elr, leader, stays_eligible)
    found = sync_sets.get(alike)
    if found is None:
        found = sync_sets[alike] = _sync_sets(*alike, record)
    return msgspec.structs.replace(
        partition,
        leader=leader,
        isr=found[0],
        elr=found[1],
        leader_epoch=partition.leader_epoch + (leader != partition.leader),
        partition_epoch=partition.partition_epoch + 1,
    )


def _sync_sets(
    isr: _Nodes, elr: _Nodes, leader: int, stays_eligible: bool, record: PartitionLeadersRecord
) -> tuple[_Nodes, _Nodes]:
    """Who is in sync and who is eligible then."""
    gone = record.isr_without
    if record.is_unclean:
        elr = _without(elr, gone)
    if gone in isr and len(isr) > 1:
        isr = _without(isr, gone)
        if stays_eligible:
            elr = (*elr, gone)
    elif isr == (gone,) and record.is_unclean and elr:
        isr, elr = elr, ()  # It alone was in sync and has lost it: these have it.
    if leader in elr:
        isr, elr = (leader,), _without((*isr, *elr), leader)
    return isr, elr


def _without(nodes: _Nodes, *gone: int) -> _Nodes:
    return tuple(each for each in nodes if each not in gone)
