"""Writes: both sinks give the same records, and ours gives each of them once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from chronik.client.partitioner import partition_of
from chronik.spark.connection import Connection
from chronik.spark.errors import OptionsError, SourceError
from chronik.spark.log_facts import LogFacts
from chronik.spark.log_reader import LogReader
from chronik.spark.offset_range import OffsetRange
from chronik.spark.resolution import find_spans
from chronik.spark.source import ChronikSource

Load = Callable[..., Any]


def records(bootstrap: str, topic: str, read_committed: bool = True) -> list[dict[str, Any]]:
    """All records of a topic, partition by partition."""
    connection = Connection(bootstrap=bootstrap)
    with LogFacts(connection) as facts:
        found = find_spans(facts, facts.topics([topic]), read_committed=read_committed)[topic]
    rows: list[dict[str, Any]] = []
    with LogReader(connection) as reader:
        for partition, span in sorted(found.spans.items()):
            ends = (span.log_start_offset, span.end_offset)
            for batch in reader.read(OffsetRange(topic, found.topic_id, partition, *ends)):
                rows += batch.to_pylist()
    return rows


def test_batch_write(spark: Any, topics: Any, source: str) -> None:
    topic, other = topics.create(partitions=3), topics.create()
    frame = spark.createDataFrame(
        [
            ("k", "v", [("h", bytearray(b"1"))], topic, None),
            (None, None, None, topic, 2),
            ("x", "w", None, other, None),
        ],
        "key STRING, value STRING, headers ARRAY<STRUCT<key: STRING, value: BINARY>>, topic STRING,"
        " partition INT",
    )
    writer = frame.write.format(source).option("kafka.bootstrap.servers", topics.bootstrap)
    writer.mode("append").save()
    by_value = {row["value"]: row for row in records(topics.bootstrap, topic)}
    assert by_value[b"v"]["headers"] == [{"key": "h", "value": b"1"}]
    assert by_value[b"v"]["partition"] == partition_of(b"k", 3)
    assert by_value[None]["partition"] == 2
    assert [row["key"] for row in records(topics.bootstrap, other)] == [b"x"]


def test_stream_write_and_restart(
    spark: Any, read_stream: Load, topics: Any, source: str, tmp_path: Path
) -> None:
    start, end = topics.create(partitions=2), topics.create(partitions=2)
    topics.produce(start, b"0", b"1", b"2", partition=0)
    topics.produce(start, b"3", partition=1)

    def run() -> None:
        query = (
            read_stream(source, start, startingOffsets="earliest", maxOffsetsPerTrigger="2")
            .selectExpr("key", "concat('copy of ', cast(value AS STRING)) AS value")
            .writeStream.format(source)
            .option("kafka.bootstrap.servers", topics.bootstrap)
            .option("topic", end)
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)

    def copies() -> list[bytes]:
        return sorted(row["value"] for row in records(topics.bootstrap, end))

    run()
    assert copies() == [b"copy of %d" % number for number in range(4)]
    topics.produce(start, b"4", partition=1)
    run()
    assert copies() == [b"copy of %d" % number for number in range(5)]


def test_a_batch_that_is_repeated_after_a_crash_is_written_once(
    spark: Any, read_stream: Load, topics: Any, tmp_path: Path
) -> None:
    start, end = topics.create(partitions=2), topics.create()
    topics.produce(start, b"0", b"1", partition=0)
    topics.produce(start, b"2", b"3", partition=1)

    def run() -> None:
        query = (
            read_stream("chronik", start, startingOffsets="earliest")
            .select("value")
            .writeStream.format("chronik")
            .options(bootstrap=topics.bootstrap, topic=end, checkpointLocation=str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)

    run()
    written = records(topics.bootstrap, end)
    # As if the driver had died between the write and Spark's own note of it.
    (commit,) = [each for each in (tmp_path / "commits").iterdir() if each.name == "0"]
    commit.unlink()
    (tmp_path / "commits" / ".0.crc").unlink(missing_ok=True)
    run()
    assert records(topics.bootstrap, end) == written
    assert sorted(row["value"] for row in written) == [b"0", b"1", b"2", b"3"]


def test_a_write_id_makes_a_batch_write_happen_once(spark: Any, topics: Any) -> None:
    topic = topics.create()
    frame = spark.range(6, numPartitions=3).select(F.col("id").cast("string").alias("value"))

    def save(**options: str) -> None:
        given = {"bootstrap": topics.bootstrap, "topic": topic, **options}
        frame.write.format("chronik").options(**given).mode("append").save()

    save(writeId=topic)
    save(writeId=topic)
    assert sorted(row["value"] for row in records(topics.bootstrap, topic)) == [
        b"%d" % number for number in range(6)
    ]
    save(writeId=f"{topic}-2", compression="zstd")
    save()
    assert len(records(topics.bootstrap, topic)) == 18
    other = topics.create()
    save(writeId=topic, topic=other)
    assert len(records(topics.bootstrap, other)) == 6, "to another topic it is another write"


def test_a_task_that_fails_and_is_tried_again_leaves_no_row(
    spark: Any, topics: Any, tmp_path: Path
) -> None:
    topic = topics.create()
    marker = tmp_path / "failed"

    def fail_once(batches: Any) -> Any:
        from pyspark import TaskContext

        yield from batches
        if TaskContext.get().partitionId() == 1 and not marker.exists():
            marker.touch()
            raise RuntimeError("the executor died")

    frame = (
        spark.range(8, numPartitions=2)
        .select(F.col("id").cast("string").alias("value"))
        .mapInArrow(fail_once, "value STRING")
    )
    options = {"bootstrap": topics.bootstrap, "topic": topic, "writeId": topic}

    def save() -> None:
        frame.write.format("chronik").options(**options).mode("append").save()

    with pytest.raises(PySparkException):  # local mode tries a task once
        save()
    save()
    assert sorted(row["value"] for row in records(topics.bootstrap, topic)) == [
        b"%d" % number for number in range(8)
    ]


def test_encode_makes_the_value_of_all_other_columns(spark: Any, topics: Any, read: Load) -> None:
    topic = topics.create()
    frame = spark.range(2).selectExpr(
        "cast(id AS STRING) AS key", "id", "struct(id * 2 AS twice) AS more", "array(id) AS list"
    )
    options = {"bootstrap": topics.bootstrap, "topic": topic}
    frame.write.format("chronik").options(**options, encode="json").mode("append").save()
    found = {row["key"]: json.loads(row["value"]) for row in records(topics.bootstrap, topic)}
    assert found[b"1"] == {"id": 1, "more": {"twice": 2}, "list": [1]}
    back = read("chronik", topic, decode="json").select("id", "more.twice").orderBy("id")
    assert back.collect() == [(0, 0), (1, 2)]

    avro = topics.create()
    fields = [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]}]
    schema = json.dumps({"type": "record", "name": "r", "fields": fields})
    given = {"bootstrap": topics.bootstrap, "topic": avro, "encode": "avro", "schema": schema}
    rows = spark.createDataFrame([(1, "a"), (2, None)], "id LONG, name STRING")
    rows.write.format("chronik").options(**given).mode("append").save()
    typed = read("chronik", avro, decode="avro", schema=schema)
    assert typed.select("id", "name").orderBy("id").collect() == [(1, "a"), (2, None)]


@pytest.mark.parametrize(
    ("options", "overwrite", "words"),
    [
        ({"topic": "no-such-topic"}, False, "there is no topic no-such-topic"),
        ({}, False, "nothing says where to write"),
        ({"topic": "{topic}", "encode": "xml"}, False, "json, avro"),
        ({"topic": "{topic}"}, True, "cannot be overwritten"),
        ({"topic": "{topic}", "compression": "rar"}, False, "compression='rar'"),
        ({"topic": "{topic}", "kafka.acks": "0"}, False, "kafka.acks=0 cannot be had"),
    ],
)
def test_wrong_writes(topics: Any, options: dict[str, str], overwrite: bool, words: str) -> None:
    topic = topics.create()
    given = {name: value.replace("{topic}", topic) for name, value in options.items()}
    source = ChronikSource({"bootstrap": topics.bootstrap, **given})
    with pytest.raises((OptionsError, SourceError)) as caught:
        source.writer(StructType().add("value", "string"), overwrite)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_wrong_is_said_in_sparks_error(spark: Any, topics: Any) -> None:
    frame = spark.createDataFrame([(1,)], "id INT").write.format("chronik")
    with pytest.raises(PySparkException, match="set encode to json or avro"):
        frame.options(bootstrap=topics.bootstrap, topic="t").mode("append").save()
