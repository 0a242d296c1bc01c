"""A log that is cut back, as a former leader's is: what its producers and its snapshots lose."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from chronik.protocol.errors import ErrorCode
from chronik.replication.partition import Partition
from chronik.replication.partition_recovery import PRODUCERS_FILE
from chronik.replication.producers import Producers
from chronik.testing import Broker


def run_on(broker: Broker, work: Coroutine[Any, Any, None]) -> None:
    assert broker._loop is not None
    asyncio.run_coroutine_threadsafe(work, broker._loop).result(20)


@pytest.fixture
def sent(wire: Any, say: Any) -> Callable[[int], int]:
    """Sends the batch of an idempotent producer with a sequence; what it is answered."""
    say.create(wire, "t")

    def send(sequence: int) -> int:
        ids = {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence}
        error_code: int = say.produce(wire, "t", say.batch(b"v", **ids)).error_code
        return error_code

    return send


def partition_of(broker: Broker) -> Partition:
    assert broker.node is not None
    replicas = broker.node.replicas
    return replicas.find(replicas.image.topics["t"], 0)


def test_what_comes_behind_a_batch_that_was_cut_away_is_to_come_again(
    broker: Broker, sent: Callable[[int], int]
) -> None:
    """Told that it is out of order, librdkafka would send stored batches in a new epoch."""
    assert [sent(sequence) for sequence in range(3)] == [0, 0, 0]
    assert broker.node is not None
    run_on(broker, broker.node.replicas.truncate(partition_of(broker), 1))
    assert sent(3) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert [sent(sequence) for sequence in range(5)] == [0, 0, 0, 0, 0]
    assert partition_of(broker).log.end_offset == 5
    assert sent(6) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_snapshot_of_what_was_cut_meanwhile_is_not_saved(
    broker: Broker, sent: Callable[[int], int]
) -> None:
    """It would pass for true once as many other batches are appended."""
    assert [sent(sequence) for sequence in range(3)] == [0, 0, 0]
    node, partition = broker.node, partition_of(broker)
    assert node is not None
    disk = node._disk

    async def cut_while_it_is_saved() -> None:
        run, late = disk.run, []

        def put_off(work: Callable[[], Any]) -> "asyncio.Future[Any]":
            done = asyncio.get_running_loop().create_future()
            late.append((work, done))
            return done

        disk.run = put_off  # type: ignore[method-assign, assignment]
        saving = asyncio.create_task(node.replicas.checkpoint(partition), name="saving")
        await asyncio.sleep(0)
        disk.run = run  # type: ignore[method-assign]
        await node.replicas.truncate(partition, 1)
        (work, done) = late[0]
        done.set_result(work())
        await saving

    run_on(broker, cut_while_it_is_saved())
    path = f"{partition.log.directory}/{PRODUCERS_FILE}"
    if disk.exists(path):
        saved = Producers.from_snapshot(bytes(disk.pread(path, disk.size(path), 0)))
        assert saved.end_offset <= partition.log.end_offset
    run_on(broker, node.replicas.checkpoint(partition))
    saved = Producers.from_snapshot(bytes(disk.pread(path, disk.size(path), 0)))
    assert saved.end_offset == partition.log.end_offset == 1
    assert saved == partition.producers
