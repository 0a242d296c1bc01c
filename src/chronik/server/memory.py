"""How many bytes of half-received requests the node holds, over all connections.

A frame above a small size reserves all of its bytes before they are read. Without room its
connection is not read until others have finished, in the order of asking.
"""

from collections import deque
from collections.abc import Callable


class RequestMemory:
    """A budget of bytes, and who waits for some."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self.bytes_used = 0

    def reserve(self, size: int, granted: Callable[[], None]) -> bool:
        """True if the bytes are reserved now; else `granted` is called once they are."""
        if not self._waiting and self._fits(size):
            self.bytes_used += size
            return True
        self._waiting.append((size, granted))
        return False

    def release(self, size: int) -> None:
        """Give bytes back, and grant them to whoever waits."""
        self.bytes_used -= size
        while self._waiting and self._fits(self._waiting[0][0]):
            size, granted = self._waiting.popleft()
            self.bytes_used += size
            granted()

    def forget(self, granted: Callable[[], None]) -> None:
        """The waiter has gone."""
        self._waiting = deque(entry for entry in self._waiting if entry[1] != granted)

    def _fits(self, size: int) -> bool:
        # A request larger than the whole budget passes alone, or it would wait for ever.
        return (
            self._bytes_max < 0
            or not self.bytes_used
            or (self.bytes_used + size <= self._bytes_max)
        )
