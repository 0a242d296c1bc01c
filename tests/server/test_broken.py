"""A node whose invariants are broken ends, with one line, instead of living on."""

import asyncio
from pathlib import Path

import pytest

from chronik import broker
from chronik.config.settings import Settings


def test_a_broken_invariant_ends_the_node(tmp_path: Path) -> None:
    async def run() -> None:
        def ready(node: broker.Broker) -> None:
            consensus = node.metadata.consensus
            loop.call_soon(consensus.broken, AssertionError("two leaders in one term"))

        loop = asyncio.get_running_loop()
        settings = Settings(data_dir=str(tmp_path), port=0, http_port=-1)
        await broker.run(settings, ready, asyncio.Event())

    with pytest.raises(broker.StartFailed, match="the metadata is broken: two leaders in one term"):
        asyncio.run(asyncio.wait_for(run(), 20))
