"""Reads as Spark plans them, asked of the readers directly: losses, crashes, limits, progress.

No JVM: what Spark would call is called here, in its order, so that a crash can be anywhere.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from pyspark.sql.types import BinaryType, StructField, StructType

from chronik.spark.errors import DataLossError, OptionsError, SourceError
from chronik.spark.source import ChronikSource

NO_BROKER = "127.0.0.1:1"
Make = Callable[..., Any]


@pytest.fixture
def batch(brokers: str) -> Make:
    """A batch reader of a topic."""

    def make(topic: str, **options: str) -> Any:
        source = ChronikSource({"bootstrap": brokers, "subscribe": topic, **options})
        return source.reader(source.schema())

    return make


@pytest.fixture
def stream(brokers: str) -> Iterator[Make]:
    """Stream readers of a topic, each as after a new start of its query."""
    made: list[Any] = []

    def make(topic: str, **options: str) -> Any:
        given = {"bootstrap": brokers, "subscribe": topic, "startingOffsets": "earliest"} | options
        source = ChronikSource(given)
        made.append(source.streamReader(source.schema()))
        return made[-1]

    yield make
    for reader in made:
        reader.stop()


def values(reader: Any, *offsets: Any) -> list[bytes]:
    """The values of all partitions that a reader plans."""
    return [
        value
        for partition in reader.partitions(*offsets)
        for each in reader.read(partition)
        for value in each.column("value").to_pylist()
    ]


def ends(offset: dict[str, Any]) -> dict[str, dict[str, int]]:
    return {name: topic["ends"] for name, topic in offset["topics"].items()}


def next_offset(reader: Any, start: dict[str, Any]) -> dict[str, Any]:
    """As Spark asks: by the reader's own limit, and through JSON."""
    return json.loads(json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit())))


# Streams


def test_nothing_new_is_the_same_text(stream: Make, topics: Any) -> None:
    topic = topics.create(partitions=2)
    reader = stream(topic)
    first = next_offset(reader, reader.initialOffset())
    assert values(reader, reader.initialOffset(), first) == []
    assert next_offset(reader, first) == first
    topics.produce(topic, b"a", partition=1)
    second = next_offset(reader, first)
    assert values(reader, first, second) == [b"a"]
    assert next_offset(reader, second) == second


def test_a_start_at_latest_survives_a_crash_of_batch_0(stream: Make, topics: Any) -> None:
    topic = topics.create()
    topics.produce(topic, b"old")
    reader = stream(topic, startingOffsets="latest")
    initial = reader.initialOffset()
    topics.produce(topic, b"during")
    assert reader.initialOffset() == initial, "Spark asks twice before batch 0"
    end = next_offset(reader, initial)
    topics.produce(topic, b"after")
    # The query dies in batch 0. Spark has kept its end, and asks where it began.
    again = stream(topic, startingOffsets="latest")
    assert values(again, again.initialOffset(), end) == [b"during"]
    following = next_offset(again, end)
    assert values(again, end, following) == [b"after"]


def test_limits_in_records(stream: Make, topics: Any) -> None:
    topic = topics.create(partitions=2)
    topics.produce(topic, *[b"x"] * 8, partition=0)
    topics.produce(topic, *[b"y"] * 2, partition=1)
    reader = stream(topic, maxOffsetsPerTrigger="5")
    assert reader.getDefaultReadLimit() == ReadMaxRows(5)
    start = reader.initialOffset()
    end = next_offset(reader, start)
    assert sorted(values(reader, start, end)) == [b"x"] * 4 + [b"y"]
    # Trigger.Once and the like set the limit aside.
    everything = reader.latestOffset(start, ReadAllAvailable())
    assert ends(everything)[topic] == {"0": 8, "1": 2}


def test_limits_in_bytes(stream: Make, topics: Any) -> None:
    topic = topics.create()
    for _ in range(20):
        topics.produce(topic, b"x" * 1000)
    reader = stream(topic, maxBytesPerTrigger="5k")
    assert reader.getDefaultReadLimit() == ReadMaxBytes(5120)
    start, batches = reader.initialOffset(), []
    while (end := next_offset(reader, start)) != start:
        batches.append(len(values(reader, start, end)))
        start = end
    assert sum(batches) == 20
    assert max(batches) <= 5


