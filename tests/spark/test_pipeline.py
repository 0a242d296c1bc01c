"""Topics become tables: what they hold, what the dead letters hold, and that both are the log."""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from chronik.spark.connection import Connection
from chronik.spark.lake.storage import Storage
from chronik.spark.lake.table import LakeError
from chronik.spark.lake.warehouse import Warehouse
from chronik.spark.pipeline.config import PipelineConfig
from chronik.spark.pipeline.rounds import Pipeline, RoundReport

sys.path.insert(0, str(Path(__file__).parent))
from pipeline_world import by_offset, check_is_log, rows_of, set_config

SCHEMA = "id bigint, name string, price decimal(10,2), at timestamp, tags array<string>"
BAD = (b"", b"not json", b'{"id": "seven"}', b'{"id": 1}{"id": 2}', b"\xff\xfe", b"[1]", b"{")


def good(number: int) -> bytes:
    return json.dumps(
        {
            "id": number,
            "name": f"näme {number}",
            "price": f"{number}.25",
            "at": "2026-03-04T05:06:07.000008Z",
            "tags": ["a", None] if number % 2 else [],
        }
    ).encode()


@pytest.fixture
def once(spark: Any, brokers: str, tmp_path: Path) -> Callable[..., list[RoundReport]]:
    """Runs the pipeline over some topics until every table is where its log is."""

    def run(*names: str, **settings: Any) -> list[RoundReport]:
        # Other tests' topics are in the same broker: this pipeline has a warehouse of its own.
        reports: list[RoundReport] = []
        config = PipelineConfig(bootstrap=brokers, warehouse=str(tmp_path), **settings)
        pipeline = Pipeline(config, Connection(bootstrap=brokers), spark, report=reports.append)
        pipeline.run(once=True)
        return reports

    return run


