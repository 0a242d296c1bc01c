"""How a node without data finds its cluster: it forms one with its peers, or is let into one.

    peers     An empty node asks its peers. If one of them has a cluster with anything in its log,
              this node asks to be let in there, and never forms another. If none has, and a
              majority of the peers is there and as empty, they found the cluster together. A peer
              with another secret, list of peers or number is told of, and counts as away.
    --join    An empty node asks a running cluster to be let in.
    neither   A node on its own founds a cluster of one.

Being let in: the leader commits that this node is a member, as a learner bound to its data
directory, and answers with the cluster's id, the node's, and where the members are. The rest is
Raft's: the node gets the log, and a vote once it has all of it.

`--join` takes either port. A Kafka port tells where the internal ports are (DescribeQuorum); who
may join is decided there, by the cluster's secret.
"""

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from chronik.client.internal_link import PeerRefused
from chronik.client.link import Address, ConnectionFailed, Link
from chronik.client.peer import Peer
from chronik.config import peers as config
from chronik.config.settings import Settings, parse_address
from chronik.metadata.image import id_text
from chronik.protocol import internal
from chronik.protocol.apis import DESCRIBE_QUORUM
from chronik.protocol.errors import ErrorCode, KafkaError, ProtocolError
from chronik.protocol.messages.quorum import (
    METADATA_TOPIC,
    DescribeQuorumRequest,
    DescribeQuorumRequestPartition,
    DescribeQuorumRequestTopic,
    DescribeQuorumResponse,
)
from chronik.raft.types import Membership
from chronik.server.identity import Identity, WrongDirectory
from chronik.server.network import Network

logger = logging.getLogger(__name__)

FOUND: Final = "found"
JOIN: Final = "join"
INTERNAL_LISTENER: Final = "INTERNAL"
NO_NODE_ID: Final = -1

ASK_TIMEOUT_S: Final = 2.0
JOIN_TIMEOUT_S: Final = 10.0  # an election, and a change of members that is under way
POLL_S: Final = 0.05  # founders meet within this time of the last one's start
PATIENCE_S: Final = 30.0  # for a cluster that is to be joined and does not answer; it may start too
# Errors after which the same question may be answered otherwise.
_TRANSIENT: Final = (ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT)

_OTHER_PEERS: Final = "--peers: another node has another list of peers; it must be the same on each"

Find = Callable[[], Awaitable[Sequence[Address]]]


class Found(msgspec.Struct, frozen=True):
    """What a node tells of its cluster: its id, and whether anything was decided in it."""

    cluster_id: str
    is_formed: bool


class Join(msgspec.Struct, frozen=True):
    """A node asks to be let in."""

    node_id: int | None
    directory_id: str


class Joined(msgspec.Struct, frozen=True):
    """It is: who it is, and where the members are."""

    cluster_id: str
    node_id: int
    members: dict[int, tuple[str, int]]


