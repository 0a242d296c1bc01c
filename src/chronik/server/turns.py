"""How long requests may keep the loop before everything else has had its turn.

A busy client's data can be read faster than the loop comes round: many megabytes of requests would
be handled before the next heartbeat of Raft is sent. So the connections of a listener share a
budget of time for each turn of the loop. Who comes when it is spent is put off, in order, to the
next turn.

Invariant: a connection that was told that the turn is over is told to go on, once, later.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

# Raft's heartbeats come every 75 ms. A produce request of a megabyte takes 5.
TURN_S: Final = 0.01


class Served(Protocol):
    """Somebody who handles requests in turns."""

    def go_on(self) -> None: ...


class Turns:
    """The budget that some connections share."""

    def __init__(self, loop: asyncio.AbstractEventLoop, now: Callable[[], float]) -> None:
        self._loop = loop
        self._now = now  # Not the loop's: uvloop's stands still during a turn.
        self._ends_s: float | None = None
        self._put_off: dict[Served, None] = {}

    def is_over(self, served: Served) -> bool:
        """Whether this one must wait; then it is told to go on in a later turn."""
        if self._ends_s is None:
            self._ends_s = self._now() + TURN_S
            self._loop.call_soon(self._next)
            return False
        if self._now() < self._ends_s:
            return False
        self._put_off[served] = None
        return True

    def _next(self) -> None:
        """The loop has come round: whoever was put off goes first."""
        self._ends_s = None
        waiting, self._put_off = self._put_off, {}
        for served in waiting:
            if not self.is_over(served):
                served.go_on()