def test_available_now_ends_where_it_ended_when_it_began(stream: Make, topics: Any) -> None:
    topic = topics.create()
    topics.produce(topic, b"a", b"b", b"c")
    reader = stream(topic, maxOffsetsPerTrigger="2")
    reader.prepareForTriggerAvailableNow()
    topics.produce(topic, b"later")
    topics.grow(topic, 2)
    start, read = reader.initialOffset(), []
    while (end := next_offset(reader, start)) != start:
        read += values(reader, start, end)
        start = end
    assert read == [b"a", b"b", b"c"]


def test_splits_are_the_same_after_a_crash(stream: Make, topics: Any) -> None:
    # A sink tells repeated writes by query, batch and Spark partition: the rows must be the same.
    topic = topics.create(partitions=2)
    topics.produce(topic, *(b"%d" % number for number in range(90)), partition=0)
    topics.produce(topic, b"x", partition=1)
    reader = stream(topic, minPartitions="6")
    start = reader.initialOffset()
    end = next_offset(reader, start)
    planned = [each.offset_range for each in reader.partitions(start, end)]
    assert len(planned) == 6
    topics.produce(topic, b"y" * 100_000, partition=1)
    again = stream(topic, minPartitions="3")
    assert [each.offset_range for each in again.partitions(again.initialOffset(), end)] == planned


def test_progress_is_committed_to_the_group_the_last_batch_too(stream: Make, topics: Any) -> None:
    topic = topics.create()
    topics.produce(topic, b"a", b"b", b"c")
    group = topics.name()
    reader = stream(topic, groupId=group, maxOffsetsPerTrigger="2")
    first = next_offset(reader, reader.initialOffset())
    assert topics.committed(group) == {(topic, 0): 0}, "nothing is done before batch 0"
    second = next_offset(reader, first)
    assert topics.committed(group) == {(topic, 0): 2}
    assert next_offset(reader, second) == second
    assert topics.committed(group) == {(topic, 0): 3}


def test_a_group_with_members_of_its_own_does_not_stop_the_query(
    stream: Make, topics: Any, caplog: pytest.LogCaptureFixture
) -> None:
    from confluent_kafka import Consumer

    topic = topics.create()
    group = topics.name()
    config = {"bootstrap.servers": topics.bootstrap, "group.id": group}
    consumer = Consumer(config)
    try:
        consumer.subscribe([topic])
        topics.wait_until(lambda: bool(consumer.poll(0.1) or consumer.assignment()))
        reader = stream(topic, groupId=group)
        with caplog.at_level(logging.WARNING):
            next_offset(reader, reader.initialOffset())
        assert f"group {group}" in caplog.text
    finally:
        consumer.close()


def test_records_that_are_gone_fail_the_query_with_their_count(stream: Make, topics: Any) -> None:
    topic = topics.create()
    topics.produce(topic, *(b"%d" % number for number in range(10)))
    reader = stream(topic, maxOffsetsPerTrigger="2")
    end = next_offset(reader, reader.initialOffset())
    topics.delete_records(topic, 0, 7)
    with pytest.raises(DataLossError, match=r"5 records lost \(retention\): .*starts at 7.*failOn"):
        next_offset(stream(topic), end)
    tolerant = stream(topic, failOnDataLoss="false")
    following = next_offset(tolerant, end)
    assert values(tolerant, end, following) == [b"7", b"8", b"9"]


def test_a_recreated_topic_is_noticed(stream: Make, topics: Any) -> None:
    topic = topics.create()
    topics.produce(topic, b"a", b"b")
    reader = stream(topic)
    end = next_offset(reader, reader.initialOffset())
    topics.delete(topic)
    topics.create(topic)
    topics.produce(topic, b"c", b"d", b"e")  # more than before: the offset alone would not tell
    with pytest.raises(DataLossError, match="deleted and created again"):
        next_offset(stream(topic), end)
    tolerant = stream(topic, failOnDataLoss="false")
    following = next_offset(tolerant, end)
    assert sorted(values(tolerant, end, following)) == [b"c", b"d", b"e"]