@pytest.fixture(autouse=True)
def only_these_topics(topics: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Topics of a test are deleted after it, so that the next one's pipeline does not see them."""
    made: list[str] = []
    create = topics.create

    def remembered(name: str | None = None, partitions: int = 1, **config: str) -> str:
        made.append(create(name, partitions))
        lake = {f"chronik.{key}": value for key, value in config.items()}
        if lake:
            set_config(topics.bootstrap, made[-1], lake)
        return made[-1]

    monkeypatch.setattr(topics, "create", remembered)
    yield
    for name in dict.fromkeys(made):
        topics.delete(name)


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_a_json_topic_with_bad_rows(
    topics: Any, brokers: str, tmp_path: Path, once: Callable[..., Any], table_format: str
) -> None:
    name = topics.create(partitions=3, table=table_format, decode="json", schema=SCHEMA)
    for partition in range(2):
        topics.produce(name, *map(good, range(50)), partition=partition)
    topics.produce(name, *BAD, None, partition=1, key=b"k")
    topics.produce(name, good(99), partition=1, headers=[("h", b"1"), ("h", None)])
    once()
    assert check_is_log(brokers, tmp_path, name, table_format) == (102, len(BAD))
    rows = by_offset(rows_of(tmp_path, name, table_format), 1)
    row = rows[7]
    assert (row["_topic"], row["_partition"], row["_offset"]) == (name, 1, 7)
    assert (row["id"], row["name"], str(row["price"])) == (7, "näme 7", "7.25")
    assert row["at"] == datetime.datetime(2026, 3, 4, 5, 6, 7, 8, tzinfo=datetime.UTC)
    assert row["tags"] == ["a", None]
    assert rows[8]["tags"] == []
    assert row["_timestamp"].tzinfo is not None
    assert row["_key"] is None
    # pyiceberg's own reader gives an empty list for a null one.
    assert row["_headers"] == (None if table_format == "delta" else [])
    tombstone = rows[50 + len(BAD)]
    assert tombstone["_key"] == b"k"
    assert [tombstone[column] for column in ("id", "name", "at", "tags")] == [None] * 4
    assert rows[51 + len(BAD)]["_headers"] == [
        {"key": "h", "value": b"1"},
        {"key": "h", "value": None},
    ]
    letters = by_offset(rows_of(tmp_path, f"{name}_dead_letters", table_format), 1)
    assert [letters[50 + number]["_value"] for number in range(len(BAD))] == list(BAD)
    assert {letter["_key"] for letter in letters.values()} == {b"k"}


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_a_restart_goes_on_where_the_table_ends(
    topics: Any, brokers: str, tmp_path: Path, once: Callable[..., Any], table_format: str
) -> None:
    name = topics.create(table=table_format, decode="string")
    topics.produce(name, "a", "b")
    once()
    topics.produce(name, "c", b"\xff")
    reports = once()
    assert sum(each.landed[name].row_count for each in reports if name in each.landed) == 1
    assert check_is_log(brokers, tmp_path, name, table_format) == (3, 1)
    once()
    assert check_is_log(brokers, tmp_path, name, table_format) == (3, 1)
    rows = by_offset(rows_of(tmp_path, name, table_format))
    assert [rows[offset]["value"] for offset in range(3)] == ["a", "b", "c"]


def test_values_as_they_are(
    topics: Any, brokers: str, tmp_path: Path, once: Callable[..., Any]
) -> None:
    name = topics.create(table="delta", decode="raw")
    topics.produce(name, b"\x00\xff", None, b"")
    once()
    assert check_is_log(brokers, tmp_path, name, "delta") == (3, 0)
    rows = by_offset(rows_of(tmp_path, name, "delta"))
    assert [rows[offset]["value"] for offset in range(3)] == [b"\x00\xff", None, b""]


def test_only_what_was_committed_is_a_row(
    topics: Any, brokers: str, tmp_path: Path, once: Callable[..., Any]
) -> None:
    name = topics.create(table="delta", decode="string")
    producer = Producer({"bootstrap.servers": brokers, "transactional.id": name, "linger.ms": 0})
    producer.init_transactions()
    for number in range(6):
        producer.begin_transaction()
        producer.produce(name, f"{number}")
        producer.flush()
        if number % 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    once()
    assert check_is_log(brokers, tmp_path, name, "delta") == (3, 0)
    rows = rows_of(tmp_path, name, "delta")
    assert rows is not None
    assert sorted(rows.column("value").to_pylist()) == ["0", "2", "4"]


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_new_fields_become_columns(
    topics: Any, brokers: str, tmp_path: Path, once: Callable[..., Any], table_format: str
) -> None:
    name = topics.create(table=table_format, decode="json")
    topics.produce(name, '{"a": 1}', '{"a": 2, "b": "x"}')
    once()
    # In the middle of many, where no sample of the ends finds it.
    plain = [json.dumps({"a": number}) for number in range(1200)]
    topics.produce(name, *plain, '{"a": 5, "c": {"d": 1.5}}', *plain)
    once()
    assert check_is_log(brokers, tmp_path, name, table_format) == (2403, 0)
    rows = by_offset(rows_of(tmp_path, name, table_format))
    assert (rows[1]["b"], rows[1]["c"]) == ("x", None)
    assert rows[1202]["c"] == {"d": 1.5}
    topics.produce(name, '{"c": {"d": 2, "e": ["x"]}}', '{"c": {"f": true}}')
    once()
    rows = by_offset(rows_of(tmp_path, name, table_format))
    assert rows[2403]["c"] == {"d": 2.0, "e": ["x"], "f": None}
    assert rows[2404]["c"]["f"] is True
    assert rows[1202]["c"]["d"] == 1.5


@pytest.mark.parametrize("policy", ["column", "dead_letter"])
@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_a_field_that_changes_its_mind(
    topics: Any,
    brokers: str,
    tmp_path: Path,
    once: Callable[..., Any],
    table_format: str,
    policy: str,
) -> None:
    name = topics.create(table=table_format, decode="json", on_incompatible=policy)
    topics.produce(name, '{"price": 1, "x": true}', '{"price": 2}')
    once()
    topics.produce(name, '{"price": "dear", "x": false}', '{"price": 3}', "no json")
    once()
    kept = 4 if policy == "column" else 3
    assert check_is_log(brokers, tmp_path, name, table_format) == (kept, 5 - kept)
    rows = by_offset(rows_of(tmp_path, name, table_format))
    assert rows[3]["price"] == 3
    if policy == "column":
        assert (rows[2]["price"], rows[2]["price_v2"], rows[2]["x"]) == (None, "dear", False)


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_fields_that_no_column_can_be_named_after(
    topics: Any, brokers: str, tmp_path: Path, once: Callable[..., Any], table_format: str
) -> None:
    name = topics.create(table=table_format, decode="json")
    first = ['{"Id": 1, "": 1}', '{"Id": 2}', '{"id": 3}', '{"Id": 4, "_offset": 4}']
    later = ['{"Id": 5, "new": {"x": 1}}', '{"new": {"X": 1}}', '{"a b": true}', '{"Id": 6}']
    topics.produce(name, *first)
    once()
    assert check_is_log(brokers, tmp_path, name, table_format) == (1, 3)
    topics.produce(name, *later)
    once()
    assert check_is_log(brokers, tmp_path, name, table_format) == (3, 5)
    rows = by_offset(rows_of(tmp_path, name, table_format))
    assert {offset: row["Id"] for offset, row in rows.items()} == {1: 2, 4: 5, 7: 6}
    assert rows[4]["new"] == {"x": 1}
    letters = by_offset(rows_of(tmp_path, f"{name}_dead_letters", table_format))
    reasons = {offset: letter["_reason"].split(" ")[1] for offset, letter in letters.items()}
    assert reasons == {0: "''", 2: "'id'", 3: "'_offset'", 5: "'new.X'", 6: "'a"}


def test_a_wider_schema_widens_an_iceberg_column(
    topics: Any, brokers: str, tmp_path: Path, once: Callable[..., Any]
) -> None:
    name = topics.create(table="iceberg", decode="json", schema="id int, f float")
    topics.produce(name, '{"id": 1, "f": 0.5}', '{"id": 3000000000}')
    once()
    assert check_is_log(brokers, tmp_path, name, "iceberg") == (1, 1)
    set_config(brokers, name, {"chronik.schema": "id bigint, f double, more string"})
    topics.produce(name, '{"id": 3000000000, "f": 1e300, "more": "x"}')
    once()
    rows = by_offset(rows_of(tmp_path, name, "iceberg"))
    assert rows[2]["id"] == 3_000_000_000
    assert (rows[0]["id"], rows[0]["f"], rows[0]["more"]) == (1, 0.5, None)


AVRO = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}


