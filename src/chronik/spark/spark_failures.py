"""What Spark complains of, in one line.

An error of Spark arrives in one of two kinds: PySpark's own, or Java's as it is, behind wrappers
that only say that something has failed. Of either, what counts is what a Python worker has raised,
if one has, or else the first thing that is said about the cause.

PySpark and py4j are imported where they are needed: commands that have no Spark read this too.
"""

import re
from collections.abc import Iterator
from itertools import islice
from typing import Final, Protocol

CAUSES_MAX: Final = 10  # of causes: Java's may go round in a circle
_TRACE: Final = "Traceback (most recent call last)"
_RAISED: Final = re.compile(r"[\w.]+(?:: (?P<why>.*))?")
# Around what a task has failed with: which task it was, and the class of what it threw.
_OF_TASK: Final = re.compile(
    r"Job aborted due to stage failure: .*?\(TID \d+\) \([^)]*\): (?:[\w.$]+(?:Error|Exception): )?"
)
_SAYS_NOTHING: Final = re.compile(r"(?:Exception thrown in awaitResult:)?\s*")


class _JavaError(Protocol):
    """A Throwable, as py4j shows one."""

    def getMessage(self) -> str | None: ...

    def getCause(self) -> "_JavaError | None": ...


def spark_errors() -> tuple[type[Exception], ...]:
    """What a call of Spark may raise."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    return Py4JError, PySparkException


def why(error: Exception) -> str:
    """What an error of Spark comes from."""
    texts = [text for text in _texts(error) if not _SAYS_NOTHING.fullmatch(text)]
    traced = (text for text in texts if _TRACE in text)
    return one_line(next(traced, texts[0] if texts else ""))


def _texts(error: Exception) -> Iterator[str]:
    """What it says and, if it is Java's, what its causes say."""
    cause = getattr(error, "java_exception", None)
    if cause is None:
        yield str(error)
        return
    yield from (each.getMessage() or "" for each in islice(_chain(cause), CAUSES_MAX))


def _chain(cause: _JavaError | None) -> Iterator[_JavaError]:
    while cause is not None:
        yield cause
        cause = cause.getCause()


def one_line(text: str) -> str:
    """A complaint's own first line or, of a Python worker's, what was raised."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    found = [*lines[:1], *_raised(lines)]
    return _OF_TASK.sub("", found[-1].strip()) if found else "Spark failed without a word"


def _raised(lines: list[str]) -> Iterator[str]:
    """What each trace ends with: its first line that is not set in, without the error's class."""
    is_in_trace = False
    for line in lines:
        if _TRACE in line:
            is_in_trace = True
        elif is_in_trace and not line[0].isspace():
            is_in_trace = False
            match = _RAISED.fullmatch(line)
            yield (match and match["why"]) or line
