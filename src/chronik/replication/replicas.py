"""All partitions that this node holds, made when they are first used.

The image says which partitions exist; a `Partition` object exists once a request touched it, and
its files are opened once there is something in them. After a restart a partition that has a
directory is recovered on its first use, off the loop, so that starting does not grow with data.

What follows from a metadata change (deletion, settings, leader epochs) is done here from the
records of that change, never by comparing whole images.
"""

import asyncio
import contextlib
import logging
from collections.abc import (
    Callable,
    Collection,
    Container,
    Coroutine,
    Iterable,
    Iterator,
    Sequence,
)
from typing import Any

from chronik.clock import Clock
from chronik.config.effective import BrokerConfig
from chronik.config.settings import Durability
from chronik.metadata.image import BROKER, TOPIC, Image, Topic, id_bytes, id_text
from chronik.metadata.records import (
    ConfigRecord,
    Record,
    TopicRemovedRecord,
)
from chronik.model import TopicPartition
from chronik.protocol.errors import ErrorCode, KafkaError, ProtocolError
from chronik.replication.following import Following
from chronik.replication.high_watermarks import (
    Saved,
    gathered,
    read_high_watermarks,
    write_high_watermarks,
)
from chronik.replication.isr_updates import InSyncUpdates
from chronik.replication.partition import Partition
from chronik.replication.partition_recovery import (
    PRODUCERS_FILE,
    recover_partition,
    recover_producers,
)
from chronik.replication.producers import Producers
from chronik.replication.refusals import Refusals
from chronik.replication.removals import LEFT, Removals
from chronik.replication.roles import RoleUpdates
from chronik.replication.room import Room
from chronik.replication.topic_config import TopicConfig, topic_config
from chronik.storage.commit import GroupCommit
from chronik.storage.disk import Disk
from chronik.storage.errors import CorruptLog, StorageError
from chronik.storage.log import Log

logger = logging.getLogger(__name__)

NAME_LENGTH_MAX = 200  # of a topic's name in its directory's, which may have 255 with the id
DELETED = "deleted-"  # before the id in the directory name of a topic whose files are going
EVERY_TOPIC = ""  # no topic has this name
CLOSED_AT_ONCE = 8  # keeps the disk's threads busy; more would only queue


def topic_directory(data_dir: str, name: str, topic_id: bytes) -> str:
    """Where a topic's partitions lie: its name for people, its id to tell two lives apart."""
    return f"{data_dir}/topics/{name[:NAME_LENGTH_MAX]}.{id_text(topic_id)}"


def deleted_directory(data_dir: str, name: str, topic_id: bytes) -> str:
    """What a topic's directory is renamed to before it is removed."""
    return f"{data_dir}/topics/{name[:NAME_LENGTH_MAX]}.{DELETED}{id_text(topic_id)}"


