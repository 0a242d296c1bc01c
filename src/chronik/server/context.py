"""What a handler can reach: the parts of the node, and who asks in which version."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from chronik.clock import Clock
from chronik.config.effective import BrokerConfig
from chronik.config.settings import Settings
from chronik.coordinator.effects import Caller
from chronik.coordinator.groups.shard import GroupShard
from chronik.coordinator.runtime import CoordinatorRuntime
from chronik.coordinator.transactions.marker_writer import MarkerWriter
from chronik.coordinator.transactions.sealing import Sealing
from chronik.coordinator.transactions.shard import TransactionShard
from chronik.metadata.image import BROKER, Image, Topic
from chronik.metadata.runtime import MetadataRuntime
from chronik.metrics import Metrics
from chronik.replication.replicas import Replicas
from chronik.server.created_configs import CreatedConfigs
from chronik.server.departures import Departures
from chronik.server.encoded_topics import EncodedTopics
from chronik.server.fetch_sessions import FetchSessions
from chronik.server.members import Members
from chronik.server.producer_ids import ProducerIds
from chronik.server.unclean_elections import UncleanElections
from chronik.storage.disk import Disk

DOUBT_LOOK_S: Final = 0.1  # a node that comes back changes nothing in the metadata


@dataclass(slots=True, kw_only=True)
class Node:
    """The parts of this node that requests are answered from."""

    node_id: int
    cluster_id: str
    settings: Settings
    data_dir: str
    metadata: MetadataRuntime
    members: Members
    replicas: Replicas
    fetch_sessions: FetchSessions
    encoded_topics: EncodedTopics
    producer_ids: ProducerIds
    unclean_elections: UncleanElections
    groups: CoordinatorRuntime[GroupShard]
    transactions: CoordinatorRuntime[TransactionShard]
    marker_writer: MarkerWriter
    sealing: Sealing
    disk: Disk
    clock: Clock
    metrics: Metrics
    broker_config: Callable[[], BrokerConfig]
    fetch_bytes_left: Callable[[], int]
    departures: Departures
    in_doubt: Callable[[], frozenset[int]]  # nodes of which it is not yet known if they are gone
    created_configs: CreatedConfigs = field(default_factory=CreatedConfigs)

    @property
    def image(self) -> Image:
        return self.metadata.image

    def is_in_doubt(self) -> bool:
        """Whether a broker that is shown to clients may turn out to be gone in a moment."""
        return not self.in_doubt().isdisjoint(self.image.online_ids)

    async def without_doubt(self) -> None:
        """Wait until that is known, or is not going to be."""
        while self.is_in_doubt():
            await self.metadata.until(lambda: not self.is_in_doubt(), DOUBT_LOOK_S)


@dataclass(slots=True)
class Context:
    """One request's surroundings."""

    node: Node
    version: int
    client_id: str | None
    client_host: str
    client_software: str = ""  # as it said in ApiVersions, if it did

    @property
    def image(self) -> Image:
        return self.node.metadata.image

    @property
    def caller(self) -> Caller:
        """Who asks, as a group describes its members: Kafka writes a host with a slash."""
        return Caller(self.client_id or "", f"/{self.client_host}", self.version)

    def topic(self, name: str, topic_id: bytes, by_id: bool) -> Topic | None:
        """The topic that a request names, by id in the versions that have only ids."""
        image = self.node.metadata.image
        return image.topic_by_id(topic_id) if by_id else image.topics.get(name)


def broker_config(settings: Settings, image: Image, node_id: int) -> BrokerConfig:
    """A broker's settings: given at the start, set for all brokers, set for this one."""
    return BrokerConfig(
        static=settings.kafka,
        cluster=image.config(BROKER, ""),
        broker=image.config(BROKER, str(node_id)),
    )
