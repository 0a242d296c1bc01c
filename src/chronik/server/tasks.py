"""Background tasks that end with the block that owns them; one that fails is logged."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final, Self

from chronik.metrics import Histogram

logger = logging.getLogger(__name__)

LAG_SAMPLE_S: Final = 0.1


class Tasks:
    """Background tasks that end with the block that owns them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run this until it ends, or the block does."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        task.add_done_callback(self._ended)
        self._tasks.add(task)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("task failed", exc_info=task.exception(), extra={"task": task.get_name()})

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def sample_lag(histogram: Histogram) -> None:
    """How late the loop runs what is due: the wait of anybody who asks it something."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + LAG_SAMPLE_S
        await asyncio.sleep(LAG_SAMPLE_S)
        histogram.observe(max(loop.time() - due, 0.0))
