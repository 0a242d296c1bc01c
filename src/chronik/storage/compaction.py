"""The cleaner of compacted logs: of each key the last value stays, and offsets stay as they are.

First the dirty part is read into a map from key to last offset; then sealed segments are copied
without the records that the map supersedes, and each copy takes the place of its originals. It is
a generator of bounded slices, so that the loop serves clients in between: a slice of `None` was
CPU work that is done, a callable is blocking work for `disk.run` before the next slice.

Invariants
    The active segment and everything from the limit offset on are left alone; the limit is the
    last stable offset, so that every transaction below it is decided.
    Offsets and each producer's last batch stay (as a batch without records, if need be: the
    producer's next sequence is checked against it).
    Records of aborted transactions go. When a marker may go, `cleaned_transactions` says.
    A tombstone stays for `delete_retention_ms` after the first cleaning that saw it (KIP-534: the
    batch carries the time until which it is kept).
    At any crash the log has the old segments or the new one, never both and never neither.

The swap: `.cleaned` is written and fsynced, renamed to `.swap` and the directory fsynced; from here
the new segment is the truth. The log turns to it, the checkpoint learns its size, old files go and
the directory is fsynced; then it gets its own name. `recovery` finishes what a crash interrupts.

The caller decides when (`is_due`), never while the log is truncated or reset: it closes the
generator first.
"""

import asyncio
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from chronik.protocol.batch import DELETE_HORIZON_FLAG, HEADER_SIZE, BatchHeader, read_header
from chronik.protocol.records import Record, iter_records, rebuild_batch
from chronik.protocol.schema import Buffer
from chronik.storage.cleaned_transactions import CleanedTransactions, TransactionState
from chronik.storage.index import RELATIVE_OFFSET_MAX
from chronik.storage.log import Log
from chronik.storage.recovery import finish_swap, swap_path
from chronik.storage.segment import Segment

Slice = Callable[[], object] | None

# About 300,000 keys. Kafka's cleaner takes 128 MiB for all logs; more keys than fit take another
# round, which costs time but no memory.
KEY_MAP_BYTES_MAX: Final = 64 * 1024 * 1024
_KEY_OVERHEAD_BYTES: Final = 180  # a dict entry, a bytes object and an int
_SLICE_RECORDS: Final = 400  # about 1 ms of decoding; a larger batch is done in a thread
_WINDOW_BYTES: Final = 1024 * 1024  # read and written at once


class Dirty(NamedTuple):
    """What a cleaning would work on."""

    segments: Sequence[Segment]  # all that may be rewritten, clean ones included
    first_offset: int  # of the dirty part
    clean_bytes: int
    dirty_bytes: int
    first_timestamp: int  # of the dirty part, to know how long it has waited


def dirty_part(log: Log, now_ms: int, limit_offset: int) -> Dirty | None:
    """The sealed, durable segments below the limit, if any of them is dirty."""
    lag_ms = log.config.min_compaction_lag_ms
    limit = min(limit_offset, log.durable_offset)
    segments = []
    for segment in list(log.segments)[:-1]:
        too_young = lag_ms > 0 and segment.max_timestamp > now_ms - lag_ms
        if segment.next_offset > limit or segment.index is not None or too_young:
            break
        segments.append(segment)
    first_offset = max(log.cleaned_offset, log.log_start_offset)
    dirty = [segment for segment in segments if segment.next_offset > first_offset]
    if not dirty:
        return None
    dirty_bytes = sum(segment.size for segment in dirty)
    clean_bytes = sum(segment.size for segment in segments) - dirty_bytes
    return Dirty(segments, first_offset, clean_bytes, dirty_bytes, dirty[0].first_timestamp)


def is_due(log: Log, now_ms: int, limit_offset: int) -> bool:
    """Whether enough is dirty, or something for too long."""
    if not log.config.compact:
        return False
    dirty = dirty_part(log, now_ms, limit_offset)
    if dirty is None:
        return False
    ratio = dirty.dirty_bytes / max(dirty.dirty_bytes + dirty.clean_bytes, 1)
    if ratio >= log.config.min_cleanable_dirty_ratio:
        return True
    waited_ms = now_ms - dirty.first_timestamp if dirty.first_timestamp >= 0 else 0
    return waited_ms > log.config.max_compaction_lag_ms


async def compact(
    log: Log,
    now_ms: int,
    limit_offset: int,
    last_offsets: Mapping[int, int],
    transactions: TransactionState | None = None,
) -> None:
    """Clean a log on the running loop, one slice a turn."""
    slices = clean(log, now_ms, limit_offset, last_offsets, transactions)
    try:
        for work in slices:
            if work is None:
                await asyncio.sleep(0)
                continue
            try:
                await _to_the_end(log.disk.run(work))
            except Exception as error:
                slices.throw(error)
    except FileNotFoundError:
        return  # Retention or deletion took a segment away: the next cleaning begins anew.
    finally:
        slices.close()


