"""The metadata log on disk: Raft's entries, the vote file beside them, and snapshots.

An entry is a record batch of one record in an ordinary `Log`: base offset = index, leader epoch =
term, key = the kind of entry, value = its data. So torn tails, CRCs and group commit are those of
any partition, and Kafka's own dump tool can read it.

    __chronik_metadata/00000000000000000001.log ...   entries
    __chronik_metadata/vote.json                      term, vote and commit index
    __chronik_metadata/snapshot-<index>-<term>.json   records that rebuild the image at that index

Invariants
    The vote file is on disk before the log: a log without one has lost its vote, and is refused.
    A snapshot is complete or absent: it is written aside, fsynced and renamed.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from chronik.metadata.records import Record, UndecodableRecord, decode_records, encode_records
from chronik.protocol.batch import LENGTH_OVERHEAD, read_header
from chronik.protocol.records import Record as LogRecord
from chronik.protocol.records import build_batch, iter_records
from chronik.protocol.schema import Buffer
from chronik.raft.types import (
    FIRST_INDEX,
    Entry,
    EntryKind,
    HardState,
    Membership,
    Snapshot,
)
from chronik.storage.config import LogConfig
from chronik.storage.disk import Disk
from chronik.storage.log import Log

if TYPE_CHECKING:
    import asyncio

METADATA_DIRECTORY = "__chronik_metadata"  # in a data directory
READ_BYTES = 4 * 1024 * 1024


class UnusableMetadata(Exception):
    """The metadata directory cannot be trusted; the message says what is wrong and where."""


class _Vote(msgspec.Struct, frozen=True, kw_only=True):
    term: int
    vote: int | None
    commit_index: int


class _Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    term: int
    voters: list[int] = []  # none in a snapshot of a release that knew no others
    learners: list[int] = []
    directories: dict[int, str] = {}
    records: list[dict[str, Any]]


class Journal:
    """The durable side of the metadata runtime."""

    def __init__(self, disk: Disk, directory: str, now_ms: Callable[[], int]) -> None:
        self._disk = disk
        self._directory = directory
        self._now_ms = now_ms
        self._vote_path = _vote_path(directory)
        self.log = Log(disk, directory, LogConfig(segment_bytes=64 * 1024 * 1024))
        self.last_index = FIRST_INDEX - 1
        self.state = HardState()  # as it is on disk

    def load(self) -> HardState:
        """Recover the log and the vote. Blocking: runs before the node serves anything."""
        if not self._disk.exists(self._vote_path):
            raise UnusableMetadata(
                f"{self._vote_path} is missing: the vote is lost, and guessing it could elect two "
                "leaders. Restore the metadata from a backup, or remove this data directory and "
                "let the node join as a new one."
            )
        state = self.state = read_vote(self._disk, self._vote_path)
        self.log.load()
        if self.log.end_offset < FIRST_INDEX:
            self.log.reset(FIRST_INDEX)
        self.last_index = self.log.end_offset - 1
        if self.last_index < state.commit_index:
            raise UnusableMetadata(
                f"{self._directory}: the log ends at {self.last_index}, but {self._vote_path} "
                f"says that everything up to {state.commit_index} was committed"
            )
        return state

    def save_vote(self, state: HardState) -> None:
        """Put the hard state on disk, file and directory synced, before anything depends on it."""
        _write_vote(self._disk, self._vote_path, state)
        self.state = state

    def append(self, entry: Entry) -> None:
        """Write one entry; it is durable once the group commit says so."""
        assert entry.index == self.last_index + 1, "entries are dense"
        now_ms = self._now_ms()
        record = LogRecord(entry.index, now_ms, entry.kind.value.encode(), entry.data)
        batch = build_batch([record], base_offset=entry.index, leader_epoch=entry.term)
        self.log.append(read_header(batch), [batch], now_ms)
        self.last_index = entry.index

    def entries(self, first_index: int) -> Iterator[Entry]:
        """The entries from an index on."""
        index = max(first_index, self.log.log_start_offset)
        while index <= self.last_index:
            data = self.log.read(index, READ_BYTES, self.last_index + 1, nowait=False)
            assert data, f"metadata entry {index} is missing"
            position = 0
            while position < len(data):
                header = read_header(data, position)
                batch = memoryview(data)[position : position + header.length + LENGTH_OVERHEAD]
                position += len(batch)
                if header.base_offset >= index:
                    yield decode_entry(batch, header.base_offset, header.leader_epoch)
                    index = header.base_offset + 1

    def truncate(self, index: int) -> None:
        """Drop the entry at an index and what follows it: another leader never had them. Blocks."""
        self.log.truncate(index)
        self.last_index = self.log.end_offset - 1

    # Snapshots.

    def _save_snapshot(self, snapshot: Snapshot, records: Iterable[Record]) -> None:
        documents = msgspec.json.decode(encode_records(records), type=list[dict[str, Any]])
        document = _Snapshot(
            index=snapshot.index,
            term=snapshot.term,
            voters=sorted(snapshot.membership.voters),
            learners=sorted(snapshot.membership.learners),
            directories=dict(snapshot.membership.directories),
            records=documents,
        )
        self._write_snapshot(snapshot, msgspec.json.encode(document))

    def _write_snapshot(self, snapshot: Snapshot, data: bytes) -> None:
        """Write a snapshot, then drop older ones."""
        name = _name_of(snapshot)
        self._disk.write_durably(f"{self._directory}/{name}", data)
        for other in self._snapshots():
            if other < name:
                self._disk.remove(f"{self._directory}/{other}")

    def save_snapshot_later(
        self,
        snapshot: Snapshot,
        records: Callable[[], Iterable[Record]],
        done: Callable[[Snapshot, BaseException | None], None],
    ) -> None:
        """Write a snapshot off the loop, then forget the entries it replaces, then say so.

        `done` is called in any case, with what failed.
        """

        def written(writing: "asyncio.Future[None]") -> None:
            error = _failure(writing)
            if error is None:
                try:
                    self.log.advance_log_start(snapshot.index + 1)
                    forgetting = self._disk.run(self.log.checkpoint)
                except Exception as reason:
                    error = reason
                else:
                    forgetting.add_done_callback(lambda each: done(snapshot, _failure(each)))
                    return
            done(snapshot, error)

        writing = self._disk.run(lambda: self._save_snapshot(snapshot, records()))
        writing.add_done_callback(written)

    def install(self, snapshot: Snapshot, data: bytes) -> None:
        """A leader's snapshot takes the place of the whole log. Blocks."""
        decode_snapshot(data, f"the snapshot at {snapshot.index} from the leader")
        self._write_snapshot(snapshot, data)
        self.log.reset(snapshot.index + 1)
        self.last_index = snapshot.index

    def snapshot_data(self, snapshot: Snapshot) -> bytes:
        """The bytes of a snapshot, to be sent to somebody or to be read. Blocks."""
        path = f"{self._directory}/{_name_of(snapshot)}"
        return bytes(self._disk.pread(path, self._disk.size(path), 0))

    def load_snapshot(self) -> tuple[Snapshot, list[Record]] | None:
        """The newest snapshot and its records."""
        names = self._snapshots()
        if not names:
            return None
        path = f"{self._directory}/{names[-1]}"
        data = bytes(self._disk.pread(path, self._disk.size(path), 0))
        snapshot, records = decode_snapshot(data, path)
        if not self._holds(snapshot):
            # A crash came between a leader's snapshot and the end of the log that it replaces.
            self.log.reset(snapshot.index + 1)
            self.last_index = snapshot.index
        return snapshot, records

    def _holds(self, snapshot: Snapshot) -> bool:
        """Whether the log goes on where a snapshot ends."""
        if self.log.log_start_offset > snapshot.index:
            return True
        if self.last_index < snapshot.index:
            return False
        return next(self.entries(snapshot.index)).term == snapshot.term

    def _snapshots(self) -> list[str]:
        return snapshot_names(self._disk, self._directory)


