"""The settings of a topic. One that is not here is refused, and each one here is honoured."""

from collections.abc import Mapping
from typing import Final

from chronik.config.definitions import INT_MAX, LONG_MAX, Definition, Kind

DAY_MS: Final = 24 * 3600 * 1000
THROTTLED_REPLICA: Final = r"\*|\d+:\d+"
PARTITION_FIELD: Final = r"\w+|(hour|day|month|year)\(\s*\w+\s*\)"

_DEFINITIONS: Final = (
    Definition(
        name="chronik.decode",
        kind=Kind.STRING,
        default="raw",
        choices=("raw", "string", "json", "avro", "protobuf"),
        documentation="How the pipeline decodes the values of this topic; raw keeps their bytes "
        "in one column. avro and protobuf need chronik.schema.",
    ),
    Definition(
        name="chronik.on_incompatible",
        kind=Kind.STRING,
        default="dead_letter",
        choices=("column", "dead_letter"),
        documentation="What the pipeline does with a value whose type its column cannot become: "
        "write it to a column of another name (price_v2), or send the row to the dead letters.",
    ),
    Definition(
        name="chronik.partition_by",
        kind=Kind.LIST,
        default=(),
        item_pattern=PARTITION_FIELD,
        documentation="What the topic's table is partitioned by when it is created: columns, or "
        "the hour, day, month or year of a timestamp, such as day(_timestamp),country.",
    ),
    Definition(
        name="chronik.schema",
        kind=Kind.STRING,
        default="",
        documentation="The fields of the topic's values: for json Spark's DDL, such as "
        "'id bigint, at timestamp' (empty: inferred, and new fields become columns); for avro the "
        "schema's JSON; for protobuf FILE#package.Message with a descriptor set's file.",
    ),
    Definition(
        name="chronik.table",
        kind=Kind.STRING,
        default="none",
        choices=("none", "delta", "iceberg"),
        documentation="The lake table that `chronik pipeline run` keeps of this topic.",
    ),
    Definition(
        name="chronik.table_retention_ms",
        kind=Kind.LONG,
        default=-1,
        least=-1,
        documentation="The age of its newest row from which on the pipeline drops a file of the "
        "topic's table; -1: never.",
    ),
    Definition(
        name="cleanup.policy",
        kind=Kind.LIST,
        default=("delete",),
        choices=("delete", "compact"),
        synonyms=("log.cleanup.policy",),
        documentation="What happens to old segments: delete them by retention, compact them to "
        "the last value of each key, or both.",
    ),
    Definition(
        name="compression.type",
        kind=Kind.STRING,
        default="producer",
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        synonyms=("compression.type",),
        documentation="The codec that batches are stored with. 'producer' keeps what was sent.",
    ),
    Definition(
        name="compression.gzip.level",
        kind=Kind.INT,
        default=-1,
        least=-1,
        most=9,
        synonyms=("compression.gzip.level",),
        documentation="The gzip level if compression.type is gzip; -1 is gzip's own default.",
    ),
    Definition(
        name="compression.lz4.level",
        kind=Kind.INT,
        default=9,
        least=1,
        most=17,
        synonyms=("compression.lz4.level",),
        documentation="The lz4 level if compression.type is lz4.",
    ),
    Definition(
        name="compression.zstd.level",
        kind=Kind.INT,
        default=3,
        least=-131072,
        most=22,
        synonyms=("compression.zstd.level",),
        documentation="The zstd level if compression.type is zstd.",
    ),
    Definition(
        name="delete.retention.ms",
        kind=Kind.LONG,
        default=DAY_MS,
        least=0,
        synonyms=("log.cleaner.delete.retention.ms",),
        documentation="How long a tombstone of a compacted topic stays readable.",
    ),
    Definition(
        name="follower.replication.throttled.replicas",
        kind=Kind.LIST,
        default=(),
        item_pattern=THROTTLED_REPLICA,
        documentation="Replicas, as PARTITION:BROKER or * for all, that are filled no "
        "faster than follower.replication.throttled.rate while they are not in sync.",
    ),
    Definition(
        name="index.interval.bytes",
        kind=Kind.INT,
        default=4096,
        least=0,
        synonyms=("log.index.interval.bytes",),
        documentation="How many bytes of log lie between two entries of the offset index.",
    ),
    Definition(
        name="leader.replication.throttled.replicas",
        kind=Kind.LIST,
        default=(),
        item_pattern=THROTTLED_REPLICA,
        documentation="Replicas, as PARTITION:BROKER or * for all, that are sent from no "
        "faster than leader.replication.throttled.rate while they are not in sync.",
    ),
    Definition(
        name="max.compaction.lag.ms",
        kind=Kind.LONG,
        default=LONG_MAX,
        least=1,
        synonyms=("log.cleaner.max.compaction.lag.ms",),
        documentation="A record is compacted at the latest after this time.",
    ),
    Definition(
        name="max.message.bytes",
        kind=Kind.INT,
        default=1_048_588,
        least=0,
        synonyms=("message.max.bytes",),
        documentation="The largest batch that is accepted, after compression.",
    ),
    Definition(
        name="message.downconversion.enable",
        kind=Kind.BOOLEAN,
        default=True,
        synonyms=("log.message.downconversion.enable",),
        documentation="Whether batches are converted for consumers of Kafka 0.10 and older.",
    ),
    Definition(
        name="message.timestamp.after.max.ms",
        kind=Kind.LONG,
        default=3_600_000,
        least=0,
        synonyms=("log.message.timestamp.after.max.ms",),
        documentation="How far a record's timestamp may lie ahead of the broker's clock.",
    ),
    Definition(
        name="message.timestamp.before.max.ms",
        kind=Kind.LONG,
        default=LONG_MAX,
        least=0,
        synonyms=("log.message.timestamp.before.max.ms",),
        documentation="How far a record's timestamp may lie behind the broker's clock.",
    ),
    Definition(
        name="message.timestamp.type",
        kind=Kind.STRING,
        default="CreateTime",
        choices=("CreateTime", "LogAppendTime"),
        synonyms=("log.message.timestamp.type",),
        documentation="Whose time a record carries: its producer's, or the broker's at append.",
    ),
    Definition(
        name="min.cleanable.dirty.ratio",
        kind=Kind.DOUBLE,
        default=0.5,
        least=0,
        most=1,
        synonyms=("log.cleaner.min.cleanable.ratio",),
        documentation="The share of uncompacted bytes from which on a log is compacted.",
    ),
    Definition(
        name="min.compaction.lag.ms",
        kind=Kind.LONG,
        default=0,
        least=0,
        synonyms=("log.cleaner.min.compaction.lag.ms",),
        documentation="A record stays uncompacted at least this long.",
    ),
    Definition(
        name="min.insync.replicas",
        kind=Kind.INT,
        default=1,
        least=1,
        synonyms=("min.insync.replicas",),
        documentation="How many replicas must be in sync for a write with acks=all.",
    ),
    Definition(
        name="retention.bytes",
        kind=Kind.LONG,
        default=-1,
        least=-1,
        synonyms=("log.retention.bytes",),
        documentation="The size from which on old segments of a partition are deleted; -1: none.",
    ),
    Definition(
        name="retention.ms",
        kind=Kind.LONG,
        default=7 * DAY_MS,
        least=-1,
        synonyms=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
        documentation="The age from which on segments are deleted; -1: never.",
    ),
    Definition(
        name="segment.bytes",
        kind=Kind.INT,
        default=1024 * 1024 * 1024,
        least=14,
        most=INT_MAX,
        synonyms=("log.segment.bytes",),
        documentation="The size at which a new segment is begun.",
    ),
    Definition(
        name="segment.ms",
        kind=Kind.LONG,
        default=7 * DAY_MS,
        least=1,
        synonyms=("log.roll.ms", "log.roll.hours"),
        documentation="The age at which a new segment is begun even if the last is not full.",
    ),
    Definition(
        name="unclean.leader.election.enable",
        kind=Kind.BOOLEAN,
        default=False,
        synonyms=("unclean.leader.election.enable",),
        documentation="Whether a replica that may have lost records may lead when no other can.",
    ),
)

TOPIC_SETTINGS: Final[Mapping[str, Definition]] = {
    definition.name: definition for definition in _DEFINITIONS
}