async def _to_the_end(work: "asyncio.Future[object]") -> None:
    """Wait for work in a thread, also when cancelled: it goes on, and must not be done twice."""
    try:
        await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise


def clean(
    log: Log,
    now_ms: int,
    limit_offset: int,
    last_offsets: Mapping[int, int],
    transactions: TransactionState | None = None,
    key_map_bytes_max: int = KEY_MAP_BYTES_MAX,
) -> Generator[Slice, None, None]:
    """Clean a log in slices. `last_offsets`: the last offset of each producer's data, by its id.

    `transactions` are those at this moment, without which none was aborted.
    """
    dirty = dirty_part(log, now_ms, limit_offset)
    if dirty is None:
        return
    keys = KeyMap(key_map_bytes_max)
    cleaned = CleanedTransactions(transactions or TransactionState())
    yield from _map_keys(log, dirty, keys, cleaned)
    cleaning = Cleaning(log, keys, now_ms, last_offsets, cleaned)
    segments = [s for s in dirty.segments if s.base_offset < keys.end_offset]
    for group in groups(segments, log.config.segment_bytes):
        yield from cleaning.rewrite(group)
    log.cleaned_offset = max(log.cleaned_offset, keys.end_offset)
    yield log.checkpoint


class KeyMap:
    """The last offset of each key, up to a bound of memory."""

    def __init__(self, bytes_max: int) -> None:
        self.offsets: dict[bytes, int] = {}
        self.end_offset = 0  # below: every record is in the map
        self._bytes_left = bytes_max

    @property
    def full(self) -> bool:
        return self._bytes_left <= 0

    def add(self, header: BatchHeader, batch: memoryview, *, counts: bool = True) -> None:
        """Take the records of a batch, if they count."""
        if counts:
            offsets = self.offsets
            for record in iter_records(batch):
                key = record.key
                if key is not None:
                    if key not in offsets:
                        self._bytes_left -= len(key) + _KEY_OVERHEAD_BYTES
                    offsets[key] = record.offset
        self.end_offset = header.next_offset


class Reader:
    """The batches of a sealed segment, a window at a time."""

    def __init__(self, log: Log, segment: Segment) -> None:
        self._log = log
        self._segment = segment
        self._position = 0
        self._window = memoryview(b"")

    @property
    def done(self) -> bool:
        return self._position >= self._segment.size

    def load(self) -> None:
        """Read the next window: at least one whole batch. Blocks."""
        read, path = self._log.disk.pread, self._segment.path
        size = min(_WINDOW_BYTES, self._segment.size - self._position)
        window = read(path, size, self._position)
        first = read_header(window)
        if first.size > len(window):
            window = read(path, first.size, self._position)
        self._window = memoryview(window)

    def batches(self) -> Iterator[tuple[BatchHeader, memoryview]]:
        """The whole batches of the window."""
        at = 0
        while len(self._window) - at >= HEADER_SIZE:
            header = read_header(self._window, at)
            if at + header.size > len(self._window):
                break
            yield header, self._window[at : at + header.size]
            at += header.size
        self._position += at


def _map_keys(
    log: Log, dirty: Dirty, keys: KeyMap, cleaned: CleanedTransactions
) -> Iterator[Slice]:
    record_count = 0
    for segment in dirty.segments:
        if segment.next_offset <= dirty.first_offset:
            continue
        reader = Reader(log, segment)
        while not reader.done and not keys.full:
            yield reader.load
            for header, batch in reader.batches():
                if header.last_offset < dirty.first_offset or keys.full:
                    continue
                counts = not header.is_control and not cleaned.is_aborted(header)
                if counts and header.record_count > _SLICE_RECORDS:
                    yield partial(keys.add, header, batch)
                    continue
                keys.add(header, batch, counts=counts)
                record_count += header.record_count + 1
                if record_count > _SLICE_RECORDS:
                    record_count = 0
                    yield None


def groups(segments: Sequence[Segment], segment_bytes: int) -> list[list[Segment]]:
    """Neighbours that fit into one segment even if nothing is removed from them."""
    found: list[list[Segment]] = []
    size = 0
    for segment in segments:
        fits = (
            found
            and size + segment.size <= segment_bytes
            and segment.next_offset - found[-1][0].base_offset <= RELATIVE_OFFSET_MAX
        )
        if fits:
            found[-1].append(segment)
            size += segment.size
        else:
            found.append([segment])
            size = segment.size
    return found


