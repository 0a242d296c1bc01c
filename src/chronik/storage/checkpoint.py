"""The checkpoint of a log: what recovery may rely on, in one small file that a person can read.

    chronik-checkpoint 1
    recovery_point 5000            every batch below it was durable, and verified, when written
    log_start_offset 1000          DeleteRecords and retention moved the start here
    cleaned_offset 3000            compaction has seen every batch below it (compacted logs only)
    epoch 0 1000                   leader epoch and its first offset, in order
    segment 1000 1048576 4000 ...  a sealed segment: base offset, bytes, next offset, first, max
                                   timestamp, offset of the max, entries in index and time index
    active 4000 12 3               the segment of the recovery point: entries in both indexes
    crc32c 1a2b3c4d                of all bytes before this line

It is replaced atomically, so a damaged one was not left by a crash: the log is refused.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from crc32c import crc32c

from chronik.protocol.schema import Buffer
from chronik.storage.errors import CorruptLog
from chronik.storage.segment import Segment

CHECKPOINT_NAME: Final = "checkpoint"
_TITLE: Final = "chronik-checkpoint 1"


class SegmentFacts(NamedTuple):
    """A sealed segment, in the order of its line."""

    base_offset: int
    size: int
    next_offset: int
    first_timestamp: int
    max_timestamp: int
    max_timestamp_offset: int
    index_count: int
    time_count: int


class ActiveFacts(NamedTuple):
    """How many index entries of the unsealed segment are in its files."""

    base_offset: int
    index_count: int
    time_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    recovery_point: int = 0
    log_start_offset: int = 0
    cleaned_offset: int = 0
    leader_epochs: Sequence[tuple[int, int]] = ()
    segments: Sequence[SegmentFacts] = ()
    active: ActiveFacts | None = None


def sealed_facts(segment: Segment) -> SegmentFacts:
    """What a sealed segment's line says; its index is unloaded."""
    return SegmentFacts(
        segment.base_offset,
        segment.size,
        segment.next_offset,
        segment.first_timestamp,
        segment.max_timestamp,
        segment.max_timestamp_offset,
        segment.index_count,
        segment.time_count,
    )


def active_facts(segment: Segment) -> ActiveFacts:
    """What the line of the recovery point's segment says."""
    index = segment.index
    if index is None:
        return ActiveFacts(segment.base_offset, segment.index_count, segment.time_count)
    return ActiveFacts(segment.base_offset, index.flushed_count, index.flushed_time_count)


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """The file's content."""
    lines = [
        _TITLE,
        f"recovery_point {checkpoint.recovery_point}",
        f"log_start_offset {checkpoint.log_start_offset}",
    ]
    if checkpoint.cleaned_offset:
        lines.append(f"cleaned_offset {checkpoint.cleaned_offset}")
    lines += [_line("epoch", pair) for pair in checkpoint.leader_epochs]
    lines += [_line("segment", facts) for facts in checkpoint.segments]
    if checkpoint.active is not None:
        lines.append(_line("active", checkpoint.active))
    text = ("\n".join(lines) + "\n").encode()
    return text + f"crc32c {crc32c(text):08x}\n".encode()


def _line(word: str, numbers: Iterable[int]) -> str:
    return " ".join((word, *map(str, numbers)))


def decode_checkpoint(data: Buffer, path: str) -> Checkpoint:
    """Read the file's content; raises CorruptLog if it is not what was written."""
    content = bytes(data)
    end = content.rfind(b"crc32c ")
    text = content[: max(end, 0)]
    if content[len(text) :] != f"crc32c {crc32c(text):08x}\n".encode():
        raise CorruptLog(path, 0, 0, "the checkpoint's checksum does not match")
    title, *lines = text.decode().splitlines()
    if title != _TITLE:
        raise CorruptLog(path, 0, 0, f"unknown checkpoint format {title!r}")
    rows: dict[str, list[list[int]]] = {}
    for line in lines:
        word, *numbers = line.split(" ")
        rows.setdefault(word, []).append([int(number) for number in numbers])
    cleaned, active = rows.get("cleaned_offset"), rows.get("active")
    return Checkpoint(
        recovery_point=rows["recovery_point"][0][0],
        log_start_offset=rows["log_start_offset"][0][0],
        cleaned_offset=cleaned[0][0] if cleaned else 0,
        leader_epochs=[(epoch, offset) for epoch, offset in rows.get("epoch", [])],
        segments=[SegmentFacts(*numbers) for numbers in rows.get("segment", [])],
        active=ActiveFacts(*active[0]) if active else None,
    )
