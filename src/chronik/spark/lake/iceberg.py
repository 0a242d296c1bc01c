"""An Iceberg table by `pyiceberg`, in any catalog; SQLite by default.

Offsets, marks and the fence are table properties, set in the same transaction as the files. Facts
about the library that shape this file:

- Its automatic retries rebuild a snapshot on whatever has been committed meanwhile, which repeats
  rows that somebody else has just added. Tables are created with no retries, and every commit
  loads and checks again instead.
- A transaction that only sets properties asks nothing of the table. So each commit makes a
  snapshot, even one without files: the catalog then refuses it unless the current snapshot is the
  one that was checked.
- Expiry takes snapshots out of the metadata and deletes no file: `expiry` does.
- The work of a commit grows with the snapshots in the metadata. `snapshots.kept` keeps few.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
    RESTError,
    TableAlreadyExistsError,
    ValidationException,
)
from pyiceberg.io.pyarrow import (
    DataFileStatistics,
    MetricModeTypes,
    MetricsMode,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField as IcebergPartitionField
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import (
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    YearTransform,
)
from pyiceberg.typedef import Record
from pyiceberg.types import IcebergType, PrimitiveType
from sqlalchemy.exc import OperationalError

from chronik.spark.lake.failures import complaint, telling, telling_of_table
from chronik.spark.lake.iceberg_parts import part_from_record, part_to_values
from chronik.spark.lake.object_store import BY_ITSELF, ObjectStore
from chronik.spark.lake.schemas import stored_type
from chronik.spark.lake.snapshots import kept
from chronik.spark.lake.storage import Storage
from chronik.spark.lake.table import (
    COMMIT,
    COMMIT_ATTEMPTS_MAX,
    FENCE,
    Change,
    DataFile,
    LakeError,
    LiveFile,
    PartitionField,
    PartitionKey,
    TableState,
    check_change,
    has_landed,
)

PROPERTIES: Final = {
    "commit.retry.num-retries": "0",
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "50",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}
NAME_MAPPING: Final = "schema.name-mapping.default"
_TRANSFORMS: Final[dict[str, Transform[Any, Any]]] = {
    "identity": IdentityTransform(),
    "hour": HourTransform(),
    "day": DayTransform(),
    "month": MonthTransform(),
    "year": YearTransform(),
}
_TRANSFORM_NAMES: Final = {str(each): name for name, each in _TRANSFORMS.items()}
# What a commit may end with; whether it has landed is found out by looking.
_COMMIT_ERRORS: Final = (
    CommitFailedException,
    CommitStateUnknownException,
    ValidationException,
    OperationalError,
    OSError,
)
_telling = telling_of_table(OperationalError, RESTError)
telling_of_iceberg = partial(telling, kinds=(OperationalError, RESTError))


class IcebergState:
    """One snapshot of a table."""

    def __init__(self, table: Table, partitioning: tuple[PartitionField, ...]) -> None:
        self.table = table
        self._partitioning = partitioning
        self._by_path: dict[str, IcebergFile] | None = None

    @property
    def version(self) -> int:
        snapshot = self.table.current_snapshot()
        return 0 if snapshot is None else int(snapshot.snapshot_id)

    @property
    def fence(self) -> int:
        return self.mark(FENCE) or 0

    @property
    def schema(self) -> pa.Schema:
        return pa.schema(
            pa.field(field.name, stored_type(field.type, "iceberg"))
            for field in self.table.schema().as_arrow()
        )

    def offset(self, key: PartitionKey) -> int | None:
        return self.mark(f"chronik.offset.{key.text}")

    @property
    def committed_ms(self) -> int | None:
        snapshot = self.table.current_snapshot()
        return None if snapshot is None else int(snapshot.timestamp_ms)

    def mark(self, name: str) -> int | None:
        text = self.table.properties.get(name)
        return None if text is None else int(text)

    def files(self) -> list[LiveFile]:
        return [self._live(path, file) for path, file in self.by_path().items()]

    def by_path(self) -> dict[str, IcebergFile]:
        """The library's description of every file."""
        if self._by_path is None:
            prefix = self.table.location() + "/"
            snapshot = self.table.current_snapshot()
            self._by_path = {
                file.file_path.removeprefix(prefix): file
                for file in (_data_files(snapshot, self.table) if snapshot else ())
            }
        return self._by_path

    def _live(self, path: str, file: IcebergFile) -> LiveFile:
        schema = self.table.schema()
        field = schema.find_field("_timestamp")
        bound = (file.upper_bounds or {}).get(field.field_id)
        kind = field.field_type
        assert isinstance(kind, PrimitiveType), "_timestamp is one"
        newest_us = None if bound is None else from_bytes(kind, bound)
        return LiveFile(
            path=path,
            byte_count=file.file_size_in_bytes,
            row_count=file.record_count,
            partition=part_from_record(
                file.partition, self._partitioning, _types(schema, self._partitioning)
            ),
            newest_ms=None if newest_us is None else int(newest_us) // 1000,
        )


