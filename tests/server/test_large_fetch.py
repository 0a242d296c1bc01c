"""Large fetches, which the kernel sends from its page cache: every byte, in order, to any peer.

The broker of a test runs on the standard loop, a node's process on uvloop: both are tried.
"""

import os
import random
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from node_process import Node
from wire import Wire

from chronik.protocol import apis
from chronik.protocol.batch import split
from chronik.storage.file_range import FileRange
from chronik.testing import Broker

BATCHES, BATCH_BYTES = 150, 40_000
NOW_MS = int(time.time() * 1000)  # Retention would take older ones from a slow test.


@pytest.fixture(params=["standard loop", "uvloop"])
def bootstrap(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "uvloop":
        with Node(tmp_path / "data", "--durability", "replicated") as node:
            yield node.bootstrap
    else:
        with Broker(data_dir=str(tmp_path / "data"), durability="replicated") as broker:
            yield broker.bootstrap


def filled(wire: Wire, say: Any, name: str = "t") -> list[bytes]:
    """Produces some megabytes; the values, one a batch."""
    chance = random.Random(5)
    say.create(wire, name)
    values = [chance.randbytes(BATCH_BYTES) for _ in range(BATCHES)]
    for value in values:
        assert say.produce(wire, name, say.batch(value, timestamp=NOW_MS)).error_code == 0
    return values


def offsets_and_values(data: Any) -> Iterator[tuple[int, bytes]]:
    for batch in split(data):
        assert batch.header.size == len(batch.data), "whole batches"
        yield batch.header.base_offset, bytes(batch.data)


def read_all(wire: Wire, say: Any, **options: Any) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    while len(found) < BATCHES:
        answer = say.fetch(wire, "t", len(found), **options)
        assert answer.error_code == 0
        got = dict(offsets_and_values(answer.records))
        assert got
        found |= got
    return found


@pytest.mark.parametrize("version", [10, 12])
def test_everything_arrives(bootstrap: str, say: Any, version: int) -> None:
    wire = Wire(bootstrap)
    values = filled(wire, say)
    found = read_all(wire, say, version=version)
    assert sorted(found) == list(range(BATCHES))
    assert all(value in found[offset] for offset, value in enumerate(values))
    assert read_all(wire, say, version=9) == found, "as it is read without the kernel's help"
    assert read_all(wire, say, isolation_level=1) == found
    wire.close()


def test_the_kernel_sends_it(tmp_path: Path, say: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    send = FileRange.send
    monkeypatch.setattr(
        FileRange, "send", lambda part, to: (sent.append(len(part)), send(part, to))[1]
    )
    with Broker(data_dir=str(tmp_path / "data"), durability="replicated") as broker:
        wire = Wire(broker.bootstrap)
        filled(wire, say)
        found = read_all(wire, say)
        assert len(found) == BATCHES
        assert sum(sent) > 0.9 * BATCHES * BATCH_BYTES
        wire.close()


def test_a_slow_peer_with_many_requests_gets_all_answers_in_order(bootstrap: str, say: Any) -> None:
    wire = Wire(bootstrap)
    values = filled(wire, say)
    wire.close()
    slow = Wire(bootstrap)
    slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    offsets = [random.Random(n).randrange(BATCHES - 40) for n in range(12)]
    numbers = [slow.send(apis.FETCH, 12, say.fetch_request("t", each)) for each in offsets]
    for number, offset in zip(numbers, offsets, strict=True):
        time.sleep(0.02)
        answered, response = slow.receive(apis.FETCH, 12)
        assert answered == number
        got = list(offsets_and_values(response.responses[0].partitions[0].records))
        assert [each for each, _ in got] == list(range(offset, offset + len(got)))
        assert len(got) > 20
        assert all(values[each] in batch for each, batch in got)
    slow.close()


def test_several_partitions_share_an_answer(bootstrap: str, say: Any) -> None:
    wire = Wire(bootstrap)
    say.create(wire, "many", 3)
    for partition in range(3):
        for number in range(20):
            batch = say.batch(bytes((partition, number)) * 10_000, timestamp=NOW_MS)
            assert say.produce(wire, "many", batch, partition=partition).error_code == 0
    request = say.fetch_request("many", 0, partitions=(0, 1, 2))
    response = wire.ask(apis.FETCH, 12, request)
    for each in response.responses[0].partitions:
        batches = list(offsets_and_values(each.records))
        assert len(batches) == 20
        for number, batch in batches:
            assert bytes((each.partition_index, number)) * 10_000 in batch
    wire.close()


def test_peers_that_leave_cost_nothing(tmp_path: Path, say: Any) -> None:
    with Broker(data_dir=str(tmp_path / "data"), durability="replicated") as broker:
        wire = Wire(broker.bootstrap)
        values = filled(wire, say)
        read_all(wire, say)
        open_before = len(os.listdir("/proc/self/fd"))
        for _ in range(10):
            leaving = Wire(broker.bootstrap)
            for _ in range(4):
                leaving.send(apis.FETCH, 12, say.fetch_request("t", 0))
            leaving.exactly(1000)
            leaving.close()
        assert values[0] in read_all(wire, say)[0]
        deadline = time.monotonic() + 10
        while len(os.listdir("/proc/self/fd")) > open_before and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(os.listdir("/proc/self/fd")) <= open_before
        wire.close()


def test_read_committed_is_told_of_aborted_transactions(tmp_path: Path, say: Any) -> None:
    from confluent_kafka import Producer

    with Broker(data_dir=str(tmp_path / "data"), durability="replicated") as broker:
        wire = Wire(broker.bootstrap)
        producer = Producer(
            {"bootstrap.servers": broker.bootstrap, "transactional.id": "a", "linger.ms": 0}
        )
        producer.init_transactions(10)
        for is_kept in (True, False, True):
            producer.begin_transaction()
            for _ in range(10):
                producer.produce("txn", os.urandom(50_000))
                producer.flush(10)
            producer.commit_transaction(10) if is_kept else producer.abort_transaction(10)
        answer = say.fetch(wire, "txn", 0, isolation_level=1)
        assert [each.first_offset for each in answer.aborted_transactions] == [11]
        assert len(answer.records) > 1_000_000
        answer = say.fetch(wire, "txn", 22, isolation_level=1)
        assert list(answer.aborted_transactions) == []
        assert len(answer.records) > 500_000
        wire.close()
