"""Reads one replica of a partition from its own broker.

Brokers serve consumers from any replica (KIP-392), so a Fetch goes to the broker whose copy is
looked at.
"""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import closing
from typing import Any, Final, TypeVar

from chronik.client.cluster import Cluster, check
from chronik.client.link import ConnectionFailed
from chronik.protocol.apis import FETCH
from chronik.protocol.batch import split
from chronik.protocol.errors import ErrorCode, KafkaError, ProtocolError
from chronik.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from chronik.spark.audit.replicas import Replica, Row, batch_row, unread_row
from chronik.spark.connection import Connection

T = TypeVar("T")

FETCH_BYTES: Final = 8 * 1024 * 1024
MAX_WAIT_MS: Final = 500
PAUSE_S: Final = 0.1

# Errors that pass: a follower learns the high watermark a little later than its leader.
_WAIT_FOR: Final = frozenset(
    {
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    }
)


def fetched_rows(connection: Connection, replica: Replica) -> Iterator[Row]:
    """A row for each batch of a replica, from its broker."""
    with closing(ReplicaReader(connection, replica)) as reader:
        yield from reader.rows()


class ReplicaReader:
    """Reads one replica to its end."""

    def __init__(self, connection: Connection, replica: Replica) -> None:
        self._connection, self._replica = connection, replica
        self._loop = asyncio.new_event_loop()
        self._cluster: Cluster | None = None

    def close(self) -> None:
        """Close the connection."""
        if self._cluster is not None:
            self._run(self._cluster.close())
        self._loop.close()

    def rows(self) -> Iterator[Row]:
        """A row for each batch, and one for what stopped the reading, if anything did."""
        replica = self._replica
        position, is_first = replica.start_offset, True
        try:
            while position < replica.end_offset:
                data = self._run(self._fetch(position))
                if data.log_start_offset > position:
                    position, is_first = data.log_start_offset, True  # Retention came by.
                    continue
                assert data.records is None or isinstance(data.records, bytes | memoryview)
                batches = split(data.records or b"", partial_tail=True)
                if not batches and replica.is_compacted:
                    return  # Nothing is left of what lies before the end.
                for batch in batches:
                    header = batch.header
                    if header.base_offset >= replica.end_offset:
                        return
                    # The log may start, and a fetch begin, in the middle of a batch.
                    expected = header.base_offset if is_first else position
                    is_first = False
                    yield batch_row(batch, expected, is_compacted=replica.is_compacted)
                    position = max(position, header.next_offset)
        except (KafkaError, ConnectionFailed) as error:
            yield unread_row(position, replica, "unreadable", f"it cannot be read: {error}")
        except ProtocolError as error:
            yield unread_row(position, replica, "crc", f"its bytes are no batches: {error}")

    async def _fetch(self, offset: int) -> PartitionData:
        """What follows an offset; KafkaError if nothing does for as long as we are patient."""
        deadline = self._loop.time() + self._connection.timeout_s
        while True:
            data = await self._fetch_once(offset)
            if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                if data.log_start_offset > offset:
                    return data
            elif data.error_code not in _WAIT_FOR:
                check(data.error_code, f"offset {offset}")
            if not data.error_code and (data.records or self._is_over(data)):
                return data
            if self._loop.time() > deadline:
                check(data.error_code, f"offset {offset}")
                raise KafkaError(
                    ErrorCode.OFFSET_NOT_AVAILABLE,
                    f"it ends at {offset}, and the high watermark is {self._replica.end_offset}",
                )
            await asyncio.sleep(PAUSE_S)

    def _is_over(self, data: PartitionData) -> bool:
        return self._replica.is_compacted and data.high_watermark >= self._replica.end_offset

    async def _fetch_once(self, offset: int) -> PartitionData:
        if self._cluster is None:
            cluster = self._connection.cluster()
            await cluster.refresh(())
            self._cluster = cluster
        replica = self._replica
        link = await self._cluster.link(replica.node_id)
        wanted = FetchPartition(
            partition=replica.partition, fetch_offset=offset, partition_max_bytes=FETCH_BYTES
        )
        topic = FetchTopic(topic=replica.topic, topic_id=replica.topic_id, partitions=[wanted])
        request = FetchRequest(
            max_wait_ms=MAX_WAIT_MS, min_bytes=1, max_bytes=FETCH_BYTES, topics=[topic]
        )
        response: FetchResponse = await link.send(
            request, FETCH, timeout_s=self._connection.timeout_s
        )
        check(response.error_code, f"node {replica.node_id}")
        found = [data for answer in response.responses for data in answer.partitions]
        if not found:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"node {replica.node_id} is silent")
        return found[0]

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)
