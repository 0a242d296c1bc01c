"""The internal port over real sockets: who gets in, and which Raft messages arrive."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from internal_world import SECRET, Node, append, heartbeat, node, pair, runs_on, send

from chronik.client import peer
from chronik.client.internal_link import FrameLink
from chronik.client.peer import PeerRefused, SendQueue
from chronik.metadata.raft_wire import encode_raft
from chronik.protocol.internal import (
    FRAME_HEADER,
    Call,
    Identity,
    Raft,
    decode_message,
    encode_frame,
)
from chronik.protocol.internal_handshake import ConnectingHandshake
from chronik.server import internal_listener


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Callable[[], Awaitable[None]]], None]:
    """Runs a test on a loop of its own, and looks for what it left behind."""
    return runs_on(request.param)


# Who gets in.


@pytest.mark.parametrize("secret", [SECRET, b""])
def test_a_node_with_the_secret_is_let_in(run: Any, secret: bytes) -> None:
    async def test() -> None:
        async with node(secret=secret) as there:
            talker = there.peer(secret=secret)
            assert await talker.call("echo", b"x", 5.0) == b"1:x"
            assert talker.reached is not None
            assert talker.reached.incarnation_id == "process-2"
            await talker.close()

    run(test)


@pytest.mark.parametrize(
    ("there_options", "peer_options", "reason"),
    [
        ({}, {"secret": b"another"}, "secret"),
        ({}, {"secret": b""}, "secret"),
        ({"secret": b""}, {}, "secret"),
        ({"cluster_id": "other"}, {}, "node 1 is of cluster c, node 2 of cluster other"),
        ({}, {"sender": 2, "node_id": 2, "identity": lambda: Identity("c", 2, "", "x")}, "id 2"),
        ({}, {"node_id": 3}, "this is node 2, and node 3 was expected here"),
    ],
)
def test_who_does_not_belong_is_refused_in_one_line(
    run: Any, there_options: dict[str, Any], peer_options: dict[str, Any], reason: str
) -> None:
    async def test() -> None:
        async with node(**there_options) as there:
            talker = there.peer(**peer_options)
            talker.start()
            await there.until(lambda: there.events)
            for _ in range(3):  # Told once, however often it is tried.
                with pytest.raises(PeerRefused, match=reason):
                    await talker.call("echo", b"", 5.0)
            assert [kind for kind, _ in there.events] == ["refused"]
            assert reason in there.events[0][1]
            assert "\n" not in there.events[0][1]
            await talker.close()
            assert there.heard == []

    run(test)


def test_the_broker_says_why_it_does_not_admit(run: Any) -> None:
    async def test() -> None:
        async with node() as there:
            there.refusal = "node 1 has another data directory"
            talker = there.peer()
            with pytest.raises(PeerRefused, match="another data directory"):
                await talker.call("echo", b"", 5.0)
            there.refusal = None
            assert await talker.call("echo", b"", 5.0) == b"1:"
            await talker.close()

    run(test)


def test_without_a_secret_only_this_machine_is_talked_to(run: Any, monkeypatch: Any) -> None:
    """Loopback is all that a test has, so that both ends are told that it is another machine."""

    async def test() -> None:
        monkeypatch.setattr(FrameLink, "peer_host", "10.1.2.3")
        with socket.socket() as silent:  # It would never refuse, so that the peer must.
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            there = Node()
            there.port = silent.getsockname()[1]
            talker = there.peer(secret=b"")
            with pytest.raises(PeerRefused, match="without a cluster secret only loopback"):
                await talker.call("echo", b"", 5.0)
            await talker.close()
        async with node(secret=b"") as there:  # And here the peer does not.
            reader, writer = await asyncio.open_connection("127.0.0.1", there.port)
            opening = ConnectingHandshake(there.identity, "raft", b"", b"1" * 32).opening
            writer.write(opening)
            assert b"only loopback" in await reader.read()
            writer.close()
            await writer.wait_closed()

    run(test)


def test_a_recorded_conversation_cannot_be_replayed(run: Any) -> None:
    async def test() -> None:
        async with node() as there:
            recorded: list[bytes] = []
            here = Identity("c", 1, "d", "i")
            for attempt in range(2):
                reader, writer = await asyncio.open_connection("127.0.0.1", there.port)
                shake = ConnectingHandshake(here, "raft", SECRET, b"1" * 32)
                writer.write(shake.opening)
                challenge = await frame(reader)
                if not recorded:
                    recorded.append(shake.receive(challenge))
                writer.write(recorded[0])
                answer = decode_message(await frame(reader))
                assert type(answer).__name__ == ("Proof" if attempt == 0 else "Refused")
                writer.close()
                await writer.wait_closed()

    run(test)


async def frame(reader: asyncio.StreamReader) -> bytes:
    (size,) = FRAME_HEADER.unpack(await reader.readexactly(FRAME_HEADER.size))
    return await reader.readexactly(size)


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        FRAME_HEADER.pack(3) + b"abc",
        FRAME_HEADER.pack(0),
        FRAME_HEADER.pack(5000),  # too large for a stranger
        encode_frame(Call(1, "echo", b"")),
        encode_frame(Raft("TimeoutNow", b"")),
    ],
)
def test_garbage_is_cut_off_and_others_go_on(run: Any, garbage: bytes, monkeypatch: Any) -> None:
    monkeypatch.setattr(internal_listener, "HANDSHAKE_TIMEOUT_S", 60.0)  # not for being slow

    async def test() -> None:
        async with pair() as (there, talker):
            reader, writer = await asyncio.open_connection("127.0.0.1", there.port)
            writer.write(garbage)
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
            writer.close()
            send(talker, heartbeat(1))
            await there.until(lambda: there.heard)

    run(test)


def test_a_stranger_that_is_slow_is_cut_off(run: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(internal_listener, "HANDSHAKE_TIMEOUT_S", 0.05)

    async def test() -> None:
        async with node() as there:
            reader, writer = await asyncio.open_connection("127.0.0.1", there.port)
            writer.write(FRAME_HEADER.pack(100) + b"x")
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
            writer.close()

    run(test)


def test_strangers_are_bounded_and_do_not_keep_nodes_out(run: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(internal_listener, "STRANGERS_MAX", 4)

    async def test() -> None:
        async with node() as there:
            strangers = [await asyncio.open_connection("127.0.0.1", there.port) for _ in range(10)]
            talker = there.peer()
            assert await talker.call("echo", b"", 5.0) == b"1:"
            assert b"too many" in await strangers[0][0].read()
            assert len(there.listener._strangers) <= 4
            await talker.close()
            for _, writer in strangers:
                writer.close()

    run(test)


def test_a_message_in_the_name_of_another_node_is_refused(run: Any) -> None:
    async def test() -> None:
        async with pair() as (there, talker):
            send(talker, heartbeat(1, sender=3))
            await there.until(lambda: there.events)
            assert there.events == [("lost", "process-2")]
            assert there.heard == []

    run(test)


# Raft messages.


def test_messages_arrive_in_order(run: Any) -> None:
    async def test() -> None:
        async with pair() as (there, talker):
            said = [append(index, size=index * 10) for index in range(1, 400)]
            for message in said:
                send(talker, message)
            await there.until(lambda: len(there.heard) == len(said))
            assert there.heard == said

    run(test)


def test_a_peer_comes_back_when_the_listener_does(run: Any) -> None:
    async def test() -> None:
        async with pair() as (there, talker):
            await there.listener.close()
            await there.until(lambda: there.events)
            assert there.events == [("lost", "process-2")]
            assert not talker.is_connected
            await there.restart()
            await there.until(lambda: len(there.connected) == 2)
            send(talker, heartbeat(7))
            await there.until(lambda: there.heard)
            assert there.heard == [heartbeat(7)]

    run(test)


def test_attempts_back_off_and_a_reason_to_hope_ends_the_wait(run: Any, monkeypatch: Any) -> None:
    waits: list[float] = []

    async def test() -> None:
        there = Node()
        there.port = unused_port()
        talker = there.peer(jitter=lambda: 1.0)
        enough = asyncio.Event()

        async def no_wait(delay_s: float) -> None:
            waits.append(delay_s)
            if len(waits) == 7:
                monkeypatch.undo()
                enough.set()

        monkeypatch.setattr(talker, "_pause", no_wait)
        talker.start()
        await enough.wait()
        assert waits == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
        await there.start()
        talker.wake()
        await there.until(lambda: there.connected)
        assert not [event for event in there.events if event[0] == "lost"]
        await talker.close()
        await there.listener.close()

    run(test)


def unused_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def test_votes_wait_for_a_peer_that_is_not_there_yet(run: Any) -> None:
    async def test() -> None:
        async with node() as there:
            talker = there.peer()
            send(talker, heartbeat(1))
            send(talker, append(1))
            send(talker, heartbeat(2))
            talker.start()
            await there.until(lambda: len(there.heard) == 2)
            assert there.heard == [append(1), heartbeat(2)]
            await talker.close()

    run(test)


def test_the_queue_of_a_peer_that_is_away_is_bounded_and_keeps_the_newest() -> None:
    queue = SendQueue()
    for index in range(1000):
        queue.put(encode_raft(append(index)), supersedes=False, is_away=True)
        queue.put(encode_raft(heartbeat(index)), supersedes=True, is_away=True)
    queue.put(encode_raft(append(1001, size=200_000)), supersedes=False, is_away=True)
    queue.put(encode_raft(append(1002)), supersedes=False, is_away=True)
    assert len(queue) <= peer.AWAY_MESSAGES_MAX
    assert queue.bytes_queued <= peer.AWAY_BYTES_MAX
    frames = queue.take()
    assert frames.endswith(encode_frame(encode_raft(append(1002))))
    assert frames.count(encode_frame(encode_raft(heartbeat(999)))) <= 1
    assert encode_frame(encode_raft(heartbeat(998))) not in frames
    assert queue.bytes_queued == len(queue) == 0


def test_the_queue_of_a_slow_peer_drops_appends_and_keeps_heartbeats() -> None:
    queue = SendQueue()
    first = encode_raft(append(1, size=1024 * 1024))
    for _ in range(100):
        queue.put(first, supersedes=False, is_away=False)
    assert queue.bytes_queued <= peer.QUEUE_BYTES_MAX
    assert queue.dropped_count == 100 - len(queue) > 0
    queue.put(encode_raft(heartbeat(5)), supersedes=True, is_away=False)
    taken = [queue.take() for _ in range(len(queue))]
    assert taken[0] == encode_frame(first)
    assert taken[-1] == encode_frame(encode_raft(heartbeat(5)))
    for index in range(2 * peer.QUEUE_MESSAGES_MAX):
        queue.put(encode_raft(append(index)), supersedes=False, is_away=False)
    assert len(queue) == peer.QUEUE_MESSAGES_MAX
    for round in range(10):
        queue.put(encode_raft(heartbeat(round)), supersedes=True, is_away=False)
    assert len(queue) == peer.QUEUE_MESSAGES_MAX + 1


def test_a_peer_that_reads_nothing_costs_bounded_memory(run: Any) -> None:
    async def test() -> None:
        async with pair() as (there, talker):
            for inbound in there.listener._admitted:
                inbound.link.hold()
            for index in range(100):
                send(talker, append(index, size=1024 * 1024))
                send(talker, heartbeat(index))
                await asyncio.sleep(0)
            assert talker.queue.dropped_count > 0
            assert talker.queue.bytes_queued <= peer.QUEUE_BYTES_MAX + 1000
            for inbound in there.listener._admitted:
                inbound.link.release()
            await there.until(lambda: there.heard and there.heard[-1] == heartbeat(99))

    run(test)


def test_a_newer_connection_of_a_process_takes_the_place_of_the_older(run: Any) -> None:
    async def test() -> None:
        async with pair() as (there, talker):
            other = there.peer(on_lost=None)
            other.start()
            await there.until(lambda: there.events)
            assert there.events[0] == ("lost", "process-2")
            assert there.listener.connection_count == 1
            await talker.close()
            await other.close()

    run(test)
