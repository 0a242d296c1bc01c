"""Sees to it that what a transaction has written is committed, before its own commit is decided.

A partition acknowledges a transaction's batches when its in-sync replicas have them in memory. A
seal is the leader's word that all of its log is committed by now: on disk, with durability fsync.

Invariant: a leader seals only for a coordinator that knows it by its leader epoch. So that one's
image shows every broker that came back without its memory before this leader was chosen, and
`shard` refuses to commit what such a broker may have cost.

Like `runtime` it awaits.
"""

import asyncio
from typing import Final

import msgspec

from chronik.coordinator.committing import sealed
from chronik.coordinator.transactions.shard import Partitions
from chronik.metadata.records import NO_LEADER
from chronik.metadata.runtime import MetadataRuntime
from chronik.model import TopicPartition
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.replication.replicas import Replicas

SEAL_CALL: Final = "seal"
SEAL_S: Final = 2.0  # a leader is replaced within one; the client asks again after that
RETRY_S: Final = 0.05
# Whoever deletes a topic gives up what a transaction has in it.
SEALED: Final = (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


class Sealing:
    """Asks the leaders of partitions, and answers for those that this node leads."""

    def __init__(self, metadata: MetadataRuntime, replicas: Replicas) -> None:
        self._metadata = metadata
        self._replicas = replicas

    async def seal(self, partitions: Partitions) -> bool:
        """Whether all that these partitions have now is committed; False if it takes too long."""
        try:
            async with asyncio.timeout(SEAL_S), asyncio.TaskGroup() as tasks:
                for where in sorted(partitions):
                    tasks.create_task(self._seal(where), name=f"seal-{where}")
        except TimeoutError:
            return False
        return True

    async def _seal(self, where: TopicPartition) -> None:
        while True:
            if await self._asked(where) in SEALED:
                return
            await asyncio.sleep(RETRY_S)

    async def _asked(self, where: TopicPartition) -> ErrorCode:
        placed = self._metadata.image.partition(*where)
        if placed is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if placed.leader == self._metadata.node_id:
            return await self._sealed(where, placed.leader_epoch)
        if placed.leader == NO_LEADER:
            return ErrorCode.LEADER_NOT_AVAILABLE
        body = msgspec.json.encode((where, placed.leader_epoch))
        try:
            answer = await self._metadata.call(placed.leader, SEAL_CALL, body, SEAL_S)
        except (KafkaError, ConnectionError, TimeoutError):
            return ErrorCode.REQUEST_TIMED_OUT
        return ErrorCode(int(answer))

    async def on_call(self, body: bytes) -> bytes:
        """Another node's coordinator asks about a partition that this one leads."""
        where, leader_epoch = msgspec.json.decode(body, type=tuple[TopicPartition, int])
        return b"%d" % await self._sealed(where, leader_epoch)

    async def _sealed(self, where: TopicPartition, leader_epoch: int) -> ErrorCode:
        try:
            topic = self._metadata.image.topics.get(where.topic)
            partition = self._replicas.find(topic, where.partition)
            await self._replicas.load(partition)
        except KafkaError as error:
            return error.code
        if partition.failure is not None:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if partition.in_sync is None or partition.leader_epoch != leader_epoch:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return await sealed(partition)
