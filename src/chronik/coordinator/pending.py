"""A response that comes later.

Like a future, but whoever waits is told at once, in the call that resolves it, and not in a turn
of the loop of its own: the acks of a commit round become one write to each socket.
"""

import asyncio
from collections.abc import Callable, Generator
from typing import Any


class Pending:
    """Resolved once, waited for by one."""

    __slots__ = ("_on_done", "_value", "is_done")

    def __init__(self) -> None:
        self.is_done = False
        self._value: Any = None
        self._on_done: Callable[[Any], None] | None = None

    def resolve(self, value: Any) -> None:
        assert not self.is_done
        self.is_done = True
        self._value = value
        if self._on_done is not None:
            self._on_done(value)

    def then(self, on_done: Callable[[Any], None]) -> None:
        """Call this with the response, now if it is there."""
        if self.is_done:
            on_done(self._value)
        else:
            self._on_done = on_done

    def __await__(self) -> Generator[Any, None, Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.then(lambda value: None if future.done() else future.set_result(value))
        return future.__await__()
