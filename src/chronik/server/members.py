"""Changes of the membership at run time: nodes are let in, get a vote, are removed, hand over.

Whoever is asked passes the question on to the leader, again and again with pauses while there is
none. The leader decides (`metadata.membership`), has Raft commit it, and answers. By itself it
binds founders to the directories they came with, gives a learner its vote once it has everything,
and hands over if its disk is full.

Invariant: a broker's registration is removed only after its vote: until then it is a member that
may come back as it was.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from chronik.client.link import Address
from chronik.metadata import membership as decisions
from chronik.metadata.commands import RemoveBroker
from chronik.metadata.runtime import MetadataRuntime
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.raft.leading import NotLeader, NotNow
from chronik.raft.types import Membership
from chronik.server.formation import Found, Join, Joined
from chronik.server.network import Network

logger = logging.getLogger(__name__)

UPKEEP_S: Final = 0.1  # how late a learner gets its vote
ASK_AROUND_S: Final = 0.5
PAUSE_S: Final = 0.05
PAUSE_S_MAX: Final = 1.0
TIMEOUT_S: Final = 8.0  # less than who asks waits: it shall hear why
CALL_TIMEOUT_S: Final = 5.0
FAREWELL_TIMEOUT_S: Final = 1.0

CHANGE: Final = "change-members"
REMOVED: Final = "removed"
ADDRESSES: Final = "addresses"
DIRECTORIES: Final = "directories"


class Remove(msgspec.Struct, frozen=True, tag="remove"):
    """A node shall be none of the cluster any more; with `replaces`, to be let in anew."""

    node_id: int
    accepts_loss: bool = False
    replaces: bool = False


class Transfer(msgspec.Struct, frozen=True, tag="transfer"):
    """Another node shall lead; any, if none is named."""

    to: int | None = None


class Admit(Join, frozen=True, tag="admit"):
    """A node asks to be let in."""


Change = Remove | Transfer | Admit
_CHANGE: Final[msgspec.json.Decoder[Change]] = msgspec.json.Decoder(Change)
_DIRECTORIES: Final = msgspec.json.Decoder(tuple[int, dict[int, str]])


class Members:
    """The membership, as this node changes it or has it changed."""

    def __init__(
        self, metadata: MetadataRuntime, network: Network, on_removed: Callable[[], None]
    ) -> None:
        self._metadata = metadata
        self._network = network
        self._on_removed = on_removed

    @property
    def _current(self) -> Membership:
        return self._metadata.consensus.node.membership

    # What other nodes ask.

    def on_call(self, method: str, body: bytes) -> Awaitable[bytes] | bytes:
        """A call about the members."""
        match method:
            case "found":
                return self._on_found()
            case "join":
                asked = msgspec.json.decode(body, type=Join)
                return self._ask_leader(Admit(asked.node_id, asked.directory_id))
            case "change-members":
                return self._lead(_CHANGE.decode(body))
            case "addresses":
                return msgspec.json.encode(self._network.connected)
            case "directories":
                return self._directories()
            case "removed":
                return self._removed(body)
            case _:
                raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"There is no call {method!r}.")

    def _on_found(self) -> bytes:
        cluster_id = self._network.identity.cluster_id
        # Without members this node was let into a cluster, and has not got its log yet.
        is_formed = self._metadata.last_index > 0 or not self._current.voters
        return msgspec.json.encode(Found(cluster_id, is_formed))

    def _directories(self) -> bytes:
        """The members' directories by the last configuration that is committed, and its index."""
        node = self._metadata.consensus.node
        index, members = node.members.since(node.commit_index)
        return msgspec.json.encode((index, members.directories))

    def _removed(self, body: bytes) -> bytes:
        """The leader that removed this node says so."""
        if int(body) >= self._metadata.consensus.node.members.changed_index:
            self._on_removed()
        return b""

    # What a person asks.

    async def change(self, change: Change) -> int:
        """Have it done by whoever leads; the node that it was about, or KafkaError."""
        return msgspec.json.decode(await self._ask_leader(change), type=int)

    async def _ask_leader(self, change: Change) -> bytes:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + TIMEOUT_S
        body = msgspec.json.encode(change)
        pause_s = PAUSE_S
        while True:
            try:
                leader_id = self._metadata.consensus.node.leader_id
                if self._metadata.can_propose:
                    return await self._lead(change)
                if leader_id is None:
                    raise KafkaError(ErrorCode.NOT_CONTROLLER, "Nobody leads the cluster now.")
                return await self._metadata.call(leader_id, CHANGE, body, CALL_TIMEOUT_S)
            except (ConnectionError, TimeoutError) as error:
                # Each change can be asked for again: what is done already is not done twice.
                failure = KafkaError(ErrorCode.REQUEST_TIMED_OUT, str(error))
            except KafkaError as error:
                if error.code is not ErrorCode.NOT_CONTROLLER:
                    raise
                failure = error
            if loop.time() + pause_s > deadline:
                raise failure
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    # As the leader.

    async def _lead(self, change: Change) -> bytes:
        if not self._metadata.can_propose:
            raise KafkaError(ErrorCode.NOT_CONTROLLER)
        match change:
            case Admit():
                return await self._admit(change)
            case Remove():
                await self._remove(change)
                return msgspec.json.encode(change.node_id)
            case Transfer():
                return msgspec.json.encode(await self._transfer(change.to))

    async def _admit(self, admit: Admit) -> bytes:
        node_id = admit.node_id

        def decide() -> Membership:
            nonlocal node_id
            image = self._metadata.image
            node_id, wanted = decisions.admit(
                self._current, image, admit.node_id, admit.directory_id
            )
            return wanted

        await self._propose(decide, "node admitted")
        assert node_id is not None
        members = {each: (at.host, at.port) for each, at in self._network.members().items()}
        members.pop(node_id, None)
        cluster_id = self._network.identity.cluster_id
        return msgspec.json.encode(Joined(cluster_id, node_id, members))

    async def _remove(self, remove: Remove) -> None:
        node_id = remove.node_id
        metadata, consensus = self._metadata, self._metadata.consensus
        is_member, is_broker = node_id in self._current.members, node_id in metadata.image.brokers
        if not is_member and not is_broker:
            raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"There is no node {node_id}.")
        command = RemoveBroker(node_id=node_id, accepts_loss=remove.accepts_loss)
        if not consensus.node.has_committed_in_term:
            raise KafkaError(ErrorCode.NOT_CONTROLLER)  # Who else answers is not known yet.
        if is_broker:
            metadata.decide(command)  # Refused now, while nothing is done yet.
        if remove.replaces and node_id in consensus.heard():
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Node {node_id} answers: nothing of it is lost. Stop it first if it is to be "
                "replaced.",
            )
        if is_member:
            decisions.remove(self._current, node_id, consensus.heard())
            if node_id == metadata.node_id:
                await self._transfer(None)
                raise KafkaError(ErrorCode.NOT_CONTROLLER)  # The next leader goes on.
            await self._propose(
                lambda: decisions.remove(self._current, node_id, consensus.heard()), "node removed"
            )
            await self._say_farewell(node_id)
        try:
            # Also of one that was not registered: it may have been on its way, and is decided now.
            await metadata.submit(command)
        except KafkaError as error:
            if is_broker or error.code is not ErrorCode.BROKER_ID_NOT_REGISTERED:
                raise

    async def _say_farewell(self, node_id: int) -> None:
        index = str(self._metadata.consensus.node.members.changed_index).encode()
        try:
            await self._metadata.call(node_id, REMOVED, index, FAREWELL_TIMEOUT_S)
        except (KafkaError, ConnectionError, TimeoutError) as error:
            # It finds out when it connects, if it ever does.
            logger.info("removed node not told", extra={"node": node_id, "reason": str(error)})

    async def _propose(self, decide: Callable[[], Membership], what: str) -> None:
        """Commit what `decide` says of the members as they are then; changes go one by one."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CALL_TIMEOUT_S
        while True:
            wanted = decide()
            if wanted == self._current:
                return
            try:
                await self._metadata.change_members(wanted)
            except NotLeader:
                raise KafkaError(ErrorCode.NOT_CONTROLLER) from None
            except NotNow as reason:
                if loop.time() > deadline:
                    raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"Not now: {reason}.") from None
                await asyncio.sleep(PAUSE_S)
            else:
                extra = {"voters": sorted(wanted.voters), "learners": sorted(wanted.learners)}
                logger.info(what, extra=extra)
                return

    async def _transfer(self, to: int | None) -> int:
        metadata, node = self._metadata, self._metadata.consensus.node
        if to is None:
            heard = metadata.consensus.heard()
            matched = {each: told.match_index for each, told in node.progress.items()}
            matched = {each: index for each, index in matched.items() if each in heard}
            to = decisions.successor(self._current, metadata.node_id, matched)
        if to == metadata.node_id:
            return to
        try:
            metadata.consensus.transfer(to)
        except NotLeader:
            raise KafkaError(ErrorCode.NOT_CONTROLLER) from None
        except NotNow as reason:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{reason}.".capitalize()) from None
        deadline = asyncio.get_running_loop().time() + CALL_TIMEOUT_S
        while node.leader_id != to:
            has_given_up = metadata.is_leading and node.transferring_to is None
            if has_given_up or asyncio.get_running_loop().time() > deadline:
                raise KafkaError(
                    ErrorCode.REQUEST_TIMED_OUT, f"Node {to} did not take over: is it running?"
                )
            await asyncio.sleep(PAUSE_S)
        return to

    # By itself.

    async def upkeep(self) -> None:
        """Bind founders and give learners their vote, for ever."""
        while True:
            await asyncio.sleep(UPKEEP_S)
            metadata = self._metadata
            if metadata.consensus.full is not None and metadata.can_propose:
                await self._hand_over()
            elif metadata.can_propose and metadata.consensus.node.has_committed_in_term:
                wanted = self._wanted()
                if wanted != self._current:
                    await self._try(wanted)

    async def _hand_over(self) -> None:
        """A leader without room on its disk can decide nothing; another may."""
        try:
            to = await self._transfer(None)
        except KafkaError as reason:
            logger.debug("leadership stays", extra={"reason": str(reason)})
        else:
            logger.warning("handed over: no room for the metadata log", extra={"leader": to})

    def _wanted(self) -> Membership:
        node, current = self._metadata.consensus.node, self._current
        own = {self._metadata.node_id: node.config.directory_id}
        bound = decisions.bind(current, {**self._network.directories, **own})
        if bound != current:
            return bound
        heard = self._metadata.consensus.heard()
        caught_up = [
            node_id
            for node_id in current.learners & heard
            if node.progress[node_id].match_index >= node.commit_index
        ]
        return decisions.promote(current, caught_up)

    async def ask_around(self) -> None:
        """Find members that have moved, or were replaced, by asking others, for ever.

        Two nodes that come back elsewhere at once would else never meet, if one of them leads; nor
        would a replacement that leads and a node that was away meanwhile.
        """
        call = self._metadata.call
        while True:
            await asyncio.sleep(ASK_AROUND_S)
            for node_id in self._network.ask_around():
                try:
                    body = await call(node_id, ADDRESSES, b"", FAREWELL_TIMEOUT_S)
                    found = msgspec.json.decode(body, type=dict[int, tuple[str, int]])
                    self._network.hear({each: Address(*at) for each, at in found.items()})
                    body = await call(node_id, DIRECTORIES, b"", FAREWELL_TIMEOUT_S)
                    self._network.hear_directories(*_DIRECTORIES.decode(body))
                except (KafkaError, ConnectionError, TimeoutError):
                    continue  # It is gone too.

    async def _try(self, wanted: Membership) -> None:
        try:
            await self._metadata.change_members(wanted)
        except (NotLeader, NotNow, KafkaError) as reason:
            logger.debug("members stay as they are", extra={"reason": str(reason)})
        else:
            extra: dict[str, Any] = {"voters": sorted(wanted.voters)}
            logger.info("members changed", extra={**extra, "learners": sorted(wanted.learners)})
