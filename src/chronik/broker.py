"""A node: settings in, parts wired and started, stopped in reverse. No logic.

The order of starting is the point. The data directory is locked, the internal port listens, and a
node without a cluster forms or finds one. The metadata is recovered, the Kafka port is bound but
refuses connections, the broker registers itself under that port, and only when its own image shows
the registration does it listen: no Metadata answer ever has zero brokers.
"""

import asyncio
import importlib
import logging
import os
import random
import uuid
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Final, NamedTuple, Self

from chronik.client.internal_link import FrameLink
from chronik.client.link import Address
from chronik.clock import Clock, SystemClock
from chronik.config.effective import BrokerConfig
from chronik.config.settings import Settings, parse_address
from chronik.coordinator.groups.records import GroupRecordFormat
from chronik.coordinator.groups.shard import GroupShard
from chronik.coordinator.groups.state import GroupConfig
from chronik.coordinator.internal_topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from chronik.coordinator.runtime import CoordinatorRuntime
from chronik.coordinator.shard import M, RecordFormat
from chronik.coordinator.transactions.marker_writer import Marker, MarkerWriter
from chronik.coordinator.transactions.records import TransactionRecordFormat
from chronik.coordinator.transactions.sealing import Sealing
from chronik.coordinator.transactions.shard import TransactionShard, WriteMarkers
from chronik.dashboard.status import Status
from chronik.metadata.commands import RegisterBroker
from chronik.metadata.image import GROUP, Image, id_text
from chronik.metadata.journal import METADATA_DIRECTORY, Journal, UnusableMetadata, begin_votes
from chronik.metadata.runtime import MetadataRuntime
from chronik.metrics import Metrics
from chronik.model import TopicPartition
from chronik.protocol import internal
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.replication.following import Following
from chronik.replication.isr_updates import InSyncUpdates
from chronik.replication.maintenance import Maintenance
from chronik.replication.repair import Repair
from chronik.replication.replicas import Replicas
from chronik.replication.sender import Sender
from chronik.replication.throttle import Throttles
from chronik.server.addresses import reachable, why_not_serving
from chronik.server.context import Node, broker_config
from chronik.server.controller_tasks import ControllerTasks
from chronik.server.departures import Departures
from chronik.server.disk_space import DiskSpace
from chronik.server.dispatch import dispatcher
from chronik.server.encoded_topics import EncodedTopics
from chronik.server.fetch_sessions import FetchSessions
from chronik.server.formation import Formation, asking_identity, founding, on_early_call
from chronik.server.identity import Identity, Secret, WrongDirectory, read_identity, write_identity
from chronik.server.listener import Listener
from chronik.server.members import Members
from chronik.server.network import Network
from chronik.server.producer_ids import ProducerIds
from chronik.server.retirement import retire
from chronik.server.supervision import Supervision
from chronik.server.tasks import Tasks, sample_lag
from chronik.server.transactions import on_transaction_call
from chronik.server.unclean_elections import UncleanElections
from chronik.storage.commit import GroupCommit
from chronik.storage.disk import Disk, FileDisk
from chronik.storage.errors import StorageError
from chronik.storage.log import Log
from chronik.storage.reserve import Reserve
from chronik.storage.run_marker import ended_cleanly, mark_running, mark_stopped, was_killed

logger = logging.getLogger(__name__)

# An internal port that nobody chose: 9192 beside 9092, or if that is taken, any.
INTERNAL_PORT_OFFSET: Final = 100
FLUSH_INTERVAL_MS: Final = 1_000  # with durability=replicated: what a power failure may cost
UNREGISTERED_S: Final = 5.0  # longer than nodes that start together need to elect somebody


class StartFailed(Exception):
    """The node cannot start; the message is one line for the person who started it."""


class Addresses(NamedTuple):
    """Where a node is reached."""

    kafka: tuple[str, int]
    http: tuple[str, int] | None


