"""Groups and transactions when a log is damaged, a disk is full or a coordinator moves away."""

import asyncio
import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from group_world import World

from chronik.client.cluster import Cluster
from chronik.client.consumer import Consumer
from chronik.coordinator.effects import Effects, ProducerStamp
from chronik.coordinator.groups.offset_retention import EXPIRY_KEY
from chronik.coordinator.groups.shard import LOOKED_AT_ONCE
from chronik.coordinator.runtime import CoordinatorRuntime
from chronik.coordinator.transactions.marker_writer import RETRY_FIRST_S
from chronik.coordinator.transactions.shard import WriteMarkers
from chronik.model import TopicPartition
from chronik.protocol import coordinator_apis
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from chronik.protocol.messages.groups import (
    DeleteGroupsRequest,
    FindCoordinatorRequest,
    JoinGroupRequest,
)
from chronik.protocol.messages.offset_commits import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)
from chronik.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from chronik.protocol.records import Record, build_batch
from chronik.replication.partition import Partition
from chronik.server.context import Context
from chronik.server.handlers.offsets import commit_in_transaction, offset_commit
from chronik.storage.log import Log
from chronik.testing import Broker

GROUP, TRANSACTION = 0, 1
SENT_MS = 1_700_000_000_000  # as batches say
ONE_PARTITION = {
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
}


def find(wire: Any, key: str = "g", key_type: int = GROUP) -> None:
    request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
    (found,) = wire.ask(coordinator_apis.FIND_COORDINATOR, 4, request).coordinators
    assert found.error_code == ErrorCode.NONE


def commit_request(offset: int, group_id: str = "g") -> OffsetCommitRequest:
    each = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=""
    )
    topic = OffsetCommitRequestTopic(name="t", partitions=[each])
    return OffsetCommitRequest(group_id=group_id, topics=[topic])


def commit(wire: Any, offset: int, group_id: str = "g") -> ErrorCode:
    answer = wire.ask(coordinator_apis.OFFSET_COMMIT, 8, commit_request(offset, group_id))
    return ErrorCode(answer.topics[0].partitions[0].error_code)


