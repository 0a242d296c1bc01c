"""The union read: the table's rows and the log's, each once, whatever comes later."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

import chronik.spark
from chronik.spark.connection import Connection
from chronik.spark.errors import DataLossError, SourceError
from chronik.spark.lake.compaction import compact
from chronik.spark.lake.expiry import expire
from chronik.spark.lake.parquet import FileWriter
from chronik.spark.lake.partitioning import parse_partitioning
from chronik.spark.lake.schemas import DEAD_LETTER_COLUMNS, table_schema
from chronik.spark.lake.snapshots import LATEST_KEPT
from chronik.spark.lake.table import Advance, Change, LakeTable, PartitionKey
from chronik.spark.lake.warehouse import Warehouse
from chronik.spark.log_facts import LogFacts
from chronik.spark.log_reader import LogReader
from chronik.spark.offset_range import OffsetRange

COLUMNS = pa.schema([("id", pa.int64()), ("country", pa.string())])
SCHEMA = "id BIGINT, country STRING"


class Lake:
    """A table of a topic, brought forward by hand as the pipeline does it."""

    def __init__(
        self, root: Path, bootstrap: str, topic: str, table_format: str, parts: str
    ) -> None:
        self.warehouse = Warehouse(url=str(root))
        schema = table_schema(COLUMNS, table_format)
        partitioning = parse_partitioning(parts)
        self.table: LakeTable = self.warehouse.open_or_create(
            topic, table_format, schema, partitioning
        )
        self._connection = Connection(bootstrap=bootstrap)
        self._topic = topic

    def advance(self, partition: int, end: int) -> None:
        """Append the rows of a partition up to an offset."""
        with LogFacts(self._connection) as facts:
            topic_id = facts.topics([self._topic])[self._topic].topic_id
        state = self.table.load()
        key = PartitionKey(topic_id, partition)
        start = state.offset(key)
        wanted = OffsetRange(self._topic, topic_id, partition, start or 0, end)
        file_schema = self.table.file_schema(state)
        with (
            LogReader(self._connection) as reader,
            FileWriter(
                self.table.storage, file_schema, self.table.partitioning, now_ms=0
            ) as writer,
        ):
            for batch in reader.read(wanted):
                writer.write(_as_rows(batch))
            change = Change(added=writer.close(), advances=(Advance(key, start, end),))
        self.table.commit(change)


def _as_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    values = [json.loads(value) for value in batch.column("value").to_pylist()]
    names = ("topic", "partition", "offset", "timestamp", "key", "headers")
    columns = {f"_{name}": batch.column(name) for name in names}
    for field in COLUMNS:
        columns[field.name] = pa.array([value.get(field.name) for value in values], field.type)
    columns["extra"] = pa.array([value.get("extra") for value in values], pa.string())
    return pa.record_batch(columns)


@pytest.fixture
def lake(tmp_path: Path, brokers: str) -> Callable[..., Lake]:
    def make(topic: str, table_format: str, parts: str = "") -> Lake:
        return Lake(tmp_path / "warehouse", brokers, topic, table_format, parts)

    return make


def produce(topics: Any, topic: str, partition: int, *numbers: int) -> None:
    countries = ("de", "fr", None)
    for number in numbers:
        value = json.dumps({"id": number, "country": countries[number % 3]})
        headers = [("n", b"%d" % number)]
        topics.produce(topic, value, partition=partition, key=b"%d" % number, headers=headers)


def union(spark: Any, topics: Any, lake: Lake, topic: str, **options: Any) -> Any:
    return chronik.spark.table(
        spark,
        topic,
        bootstrap=topics.bootstrap,
        warehouse=lake.warehouse.url,
        **({"decode": "json"} | options),
    )


@pytest.mark.parametrize(
    ("table_format", "parts", "parts_max"),
    [
        ("delta", "", 32),
        ("delta", "country,day(_timestamp)", 32),
        ("delta", "day(_timestamp),country", 2),
        ("iceberg", "country", 32),
    ],
)
def test_history_and_tail_are_one_table(
    spark: Any,
    topics: Any,
    lake: Callable[..., Lake],
    monkeypatch: pytest.MonkeyPatch,
    table_format: str,
    parts: str,
    parts_max: int,
) -> None:
    monkeypatch.setattr("chronik.spark.union._PARTS_MAX", parts_max)
    topic = topics.create(partitions=3)
    produce(topics, topic, 0, *range(10))
    produce(topics, topic, 1, *range(100, 105))
    made = lake(topic, table_format, parts)
    made.advance(0, 6)
    made.advance(0, 8)
    made.advance(1, 5)
    produce(topics, topic, 2, 200)  # a partition that the table has nothing of
    topics.produce(topic, b"not JSON", partition=0)
    frame = union(spark, topics, made, topic)
    # What comes later does not change a frame: neither the table's commits nor the log's records.
    produce(topics, topic, 0, 11)
    made.advance(0, 10)
    rows = frame.orderBy("_partition", "_offset").collect()
    expected = [*range(10), *range(100, 105), 200]
    assert [row.id for row in rows] == expected
    assert [row._offset for row in rows] == [*range(10), *range(5), 0]
    assert [row.country for row in rows] == [("de", "fr", None)[number % 3] for number in expected]
    assert bytes(rows[9]._key) == b"9"
    assert [bytes(row._headers[0].value) for row in rows] == [b"%d" % each for each in expected]
    assert frame.where("id >= 8 and id < 102").count() == 4
    assert frame.columns == [
        *("_topic", "_partition", "_offset", "_timestamp", "_key", "_headers"),
        *("id", "country"),
    ]


def test_a_log_that_starts_after_the_table_ends_is_an_error_with_its_count(
    spark: Any, topics: Any, lake: Callable[..., Lake]
) -> None:
    topic = topics.create()
    produce(topics, topic, 0, *range(10))
    made = lake(topic, "delta")
    made.advance(0, 4)
    topics.delete_records(topic, 0, 7)
    with pytest.raises(DataLossError, match="3 records are in neither"):
        union(spark, topics, made, topic)


def test_all_in_the_table_or_all_in_the_log(
    spark: Any, topics: Any, lake: Callable[..., Lake]
) -> None:
    topic = topics.create()
    made = lake(topic, "delta")
    assert union(spark, topics, made, topic).count() == 0
    produce(topics, topic, 0, 1, 2, 3)
    assert union(spark, topics, made, topic).count() == 3
    made.advance(0, 3)
    topics.delete_records(topic, 0, 3)
    assert union(spark, topics, made, topic, schema=SCHEMA).select("id").collect() == [
        (1,),
        (2,),
        (3,),
    ]


def test_a_topic_that_is_recreated_after_the_frame_was_made(
    spark: Any, topics: Any, lake: Callable[..., Lake]
) -> None:
    topic = topics.create()
    produce(topics, topic, 0, 1, 2)
    made = lake(topic, "delta")
    made.advance(0, 1)
    frame = union(spark, topics, made, topic)
    topics.delete(topic)
    topics.create(topic)
    produce(topics, topic, 0, 7, 8, 9)
    with pytest.raises(PySparkException, match="make the frame anew"):
        frame.collect()
    # The table keeps the old topic's rows; the new one's are all in the log.
    assert sorted(row.id for row in union(spark, topics, made, topic).collect()) == [1, 7, 8, 9]


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_a_column_that_came_later_and_a_file_that_is_replaced(
    spark: Any, topics: Any, lake: Callable[..., Lake], table_format: str
) -> None:
    topic = topics.create(chronik_table=table_format, chronik_decode="json")
    produce(topics, topic, 0, *range(8))
    made = lake(topic, table_format)
    for end in range(1, 9):
        made.advance(0, end)
    topics.produce(topic, '{"id": 8, "extra": "more"}', '{"id": 9, "extra": "still"}')
    made.table.evolve(pa.schema([("extra", pa.string())]), pa.schema([]))
    made.advance(0, 9)
    # By the topic's own settings.
    frame = chronik.spark.table(
        spark, topic, bootstrap=topics.bootstrap, warehouse=made.warehouse.url
    )
    expected = [*((number, None) for number in range(8)), (8, "more"), (9, "still")]
    # The files that it pinned are old, then merged to one, then nobody's: they stay for an hour.
    now_ms = _age(made.table)
    assert compact(made.table, now_ms=now_ms) >= 8
    dead = made.warehouse.open_or_create(f"{topic}_dead_letters", table_format, DEAD_LETTER_COLUMNS)
    assert expire(made.table, dead, now_ms=now_ms + 59 * 60_000) == 0
    assert [tuple(row) for row in frame.select("id", "extra").orderBy("id").collect()] == expected
    for _ in range(LATEST_KEPT):
        made.table.commit(Change())  # Iceberg keeps the latest versions, however old.
    assert expire(made.table, dead, now_ms=now_ms + 30 * 3_600_000) >= 8
    again = union(spark, topics, made, topic)
    assert [tuple(row) for row in again.select("id", "extra").orderBy("id").collect()] == expected


def _age(table: LakeTable) -> int:
    """Make the table's data files two days old; returns the time."""
    now_s = time.time()
    for file in table.load().files():
        os.utime(Path(table.storage.path, file.path), (now_s - 2 * 86_400,) * 2)
    return int(now_s * 1000)


def test_values_as_they_are(spark: Any, topics: Any, tmp_path: Path) -> None:
    topic = topics.create(chronik_table="delta")
    warehouse = Warehouse(url=str(tmp_path))
    warehouse.open_or_create(
        topic, "delta", table_schema(pa.schema([("value", pa.binary())]), "delta")
    )
    topics.produce(topic, b"\xff", None, headers=[("trace", b"1")], key=b"k")
    frame = chronik.spark.table(spark, topic, bootstrap=topics.bootstrap, warehouse=warehouse)
    rows = frame.orderBy("_offset").collect()
    assert [row.value for row in rows] == [bytearray(b"\xff"), None]
    assert rows[0]._headers == [("trace", bytearray(b"1"))]
    assert rows[1]._key == bytearray(b"k")


def test_a_table_that_is_not_there(spark: Any, topics: Any, tmp_path: Path) -> None:
    topic = topics.create()
    with pytest.raises(SourceError, match=r"no table .*chronik pipeline run"):
        chronik.spark.table(spark, topic, bootstrap=topics.bootstrap, warehouse=str(tmp_path))
