"""A node that stops takes leave first: others lead what it led, and nobody waits for it.

Leaders move while this node still serves, so that a client is told who leads now and loses no time.
Then leadership of Raft goes to another voter, and the broker's status to offline: it leaves the
in-sync sets, and acks=all does not wait for it any more.
"""

import asyncio
import logging
from typing import Final

from chronik.metadata.brokers import is_last
from chronik.metadata.commands import Command, ResignLeadership, UpdateBrokerStatus
from chronik.metadata.records import BrokerStatus
from chronik.metadata.runtime import MetadataRuntime
from chronik.protocol.errors import KafkaError

logger = logging.getLogger(__name__)

LEAVE_TIMEOUT_S: Final = 5.0  # then it goes without: the others will notice
TRANSFER_TIMEOUT_S: Final = 1.0  # two elections
# For somebody who leads Raft: longer than an election that is under way. If all nodes stop at once,
# the last ones have nobody to take leave of.
LEADER_TIMEOUT_S: Final = 2.0


async def retire(metadata: MetadataRuntime, node_id: int, broker_epoch: int) -> None:
    """Take leave, as far as that is possible in a few seconds."""
    if metadata.failure is not None or is_last(metadata.image, node_id):
        return
    try:
        async with asyncio.timeout(LEAVE_TIMEOUT_S):
            resignation = ResignLeadership(node_id=node_id, broker_epoch=broker_epoch)
            if not await _submit(metadata, resignation):
                return
            await _hand_over(metadata, node_id)
            offline = UpdateBrokerStatus(
                node_id=node_id, broker_epoch=broker_epoch, status=BrokerStatus.OFFLINE
            )
            await _submit(metadata, offline)
    except TimeoutError:
        logger.warning("left without taking leave", extra={"node_id": node_id})


async def _submit(metadata: MetadataRuntime, command: Command) -> bool:
    """Whether it was done."""
    try:
        await metadata.submit(command, LEADER_TIMEOUT_S)
    except KafkaError as error:
        extra = {"command": type(command).__name__, "reason": str(error)}
        logger.warning("not done before the stop", extra=extra)
        return False
    return True


async def _hand_over(metadata: MetadataRuntime, node_id: int) -> None:
    """Let another voter lead Raft, if this node does."""
    consensus = metadata.consensus
    heard = consensus.heard() if metadata.is_leading else frozenset()
    voters = sorted(consensus.node.members.current.voters & heard - {node_id})
    if not voters:
        return
    if consensus.node.transferring_to is None:  # Else somebody has asked for it already.
        consensus.transfer(voters[0])
    # The new leader's first entry comes by here, too.
    await metadata.until(lambda: not metadata.is_leading, TRANSFER_TIMEOUT_S)
