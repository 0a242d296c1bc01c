"""Checking and salvaging a stopped log, behind `chronik storage check|salvage`.

`check` reads every batch and index entry and changes nothing. `salvage` is a person's decision to
go on without what cannot be read: damaged files are copied aside first, then rewritten with every
valid batch in them, and the report says which offsets are lost. Those are not used again.

Invariants
    Nothing is removed that has not been copied to `salvage-<n>/` and fsynced there.
    After `salvage` the log loads, and everything that was valid is in it.

What recovery does by itself (torn tails, indexes) is reported but is no damage.
"""

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from crc32c import crc32c

from chronik.protocol.batch import CRC_START, HEADER_SIZE, BatchHeader, read_header
from chronik.storage.checkpoint import CHECKPOINT_NAME, Checkpoint, encode_checkpoint, sealed_facts
from chronik.storage.disk import Disk
from chronik.storage.epochs import Epochs, note_epoch, truncate_from_start
from chronik.storage.errors import BadIndex, CorruptLog
from chronik.storage.index import SparseIndex
from chronik.storage.recovery import (
    LEFTOVER_SUFFIXES,
    NO_BEGINNING,
    SWAP_SUFFIX,
    find_batch,
    read_checkpoint,
)
from chronik.storage.segment import LOG_SUFFIX, Segment, header_fault, stem

_COPY_BYTES: Final = 1024 * 1024
INTERVAL_BYTES: Final = 4096  # Kafka's default; another interval only costs a rebuild


class Problem(enum.Enum):
    """What can be wrong, and what follows from it."""

    TORN_TAIL = "torn tail"  # cut when the log is loaded
    BAD_INDEX = "bad index"  # rebuilt when the log is loaded
    LEFTOVER = "leftover"  # interrupted work, finished or removed when the log is loaded
    GAP = "gap"  # offsets without a batch: normal after compaction
    CORRUPTION = "corruption"  # the log is refused until it is salvaged
    MISSING_SEGMENT = "missing segment"  # likewise
    BAD_CHECKPOINT = "bad checkpoint"  # likewise