class Cleaning:
    """The second half of a cleaning: what stays, and the copies."""

    def __init__(
        self,
        log: Log,
        keys: KeyMap,
        now_ms: int,
        last_offsets: Mapping[int, int],
        cleaned: CleanedTransactions,
    ) -> None:
        self._log = log
        self._cleaned = cleaned
        self._offsets = keys.offsets
        self._now_ms = now_ms
        self._last_offsets = last_offsets

    def rewrite(self, group: list[Segment]) -> Iterator[Slice]:
        """Put a cleaned copy in the place of neighbouring segments."""
        log, disk = self._log, self._log.disk
        new = Segment(log.directory, group[0].base_offset)
        new.path = new.stem + ".cleaned"
        swap = swap_path(log.directory, group)
        swapping = False
        try:
            yield partial(disk.write, new.path, b"")
            changed = yield from self._copy(group, new)
            if not changed and len(group) == 1:
                return
            yield partial(_seal, log, new, swap)
            if not log.replace_segments(group, new if new.size else None):
                return
            swapping = True
            yield partial(_finish, log, group, new)
        except GeneratorExit:
            if swapping and new.path == swap:
                _finish(log, group, new)  # The log has turned to the copy: there is no way back.
            raise
        except Exception as error:
            if swapping:
                log.failed = error  # Its files are sound, but only recovery can tell which count.
            raise
        finally:
            if not swapping:
                for path in (new.stem + ".cleaned", swap):
                    with suppress(OSError):
                        disk.remove(path)

    def _copy(self, group: list[Segment], new: Segment) -> Generator[Slice, None, bool]:
        """Write what stays of the segments; the generator's value says whether that is less."""
        changed = False
        buffers: list[Buffer] = []
        size = record_count = 0
        for segment in group:
            reader = Reader(self._log, segment)
            while not reader.done:
                yield reader.load
                for header, batch in reader.batches():
                    kept: list[Buffer] = []
                    if header.record_count > _SLICE_RECORDS:
                        yield partial(self.filter, header, batch, kept)
                    else:
                        self.filter(header, batch, kept)
                    record_count += header.record_count + 1
                    changed |= not kept or kept[0] is not batch
                    for data in kept:
                        new.note(read_header(data), self._log.config.index_interval_bytes)
                        buffers.append(data)
                        size += len(data)
                    if size > _WINDOW_BYTES:
                        yield partial(self._log.disk.append, new.path, buffers)
                        buffers, size = [], 0
                    if record_count > _SLICE_RECORDS:
                        record_count = 0
                        yield None
        if buffers:
            yield partial(self._log.disk.append, new.path, buffers)
        return changed

    def filter(self, header: BatchHeader, batch: memoryview, kept: list[Buffer]) -> None:
        """Append to `kept` what stays of a batch: itself if all does, nothing if nothing does."""
        if header.is_control:
            self._filter_marker(header, batch, kept)
            return
        self._cleaned.data_seen(header)
        horizon_ms = _horizon_ms(header)
        records: list[Record] = []
        if not self._cleaned.is_aborted(header):
            keeps_tombstones = horizon_ms is None or self._now_ms < horizon_ms
            records = [each for each in iter_records(batch) if self._stays(each, keeps_tombstones)]
        if not records and self._last_offsets.get(header.producer_id) != header.last_offset:
            return
        starts_horizon = horizon_ms is None and any(each.value is None for each in records)
        if len(records) == header.record_count and not starts_horizon:
            kept.append(batch)
            return
        until_ms = self._until_ms if starts_horizon else None
        kept.append(rebuild_batch(header, records, delete_horizon_ms=until_ms))

    def _stays(self, record: Record, keeps_tombstones: bool) -> bool:
        # Without a key nothing can supersede it: it has no place in a compacted log.
        if record.key is None or record.offset < self._offsets.get(record.key, -1):
            return False
        return keeps_tombstones or record.value is not None

    def _filter_marker(self, header: BatchHeader, batch: memoryview, kept: list[Buffer]) -> None:
        horizon_ms = _horizon_ms(header)
        if not self._cleaned.is_emptied(header):
            kept.append(batch)
        elif horizon_ms is None:
            records = list(iter_records(batch))
            kept.append(rebuild_batch(header, records, delete_horizon_ms=self._until_ms))
        elif self._now_ms < horizon_ms or not self._cleaned.may_go(header):
            kept.append(batch)

    @property
    def _until_ms(self) -> int:
        """Until when what is deleted by this cleaning can still be seen."""
        return self._now_ms + self._log.config.delete_retention_ms


def _horizon_ms(header: BatchHeader) -> int | None:
    return header.base_timestamp if header.attributes & DELETE_HORIZON_FLAG else None


def _seal(log: Log, new: Segment, swap: str) -> None:
    """Make the copy durable under the name that recovery finishes. Blocks."""
    log.disk.sync(new.path)
    log.disk.rename(new.path, swap)
    log.disk.sync_directory(log.directory)
    new.path = swap


def _finish(log: Log, old: Sequence[Segment], new: Segment) -> None:
    """The log has turned to the copy: save that, and remove the originals. Blocks."""
    with log.disk.exclusive(log.directory):
        log.disk.remove(new.index_path)
        log.disk.remove(new.time_index_path)
        log.write_checkpoint()
        finish_swap(log.disk, old, new)
        log.positions_changed()
