"""Transactions as consumers see them: last stable offsets, aborted transactions, control batches.

There is no coordinator here: transactional batches and markers are appended to the partition
itself, in the broker's loop, as a coordinator's answer to the Produce handler would let them.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from chronik.protocol import apis
from chronik.protocol.batch import split
from chronik.protocol.errors import ErrorCode
from chronik.protocol.legacy import to_batches
from chronik.protocol.messages.fetch import FetchRequest
from chronik.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from chronik.protocol.messages.topics import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from chronik.protocol.records import Record, build_batch, iter_records
from chronik.replication.partition import Partition
from chronik.testing import Broker

COMMITTED = 1
T = TypeVar("T")


class Transactions:
    """Writes into one partition of a running broker."""

    def __init__(self, broker: Broker, wire: Any, say: Any, name: str = "t") -> None:
        self._broker = broker
        self._wire = wire
        self._say = say
        self._name = name

    def do(self, work: Callable[[Partition], T]) -> T:
        """Do something with the partition in the broker's loop."""
        node, loop = self._broker.node, self._broker._loop
        assert node is not None
        assert loop is not None

        async def run() -> T:
            partition = node.replicas.find(node.metadata.image.topics[self._name], 0)
            if not partition.is_loaded:
                await node.replicas.load(partition)
            return work(partition)

        return asyncio.run_coroutine_threadsafe(run(), loop).result(10)

    def put(self, *values: bytes, sequence: int, producer_id: int = 7, epoch: int = 0) -> int:
        """A transactional batch; its base offset, once it is committed."""
        data = self._say.batch(
            *values,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=True,
        )

        def append(partition: Partition) -> Any:
            guard = partition.producers.begin_verification(producer_id, epoch)
            return partition.append(
                data, version=11, acks=-1, now_ms=1_700_000_000_000, guard=guard
            )

        return self._settled(self.do(append))

    def end(self, *, commit: bool, producer_id: int = 7, epoch: int = 0) -> int:
        return self._settled(
            self.do(
                lambda partition: partition.append_marker(
                    producer_id, epoch, commit, 0, 1_700_000_000_000
                )
            )
        )

    def _settled(self, appended: Any) -> int:
        deadline = time.monotonic() + 5
        while self.do(lambda partition: partition.high_watermark) < appended.end_offset:
            assert time.monotonic() < deadline
        return int(appended.base_offset)


@pytest.fixture
def transactions(broker: Broker, wire: Any, say: Any) -> Transactions:
    say.create(wire, "t")
    return Transactions(broker, wire, say)


def offsets(records: Any) -> list[int]:
    return [each.header.base_offset for each in split(bytes(records))]


def aborted(answer: Any) -> list[tuple[int, int]]:
    return [(each.producer_id, each.first_offset) for each in answer.aborted_transactions]


@pytest.mark.parametrize("version", [4, 7, 11, 12])
def test_committed_reads_stop_where_a_transaction_is_open(
    transactions: Transactions, wire: Any, say: Any, version: int
) -> None:
    say.produce(wire, "t", say.batch(b"plain"))
    transactions.put(b"a", sequence=0)
    say.produce(wire, "t", say.batch(b"plain"))
    answer = say.fetch(wire, "t", 0, version=version, isolation_level=COMMITTED)
    assert offsets(answer.records) == [0]
    assert (answer.high_watermark, answer.last_stable_offset) == (3, 1)
    assert answer.aborted_transactions == []
    everything = say.fetch(wire, "t", 0, version=version)
    assert offsets(everything.records) == [0, 1, 2]
    assert everything.aborted_transactions is None
    assert everything.last_stable_offset == 1
    beyond = say.fetch(wire, "t", 2, version=version, isolation_level=COMMITTED)
    assert (beyond.error_code, beyond.records, beyond.aborted_transactions) == (0, b"", [])


def test_aborted_transactions_come_with_what_they_touch(
    transactions: Transactions, wire: Any, say: Any
) -> None:
    transactions.put(b"a", sequence=0)  # 0
    transactions.put(b"b", sequence=0, producer_id=8)  # 1
    transactions.end(commit=False, producer_id=8)  # 2
    transactions.end(commit=False)  # 3
    transactions.put(b"c", sequence=1)  # 4
    transactions.end(commit=True)  # 5
    transactions.put(b"d", sequence=2)  # 6
    transactions.end(commit=False)  # 7
    answer = say.fetch(wire, "t", 0, isolation_level=COMMITTED)
    assert offsets(answer.records) == list(range(8))
    assert aborted(answer) == [(8, 1), (7, 0), (7, 6)], "in the order of their markers"
    assert aborted(say.fetch(wire, "t", 3, isolation_level=COMMITTED)) == [(7, 0), (7, 6)]
    assert aborted(say.fetch(wire, "t", 4, isolation_level=COMMITTED)) == [(7, 6)]
    one = say.fetch(wire, "t", 4, isolation_level=COMMITTED, partition_max_bytes=1)
    assert offsets(one.records) == [4]
    assert aborted(one) == []
    assert aborted(say.fetch(wire, "t", 8, isolation_level=COMMITTED)) == []