def fetch(wire: Any, group_id: str = "g") -> tuple[ErrorCode, int]:
    """The group's error, and its offset; the latter -1 for none, -2 for no answer to that."""
    topics = [OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
    groups = [OffsetFetchRequestGroup(group_id=group_id, topics=topics)]
    answer = wire.ask(coordinator_apis.OFFSET_FETCH, 8, OffsetFetchRequest(groups=groups))
    (group,) = answer.groups
    if group.error_code:
        return ErrorCode(group.error_code), -2
    return ErrorCode.NONE, group.topics[0].partitions[0].committed_offset


def fetch_settled(wire: Any) -> tuple[ErrorCode, int]:
    """The same once the coordinator has loaded, or given up."""
    for _ in range(500):
        found = fetch(wire)
        if found[0] is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return found
        asyncio.run(asyncio.sleep(0.01))
    return found


def groups_of(broker: Broker) -> CoordinatorRuntime[Any]:
    assert broker.node is not None
    return broker.node.groups


def offsets_partition(broker: Broker) -> Partition:
    assert broker.node is not None
    topic = broker.node.metadata.image.topics["__consumer_offsets"]
    return broker.node.replicas.find(topic, 0)


def in_broker(broker: Broker, work: Any) -> Any:
    assert broker._loop is not None
    return asyncio.run_coroutine_threadsafe(work, broker._loop).result(10)


def context_of(broker: Broker) -> Context:
    assert broker.node is not None
    return Context(broker.node.node, 8, "test", "127.0.0.1")


def test_a_coordinator_whose_log_is_damaged_does_not_say_that_nothing_was_committed(
    tmp_path: Path, connect: Any, say: Any
) -> None:
    with Broker(ONE_PARTITION, data_dir=str(tmp_path)) as broker:
        wire = connect(broker)
        find(wire)
        say.create(wire, "t")
        for offset in range(5):
            assert commit(wire, offset) is ErrorCode.NONE
    (path,) = tmp_path.glob("topics/__consumer_offsets.*/0/*.log")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(bytes(data))
    for checkpoint in tmp_path.glob("topics/__consumer_offsets.*/0/checkpoint"):
        checkpoint.unlink()
    with Broker(ONE_PARTITION, data_dir=str(tmp_path)) as broker:
        wire = connect(broker)
        error_code, _ = fetch_settled(wire)
        assert error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert commit(wire, 9) is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_a_record_that_nobody_can_read_is_met_once(
    tmp_path: Path, connect: Any, say: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with Broker(ONE_PARTITION, data_dir=str(tmp_path)) as broker:
        wire = connect(broker)
        find(wire)
        say.create(wire, "t")
        assert commit(wire, 3) is ErrorCode.NONE

        async def poison() -> None:
            record = Record(0, SENT_MS, b"\0\1\0\x09short", b"")
            offsets_partition(broker).append_internal(build_batch([record]), SENT_MS)

        in_broker(broker, poison())
    with Broker(ONE_PARTITION, data_dir=str(tmp_path)) as broker:
        wire = connect(broker)
        assert fetch_settled(wire)[0] is ErrorCode.COORDINATOR_NOT_AVAILABLE
        in_broker(broker, asyncio.sleep(0.2))
    tries = [each for each in caplog.records if each.message == "a coordinator cannot load"]
    assert len(tries) == 1


@pytest.fixture
def running(connect: Any, say: Any) -> Iterator[Broker]:
    """A broker with a topic t, and both coordinators in one partition each."""
    with Broker(ONE_PARTITION) as broker:
        wire = connect(broker)
        find(wire)
        find(wire, "tx", TRANSACTION)
        say.create(wire, "t")
        assert commit(wire, 1) is ErrorCode.NONE
        yield broker


def test_whoever_asks_in_the_turn_in_which_a_shard_is_lost_is_answered(running: Broker) -> None:
    async def lose() -> list[int]:
        context = context_of(running)
        first = offset_commit(context, commit_request(2))
        groups_of(running)._flush_all()  # The first one waits for the disk, the second one
        second = offset_commit(context, commit_request(3))  # for the end of this turn.
        offsets_partition(running).fail("the disk is gone")
        async with asyncio.timeout(2):
            return [(await each).topics[0].partitions[0].error_code for each in (first, second)]

    assert in_broker(running, lose()) == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 2


def test_whoever_waits_when_another_node_takes_over_is_sent_there(running: Broker) -> None:
    """Clients look for the coordinator anew on this code only; on others some give up."""

    async def follow() -> list[int]:
        context = context_of(running)
        first = offset_commit(context, commit_request(2))
        groups_of(running)._flush_all()
        second = offset_commit(context, commit_request(3))
        partition = offsets_partition(running)
        partition.follow(partition.leader_epoch + 1)
        async with asyncio.timeout(2):
            return [(await each).topics[0].partitions[0].error_code for each in (first, second)]

    assert in_broker(running, follow()) == [ErrorCode.NOT_COORDINATOR] * 2


def test_a_transactional_commit_after_a_failed_write_is_refused_like_the_others(
    running: Broker,
) -> None:
    request = TxnOffsetCommitRequest(
        transactional_id="tx",
        group_id="h",
        producer_id=7,
        producer_epoch=0,
        topics=[
            TxnOffsetCommitRequestTopic(
                name="t",
                partitions=[
                    TxnOffsetCommitRequestPartition(
                        partition_index=0, committed_offset=5, committed_metadata=""
                    )
                ],
            )
        ],
    )

    async def commit_both() -> list[int]:
        context = context_of(running)
        with full_disk(offsets_partition(running)):
            plain = offset_commit(context, commit_request(2))
            transactional = commit_in_transaction(context, request)
        async with asyncio.timeout(2):
            replies = [await plain, await transactional]
        return [each.topics[0].partitions[0].error_code for each in replies]

    assert in_broker(running, commit_both()) == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 2


def test_a_full_disk_costs_one_reload_and_no_recovery_of_a_log_in_use(
    running: Broker, connect: Any, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    caplog.set_level("INFO")
    wire = connect(running)

    def never(log: Log) -> None:
        raise AssertionError(f"{log.directory} is in use")

    monkeypatch.setattr(Log, "load", never)
    with full_disk(offsets_partition(running)):
        assert commit(wire, 2) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert fetch_settled(wire) == (ErrorCode.NONE, 1)
    assert commit(wire, 3) is ErrorCode.NONE
    assert fetch(wire) == (ErrorCode.NONE, 3)
    loads = [each for each in caplog.records if each.message == "coordinator loaded"]
    assert len(loads) == 1


@contextmanager
def full_disk(partition: Partition) -> Iterator[None]:
    """Nothing can be appended to this partition, as long as this lasts."""
    append = Log.append

    def full(log: Log, *args: Any) -> None:
        if log is partition.log:
            raise OSError(errno.ENOSPC, "No space left on device")
        append(log, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Log, "append", full)
        yield


def test_only_the_last_request_for_a_transactions_markers_is_carried_out(
    running: Broker, connect: Any, say: Any
) -> None:
    """A coordinator that loads anew asks again for markers that a full disk holds up."""
    say.produce(connect(running), "t", say.batch(b"x"))
    assert running.node is not None
    node = running.node
    partition = node.replicas.find(node.metadata.image.topics["t"], 0)
    action = WriteMarkers(
        transactional_id="tx",
        stamp=ProducerStamp(7, 0),
        committed=True,
        partitions=frozenset([TopicPartition("t", 0)]),
        transaction_version=1,
    )

    async def write() -> int:
        with full_disk(partition):
            for _ in range(2):
                node.marker_writer.start(action)
                await asyncio.sleep(0)
        await asyncio.sleep(3 * RETRY_FIRST_S)
        return partition.log.end_offset

    assert in_broker(running, write()) == 2


def test_offsets_outlive_a_group_that_gave_way_to_a_join_that_failed(
    connect: Any, say: Any
) -> None:
    with Broker(ONE_PARTITION) as broker:
        wire = connect(broker)
        find(wire)
        say.create(wire, "t")
        heartbeat = ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id="m",
            member_epoch=0,
            rebalance_timeout_ms=1000,
            subscribed_topic_names=["t"],
            topic_partitions=[],
        )
        leaving = ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=-1)
        for request in (heartbeat, leaving):
            answer = wire.ask(coordinator_apis.CONSUMER_GROUP_HEARTBEAT, 1, request)
            assert answer.error_code == ErrorCode.NONE
        assert commit(wire, 5) is ErrorCode.NONE
        join = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=1000,
            member_id="",
            protocol_type="consumer",
            protocols=(),
        )
        refused = wire.ask(coordinator_apis.JOIN_GROUP, 9, join)
        assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert fetch(wire) == (ErrorCode.NONE, 5)
        delete = DeleteGroupsRequest(groups_names=["g"])
        (deleted,) = wire.ask(coordinator_apis.DELETE_GROUPS, 2, delete).results
        assert deleted.error_code == ErrorCode.NONE
        assert fetch(wire) == (ErrorCode.NONE, -1)


