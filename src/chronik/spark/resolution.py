"""From options to offsets: which partitions a read has, and where in them it begins and ends.

The same rules for batch and stream. Whatever names something that is not there (a topic, a
partition, an offset that the log does not have) is one sentence that says what to do.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import replace

from chronik.model import TopicPartition
from chronik.spark.errors import DataLossError, OptionsError, SourceError
from chronik.spark.log_facts import LogFacts, Topic
from chronik.spark.offset_range import OffsetRange
from chronik.spark.options import ReadOptions, Subscription
from chronik.spark.planning import FoundTopic, LogSpan, is_recreated
from chronik.spark.positions import (
    EARLIEST,
    LATEST,
    Ago,
    Edge,
    Offsets,
    Position,
    Time,
    Times,
)

logger = logging.getLogger(__name__)

NO_OFFSET = -1  # what ListOffsets answers where no record is that late


def find_topics(facts: LogFacts, subscription: Subscription) -> dict[str, Topic]:
    """The topics of a read, with those of their partitions that it is about."""
    if subscription.pattern is not None:
        found = facts.matching(subscription.pattern)
        if not found:
            # No error: topics that match may be created later.
            logger.warning(
                "no topic matches subscribePattern=%s yet: the whole name must match, as in"
                " orders-.*",
                subscription.pattern,
            )
        return found
    if not subscription.assigned:
        return facts.topics(subscription.topics)
    found = facts.topics(sorted(subscription.assigned))
    for name, partitions in subscription.assigned.items():
        missing = sorted(set(partitions) - set(found[name].partitions))
        if missing:
            raise SourceError(
                f"assign names partition {missing[0]} of {name}, which has"
                f" {len(found[name].partitions)} partitions"
            )
    return assigned_only(found, subscription)


def check_id(topics: Mapping[str, Topic], wanted: bytes | None) -> None:
    """SourceError if a topic is not the one that was meant, but one of the same name."""
    for topic in topics.values():
        if wanted is not None and is_recreated(wanted, topic.topic_id):
            raise SourceError(
                f"the topic {topic.name} was deleted and created again: it has the id"
                f" {topic.topic_id.hex()}, and this read is of {wanted.hex()}; make the frame anew"
            )


def assigned_only(found: Mapping[str, Topic], subscription: Subscription) -> dict[str, Topic]:
    """The topics with no more partitions than were assigned, if any were."""
    return {
        name: replace(topic, partitions=subscription.assigned.get(name, topic.partitions))
        for name, topic in found.items()
    }


def find_spans(
    facts: LogFacts, topics: Mapping[str, Topic], *, read_committed: bool
) -> dict[str, FoundTopic]:
    """What each partition of the topics holds now."""
    places = [place for topic in topics.values() for place in topic.places]
    # The start first: records that are deleted in between make the span look larger, not negative.
    starts = facts.earliest(places)
    ends = facts.latest(places, read_committed=read_committed)
    return {
        name: FoundTopic(
            topic_id=topic.topic_id,
            spans={
                place.partition: LogSpan(
                    log_start_offset=starts[place],
                    end_offset=max(ends[place], starts[place]),
                )
                for place in topic.places
            },
        )
        for name, topic in topics.items()
    }


def bytes_per_offset(
    facts: LogFacts, topics: Mapping[str, Topic], found: Mapping[str, FoundTopic]
) -> dict[TopicPartition, float]:
    """What an offset costs on disk, on average: log size over offset span. Any broker can tell."""
    sizes = facts.sizes(topics.values())
    costs: dict[TopicPartition, float] = {}
    for name, topic in found.items():
        for partition, span in topic.spans.items():
            place = TopicPartition(name, partition)
            count = span.end_offset - span.log_start_offset
            if count > 0 and sizes.get(place, 0) > 0:
                costs[place] = sizes[place] / count
    mean = sum(costs.values()) / len(costs) if costs else 1.0
    return {
        TopicPartition(name, partition): costs.get(TopicPartition(name, partition), mean)
        for name, topic in found.items()
        for partition in topic.spans
    }


def resolve(
    facts: LogFacts,
    position: Position,
    found: Mapping[str, FoundTopic],
    *,
    option: str,
    fails_without_time: bool = False,
    read_committed: bool = True,
) -> dict[TopicPartition, int]:
    """The offset of a position in each partition."""
    spans = {
        TopicPartition(name, partition): span
        for name, topic in found.items()
        for partition, span in topic.spans.items()
    }
    match position:
        case Edge(offset=edge):
            return {place: _edge(edge, span) for place, span in spans.items()}
        case Offsets(by_place=by_place):
            _check_named(option, by_place, spans)
            return {
                place: _edge(by_place[place], span) if by_place[place] < 0 else by_place[place]
                for place, span in spans.items()
            }
        case Time(timestamp_ms=timestamp_ms):
            times = dict.fromkeys(spans, timestamp_ms)
        case Times(by_place=by_place):
            _check_named(option, by_place, spans)
            times = {place: by_place[place] for place in spans}
        case Ago(duration_ms=duration_ms):
            times = dict.fromkeys(spans, max(int(time.time() * 1000) - duration_ms, 0))
    offsets = facts.offsets(times, read_committed=read_committed)
    none = [place for place, offset in offsets.items() if offset == NO_OFFSET]
    if none and fails_without_time and not isinstance(position, Ago):
        raise SourceError(
            f"{option}: {none[0]} has no record at or after {times[none[0]]}; set"
            " startingOffsetsByTimestampStrategy to latest to begin at its end"
        )
    return {
        place: spans[place].end_offset if offset == NO_OFFSET else offset
        for place, offset in offsets.items()
    }


def _edge(edge: int, span: LogSpan) -> int:
    assert edge in (EARLIEST, LATEST)
    return span.log_start_offset if edge == EARLIEST else span.end_offset


def _check_named(
    option: str, named: Mapping[TopicPartition, int], there: Mapping[TopicPartition, object]
) -> None:
    unknown = sorted(set(named) - set(there))
    if unknown:
        raise OptionsError(f"{option} names {unknown[0]}, which this read does not have")
    missing = sorted(set(there) - set(named))
    if missing:
        raise OptionsError(
            f"{option} names no offset of {missing[0]}: add it (-2 is its earliest, -1 its latest)"
        )


def batch_ranges(
    facts: LogFacts, options: ReadOptions, found: Mapping[str, FoundTopic]
) -> list[OffsetRange]:
    """What a batch read takes of each partition; empty ones too."""
    starts = resolve(
        facts,
        options.starting,
        found,
        option="startingOffsets",
        fails_without_time=options.fails_without_time,
        read_committed=options.read_committed,
    )
    ends = resolve(
        facts,
        options.ending,
        found,
        option="endingOffsets",
        read_committed=options.read_committed,
    )
    ranges = []
    for name, topic in sorted(found.items()):
        for partition, span in sorted(topic.spans.items()):
            place = TopicPartition(name, partition)
            start, end = starts[place], ends[place]
            start = check_start(place, start, span, options.fail_on_data_loss)
            if end > span.end_offset:
                raise OptionsError(
                    f"endingOffsets: {place} ends at {span.end_offset}, before {end}: say -1 for"
                    " its end"
                )
            ranges.append(OffsetRange(name, topic.topic_id, partition, start, max(end, start)))
    return ranges


def check_start(place: TopicPartition, start: int, span: LogSpan, fails: bool) -> int:
    """A start that the log has; an explicit one before the log's is a loss."""
    if start > span.end_offset:
        raise OptionsError(
            f"startingOffsets: {place} ends at {span.end_offset}, before {start}: say -1 to begin"
            " at its end"
        )
    if start < span.log_start_offset:
        if fails:
            raise DataLossError(
                f"startingOffsets: {place} now starts at {span.log_start_offset}, so that"
                f" {span.log_start_offset - start} records from {start} on are gone (retention):"
                " say -2 for its earliest, or set failOnDataLoss to false to read what is left"
            )
        return span.log_start_offset
    return start