def avro(schema: dict[str, Any], row: dict[str, Any]) -> bytes:
    import io

    import fastavro

    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, row)
    return out.getvalue()


def test_an_avro_schema_that_changes_its_mind(
    topics: Any, brokers: str, tmp_path: Path, once: Callable[..., Any]
) -> None:
    name = topics.create(table="delta", decode="avro", schema=json.dumps(AVRO))
    topics.produce(name, avro(AVRO, {"id": 5}), b"\xff")
    once()
    assert check_is_log(brokers, tmp_path, name, "delta") == (1, 1)
    fields = [{"name": "id", "type": "string"}, {"name": "more", "type": "double"}]
    changed = {**AVRO, "fields": fields}
    set_config(brokers, name, {"chronik.schema": json.dumps(changed)})
    topics.produce(name, avro(changed, {"id": "five", "more": 0.5}))
    with pytest.raises(LakeError, match=r"set chronik\.on_incompatible=column"):
        once()
    set_config(brokers, name, {"chronik.on_incompatible": "column"})
    once()
    assert check_is_log(brokers, tmp_path, name, "delta") == (2, 1)
    rows = by_offset(rows_of(tmp_path, name, "delta"))
    assert (rows[0]["id"], rows[0]["id_v2"], rows[0]["more"]) == (5, None, None)
    assert (rows[2]["id"], rows[2]["id_v2"], rows[2]["more"]) == (None, "five", 0.5)


def test_small_files_become_few(
    topics: Any, brokers: str, tmp_path: Path, once: Callable[..., Any]
) -> None:
    from deltalake import DeltaTable

    name = topics.create(table="delta", decode="string")
    for number in range(9):
        topics.produce(name, f"{number}", b"\xff")
        once()
    assert check_is_log(brokers, tmp_path, name, "delta") == (9, 9)
    for table in (name, f"{name}_dead_letters"):
        assert len(DeltaTable(tmp_path / "lake" / table).file_uris()) <= 2


