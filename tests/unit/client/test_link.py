"""One connection: framing, pipelining, and that nobody waits for ever when it breaks."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from chronik.client.link import Address, ConnectionFailed, Link, parse_bootstrap
from chronik.protocol.apis import API_VERSIONS, APIS, METADATA, PRODUCE
from chronik.protocol.codec import encode
from chronik.protocol.connection import decode_request
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from chronik.protocol.messages.metadata import MetadataRequest, MetadataResponse
from chronik.protocol.schema import Versions

ADDRESS = Address("fake", 9092)
ASK = MetadataRequest(topics=None)


class Wire(asyncio.WriteTransport):
    """A transport in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[bytes] = []
        self.closed = False

    def write(self, data: Any) -> None:
        self.frames.append(bytes(data[4:]))

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.closed = True

    close = abort


def link_and_wire(inflight_max: int = 10) -> tuple[Link, Wire]:
    link, wire = Link(ADDRESS, "test", inflight_max), Wire()
    link._versions = {api.key: api.versions for api in APIS.values()}
    link.connection_made(wire)
    return link, wire


def framed(correlation_id: int, cluster_id: str) -> bytes:
    response = MetadataResponse(brokers=[], topics=[], cluster_id=cluster_id)
    body = correlation_id.to_bytes(4) + b"\0" + encode(response, METADATA.versions.last, True)
    return len(body).to_bytes(4) + body


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def test_answers_find_who_asked_in_any_order_and_any_pieces() -> None:
    async def test() -> None:
        link, wire = link_and_wire()
        asked = [asyncio.ensure_future(link.send(ASK, METADATA)) for _ in range(3)]
        await turns()
        ids = [decode_request(frame).correlation_id for frame in wire.frames]
        answers = b"".join(framed(number, f"c{number}") for number in reversed(ids))
        for byte in answers[:30]:
            link.data_received(bytes((byte,)))
        link.data_received(answers[30:])
        assert [(await answer).cluster_id for answer in asked] == [f"c{n}" for n in ids]

    run(test)


def test_requests_beyond_the_bound_wait_for_an_answer() -> None:
    async def test() -> None:
        link, wire = link_and_wire(inflight_max=1)
        first = asyncio.ensure_future(link.send(ASK, METADATA))
        second = asyncio.ensure_future(link.send(ASK, METADATA))
        await turns()
        assert len(wire.frames) == 1
        link.data_received(framed(0, "a"))
        await first
        await turns()
        assert len(wire.frames) == 2
        link.data_received(framed(1, "b"))
        assert (await second).cluster_id == "b"

    run(test)


def test_a_full_transport_holds_requests_back() -> None:
    async def test() -> None:
        link, wire = link_and_wire()
        link.pause_writing()
        asked = asyncio.ensure_future(link.send(ASK, METADATA))
        await turns()
        assert wire.frames == []
        link.resume_writing()
        await turns()
        link.data_received(framed(0, "a"))
        assert (await asked).cluster_id == "a"

    run(test)


def test_a_lost_connection_fails_all_who_wait_and_all_who_come() -> None:
    async def test() -> None:
        link, _ = link_and_wire(inflight_max=2)
        asked = [asyncio.ensure_future(link.send(ASK, METADATA)) for _ in range(4)]
        await turns()
        link.connection_lost(ConnectionResetError(104, "reset"))
        for answer in asked:
            with pytest.raises(ConnectionFailed, match="fake:9092: connection reset by peer"):
                await answer
        with pytest.raises(ConnectionFailed):
            await link.send(ASK, METADATA)
        assert not link.is_open

    run(test)


def test_a_request_without_answer_ends_the_link() -> None:
    async def test() -> None:
        link, wire = link_and_wire()
        other = asyncio.ensure_future(link.send(ASK, METADATA))
        with pytest.raises(ConnectionFailed, match=r"no answer to Metadata within 0.01 s"):
            await link.send(ASK, METADATA, timeout_s=0.01)
        with pytest.raises(ConnectionFailed):
            await other
        assert wire.closed

    run(test)


