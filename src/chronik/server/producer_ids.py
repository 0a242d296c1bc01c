"""Hands out producer ids from blocks that the metadata log has given to this node.

A block is logged before its first id is used, and what is left of it at a stop is lost: no id is
ever given twice.
"""

import asyncio
from collections.abc import Callable, Iterator

from chronik.metadata.commands import AllocateProducerIds
from chronik.metadata.runtime import MetadataRuntime


class ProducerIds:
    """The current block, and the lock that keeps requests from asking for two at once."""

    def __init__(
        self, metadata: MetadataRuntime, node_id: int, broker_epoch: Callable[[], int]
    ) -> None:
        self._metadata = metadata
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._block: Iterator[int] = iter(())
        self._lock = asyncio.Lock()

    async def next(self) -> int:
        """A producer id that nobody has."""
        async with self._lock:
            producer_id = next(self._block, None)
            if producer_id is None:
                command = AllocateProducerIds(
                    node_id=self._node_id, broker_epoch=self._broker_epoch()
                )
                self._block = iter(await self._metadata.submit(command))
                producer_id = next(self._block)
            return producer_id
