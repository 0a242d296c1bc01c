"""A Delta table by `deltalake`.

Offsets are `txn` actions, one app id per topic id and partition, in the same commit as the files;
marks and the fence are such actions too. Three facts about the library shape this file:

- A handle does not notice its own commit, and a fresh one may commit an old `txn` version again.
  So: load, check, commit on that same handle.
- Two commits with one app id conflict, and both of ours carry the fence's. With no retries a
  commit lands on the very version that was checked, whoever else has written.
- A commit may remove a file that is gone already, which is how two compactions double all rows.
  `check_change` looks first.

In an object store a version is put only if there is none yet (If-None-Match). A put whose answer
is lost is tried again by the library and then fails against itself: `has_landed` tells.
"""

import json
from functools import partial
from typing import Any, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from chronik.clock import Clock, SystemClock
from chronik.spark.lake.delta_stats import delta_stats
from chronik.spark.lake.failures import complaint, telling, telling_of_table
from chronik.spark.lake.storage import Storage
from chronik.spark.lake.table import (
    COMMIT,
    COMMIT_ATTEMPTS_MAX,
    FENCE,
    Change,
    LakeError,
    LiveFile,
    PartitionField,
    PartitionKey,
    TableState,
    check_change,
    has_landed,
)

HOUR_MS: Final = 3_600_000
CONFIGURATION: Final = {
    "delta.checkpointInterval": "50",
    # Tombstones are in every checkpoint, so that a checkpoint's size is that of one day.
    "delta.deletedFileRetentionDuration": "interval 1 days",
    "delta.logRetentionDuration": "interval 1 days",
}
# There every version since the checkpoint is a request, each time that the table is loaded.
STORE_CONFIGURATION: Final = {**CONFIGURATION, "delta.checkpointInterval": "10"}
_NAME: Final = "chronik.partitioning"
# What a commit may end with; whether it has landed is found out by looking.
_COMMIT_ERRORS: Final = (DeltaError, OSError)
_telling = telling_of_table(DeltaError)
telling_of_delta = partial(telling, kinds=(DeltaError,))


class DeltaState:
    """One version of a table."""

    def __init__(self, handle: DeltaTable, partitioning: tuple[PartitionField, ...]) -> None:
        self.handle = handle
        self._partitioning = partitioning
        self._files: list[LiveFile] | None = None

    @property
    def version(self) -> int:
        return int(self.handle.version())

    @property
    def fence(self) -> int:
        return self.mark(FENCE) or 0

    @property
    def schema(self) -> pa.Schema:
        return pa.schema(self.handle.schema().to_arrow())

    def offset(self, key: PartitionKey) -> int | None:
        return self.mark(f"chronik:{key.text}")

    @property
    def committed_ms(self) -> int | None:
        last = self.handle.history(1)
        return int(last[0]["timestamp"]) if last else None

    def mark(self, name: str) -> int | None:
        version: int | None = self.handle.transaction_version(name)
        return version

    def files(self) -> list[LiveFile]:
        if self._files is None:
            actions = pa.table(self.handle.get_add_actions(flatten=True))
            self._files = _live_files(actions, self._partitioning)
        return self._files