def test_a_marker_wakes_a_committed_fetch_that_appends_do_not(
    broker: Broker, connect: Any, transactions: Transactions, wire: Any, say: Any
) -> None:
    transactions.put(b"x" * 1000, sequence=0)
    node = broker.node
    assert node is not None
    reads: list[bool] = []
    read = Partition.read

    def counted(self: Partition, *given: Any, **options: Any) -> Any:
        reads.append(options.get("committed", False))
        return read(self, *given, **options)

    reader = connect(broker)
    request = say.fetch_request("t", 0, max_wait_ms=9_000, min_bytes=900, isolation_level=COMMITTED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Partition, "read", counted)
        reader.send(apis.FETCH, 12, request)
        _until(lambda: transactions.do(lambda partition: bool(partition.watchers)))
        before = len(reads)
        for sequence in range(1, 21):
            transactions.put(b"x" * 1000, sequence=sequence)
        assert len(reads) - before <= 1, "the high watermark wakes nobody who cannot read"
        began = time.monotonic()
        transactions.end(commit=True)
        _, response = reader.receive(apis.FETCH, 12)
    assert time.monotonic() - began < 5
    answer = response.responses[0].partitions[0]
    assert offsets(answer.records) == list(range(22))
    assert answer.last_stable_offset == answer.high_watermark == 22


def test_a_fetch_of_everything_wakes_inside_a_transaction(
    broker: Broker, connect: Any, transactions: Transactions, say: Any
) -> None:
    reader = connect(broker)
    reader.send(apis.FETCH, 12, say.fetch_request("t", 0, max_wait_ms=9_000))
    _until(lambda: transactions.do(lambda partition: bool(partition.watchers)))
    transactions.put(b"a", sequence=0)
    _, response = reader.receive(apis.FETCH, 12)
    assert offsets(response.responses[0].partitions[0].records) == [0]


def _until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not is_so():
        assert time.monotonic() < deadline


def test_a_session_tells_of_both_offsets(transactions: Transactions, wire: Any, say: Any) -> None:
    def next_fetch(epoch: int) -> Any:
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=1,
            isolation_level=COMMITTED,
            session_id=session_id,
            session_epoch=epoch,
            topics=(),
        )
        responses = wire.ask(apis.FETCH, 12, request).responses
        return responses[0].partitions[0] if responses else None

    request = say.fetch_request("t", 0, session_epoch=0, isolation_level=COMMITTED)
    session_id = wire.ask(apis.FETCH, 12, request).session_id
    transactions.put(b"a", sequence=0)
    moved = next_fetch(1)
    assert (moved.high_watermark, moved.last_stable_offset, moved.records) == (1, 0, b"")
    assert next_fetch(2) is None, "nothing is new"
    transactions.end(commit=False)
    ended = next_fetch(3)
    assert (ended.high_watermark, ended.last_stable_offset) == (2, 2)
    assert offsets(ended.records) == [0, 1]
    assert aborted(ended) == [(7, 0)]


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_old_clients_see_no_control_batches(
    transactions: Transactions, wire: Any, say: Any, version: int
) -> None:
    transactions.put(b"a", b"b", sequence=0)  # 0, 1
    transactions.end(commit=True)  # 2
    transactions.end(commit=True)  # 3
    transactions.put(b"c", sequence=2)  # 4

    def values(offset: int) -> list[bytes | None]:
        data = say.fetch(wire, "t", offset, version=version).records
        return [each.value for batch in to_batches(data) for each in iter_records(batch)]

    assert values(0) == [b"a", b"b", b"c"]
    assert values(2) == [b"c"], "markers are passed over, or it would ask for ever"
    transactions.end(commit=False)
    assert say.fetch(wire, "t", 5, version=version).records == b""


def list_offset(wire: Any, timestamp: int, isolation_level: int) -> int:
    asked = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation_level,
        topics=[ListOffsetsTopic(name="t", partitions=[asked])],
    )
    return int(wire.ask(apis.LIST_OFFSETS, 10, request).topics[0].partitions[0].offset)


def test_offsets_are_listed_up_to_the_last_stable_one(
    transactions: Transactions, wire: Any, say: Any
) -> None:
    say.produce(wire, "t", say.batch(b"a", timestamp=1_600_000_000_000))
    transactions.put(b"b", sequence=0)
    for timestamp, committed, everything in (
        (-1, 1, 2),
        (-2, 0, 0),
        (-3, -1, 1),
        (1_500_000_000_000, 0, 0),
        (1_600_000_000_001, -1, 1),
    ):
        assert list_offset(wire, timestamp, COMMITTED) == committed
        assert list_offset(wire, timestamp, 0) == everything
    transactions.end(commit=True)
    assert list_offset(wire, -1, COMMITTED) == 3


