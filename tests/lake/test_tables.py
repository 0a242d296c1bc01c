"""A table of each format: what is committed, what is refused, and what the libraries do."""

import json
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction
from lake_world import (
    COLUMNS,
    FORMATS,
    KEY,
    NOW_MS,
    TOPIC_ID,
    append,
    batches_in,
    new_table,
    offsets_in,
    rows,
    written,
)
from pyiceberg.exceptions import CommitFailedException

from chronik.spark.decode.json_depth import NESTED_MAX
from chronik.spark.lake.delta import DeltaLakeTable
from chronik.spark.lake.iceberg import IcebergLakeTable
from chronik.spark.lake.partitioning import parse_partitioning
from chronik.spark.lake.reading import rows_of
from chronik.spark.lake.schemas import compare
from chronik.spark.lake.table import (
    Advance,
    Change,
    LakeTable,
    PartitionKey,
    Refused,
)
from chronik.spark.lake.warehouse import Warehouse


@pytest.fixture(params=FORMATS)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> LakeTable:
    return new_table(tmp_path, request.param)


def again(table: LakeTable, root: Path) -> LakeTable:
    found = Warehouse(url=str(root)).open(table.name, table.format)
    assert found is not None
    return found


def test_files_and_offsets_land_together(table: LakeTable, tmp_path: Path) -> None:
    assert table.load().offset(KEY) is None
    append(table, None, 3)
    append(table, 3, 7)
    state = again(table, tmp_path).load()
    assert (state.offset(KEY), state.fence) == (7, 2)
    assert offsets_in(table) == list(range(7))
    assert sum(file.row_count for file in state.files()) == 7


def test_every_column_comes_back(table: LakeTable) -> None:
    append(table, None, 4)
    (batch,) = batches_in(table)
    assert batch.to_pylist() == rows(0, 4).to_pylist()


@pytest.mark.parametrize(("start", "end"), [(None, 3), (2, 9), (4, 9), (3, 3)])
def test_a_range_that_does_not_start_at_the_end_is_refused(
    table: LakeTable, start: int | None, end: int
) -> None:
    append(table, None, 3)
    if start == 3:
        append(table, 3, 6)
    with pytest.raises(Refused, match="committed up to"):
        append(table, start, end)
    assert offsets_in(table) == list(range(6 if start == 3 else 3))


def test_of_two_plans_on_one_state_one_lands(table: LakeTable, tmp_path: Path) -> None:
    append(table, None, 3)
    zombie = again(table, tmp_path)
    late = Change(added=written(zombie, rows(3, 6)), advances=(Advance(KEY, 3, 6),))
    append(table, 3, 6)
    with pytest.raises(Refused):
        zombie.commit(late)
    assert offsets_in(table) == list(range(6))


def test_a_fence_refuses_what_was_planned_before_any_other_commit(table: LakeTable) -> None:
    append(table, None, 3)
    planned = table.load().fence
    append(table, None, 2, key=PartitionKey(TOPIC_ID, 1))
    change = Change(
        added=written(table, rows(3, 6)), advances=(Advance(KEY, 3, 6),), planned_fence=planned
    )
    with pytest.raises(Refused, match="another pipeline"):
        table.commit(change)
    assert table.load().offset(KEY) == 3


def test_a_recreated_topic_begins_anew(table: LakeTable) -> None:
    append(table, None, 3)
    recreated = PartitionKey(b"another topic id", 0)
    append(table, None, 2, key=recreated)
    assert (table.load().offset(KEY), table.load().offset(recreated)) == (3, 2)


def test_an_advance_without_rows_is_a_commit(table: LakeTable) -> None:
    """A range may hold markers of transactions and nothing else."""
    append(table, None, 3)
    table.commit(Change(advances=(Advance(KEY, 3, 8),)))
    assert table.load().offset(KEY) == 8
    with pytest.raises(Refused):
        table.commit(Change(advances=(Advance(KEY, 3, 8),)))
    assert offsets_in(table) == [0, 1, 2]


