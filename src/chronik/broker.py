"""A node: settings in, parts wired and started, stopped in reverse. No logic.

The order of starting is the point. The data directory is locked and recovered, the port is bound
but refuses connections, the broker registers itself under that port, and only when its own image
shows the registration does it listen: no Metadata answer ever has zero brokers.
"""

import asyncio
import importlib
import logging
import os
import random
import socket
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, Final, NamedTuple, Self

import msgspec

from chronik.clock import Clock, SystemClock
from chronik.config.effective import BrokerConfig
from chronik.config.peers import Peer, cluster_id_of
from chronik.config.settings import Settings, parse_address
from chronik.coordinator.groups.records import GroupRecordFormat
from chronik.coordinator.groups.shard import GroupShard
from chronik.coordinator.groups.state import GroupConfig
from chronik.coordinator.internal_topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from chronik.coordinator.runtime import CoordinatorRuntime
from chronik.coordinator.shard import M, RecordFormat
from chronik.coordinator.transactions.marker_writer import Marker, MarkerWriter
from chronik.coordinator.transactions.records import TransactionRecordFormat
from chronik.coordinator.transactions.shard import (
    TransactionConfig,
    TransactionShard,
    WriteMarkers,
)
from chronik.dashboard.status import Status
from chronik.metadata.commands import RegisterBroker
from chronik.metadata.image import Image, id_text
from chronik.metadata.journal import Journal, UnusableMetadata
from chronik.metadata.runtime import MetadataRuntime
from chronik.metrics import Metrics
from chronik.model import TopicPartition
from chronik.protocol import internal
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.replication.maintenance import Maintenance
from chronik.replication.replicas import Replicas
from chronik.server.context import Node, broker_config
from chronik.server.dispatch import dispatcher
from chronik.server.encoded_topics import EncodedTopics
from chronik.server.fetch_sessions import FetchSessions
from chronik.server.listener import Listener
from chronik.server.network import Network
from chronik.server.producer_ids import ProducerIds
from chronik.server.supervision import Supervision
from chronik.server.transactions import on_transaction_call
from chronik.storage.commit import GroupCommit
from chronik.storage.disk import Disk, FileDisk
from chronik.storage.errors import StorageError
from chronik.storage.log import Log

logger = logging.getLogger(__name__)

DATA_FORMAT: Final = 1
FLUSH_INTERVAL_MS: Final = 1_000  # with durability=replicated: what a power failure may cost
LAG_SAMPLE_S: Final = 0.1


class StartFailed(Exception):
    """The node cannot start; the message is one line for the person who started it."""