def begin_votes(disk: Disk, directory: str) -> None:
    """A node is about to have a cluster: from then on a vote that is missing is a lost one."""
    path = _vote_path(directory)
    if not disk.exists(path):
        for made in disk.make_directory(directory):
            disk.sync_directory(made)
        _write_vote(disk, path, HardState())


def _vote_path(directory: str) -> str:
    return f"{directory}/vote.json"


def _write_vote(disk: Disk, path: str, state: HardState) -> None:
    vote = _Vote(term=state.term, vote=state.vote, commit_index=state.commit_index)
    disk.write_durably(path, msgspec.json.encode(vote))


def read_vote(disk: Disk, path: str) -> HardState:
    """What a voter must not forget; UnusableMetadata if the file is not what was written."""
    try:
        vote = msgspec.json.decode(disk.pread(path, disk.size(path), 0), type=_Vote)
    except msgspec.MsgspecError as reason:
        raise UnusableMetadata(f"{path} cannot be read: {reason}") from None
    return HardState(term=vote.term, vote=vote.vote, commit_index=vote.commit_index)


def snapshot_names(disk: Disk, directory: str) -> list[str]:
    """The files of snapshots, the newest last."""
    names = disk.list(directory)
    return sorted(n for n in names if n.startswith("snapshot-") and n.endswith(".json"))


def read_snapshot(data: bytes) -> list[Record]:
    """The records of a snapshot that has been installed."""
    return decode_snapshot(data, "a snapshot")[1]


def decode_snapshot(data: bytes, place: str) -> tuple[Snapshot, list[Record]]:
    """A snapshot's file; UnusableMetadata if it is none."""
    try:
        found = msgspec.json.decode(data, type=_Snapshot)
        records = decode_records(msgspec.json.encode(found.records))
    except (msgspec.MsgspecError, UndecodableRecord) as reason:
        raise UnusableMetadata(f"{place} cannot be read: {reason}") from None
    membership = Membership(frozenset(found.voters), frozenset(found.learners), found.directories)
    return Snapshot(found.index, found.term, membership), records


def _name_of(snapshot: Snapshot) -> str:
    return f"snapshot-{snapshot.index:020d}-{snapshot.term}.json"


def _failure(future: "asyncio.Future[None]") -> BaseException | None:
    return InterruptedError("cancelled") if future.cancelled() else future.exception()


def decode_entry(batch: Buffer, index: int, term: int) -> Entry:
    """The entry that a batch holds; UnusableMetadata if it is of an unknown kind."""
    record = next(iter_records(batch))
    try:
        kind = EntryKind((record.key or b"").decode())
    except ValueError:
        raise UnusableMetadata(
            f"metadata entry {index} (term {term}) is of unknown kind {record.key!r}"
        ) from None
    return Entry(term=term, index=index, kind=kind, data=record.value or b"")


def records_of(entry: Entry) -> list[Record]:
    """What an entry changes; UnusableMetadata if it cannot be decoded."""
    match entry.kind:
        case EntryKind.NO_OP | EntryKind.CONFIGURATION:
            return []
        case EntryKind.COMMAND:
            try:
                return decode_records(entry.data)
            except UndecodableRecord as reason:
                raise UnusableMetadata(
                    f"metadata entry {entry.index} (term {entry.term}) cannot be decoded: {reason}"
                ) from None
