"""Writes the markers that end transactions, until every partition has them.

A coordinator's decision is final once it is committed; its markers may take as long as they must.
A partition that is gone, or that has gone on with a later epoch, needs none. Any other failure is
tried again, more and more slowly.

Like `runtime` it awaits: loading a partition, and the commit of a marker.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple

import msgspec

from chronik.clock import Clock
from chronik.coordinator.committing import CommitWaiter
from chronik.coordinator.effects import ProducerStamp
from chronik.coordinator.internal_topics import TRANSACTION_STATE
from chronik.coordinator.pending import Pending
from chronik.coordinator.sharding import partition_of
from chronik.coordinator.transactions.shard import WriteMarkers
from chronik.metadata.records import NO_LEADER
from chronik.metadata.runtime import MetadataRuntime
from chronik.model import TopicPartition
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.replication.partition import Partition
from chronik.replication.replicas import Replicas

logger = logging.getLogger(__name__)

MARKER_CALL: Final = "marker"
REMOTE_TIMEOUT_S: Final = 5.0  # then another try is due: the leader may have changed
RETRY_FIRST_S: Final = 0.1
RETRY_MOST_S: Final = 5.0  # a disk that was full may have room again
NOTHING_TO_END: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_PRODUCER_EPOCH)


class Marker(NamedTuple):
    """The end of a producer's transaction, as its coordinator of that epoch decided it."""

    stamp: ProducerStamp
    committed: bool
    coordinator_epoch: int
    transaction_version: int


class MarkerWriter:
    """Puts markers into the partitions of this node."""

    def __init__(
        self,
        *,
        metadata: MetadataRuntime,
        replicas: Replicas,
        clock: Clock,
        on_written: Callable[[TopicPartition, Marker], None],
        on_done: Callable[[WriteMarkers], None],
    ) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._clock = clock
        self._on_written = on_written
        self._on_done = on_done
        self._tasks: set[asyncio.Task[None]] = set()
        self._latest: dict[str, asyncio.Task[None]] = {}  # by transactional id
        self._is_closed = False

    def start(self, action: WriteMarkers) -> None:
        """Write a transaction's markers, and say so when all are committed."""
        marker = self._marker(action)
        if marker is None or self._is_closed:
            return
        transactional_id = action.transactional_id
        earlier = self._latest.get(transactional_id)
        if earlier is not None:
            # A coordinator that was loaded anew asks again. Were both to go on, the slower one
            # could end what the producer has opened since.
            earlier.cancel()
        task = self._run(self._write_all(action, marker), f"markers-{transactional_id}")
        self._latest[transactional_id] = task
        task.add_done_callback(lambda done: self._ended(transactional_id, done))

    def _ended(self, transactional_id: str, task: "asyncio.Task[None]") -> None:
        if self._latest.get(transactional_id) is task:
            del self._latest[transactional_id]

    def _run(self, work: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _write_all(self, action: WriteMarkers, marker: Marker) -> None:
        left = set(action.partitions)
        delay_s = RETRY_FIRST_S
        while left:
            outcomes = [(each, self.append(each, marker)) for each in sorted(left)]
            for each, outcome in outcomes:
                error_code = await outcome
                if error_code is ErrorCode.TRANSACTION_COORDINATOR_FENCED:
                    logger.warning("fenced", extra={"transaction": action.transactional_id})
                    return  # A later coordinator ends this transaction.
                if error_code is ErrorCode.NONE or error_code in NOTHING_TO_END:
                    left.discard(each)
                else:
                    extra = {"partition": str(each), "error": error_code.name}
                    logger.warning("a marker could not be written", extra=extra)
            if left:
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, RETRY_MOST_S)
        self._on_done(action)

    def _marker(self, action: WriteMarkers) -> Marker | None:
        topic = self._metadata.image.topics.get(TRANSACTION_STATE)
        if topic is None:
            return None  # Deleted in this very turn: nobody knows of the transaction any more.
        index = partition_of(action.transactional_id, len(topic.partitions))
        return Marker(
            action.stamp,
            action.committed,
            topic.partitions[index].leader_epoch,
            action.transaction_version,
        )

    def append(self, where: TopicPartition, marker: Marker) -> Pending:
        """Append a marker to one partition; resolved with an error code once it is committed."""
        reply = Pending()
        placed = self._metadata.image.partition(*where)
        if placed is not None and placed.leader not in (self._metadata.node_id, NO_LEADER):
            self._run(self._append_remotely(placed.leader, where, marker, reply), f"marker-{where}")
            return reply
        try:
            topic = self._metadata.image.topics.get(where.topic)
            partition = self._replicas.find(topic, where.partition)
        except KafkaError as error:
            reply.resolve(error.code)
            return reply
        if partition.is_loaded:
            self._append(partition, where, marker, reply)
        else:
            self._run(self._load_then_append(partition, where, marker, reply), f"marker-{where}")
        return reply

    async def _append_remotely(
        self, leader_id: int, where: TopicPartition, marker: Marker, reply: Pending
    ) -> None:
        body = msgspec.json.encode((where, marker))
        try:
            answer = await self._metadata.call(leader_id, MARKER_CALL, body, REMOTE_TIMEOUT_S)
        except (KafkaError, ConnectionError, TimeoutError):
            reply.resolve(ErrorCode.REQUEST_TIMED_OUT)  # It is tried again, there or elsewhere.
        else:
            reply.resolve(ErrorCode(int(answer)))

    async def on_call(self, body: bytes) -> bytes:
        """Another node's coordinator wants a marker in a partition that this one leads."""
        where, marker = msgspec.json.decode(body, type=tuple[TopicPartition, Marker])
        placed = self._metadata.image.partition(*where)
        if placed is not None and placed.leader != self._metadata.node_id:
            return b"%d" % ErrorCode.NOT_LEADER_OR_FOLLOWER
        error_code: ErrorCode = await self.append(where, marker)
        return b"%d" % error_code

    async def _load_then_append(
        self, partition: Partition, where: TopicPartition, marker: Marker, reply: Pending
    ) -> None:
        await self._replicas.load(partition)
        self._append(partition, where, marker, reply)

    def _append(
        self, partition: Partition, where: TopicPartition, marker: Marker, reply: Pending
    ) -> None:
        try:
            appended = partition.append_marker(
                marker.stamp.producer_id,
                marker.stamp.producer_epoch,
                commit=marker.committed,
                coordinator_epoch=marker.coordinator_epoch,
                now_ms=self._clock.wall_ms(),
                transaction_version=marker.transaction_version,
            )
        except KafkaError as error:
            reply.resolve(error.code)
            return
        self._on_written(where, marker)
        waiter = CommitWaiter(reply)
        if partition.wait_acknowledged(appended.end_offset, waiter):
            waiter.acknowledged(partition)

    async def close(self) -> None:
        """Stop; the markers that are missing are written after the next start."""
        self._is_closed = True
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
