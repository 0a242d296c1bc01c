"""What the Spark source refuses: wrong options, and data that is gone.

Both reach the user through Spark's own error, as its last line; so each message is one sentence
that says what is wrong and what to do.
"""

import difflib
from collections.abc import Iterable


class OptionsError(ValueError):
    """Options that are unknown, wrong or contradict each other."""


class DataLossError(RuntimeError):
    """Records that a reader was promised and that are no longer in the log."""


class SourceError(RuntimeError):
    """A source or sink that cannot work as things are; the message says what to change."""


class UnknownTopic(SourceError):
    """A topic that is not there, and did not appear within the time that a creation takes."""


def hint(name: str, known: Iterable[str]) -> str:
    """What somebody may have meant by a name that is not known."""
    names = list(known)
    meant = near(name, names, likeness=0.6)
    return f"did you mean {meant}?" if meant else "there are: " + ", ".join(sorted(names))


def near(name: str, known: Iterable[str], likeness: float = 0.85) -> str | None:
    """The known name that is nearly this one."""
    by_case = {each.lower(): each for each in known}
    found = difflib.get_close_matches(name.lower(), by_case, n=1, cutoff=likeness)
    return by_case[found[0]] if found else None
