"""One log: segments of record batches, from its start offset to its end offset.

The log is the write-ahead log of what it stores. `append` writes to the page cache on the event
loop; `commit` makes batches durable; `checkpoint` persists how far recovery may trust the files.

Invariants
    Offsets grow; `log_start_offset <= durable_offset <= end_offset` once anything is stored.
    A batch below `durable_offset` survives any crash.
    A log that never got a batch has no file and no directory.
    The recovery point on disk never lies above what is fsynced, and passes a segment's end before
    any offset of the next segment is reported durable (see `recovery`, torn tails).

Who may call what: the loop appends, reads without waiting, retains and moves the start. `load`,
`read(nowait=False)`, `checkpoint`, `sync` and searches by time block and run through `disk.run`;
appends and reads may go on meanwhile. `truncate`, `reset` and `close` block and want the log alone.
Compaction is in `compaction`, the choice of offsets and epochs with the caller.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from chronik.model import NO_TIMESTAMP
from chronik.protocol.batch import BatchHeader
from chronik.protocol.schema import Buffer
from chronik.storage.checkpoint import (
    CHECKPOINT_NAME,
    Checkpoint,
    active_facts,
    encode_checkpoint,
    sealed_facts,
)
from chronik.storage.config import LogConfig
from chronik.storage.disk import Disk
from chronik.storage.epochs import (
    Epochs,
    end_offset_for_epoch,
    note_epoch,
    truncate_from_end,
    truncate_from_start,
)
from chronik.storage.errors import BadIndex, CorruptLog, LogFailed, OffsetOutOfRange, WouldBlock
from chronik.storage.file_range import RANGE_BYTES_MIN, FileRange
from chronik.storage.index import Read
from chronik.storage.read import Wanted, find_range, read_batches, verify
from chronik.storage.recovery import Rules, directories_of, recover
from chronik.storage.retention import expired_count
from chronik.storage.segment import Segment, position_of, walk
from chronik.storage.times import FoundBatch, find_in

_base_offset: Final = attrgetter("base_offset")


class SyncWork(NamedTuple):
    """What a commit round must sync for a log."""

    files: Sequence[str]
    directories: Sequence[str]


class Log:
    """See the module. An instance without batches costs a few hundred bytes."""

    __slots__ = (
        "__weakref__", "_deleted", "_doomed", "_found_offset", "_hint", "_leader_epochs",
        "_recovery_point", "_saved", "_segments", "_synced_offset", "_syncing_offset",
        "_unsynced_directories", "_version", "cleaned_offset", "config", "directory", "disk",
        "durable_offset", "end_offset", "failed", "log_start_offset",
    )  # fmt: skip

    def __init__(self, disk: Disk, directory: str, config: LogConfig) -> None:
        self.disk = disk
        self.directory = directory
        self.config = config
        self.log_start_offset = 0
        self.end_offset = 0
        self.durable_offset = 0  # below: fsynced, and recovery will find it
        self.cleaned_offset = 0  # below: compaction has been there
        self.failed: Exception | None = None
        self._synced_offset = 0  # below: fsynced
        self._syncing_offset = 0  # what the round under way will have synced
        self._recovery_point = 0  # as in the checkpoint file
        self._saved = (0, 0)  # likewise: log start and cleaned offset
        self._segments: list[Segment] = []
        self._doomed: tuple[Segment, ...] = ()  # out of the log, files not removed yet
        self._leader_epochs: Epochs = []
        self._unsynced_directories: tuple[str, ...] = ()
        self._hint: tuple[Segment, int, int] | None = None  # where the last read ended
        self._found_offset = 0  # below: from before this process, to be verified when read
        self._version = 0  # counts changes after which positions mean something else
        self._deleted = False

    # Facts

    @property
    def size_bytes(self) -> int:
        """Bytes of batches."""
        return sum(segment.size for segment in self._segments)

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    @property
    def segments(self) -> Sequence[Segment]:
        """In order; the last one is active. For compaction and checks."""
        return self._segments

    @property
    def leader_epochs(self) -> Sequence[tuple[int, int]]:
        """(epoch, start offset), in order."""
        return self._leader_epochs

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp of any batch, NO_TIMESTAMP if there is none."""
        return max((s.max_timestamp for s in self._segments), default=NO_TIMESTAMP)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """As OffsetForLeaderEpoch answers: (largest epoch up to the asked one, its end)."""
        return end_offset_for_epoch(self._leader_epochs, epoch, self.end_offset)

    # Loading

    def load(self, *, is_synced: bool = False) -> None:
        """Recover from the files, which may all be on disk already; raises CorruptLog. Blocks."""
        with self.disk.exclusive(self.directory):
            if not self.disk.exists(self.directory):
                return
            rules = Rules(self.config.index_interval_bytes, not self.config.compact, is_synced)
            found = recover(self.disk, self.directory, rules)
            self._segments = found.segments
            self.log_start_offset = found.log_start_offset
            self.end_offset = self._synced_offset = self.durable_offset = found.end_offset
            self._syncing_offset = self._found_offset = found.end_offset
            self._recovery_point = found.recovery_point
            self.cleaned_offset = found.cleaned_offset
            self._saved = (found.log_start_offset, found.cleaned_offset)
            self._leader_epochs = found.leader_epochs
            last = found.segments[-1] if found.segments else None
            if last is None or last.index is None or last.next_offset != found.end_offset:
                self._segments.append(Segment(self.directory, found.end_offset))
            if found.changed:
                self.write_checkpoint()

    def scan_headers(self, from_offset: int) -> Iterator[BatchHeader]:
        """The headers of all batches that end at or above an offset. Blocks."""
        for segment in list(self._segments):
            if segment.next_offset <= from_offset:
                continue
            position = position_of(segment, self.disk.pread, from_offset)
            for _, header in walk(self.disk.pread, segment, position, segment.size):
                if header.last_offset >= from_offset:
                    yield header

    # Appending

    def append(self, header: BatchHeader, buffers: Sequence[Buffer], now_ms: int) -> None:
        """Append a stamped batch to the page cache; it is durable after a commit round."""
        assert header.base_offset >= self.end_offset, (header.base_offset, self.end_offset)
        if self.failed is not None:
            raise LogFailed(f"{self.directory}: {self.failed}") from self.failed
        segments = self._segments
        if not segments or self._must_roll(segments[-1], header, now_ms):
            self.roll(now_ms)
        segment = segments[-1]
        if not segment.size:
            self._prepare_file(segment)
            segment.created_ms = now_ms  # It may have been rolled long before.
        try:
            self.disk.append(segment.path, buffers)
        except OSError as error:
            self._undo_append(segment, error)
            raise
        segment.dirty = True
        segment.note(header, self.config.index_interval_bytes)
        self.end_offset = segment.next_offset
        epochs = self._leader_epochs
        if not epochs or header.leader_epoch > epochs[-1][0]:
            note_epoch(epochs, header.leader_epoch, header.base_offset)

    def _must_roll(self, segment: Segment, header: BatchHeader, now_ms: int) -> bool:
        size = segment.size
        if not size or self._is_unborn():
            return False
        config = self.config
        if size + header.size > config.segment_bytes or not segment.fits(header):
            return True
        return segment.age_ms(header.max_timestamp, now_ms) > config.roll_ms

    def _is_unborn(self) -> bool:
        """Whether not even the first segment's name is durable: no second one may be, before."""
        return not self._synced_offset and not self._recovery_point

    def _prepare_file(self, segment: Segment) -> None:
        changed: Sequence[str] = ()
        if segment is self._segments[0]:
            # Whoever created the parents may not have synced them yet, or never will.
            changed = (*self.disk.make_directory(self.directory), *directories_of(self.directory))
        unsynced = (self.directory, *changed, *self._unsynced_directories)
        self._unsynced_directories = tuple(dict.fromkeys(unsynced))  # A full disk brings us back.

    def _undo_append(self, segment: Segment, error: OSError) -> None:
        """Cut what a failed write left, or later batches would lie behind torn bytes."""
        try:
            if self.disk.exists(segment.path):
                self.disk.truncate(segment.path, segment.size)
        except OSError:
            self.failed = error

    def roll(self, now_ms: int) -> None:
        """Seal the active segment and begin another, whose file the next append creates."""
        if not self._segments or self._segments[-1].size:
            self._segments.append(Segment(self.directory, self.end_offset, now_ms))

    def roll_if_due(self, now_ms: int) -> bool:
        """Roll a segment that is old enough without waiting for an append.

        By the clock: records may tell of years ago, and would have each segment rolled at once.
        """
        segment = self._segments[-1] if self._segments else None
        if segment is None or not segment.size or self._is_unborn():
            return False
        # After a load the last record's time is the best guess; it is made once a start.
        guess_ms = now_ms if segment.max_timestamp == NO_TIMESTAMP else segment.max_timestamp
        segment.created_ms = segment.created_ms or min(guess_ms, now_ms)
        if now_ms - segment.created_ms <= self.config.roll_ms:
            return False
        self.roll(now_ms)
        return True

    # Durability

    def begin_sync(self) -> SyncWork:
        """Start a commit round: what to sync so that all batches so far become durable."""
        self._syncing_offset = self.end_offset
        files = []
        for segment in reversed(self._segments):
            if not segment.dirty and segment.size:
                break
            if segment.dirty:
                segment.dirty = False
                files.append(segment.path)
        directories, self._unsynced_directories = self._unsynced_directories, ()
        return SyncWork(files, directories)

    def finish_sync(self) -> bool:
        """The round's work is synced. True: a checkpoint must follow before `publish_durable`."""
        self._synced_offset = max(self._synced_offset, self._syncing_offset)
        last = self._segment_at(self._synced_offset - 1)
        return last is not None and last.base_offset > self._recovery_point

    def publish_durable(self) -> None:
        """Report the round's batches as durable."""
        self.durable_offset = max(self.durable_offset, self._synced_offset)

    def sync(self) -> None:
        """A commit round of this log alone. Blocks."""
        work = self.begin_sync()
        try:
            for path in work.files:
                self.disk.sync(path)
            for path in dict.fromkeys(work.directories):
                self.disk.sync_directory(path)
            if self.finish_sync():
                self.checkpoint()
        except OSError as error:
            self.failed = error
            raise
        self.publish_durable()

    def checkpoint(self) -> None:
        """Persist recovery point, log start and index entries, then remove dropped segments."""
        with self.disk.exclusive(self.directory):
            if not self.is_checkpointed:
                self.write_checkpoint()

    @property
    def is_checkpointed(self) -> bool:
        """Whether the checkpoint on disk tells of everything that was synced or dropped."""
        return (
            self._recovery_point >= self._synced_offset
            and self._saved == (self.log_start_offset, self.cleaned_offset)
            and not self._doomed
        )

    def write_checkpoint(self) -> None:
        """Write the checkpoint in any case; the caller has exclusive use of the directory."""
        if self._deleted:
            return
        try:
            self._save(self._doomed)
        except FileNotFoundError:
            if not self._deleted:
                raise

    def _save(self, doomed: tuple[Segment, ...]) -> None:
        start_offset = self.log_start_offset  # Read after `doomed`, which it must cover.
        recovery_point = max(self._synced_offset, start_offset)
        segments = list(self._segments)
        for segment in segments:
            segment.flush_index(self.disk)
        for segment in segments[:-1]:
            segment.unload_index()
        sealed = [s for s in segments[:-1] if s.size and s.next_offset <= recovery_point]
        active = next((s for s in segments if s.size and s not in sealed), segments[-1])
        checkpoint = Checkpoint(
            recovery_point=recovery_point,
            log_start_offset=start_offset,
            cleaned_offset=self.cleaned_offset,
            leader_epochs=tuple(self._leader_epochs),
            segments=[sealed_facts(segment) for segment in sealed],
            active=active_facts(active),
        )
        path = f"{self.directory}/{CHECKPOINT_NAME}"
        self.disk.write_durably(path, encode_checkpoint(checkpoint))
        self._recovery_point = recovery_point
        self._saved = (start_offset, checkpoint.cleaned_offset)
        for segment in doomed:
            segment.remove_files(self.disk)
        self._doomed = tuple(s for s in self._doomed if s not in doomed)

    def close(self) -> None:
        """Make everything durable and the next load quick. Blocks."""
        if self.failed is None and not self._deleted and self._segments:
            self.sync()
            self.checkpoint()
            for segment in self._segments:
                self.disk.release(segment.path)

    # Reading

    def read(
        self,
        offset: int,
        max_bytes: int,
        limit_offset: int,
        *,
        at_least_one_batch: bool = True,
        nowait: bool = True,
    ) -> Buffer | None:
        """Whole batches from the one that holds the offset; None if that would block.

        Empty at the limit or the end. With `nowait=False` it blocks instead and never gives None.
        What an earlier process wrote or the device gave is verified first: raises CorruptLog.
        """
        if not self.log_start_offset <= offset <= self.end_offset:
            raise OffsetOutOfRange(offset, self.log_start_offset, self.end_offset)
        if offset >= limit_offset or offset == self.end_offset:
            return b""
        interval_bytes = self.config.index_interval_bytes
        wanted = Wanted(offset, max_bytes, limit_offset, at_least_one_batch, interval_bytes)
        if not nowait:
            return self._read_blocking(wanted)
        try:
            return self._read(self._pread_nowait, wanted, offset < self._found_offset)
        except (WouldBlock, BadIndex, CorruptLog, FileNotFoundError):
            return None  # The blocking read finds out which.

    def file_range(self, offset: int, max_bytes: int, limit_offset: int) -> FileRange | None:
        """Whole batches as `read` would give, for a socket to take from the page cache.

        None if they are few, not cached, or of an earlier process and so to be verified: read them.
        """
        trusted_offset = max(self._found_offset, self.log_start_offset)
        if max_bytes < RANGE_BYTES_MIN or not trusted_offset <= offset < limit_offset:
            return None
        segment = self._segment_at(offset)
        assert segment is not None
        wanted = Wanted(offset, max_bytes, limit_offset, False, self.config.index_interval_bytes)
        try:
            found = find_range(segment, self._pread_nowait, wanted, self._hinted(segment, offset))
            if found is None:
                return None
            part = self.disk.file_range(segment.path, found.position, found.size)
        except (WouldBlock, BadIndex, FileNotFoundError):
            return None
        self._hint = (segment, found.next_offset, found.position + found.size)
        return part

    def _hinted(self, segment: Segment, offset: int) -> int | None:
        """The position of an offset, if an earlier read has ended there."""
        at = self._hint
        return at[2] if at is not None and at[0] is segment and at[1] == offset else None

    def _pread_nowait(self, path: str, size: int, position: int) -> Buffer:
        data = self.disk.pread_nowait(path, size, position)
        if data is None:
            raise WouldBlock
        return data

    def _read_blocking(self, wanted: Wanted) -> Buffer:
        version = self._version
        try:
            data = self._read(self.disk.pread, wanted, True)
            if version == self._version:
                return data
        except (BadIndex, CorruptLog, FileNotFoundError):
            pass  # A segment was replaced or removed under us, or its index is bad.
        with self.disk.exclusive(self.directory):
            if wanted.offset < self.log_start_offset:
                raise OffsetOutOfRange(wanted.offset, self.log_start_offset, self.end_offset)
            try:
                return self._read(self.disk.pread, wanted, True)
            except BadIndex:
                i = bisect_right(self._segments, wanted.offset, key=_base_offset)
                for segment in self._segments[max(i - 1, 0) : i + 1]:
                    self._repair_index(segment)  # The next one too: a gap may lead there.
                return self._read(self.disk.pread, wanted, True)

    def _repair_index(self, segment: Segment) -> None:
        self._hint = None
        if segment.size:
            segment.repair_index(self.disk, self.config.index_interval_bytes)

    def _read(self, read: Read, wanted: Wanted, must_verify: bool) -> Buffer:
        segments = self._segments
        i = len(segments) - 1
        if wanted.offset < segments[i].base_offset:
            i = max(bisect_right(segments, wanted.offset, key=_base_offset) - 1, 0)
        while i < len(segments):
            segment = segments[i]
            found = read_batches(segment, read, wanted, self._hinted(segment, wanted.offset))
            if found is not None:
                if must_verify:
                    verify(found, segment)
                self._hint = (segment, found.next_offset, found.next_position)
                return found.data
            i += 1  # Compaction removed the rest of this segment.
        return b""

    def _segment_at(self, offset: int) -> Segment | None:
        i = bisect_right(self._segments, offset, key=_base_offset)
        return self._segments[max(i - 1, 0)] if self._segments else None

    def find_timestamp(self, timestamp: int) -> FoundBatch | None:
        """The first batch with a max timestamp at or above the timestamp. Blocks."""
        with self.disk.exclusive(self.directory):
            for segment in list(self._segments):
                if segment.size and segment.max_timestamp >= timestamp:
                    try:
                        found = find_in(segment, self.disk.pread, timestamp, self.log_start_offset)
                    except BadIndex:
                        self._repair_index(segment)
                        found = find_in(segment, self.disk.pread, timestamp, self.log_start_offset)
                    if found is not None:
                        return found
        return None

    def max_timestamp_batch(self) -> FoundBatch | None:
        """The first batch that has the log's largest timestamp. Blocks."""
        by_time = attrgetter("max_timestamp")
        best = max((s for s in self._segments if s.size), key=by_time, default=None)
        if best is None or best.max_timestamp == NO_TIMESTAMP:
            return None
        if best.max_timestamp_offset >= self.log_start_offset:
            return self.find_timestamp(best.max_timestamp)
        # The batch was deleted from a segment that is still there: look at what is left of it.
        header = max(self.scan_headers(self.log_start_offset), key=by_time, default=None)
        return self.find_timestamp(header.max_timestamp) if header is not None else None

    # Shortening

    def advance_log_start(self, offset: int) -> bool:
        """Forget records below an offset, for good once `checkpoint` returns. False: no change."""
        assert offset <= self.end_offset, (offset, self.end_offset)
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        truncate_from_start(self._leader_epochs, offset)
        count = 0
        while count + 1 < len(self._segments) and self._segments[count + 1].base_offset <= offset:
            count += 1
        if count:
            self._doomed += tuple(self._segments[:count])
            self._segments = self._segments[count:]
            self._version += 1
        return True

    def retain(self, now_ms: int, limit_offset: int | None = None) -> bool:
        """Drop segments by retention; their files go with the next `checkpoint`.

        Nothing at or above the limit (the high watermark) is dropped.
        """
        if not self.config.delete or not self._segments:
            return False
        limit = self.end_offset if limit_offset is None else limit_offset
        count = expired_count(self._segments, self.config, now_ms, limit)
        if not count or self._is_unborn():
            return False
        if count == len(self._segments):
            self.roll(now_ms)
        return self.advance_log_start(self._segments[count].base_offset)

    def truncate(self, to_offset: int) -> None:
        """Drop every batch that reaches an offset; `end_offset` may end up below it. Blocks."""
        if to_offset >= self.end_offset:
            return
        if to_offset <= max(self.log_start_offset, self._segments[0].base_offset):
            self.reset(to_offset)
            return
        with self.disk.exclusive(self.directory):
            before = self.durable_offset, self._synced_offset, self._syncing_offset
            holder = self._segment_at(to_offset - 1)
            assert holder is not None
            self._lower_recovery_point(holder.base_offset)
            while self._segments[-1] is not holder:
                self._remove_last()
            self._cut(holder, to_offset)
            self.end_offset = self._segments[-1].next_offset
            truncate_from_end(self._leader_epochs, self.end_offset)
            self.durable_offset, self._synced_offset, self._syncing_offset = before
            self._clamp(self.end_offset)
            # If the batch that holds the start went, it comes again as a whole.
            self.log_start_offset = min(self.log_start_offset, self.end_offset)
            self.write_checkpoint()

    def _lower_recovery_point(self, offset: int) -> None:
        # Durable first: files that end below the recovery point look like lost data.
        self._clamp(offset)
        self.positions_changed()
        self.write_checkpoint()

    def _clamp(self, offset: int) -> None:
        """Nothing above the offset is durable, or will be by the round under way."""
        self.durable_offset = min(self.durable_offset, offset)
        self._synced_offset = min(self._synced_offset, offset)
        self._syncing_offset = min(self._syncing_offset, offset)
        self.cleaned_offset = min(self.cleaned_offset, offset)

    def _remove_last(self) -> None:
        # One by one and durable, so that a crash never leaves a gap between segments.
        self._segments.pop().remove_files(self.disk)
        self.disk.sync_directory(self.directory)

    def _cut(self, segment: Segment, to_offset: int) -> None:
        kept = Segment(self.directory, segment.base_offset, segment.created_ms)
        try:
            index = segment.index or segment.load_index(self.disk)
            kept.rewind(self.disk, index, to_offset)
        except BadIndex:
            pass  # From the beginning, then.
        for _, header in walk(self.disk.pread, segment, kept.size, segment.size):
            if header.last_offset >= to_offset:
                break
            kept.note(header, self.config.index_interval_bytes)
        kept.dirty = segment.dirty
        if segment.size:
            # Synced, so that bytes of the old end cannot show up between those of the new one.
            self.disk.truncate(kept.path, kept.size)
            self.disk.sync(kept.path)
            kept.write_index(self.disk)
        self._segments[-1] = kept

    def reset(self, offset: int) -> None:
        """Drop everything and begin anew at an offset, as a follower that fell behind. Blocks."""
        with self.disk.exclusive(self.directory):
            for path in (
                *self.disk.make_directory(self.directory),
                *directories_of(self.directory),
            ):
                self.disk.sync_directory(path)
            if self._segments:
                self._clamp(0)
                self._recovery_point = 0
                self._lower_recovery_point(self.log_start_offset)
                while self._segments:
                    self._remove_last()
            self._leader_epochs = []
            self.log_start_offset = self.end_offset = offset
            self._synced_offset = self._syncing_offset = self.durable_offset = offset
            self.cleaned_offset = 0
            self._segments = [Segment(self.directory, offset)]
            self.write_checkpoint()

    def abandon(self) -> None:
        """The log is deleted: nothing is written any more; the caller removes the directory."""
        self._deleted = True

    # Compaction

    def replace_segments(self, old: Sequence[Segment], new: Segment | None) -> bool:
        """Put a compacted segment in the place of neighbours; False if they are not there now."""
        try:
            first = self._segments.index(old[0])
        except ValueError:
            return False
        if self._segments[first : first + len(old)] != list(old):
            return False
        replacement = [new] if new is not None else []
        segments = self._segments
        self._segments = segments[:first] + replacement + segments[first + len(old) :]
        self.positions_changed()
        return True

    def positions_changed(self) -> None:
        """Tell readers under way that what they looked up may be elsewhere now."""
        self._version += 1
        self._hint = None