def test_a_stale_advance_without_rows_is_refused_by_the_commit_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyiceberg asks nothing of a transaction that only sets properties: a snapshot makes it."""
    table = new_table(tmp_path, "iceberg")
    append(table, None, 3)
    stale = table.load()
    append(table, 3, 6)
    fresh, calls = table.load(), []

    def load() -> object:
        calls.append(1)
        return stale if len(calls) == 1 else fresh

    monkeypatch.setattr(table, "load", load)
    with pytest.raises(Refused):
        table.commit(Change(advances=(Advance(KEY, 3, 4),)))
    assert len(calls) == 2


def test_offsets_that_somebody_else_brought_there_are_not_ours(
    table: LakeTable, tmp_path: Path
) -> None:
    """Two committers of one range, one of whom calls a row bad: the other has not landed."""
    other = new_table(tmp_path, table.format)
    real = table._commit_on  # type: ignore[attr-defined]

    def overtaken(state: object, change: Change) -> int:
        table._commit_on = real  # type: ignore[attr-defined]
        append(other, None, 5)
        return int(real(state, change))

    table._commit_on = overtaken  # type: ignore[attr-defined]
    with pytest.raises(Refused):
        table.commit(Change(advances=(Advance(KEY, None, 5),)))
    assert offsets_in(table) == [0, 1, 2, 3, 4]


def test_an_own_advance_without_rows_is_known_again(table: LakeTable) -> None:
    real = table._commit_on  # type: ignore[attr-defined]

    def hidden(state: object, change: Change) -> int:
        table._commit_on = real  # type: ignore[attr-defined]
        real(state, change)
        raise CommitFailedError if table.format == "delta" else CommitFailedException

    table._commit_on = hidden  # type: ignore[attr-defined]
    table.commit(Change(advances=(Advance(KEY, None, 5),)))
    assert table.load().offset(KEY) == 5
    assert table.load().fence == 1


def test_a_replacement_of_files_that_are_gone_is_refused(table: LakeTable) -> None:
    append(table, None, 3)
    append(table, 3, 6)
    both = tuple(table.load().files())
    change = Change(added=written(table, rows(0, 6)), removed=both, is_rearrangement=True)
    other = Change(added=written(table, rows(0, 6)), removed=both, is_rearrangement=True)
    table.commit(change)
    with pytest.raises(Refused, match="are gone"):
        table.commit(other)
    assert offsets_in(table) == list(range(6))
    assert table.load().offset(KEY) == 6


def test_an_append_between_plan_and_commit_of_a_replacement_is_kept(table: LakeTable) -> None:
    append(table, None, 3)
    removed = tuple(table.load().files())
    change = Change(added=written(table, rows(0, 3)), removed=removed, is_rearrangement=True)
    append(table, 3, 6)
    table.commit(change)
    assert offsets_in(table) == list(range(6))


@pytest.mark.parametrize("has_landed", [True, False])
def test_an_error_that_hides_the_outcome_is_looked_into(
    table: LakeTable, monkeypatch: pytest.MonkeyPatch, has_landed: bool
) -> None:
    append(table, None, 3)
    name = "create_write_transaction" if table.format == "delta" else "commit_transaction"
    owner = DeltaTable if table.format == "delta" else _iceberg_transaction()
    real, calls = getattr(owner, name), []

    def unlucky(self: object, *args: object, **options: object) -> object:
        calls.append(1)
        if len(calls) == 1:
            if has_landed:
                real(self, *args, **options)
            raise (CommitFailedError if table.format == "delta" else CommitFailedException)("?")
        return real(self, *args, **options)

    monkeypatch.setattr(owner, name, unlucky)
    append(table, 3, 6)
    assert offsets_in(table) == list(range(6))
    assert len(calls) == (1 if has_landed else 2)


def _iceberg_transaction() -> type:
    from pyiceberg.table import Transaction as IcebergTransaction

    return IcebergTransaction


@pytest.mark.parametrize("table_format", FORMATS)
@pytest.mark.parametrize(
    "text", ["day(_timestamp)", "item", "hour(_timestamp),_partition", "month(_timestamp)"]
)
def test_partitions(tmp_path: Path, table_format: str, text: str) -> None:
    table = new_table(tmp_path, table_format, partitioning=parse_partitioning(text))
    assert again(table, tmp_path).partitioning == parse_partitioning(text)
    days = [rows(0, 2), rows(2, 4, timestamp_ms=NOW_MS + 40 * 86_400_000)]
    files = written(table, *days)
    assert len({file.partition for file in files}) == (4 if text == "item" else 2)
    table.commit(Change(added=files, advances=(Advance(KEY, None, 4),)))
    live = table.load().files()
    assert {file.partition for file in live} == {file.partition for file in files}
    assert offsets_in(table) == [0, 1, 2, 3]
    if table_format == "delta":
        read = DeltaTable(table.location).to_pyarrow_table()
        assert sorted(read["item"].to_pylist()) == [f"item {each}" for each in range(4)]


@pytest.mark.parametrize("table_format", FORMATS)
def test_the_newest_row_of_a_file_is_known(tmp_path: Path, table_format: str) -> None:
    table = new_table(tmp_path, table_format)
    append(table, None, 3)
    (file,) = table.load().files()
    assert file.newest_ms is not None
    assert abs(file.newest_ms - (NOW_MS + 2)) <= 1


def test_columns_are_added_once(table: LakeTable, tmp_path: Path) -> None:
    append(table, None, 3)
    added = pa.schema([("note", pa.string())])
    table.evolve(added, pa.schema([]))
    again(table, tmp_path).evolve(added, pa.schema([]))
    assert table.load().schema.names[-1] == "note"
    batch = rows(3, 5).append_column("note", pa.array(["a", None]))
    table.commit(Change(added=written(table, batch), advances=(Advance(KEY, 3, 5),)))
    assert offsets_in(table) == list(range(5))


SMALL = pa.struct([("a", pa.int64())])
LARGE = pa.struct([("a", pa.int64()), ("b", pa.string())])


@pytest.mark.parametrize("table_format", FORMATS)
def test_objects_get_new_fields_at_any_depth(tmp_path: Path, table_format: str) -> None:
    columns = pa.schema([("one", SMALL), ("many", pa.list_(SMALL))])
    table = new_table(tmp_path, table_format, columns=columns)

    def rows_with(kind: pa.DataType) -> pa.RecordBatch:
        system = rows(0, 1).columns[:6]
        value = {"a": 1, "b": "x"}
        typed = [pa.array([value], kind), pa.array([[value]], pa.list_(kind))]
        return pa.record_batch(
            [*system, *typed], names=[*rows(0, 0).schema.names[:6], *columns.names]
        )

    table.commit(Change(added=written(table, rows_with(SMALL))))
    wanted = pa.schema([("one", LARGE), ("many", pa.list_(LARGE))])
    difference = compare(table.load().schema, wanted, table_format)
    assert [field.name for field in difference.added] == ["one", "many"]
    for _ in range(2):
        table.evolve(pa.schema(difference.added), pa.schema([]))
    assert compare(table.load().schema, wanted, table_format).is_none
    assert compare(table.load().schema, columns, table_format).is_none
    table.commit(Change(added=written(table, rows_with(LARGE))))
    state = table.load()
    found = [
        row["one"]
        for file in state.files()
        for batch in rows_of(table, file, state.schema, ["one", "many"])
        for row in batch.to_pylist()
        if row["many"] == [row["one"]]
    ]
    assert sorted(found, key=str) == [{"a": 1, "b": "x"}, {"a": 1, "b": None}]
    other = pa.schema([("one", pa.struct([("a", pa.string())]))])
    assert [field.name for field in compare(state.schema, other, table_format).conflicts] == ["one"]


def test_iceberg_columns_are_widened(tmp_path: Path) -> None:
    columns = pa.schema([("item", pa.string()), ("count", pa.int32())])
    table = new_table(tmp_path, "iceberg", columns=columns)
    assert table.load().schema.field("count").type == pa.int32()
    table.evolve(pa.schema([]), pa.schema([("count", pa.int64())]))
    assert table.load().schema.field("count").type == pa.int64()
    append(table, None, 2)
    assert offsets_in(table) == [0, 1]


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_column_may_be_as_deep_as_rows_may(tmp_path: Path, table_format: str) -> None:
    objects: pa.DataType = pa.string()
    lists: pa.DataType = pa.struct([("x", pa.string())])
    for _ in range(NESTED_MAX - 1):
        objects, lists = pa.struct([("x", objects)]), pa.list_(lists)
    table = new_table(tmp_path, table_format)
    table.evolve(pa.schema([("objects", objects), ("lists", lists)]), pa.schema([]))
    state = table.load()
    row = pa.record_batch([pa.nulls(1, field.type) for field in state.schema], schema=state.schema)
    table.commit(Change(added=written(table, row)))
    assert [each.row_count for each in again(table, tmp_path).load().files()] == [1]


def test_both_formats_start_with_the_types_they_need(tmp_path: Path) -> None:
    narrow = pa.schema([("count", pa.int32()), ("price", pa.float32())])
    delta = new_table(tmp_path, "delta", "a", columns=narrow).load().schema
    iceberg = new_table(tmp_path, "iceberg", "b", columns=narrow).load().schema
    assert (delta.field("count").type, delta.field("price").type) == (pa.int64(), pa.float64())
    assert (iceberg.field("count").type, iceberg.field("price").type) == (pa.int32(), pa.float32())


# What the libraries do, which is why the tables do what they do.


def test_deltalake_commits_an_old_version_again_on_a_fresh_handle(tmp_path: Path) -> None:
    table = new_table(tmp_path, "delta")
    append(table, None, 3)
    stale = DeltaTable(table.location)
    for _ in range(2):
        _raw_append(DeltaTable(table.location), table, {"app": 1})
    with pytest.raises(CommitFailedError):
        _raw_append(stale, table, {"app": 1})
    assert offsets_in(table) == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_deltalake_lets_two_rearrangements_of_one_file_land(tmp_path: Path) -> None:
    table = new_table(tmp_path, "delta")
    append(table, None, 3)
    stale, path = DeltaTable(table.location), table.load().files()[0].path
    for handle in (DeltaTable(table.location), stale):
        _raw_append(handle, table, {}, remove=path)
    assert offsets_in(table) == [0, 0, 1, 1, 2, 2]


def test_deltalake_optimize_of_two_stale_handles_doubles_rows(tmp_path: Path) -> None:
    table = new_table(tmp_path, "delta")
    append(table, None, 3)
    append(table, 3, 6)
    handles = [DeltaTable(table.location) for _ in range(2)]
    for handle in handles:
        handle.optimize.compact()
    assert len(offsets_in(table)) == 12


def _raw_append(
    handle: DeltaTable, table: LakeTable, apps: dict[str, int], remove: str | None = None
) -> None:
    (file,) = written(table, rows(0, 3))
    now_ms = int(time.time() * 1000)
    add = AddAction(
        file.path, file.byte_count, {}, now_ms, not remove, json.dumps({"numRecords": 3})
    )
    removes = [RemoveAction(remove, False, now_ms)] if remove else []
    transactions = [Transaction(name, version) for name, version in apps.items()]
    handle.create_write_transaction(
        [add, *removes],
        "append",
        handle.schema(),
        commit_properties=CommitProperties(app_transactions=transactions),
    )


@pytest.mark.parametrize("retries", ["0", "4"])
def test_pyiceberg_retries_commit_twice(tmp_path: Path, retries: str) -> None:
    table = new_table(tmp_path, "iceberg")
    assert isinstance(table, IcebergLakeTable)
    append(table, None, 3)
    stale = table.load().table
    stale.metadata.properties["commit.retry.num-retries"] = retries
    append(table, 3, 6)
    (file,) = written(table, rows(3, 6))
    transaction = stale.transaction()
    transaction.set_properties({"chronik.offset": "6"})
    transaction.add_files([f"{table.location}/{file.path}"], check_duplicate_files=False)
    if retries == "0":
        with pytest.raises(CommitFailedException):
            transaction.commit_transaction()
        assert offsets_in(table) == list(range(6))
    else:
        transaction.commit_transaction()
        assert len(offsets_in(table)) == 9


def test_pyiceberg_overwrite_loses_to_a_concurrent_append(tmp_path: Path) -> None:
    table = new_table(tmp_path, "iceberg")
    assert isinstance(table, IcebergLakeTable)
    append(table, None, 3)
    stale = table.load()
    append(table, 3, 6)
    removed = tuple(stale.files())
    change = Change(added=written(table, rows(0, 3)), removed=removed)
    with pytest.raises(CommitFailedException):
        table._commit_on(stale, change)
    assert offsets_in(table) == list(range(6))


def test_pyiceberg_expiry_deletes_no_file(tmp_path: Path) -> None:
    table = new_table(tmp_path, "iceberg")
    assert isinstance(table, IcebergLakeTable)
    for start in range(0, 9, 3):
        append(table, start or None, start + 3)
    before = {path for path, _, _ in table.storage.list()}
    loaded = table.load().table
    first = loaded.metadata.snapshots[0].snapshot_id
    loaded.maintenance.expire_snapshots().by_ids([first]).commit()
    assert before <= {path for path, _, _ in table.storage.list()}


def test_an_engine_sees_what_was_committed(tmp_path: Path) -> None:
    delta, iceberg = new_table(tmp_path, "delta", "a"), new_table(tmp_path, "iceberg", "b")
    for table in (delta, iceberg):
        append(table, None, 5)
    assert isinstance(delta, DeltaLakeTable)
    assert isinstance(iceberg, IcebergLakeTable)
    seen = DeltaTable(delta.location).to_pyarrow_table()
    assert sorted(seen["_offset"].to_pylist()) == list(range(5))
    scanned = iceberg.load().table.scan(row_filter="_offset >= 3").to_arrow()
    assert sorted(scanned["_offset"].to_pylist()) == [3, 4]
    assert scanned.column_names == [*rows(0, 1).schema.names]
    assert set(COLUMNS.names) <= set(seen.column_names)
