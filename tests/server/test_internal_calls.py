"""The internal port over real sockets: calls, snapshots, bounded turns, and nothing left behind."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from internal_world import INSTALL, Node, append, heartbeat, node, pair, runs_on, send

from chronik.client.internal_link import TURN_BYTES_MAX, TURN_MESSAGES_MAX, FrameLink
from chronik.client.peer import ConnectionFailed, NotSent
from chronik.metadata.raft_wire import encode_raft
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.internal import FRAME_HEADER, encode_frame
from chronik.raft.messages import InstallSnapshot
from chronik.raft.types import Snapshot
from chronik.server import internal_listener


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Callable[[], Awaitable[None]]], None]:
    """Runs a test on a loop of its own, and looks for what it left behind."""
    return runs_on(request.param)


# Calls.


def test_calls_are_answered_whatever_their_order(run: Any) -> None:
    async def test() -> None:
        async with pair() as (there, talker):
            waiting = [
                asyncio.ensure_future(talker.call("wait", str(n).encode(), 5.0)) for n in range(20)
            ]
            refused = asyncio.ensure_future(talker.call("wait", b"refuse", 5.0))
            await there.until(lambda: there.calls_under_way == 21)
            assert await talker.call("echo", b"x", 5.0) == b"1:x"
            there.gate.set()
            assert await asyncio.gather(*waiting) == [str(n).encode() for n in range(20)]
            with pytest.raises(KafkaError) as caught:
                await refused
            assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT

    run(test)


def test_errors_come_by_code(run: Any, caplog: Any) -> None:
    async def test() -> None:
        async with pair() as (_, talker):
            with pytest.raises(KafkaError) as caught:
                await talker.call("refuse", b"", 5.0)
            assert (caught.value.code, caught.value.message) == (ErrorCode.NOT_CONTROLLER, "not me")
            with pytest.raises(KafkaError) as caught:
                await talker.call("no such method", b"", 5.0)
            assert caught.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
            assert "AssertionError" in caplog.text  # in our own log, not in the answer
            for method, body in (("large", b"67108864"), ("echo", bytes(64 * 1024 * 1024))):
                with pytest.raises(KafkaError) as caught:
                    await talker.call(method, body, 5.0)
                assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
            assert await talker.call("echo", b"", 5.0) == b"1:"

    run(test)


def test_a_call_that_times_out_leaves_the_connection_usable(run: Any) -> None:
    async def test() -> None:
        async with pair() as (there, talker):
            with pytest.raises(ConnectionFailed, match="no answer to wait") as caught:
                await talker.call("wait", b"", 0.05)
            assert not isinstance(caught.value, NotSent)
            there.gate.set()
            assert await talker.call("echo", b"", 5.0) == b"1:"
            assert len(there.connected) == 2  # one for Raft, one for calls

    run(test)


def test_a_call_says_whether_it_may_have_reached_the_peer(run: Any) -> None:
    async def test() -> None:
        async with pair() as (there, talker):
            sent = asyncio.ensure_future(talker.call("wait", b"", 5.0))
            await there.until(lambda: there.calls_under_way == 1)
            await there.listener.close()
            with pytest.raises(ConnectionFailed) as caught:
                await sent
            assert not isinstance(caught.value, NotSent)
            assert there.calls_under_way == 0  # Nobody waits for it, so it is cancelled.
            results = await asyncio.gather(
                *(talker.call("echo", b"", 5.0) for _ in range(10)), return_exceptions=True
            )
            assert all(isinstance(result, NotSent) for result in results)

    run(test)


def test_a_call_ends_with_the_connection_of_who_asked(run: Any) -> None:
    async def test() -> None:
        async with pair() as (there, talker):
            call = asyncio.ensure_future(talker.call("wait", b"", 5.0))
            await there.until(lambda: there.calls_under_way == 1)
            await talker.close()
            with pytest.raises(ConnectionFailed):
                await call
            await there.until(lambda: there.calls_under_way == 0)

    run(test)


def test_calls_under_way_are_bounded(run: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(internal_listener, "CALLS_MAX", 5)

    async def test() -> None:
        async with pair() as (there, talker):
            waiting = [asyncio.ensure_future(talker.call("wait", b"", 5.0)) for _ in range(30)]
            await there.until(lambda: there.calls_under_way == 5)
            send(talker, heartbeat(1))
            await there.until(lambda: there.heard)
            assert there.calls_under_way == 5
            there.gate.set()
            assert len(await asyncio.gather(*waiting)) == 30

    run(test)


def test_a_large_answer_does_not_delay_raft_messages(run: Any) -> None:
    async def test() -> None:
        async with pair() as (there, talker):
            large = asyncio.ensure_future(talker.call("large", str(10 << 20).encode(), 5.0))
            await there.until(lambda: len(there.connected) == 2)
            for round in range(20):
                send(talker, heartbeat(round))
                await there.until(lambda round=round: heartbeat(round) in there.heard)
                if round == 0:
                    # It is on its way now; nobody reads it, and heartbeats still come.
                    assert talker._calls is not None
                    talker._calls.link.hold()
            assert not large.done()
            assert talker._calls is not None
            talker._calls.link.release()
            assert await large == bytes(10 << 20)

    run(test)


# Snapshots.


@pytest.mark.parametrize("size", [0, 1, 1 << 20, (5 << 20) + 3])
def test_a_snapshot_arrives_whole(run: Any, size: int) -> None:
    async def test() -> None:
        async with pair() as (there, talker):
            data = bytes(index % 251 for index in range(size))
            talker.send_snapshot(encode_raft(INSTALL), data)
            await there.until(lambda: there.snapshots)
            assert there.snapshots == [(INSTALL, data)]
            assert there.events == []

    run(test)


def test_a_newer_snapshot_takes_the_place_of_one_under_way(run: Any) -> None:
    async def test() -> None:
        async with pair() as (there, talker):
            await talker.call("echo", b"", 5.0)
            talker.send_snapshot(encode_raft(INSTALL), bytes(20 << 20))
            await asyncio.sleep(0)
            await talker.call("echo", b"", 5.0)  # It comes behind the first part.
            newer = InstallSnapshot(term=1, sender=1, recipient=2, snapshot=Snapshot(index=10))
            talker.send_snapshot(encode_raft(newer), b"newer")
            await there.until(lambda: there.snapshots)
            assert await talker.call("echo", b"", 5.0) == b"1:"
            assert there.snapshots == [(newer, b"newer")]
            assert there.events == []
            assert len(there.connected) == 2
            assert not [task for task in asyncio.all_tasks() if "snapshot" in task.get_name()]

    run(test)


def test_a_snapshot_that_is_not_delivered_is_reported(run: Any) -> None:
    async def test() -> None:
        async with pair() as (there, talker):
            talker.send_snapshot(encode_raft(INSTALL), bytes(50 << 20))
            await there.until(lambda: len(there.connected) == 2)
            await there.listener.close()
            await there.until(lambda: len(there.events) == 2)
            assert set(there.events) == {("lost", "process-2"), ("snapshot failed", 2)}
            talker.send_snapshot(encode_raft(INSTALL), b"")  # Nobody is there at all.
            await there.until(lambda: len(there.events) == 3)
            assert there.events[2] == ("snapshot failed", 2)

    run(test)


# Turns and ends.


class Transport:
    """Counts when reading is paused."""

    def __init__(self) -> None:
        self.reading = True

    def set_write_buffer_limits(self, high: int) -> None: ...

    def get_extra_info(self, name: str) -> None: ...

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


@pytest.mark.parametrize("size", [10, 1000, 10_000, 200_000])
def test_the_work_of_one_turn_is_bounded(size: int) -> None:
    async def test() -> None:
        link, transport = FrameLink(1 << 20), Transport()
        handled: list[bytes] = []
        link.on_frame = handled.append
        link.connection_made(transport)  # type: ignore[arg-type]
        body = bytes(size)
        link.data_received((FRAME_HEADER.pack(size) + body) * 1000)
        before = 0
        turns = 1
        while len(handled) < 1000:
            fresh = handled[before:]
            assert 0 < len(fresh) <= TURN_MESSAGES_MAX
            assert sum(map(len, fresh)) < TURN_BYTES_MAX + size
            assert not transport.reading
            before = len(handled)
            await asyncio.sleep(0)
            turns += 1
        await asyncio.sleep(0)
        assert turns >= 10
        assert transport.reading

    asyncio.run(test())


def test_a_flood_from_one_peer_does_not_keep_another_waiting(run: Any) -> None:
    async def test() -> None:
        async with pair() as (there, _):
            other = there.peer(sender=3)
            other.start()
            await there.until(lambda: len(there.connected) == 2)
            for inbound in there.listener._admitted:
                if inbound.peer.node_id == 1:
                    inbound.link.hold()
                    inbound.link.data_received(encode_frame(encode_raft(append(1))) * 5000)
                    inbound.link.release()
            send(other, heartbeat(1, sender=3))
            await there.until(lambda: len(there.heard) == 5001)
            # It came within some turns of a hundred messages each, and not after them all.
            assert there.heard.index(heartbeat(1, sender=3)) <= 1500
            await other.close()

    run(test)


def test_closing_in_the_middle_leaves_nothing(run: Any) -> None:
    async def test() -> None:
        async with node() as there:
            for turns in range(12):
                talker = there.peer()
                talker.start()
                send(talker, append(1, size=1 << 20))
                talker.send_snapshot(encode_raft(INSTALL), bytes(5 << 20))
                call = asyncio.ensure_future(talker.call("wait", b"", 5.0))
                for _ in range(turns):
                    await asyncio.sleep(0)
                await talker.close()
                with pytest.raises(ConnectionFailed):
                    await call
                with pytest.raises(NotSent):
                    await talker.call("echo", b"", 1.0)
                send(talker, heartbeat(1))
                assert len(talker.queue) == 0

    run(test)


def test_a_peer_that_never_was_there_is_closed(run: Any) -> None:
    async def test() -> None:
        there = Node()
        with socket.socket() as silent:  # It accepts in the kernel, and never says a word.
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            there.port = silent.getsockname()[1]
            talker = there.peer()
            talker.start()
            with pytest.raises(NotSent):
                await talker.call("echo", b"", 0.05)
            await talker.close()
        assert there.events == []

    run(test)


def test_a_node_that_is_no_longer_welcome_is_cut_off(run: Any) -> None:
    async def test() -> None:
        async with pair() as (there, _):
            there.refusal = "node 1 was removed"
            there.listener.disconnect(1, "removed")
            await there.until(lambda: len(there.events) == 2)
            assert there.events[0] == ("lost", "process-2")
            assert "node 1 was removed" in there.events[1][1]

    run(test)
