"""What libraries complain of, in one line.

An object store's complaint arrives as several lines of text from one of three libraries. What
people can do something about (a bucket, keys, an address) is told in our own words.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Concatenate, Final, ParamSpec, Protocol, TypeVar

from chronik.spark.lake.table import LakeError

COMPLAINT_LENGTH_MAX: Final = 300
_CODE: Final = re.compile(r"<Code>(\w+)</Code>|AWS Error (\w+)")
_COLOURS_AND_ARROWS: Final = re.compile(r"\x1b\[[0-9;]*m|↳")
_NO_BUCKET: Final = frozenset({"nosuchbucket"})
_NO_ENTRY: Final = frozenset(
    {
        *("accessdenied", "invalidaccesskeyid", "signaturedoesnotmatch", "expiredtoken"),
        *("invalidtoken", "invalidclienttokenid", "unrecognizedclient", "missingauthentication"),
    }
)
_NO_ANSWER: Final = re.compile(r"NETWORK_CONNECTION|error sending request|client error \(Connect\)")


def complaint(error: BaseException) -> str:
    """What a library says about a store, in one line."""
    text = _COLOURS_AND_ARROWS.sub("", str(error))
    found = _CODE.search(text)
    code = "" if found is None else (found[1] or found[2])
    plain = code.replace("_", "").lower()
    if plain in _NO_BUCKET:
        return "there is no such bucket: create it, or check the URL of the warehouse"
    if plain in _NO_ENTRY or "403 Forbidden" in text:
        return (
            f"the object store refuses us ({code or '403 Forbidden'}): check the keys under "
            "[storage] or in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and what they may do"
        )
    if _NO_ANSWER.search(text):
        return "no object store answers: check endpoint_url (AWS_ENDPOINT_URL) and that it runs"
    line = " ".join(text.split()) or type(error).__name__
    return line if len(line) <= COMPLAINT_LENGTH_MAX else f"{line[:COMPLAINT_LENGTH_MAX]}..."


@contextmanager
def telling(where: str, kinds: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Within: what goes wrong with files, and these kinds of errors, is a LakeError.

    That a file is not there is no failure but an answer, and stays what it is.
    """
    told: tuple[type[Exception], ...] = (OSError, *kinds)
    try:
        yield
    except FileNotFoundError:
        raise
    except told as error:
        raise LakeError(f"{where}: {complaint(error)}") from error


class _Located(Protocol):
    location: str


P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound=_Located)


def telling_of_table(
    *kinds: type[Exception],
) -> Callable[[Callable[Concatenate[S, P], R]], Callable[Concatenate[S, P], R]]:
    """The same for a method of a table."""

    def decorated(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
        @wraps(method)
        def call(self: S, /, *args: P.args, **options: P.kwargs) -> R:
            with telling(self.location, kinds):
                return method(self, *args, **options)

        return call

    return decorated
