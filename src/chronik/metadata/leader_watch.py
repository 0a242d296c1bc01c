"""Who waits for a leader, or for what it answers: neither is waited for once another one leads.

A leader that was stopped answers when it goes on, long after the others have elected one of them.
What it was asked may have been done; whoever asked asks the next leader the same.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator


class LeaderWatch:
    """Ends waits when somebody leads."""

    def __init__(self) -> None:
        # Each with the term and the leader that it is about, if it is about one.
        self._waits: dict[asyncio.Timeout, tuple[int, int] | None] = {}

    async def pause(self, pause_s: float) -> None:
        """Wait so long, but not once somebody leads: then there is somebody to ask."""
        with contextlib.suppress(TimeoutError):
            async with self._wait(pause_s, None):
                await asyncio.sleep(pause_s)

    def while_leading(
        self, term: int, leader_id: int
    ) -> contextlib.AbstractAsyncContextManager[None]:
        """TimeoutError within as soon as there is another leader, or another term has one.

        That nobody is known to lead ends nothing: the leader may only have been slow.
        """
        return self._wait(None, (term, leader_id))

    @contextlib.asynccontextmanager
    async def _wait(
        self, timeout_s: float | None, known: tuple[int, int] | None
    ) -> AsyncIterator[None]:
        async with asyncio.timeout(timeout_s) as wait:
            self._waits[wait] = known
            try:
                yield
            finally:
                del self._waits[wait]

    def leads(self, term: int, leader_id: int) -> None:
        """Somebody leads, as this node has just learned."""
        for wait, known in self._waits.items():
            if known != (term, leader_id) and not wait.expired():
                wait.reschedule(asyncio.get_running_loop().time())
