"""This node's registration and heartbeats, and the leader's eye on everybody's.

A node registers itself, by a command to whoever leads, and keeps trying until that is committed.
Then it shows the leader that it lives. The leader fences a broker that is silent for a session, or
whose connection closed and did not come back, and takes it in again when it is heard of.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from chronik.clock import Clock
from chronik.metadata.commands import RegisterBroker
from chronik.metadata.liveness import Liveness, fence, unfence
from chronik.metadata.runtime import MetadataRuntime
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.internal import Identity

logger = logging.getLogger(__name__)

HEARTBEAT_S: Final = 0.5  # six in a session
WATCH_S: Final = 0.1  # how late a death may be noticed
HEARTBEAT: Final = "heartbeat"
# Refusals that a try soon after may not meet: nobody led, or a pause helps.
UNLED: Final = (ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT)
NOT_NOW: Final = (
    ErrorCode.BROKER_ID_NOT_REGISTERED,  # It was removed, and will be told.
    ErrorCode.KAFKA_STORAGE_ERROR,  # Its own disk was full while it led, and has room again.
)


class _Heartbeat(msgspec.Struct, frozen=True):
    node_id: int
    broker_epoch: int


class Supervision:
    """Who lives, as a broker says it and as the leader sees it."""

    def __init__(
        self, metadata: MetadataRuntime, clock: Clock, is_connected: Callable[[int], bool]
    ) -> None:
        self._metadata = metadata
        self._clock = clock
        self._is_connected = is_connected
        self._liveness: Liveness | None = None
        self._term = 0
        self._epoch = -1  # of the last registration
        self.is_retiring = False

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)

    # As a broker.

    async def register(self, command: RegisterBroker) -> int:
        """Register, however long it takes to find a leader that can; the broker epoch."""
        while True:
            try:
                epoch: int = await self._metadata.submit(command)
            except KafkaError as error:
                if error.code not in UNLED + NOT_NOW or self._is_of_own_disk(error):
                    raise
                logger.warning("not registered yet", extra={"reason": str(error)})
                if error.code in NOT_NOW:
                    await asyncio.sleep(HEARTBEAT_S)
            else:
                self._epoch = epoch
                return epoch

    def broker_epoch(self) -> int:
        """What this node's commands carry; they are refused while it is unregistered."""
        own = self._metadata.image.brokers.get(self._metadata.node_id)
        return self._epoch if own is None else own.epoch

    def _is_of_own_disk(self, error: KafkaError) -> bool:
        """Whether this node's own disk refuses, and will again."""
        metadata = self._metadata
        is_broken = metadata.failure is not None or metadata.consensus.full is not None
        return error.code is ErrorCode.KAFKA_STORAGE_ERROR and is_broken

    async def heartbeats(self, command: RegisterBroker, epoch: int) -> None:
        """Show the leader that this node lives, until it stops."""
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            if self.is_retiring:
                return  # The leader must not take it for one that is back.
            body = msgspec.json.encode(_Heartbeat(command.node_id, epoch))
            try:
                await self._beat(body)
            except KafkaError as error:
                if error.code in (
                    ErrorCode.STALE_BROKER_EPOCH,
                    ErrorCode.BROKER_ID_NOT_REGISTERED,
                ):
                    with contextlib.suppress(KafkaError):  # The next one finds out again.
                        epoch = await self.register(command)
            except (ConnectionError, TimeoutError):
                pass  # The next one may find a leader.

    async def _beat(self, body: bytes) -> None:
        metadata = self._metadata
        if metadata.is_leading:
            self.on_heartbeat(body)
            return
        leader_id = metadata.consensus.node.leader_id
        if leader_id is not None:
            await metadata.call(leader_id, HEARTBEAT, body, HEARTBEAT_S)

    # As the leader.

    def on_heartbeat(self, body: bytes) -> bytes:
        """A broker lives; one that was taken for dead comes back."""
        liveness = self._lead()
        if liveness is None:
            raise KafkaError(ErrorCode.NOT_CONTROLLER)
        heartbeat = msgspec.json.decode(body, type=_Heartbeat)
        liveness.heartbeat(heartbeat.node_id, heartbeat.broker_epoch, self._now_ms())
        command = unfence(self._metadata.image, heartbeat.node_id)
        if command is not None:
            _forget(self._metadata.submit(command))
        return b""

    def connected(self, identity: Identity) -> None:
        """A process has connected."""
        liveness = self._lead()
        if liveness is not None:
            liveness.connection_made(identity.node_id, identity.incarnation_id, self._now_ms())

    def lost(self, identity: Identity) -> None:
        """A connection to a process has closed."""
        liveness = self._lead()
        if liveness is not None:
            liveness.connection_lost(identity.node_id, identity.incarnation_id, self._now_ms())

    def _lead(self) -> Liveness | None:
        """The sessions of this term, if this node leads it."""
        metadata = self._metadata
        if not metadata.is_leading:
            self._liveness = None
            return None
        now_ms = self._now_ms()
        is_fresh = self._liveness is None or self._term != metadata.term
        if is_fresh:
            self._liveness, self._term = Liveness(), metadata.term
        liveness = self._liveness
        assert liveness is not None
        liveness.follow(metadata.image, now_ms)
        for broker in metadata.image.brokers.values() if is_fresh else ():
            # Who has died with the leader before, or as it, has no connection to lose any more.
            if not self._is_connected(broker.node_id):
                liveness.connection_lost(broker.node_id, broker.incarnation_id, now_ms)
        return liveness

    async def watch(self) -> None:
        """Fence whoever is silent for too long, for ever."""
        while True:
            await asyncio.sleep(WATCH_S)
            liveness = self._lead()
            for node_id in liveness.due(self._now_ms()) if liveness is not None else ():
                command = fence(self._metadata.image, node_id)
                if command is not None and node_id != self._metadata.controller_id:
                    logger.warning("broker is gone", extra={"broker": node_id})
                    _forget(self._metadata.submit(command))


def _forget(reply: "asyncio.Future[object]") -> None:
    """Nobody waits for this; a refusal is no news either."""
    reply.add_done_callback(lambda done: None if done.cancelled() else done.exception())