class Formation:
    """The first minutes of a node: from an empty directory to an identity."""

    def __init__(self, settings: Settings, network: Network) -> None:
        self._settings = settings
        self._network = network
        self._said: str | None = None

    async def identity(self) -> Identity:
        """Form a cluster or find one, however long that takes; WrongDirectory if it is refused."""
        settings, own = self._settings, self._network.identity
        if settings.join is not None:
            return await self._join(lambda: self._internal_addresses(settings.join or ""))
        if len(settings.peers) > 1:
            return await self._form_or_join()
        node_id = 1 if settings.node_id is None else settings.node_id
        cluster_id = id_text(uuid.uuid4().bytes)
        return Identity(cluster_id=cluster_id, node_id=node_id, directory_id=own.directory_id)

    # Among peers.

    async def _form_or_join(self) -> Identity:
        own = self._network.identity
        cluster_id = founded_cluster(self._settings.peers)
        others = [each for each in self._settings.peers if each.node_id != own.node_id]
        quorum = len(self._settings.peers) // 2 + 1
        talkers = [self._talker([Address(*each.internal)], each.node_id) for each in others]
        try:
            while True:
                answers = await asyncio.gather(*map(self._ask_found, talkers))
                found = [each for each in answers if isinstance(each, Found)]
                formed = next((each for each in found if each.is_formed), None)
                if formed is not None:
                    return await self._join_formed(formed, cluster_id, others)
                agreeing = [each for each in found if each.cluster_id == cluster_id]
                if len(agreeing) + 1 >= quorum:
                    return Identity(
                        cluster_id=cluster_id, node_id=own.node_id, directory_id=own.directory_id
                    )
                wrong = [each for each in answers if isinstance(each, str)]
                wrong += [_OTHER_PEERS] * (len(found) - len(agreeing))
                if len(self._settings.peers) - len(wrong) < quorum:
                    raise WrongDirectory(wrong[0])
                missing = quorum - len(agreeing) - 1
                waiting = f"waiting for {missing} more of the peers to form a cluster"
                self._say("; ".join([waiting, *wrong]))
                await asyncio.sleep(POLL_S)
        finally:
            await asyncio.gather(*(each.close() for each in talkers))

    async def _ask_found(self, talker: Peer) -> Found | str | None:
        """What a peer says; what is wrong with it, if it cannot found a cluster with this node."""
        try:
            body = await talker.call(FOUND, b"", ASK_TIMEOUT_S)
        except PeerRefused as error:
            if error.is_unformed:
                return _refused(error)
            raise WrongDirectory(_refused(error)) from None
        except ConnectionFailed as error:
            logger.debug("peer away", extra={"peer": talker.node_id, "reason": str(error)})
            return None
        except KafkaError as error:
            if error.code not in _TRANSIENT:
                raise WrongDirectory(str(error)) from None
            return None  # It starts, and does not know yet.
        return msgspec.json.decode(body, type=Found)

    async def _join_formed(
        self, formed: Found, cluster_id: str, others: Sequence[config.Peer]
    ) -> Identity:
        if formed.cluster_id != cluster_id:
            raise WrongDirectory(
                f"--peers: the nodes there are of cluster {formed.cluster_id}, which another list "
                "of peers has formed; to become a node of it, start with --join"
            )
        addresses = deque(Address(*each.internal) for each in others)

        async def find() -> Sequence[Address]:
            addresses.rotate(-1)  # The first that answers may be as empty, and wait for this one.
            return tuple(addresses)

        # Without an end: a node of a cluster that has lost its quorum waits like the others.
        return await self._join(find, patience_s=None)

    # Joining.

    async def _join(self, find: Find, patience_s: float | None = PATIENCE_S) -> Identity:
        loop = asyncio.get_running_loop()
        deadline = None if patience_s is None else loop.time() + patience_s
        while True:
            try:
                joined = await self._ask_join(await find())
            except (ConnectionFailed, KafkaError) as error:
                if isinstance(error, PeerRefused) and not error.is_unformed:
                    raise WrongDirectory(_refused(error)) from None
                if isinstance(error, KafkaError) and error.code not in _TRANSIENT:
                    raise WrongDirectory(error.message or error.code.name) from None
                if deadline is not None and loop.time() > deadline:
                    raise WrongDirectory(f"--join: {error}") from None
                self._say(f"not let into the cluster yet: {error}")
            else:
                return Identity(
                    cluster_id=joined.cluster_id,
                    node_id=joined.node_id,
                    directory_id=self._network.identity.directory_id,
                    is_joined=True,
                    members=joined.members,
                )
            await asyncio.sleep(10 * POLL_S)

    async def _ask_join(self, addresses: Sequence[Address]) -> Joined:
        talker = self._talker(addresses, None)
        request = Join(self._settings.node_id, self._network.identity.directory_id)
        try:
            body = await talker.call(JOIN, msgspec.json.encode(request), JOIN_TIMEOUT_S)
        finally:
            await talker.close()
        return msgspec.json.decode(body, type=Joined)

    async def _internal_addresses(self, join: str) -> Sequence[Address]:
        """The internal ports of the cluster, if this is a Kafka port of it; else this itself."""
        address = Address(*parse_address(join))
        try:
            link = await Link.connect(address, timeout_s=ASK_TIMEOUT_S)
        except ConnectionFailed:
            return [address]
        try:
            answer: DescribeQuorumResponse = await link.send(
                _QUORUM, DESCRIBE_QUORUM, timeout_s=ASK_TIMEOUT_S
            )
        except ProtocolError as error:
            raise ConnectionFailed(address, str(error)) from None
        finally:
            link.close()
        found = [
            Address(each.host, each.port)
            for node in answer.nodes
            for each in node.listeners
            if each.name == INTERNAL_LISTENER
        ]
        if not found:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"--join: {address} has no internal port")
        return found

    def _talker(self, addresses: Sequence[Address], node_id: int | None) -> Peer:
        network = self._network
        return Peer(
            node_id,
            addresses,
            identity=lambda: network.identity,
            secret=network.secret,
            own_address=network.address,
        )

    def _say(self, what: str) -> None:
        """Tell once what is waited for."""
        if what != self._said:
            self._said = what
            logger.warning(what)


_QUORUM: Final = DescribeQuorumRequest(
    topics=[
        DescribeQuorumRequestTopic(
            topic_name=METADATA_TOPIC,
            partitions=[DescribeQuorumRequestPartition(partition_index=0)],
        )
    ],
    is_own_view=True,
)


def on_early_call(settings: Settings, method: str, *, is_forming: bool) -> bytes:
    """Answer a node that asks while this one starts; what it can say is that it is empty too."""
    if method != FOUND or not is_forming or len(settings.peers) < 2:
        raise KafkaError(ErrorCode.NOT_CONTROLLER, "This node is starting.")
    return msgspec.json.encode(Found(founded_cluster(settings.peers), is_formed=False))


def founded_cluster(peers: Sequence[config.Peer]) -> str:
    """The id of the cluster that these peers found together: each finds the same one by itself."""
    return id_text(config.cluster_id_of(peers))


def founding(settings: Settings, identity: Identity) -> Membership:
    """The members before the log names any: nobody whom this node was not told of."""
    if identity.is_joined:
        return Membership()
    if len(settings.peers) > 1:
        return Membership(frozenset(peer.node_id for peer in settings.peers))
    own = identity.node_id
    return Membership(frozenset([own]), directories={own: identity.directory_id})


def asking_identity(
    settings: Settings, directory_id: str, incarnation_id: str
) -> internal.Identity:
    """Who a node is that has no cluster yet."""
    node_id = NO_NODE_ID if settings.node_id is None else settings.node_id
    return internal.Identity("", node_id, directory_id, incarnation_id)


def _refused(error: PeerRefused) -> str:
    if "secret" not in error.reason:
        return str(error)
    return (
        f"{error}; give the cluster's own by --secret, CHRONIK_SECRET or secret in the file (a "
        "node that was given none keeps what it made in the file `secret` of its data directory)"
    )
