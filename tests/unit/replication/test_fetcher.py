"""The follower's side of a leader: what is named when, and again after a refusal."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from chronik.clock import SystemClock
from chronik.protocol.errors import ErrorCode
from chronik.protocol.replication import Follow, Rejected, Unfollow, decode, encode
from chronik.protocol.schema import Buffer
from chronik.replication.fetcher import Fetcher, Key

KEYS: list[Key] = [(bytes(16), index) for index in range(3)]


class Link:
    """A connection to a leader that refuses everything at first."""

    on_frame: Callable[[bytes], None]

    def __init__(self, refusals: int = 1) -> None:
        self.named: list[list[int]] = []  # partitions, by message
        self.is_refused = False
        self._refusals = refusals
        self._closed = asyncio.Event()

    def write_parts(self, parts: list[Buffer]) -> None:
        message, _ = decode(b"".join(map(bytes, parts))[4:])
        if not isinstance(message, Follow):
            assert isinstance(message, Unfollow)
            return
        self.named.append([each.partition for each in message.partitions])
        if len(self.named) <= self._refusals:
            asyncio.get_running_loop().call_soon(self._refuse, message)

    def _refuse(self, message: Follow) -> None:
        for each in message.partitions:
            refusal = Rejected(each.handle, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
            self.on_frame(b"".join(map(bytes, encode(refusal)))[4:])
        self.is_refused = True

    def abort(self, reason: str) -> None:
        self._closed.set()

    async def wait_closed(self) -> None:
        await self._closed.wait()


class Followed:
    """Partitions with empty logs."""

    def __init__(self) -> None:
        log = SimpleNamespace(leader_epochs=[], end_offset=0)
        self.partition: Any = SimpleNamespace(
            is_loaded=True, failure=None, in_sync=None, leader_epoch=1, log=log, stored_offset=0
        )

    def find_followed(self, key: Key) -> Any:
        return self.partition


def following(link: Link) -> Fetcher:
    followed: Any = Followed()

    async def connect(leader_id: int) -> Link:
        return link

    fetcher = Fetcher(1, connect, followed, SystemClock(), lambda: 7)
    fetcher.follow(KEYS)
    return fetcher


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def test_what_was_refused_is_named_again_in_one_message() -> None:
    async def refused_twice() -> None:
        link = Link(refusals=2)
        fetcher = following(link)
        await until(lambda: len(link.named) == 3)
        assert link.named == [[0, 1, 2]] * 3
        await fetcher.close()

    asyncio.run(refused_twice())


def test_what_nobody_wants_any_more_is_not_named_again() -> None:
    async def unwanted() -> None:
        link = Link()
        fetcher = following(link)
        await until(lambda: link.is_refused)
        fetcher.unfollow(KEYS[:2])
        await until(lambda: len(link.named) == 2)
        assert link.named[1] == [2]
        await fetcher.close()

    asyncio.run(unwanted())


def test_what_is_followed_anew_meanwhile_is_named_once() -> None:
    async def followed_anew() -> None:
        link = Link()
        fetcher = following(link)
        await until(lambda: link.is_refused)
        fetcher.follow(KEYS[:1])
        await until(lambda: len(link.named) == 3)
        assert link.named[1:] == [[0], [1, 2]]
        await fetcher.close()

    asyncio.run(followed_anew())
