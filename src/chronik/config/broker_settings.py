"""The Kafka settings of a broker: `--set NAME=VALUE`, `[kafka]` in TOML, AlterConfigs.

Most are the defaults of topic settings, under Kafka's names for those (`log.retention.ms` for
`retention.ms`); they are derived here from the topic's definitions, so that each is said once.
Those of groups and transactions are in `coordinator_settings`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from chronik.config import limits
from chronik.config.coordinator_settings import COORDINATOR_SETTINGS
from chronik.config.definitions import INT_MAX, LONG_MAX, Definition, Kind, Update, Value
from chronik.config.topic_settings import DAY_MS, TOPIC_SETTINGS

# Settings that say a topic's time in another unit: what one of it is in milliseconds.
UNIT_MS: Final[Mapping[str, int]] = {
    "log.retention.minutes": 60_000,
    "log.retention.hours": 3_600_000,
    "log.roll.hours": 3_600_000,
}

_OWN: Final = (
    Definition(
        name="auto.create.topics.enable",
        kind=Kind.BOOLEAN,
        default=True,
        documentation="Whether a topic that a client asks for or writes to is created.",
    ),
    Definition(
        name="auto.leader.rebalance.enable",
        kind=Kind.BOOLEAN,
        default=True,
        documentation="Whether the controller lets preferred replicas lead again when they are "
        "back in sync.",
    ),
    Definition(
        name="connections.max.idle.ms",
        kind=Kind.LONG,
        default=600_000,
        least=1,
        update=Update.CLUSTER_WIDE,
        documentation="A connection that sent nothing for this long is closed.",
    ),
    Definition(
        name="default.replication.factor",
        kind=Kind.INT,
        default=3,
        least=1,
        most=INT_MAX,
        documentation="The replication factor of topics that are created without one. Unless it "
        "is set, it is also at most the number of brokers.",
    ),
    Definition(
        name="delete.topic.enable",
        kind=Kind.BOOLEAN,
        default=True,
        documentation="Whether topics can be deleted.",
    ),
    Definition(
        name="fetch.max.bytes",
        kind=Kind.INT,
        default=limits.FETCH_BYTES_MAX,
        least=1024,
        documentation="The largest fetch response, whatever the client asks for.",
    ),
    Definition(
        name="follower.replication.throttled.rate",
        kind=Kind.LONG,
        default=LONG_MAX,
        least=0,
        update=Update.CLUSTER_WIDE,
        documentation="Bytes a second that this broker takes as a follower, of the replicas in "
        "follower.replication.throttled.replicas of their topics, while they are not in sync.",
    ),
    Definition(
        name="leader.imbalance.check.interval.seconds",
        kind=Kind.LONG,
        # Kafka waits 300. A move costs a client here one answer that names the new leader, and a
        # node that is back should carry its share soon; but not at each blink.
        default=10,
        least=1,
        documentation="How often the controller looks for leaders that are not the preferred "
        "replica.",
    ),
    Definition(
        name="leader.replication.throttled.rate",
        kind=Kind.LONG,
        default=LONG_MAX,
        least=0,
        update=Update.CLUSTER_WIDE,
        documentation="Bytes a second that this broker sends as a leader, of the replicas in "
        "leader.replication.throttled.replicas of their topics, while they are not in sync.",
    ),
    Definition(
        name="log.cleaner.backoff.ms",
        kind=Kind.LONG,
        default=15_000,
        least=0,
        update=Update.CLUSTER_WIDE,
        documentation="How long compaction waits before it looks for work again.",
    ),
    Definition(
        name="log.cleaner.enable",
        kind=Kind.BOOLEAN,
        default=True,
        documentation="Whether compacted topics are compacted.",
    ),
    Definition(
        name="log.retention.check.interval.ms",
        kind=Kind.LONG,
        default=300_000,
        least=1,
        documentation="How often segments are checked against retention.",
    ),
    Definition(
        name="max.connections",
        kind=Kind.INT,
        default=INT_MAX,
        least=0,
        update=Update.CLUSTER_WIDE,
        documentation="How many client connections the broker accepts at once.",
    ),
    Definition(
        name="max.incremental.fetch.session.cache.slots",
        kind=Kind.INT,
        default=1000,
        least=0,
        documentation="How many incremental fetch sessions are kept.",
    ),
    Definition(
        name="max.request.partition.size.limit",
        kind=Kind.INT,
        default=limits.PARTITIONS_PER_REQUEST_MAX,
        least=1,
        documentation="How many partitions one DescribeTopicPartitions answer lists.",
    ),
    Definition(
        name="num.partitions",
        kind=Kind.INT,
        default=1,
        least=1,
        most=limits.PARTITIONS_PER_TOPIC_MAX,
        documentation="The partition count of topics that are created without one.",
    ),
    Definition(
        name="producer.id.expiration.ms",
        kind=Kind.INT,
        default=DAY_MS,
        least=1,
        update=Update.CLUSTER_WIDE,
        documentation="How long an idle producer's sequence numbers are remembered.",
    ),
    Definition(
        name="queued.max.request.bytes",
        kind=Kind.LONG,
        default=512 * 1024 * 1024,
        least=-1,
        documentation="Bytes of half-received requests, over all connections, beyond which a "
        "connection that sends more is closed; -1: no limit.",
    ),
    Definition(
        name="replica.alter.log.dirs.io.max.bytes.per.second",
        kind=Kind.LONG,
        default=LONG_MAX,
        least=0,
        update=Update.CLUSTER_WIDE,
        documentation="Bytes a second of moves between directories of one broker. There are none: "
        "a broker has one directory. Kafka's tools clear it with the throttles.",
    ),
    Definition(
        name="replica.lag.time.max.ms",
        kind=Kind.LONG,
        default=30_000,
        least=100,
        update=Update.CLUSTER_WIDE,
        documentation="A follower that had not all of its leader's log for this long leaves the "
        "in-sync set.",
    ),
    Definition(
        name="socket.request.max.bytes",
        kind=Kind.INT,
        default=100 * 1024 * 1024,
        least=1,
        documentation="The largest request that is accepted.",
    ),
)


def _topic_defaults() -> list[Definition]:
    derived = []
    for topic_setting in TOPIC_SETTINGS.values():
        for name in topic_setting.synonyms:
            unit_ms = UNIT_MS.get(name)
            first = name == topic_setting.synonyms[0]
            default: Value | None = topic_setting.default
            if unit_ms is not None:
                assert isinstance(default, int)
                default = default // unit_ms if name.endswith("hours") else None
            elif len(topic_setting.synonyms) > 1:
                default = None  # The coarsest unit holds the default, as in Kafka.
            derived.append(
                replace(
                    topic_setting,
                    name=name,
                    default=default,
                    synonyms=(),
                    most=LONG_MAX // unit_ms if unit_ms else topic_setting.most,
                    update=Update.CLUSTER_WIDE if first else Update.READ_ONLY,
                    documentation=topic_setting.documentation
                    + f" The default of topics without {topic_setting.name}.",
                )
            )
    return derived


BROKER_SETTINGS: Final[Mapping[str, Definition]] = {
    definition.name: definition
    for definition in sorted(
        (*_OWN, *COORDINATOR_SETTINGS, *_topic_defaults()), key=lambda each: each.name
    )
}
