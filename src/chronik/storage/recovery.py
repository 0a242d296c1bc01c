"""Recovery: from the files of a log to the facts about it, after a clean stop or any crash.

Below the checkpoint's recovery point everything was durable and verified once: sealed segments
must have the size that the checkpoint lists. From the recovery point on every batch is verified.

A bad batch above the recovery point with nothing valid after it in its segment is a torn tail, the
end of what a crash left: it is cut, and so are later segments. They cannot hold anything that was
acknowledged, because a log moves its recovery point past a segment's end before it reports offsets
of the next one as durable (`commit`). Any other bad batch is corruption: the log is refused.

Invariants
    What was durable is never cut: it is recovered, or CorruptLog is raised.
    What is recovered is durable when `recover` returns.

`log` takes the result over. `check` looks at the same rules without changing anything.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, NamedTuple

from crc32c import crc32c

from chronik.protocol.batch import CRC_START, HEADER_SIZE, BatchHeader, read_header
from chronik.storage.checkpoint import (
    CHECKPOINT_NAME,
    Checkpoint,
    SegmentFacts,
    decode_checkpoint,
    encode_checkpoint,
    sealed_facts,
)
from chronik.storage.disk import Disk
from chronik.storage.epochs import Epochs, note_epoch, truncate_from_end, truncate_from_start
from chronik.storage.errors import BadIndex, CorruptLog
from chronik.storage.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    Segment,
    header_fault,
    stem,
)

SWAP_SUFFIX: Final = ".swap"
LEFTOVER_SUFFIXES: Final = (".tmp", ".cleaned", ".deleted")
_WINDOW_BYTES: Final = 1024 * 1024  # of log in memory while verifying; a larger batch is read whole
NO_BEGINNING: Final = "it is missing, and the first segment does not begin at offset 0"
_SWAP_NAME: Final = re.compile(r"(\d{20})-(\d{20})\.swap")


class Fault(NamedTuple):
    """Where the first bytes lie that are not the batch they should be."""

    position: int
    offset: int
    reason: str


@dataclass(slots=True, kw_only=True)
class Recovered:
    """What a log consists of; `segments` may be empty, the last one may be appended to."""

    segments: list[Segment]
    log_start_offset: int
    cleaned_offset: int
    end_offset: int
    recovery_point: int  # as in the file
    leader_epochs: Epochs
    changed: bool  # a new checkpoint is due


class Rules(NamedTuple):
    """What recovery takes from the log's config."""

    interval_bytes: int
    dense: bool  # batches follow each other without gaps, as in a log that is not compacted
    is_synced: bool = False  # what is found is on disk: nobody else has to see to that


def recover(disk: Disk, directory: str, rules: Rules) -> Recovered:
    """Bring a log's directory into order; raises CorruptLog where that would lose durable data."""
    checkpoint, changed = finish_swaps(disk, directory, rules.interval_bytes)
    names = remove_leftovers(disk, directory)
    segments = _open_segments(disk, directory, names, checkpoint)
    _check_beginning(directory, segments, has_checkpoint=CHECKPOINT_NAME in names)
    facts = {facts.base_offset: facts for facts in checkpoint.segments}
    trusted = _trusted_count(segments, facts, checkpoint.recovery_point)
    for segment in segments[:trusted]:
        changed |= _adopt(disk, segment, facts.pop(segment.base_offset, None), rules)
    _check_present(directory, segments, facts, checkpoint)
    _check_order(segments[:trusted])
    epochs = list(checkpoint.leader_epochs)
    # A checkpoint may tell of epochs whose batches were not synced yet; the scan finds those again.
    truncate_from_end(epochs, checkpoint.recovery_point)
    end = max(checkpoint.log_start_offset, segments[trusted - 1].next_offset if trusted else 0)
    if trusted == len(segments):
        end = max(end, checkpoint.recovery_point)
    kept = _recover_rest(disk, segments[trusted:], checkpoint, end, epochs, rules)
    if kept:
        end = max(end, kept[-1].next_offset)
    if end < checkpoint.recovery_point:
        raise CorruptLog(
            directory, 0, end, f"the log ends below the recovery point {checkpoint.recovery_point}"
        )
    segments = segments[:trusted] + kept
    truncate_from_start(epochs, checkpoint.log_start_offset)
    if end > checkpoint.recovery_point and not rules.is_synced:
        _make_durable(disk, directory, kept)
    # Else the checkpoint is as far behind as that of a log in use may be, and waits for its turn.
    changed |= bool(kept) and kept[-1].base_offset > checkpoint.recovery_point
    return Recovered(
        segments=segments,
        log_start_offset=checkpoint.log_start_offset,
        cleaned_offset=min(checkpoint.cleaned_offset, end),
        end_offset=end,
        recovery_point=checkpoint.recovery_point,
        leader_epochs=epochs,
        changed=changed,
    )