def test_an_answer_that_begins_with_an_abort_marker_hides_nothing_that_follows(
    running: Broker, connect: Any, say: Any
) -> None:
    wire = connect(running)
    sent = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
    marked = {"producer_id": 7, "producer_epoch": 0, "coordinator_epoch": 0}
    place = WritableTxnMarkerTopic(name="t", partition_indexes=[0])
    assert running.node is not None
    partition = running.node.replicas.find(running.node.metadata.image.topics["t"], 0)

    async def write(value: bytes, sequence: int) -> None:
        data = say.batch(value, base_sequence=sequence, **sent)
        partition.append(data, version=11, acks=-1, now_ms=SENT_MS, verify=False)

    for sequence, is_committed in enumerate([False, True]):
        in_broker(running, write(b"%d" % sequence, sequence))
        marker = WritableTxnMarker(transaction_result=is_committed, topics=[place], **marked)
        request = WriteTxnMarkersRequest(markers=[marker])
        (result,) = wire.ask(coordinator_apis.WRITE_TXN_MARKERS, 1, request).markers
        assert result.topics[0].partitions[0].error_code == ErrorCode.NONE

    async def read(cluster: Cluster) -> list[bytes | None]:
        where = TopicPartition("t", 0)
        async with Consumer(cluster, {where: 1}, ends={where: 4}, read_committed=True) as consumer:
            return [record.value async for _, record in consumer]

    assert running.ask(read) == [b"1"]


def test_a_search_for_expired_offsets_is_many_short_turns() -> None:
    world = World(offsets_retention_minutes=1)
    world.create("t", partitions=50)
    offsets = {("t", partition): 1 for partition in range(50)}
    for number in range(40):
        world.commit(offsets, group=f"g{number}")
    expiry_ms = world.state.timers.get(EXPIRY_KEY)
    world.now_ms += 10 * LOOKED_AT_ONCE  # Nothing is old enough yet.
    for _ in range(2000 // LOOKED_AT_ONCE - 1):
        world.shard._expire(Effects(), world.now_ms)
        assert world.state.timers.get(EXPIRY_KEY) == world.now_ms, "there is more to look at"
    world.shard._expire(Effects(), world.now_ms)
    assert world.state.timers.get(EXPIRY_KEY) > expiry_ms
    world.advance(3_600_000)
    assert not world.state.groups
    assert not world.state.offsets.groups
