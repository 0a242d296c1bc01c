"""Garbage, bombs, stuck and leaving clients: refused or closed, and nobody else notices."""

import random
import socket
import struct
import time
from contextlib import suppress
from typing import Any

import pytest

from chronik.config import limits
from chronik.protocol import apis, codecs
from chronik.protocol.batch import HEADER_SIZE, Batch, BatchHeader, assemble, read_header
from chronik.protocol.codec import encode
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.headers import RequestHeader, encode_request_header
from chronik.protocol.messages.metadata import MetadataRequest
from chronik.testing import Broker


def head(key: int, version: int, *, client_id: str | None = "x") -> bytes:
    header = RequestHeader(
        request_api_key=key, request_api_version=version, correlation_id=1, client_id=client_id
    )
    return encode_request_header(header, 1)


def raw(broker: Broker, data: bytes) -> socket.socket:
    host, _, port = broker.bootstrap.rpartition(":")
    link = socket.create_connection((host, int(port)), 5)
    link.sendall(data)
    return link


def closed(link: socket.socket) -> bool:
    try:
        return link.recv(1) == b""
    except ConnectionError:
        return True
    finally:
        link.close()


def errors(broker: Broker) -> dict[str, int]:
    assert broker.node is not None
    return broker.node.metrics.errors


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">i", -1),
        struct.pack(">i", -(2**31)),
        struct.pack(">i", 2**31 - 1) + b"\0\0",
        struct.pack(">i", 0) + b"\0\0",
        struct.pack(">i", 7) + b"1234567",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 60,
        struct.pack(">ih", limits.CONTROL_REQUEST_BYTES_MAX + 1, apis.METADATA.key),
    ],
    ids=["-1", "min", "max", "0", "7", "http", "tls", "large-metadata"],
)
def test_a_frame_of_nonsense_closes_the_connection(
    broker: Broker, wire: Any, say: Any, data: bytes
) -> None:
    assert closed(raw(broker, data))
    assert errors(broker) == {"protocol": 1}
    assert say.metadata(wire).brokers


@pytest.mark.parametrize(("key", "version"), [(999, 0), (-1, 0), (4, 0), (3, 99), (0, -1)])
def test_unknown_apis_and_versions_close_the_connection(
    broker: Broker, wire: Any, say: Any, key: int, version: int
) -> None:
    frame = head(key, version)
    assert closed(raw(broker, struct.pack(">i", len(frame)) + frame))
    assert errors(broker) == {"unsupported": 1}
    assert say.metadata(wire).brokers


def test_every_request_cut_short_closes_the_connection(broker: Broker, say: Any) -> None:
    request = say.produce_request("t", say.batch(b"x"))
    body = head(apis.PRODUCE.key, 3) + encode(request, 3, False)
    for size in range(8, len(body), 7):
        assert closed(raw(broker, struct.pack(">i", size) + body[:size])), size


def test_random_bytes_never_stop_the_broker(broker: Broker, wire: Any, say: Any) -> None:
    chance = random.Random(7)
    for _ in range(300):
        key = chance.choice(list(apis.APIS))
        version = chance.randint(0, apis.APIS[key].versions.last)
        frame = head(key, version) + chance.randbytes(chance.randint(0, 200))
        with raw(broker, struct.pack(">i", len(frame)) + frame) as link:
            link.shutdown(socket.SHUT_WR)
            link.settimeout(5)
            while link.recv(65536):
                pass
    assert errors(broker).get("internal", 0) == 0
    assert say.metadata(wire).brokers


def test_an_array_that_claims_too_much_costs_no_memory(broker: Broker, wire: Any) -> None:
    frame = head(apis.METADATA.key, 1) + struct.pack(">i", 2**31 - 1)
    assert closed(raw(broker, struct.pack(">i", len(frame)) + frame))
    assert wire.ask(apis.METADATA, 1, MetadataRequest(topics=())).brokers


