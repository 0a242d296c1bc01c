"""Subscriptions by a regular expression: which topics one matches, in time linear in their names.

The expression comes from a client, so it must not be able to hold the broker up. Java's clients
write it for Google's RE2, whose automaton never backtracks; the broker uses the same.

As in Kafka, a topic is subscribed to if its whole name matches, internal topics included.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

from chronik.protocol.errors import ErrorCode, KafkaError

LENGTH_MAX: Final = 4096  # an expression that names topics one by one may be long, but not endless
MEMORY_BYTES_MAX: Final = 1024 * 1024  # of one automaton, for which RE2 refuses what is larger
CACHED_MAX: Final = 256  # expressions of all members; each is compiled once in practice


@lru_cache(maxsize=CACHED_MAX)
def _compiled(text: str) -> Any:
    """The compiled expression, or the reason why there is none."""
    import re2  # Only groups that subscribe so pay for loading it.

    if len(text) > LENGTH_MAX:
        return f"it is longer than {LENGTH_MAX} characters"
    options = re2.Options()
    options.log_errors = False
    options.max_mem = MEMORY_BYTES_MAX
    try:
        return re2.compile(text, options)
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    except re2.error as error:
        (reason,) = error.args
        return reason.decode() if isinstance(reason, bytes) else str(reason)


def compile_regex(text: str) -> Any:
    """The compiled expression, or INVALID_REGULAR_EXPRESSION."""
    compiled = _compiled(text)
    if isinstance(compiled, str):
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{text[:100]}` is not a valid regular expression: {compiled}.",
        )
    return compiled


def matching_topics(text: str, names: Iterable[str]) -> frozenset[str]:
    """The topics whose whole name matches; none if this release does not know the expression."""
    compiled = _compiled(text)
    if isinstance(compiled, str):
        return frozenset()
    return frozenset(name for name in names if compiled.fullmatch(name) is not None)
