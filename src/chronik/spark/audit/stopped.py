"""A stopped cluster under audit: all that it was is in its nodes' data directories.

Topics, settings and in-sync sets come from the metadata log that goes furthest, batches from the
segments. What of them was committed the nodes have written down (`replication.high_watermarks`):

- a replica that was in sync holds everything below the greatest high watermark that any node knew;
- one that was not is held to what it knew itself: the rest it would fetch, or cut off, first;
- a log without other replicas is committed as far as it goes.

Directories are only read, under a lock that keeps nodes from starting on them meanwhile. Replicas
of nodes whose directory was not named are not looked at.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from chronik.config.effective import BrokerConfig, topic_value
from chronik.metadata.image import BROKER, TOPIC, Image, id_text
from chronik.metadata.image import Topic as StoredTopic
from chronik.metadata.journal import METADATA_DIRECTORY, UnusableMetadata
from chronik.metadata.records import PartitionRecord
from chronik.metadata.stopped import StoppedMetadata, read_metadata
from chronik.replication.high_watermarks import Saved, read_high_watermarks
from chronik.replication.replicas import topic_directory
from chronik.server.identity import Identity, WrongDirectory, read_identity
from chronik.spark.audit.cluster import RECORDS
from chronik.spark.audit.findings import Finding
from chronik.spark.audit.replicas import ReadReplica, Replica
from chronik.spark.audit.stored import stored_offsets, stored_rows
from chronik.spark.errors import SourceError, UnknownTopic
from chronik.spark.log_facts import Topic
from chronik.spark.offset_range import OffsetRange
from chronik.spark.pipeline.config import PipelineConfig, TopicConfig
from chronik.spark.pipeline.discovery import sorted_out
from chronik.storage.disk import FileDisk
from chronik.storage.errors import CorruptLog, DirectoryLocked
from chronik.storage.stopped import StoppedLog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class StoppedCluster:
    """The facts of a cluster whose nodes do not run; used in `with`."""

    def __init__(self, data_dirs: Sequence[str]) -> None:
        self._disk = FileDisk(read_only=True)
        self._damaged: set[tuple[str, int, int | None]] = set()
        self.findings: list[Finding] = []
        try:
            self._data_dirs = _claimed(self._disk, data_dirs)
            self._image = self._furthest()
            self._saved = {
                node_id: read_high_watermarks(self._disk, data_dir)
                for node_id, data_dir in self._data_dirs.items()
            }
        except BaseException:
            self._disk.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._disk.close()

    @property
    def read_replica(self) -> ReadReplica:
        return stored_rows

    def _furthest(self) -> Image:
        """The image of the node that would lead; a log that cannot be read is a finding."""
        found: list[StoppedMetadata] = []
        for node_id, data_dir in self._data_dirs.items():
            try:
                found.append(read_metadata(self._disk, data_dir))
            except UnusableMetadata as error:
                self.findings.append(_unusable(node_id, error))
        if not found:
            raise SourceError(f"no metadata log can be read: {self.findings[0].text}")
        return max(found, key=lambda each: each.reach).image

    # Topics

    def topics(self, names: Sequence[str]) -> dict[str, Topic]:
        topics = self._image.topics
        for name in names:
            if name not in topics:
                raise UnknownTopic(f"there was no topic {name} in this cluster: check its name")
        wanted = names or [each.name for each in topics.values() if not each.is_internal]
        return {
            name: Topic(
                name=name,
                topic_id=topics[name].id,
                partitions=tuple(range(len(topics[name].partitions))),
            )
            for name in wanted
        }

    def tables(self, config: PipelineConfig) -> dict[str, TopicConfig]:
        image = self._image
        settings = {
            name: image.config(TOPIC, name)
            for name, topic in image.topics.items()
            if not topic.is_internal
        }
        return {each.name: each for each in sorted_out(settings, config).topics}

    def is_compacted(self, topic: Topic) -> bool:
        broker = BrokerConfig(static={}, cluster=self._image.config(BROKER, ""), broker={})
        policy = topic_value("cleanup.policy", self._image.config(TOPIC, topic.name), broker)
        return isinstance(policy, tuple) and "compact" in policy

    # Replicas

    def replicas(self, topics: Iterable[Topic]) -> list[Replica]:
        found = []
        for topic in topics:
            is_compacted = self.is_compacted(topic)
            starts = self.starts(topic)
            for record in self._stored(topic).partitions:
                found += [
                    Replica(
                        topic=topic.name,
                        topic_id=topic.topic_id,
                        partition=record.partition,
                        node_id=node_id,
                        start_offset=starts[record.partition],
                        end_offset=self._end_offset(topic, record, node_id),
                        is_compacted=is_compacted,
                        directory=self._directory(topic, record.partition, node_id),
                    )
                    for node_id in self._holders(record)
                ]
        return found

    def starts(self, topic: Topic) -> Mapping[int, int]:
        return {
            record.partition: max(
                (self._start_offset(topic, record, node) for node in self._holders(record)),
                default=0,
            )
            for record in self._stored(topic).partitions
        }

    def _stored(self, topic: Topic) -> StoredTopic:
        return self._image.topics[topic.name]

    def _holders(self, record: PartitionRecord) -> list[int]:
        """The nodes with a copy whose directory we have, the leader first."""
        known = [node_id for node_id in record.replicas if node_id in self._data_dirs]
        return sorted(known, key=lambda each: (each != record.leader, each not in record.isr))

    def _directory(self, topic: Topic, partition: int, node_id: int) -> str:
        data_dir = self._data_dirs[node_id]
        return f"{topic_directory(data_dir, topic.name, topic.topic_id)}/{partition}"

    def _log(self, topic: Topic, record: PartitionRecord, node_id: int) -> StoppedLog | None:
        try:
            return StoppedLog(self._disk, self._directory(topic, record.partition, node_id))
        except (CorruptLog, OSError):
            return None  # Whoever reads the replica says so.

    def _start_offset(self, topic: Topic, record: PartitionRecord, node_id: int) -> int:
        log = self._log(topic, record, node_id)
        return 0 if log is None else log.checkpoint.log_start_offset

    def _end_offset(self, topic: Topic, record: PartitionRecord, node_id: int) -> int:
        if len(record.replicas) == 1:
            log = self._log(topic, record, node_id)
            return 1 if log is None else max(log.end_offset(), log.checkpoint.recovery_point)
        if node_id in record.isr:
            return max(self._known(topic, record, each) for each in self._saved)
        return self._known(topic, record, node_id)

    def _known(self, topic: Topic, record: PartitionRecord, node_id: int) -> int:
        saved: Saved = self._saved[node_id]
        return saved.get(id_text(topic.topic_id), {}).get(record.partition, 0)

    # Records

    def leave_out(self, findings: Iterable[Finding]) -> None:
        self._damaged |= {(each.topic, each.partition, each.node_id) for each in findings}

    def records(self, spark: "SparkSession", ranges: Sequence[OffsetRange]) -> "DataFrame":
        places = [(each, self._best_directory(each)) for each in ranges]

        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column("id").to_pylist():
                    place, directory = places[number]
                    for offsets in stored_offsets(directory, place.start_offset, place.end_offset):
                        partitions = pa.repeat(pa.scalar(place.partition, pa.int32()), len(offsets))
                        columns = [partitions, pa.array(offsets)]
                        yield pa.record_batch(columns, names=RECORDS.names)

        if not places:
            return spark.createDataFrame([], RECORDS)
        return spark.range(0, len(places), 1, len(places)).mapInArrow(read, RECORDS)

    def _best_directory(self, place: OffsetRange) -> str:
        """Of a replica that nothing was found against, or of the leader."""
        record = self._image.topics[place.topic].partitions[place.partition]
        holders = self._holders(record)
        if not holders:
            raise SourceError(
                f"no directory that was named has a replica of {place.place}: name those of nodes "
                f"{', '.join(map(str, record.replicas))} too, or audit other topics"
            )
        sound = (
            node for node in holders if (place.topic, place.partition, node) not in self._damaged
        )
        node_id = next(sound, holders[0])
        topic = Topic(name=place.topic, topic_id=place.topic_id, partitions=())
        return self._directory(topic, place.partition, node_id)


def _claimed(disk: FileDisk, data_dirs: Sequence[str]) -> dict[int, str]:
    """The directories by their nodes, locked; SourceError if they are not what is wanted."""
    found: dict[int, str] = {}
    cluster_id = ""
    for data_dir in data_dirs:
        data_dir = data_dir.rstrip("/") or "/"
        identity = _identity(disk, data_dir)
        if found and identity.cluster_id != cluster_id:
            first = next(iter(found.values()))
            raise SourceError(
                f"{first} and {data_dir} are of different clusters ({cluster_id} and "
                f"{identity.cluster_id}): name directories of one"
            )
        if identity.node_id in found:
            raise SourceError(
                f"{found[identity.node_id]} and {data_dir} are both of node {identity.node_id}: "
                "name one of them"
            )
        cluster_id, found[identity.node_id] = identity.cluster_id, data_dir
    return found


def _identity(disk: FileDisk, data_dir: str) -> Identity:
    try:
        if not disk.exists(f"{data_dir}/node.json"):
            raise SourceError(f"{data_dir} is no data directory of a node: it has no node.json")
        disk.lock_shared(f"{data_dir}/lock")
        return read_identity(disk, data_dir, None, finds_others=False)
    except DirectoryLocked as error:
        raise SourceError(f"{error}: stop the node, or audit the running cluster") from None
    except WrongDirectory as error:
        raise SourceError(str(error)) from None
    except OSError as error:
        raise SourceError(f"{error.filename or data_dir}: {error.strerror}") from None


def _unusable(node_id: int, error: UnusableMetadata) -> Finding:
    return Finding(
        topic=METADATA_DIRECTORY,
        partition=0,
        kind="crc",
        offset=None,
        node_id=node_id,
        text=str(error),
    )
