"""The deadlines of a machine, by key: set, moved and cancelled far more often than they are due.

Most deadlines are session timeouts that each heartbeat moves further away, so moving one later
only notes the new time; the heap is put right when the old time comes.
"""

import heapq
from collections.abc import Hashable


class Timers:
    """Deadlines by key; each key has at most one."""

    __slots__ = ("_deadlines", "_heap", "_queued", "_sequence")

    def __init__(self) -> None:
        self._deadlines: dict[Hashable, int] = {}
        self._queued: dict[Hashable, int] = {}  # the earliest time at which the heap looks at a key
        self._heap: list[tuple[int, int, Hashable]] = []
        self._sequence = 0  # ties are due in the order in which they were set

    def __len__(self) -> int:
        return len(self._deadlines)

    def set(self, key: Hashable, deadline_ms: int) -> None:
        """The key is due then, and at no other time."""
        self._deadlines[key] = deadline_ms
        queued = self._queued.get(key)
        if queued is None or deadline_ms < queued:
            self._push(key, deadline_ms)

    def cancel(self, key: Hashable) -> bool:
        """The key is not due any more; whether it would have been."""
        return self._deadlines.pop(key, None) is not None

    def get(self, key: Hashable) -> int | None:
        """When the key is due."""
        return self._deadlines.get(key)

    def _push(self, key: Hashable, deadline_ms: int) -> None:
        self._queued[key] = deadline_ms
        self._sequence += 1
        heapq.heappush(self._heap, (deadline_ms, self._sequence, key))

    def due(self, now_ms: int) -> list[Hashable]:
        """Take out the keys whose time has come, the earliest first."""
        found = []
        while self._heap and self._heap[0][0] <= now_ms:
            key = self._look()
            if key is not None and self._deadlines[key] <= now_ms:
                del self._deadlines[key]
                found.append(key)
            elif key is not None:
                self._push(key, self._deadlines[key])
        return found

    def _look(self) -> Hashable | None:
        """Take the first entry off the heap; its key, unless it stands for nothing."""
        at_ms, _, key = heapq.heappop(self._heap)
        if self._queued.get(key) != at_ms:
            return None  # A later call to `set` has queued the key for an earlier time.
        del self._queued[key]
        return key if key in self._deadlines else None

    @property
    def next_deadline_ms(self) -> int | None:
        """When `due` should be asked next; it may then find nothing."""
        while self._heap:
            at_ms, _, key = self._heap[0]
            if self._queued.get(key) == at_ms:
                deadline_ms = self._deadlines.get(key)
                if deadline_ms == at_ms:
                    return at_ms
                if deadline_ms is not None:
                    heapq.heappop(self._heap)
                    self._push(key, deadline_ms)
                    continue
                del self._queued[key]
            heapq.heappop(self._heap)
        return None