class IcebergLakeTable:
    """A table in a catalog."""

    format = "iceberg"

    def __init__(
        self, name: str, catalog: Catalog, namespace: str, store: ObjectStore = BY_ITSELF
    ) -> None:
        self.name = name
        self._catalog = catalog
        self._identifier = (namespace, name)
        table = _loaded(catalog, self._identifier)
        self.location = table.location()
        self.storage = Storage(self.location, store)
        self.partitioning = _partitioning(table.metadata)

    @classmethod
    def open(cls, name: str, catalog: Catalog, *where: Any) -> "IcebergLakeTable | None":
        """The table as it was created, or None if there is none."""
        try:
            return cls(name, catalog, *where)
        except NoSuchTableError:
            return None

    @classmethod
    def create(
        cls,
        name: str,
        catalog: Catalog,
        namespace: str,
        schema: pa.Schema,
        *,
        partitioning: tuple[PartitionField, ...] = (),
        store: ObjectStore = BY_ITSELF,
    ) -> "IcebergLakeTable":
        """Create the table; if somebody else has just done so, theirs is it."""
        catalog.create_namespace_if_not_exists(namespace)
        identifier = (namespace, name)
        try:
            with catalog.create_table_transaction(
                identifier, schema=schema, properties=dict(PROPERTIES)
            ) as creation:
                if partitioning:
                    with creation.update_spec() as spec:
                        for field in partitioning:
                            transform = _TRANSFORMS[field.transform]
                            spec.add_field(field.column, transform, field.name)
                mapping = creation.table_metadata.schema().name_mapping.model_dump_json()
                creation.set_properties({NAME_MAPPING: mapping})
        except (TableAlreadyExistsError, CommitFailedException, OperationalError):
            pass  # It is there, or the next line says what is wrong.
        return cls(name, catalog, namespace, store)

    @_telling
    def load(self) -> IcebergState:
        return IcebergState(self._loaded(), self.partitioning)

    def _loaded(self) -> Table:
        try:
            return _loaded(self._catalog, self._identifier)
        except NoSuchTableError:
            raise LakeError(
                f"table {self.name} is no longer in the catalog: put it back, or start the "
                "pipeline again to begin a new one"
            ) from None

    def file_schema(self, state: TableState) -> pa.Schema:
        return state.schema

    @_telling
    def commit(self, change: Change) -> int:
        failure: Exception | None = None
        for _ in range(COMMIT_ATTEMPTS_MAX):
            state = self.load()
            if failure is not None and has_landed(change, state):
                return state.version
            check_change(change, state)
            try:
                return self._commit_on(state, change)
            except _COMMIT_ERRORS as error:
                failure = error
        assert failure is not None, "each attempt lands or fails"
        raise LakeError(
            f"table {self.name}: {COMMIT_ATTEMPTS_MAX} commits in a row failed: "
            f"{complaint(failure)}"
        )

    def _commit_on(self, state: IcebergState, change: Change) -> int:
        numbers = {f"chronik.offset.{key.text}": end for key, _, end in change.advances}
        numbers |= {**change.marks, FENCE: state.fence + 1, COMMIT: change.commit_id}
        transaction = state.table.transaction()
        transaction.set_properties({name: str(number) for name, number in numbers.items()})
        update = transaction.update_snapshot()
        producer = update.overwrite() if change.removed else update.merge_append()
        with producer as snapshot:
            for file in change.added:
                snapshot.append_data_file(self._described(transaction, file))
            for removed in change.removed:
                snapshot.delete_data_file(state.by_path()[removed.path])
        current = transaction.commit_transaction().current_snapshot()
        assert current is not None, "every commit makes a snapshot"
        return int(current.snapshot_id)

    def _described(self, transaction: Transaction, file: DataFile) -> IcebergFile:
        metadata = transaction.table_metadata
        schema = metadata.schema()
        statistics = _statistics(file.footer, schema, metadata.properties)
        types = _types(schema, self.partitioning)
        return IcebergFile.from_args(
            content=DataFileContent.DATA,
            file_path=f"{self.location}/{file.path}",
            file_format=FileFormat.PARQUET,
            partition=Record(*part_to_values(file.partition, self.partitioning, types)),
            file_size_in_bytes=file.byte_count,
            sort_order_id=None,
            spec_id=metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )

    @_telling
    def evolve(self, added: pa.Schema, widened: pa.Schema) -> None:
        wanted = pa.schema([*added, *widened])
        failure: Exception | None = None
        for _ in range(COMMIT_ATTEMPTS_MAX):
            table = self._loaded()
            try:
                with table.update_schema() as update:
                    update.union_by_name(wanted)
                return
            except _COMMIT_ERRORS as error:
                failure = error
        raise LakeError(f"table {self.name}: cannot change columns {wanted.names}: {failure}")

    @_telling
    def expire(self, now_ms: int, pin_ms: int) -> None:
        for _ in range(COMMIT_ATTEMPTS_MAX):
            table = self._loaded()
            made = [(each.snapshot_id, each.timestamp_ms) for each in table.metadata.snapshots]
            keep = kept(made, now_ms=now_ms, pin_ms=pin_ms)
            current = table.current_snapshot()
            gone = [each for each, _ in made if each not in keep]
            if current is None or not gone:
                return
            try:
                table.maintenance.expire_snapshots().by_ids(gone).commit()
                return
            except _COMMIT_ERRORS:
                continue  # Somebody commits all the time: the next call will do.

    @_telling
    def unreferenced(self, now_ms: int, age_ms: int) -> list[str]:
        # List first: what is committed after that is in the references, not the other way round.
        listed = [path for path, _, changed in self.storage.list() if changed <= now_ms - age_ms]
        table = self._loaded()
        prefix = table.location() + "/"
        used = {path.removeprefix(prefix) for path in _referenced(table)}
        return [path for path in listed if path not in used and not path.startswith("_")]


