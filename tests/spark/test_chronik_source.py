"""What only `format("chronik")` has: typed columns, pushed filters, progress, clear errors."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

import chronik.spark
from chronik.spark.errors import SourceError
from chronik.spark.registration import check_worker_python

Load = Callable[..., Any]
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def test_typed_columns_of_json(read: Load, topics: Any) -> None:
    topic = topics.create()
    topics.produce(
        topic,
        b'{"id": 1, "price": 12.50, "day": "2024-02-29", "who": {"name": "Ada"}, "tags": ["x"]}',
        None,
        b'{"id": "not a number"}',
        b"\xff",
        b"",
        b"{}{}",
        b'{"id": 2}',
        key=b"k",
    )
    schema = (
        "id BIGINT, price DECIMAL(10,2), day DATE, who STRUCT<name: STRING>, tags ARRAY<STRING>"
    )
    frame = read("chronik", topic, decode="json", schema=schema, decodeKey="string")
    rows = frame.orderBy("_offset").collect()
    assert [row._offset for row in rows] == list(range(7))
    first = rows[0]
    assert (first.id, first.price, first.day) == (1, Decimal("12.50"), date(2024, 2, 29))
    assert (first.who.name, first.tags, first._key) == ("Ada", ["x"], "k")
    assert [row._error is None for row in rows] == [True, True, False, False, False, False, True]
    assert rows[1].id is None
    assert rows[6].id == 2
    assert frame.where("_error is null and id > 1").select("id").collect() == [(2,)]


def test_a_schema_is_inferred_or_given_by_the_user(spark: Any, read: Load, topics: Any) -> None:
    topic = topics.create()
    topics.produce(topic, b'{"id": 1, "nested": {"deep": [1.5]}}', b'{"name": "n"}')
    inferred = read("chronik", topic, decode="json")
    assert inferred.select("id", "nested", "name").schema.simpleString() == (
        "struct<id:bigint,nested:struct<deep:array<double>>,name:string>"
    )
    assert inferred.where("id = 1").first().nested.deep == [1.5]
    given = (
        spark.read.format("chronik")
        .schema("name STRING, _offset BIGINT")
        .options(decode="json", bootstrap=topics.bootstrap)
        .load(topic)
    )
    assert sorted(given.collect(), key=lambda row: row._offset) == [(None, 0), ("n", 1)]


@pytest.mark.parametrize("enabled", ["true", "false"])
def test_filters_give_the_same_rows_pushed_or_not(
    spark: Any, read: Load, topics: Any, enabled: str
) -> None:
    # The records are old: retention would take them when it looks.
    topic = topics.create(partitions=3, **{"retention.ms": "-1"})
    for number in range(12):
        at = 1_700_000_000_000 + number * 1000
        topics.produce(topic, b"%02d" % number, partition=number % 3, timestamp=at)
    before = spark.conf.get(PUSHDOWN)
    spark.conf.set(PUSHDOWN, enabled)
    try:
        frame = read("chronik", topic)

        def found(condition: str) -> list[int]:
            return sorted(int(row.value) for row in frame.where(condition).collect())

        assert found("partition = 1 and offset >= 2") == [7, 10]
        assert found("partition in (0, 2) and offset < 1") == [0, 2]
        assert found(f"topic = '{topic}' and offset = 3") == [9, 10, 11]
        assert found("topic = 'another'") == []
        time = datetime.fromtimestamp(1_700_000_009, UTC).strftime("%Y-%m-%d %H:%M:%S")
        assert found(f"timestamp >= '{time}'") == [9, 10, 11]
        assert found(f"timestamp < '{time}' and partition = 0 and not offset = 0") == [3, 6]
        assert frame.where("partition = 2").count() == 4
    finally:
        spark.conf.set(PUSHDOWN, before)


def test_progress_of_a_query_shows_in_its_group(
    read_stream: Load, topics: Any, tmp_path: Path
) -> None:
    topic, group = topics.create(), topics.name()
    topics.produce(topic, b"a", b"b", b"c")
    frame = read_stream(
        "chronik", topic, startingOffsets="earliest", groupId=group, maxOffsetsPerTrigger="2"
    )
    query = (
        frame.writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert topics.committed(group) == {(topic, 0): 3}


def test_a_stream_of_typed_columns_survives_a_failing_batch(
    read_stream: Load, topics: Any, tmp_path: Path
) -> None:
    topic = topics.create()
    options = {"startingOffsets": "latest", "decode": "json", "schema": "id INT"}
    topics.produce(topic, b'{"id": 0}')
    frame = read_stream("chronik", topic, **options)

    def run(work: Callable[[Any, int], None]) -> Any:
        return (
            frame.writeStream.option("checkpointLocation", str(tmp_path))
            .foreachBatch(work)
            .trigger(processingTime="100 milliseconds")
            .start()
        )

    def fail(batch: Any, number: int) -> None:
        topics.produce(topic, b'{"id": 1}')
        raise RuntimeError("the sink is down")

    query = run(fail)
    with pytest.raises(PySparkException):
        query.awaitTermination(120)
    # Batch 0 began at the latest record of then, not of now.
    rows: list[Any] = []
    query = run(lambda batch, _: rows.extend(batch.select("id").collect()))
    try:
        topics.wait_until(lambda: bool(rows))
    finally:
        query.stop()
    assert rows == [(1,)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscribe": "no-such-topic"}, "there is no topic no-such-topic"),
        ({"subscribe": "t", "startingOfsets": "earliest"}, "did you mean startingOffsets?"),
    ],
)
def test_what_is_wrong_is_said_in_sparks_error(
    spark: Any, brokers: str, options: dict[str, str], words: str
) -> None:
    given = {"bootstrap": brokers, "kafka.default.api.timeout.ms": "2000"} | options
    with pytest.raises(PySparkException) as caught:
        spark.read.format("chronik").options(**given).load().collect()
    assert words in str(caught.value)


def test_what_is_wrong_with_a_stream_is_the_last_error(
    read_stream: Load, topics: Any, tmp_path: Path
) -> None:
    frame = read_stream("chronik", topics.create(), endingOffsets="latest")
    sink = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    with pytest.raises(PySparkException) as caught:
        sink.trigger(availableNow=True).start().awaitTermination(120)
    errors = [line for line in str(caught.value).splitlines() if "Error: " in line]
    assert "the option endingOffsets is not for streaming reads: leave it out" in errors[-1]


def test_registering_by_hand(spark: Any, read: Load, topics: Any) -> None:
    chronik.spark.register(spark)
    topic = topics.create()
    topics.produce(topic, b"x")
    assert read("chronik", topic).count() == 1


def test_workers_of_another_python_are_refused(tmp_path: Path) -> None:
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\necho 3.9\n")
    other.chmod(0o755)
    with pytest.raises(SourceError, match=r"run Python 3\.9 .* set PYSPARK_PYTHON="):
        check_worker_python(str(other))
    with pytest.raises(SourceError, match="which fails"):
        check_worker_python(str(tmp_path / "nothing"))


def test_fields_that_no_column_can_be_named_after(read: Load, topics: Any) -> None:
    name = topics.create()
    topics.produce(name, '{"id": 1, "_offset": 7, "": 1}', '{"ID": "x", "_Error": 2, "id": 2}')
    frame = read("chronik", name, decode="json")
    assert frame.columns[:2] == ["id", "_key"]
    assert [(row["id"], row["_offset"]) for row in frame.orderBy("_offset").collect()] == [
        (1, 0),
        (2, 1),
    ]