class DeltaLakeTable:
    """A table in a directory."""

    format = "delta"

    def __init__(
        self,
        name: str,
        storage: Storage,
        *,
        partitioning: tuple[PartitionField, ...] = (),
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self.storage = storage
        self.location = storage.url
        self.partitioning = partitioning
        self._clock = clock or SystemClock()

    @classmethod
    def open(cls, name: str, storage: Storage, **options: Any) -> "DeltaLakeTable | None":
        """The table as it was created, or None if there is none."""
        table = cls(name, storage, **options)
        try:
            handle = table._handle()
        except TableNotFoundError:
            return None
        configuration = handle.metadata().configuration
        fields = json.loads(configuration.get(_NAME, "[]"))
        table.partitioning = tuple(PartitionField(*field) for field in fields)
        return table

    @classmethod
    def create(
        cls,
        name: str,
        storage: Storage,
        schema: pa.Schema,
        *,
        partitioning: tuple[PartitionField, ...] = (),
        **options: Any,
    ) -> "DeltaLakeTable":
        """Create the table; if somebody else has just done so, theirs is it."""
        derived = [
            pa.field(field.name, pa.date32() if field.transform == "day" else pa.string())
            for field in partitioning
            if field.transform != "identity"
        ]
        failure: Exception | None = None
        try:
            DeltaTable.create(
                **_place(storage),
                schema=Schema.from_arrow(pa.schema([*schema, *derived])),
                mode="ignore",
                partition_by=[field.name for field in partitioning],
                configuration={
                    **(CONFIGURATION if storage.is_local else STORE_CONFIGURATION),
                    _NAME: json.dumps(partitioning),
                },
                raise_if_key_not_exists=False,
            )
        except _COMMIT_ERRORS as error:
            failure = error  # It may be there all the same, by us or by somebody else.
        table = cls.open(name, storage, **options)
        if table is None:
            raise LakeError(f"table {name} cannot be created: {complaint(failure or OSError())}")
        return table

    @_telling
    def load(self) -> DeltaState:
        return DeltaState(self._handle(), self.partitioning)

    def _handle(self) -> DeltaTable:
        return DeltaTable(**_place(self.storage))

    def file_schema(self, state: TableState) -> pa.Schema:
        elsewhere = {field.name for field in self.partitioning}
        return pa.schema(field for field in state.schema if field.name not in elsewhere)

    @_telling
    def commit(self, change: Change) -> int:
        failure: Exception | None = None
        for _ in range(COMMIT_ATTEMPTS_MAX):
            state = self.load()
            if failure is not None and has_landed(change, state):
                return state.version
            check_change(change, state)
            try:
                self._commit_on(state, change)
            except _COMMIT_ERRORS as error:
                failure = error  # It may have landed all the same: look before trying again.
                continue
            return state.version + 1
        assert failure is not None, "each attempt lands or fails"
        raise LakeError(
            f"table {self.name}: {COMMIT_ATTEMPTS_MAX} commits in a row failed: "
            f"{complaint(failure)}"
        )

    def _commit_on(self, state: DeltaState, change: Change) -> None:
        numbers = {f"chronik:{key.text}": end for key, _, end in change.advances}
        numbers |= {**change.marks, FENCE: state.fence + 1, COMMIT: change.commit_id}
        properties = CommitProperties(
            app_transactions=[Transaction(name, number) for name, number in numbers.items()],
            max_commit_retries=0,
        )
        state.handle.create_write_transaction(
            [*self._adds(change), *self._removes(change)],
            "append",
            state.handle.schema(),
            partition_by=[field.name for field in self.partitioning],
            commit_properties=properties,
        )

    def _adds(self, change: Change) -> list[AddAction]:
        return [
            AddAction(
                path=file.path,
                size=file.byte_count,
                partition_values=self._part(file.partition),
                modification_time=file.written_ms,
                data_change=not change.is_rearrangement,
                stats=delta_stats(file.footer),
            )
            for file in change.added
        ]

    def _removes(self, change: Change) -> list[RemoveAction]:
        now_ms = self._clock.wall_ms()
        return [
            RemoveAction(
                file.path,
                data_change=not change.is_rearrangement,
                deletion_timestamp=now_ms,
                size=file.byte_count,
                partition_values=self._part(file.partition),
            )
            for file in change.removed
        ]

    def _part(self, values: tuple[str | None, ...]) -> dict[str, str | None]:
        names = [field.name for field in self.partitioning]
        return dict(zip(names, values, strict=True))

    @_telling
    def evolve(self, added: pa.Schema, widened: pa.Schema) -> None:
        if len(widened):
            raise LakeError(f"a Delta column cannot be widened: {widened.names}")
        for _ in range(COMMIT_ATTEMPTS_MAX):
            handle = self._handle()
            known = pa.schema(handle.schema().to_arrow())
            missing = [
                field
                for field in added
                if field.name not in known.names or known.field(field.name).type != field.type
            ]
            if not missing:
                return
            try:
                handle.alter.add_columns(Schema.from_arrow(pa.schema(missing)).fields)
                return
            except DeltaError:
                continue
        raise LakeError(f"table {self.name}: cannot add the columns {added.names}")

    @_telling
    def expire(self, now_ms: int, pin_ms: int) -> None:
        """Delete log files that no version kept needs; `deltalake` keeps a day of them."""
        self._handle().cleanup_metadata()

    @_telling
    def unreferenced(self, now_ms: int, age_ms: int) -> list[str]:
        # `deltalake` asks the machine for the time: let the age say what our clock says.
        ahead_ms = now_ms - SystemClock().wall_ms()
        hours = max(0, round((age_ms - ahead_ms) / HOUR_MS))
        found = self._handle().vacuum(
            retention_hours=hours, dry_run=True, enforce_retention_duration=False, full=True
        )
        # It names what is deleted already, and what only looks like a directory in a store.
        there = {path for path, _, _ in self.storage.list()}
        return [path for path in found if path in there]


def _place(storage: Storage) -> dict[str, Any]:
    """Where a table is and how to get there, as `deltalake` takes it."""
    if storage.is_local:
        return {"table_uri": storage.path}
    return {
        "table_uri": storage.url,
        "storage_options": storage.store.delta_options(storage.url),
    }


def _live_files(actions: pa.Table, partitioning: tuple[PartitionField, ...]) -> list[LiveFile]:
    # Of the rest nothing is asked: Python has no dates for some of what may stand there.
    names = [f"partition.{field.name}" for field in partitioning]
    parts = [actions[name].cast(pa.string()).to_pylist() for name in names]
    newest = pa.nulls(len(actions), pa.int64())
    if "max._timestamp" in actions.column_names:
        newest = actions["max._timestamp"].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    columns = [actions[name].to_pylist() for name in ("path", "size_bytes", "num_records")]
    return [
        LiveFile(
            path=path,
            byte_count=byte_count,
            row_count=row_count,
            partition=tuple(part[index] for part in parts),
            newest_ms=None if newest_us is None else newest_us // 1000,
        )
        for index, (path, byte_count, row_count, newest_us) in enumerate(
            zip(*columns, newest.to_pylist(), strict=True)
        )
    ]
