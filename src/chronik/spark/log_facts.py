"""What a driver asks the brokers: topics and their ids, offsets, sizes; and a group's progress.

Synchronous, because Spark calls its sources so: our asyncio client runs in a thread of its own,
since a notebook's thread already runs a loop. Only on the driver: tasks use `log_reader`.

Passing trouble (a leader that moves, a node that restarts) is waited out within the connection's
timeout. What stays is one sentence: SourceError where nobody answers or a topic is not there.
"""

import asyncio
import re
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from chronik.client.admin import Admin, Resource
from chronik.client.cluster import Cluster, check
from chronik.client.groups import Groups
from chronik.client.link import ConnectionFailed
from chronik.client.offsets import EARLIEST, LATEST, list_offsets
from chronik.model import TopicPartition
from chronik.protocol.apis import DESCRIBE_LOG_DIRS
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.cluster import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from chronik.protocol.messages.metadata import MetadataResponseTopic
from chronik.spark.connection import Connection
from chronik.spark.errors import SourceError, UnknownTopic

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic as the cluster describes it."""

    name: str
    topic_id: bytes
    partitions: tuple[int, ...]

    @property
    def places(self) -> list[TopicPartition]:
        return [TopicPartition(self.name, partition) for partition in self.partitions]


class LogFacts:
    """Questions to a cluster; used in `with`, or closed by `close`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._cluster: Cluster | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="chronik-log-facts", daemon=True
        )
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections, for good; nothing happens the second time."""
        if self._loop.is_closed():
            return
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            self._run(cluster.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # Topics

    def topics(self, names: Iterable[str]) -> dict[str, Topic]:
        """The topics of these names; SourceError if one of them is not there."""
        wanted = list(names)

        async def ask(cluster: Cluster) -> list[MetadataResponseTopic]:
            return [await _topic(cluster, name) for name in wanted]

        return {topic.name: topic for topic in map(_described, self._ask(ask))}

    def existing(self, names: Iterable[str]) -> dict[str, Topic]:
        """Those of the topics that are there."""
        wanted = list(names)

        async def ask(cluster: Cluster) -> list[MetadataResponseTopic]:
            cluster.forget(wanted)
            answer = await cluster.retry(lambda: cluster.refresh(wanted))
            return [topic for topic in answer.topics if not topic.error_code]

        return {topic.name: topic for topic in map(_described, self._ask(ask))}

    def existing_in_time(self, names: Iterable[str]) -> dict[str, Topic]:
        """Those of the topics that are there or appear within the time that a creation takes."""
        wanted = list(names)

        async def ask(cluster: Cluster) -> list[MetadataResponseTopic]:
            # All at once: each that is not there takes as long as our patience.
            answers = await asyncio.gather(
                *(_topic(cluster, name) for name in wanted), return_exceptions=True
            )
            found = [each for each in answers if not isinstance(each, UnknownTopic)]
            for each in found:
                if isinstance(each, BaseException):
                    raise each
            return cast(list[MetadataResponseTopic], found)

        return {topic.name: topic for topic in map(_described, self._ask(ask))}

    def matching(self, pattern: str) -> dict[str, Topic]:
        """The topics whose whole name matches, without the cluster's own."""
        wanted = re.compile(pattern)

        async def ask(cluster: Cluster) -> list[MetadataResponseTopic]:
            answer = await cluster.retry(lambda: cluster.refresh(None))
            return [
                topic
                for topic in answer.topics
                if not topic.error_code
                and not topic.is_internal
                and wanted.fullmatch(topic.name or "")
            ]

        return {topic.name: topic for topic in map(_described, self._ask(ask))}

    def replicas(self, names: Iterable[str]) -> dict[TopicPartition, tuple[int, ...]]:
        """The nodes that hold a copy of each partition of these topics."""
        wanted = list(names)

        async def ask(cluster: Cluster) -> list[MetadataResponseTopic]:
            return [await _topic(cluster, name) for name in wanted]

        return {
            TopicPartition(topic.name or "", each.partition_index): tuple(each.replica_nodes)
            for topic in self._ask(ask)
            for each in topic.partitions
        }

    def topic_settings(self, name: str) -> dict[str, str]:
        """The settings of a topic, those that have a value."""

        async def ask(cluster: Cluster) -> dict[str, str]:
            found = await Admin(cluster).describe_configs(Resource.TOPIC, name)
            return {each.name: each.value for each in found if each.value is not None}

        return self._ask(ask)

    # Offsets

    def earliest(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The log start offset of each partition."""
        return self.offsets(dict.fromkeys(places, EARLIEST))

    def latest(
        self, places: Iterable[TopicPartition], *, read_committed: bool = True
    ) -> dict[TopicPartition, int]:
        """The end of each partition for a reader of that kind."""
        return self.offsets(dict.fromkeys(places, LATEST), read_committed=read_committed)

    def offsets(
        self, timestamps_ms: Mapping[TopicPartition, int], *, read_committed: bool = True
    ) -> dict[TopicPartition, int]:
        """The first offset at or after each time, -1 where there is none; EARLIEST, LATEST too."""
        if not timestamps_ms:
            return {}

        async def ask(cluster: Cluster) -> dict[TopicPartition, int]:
            return await list_offsets(cluster, timestamps_ms, read_committed=read_committed)

        return self._ask(ask)

    # Sizes

    def sizes(self, topics: Iterable[Topic]) -> dict[TopicPartition, int]:
        """The bytes of each partition's log, as its largest replica has it.

        Empty where the brokers will not say: whoever asks does as well as he can without.
        """
        asked = [
            DescribableLogDirTopic(topic=topic.name, partitions=topic.partitions)
            for topic in topics
        ]

        async def ask(cluster: Cluster) -> dict[TopicPartition, int]:
            answers = await asyncio.gather(
                *(_sizes(cluster, node_id, asked) for node_id in cluster.brokers),
                return_exceptions=True,  # A node that is down has no replica that others lack.
            )
            sizes: dict[TopicPartition, int] = {}
            for answer in answers:
                if isinstance(answer, KafkaError | ConnectionFailed):
                    continue
                if isinstance(answer, BaseException):
                    raise answer
                for place, size in answer.items():
                    sizes[place] = max(size, sizes.get(place, 0))
            return sizes

        return self._ask(ask) if asked else {}

    # Groups

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets to a group; SourceError if it has members of its own."""

        async def ask(cluster: Cluster) -> None:
            await Groups(cluster).commit(group_id, offsets)

        self._ask(ask)

    def committed(self, group_id: str) -> dict[TopicPartition, int]:
        """The committed offsets of a group."""

        async def ask(cluster: Cluster) -> dict[TopicPartition, int]:
            found = await Groups(cluster).committed(group_id)
            return {place: offset for place, (offset, _) in found.items()}

        return self._ask(ask)

    def _ask(self, work: Callable[[Cluster], Awaitable[T]]) -> T:
        async def connected() -> T:
            if self._cluster is None:
                cluster = self._connection.cluster()
                await cluster.refresh(())
                self._cluster = cluster
            return await work(self._cluster)

        try:
            return self._run(connected())
        except ConnectionFailed as error:
            raise SourceError(
                f"no broker of {self._connection.bootstrap} answers ({error}): check"
                " kafka.bootstrap.servers, kafka.security.protocol and that the cluster runs"
            ) from None
        except KafkaError as error:
            raise SourceError(str(error)) from None

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # The caller was interrupted: nobody waits for the answer.
            raise


async def _topic(cluster: Cluster, name: str) -> MetadataResponseTopic:
    async def once() -> MetadataResponseTopic:
        cluster.forget((name,))
        return await cluster.topic(name)

    try:
        return await cluster.retry(once)
    except KafkaError as error:
        if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise UnknownTopic(
                f"there is no topic {name}: check its name, or create it first"
            ) from None
        raise


async def _sizes(
    cluster: Cluster, node_id: int, asked: list[DescribableLogDirTopic]
) -> dict[TopicPartition, int]:
    link = await cluster.link(node_id)
    response: DescribeLogDirsResponse = await link.send(
        DescribeLogDirsRequest(topics=asked), DESCRIBE_LOG_DIRS, timeout_s=cluster.timeout_s
    )
    check(response.error_code, f"disks of node {node_id}")
    return {
        TopicPartition(topic.name, each.partition_index): each.partition_size
        for directory in response.results
        if not directory.error_code
        for topic in directory.topics
        for each in topic.partitions
        if not each.is_future_key
    }


def _described(topic: MetadataResponseTopic) -> Topic:
    return Topic(
        name=topic.name or "",
        topic_id=bytes(topic.topic_id),
        partitions=tuple(sorted(each.partition_index for each in topic.partitions)),
    )
