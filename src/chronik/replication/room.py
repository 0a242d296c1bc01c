"""Whether this node's disk has room for records: one answer for all its partitions.

Whoever finds that there is none says so, and from that moment on no partition takes anything: what
little is left is for the metadata log, and a batch that a producer sends next must not get ahead
of the one that did not fit. `server.disk_space` does what follows, and says when it is over.
"""

from collections.abc import Callable

from chronik.storage.errors import is_no_room


class Room:
    """Shared by all partitions of a node."""

    __slots__ = ("is_full", "on_full")

    def __init__(self) -> None:
        self.is_full = False
        self.on_full: Callable[[], None] | None = None  # whoever does something about it

    def failed(self, error: BaseException) -> None:
        """A write failed; perhaps because there is no room."""
        if is_no_room(error):
            self.is_full = True
            if self.on_full is not None:
                self.on_full()
