"""The other nodes: who may come, where they are, where Raft's messages go, whom a call reaches.

Every pair of nodes has a connection for Raft in each direction, and another for calls, so that a
heartbeat never waits behind anything large. Whom to connect to is what the members say, committed
or on their way; where, is what the node itself said last: when it connected, when it registered,
what stood in the settings, or what others tell who are connected to it. So addresses may change at
a restart, even those of several nodes at once.

Who is no member, comes from another cluster, or has another data directory than the member of its
id, is refused in one line. A node without a cluster may ask for one, and nothing else.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from chronik.client.internal_link import FrameLink, NotSent
from chronik.client.link import Address, ConnectionFailed
from chronik.client.peer import Peer
from chronik.metadata.journal import Journal
from chronik.metadata.raft_wire import encode_raft, supersedes
from chronik.metadata.runtime import MetadataRuntime
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.internal import Hello, Identity
from chronik.raft.messages import InstallSnapshot, Message
from chronik.server.internal_listener import InternalListener, OnFollower
from chronik.storage.disk import Disk

logger = logging.getLogger(__name__)

OnCall = Callable[[Hello, str, bytes], Awaitable[bytes] | bytes]

# A member that is removed hears of it before its connections end.
FAREWELL_S: Final = 2.0
# Whether a node is gone whose connection has closed is decided within that, elections included.
DOUBT_S: Final = 1.5
NOBODY: Final[frozenset[int]] = frozenset()


class Network:
    """The internal port and the links to all members."""

    def __init__(
        self,
        *,
        identity: Identity,
        secret: bytes,
        disk: Disk,
        on_connected: Callable[[Identity], None],
        on_lost: Callable[[Identity], None],
        on_call: OnCall,
        on_follower: OnFollower,
    ) -> None:
        self.identity = identity  # without a cluster until one is formed or found
        self.secret = secret
        self.address = Address("", 0)  # as others reach this node
        self._disk = disk
        self._on_connected = on_connected
        self._on_lost = on_lost
        self.metadata: MetadataRuntime | None = None
        self.journal: Journal
        self.listener = InternalListener(
            identity=lambda: self.identity,
            secret=secret,
            admit=self._refusal,
            on_raft=self._step,
            on_snapshot=self._step,
            on_call=on_call,
            on_follower=on_follower,
            on_connected=self._welcome,
        )
        self._peers: dict[int, Peer] = {}
        self._seeds: Mapping[int, Address] = {}  # where members are said to be
        self._announced: dict[int, Address] = {}  # where they said that they are
        self._rumoured: dict[int, Address] = {}  # where others see them
        # Members' directories by a later committed configuration than our own, and its index.
        self._told: tuple[int, Mapping[int, str]] = (0, {})
        self._parted: dict[int, float] = {}  # when the connection of a node closed
        self._closing: set[asyncio.Task[None]] = set()
        self._is_serving = False
        self.is_open = False  # takes part: what came before is dropped

    # Who may come.

    def _refusal(self, hello: Hello) -> str | None:
        """Why a node may not come, if it may not."""
        if not hello.cluster_id:
            is_asking = hello.purpose == "call"
            return None if is_asking else f"node {hello.node_id} has no cluster yet"
        if hello.purpose == "replicate" and not self.is_open:
            return "this node is starting"
        if self.metadata is None:
            return None  # A founder that was quicker; nothing that it says counts yet.
        members = self.metadata.consensus.node.membership
        if not members.voters:
            return None  # This node was admitted, and has not been told yet who else was.
        if hello.node_id not in members.members and not self._may_lead(hello.node_id):
            return (
                f"node {hello.node_id} is no member of this cluster, or not any more: with an empty"
                " data directory it can --join"
            )
        return self._directory_refusal(hello)

    def _may_lead(self, node_id: int) -> bool:
        """Whether a node that is no member could be one of which this node was never told.

        It may have been let in, and lead by now, while this node was away: then nobody else will
        tell. Who was removed may come too, as long as no leader is known here; it does no harm.
        """
        assert self.metadata is not None
        return self.metadata.consensus.node.leader_id in (None, node_id)

    def _strangers(self) -> set[int]:
        """Who has come for Raft and is no member here."""
        assert self.metadata is not None
        came = {each.node_id for each in self.listener.hellos if each.purpose == "raft"}
        return came - self.metadata.consensus.node.membership.members

    def _directory_refusal(self, peer: Identity) -> str | None:
        """Why a node is not the member of its id, whoever of the two has connected."""
        if self.metadata is None:
            return None
        node_id = peer.node_id
        node = self.metadata.consensus.node
        members = node.membership
        if node_id not in members.members:
            # Its word counts nothing here, whatever directory its number had before. But it may
            # be a replacement that leads by now, and this node has heard of the removal only.
            return None
        bound = members.directories.get(node_id)
        told_index, told = self._told
        if told_index > node.members.changed_index:
            bound = told.get(node_id, bound)
        if bound is None:  # A founder whose directory the members do not name yet.
            broker = self.metadata.image.brokers.get(node_id)
            bound = self.directories.get(node_id) if broker is None else broker.directory_id
        if bound is None or bound == peer.directory_id:
            return None
        return (
            f"node {node_id} has another data directory than the one that is a member: it has lost"
            " what it promised, or two nodes have one id; see `chronik cluster replace-node`"
        )

    @property
    def directories(self) -> dict[int, str]:
        """The data directories of those that are connected, as each has proved."""
        hellos = (hello for hello in self.listener.hellos if hello.cluster_id)
        return {hello.node_id: hello.directory_id for hello in hellos}

    def _welcome(self, hello: Hello) -> None:
        if hello.cluster_id and self.metadata is not None:
            if hello.port:
                self._announced[hello.node_id] = Address(hello.host, hello.port)
            self.meet()
            if hello.node_id in self._peers:
                self._peers[hello.node_id].wake()
            self._met(hello)

    # Where they are.

    async def bind(self, host: str, port: int) -> tuple[str, int]:
        """Take the port; the address. Connections are refused until `serve`."""
        return await self.listener.bind(host, port)

    async def serve(self) -> None:
        """Let others come, and ask."""
        if not self._is_serving:
            self._is_serving = True
            await self.listener.serve()

    async def open(self, seeds: Mapping[int, Address]) -> None:
        """Keep a connection to every member from now on; seeds are where to look at first."""
        self._seeds = seeds
        self.is_open = True
        await self.serve()
        self.meet()

    def meet(self) -> None:
        """Connect to who is a member now, where it is now, and to nobody else."""
        if not self.is_open or self.metadata is None:
            return
        wanted = self._wanted()
        for node_id in wanted:
            addresses = self._addresses(node_id)
            if not addresses:
                continue  # A node that is replaced: it says where it is when it comes.
            if node_id in self._peers:
                self._peers[node_id].move(addresses)
            else:
                self._peers[node_id] = self._peer(node_id, addresses)
        for node_id in (self._peers.keys() | self._strangers()) - wanted:
            asyncio.get_running_loop().call_later(FAREWELL_S, self._leave, node_id)

    def _wanted(self) -> set[int]:
        """Whom to keep a connection to."""
        assert self.metadata is not None
        members = self.metadata.consensus.node.membership.members or self._seeds.keys()
        leaders = {each for each in self._strangers() if self._may_lead(each)}
        return {*members, *leaders} - {self.identity.node_id}

    def _addresses(self, node_id: int) -> list[Address]:
        """The newest word first."""
        assert self.metadata is not None
        found = [self._announced.get(node_id)]
        broker = self.metadata.image.brokers.get(node_id)
        if broker is not None and broker.internal_port:
            found.append(Address(broker.internal_host, broker.internal_port))
        found += [self._rumoured.get(node_id), self._seeds.get(node_id)]
        return list(dict.fromkeys(each for each in found if each is not None))

    def _peer(self, node_id: int, addresses: list[Address]) -> Peer:
        peer = Peer(
            node_id,
            addresses,
            identity=lambda: self.identity,
            secret=self.secret,
            own_address=self.address,
            admit=self._directory_refusal,
            on_connected=self._met,
            on_lost=self._lost,
            on_refused=lambda reason: logger.error("refused", extra={"reason": reason}),
            on_snapshot_failed=self._snapshot_failed,
        )
        peer.start()
        return peer

    def _met(self, peer: Identity) -> None:
        self._parted.pop(peer.node_id, None)
        self._on_connected(peer)

    def _lost(self, peer: Identity) -> None:
        """A process may have died with a snapshot that it had got and not saved: look again."""
        self._parted[peer.node_id] = asyncio.get_running_loop().time()
        self._snapshot_failed(peer.node_id)
        self._on_lost(peer)

    def in_doubt(self) -> frozenset[int]:
        """Nodes whose connection has just closed: soon they are back, or known to be gone."""
        if not self._parted:
            return NOBODY
        since = asyncio.get_running_loop().time() - DOUBT_S
        self._parted = {each: at for each, at in self._parted.items() if at > since}
        return frozenset(self._parted)

    def _leave(self, node_id: int) -> None:
        if not self.is_open or node_id in self._wanted():
            return  # It has come back meanwhile.
        self.listener.disconnect(node_id, "no member any more")
        self._announced.pop(node_id, None)
        peer = self._peers.pop(node_id, None)
        if peer is not None:
            closing = asyncio.get_running_loop().create_task(peer.close(), name="farewell")
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    @property
    def connected(self) -> dict[int, Address]:
        """Who is connected to this node now, and where each said that it is."""
        hellos = [each for each in self.listener.hellos if each.cluster_id and each.port]
        return {each.node_id: Address(each.host, each.port) for each in hellos}

    def ask_around(self) -> tuple[int, ...]:
        """Who may know where members are that cannot be reached; nobody, if all can."""
        reached = [node_id for node_id, peer in self._peers.items() if peer.is_connected]
        return tuple(reached) if len(reached) < len(self._peers) else ()

    def hear(self, rumoured: Mapping[int, Address]) -> None:
        """Others are connected to these: try them there too."""
        self._rumoured.update(rumoured)
        self.meet()

    def hear_directories(self, index: int, directories: Mapping[int, str]) -> None:
        """Others have committed a configuration with these: whom it replaced may lead by now.

        Who counts for what stays a matter of this node's own log. But a leader that it took for
        somebody else could never tell it better.
        """
        if index > self._told[0]:
            self._told = (index, directories)

    def members(self) -> dict[int, Address]:
        """Where all members are, as far as is known; this node included."""
        assert self.metadata is not None
        others = self.metadata.consensus.node.membership.members - {self.identity.node_id}
        known = {node_id: self._addresses(node_id) for node_id in others}
        found = {node_id: addresses[0] for node_id, addresses in known.items() if addresses}
        return {self.identity.node_id: self.address, **found}

    async def close(self) -> None:
        """End all connections."""
        self.is_open = False
        await self.listener.close()
        await asyncio.gather(*(peer.close() for peer in self._peers.values()), *self._closing)

    def is_connected(self, node_id: int) -> bool:
        """Whether a node can be reached now; this one always can."""
        peer = self._peers.get(node_id)
        return peer.is_connected if peer is not None else node_id == self.identity.node_id

    # Raft.

    def _step(self, message: Message, data: bytes = b"") -> None:
        if self.metadata is not None and self.is_open:
            self.metadata.consensus.step(message, data)

    def send(self, message: Message) -> None:
        """Send a Raft message, or drop it: Raft sends again what matters."""
        peer = self._peers.get(message.recipient)
        if peer is None:
            return
        if isinstance(message, InstallSnapshot):
            reading = self._disk.run(lambda: self.journal.snapshot_data(message.snapshot))
            reading.add_done_callback(lambda read: self._send_snapshot(peer, message, read))
        else:
            peer.send(encode_raft(message), supersedes=supersedes(message))

    def _send_snapshot(
        self, peer: Peer, message: InstallSnapshot, read: "asyncio.Future[bytes]"
    ) -> None:
        if read.cancelled():
            return
        if read.exception() is None:
            peer.send_snapshot(encode_raft(message), read.result())
            return
        # A newer one has replaced it, or this node was alone until now and never wrote one.
        assert self.metadata is not None
        self.metadata.snapshot(lambda: self._snapshot_failed(message.recipient))

    def _snapshot_failed(self, node_id: int) -> None:
        assert self.metadata is not None
        self.metadata.consensus.node.snapshot_failed(node_id)

    async def follow(self, node_id: int) -> FrameLink:
        """A connection for following what a node leads; ConnectionError if there is none."""
        peer = self._peers.get(node_id)
        if peer is None:
            raise ConnectionError(f"node {node_id} is not among the peers")
        try:
            return await peer.open_replication()
        except ConnectionFailed as error:
            raise ConnectionError(str(error)) from None

    # Calls.

    async def call(self, node_id: int, method: str, body: bytes, timeout_s: float) -> bytes:
        """A peer's answer. NOT_CONTROLLER: it was certainly not asked; ConnectionError: unknown."""
        peer = self._peers.get(node_id)
        if peer is None:
            raise KafkaError(ErrorCode.NOT_CONTROLLER)
        try:
            return await peer.call(method, body, timeout_s)
        except NotSent as error:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, str(error)) from None
        except ConnectionFailed as error:
            raise ConnectionError(str(error)) from None