def finish_swaps(disk: Disk, directory: str, interval_bytes: int) -> tuple[Checkpoint, bool]:
    """Finish compactions that a crash cut off after their segment was durable.

    A `.swap` names the offsets it covers: it replaces every segment that begins in them. Returns
    the checkpoint, and whether it was changed.
    """
    checkpoint = read_checkpoint(disk, directory)
    names = disk.list(directory)
    changed = False
    for name in names:
        covered = swap_span(name)
        if covered is not None:
            start, end = covered
            segment = Segment(directory, start)
            segment.path = f"{directory}/{name}"
            facts = [f for f in checkpoint.segments if not start <= f.base_offset < end]
            if disk.size(segment.path):
                segment.rebuild(disk, interval_bytes)
                facts.append(sealed_facts(segment))
            checkpoint = replace(checkpoint, segments=sorted(facts))
            changed = True
            # As `compaction` does it: the checkpoint knows the new segment before the old ones go.
            path = f"{directory}/{CHECKPOINT_NAME}"
            disk.write_durably(path, encode_checkpoint(checkpoint))
            bases = [int(n[:20]) for n in names if n.endswith(LOG_SUFFIX)]
            old = [Segment(directory, base) for base in bases if start <= base < end]
            finish_swap(disk, old, segment)
    return checkpoint, changed


def swap_span(name: str) -> tuple[int, int] | None:
    """The offsets [start, end) whose segments a file of this name replaces, if it is a `.swap`."""
    match = _SWAP_NAME.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2]))


def swap_path(directory: str, old: Sequence[Segment]) -> str:
    """Where a compacted segment waits until the segments that it replaces are gone."""
    return f"{directory}/{old[0].base_offset:020d}-{old[-1].next_offset:020d}{SWAP_SUFFIX}"


def finish_swap(disk: Disk, old: Sequence[Segment], new: Segment) -> None:
    """Let a durable `.swap` take the place of old segments, or just remove them if it is empty."""
    directory = new.stem.rpartition("/")[0]
    for segment in old:
        if segment.base_offset != new.base_offset:
            disk.remove(segment.index_path)
            disk.remove(segment.time_index_path)
        disk.remove(segment.path)
    disk.sync_directory(directory)  # Never a new segment beside one that it replaces.
    if disk.size(new.path):
        disk.rename(new.path, new.stem + LOG_SUFFIX)
        new.path = new.stem + LOG_SUFFIX
    else:
        disk.remove(new.path)
    # Not synced: until it is, a crash leaves the `.swap`, and recovery does this again.


def remove_leftovers(disk: Disk, directory: str) -> list[str]:
    """Remove files of interrupted work and indexes without a log; returns the names that stay."""
    kept = []
    names = set(disk.list(directory))
    for name in sorted(names):
        orphan = name.endswith((INDEX_SUFFIX, TIME_INDEX_SUFFIX)) and (
            name[:20] + LOG_SUFFIX not in names
        )
        if orphan or name.endswith(LEFTOVER_SUFFIXES):
            disk.remove(f"{directory}/{name}")
        else:
            kept.append(name)
    return kept


def read_checkpoint(disk: Disk, directory: str) -> Checkpoint:
    """The checkpoint, or that of a log that never had one."""
    path = f"{directory}/{CHECKPOINT_NAME}"
    if not disk.exists(path):
        return Checkpoint()
    data = disk.pread(path, disk.size(path), 0)
    disk.release(path)
    return decode_checkpoint(data, path)


def _open_segments(
    disk: Disk, directory: str, names: list[str], checkpoint: Checkpoint
) -> list[Segment]:
    """Segments in order, without those that the log's start has passed."""
    bases = [int(name[:20]) for name in names if name.endswith(LOG_SUFFIX)]
    start = checkpoint.log_start_offset
    while len(bases) > 1 and bases[1] <= start:
        Segment(directory, bases.pop(0)).remove_files(disk)
    return [Segment(directory, base) for base in bases]


def _trusted_count(
    segments: list[Segment],
    facts: dict[int, SegmentFacts],
    recovery_point: int,
) -> int:
    """How many leading segments lie below the recovery point as a whole."""
    count = 0
    for i, segment in enumerate(segments):
        if segment.base_offset in facts or (
            i + 1 < len(segments) and segments[i + 1].base_offset <= recovery_point
        ):
            count = i + 1
    return count


