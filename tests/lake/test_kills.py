"""Exactly once: a part of the kill campaign; `make lake-chaos` runs all of it."""

from pathlib import Path

import pytest
from kill_campaign import campaign, process_kill


@pytest.mark.parametrize(("table_format", "kills"), [("delta", 60), ("iceberg", 40)])
def test_a_committer_killed_anywhere_loses_and_repeats_nothing(
    tmp_path: Path, table_format: str, kills: int
) -> None:
    summary = campaign(tmp_path, table_format, seed=7, kills=kills)
    struck = kills - summary["finished"]
    assert struck >= kills // 3, "the campaign must kill to show anything"
    assert any("refused" in what for what in summary), "a second committer was never refused"


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_a_process_that_ends_in_the_middle(tmp_path: Path, table_format: str) -> None:
    assert process_kill(tmp_path, table_format, seed=3) == 17
