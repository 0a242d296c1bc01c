"""Tests of lake tables share `lake_world`, found beside them."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from chronik.spark.lake.warehouse import Warehouse

if TYPE_CHECKING:
    from object_store import TestStore

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def in_store(
    object_store: "TestStore", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], Warehouse]:
    """Warehouses in an object store; SQLite catalogs of the test's own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))

    def place(name: str) -> Warehouse:
        url = object_store.url(name)
        return Warehouse(url=url, storage_options=object_store.options)

    return place
