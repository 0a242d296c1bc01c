"""Time, as an argument: the only file that asks the machine what time it is.

Pure code gets `now_ms` from its caller; callers get it from a `Clock`, which the simulator and
tests replace. Wall time stamps records; monotonic time measures waits.
"""

import time
from typing import Protocol


class Clock(Protocol):
    def wall_ms(self) -> int:
        """Milliseconds since the epoch, as in record timestamps."""
        ...

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back."""
        ...


class SystemClock:
    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


class SteadyClock:
    """Wall time when it was made, moved on by the monotonic clock: for deadlines that are logged.

    It looks like wall time and never goes back, whatever happens to the machine's clock.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset_ms = clock.wall_ms() - int(clock.monotonic() * 1000)

    def now_ms(self) -> int:
        return self._offset_ms + int(self._clock.monotonic() * 1000)