class Replicas:
    """The partitions of this node."""

    def __init__(
        self,
        *,
        node_id: int,
        disk: Disk,
        data_dir: str,
        durability: Durability,
        commit: GroupCommit,
        clock: Clock,
        broker_config: Callable[[], BrokerConfig],
    ) -> None:
        self._node_id = node_id
        self._disk = disk
        self._data_dir = data_dir
        self._durability = durability
        self._commit = commit
        self._broker_config = broker_config
        self._partitions: dict[bytes, dict[int, Partition]] = {}
        self._by_log: dict[Log, Partition] = {}
        self._roles = RoleUpdates(self._update_roles)
        self._on_disk: dict[bytes, set[int]] = {}
        self._configs: dict[str, TopicConfig] = {}
        self._default_config: TopicConfig | None = None
        self._high_watermarks: Saved = {}
        self._is_started = False
        self._loading: dict[Partition, asyncio.Task[None]] = {}
        self._syncing_left: asyncio.Future[None] | None = None
        self.damaged: set[Partition] = set()  # to be mended, if others have the data
        # Set by whoever wires the parts of a node, before anything is served.
        self.following: Following | None = None
        self.isr_updates: InSyncUpdates | None = None
        self.removals = Removals(disk)
        self.clock = clock
        self.room = Room()
        self.refusals = Refusals()
        self.image = Image()

    # Finding a partition.

    def find(self, topic: Topic | None, index: int) -> Partition:
        """The partition that a request names, if it is there and this node leads it."""
        if topic is None or not 0 <= index < len(topic.partitions):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if topic.partitions[index].leader != self._node_id:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self._local(topic, index)

    def find_readable(self, topic: Topic | None, index: int) -> Partition:
        """The partition that a request names, if this node has a replica, leading or following."""
        if topic is not None and 0 <= index < len(topic.partitions):
            partition = self.find_followed((topic.id, index))
            if partition is not None:
                return partition
        return self.find(topic, index)

    def find_led(self, topic_id: bytes, index: int) -> Partition:
        """The same for a follower, which names topics by id."""
        topic = self.image.topic_by_id(topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        return self.find(topic, index)

    def find_followed(self, key: tuple[bytes, int]) -> Partition | None:
        """The local replica of a partition that another node leads."""
        topic = self.image.topic_by_id(key[0])
        if topic is None or key[1] >= len(topic.partitions):
            return None
        record = topic.partitions[key[1]]
        is_followed = record.leader != self._node_id and self._node_id in record.replicas
        if not is_followed or not self._is_started:
            return None
        return self._local(topic, key[1])

    def is_in_sync(self, key: tuple[bytes, int]) -> bool:
        """Whether this node's replica of a partition is in the in-sync set."""
        topic = self.image.topic_by_id(key[0])
        return topic is not None and self._node_id in topic.partitions[key[1]].isr

    def follower_caught_up(self, partition: Partition, node_id: int) -> None:
        """A follower of a partition that this node leads has come further."""
        if self.isr_updates is not None:
            self.isr_updates.caught_up(partition, node_id)

    def _local(self, topic: Topic, index: int) -> Partition:
        if not self._is_started:
            # Which partitions have files is not known yet: one that has would pass for empty.
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "The node is starting.")
        partitions = self._partitions.get(topic.id)
        if partitions is None:
            if topic.id not in self.image.topic_names:  # Who asks has waited while it went.
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            partitions = self._partitions[topic.id] = {}
        partition = partitions.get(index)
        if partition is None:
            partition = partitions[index] = self._open(topic, index)
        return partition

    def _open(self, topic: Topic, index: int) -> Partition:
        config = self.config_of(topic.name)
        record = topic.partitions[index]
        log = Log(self._disk, self.directory_of(topic, index), config.log)
        partition = Partition(
            name=topic.name,
            topic_id=topic.id,
            node_id=self._node_id,
            record=record,
            log=log,
            config=config,
            commit=self._commit,
            durability=self._durability,
            room=self.room,
        )
        self._by_log[log] = partition
        if record.leader == self._node_id:
            partition.lead(record, self.now_ms())
        is_going = self.removals.is_going(log.directory)  # what it held when it was here before
        if index not in self._on_disk.get(topic.id, ()) and not is_going:
            partition.loaded()  # Nothing was ever written: there is nothing to recover.
        return partition

    def now_ms(self) -> int:
        """What measures waits; it never goes back."""
        return int(self.clock.monotonic() * 1000)

    async def load(self, partition: Partition) -> None:
        """Recover a partition's log off the loop; waits for a recovery that is under way."""
        if partition.is_loaded:
            return  # By somebody else, while the caller waited: it may have been written to since.
        task = self._loading.get(partition)
        if task is not None:
            await asyncio.shield(task)
            return

        def loaded(producers: Producers) -> None:
            partition.producers = producers
            partition.loaded(self._known_high_watermark(partition))

        def recover() -> Producers:
            return recover_partition(self._disk, partition, self._syncing_left is not None)

        work = self._load(partition, recover, loaded)
        await self._in_turn(partition, work)

    async def _in_turn(self, partition: Partition, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=f"load-{partition}")
        self._loading[partition] = task
        task.add_done_callback(lambda _: self._loading.pop(partition, None))
        await asyncio.shield(task)

    async def _load(
        self,
        partition: Partition,
        read: Callable[[], Producers],
        done: Callable[[Producers], None],
    ) -> None:
        try:
            await self.removals.wait(partition.log.directory)
            await self._left_synced()
            producers = await self._disk.run(read)
        except (StorageError, ProtocolError, OSError) as error:
            if not partition.is_deleted:
                partition.fail(str(error))
                if isinstance(error, CorruptLog):
                    self.damaged.add(partition)
        else:
            done(producers)

    def sync_left_behind(self) -> None:
        """Sync what a killed run has left, once for all logs, before any of them is loaded."""
        self._syncing_left = self._disk.run(lambda: self._disk.sync_everything(self._data_dir))

    async def _left_synced(self) -> None:
        if self._syncing_left is not None:
            await asyncio.shield(self._syncing_left)

    def _known_high_watermark(self, partition: Partition) -> int | None:
        """What was saved, or None if this is the only replica: then all of its log is committed."""
        topic = self.image.topic_by_id(partition.topic_id)
        if topic is None or len(topic.partitions[partition.index].replicas) == 1:
            return None
        return self._high_watermarks.get(id_text(topic.id), {}).get(partition.index, 0)

    async def truncate(self, partition: Partition, to_offset: int) -> None:
        """Cut a follower's log back to where it agrees with its leader's."""
        before = partition.log.end_offset
        await self._rewrite(partition, lambda: partition.log.truncate(to_offset))
        extra = {"partition": str(partition), "from": before, "to": partition.log.end_offset}
        logger.info("truncated", extra=extra)

    async def begin_anew(self, partition: Partition, offset: int) -> None:
        """Drop a follower's log: its leader has nothing before this offset."""
        await self._rewrite(partition, lambda: partition.log.reset(offset))
        logger.info("begun anew", extra={"partition": str(partition), "offset": offset})

    async def refill(self, partition: Partition) -> None:
        """Throw a damaged log away, and follow the leader from the beginning."""
        self.damaged.discard(partition)
        topic = self.image.topic_by_id(partition.topic_id)
        assert topic is not None
        assert self.following is not None
        key = (topic.id, partition.index)
        self.following.removed((key,))
        partition.log.abandon()
        partition.deleted()
        self._by_log.pop(partition.log, None)
        await self._disk.run(lambda: self._disk.remove_tree(partition.log.directory))
        self._on_disk.get(topic.id, set()).discard(partition.index)
        known = self._partitions.get(topic.id, {})
        if known.get(partition.index) is partition:
            del known[partition.index]
        topic = self.image.topic_by_id(topic.id)
        if topic is not None:
            self.following.changed(key, topic.partitions[partition.index])

    async def _rewrite(self, partition: Partition, work: Callable[[], None]) -> None:
        """Change what the log holds, off the loop; whoever wants it meanwhile waits to load it."""
        assert partition.is_loaded
        partition.is_loaded = False
        partition.snapshot_saved = partition.snapshot_taken  # One on its way tells of what goes.

        def rewrite() -> Producers:
            work()
            return recover_producers(self._disk, partition)

        def rewritten(producers: Producers) -> None:
            place = TopicPartition(partition.name, partition.index)
            self.refusals.cut(place, partition.producers, producers, self.now_ms())
            partition.rewritten(producers)

        await self._in_turn(partition, self._load(partition, rewrite, rewritten))

    def used(self) -> Iterator[Partition]:
        """Every partition that was used since the start."""
        for partitions in tuple(self._partitions.values()):
            yield from tuple(partitions.values())

    def loaded(self) -> Iterator[Partition]:
        """Every partition that was used since the start and is usable."""
        return (each for each in self.used() if each.is_loaded and each.failure is None)

    def unloaded(self) -> Iterator[tuple[Topic, int]]:
        """Every partition with a directory that was not used since the start."""
        for topic_id, indexes in tuple(self._on_disk.items()):
            topic = self.image.topic_by_id(topic_id)
            known = self._partitions.get(topic_id, {})
            if topic is not None:
                yield from ((topic, index) for index in sorted(indexes) if index not in known)

    def directory_of(self, topic: Topic, index: int) -> str:
        return f"{topic_directory(self._data_dir, topic.name, topic.id)}/{index}"

    def segment_sizes(self, topic: Topic, index: int) -> list[int]:
        """The sizes of a partition's log files, whether or not it was used. Blocking."""
        directory = self.directory_of(topic, index)
        names = [name for name in self._disk.list(directory) if name.endswith(".log")]
        return [self._size(f"{directory}/{name}") for name in names]

    def _size(self, path: str) -> int:
        try:
            return self._disk.size(path)
        except FileNotFoundError:
            return 0  # Retention or deletion took it since it was listed.

    # Settings.

    def config_of(self, name: str) -> TopicConfig:
        """A topic's effective settings; topics without any of their own share one object."""
        config = self._configs.get(name)
        if config is not None:
            return config
        overrides = self.image.config(TOPIC, name)
        if overrides:
            config = self._configs[name] = topic_config(overrides, self._broker_config())
            return config
        if self._default_config is None:
            self._default_config = topic_config({}, self._broker_config())
        return self._default_config

    # Start, metadata changes, stop.

    def start(self, image: Image, removed_topics: Container[bytes]) -> None:
        """Learn which partitions have files. Blocking: nothing is served yet."""
        self.image = image
        self._is_started = True
        self._high_watermarks = read_high_watermarks(self._disk, self._data_dir)
        root = f"{self._data_dir}/topics"
        for name in self._disk.list(root):
            if _is_deleted(name):
                self._disk.remove_tree(f"{root}/{name}")
                continue
            topic_id = _topic_id_of(name)
            topic = image.topic_by_id(topic_id)
            if topic is not None:
                self._on_disk[topic_id] = self._partitions_in(f"{root}/{name}", topic)
            elif topic_id in removed_topics:
                # A crash came between the topic's removal and that of its files.
                self._disk.remove_tree(f"{root}/{name}")
            else:
                logger.warning("files of an unknown topic", extra={"directory": f"{root}/{name}"})

    def _partitions_in(self, directory: str, topic: Topic) -> set[int]:
        """Which partitions have files; what is of none that this node holds is removed."""
        found = set()
        for name in self._disk.list(directory):
            index = int(name) if name.isdigit() else -1
            if not 0 <= index < len(topic.partitions):
                if name.endswith(LEFT):
                    self._disk.remove_tree(f"{directory}/{name}")
            elif self._node_id in topic.partitions[index].replicas:
                found.add(index)
            else:
                # It left while this node was away, or a crash came before its files went.
                self._disk.remove_tree(f"{directory}/{name}")
        return found

    def on_image(self, old: Image, new: Image, records: Sequence[Record]) -> None:
        """Do what follows from a committed metadata change."""
        self.image = new
        configured: set[str] = set()
        for record in records:
            match record:
                case TopicRemovedRecord():
                    self._remove(old, id_bytes(record.topic_id))
                case ConfigRecord(resource=resource, resource_name=name):
                    configured.add(EVERY_TOPIC if resource == BROKER else name)
                case _:
                    self._roles.add(new, record)
        if configured:
            self._reconfigure(configured)
        self._roles.run(new)

    def _remove(self, old: Image, topic_id: bytes) -> None:
        topic = old.topic_by_id(topic_id)
        assert topic is not None
        self._configs.pop(topic.name, None)
        if self.following is not None:
            self.following.removed((topic_id, each.partition) for each in topic.partitions)
        has_files = bool(self._on_disk.pop(topic_id, None))
        for partition in self._partitions.pop(topic_id, {}).values():
            has_files = has_files or partition.log.segment_count > 0
            partition.log.abandon()
            partition.deleted()
            self._by_log.pop(partition.log, None)
        if has_files:
            # Both names have the topic's id: a new topic of that name is not in the way.
            self.removals.begin(
                topic_directory(self._data_dir, topic.name, topic.id),
                deleted_directory(self._data_dir, topic.name, topic.id),
            )

    def _leave(self, topic: Topic, index: int) -> None:
        """This node is no replica of the partition any more: others have all that it had."""
        partition = self._partitions.get(topic.id, {}).pop(index, None)
        on_disk = self._on_disk.get(topic.id, set())
        has_files = index in on_disk
        on_disk.discard(index)
        loading = None
        if partition is not None:
            has_files = has_files or partition.log.segment_count > 0 or not partition.is_loaded
            loading = self._loading.get(partition)
            partition.follow(topic.partitions[index].leader_epoch)
            partition.log.abandon()
            partition.deleted()
            self._by_log.pop(partition.log, None)
        if has_files:
            directory = self.directory_of(topic, index)
            logger.info("left", extra={"partition": f"{topic.name}-{index}"})
            self.removals.begin(directory, directory + LEFT, loading)

    def _reconfigure(self, names: Collection[str]) -> None:
        """Settings of these topics have changed, or the broker's, which hold for all."""
        if EVERY_TOPIC in names:
            self._configs.clear()
            self._default_config = None
            self._configure(self.used())
            return
        for name in names:
            self._configs.pop(name, None)
            topic = self.image.topics.get(name)
            if topic is not None:
                self._configure(self._partitions.get(topic.id, {}).values())

    def _configure(self, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            partition.configure(self.config_of(partition.name))

    def _update_roles(self, topic_id: bytes, indexes: Sequence[int]) -> None:
        """Lead or follow as the image says now."""
        topic = self.image.topic_by_id(topic_id)
        if topic is None:
            return
        known = self._partitions.get(topic_id, {})
        for index in indexes:
            record = topic.partitions[index]
            if self._node_id not in record.replicas and self._is_started:
                self._leave(topic, index)
            partition = known.get(index)
            if partition is not None and record.leader == self._node_id:
                partition.lead(record, self.now_ms())
                if self.isr_updates is not None and partition.is_loaded:
                    self.isr_updates.look_again((partition,))
            elif partition is not None:
                partition.follow(record.leader_epoch)
            if self.following is not None and self._is_started:
                self.following.changed((topic_id, index), record)

    def on_durable(self, log: Log) -> None:
        """The group commit has synced this log."""
        partition = self._by_log.get(log)
        if partition is not None:
            partition.on_durable()

    def on_failed(self, log: Log, error: BaseException) -> None:
        """The group commit could not sync this log: the partition goes offline."""
        partition = self._by_log.get(log)
        if partition is not None:
            partition.fail(str(error))

    async def checkpoint(self, partition: Partition) -> None:
        """Save how far the log is known good, and the producers, off the loop."""
        log = partition.log
        end_offset = log.end_offset
        if partition.is_deleted or not end_offset:
            return  # A log without batches has no files.
        snapshot = b""
        taken = partition.snapshot_taken
        if end_offset > partition.snapshot_offset or partition.snapshot_is_stale:
            snapshot = partition.producers.snapshot(end_offset)
            taken = partition.snapshot_taken = taken + 1
            partition.snapshot_is_stale = False

        def save() -> None:
            with self._disk.exclusive(log.directory):
                log.checkpoint()
                # Another checkpoint may have begun later and come first.
                if snapshot and taken > partition.snapshot_saved and not partition.is_deleted:
                    self._disk.write_durably(f"{log.directory}/{PRODUCERS_FILE}", snapshot)
                    partition.snapshot_saved = taken
                    partition.snapshot_offset = end_offset

        try:
            await self._disk.run(save)
        except OSError:
            partition.snapshot_is_stale = True
            if not partition.is_deleted:
                raise

    async def save_high_watermarks(self) -> None:
        """Save what is committed in partitions with several replicas."""
        known = (each for each in self.loaded() if not each.in_sync or each.in_sync.followers)
        now = [(id_text(each.topic_id), each.index, each.high_watermark) for each in known]
        saved = gathered(now, self._high_watermarks, self.unloaded())
        if saved and saved != self._high_watermarks:
            self._high_watermarks = saved
            await self._disk.run(lambda: write_high_watermarks(self._disk, self._data_dir, saved))

    async def close(self) -> bool:
        """Leave every log clean, so that the next start trusts it, and what was committed.

        Whether everything that was ever written here is on disk.
        """
        if self._loading:
            await asyncio.wait(self._loading.values())
        await self.removals.close()
        with contextlib.suppress(OSError):
            await self.save_high_watermarks()
        dirty = [partition for partition in self.loaded() if not is_clean(partition)]
        is_on_disk = True
        for i in range(0, len(dirty), CLOSED_AT_ONCE):
            is_on_disk &= all(
                await asyncio.gather(*map(self._close, dirty[i : i + CLOSED_AT_ONCE]))
            )
        try:
            await self._left_synced()
        except OSError as error:
            logger.error("not synced", extra={"path": self._data_dir, "error": str(error)})
            return False
        return is_on_disk

    async def _close(self, partition: Partition) -> bool:
        try:
            await self._disk.run(partition.log.close)
            await self.checkpoint(partition)
        except (OSError, StorageError) as error:
            extra = {"partition": str(partition), "error": str(error)}
            logger.error("partition not closed", extra=extra)
            return False
        return True


def is_clean(partition: Partition) -> bool:
    """Whether nothing has changed since the last checkpoint."""
    log = partition.log
    is_saved = partition.snapshot_offset >= log.end_offset == log.durable_offset
    return is_saved and log.is_checkpointed and not partition.snapshot_is_stale


def _is_deleted(directory: str) -> bool:
    # By length too: an id may begin with anything, and has 22 characters.
    suffix = directory.rpartition(".")[2]
    return suffix.startswith(DELETED) and len(suffix) == len(DELETED) + len(id_text(bytes(16)))


def _topic_id_of(directory: str) -> bytes:
    try:
        return id_bytes(directory.rpartition(".")[2])
    except ValueError:
        return b""
