"""A node that cannot have its ports ends before a cluster hears of it."""

import asyncio
import socket
from pathlib import Path

import pytest

from chronik import broker
from chronik.config.settings import Settings


@pytest.mark.parametrize("option", ["port", "http_port"])
def test_a_node_without_its_port_is_never_registered(tmp_path: Path, option: str) -> None:
    async def run(port: int) -> None:
        ports = {"port": 0, "http_port": 0} | {option: port}
        settings = Settings(data_dir=str(tmp_path / "data"), **ports)
        with pytest.raises(broker.StartFailed, match=rf"cannot listen on .*:{port} \(--"):
            await broker.run(settings, lambda _: pytest.fail("it is ready"), asyncio.Event())
        assert not (tmp_path / "data").exists()

    with socket.create_server(("127.0.0.1", 0)) as taken:
        asyncio.run(asyncio.wait_for(run(taken.getsockname()[1]), 20))


@pytest.mark.parametrize("host", ["::1", "::"])
def test_an_ipv6_address_is_not_taken_by_one_of_ipv4(tmp_path: Path, host: str) -> None:
    async def run(port: int) -> None:
        settings = Settings(
            data_dir=str(tmp_path), host=host, advertise=f"[::1]:{port}", port=port, http_port=-1
        )
        await broker.run(settings, lambda _: stop.set(), stop)

    stop = asyncio.Event()
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with socket.create_server(("0.0.0.0", 0)) as taken:
        asyncio.run(asyncio.wait_for(run(taken.getsockname()[1]), 20))


def test_a_host_without_an_address_is_named(tmp_path: Path) -> None:
    settings = Settings(data_dir=str(tmp_path), host="nowhere.invalid", port=9, http_port=-1)
    with pytest.raises(broker.StartFailed, match=r"nowhere\.invalid:9 .*[Nn]ame"):
        asyncio.run(broker.run(settings, lambda _: pytest.fail("it is ready"), asyncio.Event()))
