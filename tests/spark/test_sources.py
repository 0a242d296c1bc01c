"""One suite for Spark's own `kafka` source and for `chronik`, against the same broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

START_MS = 1_700_000_000_000
Load = Callable[..., Any]


def run_to_end(frame: Any, checkpoint: Path) -> tuple[list[Any], Any]:
    """The rows of a stream over what is there now, and the query, which has ended."""
    rows: list[Any] = []
    query = (
        frame.writeStream.option("checkpointLocation", str(checkpoint))
        .foreachBatch(lambda batch, _: rows.extend(batch.collect()))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    return rows, query


def values(rows: list[Any]) -> list[bytes]:
    return sorted(bytes(row.value) for row in rows)


def test_batch_columns_and_types(spark: Any, read: Load, topics: Any, source: str) -> None:
    topic = topics.create(partitions=2)
    headers = [("h", b"1"), ("h", None)]
    topics.produce(topic, b"v", key=b"k", partition=1, timestamp=START_MS, headers=headers)
    topics.produce(topic, None, partition=0, timestamp=START_MS + 1)
    frame = read(source, topic, includeHeaders="true")
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    null, full = sorted(frame.collect(), key=lambda row: row.partition)
    assert full.asDict() == {
        "key": b"k",
        "value": b"v",
        "topic": topic,
        "partition": 1,
        "offset": 0,
        "timestamp": full.timestamp,
        "timestampType": 0,
        "headers": [("h", b"1"), ("h", None)],
    }
    assert full.timestamp.isoformat() == "2023-11-14T22:13:20"
    assert (null.key, null.value, null.headers) == (None, None, None)


def test_batch_between_offsets_and_times(read: Load, topics: Any, source: str) -> None:
    topic = topics.create(partitions=2)
    for number in range(6):
        topics.produce(
            topic, b"%d" % number, partition=number % 2, timestamp=START_MS + number * 1000
        )
    between = read(
        source,
        topic,
        startingOffsets=json.dumps({topic: {"0": 1, "1": -2}}),
        endingOffsets=json.dumps({topic: {"0": -1, "1": 2}}),
    )
    assert values(between.collect()) == [b"1", b"2", b"3", b"4"]
    timed = read(
        source,
        topic,
        startingTimestamp=str(START_MS + 1001),
        endingTimestamp=str(START_MS + 4000),
    )
    assert values(timed.collect()) == [b"2", b"3"]


def test_batch_of_several_topics(read: Load, topics: Any, source: str) -> None:
    prefix = topics.name()
    for end in ("a", "b", "c"):
        topics.create(f"{prefix}-{end}")
        topics.produce(f"{prefix}-{end}", end)
    by_list = read(source, f"{prefix}-a,{prefix}-b")
    assert values(by_list.collect()) == [b"a", b"b"]
    by_pattern = read(source, None, subscribePattern=f"{prefix}-[bc]")
    assert values(by_pattern.collect()) == [b"b", b"c"]
    assigned = read(source, None, assign=json.dumps({f"{prefix}-c": [0]}))
    assert values(assigned.collect()) == [b"c"]


def test_min_partitions_splits_what_is_large(read: Load, topics: Any, source: str) -> None:
    topic = topics.create(partitions=2)
    topics.produce(topic, *(b"%03d" % number for number in range(100)), partition=0)
    topics.produce(topic, b"x", partition=1)
    frame = read(source, topic, minPartitions="5")
    assert frame.rdd.getNumPartitions() >= 5
    assert len(set(values(frame.collect()))) == 101


def test_stream_restarts_from_its_checkpoint(
    read_stream: Load, topics: Any, source: str, tmp_path: Path
) -> None:
    topic = topics.create(partitions=2)
    topics.produce(topic, b"0", b"1", partition=0)
    frame = read_stream(source, topic, startingOffsets="earliest", maxOffsetsPerTrigger="2")
    topics.produce(topic, b"2", b"3", b"4", partition=1)
    rows, query = run_to_end(frame, tmp_path)
    assert values(rows) == [b"0", b"1", b"2", b"3", b"4"]
    sizes = [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]]
    assert len(sizes) >= 3, "each batch takes two records, or a little more"
    topics.produce(topic, b"5", b"6", partition=0)
    rows, _ = run_to_end(frame, tmp_path)
    assert values(rows) == [b"5", b"6"]
    rows, _ = run_to_end(frame, tmp_path)
    assert rows == []


def test_stream_finds_new_partitions(
    read_stream: Load, topics: Any, source: str, tmp_path: Path
) -> None:
    topic = topics.create()
    topics.produce(topic, b"0")
    frame = read_stream(source, topic, startingOffsets="earliest")
    rows, _ = run_to_end(frame, tmp_path)
    assert values(rows) == [b"0"]
    topics.grow(topic, 3)
    topics.produce(topic, b"1", partition=2)
    rows, _ = run_to_end(frame, tmp_path)
    assert values(rows) == [b"1"]


def test_stream_in_the_background(
    spark: Any, read_stream: Load, topics: Any, source: str, tmp_path: Path
) -> None:
    topic = topics.create()
    topics.produce(topic, b"before")
    rows: list[Any] = []
    query = (
        read_stream(source, topic)  # from the latest on, as is the default of both
        .writeStream.option("checkpointLocation", str(tmp_path))
        .foreachBatch(lambda batch, _: rows.extend(batch.collect()))
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    try:
        topics.wait_until(lambda: query.lastProgress is not None)
        topics.produce(topic, b"after")
        query.processAllAvailable()
        topics.wait_until(lambda: bool(rows))
    finally:
        query.stop()
    assert values(rows) == [b"after"]


def test_real_time_mode_of_sparks_own_source(
    spark: Any, read_stream: Load, topics: Any, tmp_path: Path, kafka_source: str
) -> None:
    start, end = topics.create(), topics.create()
    topics.produce(start, b"0")
    duration = "spark.sql.streaming.realTimeMode.minBatchDuration"
    before = spark.conf.get(duration)
    spark.conf.set(duration, "1s")
    query = (
        read_stream(kafka_source, start, startingOffsets="earliest")
        .select("value")
        .writeStream.format(kafka_source)
        .option("kafka.bootstrap.servers", topics.bootstrap)
        .option("topic", end)
        .option("checkpointLocation", str(tmp_path))
        .outputMode("update")
        .trigger(realTime="2 seconds")
        .start()
    )
    try:
        topics.wait_until(lambda: topics.end(end) == 1)
        topics.produce(start, b"1")
        topics.wait_until(lambda: topics.end(end) == 2)
    finally:
        query.stop()
        spark.conf.set(duration, before)
    assert query.exception() is None
