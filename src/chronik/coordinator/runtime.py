"""Drives the machines of one coordinator's topic: replay, decide, log, answer.

Each partition of the topic that this node leads is a shard: one machine, whose state is the replay
of that partition. A request is given to the machine of its key's shard at once; what the machine
wants logged goes through the partition's ordinary append, and its answers leave once everything
that was appended so far is committed. So a machine needs one state only: it may look at what is
in flight, because nobody is told of it before it is safe.

Invariant: a shard whose append failed is lost, and begins anew from its log; one whose log cannot
be read stays lost, and never passes for an empty one.

With `transactions.marker_writer` and `transactions.sealing` this is the only file of the package
that awaits.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Generic, TypeVar

from chronik.clock import Clock, SteadyClock
from chronik.coordinator.committing import sealed
from chronik.coordinator.effects import Effects, ProducerStamp, Token
from chronik.coordinator.internal_topics import creation_of
from chronik.coordinator.pending import Pending
from chronik.coordinator.shard import M, RecordFormat, Refuse, Shard, ShardState
from chronik.coordinator.sharding import partition_of
from chronik.metadata.image import Image, Topic, id_bytes
from chronik.metadata.records import PartitionRecord, TopicRecord, TopicRemovedRecord
from chronik.metadata.runtime import MetadataRuntime
from chronik.protocol.batch import Batch, split
from chronik.protocol.control import read_marker
from chronik.protocol.errors import ErrorCode, KafkaError, ProtocolError
from chronik.protocol.records import iter_records
from chronik.replication.partition import Partition
from chronik.replication.replicas import Replicas
from chronik.storage.disk import Disk

logger = logging.getLogger(__name__)

T = TypeVar("T")

LOAD_BYTES: Final = 1024 * 1024  # read at once
LOAD_SLICE_RECORDS: Final = 500  # replayed in one turn of the loop: about 10 ms
LOADS_AT_ONCE: Final = 4  # enough to keep the disk busy; more would only hold memory
RELOAD_DELAY_S: Final = 0.5  # a disk that is full now is full in the next turn of the loop, too


class CoordinatorRuntime(Generic[M]):
    """The shards of one coordinator's topic that are on this node."""

    def __init__(
        self,
        *,
        topic_name: str,
        new_machine: Callable[[], M],
        record_format: RecordFormat,
        metadata: MetadataRuntime,
        replicas: Replicas,
        disk: Disk,
        clock: Clock,
        on_action: Callable[[Any], None],
    ) -> None:
        self.topic_name = topic_name
        self.format = record_format
        self.on_action = on_action
        self._new_machine = new_machine
        self._metadata = metadata
        self._replicas = replicas
        self._disk = disk
        self._clock = clock
        self._steady = SteadyClock(clock)
        self._shards: dict[int, Shard[M]] = {}
        self._loads: set[asyncio.Task[None]] = set()
        self._load_slots = asyncio.Semaphore(LOADS_AT_ONCE)
        self._to_flush: dict[Shard[M], None] = {}
        self._changed_topics: set[str] = set()
        self._creation: asyncio.Future[Any] | None = None
        self._is_started = False
        self._is_closed = False

    def now_ms(self) -> int:
        return self._steady.now_ms()

    def wall_ms(self) -> int:
        return self._clock.wall_ms()

    def new_machine(self) -> M:
        machine = self._new_machine()
        machine.image = self._metadata.image
        return machine

    # The topic.

    @property
    def topic(self) -> Topic | None:
        return self._metadata.image.topics.get(self.topic_name)

    async def ensure_topic(self) -> Topic:
        """The coordinator's topic, created if this is its first use."""
        topic = self.topic
        if topic is not None:
            return topic
        if self._creation is None or self._creation.done():
            image = self._metadata.image
            broker_count = max(len(image.placeable_brokers), 1)
            creation = creation_of(
                self.topic_name, self._metadata.broker_config(image), broker_count
            )
            self._creation = self._metadata.submit(creation)
        try:
            await asyncio.shield(self._creation)
        except KafkaError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                # Producers take any other code for final, whatever was wrong for a moment.
                raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message) from error
        topic = self.topic
        if topic is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return topic

    def partition_of(self, key: str, topic: Topic) -> int:
        """The partition that has a key."""
        return partition_of(key, len(topic.partitions))

    # Requests.

    def ask(self, key: str, decide: Callable[[M, Token, int], Effects], refuse: Refuse) -> Pending:
        """Give a request to its key's machine; the answer comes once it is committed."""
        reply = Pending()
        try:
            shard = self._shard_of(key)
        except KafkaError as error:
            reply.resolve(refuse(error.code))
            return reply
        shard.ask(decide, reply, refuse)
        return reply

    def _shard_of(self, key: str) -> Shard[M]:
        topic = self.topic
        if topic is None or self._is_closed:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        if not self._is_started:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        index = partition_of(key, len(topic.partitions))
        if topic.partitions[index].leader != self._metadata.node_id:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        shard = self._shards.get(index) or self._open(topic, index)
        if shard.state is ShardState.LOADING:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        if shard.state is ShardState.LOST:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return shard

    def tell(self, key: str, decide: Callable[[M, int], Effects]) -> None:
        """Give a machine news that nobody waits for an answer to."""
        try:
            shard = self._shard_of(key)
        except KafkaError:
            return  # A shard that loads finds out by itself.
        shard.carry_out(decide(shard.machine, self.now_ms()))

    async def survey(self, read: Callable[[M], T]) -> tuple[list[T], bool]:
        """What each machine says, once it is committed, and whether some are still loading."""
        shards = [shard for shard in self._shards.values() if shard.state is ShardState.ACTIVE]
        found = [read(shard.machine) for shard in shards]
        for shard in shards:
            await shard.settled()
        is_loading = any(shard.state is ShardState.LOADING for shard in self._shards.values())
        return found, is_loading

    def end_transaction(self, index: int, producer: ProducerStamp, committed: bool) -> None:
        """A marker was appended to a partition of the topic."""
        shard = self._shards.get(index)
        if shard is not None and shard.state is ShardState.ACTIVE:
            shard.machine.end_transaction(producer, committed)

    # Gathering the records of a turn.

    def is_flush_due(self, shard: Shard[M]) -> bool:
        return shard in self._to_flush

    def flush_soon(self, shard: Shard[M]) -> None:
        """Append what the shard has gathered at the end of this turn of the loop."""
        if not self._to_flush:
            asyncio.get_running_loop().call_soon(self._flush_all)
        self._to_flush[shard] = None

    def _flush_all(self) -> None:
        shards, self._to_flush = self._to_flush, {}
        for shard in shards:
            shard.flush()

    # Loading.

    def start(self) -> None:
        """Load every shard that has a log."""
        self._is_started = True
        topic = self.topic
        for index in range(len(topic.partitions) if topic is not None else 0):
            assert topic is not None
            is_ours = topic.partitions[index].leader == self._metadata.node_id
            if is_ours and self._has_log(topic, index):
                self._open(topic, index)

    def _open(self, topic: Topic, index: int, delay_s: float = 0) -> Shard[M]:
        partition = self._replicas.find(topic, index)
        shard = self._shards[index] = Shard(self, partition, self.new_machine())
        if partition.is_loaded and not partition.log.end_offset:
            shard.activate(shard.machine)  # Nothing was ever written.
        else:
            task = asyncio.get_running_loop().create_task(
                self._load(shard, delay_s), name=f"load-{partition}"
            )
            self._loads.add(task)
            task.add_done_callback(self._loads.discard)
        return shard

    async def _load(self, shard: Shard[M], delay_s: float) -> None:
        partition = shard.partition
        try:
            await asyncio.sleep(delay_s)
            async with self._load_slots:
                await self._replicas.load(partition)
                _check_usable(partition)  # A log that could not be read looks like an empty one.
                machine = self.new_machine()
                record_count = await self._replay(partition, machine)
        except Exception as error:
            # Whatever the log holds that we cannot read: nobody may go on from half of it.
            reason = str(error)
            if self._shards.get(partition.index) is shard:
                extra = {"partition": str(partition), "error": reason}
                is_known = isinstance(error, KafkaError | ProtocolError)
                logger.error("a coordinator cannot load", extra=extra, exc_info=not is_known)
            shard.lose(reason)
            return
        machine.image = self._metadata.image
        shard.activate(machine)
        extra = {"partition": str(partition), "record_count": str(record_count)}
        logger.info("coordinator loaded", extra=extra)

    async def _replay(self, partition: Partition, machine: M) -> int:
        """Apply the whole log, in slices."""
        offset = partition.log.log_start_offset
        record_count = in_slice = 0
        while offset < partition.log.end_offset:
            at = offset
            data = await self._disk.run(lambda: partition.read(at, LOAD_BYTES, nowait=False))  # noqa: B023
            assert data is not None
            for batch in split(data):
                in_slice += self._replay_batch(machine, batch)
                offset = batch.header.next_offset
                if in_slice >= LOAD_SLICE_RECORDS:
                    record_count += in_slice
                    in_slice = 0
                    await asyncio.sleep(0)
            if not len(data):
                await _committed(partition)  # Appended and not yet durable, when a shard was lost.
        return record_count + in_slice

    def _replay_batch(self, machine: M, batch: Batch) -> int:
        header = batch.header
        producer = None
        if header.is_transactional:
            producer = ProducerStamp(header.producer_id, header.producer_epoch)
        if header.is_control:
            marker = read_marker(batch.data)
            if producer is not None and marker is not None:
                machine.end_transaction(producer, marker.commit)
            return 1
        for stored in iter_records(batch.data):
            if stored.key is not None:
                record = self.format.decode(stored.key, stored.value)
                if record is not None:
                    machine.replay(record, producer)
        return header.record_count

    def lost(self, shard: Shard[M], reason: str, *, reload: bool) -> None:
        """A shard lost its machine: begin anew from the log, if that could be read before."""
        index, partition = shard.partition.index, shard.partition
        if self._is_closed or self._shards.get(index) is not shard:
            return
        if partition.is_deleted:
            del self._shards[index]
        elif partition.failure is None and partition.in_sync is not None and reload:
            topic = self.topic
            if topic is not None:
                self._open(topic, index, RELOAD_DELAY_S)

    # Metadata.

    def on_image(self, old: Image, new: Image, records: Sequence[Any]) -> None:
        """Tell the machines which topics have come, gone or grown, once a turn of the loop."""
        topic = new.topics.get(self.topic_name)
        if topic is not old.topics.get(self.topic_name):
            self._drop_deleted()
            if topic is not None and self._is_started:
                self._roles_changed(topic)
        names = set(_changed_topics(old, new, records))
        if names and not self._changed_topics:
            asyncio.get_running_loop().call_soon(self._topics_changed)
        self._changed_topics |= names

    def _drop_deleted(self) -> None:
        for index, shard in tuple(self._shards.items()):
            if shard.partition.is_deleted:
                del self._shards[index]
                shard.lose("the topic was deleted", ErrorCode.NOT_COORDINATOR)

    def _roles_changed(self, topic: Topic) -> None:
        """Leave shards that another node leads now, and take over those that it led."""
        for record in topic.partitions:
            index = record.partition
            shard = self._shards.get(index)
            is_ours = record.leader == self._metadata.node_id
            if shard is not None and not (is_ours and shard.leader_epoch == record.leader_epoch):
                del self._shards[index]
                reason = "another node leads, or this one in a new epoch"
                shard.lose(reason, ErrorCode.NOT_COORDINATOR)
                shard = None
            if is_ours and shard is None and (record.leader_epoch or self._has_log(topic, index)):
                self._open(topic, index)

    def _has_log(self, topic: Topic, index: int) -> bool:
        partition = self._replicas.find(topic, index)
        return not partition.is_loaded or partition.log.end_offset > 0

    def _topics_changed(self) -> None:
        names, self._changed_topics = frozenset(self._changed_topics), set()
        for shard in tuple(self._shards.values()):
            shard.machine.image = self._metadata.image
            if shard.state is ShardState.ACTIVE:
                shard.carry_out(shard.machine.on_topics_changed(names, self.now_ms()))

    async def close(self) -> None:
        """Answer whoever waits, and stop."""
        self._is_closed = True
        for shard in tuple(self._shards.values()):
            shard.flush()
            shard.lose("the node stops", ErrorCode.NOT_COORDINATOR)
        for task in tuple(self._loads):
            task.cancel()
        await asyncio.gather(*self._loads, return_exceptions=True)


async def _committed(partition: Partition) -> None:
    """Wait until what is in the log is committed, or raise if it never will be."""
    await sealed(partition)
    _check_usable(partition)


def _check_usable(partition: Partition) -> None:
    if partition.failure is not None or partition.is_deleted:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, partition.failure)
    if partition.in_sync is None:
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)


def _changed_topics(old: Image, new: Image, records: Iterable[Any]) -> Iterable[str]:
    for record in records:
        match record:
            case TopicRecord():
                yield record.name
            case TopicRemovedRecord():
                topic = old.topic_by_id(id_bytes(record.topic_id))
                if topic is not None:
                    yield topic.name
            case PartitionRecord():
                # New leaders and in-sync sets are no news here, new partitions are.
                topic = new.topic_by_id(id_bytes(record.topic_id))
                before = old.topic_by_id(id_bytes(record.topic_id))
                count = 0 if before is None else len(before.partitions)
                if topic is not None and len(topic.partitions) != count:
                    yield topic.name
            case _:
                pass
