"""Where the tables are: one directory or bucket, and for Iceberg a catalog.

A topic's table has the topic's name, its dead letters the name with `_dead_letters` after it. A
probe tells whether two machines mean the same place by the same URL.
"""

import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from chronik.spark.lake.catalogs import open_catalog
from chronik.spark.lake.object_store import ObjectStore
from chronik.spark.lake.storage import Storage
from chronik.spark.lake.table import LakeTable, PartitionField

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS: Final = ("delta", "iceberg")
NAMESPACE: Final = "lake"
DEAD_LETTERS: Final = "_dead_letters"
PROBES: Final = "_chronik/probes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Warehouse:
    """A place for tables. Picklable, so that a task can open the same one."""

    url: str
    namespace: str = NAMESPACE
    # Properties of an Iceberg catalog as pyiceberg knows them; empty for SQLite.
    catalog: dict[str, str] = field(default_factory=dict, repr=False)
    # How to reach an object store; see `object_store`.
    storage_options: dict[str, str] = field(default_factory=dict, repr=False)
    _store: ObjectStore = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # Here and now: a task that opens this place has another environment.
        object.__setattr__(self, "_store", ObjectStore.of(self.url, self.storage_options))

    @property
    def storage(self) -> Storage:
        return Storage(self.url, self._store)

    def check(self) -> None:
        """Raise LakeError, in one sentence, if this is no place that can be reached."""
        self.storage.check()

    def open(self, name: str, table_format: str) -> LakeTable | None:
        """A table, or None if there is none of this name."""
        if table_format == "delta":
            from chronik.spark.lake.delta import DeltaLakeTable, telling_of_delta

            storage = self._delta_storage(name)
            with telling_of_delta(storage.url):
                return DeltaLakeTable.open(name, storage)
        from chronik.spark.lake.iceberg import IcebergLakeTable, telling_of_iceberg

        with telling_of_iceberg(self.url):
            catalog = open_catalog(self.storage, self.catalog, is_new=False)
            if catalog is None:
                return None
            return IcebergLakeTable.open(name, catalog, self.namespace, self._store)

    def open_or_create(
        self,
        name: str,
        table_format: str,
        schema: "pa.Schema",
        partitioning: tuple[PartitionField, ...] = (),
    ) -> LakeTable:
        """A table as it is, or a new one with this schema; for whoever is going to write to it."""
        if table_format == "delta":
            from chronik.spark.lake.conditional_put import check_conditional_put

            check_conditional_put(self.storage.at(PROBES))
        found = self.open(name, table_format)
        if found is not None:
            return found
        if table_format == "delta":
            from chronik.spark.lake.delta import DeltaLakeTable, telling_of_delta

            storage = self._delta_storage(name)
            with telling_of_delta(storage.url):
                return DeltaLakeTable.create(name, storage, schema, partitioning=partitioning)
        from chronik.spark.lake.iceberg import IcebergLakeTable, telling_of_iceberg

        with telling_of_iceberg(self.url):
            catalog = open_catalog(self.storage, self.catalog, is_new=True)
            assert catalog is not None, "a new one is made"
            return IcebergLakeTable.create(
                name,
                catalog,
                self.namespace,
                schema,
                partitioning=partitioning,
                store=self._store,
            )

    def _delta_storage(self, name: str) -> Storage:
        return self.storage.at(self.namespace, name)

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