def test_a_cancelled_caller_keeps_its_slot_until_the_answer_comes() -> None:
    async def test() -> None:
        link, wire = link_and_wire(inflight_max=1)
        first = asyncio.ensure_future(link.send(ASK, METADATA))
        await turns()
        first.cancel()
        second = asyncio.ensure_future(link.send(ASK, METADATA))
        await turns()
        assert len(wire.frames) == 1
        link.data_received(framed(0, "a"))
        await turns()
        link.data_received(framed(1, "b"))
        assert (await second).cluster_id == "b"

    run(test)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "a frame of 1213486160 bytes"),
        (b"\xff\xff\xff\xff", "a frame of -1 bytes"),
        (framed(7, "a"), "request 7 was not asked"),
        (framed(0, "a")[:4] + bytes(4) + b"\xff" * 50, "a varint is longer"),
    ],
)
def test_what_is_no_kafka_answer_ends_the_link(data: bytes, reason: str) -> None:
    async def test() -> None:
        link, wire = link_and_wire()
        asked = asyncio.ensure_future(link.send(ASK, METADATA))
        await turns()
        link.data_received(data)
        with pytest.raises(ConnectionFailed, match=f"no answer of a Kafka broker: .*{reason}"):
            await asked
        assert wire.closed

    run(test)


def test_versions_are_the_highest_that_both_know() -> None:
    async def test() -> None:
        link, _ = link_and_wire()
        link._versions = {METADATA.key: Versions(1, 9), PRODUCE.key: Versions(90, 99)}
        assert link.version(METADATA) == 9
        assert link.version(METADATA, 4) == 4
        for api, version_max in ((METADATA, 0), (PRODUCE, None), (API_VERSIONS, None)):
            with pytest.raises(KafkaError) as refused:
                link.version(api, version_max)
            assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION

    run(test)


def test_connect_negotiates(fake_broker: Any) -> None:
    async def test() -> None:
        async with fake_broker() as broker:
            link = await Link.connect(broker.address)
            assert link.version(METADATA) == 9
            response = await link.send(ASK, METADATA)
            assert [node.node_id for node in response.brokers] == [1]
            broker.hang_up()
            with pytest.raises(ConnectionFailed):
                await link.send(ASK, METADATA)

    run(test)


def test_connect_to_a_broker_that_knows_only_the_first_api_versions() -> None:
    seen = []
    gone: asyncio.Event

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
            version, correlation_id = int.from_bytes(frame[2:4]), frame[4:8]
            seen.append(version)
            table = [ApiVersion(api_key=3, min_version=0, max_version=7)] if version == 0 else []
            response = ApiVersionsResponse(error_code=35 if version else 0, api_keys=table)
            body = correlation_id + encode(response, 0, False)
            writer.write(len(body).to_bytes(4) + body)
        await reader.read()
        writer.close()
        gone.set()

    async def test() -> None:
        nonlocal gone
        gone = asyncio.Event()
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            link = await Link.connect(Address(*server.sockets[0].getsockname()))
            assert link.version(METADATA) == 7
            link.close()
            await gone.wait()
        assert seen == [4, 0]

    run(test)


def test_connect_says_why_not() -> None:
    async def test() -> None:
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        address = Address(*server.sockets[0].getsockname())
        server.close()
        await server.wait_closed()
        with pytest.raises(ConnectionFailed, match="connection refused"):
            await Link.connect(address)

    run(test)


def test_bootstrap_addresses() -> None:
    assert parse_bootstrap("a:1, [::1]:2") == [Address("a", 1), Address("::1", 2)]
    assert str(Address("::1", 2)) == "[::1]:2"
    for wrong in ("a", "a:", ":1", "a:x", "a:1,"):
        with pytest.raises(ValueError):
            parse_bootstrap(wrong)
