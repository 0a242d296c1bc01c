"""What the controller does by itself: leaders move back, or away from brokers in maintenance,
leaderless partitions get one, internal topics get the replicas that they should have.

All of it is looked up in the committed image and done by commands that are decided like any other,
so that a controller that has just lost its office does no harm. Whoever is not the controller does
nothing here.
"""

import asyncio
import logging
from collections.abc import Awaitable
from typing import Final

from chronik.coordinator.internal_topics import raised
from chronik.metadata.commands import ElectLeaders, ResignLeadership
from chronik.metadata.elections import allows_unclean, imbalanced, leaderless
from chronik.metadata.image import Image
from chronik.metadata.partitions import after_maintenance
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.server.context import Node

logger = logging.getLogger(__name__)

CHECK_S: Final = 1.0  # a look at ten thousand partitions takes some milliseconds
# Kafka's controller elects as many at once; what is left comes with the next check.
ELECTIONS_MAX: Final = 1_000


class ControllerTasks:
    """Upkeep of the partitions of the whole cluster."""

    def __init__(self, node: Node) -> None:
        self._metadata = node.metadata
        self._unclean_elections = node.unclean_elections
        self._config = node.broker_config
        self._clock = node.clock

    async def run(self) -> None:
        """Look after the partitions while this node is the controller, for ever."""
        seen: Image | None = None
        balanced_at = self._clock.monotonic()
        while True:
            await asyncio.sleep(CHECK_S)
            metadata = self._metadata
            now = self._clock.monotonic()
            if not (metadata.can_propose and metadata.consensus.node.has_committed_in_term):
                seen, balanced_at = None, now  # Who begins to lead first lets others come back.
                continue
            if metadata.image is not seen:
                seen = metadata.image
                await self._guarded("internal topics", self._raise_internal_topics())
                await self._guarded("leaders in maintenance", self._shed_leaders())
                if await self._guarded("unclean elections", self._elect_uncleanly()):
                    seen = None  # Some could not be decided: try again.
            interval_s = self._config().integer("leader.imbalance.check.interval.seconds")
            if now - balanced_at >= interval_s:
                balanced_at = now
                await self._guarded("preferred leaders", self._balance_leaders())

    async def _guarded(self, what: str, work: Awaitable[bool]) -> bool:
        try:
            return await work
        except (KafkaError, ConnectionError, TimeoutError) as error:
            logger.warning("%s stay as they are", what, extra={"reason": str(error)})
            return True

    async def _balance_leaders(self) -> bool:
        if not self._config().flag("auto.leader.rebalance.enable"):
            return False
        partitions = imbalanced(self._metadata.image, ELECTIONS_MAX)
        if partitions:
            count = sum(len(indexes) for _, indexes in partitions)
            logger.info("leaders move to preferred replicas", extra={"partitions": count})
            await self._metadata.submit(ElectLeaders(partitions=partitions))
        return False

    async def _shed_leaders(self) -> bool:
        """A broker in maintenance leads what nobody else could, until somebody can."""
        image = self._metadata.image
        for broker in image.online_brokers:
            if broker.in_maintenance and after_maintenance(image, broker.node_id):
                await self._metadata.submit(
                    ResignLeadership(node_id=broker.node_id, broker_epoch=broker.epoch)
                )
        return False

    async def _elect_uncleanly(self) -> bool:
        """Elect where losses are allowed, or have been accepted; whether some could not be."""
        image = self._metadata.image
        is_allowed = allows_unclean(image, self._config())
        waiting = leaderless(image, is_allowed, ELECTIONS_MAX)
        if not waiting:
            return False
        elected = await self._unclean_elections.elect(waiting)
        return any(each.error_code != ErrorCode.NONE for each in elected)

    async def _raise_internal_topics(self) -> bool:
        command = raised(self._metadata.image, self._config())
        if command is not None:
            count = len(command.reassignments)
            logger.info("internal topics get more replicas", extra={"partitions": count})
            await self._metadata.submit(command)
        return False
