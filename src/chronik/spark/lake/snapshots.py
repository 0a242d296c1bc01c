"""Which versions of an Iceberg table are kept: few, and yet none that a reader may have pinned.

A reader pins the current version's *files* and may take an hour to read them. Files younger than
a day are never deleted, so only older ones need a version that refers to them. Such a file, if it
left the table within the last hour, was in every version up to then: in the newest version that
is older than the hour. So that one is kept, the last of every few minutes after it (one of these
will be the next such version), and the latest few for people.

Invariant
    A file that is older than a day and was in the table at any time within `pin_ms` is referred
    to by a version that is kept.
"""

from collections.abc import Iterable
from typing import Final

LATEST_KEPT: Final = 20
SPACING_MS: Final = 5 * 60 * 1000


def kept(
    made: Iterable[tuple[int, int]], *, now_ms: int, pin_ms: int, latest: int = LATEST_KEPT
) -> set[int]:
    """The ids to keep of versions given as (id, ms when it was made)."""
    in_order = sorted(made, key=lambda each: each[1])
    keep = {version for version, _ in in_order[-latest:]}
    anchor = [version for version, made_ms in in_order if made_ms <= now_ms - pin_ms]
    keep.update(anchor[-1:])
    last_of_span = {
        made_ms // SPACING_MS: version for version, made_ms in in_order if made_ms > now_ms - pin_ms
    }
    keep.update(last_of_span.values())
    return keep