def test_a_half_sent_request_takes_memory_for_what_came_only(broker: Broker) -> None:
    announced = 90 * 1024 * 1024
    links = [
        raw(broker, struct.pack(">ih", announced, apis.PRODUCE.key) + b"\0" * 1000)
        for _ in range(20)
    ]
    time.sleep(0.1)
    assert broker.node is not None
    memory = broker.node.listener.memory
    assert 0 < memory.bytes_used < 4 * 1024 * 1024
    for link in links:
        link.close()
    deadline = time.monotonic() + 5
    while memory.bytes_used and time.monotonic() < deadline:
        time.sleep(0.01)
    assert memory.bytes_used == 0


def test_a_request_beyond_the_memory_is_refused_and_others_go_on(connect: Any, say: Any) -> None:
    with Broker({"queued.max.request.bytes": 300_000}) as broker:
        wire = connect(broker)
        say.create(wire, "t", max_message_bytes="10000000")
        hungry = connect(broker)
        with pytest.raises(ConnectionError):
            say.produce(hungry, "t", say.batch(b"x" * 900_000))
        assert errors(broker) == {"memory": 1}
        assert say.produce(wire, "t", say.batch(b"x" * 200_000)).error_code == 0
        assert broker.node is not None
        assert broker.node.listener.memory.bytes_used == 0


def test_a_stuck_client_is_closed(monkeypatch: Any, connect: Any, say: Any) -> None:
    monkeypatch.setattr(limits, "PARTIAL_FRAME_TIMEOUT_S", 0.2)
    monkeypatch.setattr("chronik.server.listener.SWEEP_INTERVAL_S", 0.1)
    with Broker() as broker:
        assert closed(raw(broker, struct.pack(">ih", 1000, apis.PRODUCE.key) + b"\0" * 10))
        assert errors(broker) == {"slow": 1}


def test_a_trickling_request_is_closed(monkeypatch: Any) -> None:
    monkeypatch.setattr(limits, "FRAME_TIMEOUT_S", 0.5)
    monkeypatch.setattr("chronik.server.listener.SWEEP_INTERVAL_S", 0.1)
    with Broker() as broker:
        link = raw(broker, struct.pack(">ih", 1000, apis.PRODUCE.key))
        for _ in range(30):
            time.sleep(0.05)
            with suppress(ConnectionError):
                link.sendall(b"\0")
        assert closed(link)
        assert errors(broker) == {"slow": 1}


def test_an_idle_connection_is_closed(monkeypatch: Any, connect: Any) -> None:
    monkeypatch.setattr("chronik.server.listener.SWEEP_INTERVAL_S", 0.1)
    with Broker({"connections.max.idle.ms": 200}) as broker:
        assert connect(broker).is_closed()
        assert errors(broker) == {"idle": 1}


def test_too_many_connections_are_refused(connect: Any, say: Any) -> None:
    with Broker({"max.connections": 3}) as broker:
        wires = [connect(broker) for _ in range(3)]
        assert all(say.metadata(wire).brokers for wire in wires)
        assert connect(broker).is_closed()
        wires[0].close()
        time.sleep(0.1)
        assert say.metadata(connect(broker)).brokers


def test_a_thousand_connections(broker: Broker, connect: Any, say: Any) -> None:
    links = [raw(broker, b"") for _ in range(1000)]
    assert say.metadata(connect(broker)).brokers
    for link in links:
        link.close()