def test_parts_of_a_table(
    topics: Any, brokers: str, tmp_path: Path, once: Callable[..., Any]
) -> None:
    name = topics.create(
        partitions=2,
        table="delta",
        decode="json",
        schema="country string, n bigint",
        partition_by="country,day(_timestamp)",
    )
    for country in ("de", "fr", None):
        topics.produce(name, *(json.dumps({"country": country, "n": n}) for n in range(5)))
    once()
    assert check_is_log(brokers, tmp_path, name, "delta") == (15, 0)
    from deltalake import DeltaTable

    table = DeltaTable(tmp_path / "lake" / name)
    assert table.metadata().partition_columns == ["country", "_timestamp_day"]
    only = table.to_pyarrow_table(filters=[("country", "=", "fr")])
    assert sorted(only.column("n").to_pylist()) == [0, 1, 2, 3, 4]


def test_a_recreated_topic_is_refused_and_says_what_to_do(
    topics: Any, brokers: str, tmp_path: Path, once: Callable[..., Any]
) -> None:
    name = topics.create(table="delta", decode="string")
    topics.produce(name, "old")
    once()
    topics.delete(name)
    topics.create(name, table="delta", decode="string")
    topics.produce(name, "young")
    with pytest.raises(LakeError, match=f"{name}.*deleted and created again"):
        once()
    rows = rows_of(tmp_path, name, "delta")
    assert rows is not None
    assert rows.column("value").to_pylist() == ["old"]


def test_a_topic_with_wrong_settings_stops_no_other(
    topics: Any, brokers: str, tmp_path: Path, once: Callable[..., Any]
) -> None:
    fine = topics.create(table="delta", decode="string")
    topics.produce(fine, "x")
    no_schema = topics.create(table="delta", decode="avro")
    no_column = topics.create(table="delta", decode="json", schema="a bigint", partition_by="b")
    topics.produce(no_column, '{"a": 1}')
    with pytest.raises(LakeError) as raised:
        once()
    message = str(raised.value)
    assert no_schema in message
    assert "needs the option schema" in message or "chronik.schema" in message
    assert "cannot partition by b: there is no such column" in message
    assert "\n" not in message
    assert check_is_log(brokers, tmp_path, fine, "delta") == (1, 0)


def test_a_warehouse_that_is_not_shared_is_refused(
    topics: Any, tmp_path: Path, once: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topics.create(table="delta", decode="string")
    topics.produce(name, "x")
    with monkeypatch.context() as patch:
        patch.setattr(Warehouse, "take_probe", lambda self, path: None)
        with pytest.raises(LakeError, match="the warehouse must be one that all machines share"):
            once()
    # A task that the probe has not met, on a machine of its own.
    with monkeypatch.context() as patch:
        patch.setattr(Storage, "size", lambda self, path: None)
        with pytest.raises(LakeError, match="does not find it"):
            once()
    rows = rows_of(tmp_path, name, "delta")
    assert rows is not None
    assert rows.num_rows == 0


def test_what_the_log_has_lost_is_told_before_going_on(
    topics: Any, brokers: str, tmp_path: Path, once: Callable[..., Any]
) -> None:
    name = topics.create(table="delta", decode="string")
    topics.produce(name, *"abcdef")
    once()
    topics.produce(name, *"ghijkl")
    topics.delete_records(name, 0, 9)
    with pytest.raises(LakeError, match=r"3 records.*\(retention\).*--accept-loss") as raised:
        once()
    assert "failOnDataLoss" not in str(raised.value)
    reports = once(accept_loss=True)
    assert sum(each.landed[name].lost_count for each in reports if name in each.landed) == 3
    rows = rows_of(tmp_path, name, "delta")
    assert rows is not None
    assert sorted(rows.column("value").to_pylist()) == list("abcdefjkl")


def test_a_task_is_as_small_as_it_is_told(
    topics: Any, brokers: str, tmp_path: Path, once: Callable[..., Any]
) -> None:
    name = topics.create(partitions=2, table="delta", decode="raw")
    big = b"x" * 100_000
    topics.produce(name, *(b"%06d" % number + big for number in range(60)), partition=0)
    topics.produce(name, *(b"%06d" % number + big for number in range(3)), partition=1)
    reports = once(task_mebibytes=1)
    assert check_is_log(brokers, tmp_path, name, "delta") == (63, 0)
    assert sum(name in each.landed for each in reports) >= 1
    rows = rows_of(tmp_path, name, "delta")
    assert isinstance(rows, pa.Table)
