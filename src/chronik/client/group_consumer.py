"""Reads topics as a member of a consumer group (KIP-848): the broker assigns the partitions.

A task sends heartbeats; each answer may bring a new assignment. What is taken away is committed
and given back first, what is given begins where the group last committed. `poll` returns records
of the partitions that are ours, `done` says how far they are handled, and `commit` tells the group.

    async with GroupConsumer(cluster, "billing", ["orders"]) as consumer:
        async for partition, record in consumer:
            ...  # Done once the next one is asked for.

Leaving the block commits what is done and leaves the group. A consumer that dies instead
leaves its partitions to the others after the session timeout, and what it had not committed is
read again: at least once.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from chronik.client.cluster import Cluster, check
from chronik.client.consumer import Chunk, Consumer
from chronik.client.coordinators import Coordinators, KeyType
from chronik.client.link import ConnectionFailed
from chronik.client.offsets import EARLIEST, list_offsets
from chronik.model import TopicPartition
from chronik.protocol.coordinator_apis import (
    CONSUMER_GROUP_HEARTBEAT,
    OFFSET_COMMIT,
    OFFSET_FETCH,
)
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatTopicPartitions,
)
from chronik.protocol.messages.offset_commits import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from chronik.protocol.records import Record

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
REBALANCE_TIMEOUT_MS: Final = 60_000  # how long the group waits for us to give partitions back
LAST_VERSION_WITH_NAMES: Final = 9  # of OffsetCommit and OffsetFetch
_LOST: Final = (
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.GROUP_ID_NOT_FOUND,
)


class GroupConsumer:
    """One member of a consumer group."""

    def __init__(
        self,
        cluster: Cluster,
        group_id: str,
        topics: Sequence[str],
        *,
        reset: int = EARLIEST,
        read_committed: bool = False,
    ) -> None:
        """`reset` is the ListOffsets timestamp to begin at where nothing was committed."""
        self.group_id = group_id
        self.member_id = str(uuid.uuid4())
        self._cluster = cluster
        self._coordinators = Coordinators(cluster)
        self._topics = list(topics)
        self._reset = reset
        self._consumer = Consumer(cluster, {}, reset=reset, read_committed=read_committed)
        self._epoch = JOIN_EPOCH
        self._owned: set[TopicPartition] = set()
        self._committed: dict[TopicPartition, int] = {}  # or where it began
        self._returned: dict[TopicPartition, int] = {}  # the offset after the last record
        self._done: dict[TopicPartition, int] = {}
        self._progress = (self._returned, self._done)
        self._topic_ids: dict[str, bytes] = {}
        self._lock = asyncio.Lock()  # a commit and a change of assignment do not mix
        self._changed = asyncio.Event()
        self._heartbeats: asyncio.Task[None] | None = None
        self._failure: KafkaError | ConnectionFailed | None = None

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that are ours now."""
        return frozenset(self._owned)

    async def __aenter__(self) -> Self:
        interval_s = await self._heartbeat()
        self._heartbeats = asyncio.create_task(
            self._beat(interval_s), name=f"heartbeats-{self.group_id}"
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._heartbeats is not None:
            self._heartbeats.cancel()
            await asyncio.gather(self._heartbeats, return_exceptions=True)
        with suppress(KafkaError, ConnectionFailed):
            if error is None or isinstance(error, asyncio.CancelledError):
                await self.commit()
            await self._send(LEAVE_EPOCH)
        await self._consumer.close()

    async def __aiter__(self) -> AsyncIterator[tuple[TopicPartition, Record]]:
        while True:
            for chunk in await self.poll():
                for record in chunk.records:
                    yield chunk.partition, record
                    self.done(chunk.partition, record.offset + 1)

    async def poll(self) -> list[Chunk]:
        """The next records; waits until there are some. It may be cancelled."""
        while True:
            if self._failure is not None:
                raise self._failure
            if not self._consumer.positions:
                self._changed.clear()
                await self._changed.wait()
                continue
            # A new assignment is noticed when the fetch under way ends, after half a second.
            chunks = [each for each in await self._consumer.poll() if each.partition in self._owned]
            for chunk in chunks:
                self._returned[chunk.partition] = chunk.records[-1].offset + 1
            if chunks:
                return chunks

    # Offsets.

    def done(self, partition: TopicPartition, next_offset: int) -> None:
        """Everything below this offset is handled."""
        if partition in self._owned:
            self._done[partition] = next_offset

    async def commit(self) -> bool:
        """Commit what is done; False if the group went on without us, and others will read it.

        We then join again, with the next heartbeat.
        """
        async with self._lock:
            try:
                await self._commit(self._owned)
            except KafkaError as error:
                if error.code not in _LOST:
                    raise
                self._drop_all()
                return False
            return True

    def _to_commit(self, partitions: set[TopicPartition]) -> dict[TopicPartition, int]:
        """Where the group would go on: past markers and gaps too, if all before them is done."""
        offsets = {}
        for each in partitions & self._consumer.positions.keys():
            offset = self._done.get(each, self._committed[each])
            if offset == self._returned.get(each, offset):
                offset = self._consumer.positions[each]
            if offset != self._committed[each]:
                offsets[each] = offset
        return offsets

    async def _commit(self, partitions: set[TopicPartition]) -> None:
        moved = self._to_commit(partitions)
        if not moved:
            return
        by_topic: dict[str, list[OffsetCommitRequestPartition]] = {}
        for (name, index), offset in moved.items():
            wanted = OffsetCommitRequestPartition(
                partition_index=index, committed_offset=offset, committed_metadata=""
            )
            by_topic.setdefault(name, []).append(wanted)
        request = OffsetCommitRequest(
            group_id=self.group_id,
            generation_id_or_member_epoch=self._epoch,
            member_id=self.member_id,
            topics=[OffsetCommitRequestTopic(name=k, partitions=v) for k, v in by_topic.items()],
        )
        response: OffsetCommitResponse = await self._coordinators.ask(
            KeyType.GROUP,
            self.group_id,
            request,
            OFFSET_COMMIT,
            lambda answer: answer.topics[0].partitions[0].error_code,
            version_max=LAST_VERSION_WITH_NAMES,
        )
        for topic in response.topics:
            for each in topic.partitions:
                place = TopicPartition(topic.name, each.partition_index)
                check(each.error_code, f"commit of {place} in group {self.group_id}")
                self._committed[place] = moved[place]

    async def _starts(self, partitions: set[TopicPartition]) -> dict[TopicPartition, int]:
        """Where the group goes on in these partitions."""
        by_topic: dict[str, list[int]] = {}
        for name, index in sorted(partitions):
            by_topic.setdefault(name, []).append(index)
        topics = [
            OffsetFetchRequestTopic(name=name, partition_indexes=indexes)
            for name, indexes in by_topic.items()
        ]
        wanted = OffsetFetchRequestGroup(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=self._epoch,
            topics=topics,
        )
        request = OffsetFetchRequest(
            group_id=self.group_id, topics=topics, groups=[wanted], require_stable=True
        )
        unstable = frozenset({ErrorCode.UNSTABLE_OFFSET_COMMIT})
        starts = await self._cluster.retry(lambda: self._fetch_offsets(request), codes=unstable)
        missing = {each for each, offset in starts.items() if offset < 0}
        if missing:
            starts |= await list_offsets(self._cluster, dict.fromkeys(missing, self._reset))
        return starts

    async def _fetch_offsets(self, request: OffsetFetchRequest) -> dict[TopicPartition, int]:
        response: OffsetFetchResponse = await self._coordinators.ask(
            KeyType.GROUP,
            self.group_id,
            request,
            OFFSET_FETCH,
            lambda answer: answer.groups[0].error_code,
            version_max=LAST_VERSION_WITH_NAMES,
        )
        (group,) = response.groups
        check(group.error_code, f"offsets of group {self.group_id}")
        starts = {}
        for topic in group.topics:
            for each in topic.partitions:
                place = TopicPartition(topic.name, each.partition_index)
                check(each.error_code, f"offset of {place} in group {self.group_id}")
                starts[place] = each.committed_offset
        return starts

    # Heartbeats.

    async def _beat(self, interval_s: float) -> None:
        """Heartbeat for as long as we are a member; what cannot be mended ends the polls."""
        try:
            while True:
                await asyncio.sleep(interval_s)
                interval_s = await self._heartbeat()
        except (KafkaError, ConnectionFailed) as error:
            self._failure = error
            self._consumer.fail(error)
            self._changed.set()

    async def _heartbeat(self) -> float:
        """One heartbeat, and what follows from its answer; the seconds until the next."""
        response = await self._send(self._epoch)
        if response.error_code in _LOST:
            self._drop_all()
            response = await self._send(JOIN_EPOCH)
        about = f"group {self.group_id}"
        check(response.error_code, about, response.error_message)
        self.member_id = response.member_id or self.member_id
        self._epoch = response.member_epoch
        if response.assignment is not None:
            given = await self._named(response.assignment.topic_partitions)
            if given != self._owned:
                await self._reassign(given)
                # The broker hands on what we have given back once it hears of it.
                return 0.0
        return response.heartbeat_interval_ms / 1000

    async def _send(self, epoch: int) -> ConsumerGroupHeartbeatResponse:
        """A heartbeat with everything in it: only such a one is always told the assignment.

        A change is told once otherwise, and an answer that got lost would be the end of it.
        """
        owned: dict[str, list[int]] = {}
        for name, index in sorted(self._owned):
            owned.setdefault(name, []).append(index)
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=epoch,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            subscribed_topic_names=self._topics,
            topic_partitions=[
                HeartbeatTopicPartitions(topic_id=self._topic_ids[name], partitions=indexes)
                for name, indexes in owned.items()
            ],
        )
        response: ConsumerGroupHeartbeatResponse = await self._coordinators.ask(
            KeyType.GROUP,
            self.group_id,
            request,
            CONSUMER_GROUP_HEARTBEAT,
            lambda answer: answer.error_code,
        )
        return response

    async def _named(self, topics: Sequence[HeartbeatTopicPartitions]) -> set[TopicPartition]:
        """The partitions of an assignment, which has topic ids."""
        ids = {topic.topic_id for topic in topics}
        if not ids <= set(self._topic_ids.values()):
            response = await self._cluster.refresh(self._topics)
            found = response.topics
            self._topic_ids = {each.name: each.topic_id for each in found if each.name}
        names = {topic_id: name for name, topic_id in self._topic_ids.items()}
        return {
            TopicPartition(names[topic.topic_id], index)
            for topic in topics
            if topic.topic_id in names
            for index in topic.partitions
        }

    async def _reassign(self, given: set[TopicPartition]) -> None:
        async with self._lock:
            revoked, added = self._owned - given, given - self._owned
            with suppress(KafkaError):  # The next owner then reads a little again.
                await self._commit(revoked)
            for each in revoked:
                for known in (self._consumer.positions, self._committed, *self._progress):
                    known.pop(each, None)
            starts = await self._starts(added) if added else {}
            self._consumer.positions.update(starts)
            self._committed.update(starts)
            self._owned = given
            self._changed.set()

    def _drop_all(self) -> None:
        """The group goes on without us: nothing of what we had is ours, or can be committed."""
        self._owned = set()
        for known in (self._consumer.positions, self._committed, *self._progress):
            known.clear()
        self._epoch = JOIN_EPOCH
        self._changed.set()
