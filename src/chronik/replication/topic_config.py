"""A topic's settings as the partition uses them: parsed once, not looked up on each append."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from chronik.config.effective import BrokerConfig, topic_value
from chronik.protocol import codecs
from chronik.storage.config import LogConfig

# What `compression.type` stores; None keeps the producer's codec.
_CODECS: Final[Mapping[str, int | None]] = {
    "producer": None,
    "uncompressed": codecs.NONE,
    "gzip": codecs.GZIP,
    "snappy": codecs.SNAPPY,
    "lz4": codecs.LZ4,
    "zstd": codecs.ZSTD,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The effective settings of one topic on this broker."""

    log: LogConfig
    max_message_bytes: int
    codec: int | None
    codec_level: int | None
    append_time: bool
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    min_insync_replicas: int
    downconversion: bool
    leader_throttled_replicas: frozenset[str] = frozenset()
    follower_throttled_replicas: frozenset[str] = frozenset()

    @property
    def compact(self) -> bool:
        return self.log.compact


def topic_config(overrides: Mapping[str, str], broker: BrokerConfig) -> TopicConfig:
    """Resolve a topic's settings: its own, the broker's, the built-in ones."""

    def integer(name: str) -> int:
        value = topic_value(name, overrides, broker)
        assert isinstance(value, int)
        return value

    def throttled(side: str) -> frozenset[str]:
        value = topic_value(f"{side}.replication.throttled.replicas", overrides, broker)
        assert isinstance(value, tuple)
        return frozenset(value)

    policy = topic_value("cleanup.policy", overrides, broker)
    ratio = topic_value("min.cleanable.dirty.ratio", overrides, broker)
    codec_name = topic_value("compression.type", overrides, broker)
    assert isinstance(policy, tuple)
    assert isinstance(ratio, float)
    assert isinstance(codec_name, str)
    leveled = codec_name in ("gzip", "lz4", "zstd")
    level = integer(f"compression.{codec_name}.level") if leveled else None
    return TopicConfig(
        log=LogConfig(
            segment_bytes=integer("segment.bytes"),
            segment_ms=integer("segment.ms"),
            index_interval_bytes=integer("index.interval.bytes"),
            retention_ms=integer("retention.ms"),
            retention_bytes=integer("retention.bytes"),
            compact="compact" in policy,
            delete="delete" in policy,
            delete_retention_ms=integer("delete.retention.ms"),
            min_cleanable_dirty_ratio=ratio,
            min_compaction_lag_ms=integer("min.compaction.lag.ms"),
            max_compaction_lag_ms=integer("max.compaction.lag.ms"),
        ),
        max_message_bytes=integer("max.message.bytes"),
        codec=_CODECS[codec_name],
        codec_level=None if level == -1 and codec_name == "gzip" else level,
        append_time=topic_value("message.timestamp.type", overrides, broker) == "LogAppendTime",
        timestamp_before_max_ms=integer("message.timestamp.before.max.ms"),
        timestamp_after_max_ms=integer("message.timestamp.after.max.ms"),
        min_insync_replicas=integer("min.insync.replicas"),
        downconversion=bool(topic_value("message.downconversion.enable", overrides, broker)),
        leader_throttled_replicas=throttled("leader"),
        follower_throttled_replicas=throttled("follower"),
    )
