"""How a round's offsets are shared among tasks: pure arithmetic.

A task has about as many bytes as any other and no more than its limit, so that its memory and its
retry are small; and there are no more tasks than it takes, since each makes a file.

Invariants
    The tasks' ranges are the partitions' ranges, cut and shared out: no offset is lost or doubled.
    No range is larger than the limit allows, unless it is a single offset.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from chronik.spark.offset_range import OffsetRange

SMALLEST_TASK_BYTES: Final = 4 * 1024 * 1024  # below this a task costs more than it brings
ROUND_TASKS_A_CORE: Final = 4  # then commit: so much work at most is lost with a round


def admitted(
    ranges: Sequence[OffsetRange], weights: Mapping[int, float], budget_bytes: float
) -> list[OffsetRange]:
    """The ranges cut so that together they have about so many bytes, each in proportion."""
    total = sum(_bytes(each, weights) for each in ranges)
    if total <= budget_bytes:
        return [each for each in ranges if each.start_offset < each.end_offset]
    share = budget_bytes / total
    cut = []
    for each in ranges:
        count = each.end_offset - each.start_offset
        taken = min(count, max(1, int(count * share))) if count else 0
        if taken:
            cut.append(replace(each, end_offset=each.start_offset + taken))
    return cut


def shared(
    ranges: Sequence[OffsetRange],
    weights: Mapping[int, float],
    *,
    cores: int,
    task_bytes: int,
) -> list[list[OffsetRange]]:
    """The ranges of each task."""
    total = sum(_bytes(each, weights) for each in ranges)
    target = min(task_bytes, max(total / cores, SMALLEST_TASK_BYTES))
    tasks: list[list[OffsetRange]] = []
    room = 0.0
    for each in ranges:
        start = each.start_offset
        while start < each.end_offset:
            if room <= 0 or not tasks:
                tasks.append([])
                room = target
            weight = max(weights.get(each.partition, 1.0), 1e-9)
            taken = min(each.end_offset - start, max(1, round(room / weight)))
            tasks[-1].append(replace(each, start_offset=start, end_offset=start + taken))
            start += taken
            room -= taken * weight
            if room < target * 0.05:
                room = 0.0  # A crumb would be a range of its own for nothing.
    return tasks


def _bytes(each: OffsetRange, weights: Mapping[int, float]) -> float:
    return (each.end_offset - each.start_offset) * weights.get(each.partition, 1.0)