class Addresses(NamedTuple):
    """Where a node is reached."""

    kafka: tuple[str, int]
    http: tuple[str, int] | None


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Whose data directory this is: the content of node.json."""

    format: int
    cluster_id: str
    node_id: int
    directory_id: str


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
        self.addresses: Addresses
        self.metadata: MetadataRuntime
        self.replicas: Replicas
        self.node: Node
        self.listener: Listener
        self.groups: CoordinatorRuntime[GroupShard]
        self.transactions: CoordinatorRuntime[TransactionShard]
        self.marker_writer: MarkerWriter
        self.maintenance: Maintenance

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except (StorageError, UnusableMetadata, KafkaError, OSError) as error:
            await self._stack.aclose()
            raise StartFailed(str(error)) from error
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()
        logger.info("stopped", extra={"node_id": self.settings.node_id})

    async def _start(self) -> None:
        disk, data_dir = self._disk, self.settings.data_dir.rstrip("/") or "/"
        self._stack.callback(disk.close)
        for path in disk.make_directory(data_dir):
            disk.sync_directory(path)
        disk.lock(f"{data_dir}/lock")
        identity = self._identify(data_dir)
        self._start_metadata(data_dir, identity)
        self._start_replicas(data_dir)
        self._start_coordinators()
        self.node = self._node(identity, data_dir)
        server = await self._bind()
        self._stack.push_async_callback(self.listener.close)
        await self._start_network()
        await self._register(identity, server)
        # Not before: the image may be behind until then, and a topic that it does not show yet
        # would pass for one that is gone.
        self.replicas.start(self.metadata.image, self.metadata.caught_up())
        # Nor this: whatever they write is of the leader epoch that registering began.
        self.groups.start()
        self.transactions.start()
        await self.listener.serve()
        await self._start_background()

    def _identify(self, data_dir: str) -> Identity:
        """Read whose directory this is, or claim it."""
        path = f"{data_dir}/node.json"
        if not self._disk.exists(path):
            identity = Identity(
                format=DATA_FORMAT,
                cluster_id=id_text(self._founded_cluster()),
                node_id=self.settings.node_id,
                directory_id=id_text(uuid.uuid4().bytes),
            )
            self._disk.write_durably(path, msgspec.json.encode(identity))
            return identity
        try:
            data = bytes(self._disk.pread(path, self._disk.size(path), 0))
            identity = msgspec.json.decode(data, type=Identity)
        except msgspec.MsgspecError as error:
            raise StartFailed(f"{path} cannot be read: {error}") from None
        if identity.format != DATA_FORMAT:
            raise StartFailed(f"{path}: data format {identity.format}; this is {DATA_FORMAT}")
        if identity.node_id != self.settings.node_id:
            raise StartFailed(
                f"{data_dir} belongs to node {identity.node_id}; give --node-id "
                f"{identity.node_id} or another --data-dir"
            )
        return identity

    def _founded_cluster(self) -> bytes:
        """The id of a new cluster: peers that found it together each find the same one."""
        peers = self.settings.peers
        return cluster_id_of(peers) if len(peers) > 1 else uuid.uuid4().bytes

    def _start_metadata(self, data_dir: str, identity: Identity) -> None:
        self._commit = GroupCommit(self._disk, self._on_durable, self._on_failed)
        journal = Journal(self._disk, f"{data_dir}/__chronik_metadata", self._clock.wall_ms)
        self._metadata_log = journal.log
        self.network = Network(
            identity=internal.Identity(
                identity.cluster_id,
                identity.node_id,
                identity.directory_id,
                self._incarnation_id,
            ),
            secret=(self.settings.secret or "").encode(),
            peers=self.settings.peers,
            disk=self._disk,
            on_connected=lambda peer: self.supervision.connected(peer),
            on_lost=lambda peer: self.supervision.lost(peer),
            on_call=self._on_call,
        )
        self.metadata = MetadataRuntime(
            journal,
            self._commit,
            self.settings.node_id,
            self._disk,
            directory_id=identity.directory_id,
            clock=self._clock,
            send=self.network.send,
            call=self.network.call,
            founders=frozenset(peer.node_id for peer in self.settings.peers),
        )
        self.network.metadata, self.network.journal = self.metadata, journal
        self.supervision = Supervision(self.metadata, self._clock, self.network.is_connected)
        self.metadata.broker_config = self._broker_config_in
        self.metadata.start()
        self._stack.push_async_callback(self._stop_storage)

    @property
    def _own_peer(self) -> Peer | None:
        peers = self.settings.peers
        return next((each for each in peers if each.node_id == self.settings.node_id), None)

    async def _start_network(self) -> None:
        """Meet the other nodes, if there are any, and let Raft's time begin."""
        own = self._own_peer
        if own is not None and len(self.settings.peers) > 1:
            try:
                await self.network.open(self.settings.host, own.internal_port)
            except OSError as error:
                reason = os.strerror(error.errno) if error.errno else str(error)
                place = f"{self.settings.host}:{own.internal_port}"
                raise StartFailed(f"cannot listen on {place} (--peers): {reason}") from None
            self._stack.push_async_callback(self.network.close)
        self.metadata.consensus.run()

    def _on_call(self, peer: internal.Hello, method: str, body: bytes) -> Awaitable[bytes] | bytes:
        match method:
            case "submit":
                return self.metadata.on_submit(body)
            case "heartbeat":
                return self.supervision.on_heartbeat(body)
            case "transaction":
                return on_transaction_call(self.node, body)
            case "marker":
                return self.marker_writer.on_call(body)
            case _:
                raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"There is no call {method!r}.")

    def _start_replicas(self, data_dir: str) -> None:
        commit = self._commit
        if self.settings.durability == "replicated":
            commit = GroupCommit(self._disk, self._on_durable, self._on_failed, FLUSH_INTERVAL_MS)
        self._partition_commit = commit
        self.replicas = Replicas(
            node_id=self.settings.node_id,
            disk=self._disk,
            data_dir=data_dir,
            durability=self.settings.durability,
            commit=commit,
            clock=self._clock,
            broker_config=self.broker_config,
        )
        self.metadata.subscribe(self.replicas.on_image)

    def _start_coordinators(self) -> None:
        config = self.broker_config
        self.groups = self._coordinator(
            CONSUMER_OFFSETS,
            lambda: GroupShard(GroupConfig(config), lambda: str(uuid.uuid4())),
            GroupRecordFormat(),
        )
        limits = TransactionConfig(
            timeout_ms_max=lambda: config().integer("transaction.max.timeout.ms"),
            id_expiration_ms=lambda: config().integer("transactional.id.expiration.ms"),
        )
        self.transactions = self._coordinator(
            TRANSACTION_STATE, lambda: TransactionShard(limits), TransactionRecordFormat()
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
        node_id = self.settings.node_id
        metadata = self.metadata
        return Node(
            node_id=node_id,
            cluster_id=identity.cluster_id,
            settings=self.settings,
            data_dir=data_dir,
            metadata=metadata,
            replicas=self.replicas,
            fetch_sessions=FetchSessions(
                self.broker_config().integer("max.incremental.fetch.session.cache.slots"),
                lambda: random.randrange(1, 2**31 - 1),
                self._clock.monotonic,
            ),
            encoded_topics=EncodedTopics(),
            producer_ids=ProducerIds(
                metadata, node_id, lambda: metadata.image.brokers[node_id].epoch
            ),
            groups=self.groups,
            transactions=self.transactions,
            marker_writer=self.marker_writer,
            disk=self._disk,
            clock=self._clock,
            metrics=self.metrics,
            broker_config=self.broker_config,
            fetch_bytes_left=lambda: self.listener.response_bytes_left(),
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
        )
        host, port = self.settings.host, self.settings.port
        try:
            return await self.listener.bind(host, port)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise StartFailed(f"cannot listen on {host}:{port} (--port): {reason}") from None

    async def _register(self, identity: Identity, bound: tuple[str, int]) -> None:
        host, port = self._advertised(bound)
        own = self._own_peer
        command = RegisterBroker(
            node_id=self.settings.node_id,
            incarnation_id=self._incarnation_id,
            directory_id=identity.directory_id,
            host=host,
            port=port,
            rack=self.settings.rack,
            internal_host=own.host if own is not None else "",
            internal_port=own.internal_port if own is not None else 0,
        )
        epoch = await self.supervision.register(command)
        self._registration = (command, epoch)
        logger.info(
            "registered",
            extra={
                "node_id": self.settings.node_id,
                "term": self.metadata.term,
                "index": epoch,
                "address": f"{host}:{port}",
            },
        )
        self.addresses = Addresses(kafka=(bound[0], bound[1]), http=None)

    def _advertised(self, bound: tuple[str, int]) -> tuple[str, int]:
        if self.settings.advertise is not None:
            return parse_address(self.settings.advertise)
        host = self.settings.host
        if host in ("0.0.0.0", "::", ""):
            host = _host_name()
        elif host == "localhost":
            host = bound[0]  # One address family: a client must not try the other first.
        return host, bound[1]

    async def _start_background(self) -> None:
        tasks = await self._stack.enter_async_context(_Tasks())
        maintenance = Maintenance(self.replicas, self._disk, self._clock, self.broker_config)
        self.maintenance = maintenance
        tasks.start(maintenance.retention(), "retention")
        tasks.start(maintenance.compaction(), "compaction")
        tasks.start(maintenance.checkpoints(), "checkpoints")
        tasks.start(maintenance.producer_expiry(), "producer-expiry")
        tasks.start(self._sample_lag(), "loop-lag")
        if len(self.settings.peers) > 1:
            tasks.start(self.supervision.heartbeats(*self._registration), "heartbeats")
            tasks.start(self.supervision.watch(), "watch")
            tasks.start(self.metadata.consensus.save_commit_index(), "commit-index")
        if self.settings.http_port >= 0:
            await self._start_http()

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
            node_id=self.settings.node_id,
            metrics=self.metrics,
            metadata=self.metadata,
            replicas=self.replicas,
            fetch_session_count=lambda: len(self.node.fetch_sessions),
        )

    async def _sample_lag(self) -> None:
        """How late the loop runs what is due: the wait of anybody who asks it something."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LAG_SAMPLE_S
            await asyncio.sleep(LAG_SAMPLE_S)
            self.metrics.loop_lag.observe(max(loop.time() - due, 0.0))

    async def _stop_storage(self) -> None:
        try:
            await self._commit.drain()
            await self._partition_commit.drain()
            await self.replicas.close()
        finally:
            self.metadata.close()

    # Wiring.

    def broker_config(self) -> BrokerConfig:
        """This broker's settings as they are now."""
        return broker_config(self.settings, self.metadata.image, self.settings.node_id)

    def _broker_config_in(self, image: Image) -> BrokerConfig:
        return broker_config(self.settings, image, self.settings.node_id)

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


class _Tasks:
    """Background tasks that end with the block that owns them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        task.add_done_callback(self._ended)
        self._tasks.add(task)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("task failed", exc_info=task.exception(), extra={"task": task.get_name()})

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _host_name() -> str:
    """This machine's name if it resolves, since a client must reach what we advertise."""
    name = socket.gethostname()
    try:
        socket.gethostbyname(name)
    except OSError:
        return "127.0.0.1"
    return name


async def run(settings: Settings, ready: Callable[[Addresses], None], stop: asyncio.Event) -> None:
    """Run a node until `stop` is set; `ready` is called once it serves.

    A node may wait for its cluster for as long as that takes, and can be stopped meanwhile.
    """
    broker = Broker(settings)
    starting = asyncio.create_task(broker.__aenter__(), name="start")
    stopping = asyncio.create_task(stop.wait(), name="stop")
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not starting.done():
        starting.cancel()
        await asyncio.wait((starting,))
        return
    await starting
    try:
        ready(broker.addresses)
        await stop.wait()
    finally:
        await broker.__aexit__()
