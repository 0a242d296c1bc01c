"""How deep objects and arrays of a JSON text are nested in each other.

Readers of JSON, types and the tables' formats are recursive, each with a limit of its own, and past
some of them is no error but the end of the process. So what is nested deeper than anybody means it
to be is found by its brackets, before anybody reads it.
"""

import re
from typing import Final

import numpy as np
import pyarrow as pa

from chronik.spark.decode.framing import spans_of

# Delta's log ends at 41 and Iceberg's at 60 or so; the hand-made documents we know of at ten.
NESTED_MAX: Final = 30
TOO_DEEP: Final = f"nested too deeply: more than {NESTED_MAX} levels"
# With no more than these a value cannot be so deep that a reader minds, and few values have more.
BRACKETS_SAFE: Final = 200
# The last one may have no end: to look for one from each quote of it would take for ever.
_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"{}[]"))
_SQUARE_TO_CURLY: Final = np.uint8(0x20)  # as with letters: "[" and "{" differ in this bit
_IS_OPENING: Final = 0b10  # a bit that "{" and "[" have, and "}" and "]" have not


def depth(text: bytes) -> int:
    """How many brackets are open at once."""
    brackets = np.frombuffer(_STRING.sub(b"", text).translate(None, _NO_BRACKETS), np.uint8)
    if not len(brackets):
        return 0
    steps = np.where(brackets & _IS_OPENING, 1, -1)
    return max(int(np.cumsum(steps).max()), 0)


def is_too_deep(text: bytes, safe: int = NESTED_MAX) -> bool:
    """Whether no column can hold it; not asked of those with so few brackets that are safe."""
    return text.count(b"{") + text.count(b"[") > safe and depth(text) > NESTED_MAX


def dangerous(values: pa.BinaryArray) -> list[int]:
    """The rows whose values nobody should read."""
    starts, lengths, data = spans_of(values)
    if int(lengths.max(initial=0)) < 2 * BRACKETS_SAFE:
        return []
    # Cheaply for all at once: which have so many opening brackets?
    opening = np.flatnonzero((np.frombuffer(data, np.uint8) | _SQUARE_TO_CURLY) == ord("{"))
    first, last = np.searchsorted(opening, starts), np.searchsorted(opening, starts + lengths)
    rows = np.flatnonzero(last - first > BRACKETS_SAFE)
    if not len(rows):
        return []
    texts = values.take(pa.array(rows)).to_pylist()
    return [
        row
        for row, text in zip(rows.tolist(), texts, strict=True)
        if text is not None and is_too_deep(text, BRACKETS_SAFE)
    ]
