"""The streaming read: micro-batches with admission control, and AvailableNow.

Spark asks, in one long-lived process on the driver: where to begin (more than once), how far the
next batch goes, and how to cut it. All memory is in the offsets that Spark keeps in its checkpoint
(see `offsets`); tasks only read ranges.

`latestOffset(start)` is Spark's sign that the batch that ended at `start` is finished: it is called
after every batch, the last one too. So it is there that progress is committed to the group.

Losses (retention, a recreated topic, a truncated log) are found while a batch is planned and fail
the query, unless `failOnDataLoss` is false: then they are logged, and it goes on with what is left.
"""

import logging
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from chronik.clock import Clock, SystemClock
from chronik.model import TopicPartition
from chronik.spark.errors import DataLossError
from chronik.spark.layout import Layout
from chronik.spark.log_facts import LogFacts, Topic
from chronik.spark.offset_range import OffsetRange
from chronik.spark.offsets import StreamOffset, TopicEnds, ranges_between
from chronik.spark.options import ReadOptions
from chronik.spark.planning import (
    FoundTopic,
    Reconciled,
    admit,
    capped,
    count_of,
    cut,
    offset_after,
    parts_of,
    parts_within,
    reconcile,
)
from chronik.spark.progress import Progress
from chronik.spark.resolution import (
    assigned_only,
    bytes_per_offset,
    check_id,
    check_start,
    find_spans,
    find_topics,
    resolve,
)
from chronik.spark.tasks import RangePartition, read_range