def test_a_batch_of_a_topic_that_is_recreated_meanwhile_fails(stream: Make, topics: Any) -> None:
    topic = topics.create()
    topics.produce(topic, b"a", b"b")
    reader = stream(topic)
    start = reader.initialOffset()
    end = next_offset(reader, start)
    topics.delete(topic)
    topics.create(topic)
    topics.produce(topic, b"c", b"d")
    with pytest.raises(DataLossError, match="recreated"):
        values(reader, start, end)


def test_a_deleted_topic_is_noticed(stream: Make, topics: Any) -> None:
    topic, other = topics.create(), topics.create()
    topics.produce(topic, b"a")
    both = f"{topic},{other}"
    reader = stream(both)
    end = next_offset(reader, reader.initialOffset())
    topics.delete(topic)
    with pytest.raises(DataLossError, match=f"{topic}: .*was deleted"):
        next_offset(reader, end)
    tolerant = stream(both, failOnDataLoss="false")
    following = next_offset(tolerant, end)
    assert list(ends(following)) == [other]
    assert next_offset(tolerant, following) == following
    topics.create(topic)
    topics.produce(topic, b"new")
    last = next_offset(tolerant, following)
    assert values(tolerant, following, last) == [b"new"]


def test_a_topic_that_was_never_there_stops_a_query_that_is_restarted(
    stream: Make, topics: Any
) -> None:
    topic = topics.create()
    reader = stream(topic)
    end = next_offset(reader, reader.initialOffset())
    with pytest.raises(SourceError, match="there is no topic no-such-topic"):
        next_offset(stream(f"{topic},no-such-topic", startingOffsets="latest"), end)


def test_relative_starts(stream: Make, topics: Any) -> None:
    import time

    topic = topics.create()
    now_ms = int(time.time() * 1000)
    topics.produce(topic, b"old", timestamp=now_ms - 3_600_000)
    topics.produce(topic, b"new", timestamp=now_ms)
    reader = stream(topic, startingOffsets="-10m")
    start = reader.initialOffset()
    assert values(reader, start, next_offset(reader, start)) == [b"new"]


# Batches


def test_filters_narrow_what_is_planned(batch: Make, topics: Any) -> None:
    from datetime import UTC, datetime

    from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual

    topic = topics.create(partitions=3)
    for partition in range(3):
        for number in range(5):
            at = 1_700_000_000_000 + number * 1000
            topics.produce(topic, b"%d-%d" % (partition, number), partition=partition, timestamp=at)
    reader = batch(topic)
    list(reader.pushFilters([EqualTo(("partition",), 1), GreaterThan(("offset",), 2)]))
    assert values(reader) == [b"1-3", b"1-4"]
    timed = batch(topic)
    late = datetime.fromtimestamp(1_700_000_004, UTC)
    list(timed.pushFilters([GreaterThanOrEqual(("timestamp",), late)]))
    ranges = [each.offset_range for each in timed.partitions()]
    assert [(each.start_offset, each.end_offset) for each in ranges] == [(4, 5)] * 3
    assert values(timed) == [b"0-4", b"1-4", b"2-4"]


def test_uncommitted_records_are_read_only_on_request(batch: Make, topics: Any) -> None:
    from confluent_kafka import Producer

    topic = topics.create()
    producer = Producer({"bootstrap.servers": topics.bootstrap, "transactional.id": topics.name()})
    producer.init_transactions()
    for value, ends_it in (
        (b"kept", producer.commit_transaction),
        (b"no", producer.abort_transaction),
    ):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush()
        ends_it()
    assert values(batch(topic)) == [b"kept"]
    assert values(batch(topic, isolation="read_uncommitted")) == [b"kept", b"no"]


def test_a_schema_is_inferred_from_what_is_there(brokers: str, topics: Any) -> None:
    topic = topics.create()
    source = ChronikSource({"bootstrap": brokers, "subscribe": topic, "decode": "json"})
    with pytest.raises(SourceError, match="no value yet to infer a schema from"):
        source.schema()
    topics.produce(topic, b'{"id": 1, "tags": ["a"]}', None, b'{"id": 2, "price": 2.5}')
    names = [field.simpleString() for field in source.schema().fields]
    assert names[:3] == ["id:bigint", "tags:array<string>", "price:double"]