def test_a_client_that_does_not_read_holds_up_only_itself(
    broker: Broker, connect: Any, wire: Any, say: Any
) -> None:
    say.create(wire, "t")
    for _ in range(16):
        say.produce(wire, "t", say.batch(b"x" * 900_000))
    deaf = connect(broker)
    for _ in range(20):
        deaf.send(
            apis.FETCH,
            12,
            say.fetch_request("t", 0, partition_max_bytes=1 << 24, max_bytes=1 << 24),
        )
    began = time.monotonic()
    assert say.metadata(wire).brokers
    assert time.monotonic() - began < 2
    assert broker.node is not None
    queued = sum(each.bytes_queued for each in broker.node.listener.stalled)
    assert queued < 40 * 1024 * 1024
    answers = [deaf.receive(apis.FETCH, 12)[1] for _ in range(20)]
    assert all(len(each.responses[0].partitions[0].records) > 10_000_000 for each in answers)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_a_decompression_bomb_is_refused_where_we_look_inside(
    broker: Broker, wire: Any, say: Any, codec: str
) -> None:
    say.create(wire, "t", cleanup_policy="compact", max_message_bytes="100000000")
    payload = codecs.compress(codecs.CODECS[codec], bytes(200 * 1024 * 1024))
    header = read_header(say.batch(b"x", codec=codecs.CODECS[codec]))
    bomb = assemble(header, payload)
    answer = say.produce(wire, "t", bomb)
    assert answer.error_code in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.CORRUPT_MESSAGE)
    assert say.list_offset(wire, "t", -1).offset == 0


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_garbage_in_a_batch_with_a_right_crc(wire: Any, say: Any, policy: str) -> None:
    """Where records are looked at they are refused; where not, they are stored as they came."""
    say.create(wire, "t", cleanup_policy=policy)
    good = say.batch(b"x", b"y")
    garbage = assemble(read_header(good), b"\xff" * 40)
    code = say.produce(wire, "t", garbage).error_code
    if policy == "compact":
        assert code == ErrorCode.CORRUPT_MESSAGE
    claims = assemble(read_header(good)._replace(record_count=900, last_offset_delta=899), b"12")
    assert say.produce(wire, "t", claims).error_code in (
        ErrorCode.INVALID_RECORD,
        ErrorCode.CORRUPT_MESSAGE,
    )
    assert say.metadata(wire).brokers


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_garbage_is_told_to_an_old_client(
    broker: Broker, wire: Any, say: Any, version: int
) -> None:
    """A message set needs the records, which a producer's right CRC does not vouch for."""
    say.create(wire, "t")
    garbage = assemble(BatchHeader(0, 0, 0, 2, 0, 0, 2, 1000, 2000, -1, -1, -1, 3), b"\xff" * 60)
    assert say.produce(wire, "t", garbage, version=3, acks=1).error_code == 0
    assert say.fetch(wire, "t", 0, version=version).error_code == ErrorCode.CORRUPT_MESSAGE
    assert say.fetch(wire, "t", 0, version=11).error_code == 0
    assert not errors(broker)


@pytest.mark.parametrize("codec", [codecs.NONE, codecs.GZIP])
def test_what_comes_before_garbage_can_be_read(wire: Any, say: Any, codec: int) -> None:
    say.create(wire, "t")
    say.produce(wire, "t", say.batch(b"good", codec=codec))
    header = read_header(say.batch(b"x", codec=codec))
    assert say.produce(wire, "t", assemble(header, b"\xff" * 60)).error_code == 0
    answer = say.fetch(wire, "t", 0, version=2)
    assert (answer.error_code, answer.high_watermark) == (0, 2)
    assert len(answer.records) > 0
    assert say.fetch(wire, "t", 1, version=2).error_code == ErrorCode.CORRUPT_MESSAGE


def test_a_batch_with_every_byte_flipped_is_refused_or_harmless(wire: Any, say: Any) -> None:
    say.create(wire, "t")
    good = say.batch(b"hello")
    stored = 0
    for position in range(len(good)):
        data = bytearray(good)
        data[position] ^= 0xFF
        answer = say.produce(wire, "t", bytes(data))
        # Base offset and leader epoch are ours to set: what they held does not matter.
        harmless = position < 8 or 12 <= position < 16
        assert (answer.error_code == 0) == harmless, position
        stored += harmless
    assert say.list_offset(wire, "t", -1).offset == stored
    view = memoryview(good)
    assert Batch(read_header(good), view).payload.nbytes == len(good) - HEADER_SIZE


def test_a_reset_in_the_middle_of_a_request(broker: Broker, wire: Any, say: Any) -> None:
    say.create(wire, "t")
    for _ in range(50):
        link = raw(broker, struct.pack(">ih", 100_000, apis.PRODUCE.key) + b"\0" * 50_000)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        link.close()
    assert say.metadata(wire).brokers
    assert say.produce(wire, "t", say.batch(b"x")).error_code == 0
