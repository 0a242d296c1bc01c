"""Where a read begins or ends, as options say it: `earliest`, `latest`, JSON, times, `-10m`.

Times are ISO 8601 (`2026-01-02T03:04:05Z`; UTC unless it says otherwise) or milliseconds.

Kafka's words and numbers: in JSON, -2 is the earliest offset of a partition and -1 its latest.
A time stands for the first record at or after it. Where there is none, a read ends at the end of
the log, and begins there unless `startingOffsetsByTimestampStrategy` says `error`. That is what it
says by default where the time is given in the words of Spark's source (`startingTimestamp`).

Pure: `log_facts` finds the offsets that belong to a position.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from chronik.model import TopicPartition
from chronik.spark.errors import OptionsError

EARLIEST: Final = -2
LATEST: Final = -1
_RELATIVE: Final = re.compile(r"-(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)", re.ASCII)
_ISO: Final = re.compile(r"\d{4}-\d\d-\d\d.*", re.ASCII)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_UNIT_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True)
class Edge:
    """An end of the log: EARLIEST or LATEST."""

    offset: int


@dataclass(frozen=True, slots=True)
class Offsets:
    """An offset, EARLIEST or LATEST for each partition."""

    by_place: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Time:
    """The first record at or after a time, the same for all partitions."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Times:
    """The first record at or after a time of each partition's own."""

    by_place: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Ago:
    """The first record of the last so many milliseconds."""

    duration_ms: int


Position = Edge | Offsets | Time | Times | Ago


def parse_position(option: str, text: str) -> Position:
    """The position that `startingOffsets` or `endingOffsets` names, or OptionsError."""
    word = text.strip()
    if word.lower() == "earliest":
        return Edge(EARLIEST)
    if word.lower() == "latest":
        return Edge(LATEST)
    relative = _RELATIVE.fullmatch(word)
    if relative:
        return Ago(int(float(relative[1]) * _UNIT_MS[relative[2]]))
    if word.startswith("{"):
        return Offsets(parse_places(option, word, least=EARLIEST))
    instant_ms = _instant_ms(word) if _ISO.fullmatch(word) else None
    if instant_ms is not None:
        return Time(instant_ms)
    raise OptionsError(
        f"{option}={text!r} is no position: say earliest, latest, a time span such as -10m"
        " (ms, s, m, h, d), a time such as 2026-01-02T03:04:05Z or JSON such as"
        ' {"orders": {"0": 23, "1": -2}}'
    )


def _instant_ms(text: str) -> int | None:
    """Since the epoch and not before it, since negative numbers mean ends of the log."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    since = found.replace(tzinfo=found.tzinfo or UTC) - _EPOCH
    return max(-(-since // timedelta(milliseconds=1)), 0)  # Up: no earlier record is wanted.


def parse_places(option: str, text: str, *, least: int) -> dict[TopicPartition, int]:
    """The numbers of `{"topic": {"partition": number}}`, or OptionsError."""
    example = f'{option} wants JSON such as {{"orders": {{"0": 23, "1": 42}}}}'
    places: dict[TopicPartition, int] = {}
    for name, partitions in _object(text, example).items():
        if not isinstance(partitions, dict):
            raise OptionsError(f"{example}; {name} has {partitions!r}")
        for partition, number in partitions.items():
            is_number = isinstance(number, int) and not isinstance(number, bool)
            if not (partition.isdecimal() and is_number and number >= least):
                raise OptionsError(f"{example}; {name} has {partition!r}: {number!r}")
            places[TopicPartition(name, int(partition))] = number
    if not places:
        raise OptionsError(f"{example}, and it names no partition")
    return places


def parse_assignment(option: str, text: str) -> dict[str, tuple[int, ...]]:
    """The partitions of `{"topic": [0, 1]}`, or OptionsError."""
    example = f'{option} wants JSON such as {{"orders": [0, 1]}}'
    assigned: dict[str, tuple[int, ...]] = {}
    for name, partitions in _object(text, example).items():
        is_list = isinstance(partitions, list) and partitions
        if not is_list or any(type(each) is not int or each < 0 for each in partitions):
            raise OptionsError(f"{example}; {name} has {partitions!r}")
        assigned[name] = tuple(sorted(set(partitions)))
    if not assigned:
        raise OptionsError(f"{example}, and it names no topic")
    return assigned


def _object(text: str, example: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise OptionsError(f"{example}; {text!r} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise OptionsError(f"{example}, not {text!r}")
    return found