# What is wrong is one sentence


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"subscribe": "no-such-topic"}, SourceError, "there is no topic no-such-topic"),
        ({"subscribe": "{topic}", "bootstrap": NO_BROKER}, SourceError, "answers"),
        ({"assign": '{"{topic}": [0, 9]}'}, SourceError, "assign names partition 9 of"),
        (
            {"subscribe": "{topic}", "startingOffsets": '{"{topic}": {"0": 99}}'},
            OptionsError,
            "ends at 1, before 99",
        ),
        (
            {"subscribe": "{topic}", "startingOffsets": '{"{topic}": {"1": 0}}'},
            OptionsError,
            "which this read does not have",
        ),
        (
            {"subscribe": "{topic}", "endingOffsets": '{"{topic}": {"0": 99}}'},
            OptionsError,
            "ends at 1, before 99",
        ),
        (
            {
                "subscribe": "{topic}",
                "startingTimestamp": "99999999999999",
            },
            SourceError,
            "has no record at or after",
        ),
    ],
)
def test_wrong_reads(brokers: str, topics: Any, options: dict, error: type, words: str) -> None:
    topic = topics.create()
    topics.produce(topic, b"x")
    given = {name: value.replace("{topic}", topic) for name, value in options.items()}
    given["kafka.default.api.timeout.ms"] = "2000"
    source = ChronikSource({"bootstrap": brokers} | given)
    with pytest.raises(error) as caught:
        source.reader(source.schema()).partitions()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"endingOffsets": "latest"}, "endingOffsets is not for streaming reads"),
        ({"columns": "offset,value"}, "choose different columns"),
    ],
)
def test_a_refused_stream_says_so_when_it_is_asked(options: dict, words: str) -> None:
    """PySpark hides what `streamReader` itself raises behind an error of its own."""
    source = ChronikSource({"bootstrap": NO_BROKER, "subscribe": "t", **options})
    reader = source.streamReader(StructType([StructField("value", BinaryType())]))
    questions: list[Callable[[], Any]] = [
        reader.getDefaultReadLimit,
        reader.prepareForTriggerAvailableNow,
        reader.initialOffset,
        lambda: reader.latestOffset({}, ReadAllAvailable()),
        lambda: reader.partitions({}, {}),
    ]
    for ask in questions:
        with pytest.raises(OptionsError, match=words):
            ask()
    reader.stop()


def test_a_start_at_a_time(batch: Make, topics: Any) -> None:
    topic = topics.create()
    now_ms = int(time.time() * 1000)
    for number in range(3):
        topics.produce(topic, b"%d" % number, timestamp=now_ms + number * 1000)
    second = datetime.fromtimestamp((now_ms + 1000) / 1000, UTC).isoformat()
    assert values(batch(topic, startingOffsets=second)) == [b"1", b"2"]
    assert values(batch(topic, endingOffsets=second)) == [b"0"]


def test_a_pattern_without_a_match_reads_nothing(brokers: str) -> None:
    source = ChronikSource({"bootstrap": brokers, "subscribePattern": "no-such-.*"})
    assert source.reader(source.schema()).partitions() == []


def test_no_part_of_a_batch_is_larger_than_it_may_be(batch: Make, topics: Any) -> None:
    topic = topics.create(partitions=2)
    topics.produce(topic, *[b"x"] * 7, partition=0)
    topics.produce(topic, b"y", partition=1)
    parts = batch(topic, maxRecordsPerPartition="3").partitions()
    assert len(parts) == 4
    assert len(batch(topic, maxRecordsPerPartition="3", minPartitions="6").partitions()) == 6


def test_an_explicit_start_that_is_gone_is_a_loss(batch: Make, topics: Any) -> None:
    topic = topics.create()
    topics.produce(topic, b"a", b"b", b"c")
    topics.delete_records(topic, 0, 2)
    start = json.dumps({topic: {"0": 1}})
    with pytest.raises(DataLossError, match=r"1 records from 1 on are gone \(retention\)"):
        batch(topic, startingOffsets=start).partitions()
    assert values(batch(topic, startingOffsets=start, failOnDataLoss="false")) == [b"c"]
