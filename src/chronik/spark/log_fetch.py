"""Fetches from one partition, across leaders that move, die and come back.

A fetch names the topic by its id where the broker knows ids, so that a topic that was deleted and
created again is never taken for the one whose offsets are read. Older brokers (before Kafka 3.1)
are asked by name, and what their metadata says of the id is looked at anew when reading begins.

A passing failure is tried again for as long as the cluster's timeout. What remains is raised:
`TopicReplaced`, or the KafkaError or ConnectionFailed that says the most.
"""

from typing import Final

from chronik.client.cluster import Cluster, check
from chronik.client.offsets import EARLIEST, LATEST, list_offsets
from chronik.model import TopicPartition
from chronik.protocol.apis import FETCH
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from chronik.protocol.messages.metadata import MetadataResponseTopic
from chronik.protocol.schema import NO_UUID

# One large fetch costs a broker and us less than many small ones; two of them are held at a time.
FETCH_BYTES: Final = 8 * 1024 * 1024
MAX_WAIT_MS: Final = 500  # Kafka's own
LAST_VERSION_WITH_NAMES: Final = 12


class TopicReplaced(Exception):
    """The name now belongs to another topic, or to none."""


class PartitionFetcher:
    """Reads one partition of one incarnation of a topic."""

    def __init__(
        self,
        cluster: Cluster,
        partition: TopicPartition,
        *,
        topic_id: bytes,
        read_committed: bool,
        fetch_bytes: int = FETCH_BYTES,
        max_wait_ms: int = MAX_WAIT_MS,
    ) -> None:
        """A topic id of zeros stands for whichever topic has the name when reading begins."""
        self._cluster = cluster
        self._partition = partition
        self._topic_id = topic_id
        self._seen = topic_id != NO_UUID  # whether the topic has existed
        self._is_there = True
        self._is_fresh = False  # whether metadata was asked for after reading began
        self._read_committed = read_committed
        self._fetch_bytes = fetch_bytes
        self._max_wait_ms = max_wait_ms

    async def fetch(self, offset: int) -> PartitionData:
        """What follows an offset, after a wait if nothing does yet."""

        async def once() -> PartitionData:
            return await self._fetch(offset)

        try:
            return await self._cluster.retry(once, topics=(self._partition.topic,))
        except KafkaError:
            if self._seen and not self._is_there:
                raise TopicReplaced(f"topic {self._partition.topic} was deleted") from None
            raise

    async def bounds(self) -> tuple[int, int]:
        """Where the log begins and ends, whatever is committed of it."""
        first = await list_offsets(self._cluster, {self._partition: EARLIEST})
        last = await list_offsets(self._cluster, {self._partition: LATEST})
        return first[self._partition], last[self._partition]

    async def _fetch(self, offset: int) -> PartitionData:
        topic = await self._topic()
        self._check_id(topic)
        leader = await self._cluster.partition(self._partition)
        request = self._request(offset, leader.leader_epoch)
        link = await self._cluster.link(leader.leader_id)
        if not self._is_fresh and link.version(FETCH) <= LAST_VERSION_WITH_NAMES:
            self._is_fresh = True
            self._cluster.forget((self._partition.topic,))
            return await self._fetch(offset)
        response: FetchResponse = await link.send(
            request,
            FETCH,
            timeout_s=self._cluster.timeout_s + self._max_wait_ms / 1000,
            # Brokers without topic ids cannot be asked in a version that names topics by them.
            version_max=LAST_VERSION_WITH_NAMES if self._topic_id == NO_UUID else None,
        )
        check(response.error_code, f"fetch from {self._partition}")
        found = [data for answer in response.responses for data in answer.partitions]
        if not found:  # A broker that throttles us says nothing about the partition.
            raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, f"fetch from {self._partition}")
        check(found[0].error_code, f"{self._partition} at offset {offset}")
        return found[0]

    async def _topic(self) -> MetadataResponseTopic:
        try:
            topic = await self._cluster.topic(self._partition.topic)
        except KafkaError as error:
            self._is_there = error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            raise
        self._is_there = True
        return topic

    def _check_id(self, topic: MetadataResponseTopic) -> None:
        if self._topic_id == NO_UUID:
            self._topic_id = topic.topic_id
        elif topic.topic_id not in (self._topic_id, NO_UUID):
            message = f"topic {topic.name} was deleted and created again"
            raise TopicReplaced(message)
        self._seen = True

    def _request(self, offset: int, leader_epoch: int) -> FetchRequest:
        wanted = FetchPartition(
            partition=self._partition.partition,
            current_leader_epoch=leader_epoch,
            fetch_offset=offset,
            partition_max_bytes=self._fetch_bytes,
        )
        topic = FetchTopic(
            topic=self._partition.topic, topic_id=self._topic_id, partitions=[wanted]
        )
        return FetchRequest(
            max_wait_ms=self._max_wait_ms,
            min_bytes=1,
            max_bytes=self._fetch_bytes,
            isolation_level=int(self._read_committed),
            topics=[topic],
        )
