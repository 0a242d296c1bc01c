"""All partitions that this node holds, made when they are first used.

The image says which partitions exist; a `Partition` object exists once a request touched it, and
its files are opened once there is something in them. After a restart a partition that has a
directory is recovered on its first use, off the loop, so that starting does not grow with data.

What follows from a metadata change (deletion, settings, leader epochs) is done here from the
records of that change, never by comparing whole images.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence

from chronik.clock import Clock
from chronik.config.effective import BrokerConfig
from chronik.config.settings import Durability
from chronik.metadata.image import BROKER, TOPIC, Image, Topic, id_bytes, id_text
from chronik.metadata.records import (
    ConfigRecord,
    LeaderEpochsRecord,
    PartitionLeadersRecord,
    PartitionRecord,
    Record,
    TopicRemovedRecord,
)
from chronik.protocol.errors import ErrorCode, KafkaError, ProtocolError
from chronik.replication.partition import Partition
from chronik.replication.producers import Producers
from chronik.replication.topic_config import TopicConfig, topic_config
from chronik.storage.commit import GroupCommit
from chronik.storage.disk import Disk
from chronik.storage.errors import CorruptLog, StorageError
from chronik.storage.log import Log
from chronik.storage.scan import scan

logger = logging.getLogger(__name__)

NAME_LENGTH_MAX = 200  # of a topic's name in its directory's, which may have 255 with the id
PRODUCERS_FILE = "producers"
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
        self._on_disk: dict[bytes, set[int]] = {}
        self._configs: dict[str, TopicConfig] = {}
        self._default_config: TopicConfig | None = None
        self._loading: dict[Partition, asyncio.Task[None]] = {}
        self._removals: set[asyncio.Task[None]] = set()
        self.clock = clock
        self.image = Image()

    # Finding a partition.

    def find(self, topic: Topic | None, index: int) -> Partition:
        """The partition that a request names, if it is there and this node leads it."""
        if topic is None or not 0 <= index < len(topic.partitions):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if topic.partitions[index].leader != self._node_id:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
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
        log = Log(self._disk, self.directory_of(topic, index), config.log)
        partition = Partition(
            name=topic.name,
            topic_id=topic.id,
            index=index,
            leader_epoch=topic.partitions[index].leader_epoch,
            log=log,
            config=config,
            commit=self._commit,
            durability=self._durability,
        )
        self._by_log[log] = partition
        if index not in self._on_disk.get(topic.id, ()):
            partition.loaded()  # Nothing was ever written: there is nothing to recover.
        return partition

    async def load(self, partition: Partition) -> None:
        """Recover a partition's log off the loop; waits for a recovery that is under way."""
        if partition.is_loaded:
            return  # By somebody else, while the caller waited: it may have been written to since.
        task = self._loading.get(partition)
        if task is None:
            task = asyncio.create_task(self._load(partition), name=f"load-{partition}")
            self._loading[partition] = task
            task.add_done_callback(lambda _: self._loading.pop(partition, None))
        await asyncio.shield(task)

    async def _load(self, partition: Partition) -> None:
        try:
            partition.producers = await self._disk.run(lambda: self._recover(partition))
        except (CorruptLog, ProtocolError, OSError) as error:
            if not partition.is_deleted:
                partition.fail(str(error))
        else:
            partition.loaded()

    def _recover(self, partition: Partition) -> Producers:
        """Blocking: the log, then the producers from their snapshot and what follows it."""
        log = partition.log
        log.load()
        producers = Producers()
        path = f"{log.directory}/{PRODUCERS_FILE}"
        if self._disk.exists(path):
            try:
                data = bytes(self._disk.pread(path, self._disk.size(path), 0))
                producers = Producers.from_snapshot(data)
            except ProtocolError as reason:
                logger.warning("producers rebuilt", extra={"path": path, "reason": str(reason)})
        if producers.end_offset > log.end_offset:
            # It tells of batches that a crash has cut off, and would pass for true once as many
            # others are appended: it goes now.
            producers = Producers()
            self._disk.remove(path)
            self._disk.sync_directory(log.directory)
        partition.snapshot_offset = producers.end_offset
        producers.replay(scan(log, producers.end_offset))
        for each in (path, *(segment.path for segment in log.segments)):
            self._disk.release(each)  # It may have been loaded for a look, and stay idle.
        return producers

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
        root = f"{self._data_dir}/topics"
        for name in self._disk.list(root):
            if _is_deleted(name):
                self._disk.remove_tree(f"{root}/{name}")
                continue
            topic_id = _topic_id_of(name)
            topic = image.topic_by_id(topic_id)
            if topic is not None:
                files = self._disk.list(f"{root}/{name}")
                self._on_disk[topic_id] = {int(each) for each in files if each.isdigit()}
            elif topic_id in removed_topics:
                # A crash came between the topic's removal and that of its files.
                self._disk.remove_tree(f"{root}/{name}")
            else:
                logger.warning("files of an unknown topic", extra={"directory": f"{root}/{name}"})

    def on_image(self, old: Image, new: Image, records: Sequence[Record]) -> None:
        """Do what follows from a committed metadata change."""
        self.image = new
        configured: set[str] = set()
        begun: dict[str, list[int]] = {}
        for record in records:
            match record:
                case TopicRemovedRecord():
                    self._remove(old, id_bytes(record.topic_id))
                case ConfigRecord(resource=resource, resource_name=name):
                    configured.add(EVERY_TOPIC if resource == BROKER else name)
                case PartitionRecord():
                    begun.setdefault(record.topic_id, []).append(record.partition)
                case PartitionLeadersRecord():
                    for topic_id, indexes in zip(record.topic_ids, record.partitions, strict=True):
                        begun.setdefault(topic_id, []).extend(indexes)
                case LeaderEpochsRecord():
                    self._update_all_epochs()
                case _:
                    pass
        if configured:
            self._reconfigure(configured)
        for changed_id, changed in begun.items():
            self._update_epochs(id_bytes(changed_id), changed)

    def _remove(self, old: Image, topic_id: bytes) -> None:
        topic = old.topic_by_id(topic_id)
        assert topic is not None
        self._configs.pop(topic.name, None)
        has_files = bool(self._on_disk.pop(topic_id, None))
        for partition in self._partitions.pop(topic_id, {}).values():
            has_files = has_files or partition.log.segment_count > 0
            partition.log.abandon()
            partition.deleted()
            self._by_log.pop(partition.log, None)
        if has_files:
            task = asyncio.create_task(self._remove_files(topic), name=f"remove-{topic.name}")
            self._removals.add(task)
            task.add_done_callback(self._removals.discard)

    async def _remove_files(self, topic: Topic) -> None:
        # Both names have the topic's id: a new topic of that name is not in the way, and what a
        # crash leaves is removed at the next start.
        directory = topic_directory(self._data_dir, topic.name, topic.id)
        gone = deleted_directory(self._data_dir, topic.name, topic.id)

        def remove() -> None:
            if self._disk.exists(directory):
                self._disk.rename(directory, gone)  # A checkpoint under way finds no place now.
            self._disk.remove_tree(gone)

        try:
            await self._disk.run(remove)
        except OSError as error:
            extra = {"directory": directory, "error": str(error)}
            logger.error("cannot remove a deleted topic's files", extra=extra)

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
            partition.configure(self.config_of(partition.name), partition.leader_epoch)

    def _update_all_epochs(self) -> None:
        for topic_id, partitions in self._partitions.items():
            self._update_epochs(topic_id, partitions)

    def _update_epochs(self, topic_id: bytes, indexes: Iterable[int]) -> None:
        topic = self.image.topic_by_id(topic_id)
        known = self._partitions.get(topic_id)
        if topic is None or not known:
            return
        for index in indexes:
            partition = known.get(index)
            if partition is not None:
                epoch = topic.partitions[index].leader_epoch
                partition.configure(partition.config, epoch)

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

    async def close(self) -> None:
        """Leave every log clean, so that the next start trusts it."""
        tasks = [*self._loading.values(), *self._removals]
        if tasks:
            await asyncio.wait(tasks)
        dirty = [partition for partition in self.loaded() if not is_clean(partition)]
        for i in range(0, len(dirty), CLOSED_AT_ONCE):
            await asyncio.gather(*map(self._close, dirty[i : i + CLOSED_AT_ONCE]))

    async def _close(self, partition: Partition) -> None:
        try:
            await self._disk.run(partition.log.close)
            await self.checkpoint(partition)
        except (OSError, StorageError) as error:
            extra = {"partition": str(partition), "error": str(error)}
            logger.error("partition not closed", extra=extra)


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
