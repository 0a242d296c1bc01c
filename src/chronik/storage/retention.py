"""Retention: how many of a log's oldest segments time and size let go. Pure."""

from collections.abc import Sequence

from chronik.model import NO_TIMESTAMP
from chronik.storage.config import LogConfig
from chronik.storage.segment import Segment


def expired_count(
    segments: Sequence[Segment], config: LogConfig, now_ms: int, limit_offset: int
) -> int:
    """How many leading segments to drop; all of them only if the active one is too old as well.

    As in Kafka, size counts whole segments that fit into the excess, and never the active one.
    """
    excess = sum(segment.size for segment in segments) - config.retention_bytes
    for i, segment in enumerate(segments):
        if segment.next_offset > limit_offset or not segment.size:
            return i
        is_active = i + 1 == len(segments)
        by_size = config.retention_bytes >= 0 and excess >= segment.size and not is_active
        if not by_size and not _expired(segment, config.retention_ms, now_ms):
            return i
        excess -= segment.size
    return len(segments)


def _expired(segment: Segment, retention_ms: int, now_ms: int) -> bool:
    if retention_ms < 0:
        return False
    timestamp = segment.max_timestamp
    if timestamp == NO_TIMESTAMP:
        # Records without time count from when this process first saw their segment.
        segment.created_ms = segment.created_ms or now_ms
        timestamp = segment.created_ms
    return now_ms - timestamp > retention_ms
