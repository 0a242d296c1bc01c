"""Exactly once: a part of the kill campaign; `make lake-chaos` runs all of it."""

from pathlib import Path
from typing import Any

import pytest
from kill_campaign import campaign, process_kill

from chronik.spark.lake.warehouse import Warehouse


@pytest.mark.parametrize(
    ("table_format", "kills", "where"),
    [
        ("delta", 60, "disk"),
        ("iceberg", 40, "disk"),
        ("delta", 8, "object store"),
        ("iceberg", 8, "object store"),
    ],
)
def test_a_committer_killed_anywhere_loses_and_repeats_nothing(
    request: pytest.FixtureRequest, tmp_path: Path, table_format: str, kills: int, where: str
) -> None:
    place = Warehouse(url=str(tmp_path))
    if where == "object store":
        place = request.getfixturevalue("in_store")(f"kills-{table_format}")
    summary = campaign(place, table_format, seed=7, kills=kills)
    struck = kills - summary["finished"]
    assert struck >= kills // 3, "the campaign must kill to show anything"
    was_refused = any("refused" in what for what in summary)
    assert was_refused or kills < 40, "a second committer was never refused"


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_a_process_that_ends_in_the_middle(tmp_path: Path, table_format: str) -> None:
    assert process_kill(Warehouse(url=str(tmp_path)), table_format, seed=3) == 17


def test_a_process_that_ends_in_the_middle_of_a_store(in_store: Any) -> None:
    assert process_kill(in_store("process"), "delta", seed=3) == 17