def test_records_of_an_open_transaction_can_be_deleted(
    transactions: Transactions, wire: Any, say: Any
) -> None:
    transactions.put(b"a", sequence=0)
    transactions.put(b"b", sequence=1)
    asked = DeleteRecordsPartition(partition_index=0, offset=1)
    request = DeleteRecordsRequest(
        timeout_ms=1000, topics=[DeleteRecordsTopic(name="t", partitions=[asked])]
    )
    answer = wire.ask(apis.DELETE_RECORDS, 2, request).topics[0].partitions[0]
    assert (answer.error_code, answer.low_watermark) == (0, 1)
    read = say.fetch(wire, "t", 1, isolation_level=COMMITTED)
    assert (read.last_stable_offset, read.records) == (1, b"")


@pytest.mark.parametrize("is_clean", [True, False])
def test_transactions_come_back_after_a_restart(
    tmp_path: Any, connect: Any, say: Any, is_clean: bool
) -> None:
    with Broker(data_dir=str(tmp_path)) as broker:
        wire = connect(broker)
        say.create(wire, "t")
        transactions = Transactions(broker, wire, say)
        transactions.put(b"a", sequence=0)
        transactions.end(commit=False)
        transactions.put(b"b", sequence=1)
        transactions.put(b"c", sequence=0, producer_id=8)
    if not is_clean:
        (snapshot,) = tmp_path.glob("topics/*/0/producers")
        snapshot.write_bytes(snapshot.read_bytes()[:6])  # Of a version that is not known.
    with Broker(data_dir=str(tmp_path)) as broker:
        wire = connect(broker)
        answer = say.fetch(wire, "t", 0, isolation_level=COMMITTED)
        assert offsets(answer.records) == [0, 1]
        assert aborted(answer) == [(7, 0)]
        assert (answer.high_watermark, answer.last_stable_offset) == (4, 2)
        transactions = Transactions(broker, wire, say)
        assert transactions.put(b"b", sequence=1) == 2, "a repeat is known again"
        transactions.end(commit=True)
        assert list_offset(wire, -1, COMMITTED) == 3
        states = transactions.do(lambda partition: partition.producers.describe())
        assert {each.producer_id: each.current_txn_start_offset for each in states} == {
            7: -1,
            8: 3,
        }


def test_compaction_keeps_what_is_committed(connect: Any, say: Any) -> None:
    with Broker({"log.cleaner.enable": False}) as broker:
        wire = connect(broker)
        settings = {
            "cleanup_policy": "compact",
            "delete_retention_ms": "0",
            "min_cleanable_dirty_ratio": "0",
            "segment_bytes": "1048576",
        }
        say.create(wire, "t", **settings)
        transactions = Transactions(broker, wire, say)
        transactions.put(b"committed", sequence=0)
        transactions.end(commit=True)
        transactions.put(b"aborted", sequence=1)
        transactions.put(b"aborted", sequence=2)
        transactions.end(commit=False)
        node, loop = broker.node, broker._loop
        assert node is not None
        assert loop is not None
        for _ in range(4):
            dirt = build_batch([Record(0, 1_700_000_000_000, b"z", b"dirt")])
            assert say.produce(wire, "t", dirt).error_code == 0
            transactions.do(lambda partition: partition.log.roll(0))
            for work in (node.maintenance.checkpoint_all(), node.maintenance.compact_all()):
                asyncio.run_coroutine_threadsafe(work, loop).result(10)
            answer = say.fetch(wire, "t", 0, isolation_level=COMMITTED)
            # The last batch stays for its sequence, and so the marker, and so the list.
            assert offsets(answer.records)[:4] == [0, 1, 3, 4]
            assert aborted(answer) == [(7, 2)]
        transactions.do(lambda partition: partition.producers.expire(1 << 62, 1))
        for _ in range(3):
            assert say.produce(wire, "t", dirt).error_code == 0
            transactions.do(lambda partition: partition.log.roll(0))
            for work in (node.maintenance.checkpoint_all(), node.maintenance.compact_all()):
                asyncio.run_coroutine_threadsafe(work, loop).result(10)
        answer = say.fetch(wire, "t", 0, isolation_level=COMMITTED)
        assert offsets(answer.records)[:2] == [0, 1]
        assert 4 not in offsets(answer.records)
        assert aborted(answer) == []


def test_clients_do_not_write_to_internal_topics(wire: Any, say: Any) -> None:
    say.create(wire, "__consumer_offsets")
    answer = say.produce(wire, "__consumer_offsets", say.batch(b"x"))
    assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert say.fetch(wire, "__consumer_offsets", 0).high_watermark == 0


def test_a_transactional_batch_that_nobody_verified_is_refused(wire: Any, say: Any) -> None:
    say.create(wire, "t")
    data = say.batch(b"x", producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    assert say.produce(wire, "t", data).error_code == ErrorCode.INVALID_TXN_STATE
    assert say.fetch(wire, "t", 0).high_watermark == 0