logger = logging.getLogger(__name__)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches on the driver, and reads a part of one in each task."""

    def __init__(self, options: ReadOptions, layout: Layout, *, clock: Clock | None = None) -> None:
        self._options = options
        self._layout = layout
        self._clock = clock or SystemClock()
        self._triggered_at: float | None = None  # None: the first trigger waits for nothing
        # What only the planning process has; a task gets a copy that never planned anything.
        self._facts: LogFacts | None = None
        self._progress = None if options.group_id is None else Progress(options.group_id)
        self._initial: dict[str, Any] | None = None
        self._target: dict[str, FoundTopic] | None = None
        self._latest: dict[str, FoundTopic] = {}
        self._gone: set[str] = set()  # waited for in vain, and not seen since

    @property
    def facts(self) -> LogFacts:
        """The driver's connection, opened when it is first needed."""
        if self._facts is None:
            self._facts = LogFacts(self._options.connection)
        return self._facts

    # Where to begin

    def initialOffset(self) -> dict[str, Any]:
        if self._initial is None:
            self._initial = self._resolved_start().to_json()
        return self._initial

    def _resolved_start(self) -> StreamOffset:
        options = self._options
        topics = find_topics(self.facts, options.subscription)
        check_id(topics, options.topic_id)
        found = find_spans(self.facts, topics, read_committed=options.read_committed)
        starts = resolve(
            self.facts,
            options.starting,
            found,
            option="startingOffsets",
            fails_without_time=options.fails_without_time,
            read_committed=options.read_committed,
        )
        ends: dict[str, TopicEnds] = {}
        for name, topic in found.items():
            begins = {
                partition: check_start(
                    TopicPartition(name, partition),
                    starts[TopicPartition(name, partition)],
                    span,
                    options.fail_on_data_loss,
                )
                for partition, span in topic.spans.items()
            }
            ends[name] = TopicEnds(topic_id=topic.topic_id, ends=begins)
        return StreamOffset(topics=ends, is_initial=True)

    # How far to go

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_offsets is not None:
            return ReadMaxRows(self._options.max_offsets)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        if self._options.min_offsets is not None:
            return ReadMinRows(self._options.min_offsets)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._found(self._existing())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        stands = StreamOffset.from_json(start)
        topics = self._topics(stands.topics)
        found = self._found(topics)
        self._latest = found
        if self._target is not None:
            for name in stands.topics.keys() & found.keys():
                self._target.setdefault(name, found[name])  # It was there, and not shown.
        reconciled = reconcile(
            stands, found if self._target is None else capped(found, self._target)
        )
        self._report(reconciled)
        if self._progress is not None:
            there = {each.place for each in reconciled.ranges}
            done = {place: end for place, end in stands.ends().items() if place in there}
            self._progress.reached(self.facts, done)
        counts, weights = self._admitted(reconciled, topics, found, limit)
        is_same = not reconciled.begins and not reconciled.losses
        if is_same and (not counts or self._may_wait(reconciled, limit)):
            return start  # Word for word: Spark takes it for a sign that there is nothing new.
        self._triggered_at = self._clock.monotonic()
        parts = self._parts(reconciled, counts, topics, found, weights)
        return offset_after(reconciled, counts, parts).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        ends = {
            name: TopicEnds(
                topic_id=topic.topic_id,
                ends={partition: span.end_offset for partition, span in topic.spans.items()},
            )
            for name, topic in self._latest.items()
        }
        return StreamOffset(topics=ends).to_json() if ends else None

    def _existing(self) -> dict[str, Topic]:
        """The topics of the subscription that are there now."""
        subscription = self._options.subscription
        if subscription.pattern is not None:
            return self.facts.matching(subscription.pattern)
        return assigned_only(self.facts.existing(subscription.names), subscription)

    def _topics(self, known: Mapping[str, object]) -> dict[str, Topic]:
        """The topics of the next batch; those that the query had and are gone are left out."""
        found = self._existing()
        subscription = self._options.subscription
        missing = [name for name in subscription.expected(known) if name not in found]
        self._gone &= {*missing}
        waited_for = [name for name in missing if name not in self._gone]
        if waited_for:
            # One that was only just created may not be known everywhere, nor may one that moves.
            found |= assigned_only(self.facts.existing_in_time(waited_for), subscription)
            self._gone |= {*waited_for} - found.keys()
        new = [name for name in missing if name not in found and name not in known]
        if new and self._options.fail_on_data_loss:
            self.facts.topics(new)  # A topic that the query never had must be there.
        return found

    def _found(self, topics: Mapping[str, Topic]) -> dict[str, FoundTopic]:
        return find_spans(self.facts, topics, read_committed=self._options.read_committed)

    def _report(self, reconciled: Reconciled) -> None:
        if reconciled.losses and self._options.fail_on_data_loss:
            losses = "; ".join(map(str, reconciled.losses))
            raise DataLossError(
                f"{losses}. Set failOnDataLoss=false to go on with what is left, or start with a"
                " new checkpoint"
            )
        for loss in reconciled.losses:
            logger.warning("%s", loss)

    def _admitted(
        self,
        reconciled: Reconciled,
        topics: Mapping[str, Topic],
        found: Mapping[str, FoundTopic],
        limit: ReadLimit,
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, float] | None]:
        """How many offsets of each partition, and the weights if they had to be asked for."""
        backlog = {each.place: count_of(each) for each in reconciled.ranges if count_of(each) > 0}
        if isinstance(limit, ReadAllAvailable) or not backlog:
            return backlog, None
        counts, weights = backlog, None
        if self._options.max_offsets is not None:
            counts = admit(counts, self._options.max_offsets)
        if self._options.max_bytes is not None:
            weights = bytes_per_offset(self.facts, topics, found)
            counts = admit(counts, self._options.max_bytes, weights)
        return counts, weights

    def _may_wait(self, reconciled: Reconciled, limit: ReadLimit) -> bool:
        """Whether there are fewer records than a trigger is to have, and that not for too long.

        What is available now is read to its end, and not waited for.
        """
        least = self._options.min_offsets
        if least is None or self._target is not None or isinstance(limit, ReadAllAvailable):
            return False
        if self._triggered_at is None or sum(map(count_of, reconciled.ranges)) >= least:
            return False
        waited_ms = (self._clock.monotonic() - self._triggered_at) * 1000
        return waited_ms < self._options.max_trigger_delay_ms

    def _parts(
        self,
        reconciled: Reconciled,
        counts: Mapping[TopicPartition, int],
        topics: Mapping[str, Topic],
        found: Mapping[str, FoundTopic],
        weights: Mapping[TopicPartition, float] | None,
    ) -> dict[TopicPartition, int]:
        taken = [
            OffsetRange(
                each.topic,
                each.topic_id,
                each.partition,
                each.start_offset,
                each.start_offset + counts.get(each.place, 0),
            )
            for each in reconciled.ranges
        ]
        parts = parts_within(taken, self._options.max_records)
        wanted = self._options.min_partitions or 0
        if not parts or sum(parts.values()) >= wanted:
            return parts
        if weights is None:
            weights = bytes_per_offset(self.facts, topics, found)
        return parts_of(taken, wanted, weights, self._options.max_records)

    # What to read

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        until = StreamOffset.from_json(end)
        ranges = ranges_between(StreamOffset.from_json(start), until)
        return [RangePartition(each) for each in cut(ranges, until.parts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(
            partition,
            connection=self._options.connection,
            layout=self._layout,
            read_committed=self._options.read_committed,
            fail_on_data_loss=self._options.fail_on_data_loss,
        )

    def stop(self) -> None:
        if self._facts is not None:
            self._facts.close()
            self._facts = None


class RefusedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A read that was refused: it answers every question with what is wrong.

    PySpark answers an error of `streamReader` with one of its own, since it has no reader to stop,
    and that would be the last line of what the user sees.
    """

    def __init__(self, why: Exception) -> None:
        self._why = why

    def getDefaultReadLimit(self) -> NoReturn:
        raise self._why

    def prepareForTriggerAvailableNow(self) -> NoReturn:
        raise self._why

    def initialOffset(self) -> NoReturn:
        raise self._why

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> NoReturn:
        raise self._why

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> NoReturn:
        raise self._why

    def read(self, partition: InputPartition) -> NoReturn:
        raise self._why
