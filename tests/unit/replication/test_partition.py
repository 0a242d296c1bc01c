"""What transactions mean to a partition: the last stable offset, markers, guards, reads."""

from collections.abc import Iterator
from typing import Any

import pytest

from chronik.config.effective import BrokerConfig
from chronik.metadata.records import PartitionRecord
from chronik.protocol.batch import read_header, split
from chronik.protocol.control import EndTxnMarker, read_marker
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.records import Record, build_batch
from chronik.replication.partition import Appended, Partition
from chronik.replication.producers import Producers
from chronik.replication.room import Room
from chronik.replication.topic_config import topic_config
from chronik.storage.log import Log
from chronik.storage.memory import MemoryDisk
from chronik.storage.scan import scan

BROKER = BrokerConfig(static={}, cluster={}, broker={})


class Commit:
    """A group commit whose rounds the test runs."""

    def __init__(self) -> None:
        self.urgent = 0

    def add(self, log: Log, *, may_wait: bool = False) -> None:
        self.urgent += not may_wait


class Told:
    """A watcher that remembers what it was told."""

    def __init__(self) -> None:
        self.moves: list[tuple[int, int]] = []

    def moved(self, partition: Partition, bytes_appended: int, bytes_stable: int) -> None:
        self.moves.append((bytes_appended, bytes_stable))


class Acked:
    """Who waits for acks, and how it was answered."""

    def __init__(self) -> None:
        self.answers: list[ErrorCode] = []

    def acknowledged(self, partition: Partition) -> None:
        self.answers.append(ErrorCode.NONE)

    def failed(self, partition: Partition, error: KafkaError) -> None:
        self.answers.append(error.code)


def opened(
    durability: str = "replicated", replicas: tuple[int, ...] = (1,), **overrides: str
) -> Partition:
    config = topic_config({k.replace("_", "."): v for k, v in overrides.items()}, BROKER)
    fields: Any = {"commit": Commit(), "durability": durability, "room": Room()}
    log = Log(MemoryDisk(), "/data/topics/t.id/0", config.log)
    record = PartitionRecord(
        topic_id="", partition=0, replicas=replicas, isr=replicas, leader=1, leader_epoch=4
    )
    partition = Partition(
        name="t", topic_id=b"", node_id=1, record=record, log=log, config=config, **fields
    )
    partition.lead(record, now_ms=0)
    partition.loaded()
    return partition


@pytest.fixture
def partition() -> Partition:
    return opened()


def batch(sequence: int, *, producer_id: int = 1, epoch: int = 0, **fields: Any) -> bytes:
    given = {"transactional": True} | fields
    record = Record(0, 1_000, b"k", b"v")
    return build_batch(
        [record], producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, **given
    )


def put(partition: Partition, data: bytes, *, verify: bool = False, **fields: Any) -> Appended:
    return partition.append(data, version=11, acks=-1, now_ms=1_000, verify=verify, **fields)


def end(partition: Partition, *, producer_id: int = 1, commit: bool = True) -> Appended:
    return partition.append_marker(producer_id, 0, commit, 3, 2_000)


def sync(partition: Partition) -> None:
    partition.log.sync()
    partition.on_durable()


def code_of(partition: Partition, data: bytes, **fields: Any) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        put(partition, data, **fields)
    return caught.value.code


def test_the_last_stable_offset_waits_for_open_transactions(partition: Partition) -> None:
    put(partition, batch(-1, producer_id=-1, epoch=-1, transactional=False))
    assert partition.last_stable_offset == partition.high_watermark == 1
    put(partition, batch(0))
    put(partition, batch(0, producer_id=2))
    put(partition, batch(1))
    assert (partition.last_stable_offset, partition.high_watermark) == (1, 4)
    end(partition)
    assert partition.last_stable_offset == 2
    end(partition, producer_id=2, commit=False)
    assert partition.last_stable_offset == partition.high_watermark == 6


