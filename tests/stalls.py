"""How long the machine itself has stood still: its disk, or all of it.

For the message of a test of real processes that has waited in vain: a disk that syncs nothing for
half a minute, or a virtual machine that is paused, is another finding than a node that stays away.
A thread syncs a file over and over; whatever a round takes beyond what it ever should is a stall.
"""

import functools
import os
import tempfile
import threading
import time

PAUSE_S = 0.25
ROUND_S = 1.5  # what a pause and a sync take at most on a machine that works, if a busy one


class Stalls:
    """Counts from its making on, for as long as the process lives."""

    def __init__(self) -> None:
        self._earlier_s = 0.0
        self._began_s = time.monotonic()  # the round that is under way
        threading.Thread(target=self._run, name="stalls", daemon=True).start()

    @property
    def total_s(self) -> float:
        """All stalls so far, with the one that has not ended yet."""
        return self._earlier_s + self._current_s

    @property
    def _current_s(self) -> float:
        return max(time.monotonic() - self._began_s - ROUND_S, 0.0)

    def _run(self) -> None:
        with tempfile.TemporaryFile() as file:
            while True:
                time.sleep(PAUSE_S)
                os.pwrite(file.fileno(), b"anything", 0)
                os.fsync(file.fileno())
                self._earlier_s, self._began_s = self.total_s, time.monotonic()


@functools.cache
def stalls() -> Stalls:
    """Those of this process's machine."""
    return Stalls()
