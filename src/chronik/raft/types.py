"""The values of Raft: entries, and the state that must survive a crash.

The three kinds of entry are different types on disk and on the wire. None is ever decoded as
another: a no-op holds nothing, a command holds metadata records, a configuration holds members.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

FIRST_INDEX: Final = 1  # Index 0 means "before the first entry".


class EntryKind(Enum):
    """What an entry holds. The value is its name on disk."""

    NO_OP = "no-op"
    COMMAND = "command"
    CONFIGURATION = "configuration"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry of the log. `data` is opaque here."""

    term: int
    index: int
    kind: EntryKind
    data: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class HardState:
    """What a voter must not forget: its term, whom it voted for in it, what was committed."""

    term: int = 0
    vote: int | None = None
    commit_index: int = 0
