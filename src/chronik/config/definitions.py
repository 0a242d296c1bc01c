"""What a Kafka setting is: its type, its default, what it may be, and what it means.

A definition parses and validates a value given as text, which is how Kafka's wire protocol, our
TOML file and the command line all give it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum
from re import fullmatch
from typing import Final

SHORT_MAX: Final = 2**15 - 1
INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1

Value = bool | int | float | str | tuple[str, ...]


class InvalidSetting(Exception):
    """A value that a setting cannot have; the message names both."""


class Kind(IntEnum):
    """Kafka's numbers for the type of a setting, as DescribeConfigs v3+ reports it."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Update(Enum):
    """When a broker's setting can change."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """One Kafka setting."""

    name: str
    kind: Kind
    default: Value | None
    documentation: str
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    ignores_case: bool = False
    item_pattern: str = ""  # what each item of a list must look like
    update: Update = Update.READ_ONLY
    # For a topic's setting: the broker settings that it falls back to, first wins. A suffix says
    # the unit where it is not the topic's own: log.retention.hours gives retention.ms.
    synonyms: tuple[str, ...] = ()

    def parse(self, text: str) -> Value:
        """The value that this text stands for, or InvalidSetting."""
        value = self._convert(text.strip().lower() if self.ignores_case else text.strip())
        self._check(value, text)
        return value

    def _convert(self, text: str) -> Value:
        try:
            return _CONVERT[self.kind](text)
        except ValueError:
            raise self._invalid(text) from None

    def _check(self, value: Value, text: str) -> None:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            if self.least is not None and value < self.least:
                raise self._invalid(text)
            if self.most is not None and value > self.most:
                raise self._invalid(text)
        items = value if isinstance(value, tuple) else ()
        if self.item_pattern and not all(fullmatch(self.item_pattern, each) for each in items):
            raise self._invalid(text)
        if self.choices:
            chosen = value if isinstance(value, tuple) else (value,)
            if not chosen or any(item not in self.choices for item in chosen):
                raise self._invalid(text)

    def allowed(self) -> str:
        """What a value may be, for error messages."""
        if self.choices:
            words = ", ".join(self.choices)
            return f"a list of {words}" if self.kind is Kind.LIST else f"one of {words}"
        if self.kind is Kind.BOOLEAN:
            return "true or false"
        if self.item_pattern:
            return f"a list of items like {self.item_pattern}"
        if self.kind in (Kind.INT, Kind.SHORT, Kind.LONG, Kind.DOUBLE):
            what = "a number" if self.kind is Kind.DOUBLE else "a whole number"
            least = "" if self.least is None else f" from {_whole_if_whole(self.least)}"
            most = "" if self.most is None else f" to {_whole_if_whole(self.most)}"
            return what + least + most
        return "text"

    def _invalid(self, text: str) -> InvalidSetting:
        return InvalidSetting(
            f"Invalid value {text} for configuration {self.name}: must be {self.allowed()}"
        )


def render(value: Value | None) -> str | None:
    """A value as Kafka writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    return None if value is None else str(value)


def _whole_if_whole(bound: float) -> str:
    return str(int(bound)) if bound == int(bound) else f"{bound:g}"


def _boolean(text: str) -> bool:
    words = {"true": True, "false": False}
    if text.lower() not in words:
        raise ValueError(text)
    return words[text.lower()]


def _whole(bits: int) -> Callable[[str], int]:
    def convert(text: str) -> int:
        value = int(text)
        if not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
            raise ValueError(text)
        return value

    return convert


def _list(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",") if item.strip())


_CONVERT: Final[dict[Kind, Callable[[str], Value]]] = {
    Kind.BOOLEAN: _boolean,
    Kind.STRING: str,
    Kind.INT: _whole(32),
    Kind.SHORT: _whole(16),
    Kind.LONG: _whole(64),
    Kind.DOUBLE: float,
    Kind.LIST: _list,
    Kind.CLASS: str,
    Kind.PASSWORD: str,
}
