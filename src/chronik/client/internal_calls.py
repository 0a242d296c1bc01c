"""Calls over one connection of the internal port: they go out as they come, answers find who asked.

A connection that is lost fails every call on it; `Peer` opens another for the next. A call that
times out leaves the connection as it is, and its answer is dropped when it comes.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from chronik.client.internal_link import FrameLink, NotSent
from chronik.client.link import Address, ConnectionFailed
from chronik.protocol.errors import ErrorCode, KafkaError, ProtocolError
from chronik.protocol.internal import Answer, InternalMessage, decode_message, encode_frame

# Calls that wait for their answer; more wait for their turn. The other side reads no more than it
# allows to be under way, so that more would only sit in its socket.
INFLIGHT_MAX: Final = 64


class CallLink:
    """The calls on one connection that has been through its handshake."""

    def __init__(self, link: FrameLink, address: Address) -> None:
        self.link = link
        self._address = address
        self._pending: dict[int, asyncio.Future[Answer]] = {}
        self._slots = asyncio.Semaphore(INFLIGHT_MAX)
        self._writable = asyncio.Event()
        self._next_id = 0
        self._failure: str | None = None
        self._writable.set()
        link.on_frame = self._received
        link.on_closed = self._closed
        link.on_writable = self._writable.set

    async def ask(
        self, make: Callable[[int], InternalMessage], what: str, deadline: float
    ) -> Answer:
        """The answer by then (in the loop's time), KafkaError or ConnectionFailed."""
        number: int | None = None
        try:
            async with asyncio.timeout_at(deadline), self._slots:
                await self._can_write()
                number = self._send(make)
                answer = await self._pending[number]
        except TimeoutError:
            kind = NotSent if number is None else ConnectionFailed
            raise kind(self._address, f"no answer to {what} in time") from None
        finally:
            if number is not None:
                self._pending.pop(number, None)
        if answer.error_code != ErrorCode.NONE:
            raise KafkaError(_code(answer.error_code), answer.message or None)
        return answer

    async def _can_write(self) -> None:
        while self.link.is_open and not self.link.is_writable:
            self._writable.clear()
            await self._writable.wait()

    def _send(self, make: Callable[[int], InternalMessage]) -> int:
        number = self._next_id
        try:
            frame = encode_frame(make(number))
        except ProtocolError as error:
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, str(error)) from None
        if not self.link.is_open:
            raise NotSent(self._address, self._failure or "the connection was closed")
        self._next_id += 1
        self._pending[number] = asyncio.get_running_loop().create_future()
        self.link.write(frame)
        return number

    def _received(self, frame: bytes) -> None:
        answer = decode_message(frame)
        if not isinstance(answer, Answer):
            raise ProtocolError(f"{type(answer).__name__} as an answer")
        waiting = self._pending.get(answer.id)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def _closed(self, reason: str) -> None:
        self._failure = reason
        self._writable.set()
        for waiting in self._pending.values():
            if not waiting.done():
                waiting.set_exception(ConnectionFailed(self._address, reason))


def _code(number: int) -> ErrorCode:
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR  # of a newer node
