"""Where the tables are: one directory or bucket, and for Iceberg a catalog.

A topic's table has the topic's name, its dead letters the name with `_dead_letters` after it. A
probe tells whether two machines mean the same place by the same URL.
"""

import os
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from chronik.spark.lake.storage import Storage
from chronik.spark.lake.table import LakeError, LakeTable, PartitionField

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog

FORMATS: Final = ("delta", "iceberg")
NAMESPACE: Final = "lake"
DEAD_LETTERS: Final = "_dead_letters"
PROBES: Final = "_chronik/probes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Warehouse:
    """A place for tables. Picklable, so that a task can open the same one."""

    url: str
    namespace: str = NAMESPACE
    # Properties of an Iceberg catalog as pyiceberg knows them; empty for SQLite in the warehouse.
    catalog: dict[str, str] = field(default_factory=dict)
    storage_options: dict[str, str] = field(default_factory=dict)

    @property
    def storage(self) -> Storage:
        return Storage(self.url)

    def open(self, name: str, table_format: str) -> LakeTable | None:
        """A table, or None if there is none of this name."""
        if table_format == "delta":
            from chronik.spark.lake.delta import DeltaLakeTable

            options: dict[str, Any] = {"storage_options": self.storage_options or None}
            return DeltaLakeTable.open(name, self._delta_storage(name), **options)
        from chronik.spark.lake.iceberg import IcebergLakeTable

        return IcebergLakeTable.open(name, self._catalog(), self.namespace)

    def open_or_create(
        self,
        name: str,
        table_format: str,
        schema: "pa.Schema",
        partitioning: tuple[PartitionField, ...] = (),
    ) -> LakeTable:
        """A table as it is, or a new one with this schema."""
        found = self.open(name, table_format)
        if found is not None:
            return found
        if table_format == "delta":
            from chronik.spark.lake.delta import DeltaLakeTable

            return DeltaLakeTable.create(
                name,
                self._delta_storage(name),
                schema,
                partitioning=partitioning,
                storage_options=self.storage_options or None,
            )
        from chronik.spark.lake.iceberg import IcebergLakeTable

        return IcebergLakeTable.create(
            name, self._catalog(), self.namespace, schema, partitioning=partitioning
        )

    def _delta_storage(self, name: str) -> Storage:
        return self.storage.at(self.namespace, name)

    def _catalog(self) -> "Catalog":
        from pyiceberg.catalog import load_catalog

        if self.catalog:
            return load_catalog("chronik", **{"warehouse": self.url, **self.catalog})
        if not self.storage.is_local:
            raise LakeError(
                f"Iceberg tables in {self.url} need a catalog that every reader can reach: name "
                "it under [catalog] in the pipeline's configuration (type, uri, ...)"
            )
        root = self.storage.path
        os.makedirs(root, exist_ok=True)
        return _local_catalog(root)

    # A probe: written by a task, read by the driver.

    def write_probe(self, text: str) -> str:
        """Leave a word in the warehouse, and say where."""
        path = f"{PROBES}/{uuid.uuid4().hex}"
        self.storage.write(path, text.encode())
        return path

    def take_probe(self, path: str) -> str | None:
        """The word that somebody left, or None if this is another place."""
        try:
            text = self.storage.read(path).decode()
        except FileNotFoundError:
            return None
        self.storage.delete(path)
        return text


def _local_catalog(root: str) -> "Catalog":
    from pyiceberg.catalog import load_catalog

    # Two pipelines may meet in the file: wait for each other rather than fail at once.
    return load_catalog(
        "chronik", type="sql", uri=f"sqlite:///{root}/catalog.db?timeout=30", warehouse=root
    )
