"""The other nodes: who may come, where Raft's messages go, and whom a call reaches.

Every pair of nodes has a connection for Raft in each direction, and another for calls, so that a
heartbeat never waits behind anything large. Who is no member, comes from another cluster, or has
another data directory than the one that is registered under its id, is refused in one line.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from chronik.client.internal_link import NotSent
from chronik.client.link import Address, ConnectionFailed
from chronik.client.peer import Peer
from chronik.config import peers as config
from chronik.metadata.journal import Journal
from chronik.metadata.raft_wire import encode_raft, supersedes
from chronik.metadata.runtime import MetadataRuntime
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.internal import Hello, Identity
from chronik.raft.messages import InstallSnapshot, Message
from chronik.server.internal_listener import InternalListener
from chronik.storage.disk import Disk

logger = logging.getLogger(__name__)

OnCall = Callable[[Hello, str, bytes], Awaitable[bytes] | bytes]


class Network:
    """The internal port and the links to all peers."""

    def __init__(
        self,
        *,
        identity: Identity,
        secret: bytes,
        peers: Sequence[config.Peer],
        disk: Disk,
        on_connected: Callable[[Identity], None],
        on_lost: Callable[[Identity], None],
        on_call: OnCall,
    ) -> None:
        self._identity = identity
        self._disk = disk
        self._on_lost = on_lost
        self.metadata: MetadataRuntime
        self.journal: Journal
        self.listener = InternalListener(
            identity=lambda: identity,
            secret=secret,
            admit=self._refusal,
            on_raft=lambda message: self.metadata.consensus.step(message),
            on_snapshot=lambda message, data: self.metadata.consensus.step(message, data),
            on_call=on_call,
            on_connected=self._welcome,
        )
        self._on_connected = on_connected
        self._peers = {
            peer.node_id: Peer(
                peer.node_id,
                [Address(peer.host, peer.internal_port)],
                identity=lambda: identity,
                secret=secret,
                on_connected=on_connected,
                on_lost=on_lost,
                on_refused=lambda reason: logger.error("refused", extra={"reason": reason}),
                on_snapshot_failed=self._snapshot_failed,
            )
            for peer in peers
            if peer.node_id != identity.node_id
        }

    def _refusal(self, hello: Hello) -> str | None:
        """Why a node may not come, if it may not."""
        if hello.cluster_id != self._identity.cluster_id:
            return f"node {hello.node_id} is of another cluster ({hello.cluster_id})"
        if hello.node_id not in self._peers:
            return f"node {hello.node_id} is not among the peers"
        known = self.metadata.image.brokers.get(hello.node_id)
        if known is not None and known.directory_id != hello.directory_id:
            return (
                f"node {hello.node_id} comes with another data directory than the one that is"
                " registered: it has lost what it promised"
            )
        return None

    def _welcome(self, hello: Hello) -> None:
        self._peers[hello.node_id].wake()
        self._on_connected(hello)

    async def open(self, host: str, port: int) -> None:
        """Listen, and keep a connection to every peer."""
        await self.listener.bind(host, port)
        await self.listener.serve()
        for peer in self._peers.values():
            peer.start()

    async def close(self) -> None:
        """End all connections."""
        await self.listener.close()
        await asyncio.gather(*(peer.close() for peer in self._peers.values()))

    def is_connected(self, node_id: int) -> bool:
        """Whether a node can be reached now; this one always can."""
        peer = self._peers.get(node_id)
        return peer.is_connected if peer is not None else node_id == self._identity.node_id

    # Raft.

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
        if read.cancelled() or read.exception() is not None:
            self._snapshot_failed(message.recipient)  # A newer one has replaced it.
        else:
            peer.send_snapshot(encode_raft(message), read.result())

    def _snapshot_failed(self, node_id: int) -> None:
        self.metadata.consensus.node.snapshot_failed(node_id)

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
