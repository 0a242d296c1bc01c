"""How far a batch goes and into how many tasks it is cut: pure arithmetic over what was found.

`reconcile` compares where a query stands with what the log holds now, and names every loss.
`admit` shares a limit among partitions, `parts_of` and `cut` make several tasks of a large range.

Invariants
    A limit is kept, except that a batch always takes at least one record where there is one: a
        record larger than the limit must not stop a query for ever.
    Every partition with a backlog gets its turn: one record each where the limit allows it, and
        otherwise the longest backlogs first.
    A cut loses and repeats no offset.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from chronik.model import TopicPartition
from chronik.spark.offset_range import OffsetRange
from chronik.spark.offsets import NO_TOPIC_ID, StreamOffset, TopicEnds

Weights = Mapping[TopicPartition, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSpan:
    """What a partition holds now, as a reader sees it."""

    log_start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTopic:
    """A topic as it is now."""

    topic_id: bytes
    spans: Mapping[int, LogSpan]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Records that were promised and are gone; the count is None where nobody can know it."""

    subject: str
    reason: str  # one word, as `offset_range` has it for a gap that a task finds
    why: str
    count: int | None

    def __str__(self) -> str:
        count = "an unknown number of records" if self.count is None else f"{self.count} records"
        return f"{self.subject}: {count} lost ({self.reason}): {self.why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciled:
    """Where the next batch begins and could end, and what it can no longer get."""

    ranges: Sequence[OffsetRange]
    topics: Mapping[str, FoundTopic]
    begins: Mapping[TopicPartition, int]
    losses: Sequence[Loss]


def reconcile(start: StreamOffset, found: Mapping[str, FoundTopic]) -> Reconciled:
    """Compare where a query stands with the log: what there is to read, and what is lost."""
    ranges: list[OffsetRange] = []
    begins: dict[TopicPartition, int] = {}
    losses = [
        Loss(
            subject=name,
            reason="deleted",
            why="the topic was deleted or is no longer subscribed to",
            count=None,
        )
        for name in start.topics
        if name not in found
    ]
    for name, topic in sorted(found.items()):
        known = start.topics.get(name)
        if known is not None and is_recreated(known.topic_id, topic.topic_id):
            losses.append(
                Loss(
                    subject=name,
                    reason="recreated",
                    why="the topic was deleted and created again"
                    f" (id {known.topic_id.hex()} is now {topic.topic_id.hex()})",
                    count=None,
                )
            )
            known = None
        for partition, span in sorted(topic.spans.items()):
            place = TopicPartition(name, partition)
            stood = None if known is None else known.ends.get(partition)
            begin, loss = _begin(place, stood, span)
            if loss is not None:
                losses.append(loss)
            if begin != stood or start.is_initial:
                begins[place] = begin
            ranges.append(OffsetRange(name, topic.topic_id, partition, begin, span.end_offset))
        # A partition that is not shown now (a broker that lags behind, other options for a while)
        # keeps its place: forgotten, it would be read from its first record when it shows again.
        for partition, stood in () if known is None else sorted(known.ends.items()):
            if partition not in topic.spans:
                ranges.append(OffsetRange(name, topic.topic_id, partition, stood, stood))
                if start.is_initial:
                    begins[TopicPartition(name, partition)] = stood
    return Reconciled(ranges=ranges, topics=found, begins=begins, losses=losses)


def is_recreated(known_id: bytes, found_id: bytes) -> bool:
    """Whether a topic is another one of the same name; old brokers give no ids to tell by."""
    return NO_TOPIC_ID not in (known_id, found_id) and known_id != found_id


def _begin(place: TopicPartition, stood: int | None, span: LogSpan) -> tuple[int, Loss | None]:
    if stood is None:
        return span.log_start_offset, None  # A new partition is read from its first record.
    if stood < span.log_start_offset:
        why = f"the log now starts at {span.log_start_offset}, the query stands at {stood}"
        count = span.log_start_offset - stood
        loss = Loss(subject=str(place), reason="retention", why=why, count=count)
        return span.log_start_offset, loss
    if stood > span.end_offset:
        why = f"the log ends at {span.end_offset}, before {stood}, where the query stands"
        return span.end_offset, Loss(subject=str(place), reason="truncated", why=why, count=None)
    return stood, None


