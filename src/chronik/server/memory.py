"""How many bytes of half-received requests the node holds, over all connections.

Memory follows the bytes that came, not the length that a frame claims, so that claims cost
nothing. A connection that wants more than is left is closed: to let it wait would let a few
clients that never finish their requests hold up all others.
"""

from typing import Final

UNLIMITED: Final = -1


class RequestMemory:
    """A budget of bytes."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_used = 0

    def reserve(self, size: int) -> bool:
        """Take bytes if they are left."""
        if self.bytes_max != UNLIMITED and self.bytes_used + size > self.bytes_max:
            return False
        self.bytes_used += size
        return True

    def release(self, size: int) -> None:
        """Give bytes back."""
        self.bytes_used -= size
