"""What a lake table is to us: files, the offsets they reach to, and one way to change both.

The table's own commit is the only memory and the only fence. A commit carries data files, the
offsets that they reach to, and a number, the *fence*, that every commit of ours counts up by one.

Invariants
    A change lands whole or not at all: files, offsets, marks and fence in one commit.
    A change lands only if each of its offsets starts where the table ends, if each file that it
    removes is still there, and, where it names a fence, if nobody has committed since.
    Of two changes planned on one state at most one lands; the other is `Refused`, adding no row.

`delta` and `iceberg` implement it. They never retry blindly: after an error they load again and
check again, because the error may hide a commit that landed.
"""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from chronik.spark.lake.storage import Storage

COMMIT_ATTEMPTS_MAX: Final = 10  # each one lost to somebody else's commit, not to a broken table
NO_MARKS: Final[Mapping[str, int]] = MappingProxyType({})
FENCE: Final = "chronik.fence"
# The last replay of dead letters that was begun, and the last that was done; see `replay`.
REPLAY: Final = "chronik.replay"
REPLAY_DONE: Final = "chronik.replay.done"
EXPIRY: Final = "chronik.expiry"  # how often unreferenced files were deleted; see `expiry`
COMMIT: Final = "chronik.commit"  # the id of the last change, by which its maker knows it again
TOPIC: Final = "chronik.topic"  # which topic of that name the table is of; see `topic_mark`
INTENTS: Final = "_chronik"  # a directory that no engine takes for data


class LakeError(Exception):
    """What a person must act on; the message says how."""


class Refused(LakeError):
    """A change planned on a state that is no longer the table's: nothing was added."""


class PartitionKey(NamedTuple):
    """A partition of a topic as it is now: a recreated topic has another id."""

    topic_id: bytes
    partition: int

    @property
    def text(self) -> str:
        return f"{self.topic_id.hex()}:{self.partition}"

    @classmethod
    def parse(cls, text: str) -> "PartitionKey":
        topic_id, _, partition = text.partition(":")
        return cls(bytes.fromhex(topic_id), int(partition))


class Advance(NamedTuple):
    """From where to where a commit brings one partition. None: the table has no rows of it."""

    key: PartitionKey
    start_offset: int | None
    end_offset: int


class PartitionField(NamedTuple):
    """One field that a table is partitioned by: a column, or a span of time of a column."""

    column: str
    transform: str  # identity, hour, day, month or year

    @property
    def name(self) -> str:
        return self.column if self.transform == "identity" else f"{self.column}_{self.transform}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A Parquet file that somebody has written and nobody has committed yet. Picklable."""

    path: str  # relative to the table's location
    byte_count: int
    row_count: int
    footer: "pq.FileMetaData"
    # One value for each partition field, as text; None where it is null.
    partition: tuple[str | None, ...] = ()
    written_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFile:
    """A file that belongs to the table."""

    path: str
    byte_count: int
    row_count: int
    partition: tuple[str | None, ...] = ()
    newest_ms: int | None = None  # the greatest _timestamp in it, if the table knows


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What one commit does."""

    added: tuple[DataFile, ...] = ()
    removed: tuple[LiveFile, ...] = ()
    required: tuple[LiveFile, ...] = ()  # must still be there, and stay
    advances: tuple[Advance, ...] = ()
    marks: Mapping[str, int] = field(default_factory=lambda: NO_MARKS)
    marks_expected: Mapping[str, int | None] = field(default_factory=lambda: NO_MARKS)
    planned_fence: int | None = None  # None: what else was committed does not matter
    is_rearrangement: bool = False  # the same rows in other files
    commit_id: int = field(default_factory=lambda: secrets.randbelow(2**62))


class TableState(Protocol):
    """A table at one version."""

    @property
    def version(self) -> int: ...

    @property
    def fence(self) -> int:
        """How many changes of ours have landed."""
        ...

    @property
    def schema(self) -> "pa.Schema": ...

    def offset(self, key: PartitionKey) -> int | None:
        """Up to where the table has this partition (exclusive), None if it has nothing of it."""
        ...

    @property
    def committed_ms(self) -> int | None:
        """When this version was committed."""
        ...

    def mark(self, name: str) -> int | None: ...

    def files(self) -> list[LiveFile]:
        """Every file of the table. Never on the path of a commit that only appends."""
        ...


class LakeTable(Protocol):
    """A table in one of the formats."""

    format: str
    name: str
    location: str
    partitioning: tuple[PartitionField, ...]
    storage: "Storage"

    def load(self) -> TableState:
        """The table as it is now."""
        ...

    def commit(self, change: Change) -> int:
        """Land a change and return the new version, or raise Refused."""
        ...

    def evolve(self, added: "pa.Schema", widened: "pa.Schema") -> None:
        """Add columns, and widen columns to the given types. Repeating it does nothing."""
        ...

    def file_schema(self, state: TableState) -> "pa.Schema":
        """What a file of this table must look like: without what the format keeps elsewhere."""
        ...

    def expire(self, now_ms: int, pin_ms: int) -> None:
        """Forget versions that nobody can have pinned within `pin_ms`; deletes no data file."""
        ...

    def unreferenced(self, now_ms: int, age_ms: int) -> list[str]:
        """Files below the location, older than this, that no version kept refers to."""
        ...


def topic_mark(topic_id: bytes) -> int:
    """A topic's id as a mark: a recreated topic has another one."""
    return int.from_bytes(topic_id[:7])  # as much as fits into a signed number of 64 bits


def check_change(change: Change, state: TableState) -> None:
    """Raise Refused unless the change may land on this state."""
    if change.planned_fence is not None and state.fence != change.planned_fence:
        raise Refused(
            f"another pipeline has committed to this table since: planned on commit "
            f"{change.planned_fence}, now {state.fence}"
        )
    for key, start_offset, end_offset in change.advances:
        committed = state.offset(key)
        if committed != start_offset:
            raise Refused(
                f"partition {key.partition} is committed up to {committed}, and this change "
                f"starts at {start_offset}"
            )
        assert end_offset >= (start_offset or 0), "offsets never go back"
    for name, expected in change.marks_expected.items():
        if state.mark(name) != expected:
            raise Refused(f"{name} is {state.mark(name)}, and this change expects {expected}")
    if change.removed or change.required:
        live = {each.path for each in state.files()}
        needed = (*change.removed, *change.required)
        gone = [each.path for each in needed if each.path not in live]
        if gone:
            raise Refused(
                f"{len(gone)} of the files that this change needs are gone, such as {gone[0]}"
            )


def has_landed(change: Change, state: TableState) -> bool:
    """Whether a change whose outcome is unknown is in this state.

    The files' names are unique, so one of them tells. A change without files is told by its id, as
    long as it is the last one; never by its offsets, which somebody else may have brought there
    with another idea of what is a dead letter. What is taken for not landed is checked again, and
    refused if the table has moved on: to be wrong in that direction adds no row.
    """
    if change.added:
        return change.added[0].path in {each.path for each in state.files()}
    if state.mark(COMMIT) == change.commit_id:
        return True
    is_marked = bool(change.marks) and not change.advances
    return is_marked and all(state.mark(name) == value for name, value in change.marks.items())


def total(files: Iterable[LiveFile]) -> tuple[int, int, int]:
    """How many files, rows and bytes."""
    listed: Sequence[LiveFile] = list(files)
    return (
        len(listed),
        sum(each.row_count for each in listed),
        sum(each.byte_count for each in listed),
    )