def test_a_marker_counts_once_the_high_watermark_has_passed_it() -> None:
    partition = opened("fsync")
    put(partition, batch(0))
    sync(partition)
    assert (partition.last_stable_offset, partition.high_watermark) == (0, 1)
    end(partition)
    assert partition.last_stable_offset == 0
    put(partition, batch(1))
    assert partition.last_stable_offset == 0
    sync(partition)
    assert (partition.last_stable_offset, partition.high_watermark) == (2, 3)


def test_a_marker_is_kafkas(partition: Partition) -> None:
    put(partition, batch(0))
    appended = end(partition, commit=False)
    assert (appended.base_offset, appended.end_offset) == (1, 2)
    data = partition.read(1, 1000)
    assert data is not None
    header = read_header(data)
    assert read_marker(data) == EndTxnMarker(commit=False, coordinator_epoch=3)
    assert header.leader_epoch == 4
    assert (header.producer_id, header.base_sequence, header.max_timestamp) == (1, -1, 2_000)


def test_stale_markers_are_not_written(partition: Partition) -> None:
    put(partition, batch(0, epoch=2))
    with pytest.raises(KafkaError) as caught:
        partition.append_marker(1, 1, True, 0, 2_000)
    assert caught.value.code == ErrorCode.INVALID_PRODUCER_EPOCH
    with pytest.raises(KafkaError) as caught:
        partition.append_marker(1, 2, True, 0, 2_000, transaction_version=2)
    assert caught.value.code == ErrorCode.INVALID_PRODUCER_EPOCH
    partition.append_marker(1, 3, True, 7, 2_000, transaction_version=2)
    with pytest.raises(KafkaError) as caught:
        partition.append_marker(1, 3, True, 6, 2_000)
    assert caught.value.code == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert partition.log.end_offset == 2
    assert code_of(partition, batch(1, epoch=3)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    put(partition, batch(0, epoch=3))


def test_a_marker_for_an_unknown_producer_ends_nothing(partition: Partition) -> None:
    end(partition, producer_id=42)
    assert partition.last_stable_offset == partition.high_watermark == 1
    assert [each.producer_id for each in partition.producers.describe()] == [42]


def test_only_a_verified_batch_opens_a_transaction(partition: Partition) -> None:
    assert code_of(partition, batch(0), verify=True) == ErrorCode.INVALID_TXN_STATE
    assert partition.producers.needs_verification(1, 0)
    guard = partition.producers.begin_verification(1, 0)
    put(partition, batch(0), guard=guard, verify=True)
    assert not partition.producers.needs_verification(1, 0)
    put(partition, batch(1), verify=True)
    end(partition)
    late = partition.producers.begin_verification(1, 0)
    end(partition)
    assert code_of(partition, batch(2), guard=late, verify=True) == ErrorCode.INVALID_TXN_STATE
    assert partition.last_stable_offset == partition.high_watermark


def test_a_plain_batch_inside_a_transaction_is_refused(partition: Partition) -> None:
    put(partition, batch(0))
    assert code_of(partition, batch(1, transactional=False)) == ErrorCode.INVALID_TXN_STATE


def test_a_transactional_batch_needs_a_producer(partition: Partition) -> None:
    assert code_of(partition, batch(-1, producer_id=-1, epoch=-1)) == ErrorCode.INVALID_RECORD


def test_internal_batches_open_transactions_without_sequence_or_limit() -> None:
    partition = opened(max_message_bytes="100")
    records = [Record(n, 1_000, b"k", b"v" * 50) for n in range(10)]
    data = build_batch(records, producer_id=5, producer_epoch=1, transactional=True)
    appended = partition.append_internal(data, 1_000)
    assert (appended.base_offset, appended.end_offset) == (0, 10)
    partition.append_internal(data, 1_000)
    partition.append_internal(build_batch(records), 1_000)
    assert (partition.last_stable_offset, partition.high_watermark) == (0, 30)
    stale = build_batch(records, producer_id=5, producer_epoch=0, transactional=True)
    with pytest.raises(KafkaError) as caught:
        partition.append_internal(stale, 1_000)
    assert caught.value.code == ErrorCode.INVALID_PRODUCER_EPOCH
    partition.append_marker(5, 1, True, 0, 1_000)
    assert partition.last_stable_offset == 31


def test_internal_batches_can_be_verified_too(partition: Partition) -> None:
    record = Record(0, 1_000, b"k", b"v")
    data = build_batch([record], producer_id=5, producer_epoch=1, transactional=True)
    with pytest.raises(KafkaError) as caught:
        partition.check_internal(5, 1, None, verify=True)
    assert caught.value.code == ErrorCode.INVALID_TXN_STATE
    guard = partition.producers.begin_verification(5, 1, supports_epoch_bump=True)
    partition.check_internal(5, 1, guard, verify=True)
    partition.append_internal(data, 1_000)
    partition.check_internal(5, 1, None, verify=True)
    late = partition.producers.begin_verification(5, 2)
    partition.append_marker(5, 2, False, 0, 1_000)
    with pytest.raises(KafkaError) as caught:
        partition.check_internal(5, 2, late, verify=True)
    assert caught.value.code == ErrorCode.INVALID_TXN_STATE
    assert partition.last_stable_offset == partition.high_watermark == 2


def test_a_restart_inside_a_transaction_still_wakes_readers(partition: Partition) -> None:
    put(partition, batch(0))
    partition.log.sync()
    again = opened()
    again.log = Log(partition.log.disk, partition.log.directory, partition.log.config)
    again.log.load()
    again.producers.replay(scan(again.log, 0))
    again.loaded()
    told = Told()
    again.watch(told)
    end(again)
    assert told.moves[-1][1] > len(batch(0)), "what was there before counts too"


def test_committed_reads_end_at_the_last_stable_offset(partition: Partition) -> None:
    put(partition, batch(0))
    end(partition, commit=False)
    put(partition, batch(1))
    for offset, offsets in ((0, [0, 1]), (1, [1]), (2, []), (3, [])):
        data = partition.read(offset, 1 << 20, committed=True)
        assert data is not None
        assert [each.header.base_offset for each in split(data)] == offsets
    data = partition.read(0, 1 << 20)
    assert data is not None
    assert len(split(data)) == 3
    with pytest.raises(KafkaError):
        partition.read(4, 1 << 20, committed=True)


def test_reads_are_told_what_was_aborted(partition: Partition) -> None:
    for n in range(4):
        put(partition, batch(n))
        end(partition, commit=n % 2 == 0)
    data = partition.read(0, 1 << 20, committed=True)
    assert data is not None
    assert [each.first_offset for each in partition.aborted_transactions(0, data)] == [2, 6]
    first = split(data)[0].data
    assert partition.aborted_transactions(0, first) == []
    assert partition.aborted_transactions(0, b"") == []
    assert partition.aborted_transactions(7, data) == partition.producers.aborted()[1:]
    partition.delete_records(4)
    assert [each.first_offset for each in partition.producers.aborted()] == [6]


def test_watchers_learn_when_something_becomes_stable(partition: Partition) -> None:
    told = Told()
    put(partition, batch(0))
    partition.watch(told)
    size = len(batch(1))
    put(partition, batch(1))
    put(partition, batch(2))
    assert told.moves == [(size, 0), (size, 0)]
    end(partition)
    appended, stable = told.moves[-1]
    assert stable == 3 * size + appended
    assert partition.last_stable_offset == 4
    put(partition, batch(3))
    assert told.moves[-1] == (size, 0)
    put(partition, batch(0, producer_id=2))
    end(partition)
    appended, stable = told.moves[-1]
    assert stable == 2 * size + appended, "rather too many than too few"
    assert partition.last_stable_offset == 5
    end(partition, producer_id=2)
    assert told.moves[-1] == (appended, 2 * size + 2 * appended)


def test_the_log_start_may_pass_the_beginning_of_an_open_transaction(
    partition: Partition,
) -> None:
    put(partition, batch(0))
    put(partition, batch(1))
    partition.delete_records(1)
    assert partition.last_stable_offset == 1
    assert partition.read(1, 1 << 20, committed=True) == b""
    end(partition)
    assert partition.last_stable_offset == 3


def test_producers_come_back_from_the_log(partition: Partition) -> None:
    put(partition, batch(0))
    put(partition, batch(0, producer_id=2))
    end(partition, commit=False)
    put(partition, batch(1))
    sync(partition)
    replayed = Producers()
    replayed.replay(scan(partition.log, 0))
    assert replayed.aborted() == partition.producers.aborted()
    assert [each._replace(last_timestamp=0) for each in replayed.describe()] == [
        each._replace(last_timestamp=0) for each in partition.producers.describe()
    ]
    again = Log(partition.log.disk, partition.log.directory, partition.log.config)
    again.load()
    assert list(headers(again)) == list(headers(partition.log))


def headers(log: Log) -> Iterator[tuple[int, bytes]]:
    return ((header.base_offset, bytes(control)) for header, control in scan(log, 0))


# What a transaction is told of its records, and what its commit waits for.


def test_a_transactions_records_are_acknowledged_in_memory_and_sealed_on_disk() -> None:
    partition = opened("fsync")
    appended = put(partition, batch(0))
    assert appended.is_transactional
    assert partition.recount_received() == appended.end_offset
    assert partition.wait_received(appended.end_offset, Acked())
    assert partition.high_watermark == 0, "nobody reads what is not on disk"
    commit: Any = partition._commit
    assert commit.urgent == 0, "nobody waits for the disk"
    sealed = Acked()
    assert not partition.wait_sealed(sealed)
    assert commit.urgent == 1
    sync(partition)
    assert sealed.answers == [ErrorCode.NONE]
    assert partition.wait_sealed(Acked())
    again = put(partition, batch(0))
    assert (again.base_offset, again.is_transactional) == (0, True)


def test_every_in_sync_replica_must_have_a_transactions_records() -> None:
    partition = opened("fsync", (1, 2, 3))
    end_offset = put(partition, batch(0)).end_offset
    waiter = Acked()
    assert partition.recount_received() == 0
    assert not partition.wait_received(end_offset, waiter)
    partition.replica_progressed(2, 7, end_offset, 0, 0)
    assert not waiter.answers
    partition.replica_progressed(3, 7, end_offset, 0, 0)
    assert waiter.answers == [ErrorCode.NONE]
    assert partition.received_offset == end_offset
    assert partition.high_watermark == 0


def test_whoever_waits_for_replicas_is_told_when_too_few_are_left() -> None:
    partition = opened("fsync", (1, 2), min_insync_replicas="2")
    waiter = Acked()
    assert not partition.wait_received(put(partition, batch(0)).end_offset, waiter)
    alone = PartitionRecord(
        topic_id="",
        partition=0,
        replicas=(1, 2),
        isr=(1,),
        leader=1,
        leader_epoch=4,
        partition_epoch=1,
    )
    partition.lead(alone, now_ms=0)
    assert waiter.answers == [ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND]
    waiter = Acked()
    assert not partition.wait_received(1, waiter)
    assert not partition.wait_sealed(waiter)
    partition.follow(5)
    assert waiter.answers == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2


def test_a_leader_in_a_new_epoch_has_acknowledged_nothing_yet() -> None:
    partition = opened("fsync", (1, 2))
    end_offset = put(partition, batch(0)).end_offset
    partition.replica_progressed(2, 7, end_offset, 0, 0)
    assert partition.recount_received() == end_offset
    record = PartitionRecord(
        topic_id="", partition=0, replicas=(1, 2), isr=(1, 2), leader=1, leader_epoch=6
    )
    partition.lead(record, now_ms=0)
    assert partition.recount_received() == 0
