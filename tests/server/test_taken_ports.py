"""A node that cannot have its ports ends before the cluster hears of it."""

import asyncio
import socket
from pathlib import Path

import pytest

from chronik.broker import Broker, StartFailed
from chronik.config.settings import Settings


@pytest.mark.parametrize("option", ["port", "http_port"])
def test_a_node_without_its_port_is_never_registered(tmp_path: Path, option: str) -> None:
    async def start(port: int) -> None:
        ports = {"port": 0, "http_port": 0} | {option: port}
        broker = Broker(Settings(data_dir=str(tmp_path), **ports))
        with pytest.raises(StartFailed, match=rf"cannot listen on .*:{port} \(--"):
            await broker.__aenter__()
        assert not broker.metadata.image.brokers

    with socket.create_server(("127.0.0.1", 0)) as taken:
        asyncio.run(asyncio.wait_for(start(taken.getsockname()[1]), 20))
