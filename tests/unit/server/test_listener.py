"""The listener's end: every connection goes, also one of which it hears late."""

import asyncio

from chronik.metrics import Metrics
from chronik.server.connection import Connection
from chronik.server.listener import Listener


class Client:
    """A connection as the listener knows it."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def abort(self) -> None:
        asyncio.get_running_loop().call_soon(self._listener.lost, self)


def listening() -> Listener:
    return Listener(
        dispatch=None,  # type: ignore[arg-type]
        metrics=Metrics(),
        request_bytes_max=1,
        queued_bytes_max=1,
        connections_max=lambda: 10,
        idle_timeout_ms=lambda: 1000,
        now=lambda: 0.0,
    )


def test_a_connection_that_comes_while_the_listener_closes_does_not_hold_it_up() -> None:
    async def scenario() -> None:
        listener = listening()
        await listener.bind("127.0.0.1", 0)
        assert listener.accepted(Client(listener), "early")  # type: ignore[arg-type]
        closing = asyncio.ensure_future(listener.close())
        await asyncio.sleep(0)
        assert not listener.accepted(Client(listener), "late")  # type: ignore[arg-type]
        await asyncio.wait_for(closing, 5)

    asyncio.run(scenario())


def test_a_connection_without_a_socket_does_not_hold_up_the_end() -> None:
    async def scenario() -> None:
        listener = listening()
        await listener.bind("127.0.0.1", 0)
        assert listener.accepted(Connection(listener), "gone already")
        await asyncio.wait_for(listener.close(), 5)

    asyncio.run(scenario())