def _adopt(disk: Disk, segment: Segment, facts: SegmentFacts | None, rules: Rules) -> bool:
    """Take a sealed segment's facts, from the checkpoint or its headers; True if rebuilt."""
    if facts is None:
        segment.rebuild(disk, rules.interval_bytes)
        disk.release(segment.path)
        return True
    size = disk.size(segment.path)
    if size != facts.size:
        reason = f"the file has {size} bytes, the checkpoint says {facts.size}"
        raise CorruptLog(segment.path, min(size, facts.size), segment.base_offset, reason)
    segment.size = size
    segment.next_offset = facts.next_offset
    segment.first_timestamp = facts.first_timestamp
    segment.max_timestamp = facts.max_timestamp
    segment.max_timestamp_offset = facts.max_timestamp_offset
    segment.index_count, segment.time_count = facts.index_count, facts.time_count
    segment.index = None
    if segment.index_files_match(disk):
        return False
    segment.rebuild(disk, rules.interval_bytes)
    disk.release(segment.path)
    return True


def _check_present(
    directory: str,
    segments: list[Segment],
    missing: dict[int, SegmentFacts],
    checkpoint: Checkpoint,
) -> None:
    """Refuse a log that lacks a segment with durable batches."""
    start = checkpoint.log_start_offset
    absent = [facts.base_offset for facts in missing.values() if facts.next_offset > start]
    active = checkpoint.active
    bases = {segment.base_offset for segment in segments}
    if active is not None and max(active.base_offset, start) < checkpoint.recovery_point:
        absent += {active.base_offset} - bases
    for base_offset in absent:
        path = stem(directory, base_offset) + LOG_SUFFIX
        raise CorruptLog(path, 0, base_offset, "the segment's file is missing")


def _check_beginning(directory: str, segments: list[Segment], *, has_checkpoint: bool) -> None:
    """Refuse a log whose beginning nobody knows any more.

    A log that begins above 0 has a checkpoint that says so, and a second segment is begun only
    when the first is durable: without one, the beginning was removed by something else.
    """
    if segments and segments[0].base_offset and not has_checkpoint:
        path = f"{directory}/{CHECKPOINT_NAME}"
        raise CorruptLog(path, 0, segments[0].base_offset, NO_BEGINNING)


def _check_order(segments: list[Segment]) -> None:
    for before, after in pairwise(segments):
        if before.next_offset > after.base_offset:
            reason = f"begins before {before.path} ends at {before.next_offset}"
            raise CorruptLog(after.path, 0, after.base_offset, reason)


def _recover_rest(
    disk: Disk,
    rest: list[Segment],
    checkpoint: Checkpoint,
    end: int,
    epochs: Epochs,
    rules: Rules,
) -> list[Segment]:
    """Verify segments from the recovery point on; returns those that are kept."""
    recovery_point = checkpoint.recovery_point
    for i, segment in enumerate(rest):
        reachable = max(end, recovery_point, checkpoint.log_start_offset)
        if segment.base_offset > reachable or (end < segment.base_offset and i):
            # The segment before lost its unsynced end, so this one is beyond the log.
            _remove_from(disk, rest, i)
            return rest[:i]
        _restore_index(disk, segment, checkpoint)
        file_size = disk.size(segment.path)
        fault = scan(disk, segment, segment.size, file_size, recovery_point, epochs, rules)
        end = max(end, segment.next_offset)
        if fault is not None:
            _cut_or_refuse(disk, segment, fault, file_size, recovery_point)
            _write_indexes(disk, segment, sealed=False)
            _remove_from(disk, rest, i + 1)
            return rest[: i + 1]
        _write_indexes(disk, segment, sealed=i + 1 < len(rest))
        disk.release(segment.path)
    return rest


def _restore_index(disk: Disk, segment: Segment, checkpoint: Checkpoint) -> None:
    """Take over index entries below the recovery point, if there are any to trust."""
    active = checkpoint.active
    if active is None or active.base_offset != segment.base_offset:
        return
    segment.index_count, segment.time_count = active.index_count, active.time_count
    try:
        segment.rewind(disk, segment.load_index(disk), checkpoint.recovery_point)
    except BadIndex:
        return


def scan(
    disk: Disk,
    segment: Segment,
    position: int,
    end: int,
    recovery_point: int,
    epochs: Epochs,
    rules: Rules,
) -> Fault | None:
    """Note every batch from a position on, checking CRCs above the recovery point."""
    for header, batch, fault in batches(disk, segment, position, end):
        if fault is not None:
            return fault
        if header.last_offset >= recovery_point:
            reason = batch_fault(header, batch, segment.next_offset, epochs, rules.dense)
            if reason is not None:
                return Fault(segment.size, segment.next_offset, reason)
            note_epoch(epochs, header.leader_epoch, header.base_offset)
        segment.note(header, rules.interval_bytes)
    return None


