"""Offsets that are read, and offsets that brought no record: the words for both.

Not every offset is a record: transaction markers take one each, aborted transactions theirs, and
compaction removes records from the middle of a log (nothing else does). That is as it should be,
and only counted. Records that are gone from the log's beginning, from its end or with the topic
itself are loss.
"""

from dataclasses import dataclass
from typing import Final, Literal

from chronik.model import TopicPartition
from chronik.spark.errors import DataLossError

Reason = Literal[
    "transaction marker", "aborted", "compacted", "retention", "recreated", "truncated"
]
_LOSS: Final = frozenset({"retention", "recreated", "truncated"})
# What a reader can be told; whoever has other words for it cuts this off.
READERS_ADVICE: Final = " Set failOnDataLoss=false to go on without them."


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Some offsets of a partition; the end is exclusive, and a topic id of zeros is unknown."""

    topic: str
    topic_id: bytes
    partition: int
    start_offset: int
    end_offset: int

    @property
    def place(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets without a record, for one reason: `count` of them between start and end."""

    reason: Reason
    start: int
    end: int
    count: int

    @property
    def is_loss(self) -> bool:
        """Whether records are gone that a reader was promised."""
        return self.reason in _LOSS


class Gaps:
    """The gaps of a range, one for each reason however many there are: memory stays bounded."""

    def __init__(self, wanted: OffsetRange, *, fail_on_data_loss: bool) -> None:
        self._wanted = wanted
        self._fail_on_data_loss = fail_on_data_loss
        self._by_reason: dict[Reason, Gap] = {}

    def note(self, gap: Gap, why: str = "") -> None:
        """Count a gap; a loss raises DataLossError, if it is to fail, and says why it came."""
        if gap.is_loss and self._fail_on_data_loss:
            raise _data_loss(self._wanted, gap, why)
        known = self._by_reason.get(gap.reason)
        if known is not None:
            gap = Gap(
                gap.reason,
                min(known.start, gap.start),
                max(known.end, gap.end),
                known.count + gap.count,
            )
        self._by_reason[gap.reason] = gap

    def all(self) -> list[Gap]:
        """The gaps so far, in the order in which they begin."""
        return sorted(self._by_reason.values(), key=lambda gap: gap.start)


def _data_loss(wanted: OffsetRange, gap: Gap, why: str) -> DataLossError:
    return DataLossError(
        f"topic {wanted.topic}, partition {wanted.partition}: offsets {gap.start} to"
        f" {gap.end - 1} (up to {gap.count} records) are lost ({gap.reason}): {why}."
        f"{READERS_ADVICE}"
    )