class Broker:
    """One node in this process. Use it as an async context manager."""

    def __init__(
        self, settings: Settings, *, disk: Disk | None = None, clock: Clock | None = None
    ) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self._disk = disk or FileDisk()
        self._clock = clock or SystemClock()
        self._stack = AsyncExitStack()
        self._incarnation_id = id_text(uuid.uuid4().bytes)
        self._is_marked = False  # as running: the cluster knows how the last run ended
        self.node_id = -1  # known once the data directory or the cluster has said it
        # Set when the node cannot go on; why, is one line for the person who started it.
        self.broken = asyncio.Event()
        self.broken_by = ""
        self.addresses: Addresses
        self.network: Network
        self.members: Members
        self.metadata: MetadataRuntime
        self.replicas: Replicas
        self.following: Following
        self.node: Node
        self.listener: Listener
        self.groups: CoordinatorRuntime[GroupShard]
        self.transactions: CoordinatorRuntime[TransactionShard]
        self.marker_writer: MarkerWriter
        self.maintenance: Maintenance

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except (StorageError, UnusableMetadata, WrongDirectory, KafkaError, OSError) as error:
            await self._stack.aclose()
            raise StartFailed(str(error)) from error
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self.broken.is_set():
            self.supervision.is_retiring = True
            await retire(self.metadata, self.node_id, self.supervision.broker_epoch())
        await self._stack.aclose()
        logger.info("stopped", extra={"node_id": self.node_id})

    async def _start(self) -> None:
        disk, data_dir = self._disk, self.settings.data_dir.rstrip("/") or "/"
        self._stack.callback(disk.close)
        for path in disk.make_directory(data_dir):
            disk.sync_directory(path)
        disk.lock(f"{data_dir}/lock")
        Reserve(disk, data_dir).make_room_to_start()
        identity = await self._identify(data_dir)
        self._ended_cleanly = ended_cleanly(disk, data_dir)
        self._start_metadata(data_dir, identity)
        self._start_replicas(data_dir)
        self._start_coordinators()
        self.node = self._node(identity, data_dir)
        server = await self._bind()
        self._stack.push_async_callback(self.listener.close)
        await self._start_network(identity)
        await self._registered(identity, server)
        mark_running(disk, data_dir)
        self._is_marked = True
        # Not before: the image may be behind until then, and a topic that it does not show yet
        # would pass for one that is gone.
        self.replicas.start(self.metadata.image, self.metadata.caught_up())
        self.following.start(self.metadata.image)
        # Nor this: whatever they write is of the leader epoch that registering began.
        self.groups.start()
        self.transactions.start()
        await self.listener.serve()
        await self._start_background()

    async def _identify(self, data_dir: str) -> Identity:
        """Listen for other nodes, and find out who this node is, or become somebody."""
        settings, disk = self.settings, self._disk
        finds_others = len(settings.peers) > 1 or settings.join is not None
        self._secret = Secret(disk, data_dir, settings.secret, finds_others=finds_others)
        identity = read_identity(disk, data_dir, settings.node_id, finds_others=finds_others)
        self.network = Network(
            identity=asking_identity(settings, identity.directory_id, self._incarnation_id),
            secret=self._secret.value,
            disk=disk,
            on_connected=self._on_connected,
            on_lost=lambda peer: self.supervision.lost(peer),
            on_call=self._on_call,
            on_follower=self._on_follower,
        )
        await self._open_internal()
        if not identity.cluster_id:
            await self.network.serve()
            identity = await Formation(settings, self.network).identity()
            begin_votes(disk, f"{data_dir}/{METADATA_DIRECTORY}")
            write_identity(disk, data_dir, identity)
            self._secret.keep()
        self.node_id = identity.node_id
        self.network.identity = internal.Identity(
            identity.cluster_id, identity.node_id, identity.directory_id, self._incarnation_id
        )
        return identity

    async def _open_internal(self) -> None:
        settings = self.settings
        own = next((each for each in settings.peers if each.node_id == settings.node_id), None)
        host, port = settings.host, settings.port + INTERNAL_PORT_OFFSET if settings.port else 0
        if settings.internal is not None:
            host, port = parse_address(settings.internal)
        elif own is not None:
            port = own.internal_port
        try:
            bound = await self.network.bind(host, port)
        except OSError as error:
            if settings.internal is not None or own is not None:
                reason = os.strerror(error.errno) if error.errno else str(error)
                raise StartFailed(
                    f"cannot listen on {host}:{port} (--internal): {reason}"
                ) from None
            bound = await self.network.bind(host, 0)
        self._stack.push_async_callback(self.network.close)
        address = reachable(host, bound) if own is None else own.internal
        if settings.advertise_internal is not None:
            address = parse_address(settings.advertise_internal)
        self.network.address = Address(*address)

    def _start_metadata(self, data_dir: str, identity: Identity) -> None:
        self._commit = GroupCommit(self._disk, self._on_durable, self._on_failed)
        journal = Journal(self._disk, f"{data_dir}/{METADATA_DIRECTORY}", self._clock.wall_ms)
        self._metadata_log = journal.log
        self.metadata = MetadataRuntime(
            journal,
            self._commit,
            identity.node_id,
            self._disk,
            directory_id=identity.directory_id,
            clock=self._clock,
            send=self.network.send,
            call=self.network.call,
            founding=founding(self.settings, identity),
            on_members=self.network.meet,
            on_broken=lambda error: self._break(f"the metadata is broken: {error}"),
        )
        self.members = Members(
            self.metadata,
            self.network,
            lambda: self._break(f"node {self.node_id} was removed from the cluster"),
        )
        self.network.metadata, self.network.journal = self.metadata, journal
        self.supervision = Supervision(self.metadata, self._clock, self.network.is_connected)
        self.metadata.broker_config = self._broker_config_in
        self.metadata.start()
        if self.metadata.consensus.is_alone:
            self._secret.keep()  # Nobody else has one.
        self._stack.push_async_callback(self._stop_storage)

    async def _start_network(self, identity: Identity) -> None:
        """Meet the other nodes, if there are any, and let Raft's time begin."""
        seeds = {each.node_id: Address(*each.internal) for each in self.settings.peers}
        seeds |= {node_id: Address(*at) for node_id, at in identity.members.items()}
        self.metadata.subscribe(lambda old, new, records: self._follow(old, new))
        await self.network.open(seeds)
        self.metadata.consensus.run()
        tasks = await self._stack.enter_async_context(Tasks())
        tasks.start(self.members.upkeep(), "members")
        tasks.start(self.members.ask_around(), "ask-around")

    def _follow(self, old: Image, new: Image) -> None:
        self.following.on_image(old, new)
        if old.brokers is not new.brokers:
            self.network.meet()

    def _on_connected(self, peer: internal.Identity) -> None:
        self._secret.maybe_keep()  # Somebody else has proved to know it.
        self.supervision.connected(peer)

    def _on_call(self, peer: internal.Hello, method: str, body: bytes) -> Awaitable[bytes] | bytes:
        if not self.network.is_open:
            return on_early_call(self.settings, method, is_forming=self.node_id < 0)
        if not peer.cluster_id and method not in ("found", "join"):
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "First join the cluster.")
        match method:
            case "submit":
                return self.metadata.on_submit(body)
            case "heartbeat":
                return self.supervision.on_heartbeat(body)
            case "transaction":
                return on_transaction_call(self.node, body)
            case "log-ends":
                return self.unclean_elections.on_log_ends(body)
            case "marker":
                return self.marker_writer.on_call(body)
            case "seal":
                return self.node.sealing.on_call(body)
            case _:
                return self.members.on_call(method, body)

    def _on_follower(self, peer: internal.Hello, link: FrameLink) -> Sender:
        return Sender(
            peer.node_id, link, self.replicas, self._clock, self._disk.run, self._throttles.leader
        )

    def _start_replicas(self, data_dir: str) -> None:
        commit = self._commit
        if self.settings.durability == "replicated":
            commit = GroupCommit(self._disk, self._on_durable, self._on_failed, FLUSH_INTERVAL_MS)
        self._partition_commit = commit
        self.replicas = Replicas(
            node_id=self.node_id,
            disk=self._disk,
            data_dir=data_dir,
            durability=self.settings.durability,
            commit=commit,
            clock=self._clock,
            broker_config=self.broker_config,
        )
        if was_killed(self._disk, data_dir):
            self.replicas.sync_left_behind()
        self.replicas.isr_updates = InSyncUpdates(
            self.node_id, self.metadata.submit, self.supervision.broker_epoch, self._clock
        )
        self._throttles = Throttles(self.node_id, self.broker_config, self._clock)
        self.following = self.replicas.following = Following(
            self.node_id,
            self.network.follow,
            self.replicas,
            self._clock,
            self.supervision.broker_epoch,
            self._throttles.follower,
        )
        self.unclean_elections = UncleanElections(self.metadata, self.replicas)
        self._stack.push_async_callback(self.replicas.isr_updates.close)
        self._stack.push_async_callback(self.following.close)
        self.metadata.subscribe(self.replicas.on_image)

    def _start_coordinators(self) -> None:
        config = GroupConfig(
            self.broker_config, lambda group_id: self.metadata.image.config(GROUP, group_id)
        )
        self.groups = self._coordinator(
            CONSUMER_OFFSETS,
            lambda: GroupShard(config, lambda: str(uuid.uuid4())),
            GroupRecordFormat(),
        )
        self.transactions = self._coordinator(
            TRANSACTION_STATE,
            lambda: TransactionShard(self.broker_config),
            TransactionRecordFormat(),
        )
        self.marker_writer = MarkerWriter(
            metadata=self.metadata,
            replicas=self.replicas,
            clock=self._clock,
            on_written=self._on_marker,
            on_done=self._on_markers_written,
        )
        self._stack.push_async_callback(self.marker_writer.close)

    def _coordinator(
        self, topic_name: str, new_machine: Callable[[], M], record_format: RecordFormat
    ) -> CoordinatorRuntime[M]:
        coordinator = CoordinatorRuntime(
            topic_name=topic_name,
            new_machine=new_machine,
            record_format=record_format,
            metadata=self.metadata,
            replicas=self.replicas,
            disk=self._disk,
            clock=self._clock,
            on_action=lambda action: self.marker_writer.start(action),
        )
        self.metadata.subscribe(coordinator.on_image)
        self._stack.push_async_callback(coordinator.close)
        return coordinator

    def _node(self, identity: Identity, data_dir: str) -> Node:
        node_id = self.node_id
        metadata = self.metadata
        return Node(
            node_id=node_id,
            cluster_id=identity.cluster_id,
            settings=self.settings,
            data_dir=data_dir,
            metadata=metadata,
            members=self.members,
            replicas=self.replicas,
            fetch_sessions=FetchSessions(
                self.broker_config().integer("max.incremental.fetch.session.cache.slots"),
                lambda: random.randrange(1, 2**31 - 1),
                self._clock.monotonic,
            ),
            encoded_topics=EncodedTopics(),
            producer_ids=ProducerIds(metadata, node_id, self.supervision.broker_epoch),
            unclean_elections=self.unclean_elections,
            groups=self.groups,
            transactions=self.transactions,
            marker_writer=self.marker_writer,
            sealing=Sealing(metadata, self.replicas),
            disk=self._disk,
            clock=self._clock,
            metrics=self.metrics,
            broker_config=self.broker_config,
            fetch_bytes_left=lambda: self.listener.response_bytes_left(),
            departures=Departures(metadata.subscribe, self._clock.monotonic),
            in_doubt=self.network.in_doubt,
        )

    async def _bind(self) -> tuple[str, int]:
        config = self.broker_config()
        self.listener = Listener(
            dispatch=dispatcher(self.node),
            metrics=self.metrics,
            request_bytes_max=config.integer("socket.request.max.bytes"),
            queued_bytes_max=config.integer("queued.max.request.bytes"),
            connections_max=lambda: self.broker_config().integer("max.connections"),
            idle_timeout_ms=lambda: self.broker_config().integer("connections.max.idle.ms"),
            now=self._clock.monotonic,
        )
        host, port = self.settings.host, self.settings.port
        try:
            return await self.listener.bind(host, port)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise StartFailed(f"cannot listen on {host}:{port} (--port): {reason}") from None

    async def _registered(self, identity: Identity, bound: tuple[str, int]) -> None:
        """Register. If nobody decides that, answer with what this node knew before meanwhile."""
        registering = asyncio.ensure_future(self._register(identity, bound))
        try:
            await asyncio.wait((registering,), timeout=UNREGISTERED_S)
            if not registering.done() and self.metadata.image.online_ids:
                logger.warning("no quorum yet: answers with what was known at the last stop")
                await self.listener.serve()
            await registering
        finally:
            registering.cancel()

    async def _register(self, identity: Identity, bound: tuple[str, int]) -> None:
        host, port = self._advertised(bound)
        internal_host, internal_port = self.network.address
        syncs = self.settings.durability == "fsync"
        command = RegisterBroker(
            node_id=self.node_id,
            incarnation_id=self._incarnation_id,
            directory_id=identity.directory_id,
            host=host,
            port=port,
            rack=self.settings.rack,
            internal_host=internal_host,
            internal_port=internal_port,
            # With fsync nothing that counts can be lost, but what a transaction was told can.
            is_clean=syncs or self._ended_cleanly,
            lost_memory=syncs and not self._ended_cleanly,
        )
        epoch = await self.supervision.register(command)
        self._registration = (command, epoch)
        extra = {"node_id": self.node_id, "term": self.metadata.term, "index": epoch}
        logger.info("registered", extra=extra | {"address": f"{host}:{port}"})
        self.addresses = Addresses(kafka=(bound[0], bound[1]), http=None)

    def _advertised(self, bound: tuple[str, int]) -> tuple[str, int]:
        if self.settings.advertise is not None:
            return parse_address(self.settings.advertise)
        return reachable(self.settings.host, bound)

    async def _start_background(self) -> None:
        tasks = await self._stack.enter_async_context(Tasks())
        maintenance = Maintenance(self.replicas, self._disk, self._clock, self.broker_config)
        self.maintenance = maintenance
        tasks.start(maintenance.retention(), "retention")
        tasks.start(maintenance.compaction(), "compaction")
        tasks.start(maintenance.checkpoints(), "checkpoints")
        tasks.start(maintenance.producer_expiry(), "producer-expiry")
        tasks.start(maintenance.in_sync_sets(), "in-sync-sets")
        tasks.start(maintenance.caught_up_replicas(), "caught-up-replicas")
        tasks.start(maintenance.high_watermarks(), "high-watermarks")
        repair = Repair(
            self.node_id, self.replicas, self.metadata.submit, self.supervision.broker_epoch
        )
        tasks.start(repair.run(), "repair")
        tasks.start(self._disk_space().watch(), "disk-space")
        tasks.start(sample_lag(self.metrics.loop_lag), "loop-lag")
        tasks.start(self.supervision.heartbeats(*self._registration), "heartbeats")
        tasks.start(self.supervision.watch(), "watch")
        tasks.start(self.metadata.consensus.save_commit_index(), "commit-index")
        controller = ControllerTasks(self.node)
        tasks.start(controller.run(), "controller")
        if self.settings.http_port >= 0:
            await self._start_http()

    def _disk_space(self) -> DiskSpace:
        return DiskSpace(
            disk=self._disk,
            data_dir=self.node.data_dir,
            room=self.replicas.room,
            following=self.following,
            metadata=self.metadata,
            node_id=self.node_id,
            broker_epoch=self.supervision.broker_epoch,
        )

    async def _start_http(self) -> None:
        # Imported off the loop, after clients can connect: it costs a quarter of a second.
        module = await self._disk.run(lambda: importlib.import_module("chronik.dashboard.server"))
        host, port = self.settings.host, self.settings.http_port
        server = module.DashboardServer(self._status())
        try:
            http = await server.open(host, port)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise StartFailed(
                f"cannot listen on {host}:{port} (--http-port): {reason}; -1 turns it off"
            ) from None
        self._stack.push_async_callback(server.close)
        self.addresses = self.addresses._replace(http=http)

    def _status(self) -> Status:
        return Status(
            node_id=self.node_id,
            metrics=self.metrics,
            metadata=self.metadata,
            replicas=self.replicas,
            fetch_session_count=lambda: len(self.node.fetch_sessions),
        )

    async def _stop_storage(self) -> None:
        try:
            await self.metadata.stop()
            await self._commit.drain()
            await self._partition_commit.drain()
            if await self.replicas.close() and self._is_marked:
                mark_stopped(self._disk, self.node.data_dir)
        finally:
            self.metadata.close()

    def _break(self, reason: str) -> None:
        """The node cannot go on: whoever runs it ends it."""
        self.broken_by = self.broken_by or reason
        self.broken.set()

    # Wiring.

    def broker_config(self) -> BrokerConfig:
        """This broker's settings as they are now."""
        return broker_config(self.settings, self.metadata.image, self.node_id)

    def _broker_config_in(self, image: Image) -> BrokerConfig:
        return broker_config(self.settings, image, self.node_id)

    def _on_marker(self, where: TopicPartition, marker: Marker) -> None:
        if where.topic == CONSUMER_OFFSETS:
            self.groups.end_transaction(where.partition, marker.stamp, marker.committed)

    def _on_markers_written(self, action: WriteMarkers) -> None:
        self.transactions.tell(
            action.transactional_id,
            lambda shard, now_ms: shard.markers_written(
                action.transactional_id, action.stamp, now_ms
            ),
        )

    def _on_durable(self, log: Log) -> None:
        if log is self._metadata_log:
            self.metadata.on_durable()
        else:
            self.replicas.on_durable(log)

    def _on_failed(self, log: Log, error: Exception) -> None:
        if log is self._metadata_log:
            self.metadata.on_failed(error)
        else:
            self.replicas.on_failed(log, error)


async def run(settings: Settings, ready: Callable[["Broker"], None], stop: asyncio.Event) -> None:
    """Run a node until `stop` is set; `ready` is called once it serves.

    A node may wait for its cluster for as long as that takes, and can be stopped meanwhile. If it
    cannot go on, while it starts or later, StartFailed says why.
    """
    if (reason := why_not_serving(settings)) is not None:
        raise StartFailed(reason)  # Before a cluster hears of this node.
    broker = Broker(settings)
    starting = asyncio.create_task(broker.__aenter__(), name="start")
    ends = [asyncio.create_task(each.wait()) for each in (stop, broker.broken)]
    await asyncio.wait((starting, *ends), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.wait((starting,))
    try:
        if not starting.cancelled():
            await starting
            ready(broker)
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            await broker.__aexit__()
    finally:
        for end in ends:
            end.cancel()
    if broker.broken_by:
        raise StartFailed(broker.broken_by)
