"""Tables in an object store: the same promises as on a disk, and what is wrong said in one line."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from lake_world import (
    COLUMNS,
    FORMATS,
    KEY,
    NOW_MS,
    append,
    new_table,
    offsets_in,
    rows,
    written,
)

from chronik.clock import SystemClock
from chronik.spark.lake.compaction import compact
from chronik.spark.lake.conditional_put import check_conditional_put
from chronik.spark.lake.expiry import expire
from chronik.spark.lake.schemas import DEAD_LETTER_COLUMNS, table_schema
from chronik.spark.lake.table import Advance, Change, LakeError, Refused
from chronik.spark.lake.warehouse import Warehouse

if TYPE_CHECKING:
    from object_store import TestStore

HOUR_MS = 3_600_000
InStore = Callable[[str], Warehouse]


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_table_lives_in_a_store(
    object_store: "TestStore", in_store: InStore, tmp_path: Path, table_format: str
) -> None:
    """Commits, merges and deletes; with no word of a secret and nothing left over."""
    place = in_store(f"life-{table_format}")
    place.check()
    assert place.open("orders", table_format) is None
    table = new_table(place, table_format)
    dead = place.open_or_create("dead", table_format, DEAD_LETTER_COLUMNS)
    for start in range(0, 16, 2):
        append(table, start or None, start + 2)
    old = {each.path for each in table.load().files()}
    assert compact(table, now_ms=NOW_MS) == 8
    for number in range(22):  # so that the old versions are not among the latest few
        table.commit(Change(marks={"number": number}))
    (left,) = written(table, rows(16, 19))
    later_ms = SystemClock().wall_ms() + 26 * HOUR_MS
    assert expire(table, dead, now_ms=later_ms) >= 9
    names = {path for path, _, _ in table.storage.list()}
    assert not names & {*old, left.path}
    again = place.open("orders", table_format)
    assert again is not None
    assert not set(again.unreferenced(later_ms, 24 * HOUR_MS)) & {*old, left.path, "data"}
    assert offsets_in(again) == list(range(16))
    append(again, 16, 18)
    assert again.load().offset(KEY) == 18
    secret = object_store.secret_access_key
    kept = {**object_store.objects(f"life-{table_format}")}
    kept |= {str(path): path.read_bytes() for path in tmp_path.rglob("*.db")}
    assert kept
    assert not [name for name, content in kept.items() if secret.encode() in content]
    assert secret not in repr((place, table.storage))


@pytest.mark.parametrize("table_format", FORMATS)
def test_of_committers_at_once_one_lands(in_store: InStore, table_format: str) -> None:
    place = in_store(f"race-{table_format}")
    new_table(place, table_format)
    outcomes: list[str] = []
    begin = threading.Barrier(3)

    def commit() -> None:
        table = new_table(place, table_format)
        change = Change(
            added=written(table, rows(0, 3)),
            advances=(Advance(KEY, None, 3),),
            planned_fence=table.load().fence,
        )
        begin.wait()
        try:
            table.commit(change)
            outcomes.append("landed")
        except Refused:
            outcomes.append("refused")

    threads = [threading.Thread(target=commit) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["landed", "refused", "refused"]
    assert offsets_in(new_table(place, table_format)) == [0, 1, 2]


def test_a_commit_whose_answer_is_lost_has_landed(
    object_store: "TestStore", in_store: InStore
) -> None:
    """The library tries again, and is refused because of itself."""
    table = new_table(in_store("lost"), "delta")
    object_store.loses_one_answer("PUT", "lost/lake/orders/_delta_log/.*1.json")
    append(table, None, 3)
    object_store.loses_one_answer("PUT", "lost/lake/orders/_delta_log/.*2.json")
    table.commit(Change(marks={"number": 1}))
    assert offsets_in(table) == [0, 1, 2]
    assert (table.load().fence, table.load().mark("number")) == (2, 1)
    object_store.loses_one_answer("PUT", "lost/lake/second/_delta_log/.*0.json")
    assert offsets_in(new_table(in_store("lost"), "delta", "second")) == []


def test_a_store_that_puts_a_version_twice_is_refused(
    object_store: "TestStore", in_store: InStore
) -> None:
    place = in_store("careless")
    schema = table_schema(COLUMNS, "delta")
    with object_store.without_if_none_match():
        with pytest.raises(LakeError, match="If-None-Match") as error:
            place.open_or_create("orders", "delta", schema)
        assert "\n" not in str(error.value)
        new_table(place, "iceberg", "other")  # whose fence is the catalog's
    place.open_or_create("orders", "delta", schema)
    assert not object_store.objects("careless/_chronik/probes")


@pytest.mark.parametrize("table_format", FORMATS)
@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("bucket", "no .*bucket"),
        ("key", "refuses us .*AWS_ACCESS_KEY_ID"),
        ("endpoint", "no object store answers: check endpoint_url"),
    ],
)
def test_what_is_wrong_is_one_line_and_soon(
    object_store: "TestStore", in_store: InStore, table_format: str, what: str, words: str
) -> None:
    url, options = object_store.url("wrong"), dict(object_store.options)
    if what == "bucket":
        url = "s3://no-such-bucket/wrong"
    elif what == "key":
        options["access_key_id"] = "nobody"
    else:
        options["endpoint_url"] = "http://127.0.0.1:1"
    place = Warehouse(url=url, storage_options=options)
    started = time.monotonic()
    works = [
        lambda: place.open_or_create("orders", table_format, table_schema(COLUMNS, table_format)),
        place.check,
        lambda: place.write_probe("x"),
    ]
    # Nobody answers: each way to find that out takes some seconds, and one of them is enough.
    for work in works[:1] if what == "endpoint" else works:
        with pytest.raises(LakeError, match=words) as error:
            work()
        assert "\n" not in str(error.value)
        assert object_store.secret_access_key not in str(error.value)
    assert time.monotonic() - started < 90


def test_a_catalog_that_is_not_the_warehouses(
    in_store: InStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another machine has another SQLite: it is told whose the tables are."""
    place = in_store("two-machines")
    assert place.open("orders", "iceberg") is None
    append(new_table(place, "iceberg"), None, 3)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "other machine"))
    for work in (
        lambda: place.open("orders", "iceberg"),
        lambda: new_table(place, "iceberg"),
    ):
        with pytest.raises(LakeError, match=r"catalogs.*\.db.*not in.*other machine.*\[catalog\]"):
            work()
    # By name it can be reached from anywhere.
    (file,) = tmp_path.glob("data/chronik/catalogs/*.db")
    named = Warehouse(
        url=place.url,
        catalog={"type": "sql", "uri": f"sqlite:///{file}"},
        storage_options=place.storage_options,
    )
    assert offsets_in(new_table(named, "iceberg")) == [0, 1, 2]


def test_a_probe_of_conditional_put_is_made_once(in_store: InStore) -> None:
    place = in_store("probe")
    before = check_conditional_put.cache_info().misses
    for name in ("a", "b"):
        new_table(place, "delta", name)
    assert check_conditional_put.cache_info().misses == before + 1