def batch_fault(
    header: BatchHeader, batch: memoryview, offset: int, epochs: Epochs, dense: bool
) -> str | None:
    """Why a batch of sound structure is not the one that was written, if it is not.

    Base offset and leader epoch lie outside the checksum; their neighbours vouch for them.
    """
    if crc32c(batch[CRC_START:]) != header.crc:
        return "the checksum does not match"
    if dense and header.base_offset != offset:
        return f"offsets from {header.base_offset} where {offset} comes next"
    if epochs and header.leader_epoch < epochs[-1][0]:
        return f"leader epoch {header.leader_epoch} after {epochs[-1][0]}"
    return None


def batches(
    disk: Disk, segment: Segment, position: int, end: int
) -> Iterator[tuple[BatchHeader, memoryview, Fault | None]]:
    """Batches with their bytes, up to the first whose structure is wrong, which ends it."""
    window = memoryview(b"")
    window_start = position
    offset_min = segment.next_offset
    while position < end:
        at = position - window_start
        if at + HEADER_SIZE > len(window):
            window = memoryview(disk.pread(segment.path, _WINDOW_BYTES, position))
            window_start, at = position, 0
            if len(window) < HEADER_SIZE:
                fault = Fault(position, offset_min, "the file ends within a header")
                yield read_header(bytes(HEADER_SIZE)), window, fault
                return
        header = read_header(window, at)
        reason = header_fault(header, offset_min, end - position)
        if reason is not None:
            yield header, window, Fault(position, offset_min, reason)
            return
        if at + header.size > len(window):
            size = max(header.size, _WINDOW_BYTES)
            window = memoryview(disk.pread(segment.path, size, position))
            window_start, at = position, 0
        yield header, window[at : at + header.size], None
        offset_min = header.next_offset
        position += header.size


def _cut_or_refuse(
    disk: Disk, segment: Segment, fault: Fault, end: int, recovery_point: int
) -> None:
    if segment.next_offset < recovery_point:
        raise CorruptLog(segment.path, *fault)
    following = find_batch(disk, segment, fault.position, end, segment.base_offset)
    if following is not None:
        reason = f"{fault.reason}; a valid batch follows at {following}"
        raise CorruptLog(segment.path, fault.position, fault.offset, reason)
    disk.truncate(segment.path, fault.position)
    disk.sync(segment.path)


def find_batch(
    disk: Disk, segment: Segment, position: int, end: int, offset_min: int
) -> int | None:
    """The position of the next valid batch, at any byte, or None."""
    # A batch has an offset whose upper bytes are the segment's or one more, a length that is not
    # negative, and magic 2. Few other bytes look so, and those fail their checksum.
    high = offset_min >> 32
    heads = b"|".join(re.escape((high + i).to_bytes(4, "big")) for i in range(2))
    pattern = re.compile(rb"(?=(?:" + heads + rb")[\s\S]{4}[\x00-\x7f][\s\S]{7}\x02)")
    while position < end:
        window = disk.pread(segment.path, _WINDOW_BYTES, position)
        for match in pattern.finditer(window):
            if _is_batch(disk, segment, position + match.start(), end, offset_min):
                return position + match.start()
        # Windows overlap by a header, so that none is cut by a boundary.
        position += max(len(window) - HEADER_SIZE, 1)
    return None


def _is_batch(disk: Disk, segment: Segment, position: int, end: int, offset_min: int) -> bool:
    head = disk.pread(segment.path, HEADER_SIZE, position)
    if len(head) < HEADER_SIZE:
        return False
    header = read_header(head)
    if header_fault(header, offset_min, end - position) is not None:
        return False
    batch = disk.pread(segment.path, header.size, position)
    return crc32c(memoryview(batch)[CRC_START:]) == header.crc


def _write_indexes(disk: Disk, segment: Segment, sealed: bool) -> None:
    index = segment.index
    assert index is not None
    segment.index_count, segment.time_count = len(index.offsets), len(index.times)
    if segment.index_files_match(disk) and segment.index_files_equal(disk):
        index.flushed_count, index.flushed_time_count = segment.index_count, segment.time_count
    else:
        segment.write_index(disk)
    if sealed:
        segment.unload_index()


def _remove_from(disk: Disk, segments: list[Segment], first: int) -> None:
    for segment in reversed(segments[first:]):
        segment.remove_files(disk)
        # One by one, so that a crash leaves no gap between those that stay.
        disk.sync_directory(segment.path.rpartition("/")[0])


def _make_durable(disk: Disk, directory: str, segments: list[Segment]) -> None:
    """Sync what was read: after a crash of the process alone it may be only in the page cache."""
    for segment in segments:
        disk.sync(segment.path)
    for path in directories_of(directory):
        disk.sync_directory(path)


def directories_of(directory: str) -> tuple[str, ...]:
    """The partition's, the topic's and the topics' directory: a new log may be new in each."""
    topic = directory.rpartition("/")[0]
    return tuple(path for path in (directory, topic, topic.rpartition("/")[0]) if path)
