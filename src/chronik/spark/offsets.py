"""Where a streaming query stands: the offset that Spark keeps in its checkpoint, and its ranges.

An offset names the end of a batch in each partition, under the id of its topic: a topic that was
deleted and made again has another id, so its records are never taken for the old one's. It also
names the *begins* of the batch that it ends, for each partition that did not begin where the last
batch ended: all of them in batch 0, new partitions, and those that were reset after a loss. Spark
keeps only ends; a batch that is repeated after a crash would otherwise resolve `latest` again. And
it names into how many *parts* the batch's ranges are cut, because a sink tells repeated writes by
the Spark partition: a batch that is repeated must have the same rows in each.

Invariants
    `ranges_between(start, end)` and their parts are the same each time, whatever happened to the
        log meanwhile.
    Nothing but names, ids and numbers is in an offset: it is written to the checkpoint as it is.

Pure: `log_facts` asks the brokers, `planning` decides how far a batch goes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from chronik.model import TopicPartition
from chronik.spark.errors import SourceError
from chronik.spark.offset_range import OffsetRange

VERSION: Final = 1
NO_TOPIC_ID: Final = bytes(16)  # what brokers before Kafka 2.8 answer

ByPlace = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicEnds:
    """The ends of one topic's partitions, and which topic of that name it is."""

    topic_id: bytes
    ends: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffset:
    """The end of a batch, and the begins that the end before it does not tell."""

    topics: Mapping[str, TopicEnds]
    begins: ByPlace = field(default_factory=dict)
    parts: ByPlace = field(default_factory=dict)  # where there is more than one
    is_initial: bool = False  # No batch ended here: it is where the first one is to begin.

    def ends(self) -> dict[TopicPartition, int]:
        """The end of each partition."""
        return {
            TopicPartition(name, partition): end
            for name, topic in self.topics.items()
            for partition, end in topic.ends.items()
        }

    def to_json(self) -> dict[str, Any]:
        """As Spark keeps it: equal offsets give equal text, for Spark compares the text."""
        written: dict[str, Any] = {"version": VERSION, "topics": {}}
        for name in sorted(self.topics):
            topic = self.topics[name]
            ends = {str(partition): topic.ends[partition] for partition in sorted(topic.ends)}
            written["topics"][name] = {"id": topic.topic_id.hex(), "ends": ends}
        if self.begins:
            written["begins"] = _nested(self.begins)
        if self.parts:
            written["parts"] = _nested(self.parts)
        if self.is_initial:
            written["initial"] = True
        return written

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> "StreamOffset":
        """Read one back, or SourceError if it is not of this source."""
        if written.get("version") != VERSION:
            raise SourceError(
                f"the checkpoint holds an offset of version {written.get('version')!r}, and this"
                f" source writes version {VERSION}: start the query with a new checkpoint"
            )
        topics = {
            str(name): TopicEnds(topic_id=bytes.fromhex(topic["id"]), ends=_numbered(topic["ends"]))
            for name, topic in written["topics"].items()
        }
        return cls(
            topics=topics,
            begins=_flat(written.get("begins", {})),
            parts=_flat(written.get("parts", {})),
            is_initial=bool(written.get("initial", False)),
        )


def _nested(by_place: ByPlace) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for place in sorted(by_place):
        nested.setdefault(place.topic, {})[str(place.partition)] = by_place[place]
    return nested


def _flat(written: Mapping[str, Mapping[str, Any]]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(str(name), partition): number
        for name, some in written.items()
        for partition, number in _numbered(some).items()
    }


def _numbered(written: Mapping[str, Any]) -> dict[int, int]:
    return {int(partition): int(offset) for partition, offset in written.items()}


def ranges_between(start: StreamOffset, end: StreamOffset) -> list[OffsetRange]:
    """What lies between two offsets, by topic and partition; empty ranges are left out."""
    return sorted(_ranges(start, end), key=lambda each: each.place)


def _ranges(start: StreamOffset, end: StreamOffset) -> Iterator[OffsetRange]:
    started = start.ends()
    for name, topic in end.topics.items():
        for partition, end_offset in topic.ends.items():
            place = TopicPartition(name, partition)
            begin = end.begins.get(place, started.get(place))
            if begin is None:
                raise SourceError(
                    f"the checkpoint names no begin of {place}: its offsets were edited or mixed;"
                    " start the query with a new checkpoint"
                )
            if end_offset > begin:
                yield OffsetRange(name, topic.topic_id, partition, begin, end_offset)