def offset_after(
    reconciled: Reconciled,
    counts: Mapping[TopicPartition, int],
    parts: Mapping[TopicPartition, int] | None = None,
) -> StreamOffset:
    """The offset of a batch that takes so many offsets of each partition, in so many parts."""
    topics: dict[str, TopicEnds] = {}
    for each in reconciled.ranges:
        name, partition = each.place
        ends = dict(topics[name].ends) if name in topics else {}
        ends[partition] = each.start_offset + counts.get(each.place, 0)
        topics[name] = TopicEnds(topic_id=each.topic_id, ends=ends)
    several = {place: number for place, number in (parts or {}).items() if number > 1}
    return StreamOffset(topics=topics, begins=reconciled.begins, parts=several)


def capped(
    found: Mapping[str, FoundTopic], target: Mapping[str, FoundTopic]
) -> dict[str, FoundTopic]:
    """What was found, as if nothing had come since `target`: topics, partitions or records."""
    kept: dict[str, FoundTopic] = {}
    for name, topic in found.items():
        then = target.get(name)
        if then is None or is_recreated(then.topic_id, topic.topic_id):
            continue
        spans = {
            partition: replace(
                span, end_offset=min(span.end_offset, then.spans[partition].end_offset)
            )
            for partition, span in topic.spans.items()
            if partition in then.spans
        }
        kept[name] = replace(topic, spans=spans)
    return kept


def admit(
    backlog: Mapping[TopicPartition, int], limit: float, weights: Weights | None = None
) -> dict[TopicPartition, int]:
    """How many offsets to take of each partition, their weight at most the limit.

    A weight is what one offset costs: 1 for a limit in records, its bytes for one in bytes. Each
    partition gets a share in proportion to its backlog, so that they end together.
    """
    sizes = {place: count for place, count in backlog.items() if count > 0}
    costs = {place: max(weights.get(place, 1.0), 1e-9) if weights else 1.0 for place in sizes}
    total = sum(sizes[place] * costs[place] for place in sizes)
    if total <= limit:
        return sizes
    taken = dict.fromkeys(sizes, 0)
    room = float(limit)
    longest_first = sorted(sizes, key=lambda place: (-sizes[place] * costs[place], place))
    for place in longest_first:
        if costs[place] <= room or place is longest_first[0]:
            taken[place] = 1
            room -= costs[place]
    rest = sum((sizes[place] - taken[place]) * costs[place] for place in sizes)
    # Shares are rounded down: what is left after them is less than one record each.
    for place in longest_first:
        left = sizes[place] - taken[place]
        share = min(math.floor(max(room, 0) * left / rest), left) if rest > 0 else 0
        taken[place] += share
    spent = sum(taken[place] * costs[place] for place in sizes)
    for place in longest_first:
        if taken[place] < sizes[place] and spent + costs[place] <= limit:
            taken[place] += 1
            spent += costs[place]
    return {place: count for place, count in taken.items() if count}


def parts_within(ranges: Sequence[OffsetRange], count_max: int | None) -> dict[TopicPartition, int]:
    """Into how many parts to cut each range so that none has more offsets than that."""
    counts = {each.place: count_of(each) for each in ranges if count_of(each) > 0}
    return {place: -(-count // (count_max or count)) for place, count in counts.items()}


def parts_of(
    ranges: Sequence[OffsetRange],
    parts_min: int,
    weights: Weights | None = None,
    count_max: int | None = None,
) -> dict[TopicPartition, int]:
    """Into how many parts to cut each range to get at least so many, the heavy ones first.

    An offset is never cut, so that there may be fewer. Empty ranges have no part.
    """
    counts = {each.place: count_of(each) for each in ranges if count_of(each) > 0}
    heft = {place: counts[place] * (weights or {}).get(place, 1.0) for place in counts}
    parts = parts_within(ranges, count_max)
    for _ in range(parts_min - sum(parts.values())):
        can_be_cut = [place for place in counts if parts[place] < counts[place]]
        if not can_be_cut:
            break
        # The next cut goes to whoever's parts are largest: the greedy way to the smallest maximum.
        parts[max(can_be_cut, key=lambda place: heft[place] / parts[place])] += 1
    return parts


def cut(ranges: Sequence[OffsetRange], parts: Mapping[TopicPartition, int]) -> list[OffsetRange]:
    """The ranges in so many parts each; one where nothing is said, none where it is empty."""
    return [
        part
        for each in ranges
        if count_of(each) > 0
        for part in _cut(each, min(parts.get(each.place, 1), count_of(each)))
    ]


def count_of(each: OffsetRange) -> int:
    """How many offsets a range has."""
    return each.end_offset - each.start_offset


def _cut(whole: OffsetRange, parts: int) -> Iterable[OffsetRange]:
    bounds = [whole.start_offset + count_of(whole) * number // parts for number in range(parts + 1)]
    for begin, end in pairwise(bounds):
        yield replace(whole, start_offset=begin, end_offset=end)
