"""What a log's owner may set, in the words of Kafka's topic configs."""

from dataclasses import dataclass
from typing import Final

_UNLIMITED: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """A topic's settings as far as its logs obey them; defaults are Kafka's. -1: no limit."""

    segment_bytes: int = 1024 * 1024 * 1024
    segment_ms: int = 7 * 24 * 3600 * 1000
    index_interval_bytes: int = 4096
    retention_ms: int = 7 * 24 * 3600 * 1000
    retention_bytes: int = _UNLIMITED
    delete: bool = True
    compact: bool = False
    delete_retention_ms: int = 24 * 3600 * 1000
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = (1 << 63) - 1

    @property
    def roll_ms(self) -> int:
        """How long a segment is appended to."""
        if self.compact:  # The active segment is not compacted, so it must not stay active.
            return min(self.segment_ms, self.max_compaction_lag_ms)
        return self.segment_ms
