"""Values that the formats have and Python has not: no statistics and no end of the pipeline."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from lake_world import FORMATS, new_table, rows, written

from chronik.spark.lake.delta import DeltaLakeTable
from chronik.spark.lake.delta_stats import delta_stats
from chronik.spark.lake.partitioning import parse_partitioning, part_faults
from chronik.spark.lake.schemas import SYSTEM_COLUMNS, TIMESTAMP
from chronik.spark.lake.table import Change, LakeTable
from chronik.spark.lake.warehouse import Warehouse

TIMES = (
    "0000-01-01T00:00:00",
    "0001-01-01T00:00:00",
    "0999-12-31T23:59:59.999999",
    "9999-12-31T23:59:59.999999",
)


def batch(*times: str) -> pa.RecordBatch:
    at = np.array([np.datetime64(time, "us") for time in times])
    system = rows(0, len(times)).select(SYSTEM_COLUMNS.names)
    columns = [pa.array(at.astype(np.int64)).view(TIMESTAMP), pa.array(at.astype("datetime64[D]"))]
    return pa.record_batch([*system.columns, *columns], names=[*SYSTEM_COLUMNS.names, "at", "on"])


def table_of(root: Path, table_format: str, partition_by: str = "") -> LakeTable:
    columns = pa.schema([("at", TIMESTAMP), ("on", pa.date32())])
    partitioning = parse_partitioning(partition_by)
    return new_table(root, table_format, columns=columns, partitioning=partitioning)


@pytest.mark.parametrize("partition_by", ["", "hour(at)", "day(at)", "month(at)", "year(on)", "on"])
@pytest.mark.parametrize("table_format", FORMATS)
def test_they_are_committed(tmp_path: Path, table_format: str, partition_by: str) -> None:
    table = table_of(tmp_path, table_format, partition_by)
    # pyiceberg shows a part by its day, and Python has no days of the year 0.
    has_year_0 = table_format == "delta" or partition_by in ("", "month(at)", "year(on)")
    times = TIMES if has_year_0 else TIMES[1:]
    for time in times:
        table.commit(Change(added=written(table, batch(time, "2026-01-01T00:00:00"))))
    found = Warehouse(url=str(tmp_path)).open(table.name, table_format)
    assert found is not None
    files = found.load().files()
    assert sum(each.row_count for each in files) == 2 * len(times)
    assert {each.newest_ms is None for each in files} == {False}
    if partition_by:
        assert {each.partition for each in files} >= {part(table, time) for time in times}
        # What was read must be found again to be replaced.
        table.commit(Change(removed=tuple(found.load().files())))
        assert not table.load().files()


def part(table: LakeTable, time: str) -> tuple[str | None, ...]:
    (file,) = written(table, batch(time))
    return file.partition


@pytest.mark.parametrize("table_format", FORMATS)
def test_so_are_times_of_records(tmp_path: Path, table_format: str) -> None:
    table = table_of(tmp_path, table_format)
    one = batch("2026-01-01T00:00:00")
    far = pa.array([2**63 - 1], pa.int64()).view(TIMESTAMP)
    table.commit(Change(added=written(table, one.set_column(3, "_timestamp", far))))
    (file,) = table.load().files()
    assert file.row_count == 1


def test_statistics_are_those_that_can_be_written(tmp_path: Path) -> None:
    table = table_of(tmp_path, "delta")

    def bounds(*times: str) -> tuple[str | None, str | None]:
        (file,) = written(table, batch(*times))
        stats = json.loads(delta_stats(file.footer))
        return stats["minValues"].get("at"), stats["maxValues"].get("at")

    assert bounds("0001-01-01T00:00:00", "0999-12-31T23:59:59.999") == (
        "0001-01-01T00:00:00.000Z",
        "0999-12-31T23:59:59.999Z",
    )
    assert bounds("2026-01-01T00:00:00.0011") == (
        "2026-01-01T00:00:00.001Z",
        "2026-01-01T00:00:00.002Z",
    )
    assert bounds("0000-01-01T00:00:00", "2026-01-01T00:00:00") == (None, None)
    assert bounds("9999-12-31T23:59:59.999999") == (
        "9999-12-31T23:59:59.999Z",
        "9999-12-31T23:59:59.999999Z",
    )
    assert bounds("2026-01-01T00:00:00", "10000-01-01T00:00:00") == (None, None)
    assert bounds("-0001-01-01T00:00:00") == (None, None)


def test_readers_skip_by_them_and_miss_nothing(tmp_path: Path) -> None:
    table = table_of(tmp_path, "delta")
    assert isinstance(table, DeltaLakeTable)
    for time in (*TIMES[1:], "2026-01-01T00:00:00"):
        table.commit(Change(added=written(table, batch(time))))
    data = DeltaTable(table.location).to_pyarrow_dataset()
    limit = pa.scalar(int(np.datetime64("1000-01-01", "us").astype(np.int64)), TIMESTAMP)
    assert data.to_table(["_offset"], filter=pc.field("at") < limit).num_rows == 2
    assert data.to_table(["_offset"], filter=pc.field("at") >= limit).num_rows == 2


def test_a_long_text_has_bounds(tmp_path: Path) -> None:
    table = new_table(tmp_path, "delta")
    assert isinstance(table, DeltaLakeTable)
    texts = ["short", "m" * 100, "m" * 100 + "\U0010ffff"]
    for text in texts:
        batch = rows(0, 1)
        at = batch.schema.get_field_index("item")
        table.commit(Change(added=written(table, batch.set_column(at, "item", pa.array([text])))))
    data = DeltaTable(table.location).to_pyarrow_dataset()
    for text in texts:
        assert data.to_table(["item"], filter=pc.field("item") == text).num_rows == 1
    assert data.to_table(["item"], filter=pc.field("item") > "l").num_rows == 3


def test_texts_without_bounds_in_parquet_have_some(tmp_path: Path) -> None:
    """It has none of very long ones, and deltalake then takes the rows for null."""
    longest = ["z" * 5_000, "a" * 64 + "\U0010ffff" * 3, "b"]
    table = pa.table({"text": longest})
    for number, text in enumerate(longest):
        pq.write_table(table.slice(number, 1), tmp_path / f"{number}.parquet")
        stats = json.loads(delta_stats(pq.read_metadata(tmp_path / f"{number}.parquet")))
        assert stats["minValues"]["text"] <= text <= stats["maxValues"]["text"]


def test_a_row_whose_year_names_no_part_is_told() -> None:
    """A file of such a part makes a Delta table that nobody can read any more."""
    days = np.array([-719_163, -719_162, 0, 2_932_896, 2_932_897], "datetime64[D]")
    times = pa.array(days.astype("datetime64[us]")).cast(TIMESTAMP)
    rows = pa.record_batch({"day": pa.array(days), "time": times, "n": pa.array(range(5))})
    for fields in ("day", "day(time)", "hour(time),day"):
        faults = part_faults(rows, parse_partitioning(fields))
        assert faults is not None
        assert [each is not None for each in faults.to_pylist()] == [
            True,
            False,
            False,
            False,
            True,
        ]
        assert part_faults(rows.slice(1, 3), parse_partitioning(fields)) is None
    assert part_faults(rows, parse_partitioning("n")) is None