_DAMAGE: Final = {Problem.CORRUPTION, Problem.MISSING_SEGMENT, Problem.BAD_CHECKPOINT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One problem: which bytes of which file, and which offsets [first, end) they held."""

    problem: Problem
    path: str
    reason: str
    position: int = 0
    size: int = 0
    first_offset: int = 0
    end_offset: int = 0


@dataclass(slots=True, kw_only=True)
class Report:
    """What a log holds and what is wrong with it."""

    directory: str
    findings: list[Finding] = field(default_factory=list)
    segment_count: int = 0
    batch_count: int = 0
    size_bytes: int = 0  # of valid batches
    log_start_offset: int = 0
    end_offset: int = 0
    salvage_directory: str | None = None  # where damaged files were copied

    @property
    def torn(self) -> bool:
        """Whether a crash left bytes that loading cuts."""
        return any(finding.problem is Problem.TORN_TAIL for finding in self.findings)

    @property
    def damaged(self) -> bool:
        """Whether the log would be refused."""
        return any(finding.problem in _DAMAGE for finding in self.findings)


class _Piece(NamedTuple):
    """A stretch of a segment: one valid batch, or bytes that are none."""

    position: int
    size: int
    header: BatchHeader | None
    reason: str = ""


def check(disk: Disk, directory: str) -> Report:
    """Look at everything, change nothing. The log must not be in use."""
    report, _ = _examine(disk, directory)
    return report


def _examine(disk: Disk, directory: str) -> tuple[Report, dict[int, list[_Piece]]]:
    report = Report(directory=directory)
    checkpoint = _checked_checkpoint(disk, directory, report)
    report.log_start_offset = checkpoint.log_start_offset
    report.end_offset = max(checkpoint.log_start_offset, 0)
    bases = [int(n[:20]) for n in disk.list(directory) if n.endswith(LOG_SUFFIX)]
    _find_missing(directory, bases, checkpoint, report)
    pieces: dict[int, list[_Piece]] = {}
    for base_offset in bases:
        segment = Segment(directory, base_offset)
        reached = max(report.end_offset, checkpoint.recovery_point)
        segment.next_offset = max(base_offset, report.end_offset if pieces else 0)
        found = pieces[base_offset] = list(_pieces(disk, segment))
        report.segment_count += 1
        if base_offset > reached or report.torn:
            reason = "it follows a torn tail, so none of it was durable"
            whole = _Piece(0, disk.size(segment.path), None, reason)
            _add(report, Problem.TORN_TAIL, segment, whole, base_offset, base_offset)
            continue
        _report_segment(segment, found, checkpoint, base_offset == bases[-1], report)
        _check_indexes(disk, segment, found, checkpoint, report)
    return report, pieces


def _checked_checkpoint(disk: Disk, directory: str, report: Report) -> Checkpoint:
    for name in disk.list(directory):
        if name.endswith((*LEFTOVER_SUFFIXES, SWAP_SUFFIX)):
            path = f"{directory}/{name}"
            reason = "interrupted work"
            report.findings.append(Finding(problem=Problem.LEFTOVER, path=path, reason=reason))
    try:
        _check_beginning(disk, directory)
        return read_checkpoint(disk, directory)
    except CorruptLog as error:
        report.findings.append(
            Finding(problem=Problem.BAD_CHECKPOINT, path=error.path, reason=error.reason)
        )
        return Checkpoint()


def _check_beginning(disk: Disk, directory: str) -> None:
    path = f"{directory}/{CHECKPOINT_NAME}"
    bases = [int(n[:20]) for n in disk.list(directory) if n.endswith(LOG_SUFFIX)]
    if bases and bases[0] and not disk.exists(path):
        raise CorruptLog(path, 0, bases[0], NO_BEGINNING)


def _find_missing(directory: str, bases: list[int], checkpoint: Checkpoint, report: Report) -> None:
    start, recovery_point = checkpoint.log_start_offset, checkpoint.recovery_point
    known = [(f.base_offset, f.next_offset, f.size) for f in checkpoint.segments]
    if checkpoint.active is not None:
        known.append((checkpoint.active.base_offset, recovery_point, 0))
    for base_offset, next_offset, size in known:
        if base_offset not in bases and next_offset > max(start, base_offset):
            report.findings.append(
                Finding(
                    problem=Problem.MISSING_SEGMENT,
                    path=stem(directory, base_offset) + LOG_SUFFIX,
                    reason="the checkpoint names it",
                    size=size,
                    first_offset=base_offset,
                    end_offset=next_offset,
                )
            )


def _pieces(disk: Disk, segment: Segment) -> Iterator[_Piece]:
    """Cut a segment into valid batches and what lies between them."""
    end = disk.size(segment.path)
    position, offset = 0, segment.next_offset
    while position < end:
        header, reason = _batch_at(disk, segment, position, end, offset)
        if header is not None:
            yield _Piece(position, header.size, header)
            position += header.size
            offset = header.next_offset
            continue
        following = find_batch(disk, segment, position + 1, end, offset)
        stop = end if following is None else following
        yield _Piece(position, stop - position, None, reason)
        position = stop
    disk.release(segment.path)


def _batch_at(
    disk: Disk, segment: Segment, position: int, end: int, offset: int
) -> tuple[BatchHeader | None, str]:
    head = disk.pread(segment.path, HEADER_SIZE, position)
    if len(head) < HEADER_SIZE:
        return None, "the file ends within a header"
    header = read_header(head)
    reason = header_fault(header, offset, end - position)
    if reason is not None:
        return None, reason
    batch = disk.pread(segment.path, header.size, position)
    if crc32c(memoryview(batch)[CRC_START:]) != header.crc:
        return None, "the checksum does not match"
    if header.base_offset > offset:
        # The base offset is outside the checksum: a batch that claims its successor's is wrong.
        head = disk.pread(segment.path, HEADER_SIZE, position + header.size)
        if len(head) == HEADER_SIZE:
            following = read_header(head)
            if offset <= following.base_offset < header.next_offset:
                return None, f"offsets from {header.base_offset} do not fit what follows"
    return header, ""


def _report_segment(
    segment: Segment, pieces: list[_Piece], checkpoint: Checkpoint, last: bool, report: Report
) -> None:
    offset = segment.next_offset
    facts = {facts.base_offset: facts for facts in checkpoint.segments}.get(segment.base_offset)
    for i, piece in enumerate(pieces):
        header = piece.header
        if header is not None:
            if header.base_offset > offset:
                _add(report, Problem.GAP, segment, piece, offset, header.base_offset)
            offset = header.next_offset
            report.batch_count += 1
            report.size_bytes += piece.size
            continue
        is_tail = i + 1 == len(pieces)
        torn = is_tail and offset >= checkpoint.recovery_point and facts is None
        problem = Problem.TORN_TAIL if torn else Problem.CORRUPTION
        following = None if is_tail else pieces[i + 1].header
        end_offset = following.base_offset if following is not None else offset
        if is_tail and (facts is not None or last):
            known = facts.next_offset if facts is not None else checkpoint.recovery_point
            end_offset = max(offset, known)
        _add(report, problem, segment, piece, offset, end_offset)
    size = sum(piece.size for piece in pieces)
    short = size != facts.size if facts is not None else last and offset < checkpoint.recovery_point
    if short and (not pieces or pieces[-1].header is not None):
        reason = "the file is shorter than the checkpoint says"
        end_offset = facts.next_offset if facts is not None else checkpoint.recovery_point
        _add(report, Problem.CORRUPTION, segment, _Piece(size, 0, None, reason), offset, end_offset)
    report.end_offset = max(report.end_offset, offset)


def _add(
    report: Report,
    problem: Problem,
    segment: Segment,
    piece: _Piece,
    first_offset: int,
    end_offset: int,
) -> None:
    report.findings.append(
        Finding(
            problem=problem,
            path=segment.path,
            reason=piece.reason or "offsets without a batch",
            position=piece.position,
            size=0 if problem is Problem.GAP else piece.size,
            first_offset=first_offset,
            end_offset=end_offset,
        )
    )


def _check_indexes(
    disk: Disk, segment: Segment, pieces: list[_Piece], checkpoint: Checkpoint, report: Report
) -> None:
    """Every entry must name a batch; the checkpoint says how many there are."""
    counts = {f.base_offset: (f.index_count, f.time_count) for f in checkpoint.segments}
    active = checkpoint.active
    if active is not None:
        counts.setdefault(active.base_offset, (active.index_count, active.time_count))
    expected = counts.get(segment.base_offset)
    if expected is None:
        return  # Not relied upon: built anew when the log is loaded.
    segment.index_count, segment.time_count = expected
    reason = None
    try:
        index = segment.load_index(disk)
        if not _entries_match(index, segment.base_offset, pieces):
            reason = "an entry names no batch"
    except BadIndex:
        reason = "it does not have the entries that the checkpoint says"
    if reason is not None:
        report.findings.append(
            Finding(problem=Problem.BAD_INDEX, path=segment.index_path, reason=reason)
        )


def _entries_match(index: SparseIndex, base_offset: int, pieces: list[_Piece]) -> bool:
    entries = set(zip(index.offsets, index.positions, strict=True))
    times = set(zip(index.times, index.timed_offsets, strict=True))
    for piece in pieces:
        if piece.header is not None:
            relative = piece.header.base_offset - base_offset
            entries.discard((relative, piece.position))
            times.discard((piece.header.max_timestamp, relative))
    return not entries and not times


def salvage(disk: Disk, directory: str) -> Report:
    """Keep all that is valid, copy aside what is damaged. A report without damage did nothing."""
    report, pieces = _examine(disk, directory)
    if not report.damaged:
        return report
    aside = _salvage_directory(disk, directory)
    report.salvage_directory = aside
    damaged = {finding.path for finding in report.findings if finding.problem in _DAMAGE}
    damaged |= {f.path for f in report.findings if f.problem is Problem.TORN_TAIL}
    for path in sorted(damaged):
        if disk.exists(path):
            _copy(disk, path, [(0, disk.size(path))], f"{aside}/{path.rpartition('/')[2]}")
    disk.sync_directory(aside)
    disk.sync_directory(directory)
    epochs: Epochs = []
    facts = []
    for base_offset, found in pieces.items():
        segment = Segment(directory, base_offset)
        if segment.path in damaged:
            _rewrite(disk, segment, found)
        valid = [piece.header for piece in found if piece.header is not None]
        for header in valid:
            note_epoch(epochs, header.leader_epoch, header.base_offset)
        if valid:
            segment.rebuild(disk, INTERVAL_BYTES)
            facts.append(sealed_facts(segment))
    truncate_from_start(epochs, report.log_start_offset)
    ends = [f.next_offset for f in facts] + [f.end_offset for f in report.findings]
    # Every batch that is left was verified: recovery need not, and must not mind the gaps.
    checkpoint = Checkpoint(
        recovery_point=max(ends),
        log_start_offset=report.log_start_offset,
        leader_epochs=epochs,
        segments=facts,
    )
    disk.write_durably(f"{directory}/{CHECKPOINT_NAME}", encode_checkpoint(checkpoint))
    return report


def _salvage_directory(disk: Disk, directory: str) -> str:
    n = 1
    while disk.exists(f"{directory}/salvage-{n}"):
        n += 1
    disk.make_directory(f"{directory}/salvage-{n}")
    return f"{directory}/salvage-{n}"


def _copy(disk: Disk, source: str, parts: list[tuple[int, int]], target: str) -> None:
    disk.write(target, b"")
    for position, end in parts:
        while position < end:
            data = disk.pread(source, min(_COPY_BYTES, end - position), position)
            disk.append(target, [data])
            position += len(data)
    disk.sync(target)


def _rewrite(disk: Disk, segment: Segment, pieces: list[_Piece]) -> None:
    parts = [(p.position, p.position + p.size) for p in pieces if p.header is not None]
    temporary = segment.stem + ".tmp"
    _copy(disk, segment.path, parts, temporary)
    for path in (segment.index_path, segment.time_index_path):
        disk.remove(path)
    if parts:
        disk.rename(temporary, segment.path)
    else:
        disk.remove(temporary)
        disk.remove(segment.path)
    disk.sync_directory(segment.stem.rpartition("/")[0])