def _loaded(catalog: Catalog, identifier: tuple[str, str]) -> Table:
    """A table of a catalog, or NoSuchTableError; LakeError if the catalog is all that there is."""
    try:
        return catalog.load_table(identifier)
    except FileNotFoundError as error:
        name = ".".join(identifier)
        raise LakeError(
            f"the catalog has a table {name}, and its files are not there: put them back, or drop "
            f"it from the catalog to begin a new one (`pyiceberg drop table {name}`, as "
            f"docs/SPARK.md says): {complaint(error)}"
        ) from error


def _types(schema: Schema, partitioning: tuple[PartitionField, ...]) -> list[IcebergType]:
    return [schema.find_field(field.column).field_type for field in partitioning]


def _statistics(
    footer: pq.FileMetaData, schema: Schema, properties: dict[str, str]
) -> DataFileStatistics:
    """What the library says of a file; of columns with values that Python has not, no bounds."""
    plan = compute_statistics_plan(schema, properties)
    ids = parquet_path_to_id_mapping(schema)
    for index in range(footer.num_columns):
        field_id = ids[footer.schema.column(index).path]
        if not _has_readable_bounds(footer, index):
            plan[field_id] = replace(plan[field_id], mode=MetricsMode(MetricModeTypes.COUNTS))
    return data_file_statistics_from_parquet_metadata(
        parquet_metadata=footer, stats_columns=plan, parquet_column_mapping=ids
    )


def _has_readable_bounds(footer: pq.FileMetaData, column: int) -> bool:
    chunks = (footer.row_group(group).column(column) for group in range(footer.num_row_groups))
    try:
        for chunk in chunks:
            _ = chunk.statistics and (chunk.statistics.min, chunk.statistics.max)
    except OverflowError:
        return False
    except pa.ArrowNotImplementedError:
        return True  # The library knows of this one.
    return True


def _referenced(table: Table) -> Iterator[str]:
    metadata = table.metadata
    yield table.metadata_location
    yield from (entry.metadata_file for entry in metadata.metadata_log)
    yield from (each.statistics_path for each in metadata.statistics)
    seen: set[str] = set()
    for snapshot in metadata.snapshots:
        yield snapshot.manifest_list
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path in seen:
                continue
            seen.add(manifest.manifest_path)
            yield manifest.manifest_path
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                yield entry.data_file.file_path


def _data_files(snapshot: Snapshot, table: Table) -> Iterator[IcebergFile]:
    for manifest in snapshot.manifests(table.io):
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            yield entry.data_file


def _partitioning(metadata: TableMetadata) -> tuple[PartitionField, ...]:
    spec: PartitionSpec = metadata.spec()
    schema = metadata.schema()

    def described(field: IcebergPartitionField) -> PartitionField:
        column = schema.find_column_name(field.source_id)
        transform = _TRANSFORM_NAMES.get(str(field.transform))
        if column is None or transform is None:
            raise LakeError(
                f"the table is partitioned by {field.transform} of {column}, which a pipeline "
                "cannot write; partition it by columns, hours, days, months or years"
            )
        return PartitionField(column, transform)

    return tuple(described(field) for field in spec.fields)
