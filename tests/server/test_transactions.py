"""Transactions over the wire, in the old versions and in the new, through restarts and zombies."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from chronik.protocol import apis, coordinator_apis
from chronik.protocol.batch import split
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.groups import FindCoordinatorRequest
from chronik.protocol.messages.offset_commits import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)
from chronik.protocol.messages.producer_ids import InitProducerIdRequest
from chronik.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    DescribeProducersRequest,
    DescribeProducersTopic,
    DescribeTransactionsRequest,
    EndTxnRequest,
    ListTransactionsRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from chronik.protocol.records import iter_records
from chronik.testing import Broker

COMMITTED, UNCOMMITTED = 1, 0
GROUP, TRANSACTION = 0, 1


class Client:
    """A transactional producer of the old kind (version 1) or of the new one (2)."""

    def __init__(self, wire: Any, say: Any, version: int, name: str = "tx") -> None:
        self.wire, self.say, self.version, self.name = wire, say, version, name
        self.producer_id = self.epoch = -1
        self.sequences: dict[int, int] = {}

    @property
    def is_new(self) -> bool:
        return self.version == 2

    def find(self) -> None:
        request = FindCoordinatorRequest(
            key=self.name, key_type=TRANSACTION, coordinator_keys=[self.name]
        )
        found = self.wire.ask(coordinator_apis.FIND_COORDINATOR, 6, request).coordinators[0]
        assert found.error_code == 0
        assert found.node_id == 1

    def init(self, timeout_ms: int = 60_000) -> int:
        request = InitProducerIdRequest(
            transactional_id=self.name, transaction_timeout_ms=timeout_ms
        )
        answer = self.wire.ask(apis.INIT_PRODUCER_ID, 5 if self.is_new else 1, request)
        if not answer.error_code:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences = {}
        return int(answer.error_code)

    def add(self, *partitions: int, topic: str = "t", version: int = 0) -> list[int]:
        topics = [AddPartitionsToTxnTopic(name=topic, partitions=partitions)]
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=topics,
        )
        answer = self.wire.ask(coordinator_apis.ADD_PARTITIONS_TO_TXN, version, request)
        (result,) = answer.results_by_topic_v3_and_below
        return [each.partition_error_code for each in result.results_by_partition]

    def write(self, *values: bytes, partition: int = 0, topic: str = "t") -> int:
        sequence = self.sequences.get(partition, 0)
        data = self.say.batch(
            *values,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        answer = self.say.produce(
            self.wire,
            topic,
            data,
            version=12 if self.is_new else 11,
            partition=partition,
            transactional_id=self.name,
        )
        if not answer.error_code:
            self.sequences[partition] = sequence + len(values)
        return int(answer.error_code)

    def put(self, *values: bytes, partition: int = 0) -> int:
        """Write as this kind of client does: the old one adds the partition first."""
        if not self.is_new:
            self.add(partition)
        return self.write(*values, partition=partition)

    def end(self, committed: bool, version: int | None = None) -> int:
        request = EndTxnRequest(
            transactional_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=committed,
        )
        if version is None:
            version = 5 if self.is_new else 1
        answer = self.wire.ask(coordinator_apis.END_TXN, version, request)
        if not answer.error_code and self.is_new:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences = {}
        return int(answer.error_code)

    def commit_offset(self, offset: int, group: str = "g", member: str = "", gen: int = -1) -> int:
        partition = TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_metadata="m"
        )
        request = TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            generation_id=gen,
            member_id=member,
            topics=[TxnOffsetCommitRequestTopic(name="t", partitions=[partition])],
        )
        answer = self.wire.ask(coordinator_apis.TXN_OFFSET_COMMIT, 5 if self.is_new else 3, request)
        return int(answer.topics[0].partitions[0].error_code)

    def add_offsets(self, group: str = "g") -> int:
        request = AddOffsetsToTxnRequest(
            transactional_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            group_id=group,
        )
        return int(self.wire.ask(coordinator_apis.ADD_OFFSETS_TO_TXN, 0, request).error_code)


@pytest.fixture
def topic(wire: Any, say: Any) -> str:
    say.create(wire, "t", partitions=3)
    return "t"


@pytest.fixture(params=[1, 2], ids=["version1", "version2"])
def client(request: Any, wire: Any, say: Any, topic: str) -> Client:
    client = Client(wire, say, request.param)
    client.find()
    assert client.init() == 0
    return client


def values(wire: Any, say: Any, isolation_level: int, partition: int = 0) -> list[bytes | None]:
    """What a consumer shows of a partition."""
    shown: list[bytes | None] = []
    offset = 0
    while True:
        data = say.fetch(
            wire, "t", offset, isolation_level=isolation_level, partitions=(partition,)
        )
        assert data.error_code == 0
        batches = split(bytes(data.records))
        if not batches:
            return shown
        aborted = {
            (each.producer_id, each.first_offset) for each in data.aborted_transactions or ()
        }
        skipped = {producer for producer, _ in aborted}
        for batch in batches:
            header = batch.header
            offset = header.next_offset
            starts = [first for producer, first in aborted if producer == header.producer_id]
            hidden = header.producer_id in skipped and any(s <= header.base_offset for s in starts)
            if header.is_control:
                aborted = {
                    (producer, first)
                    for producer, first in aborted
                    if producer != header.producer_id or first > header.base_offset
                }
            elif not hidden:
                shown += [record.value for record in iter_records(batch.data)]


def committed_offset(wire: Any, group: str = "g", require_stable: bool = True) -> tuple[int, int]:
    asked = OffsetFetchRequestGroup(
        group_id=group, topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
    )
    request = OffsetFetchRequest(groups=[asked], require_stable=require_stable)
    answer = wire.ask(coordinator_apis.OFFSET_FETCH, 8, request)
    (group_answer,) = answer.groups
    assert group_answer.error_code == 0
    (partition,) = group_answer.topics[0].partitions
    return partition.error_code, partition.committed_offset


def test_committed_records_become_visible_and_aborted_ones_never(
    client: Client, wire: Any, say: Any
) -> None:
    assert client.put(b"a", b"b") == 0
    assert values(wire, say, COMMITTED) == []
    assert values(wire, say, UNCOMMITTED) == [b"a", b"b"]
    assert client.end(True) == 0
    assert client.put(b"x") == 0
    assert client.end(False) == 0
    assert client.put(b"c") == 0
    assert client.end(True) == 0
    assert values(wire, say, COMMITTED) == [b"a", b"b", b"c"]
    assert values(wire, say, UNCOMMITTED) == [b"a", b"b", b"x", b"c"]


def test_a_transaction_spans_partitions(client: Client, wire: Any, say: Any) -> None:
    for partition in range(3):
        assert client.put(b"v%d" % partition, partition=partition) == 0
    assert client.end(True) == 0
    for partition in range(3):
        shown: list[bytes | None] = []
        while not shown:  # The answer says that the end is decided; markers follow.
            shown = values(wire, say, COMMITTED, partition)
        assert shown == [b"v%d" % partition]


def test_writing_to_a_partition_that_was_not_added_is_refused(
    wire: Any, say: Any, topic: str
) -> None:
    client = Client(wire, say, 1)
    client.find()
    client.init()
    assert client.write(b"a") == ErrorCode.TRANSACTION_ABORTABLE
    assert client.add(1) == [0]
    assert client.write(b"a") == ErrorCode.TRANSACTION_ABORTABLE
    assert values(wire, say, UNCOMMITTED) == []
    client.add(0)
    assert client.write(b"a") == 0


def test_a_transactional_batch_without_transactional_id_is_refused(
    client: Client, wire: Any, say: Any
) -> None:
    data = say.batch(
        b"a", producer_id=client.producer_id, producer_epoch=0, base_sequence=0, transactional=True
    )
    assert say.produce(wire, "t", data).error_code == ErrorCode.INVALID_TXN_STATE


def test_adding_an_unknown_partition_adds_none(wire: Any, say: Any, topic: str) -> None:
    client = Client(wire, say, 1)
    client.find()
    client.init()
    refused = [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert client.add(0, 9) == refused
    assert client.end(True) == ErrorCode.INVALID_TXN_STATE


def test_a_zombie_is_fenced_everywhere(client: Client, wire: Any, say: Any) -> None:
    assert client.put(b"zombie") == 0
    successor = Client(wire, say, client.version)
    assert successor.init() == 0
    assert successor.epoch > client.epoch
    assert client.write(b"late") == ErrorCode.INVALID_PRODUCER_EPOCH
    assert client.write(b"late", partition=1) == ErrorCode.INVALID_PRODUCER_EPOCH
    # Old requests do not know PRODUCER_FENCED.
    assert client.add(1) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert client.add(1, version=3) == [ErrorCode.PRODUCER_FENCED]
    assert client.end(True, version=1) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert client.end(True, version=3) == ErrorCode.PRODUCER_FENCED
    assert client.commit_offset(7) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert successor.put(b"new") == 0
    assert successor.end(True) == 0
    assert values(wire, say, COMMITTED) == [b"new"]


def test_a_timeout_aborts_and_fences(wire: Any, say: Any, topic: str) -> None:
    client = Client(wire, say, 1)
    client.find()
    client.init(timeout_ms=100)
    client.put(b"slow")
    while say.list_offset(wire, "t", -1).offset < 2:
        pass  # One record, then the abort marker.
    assert client.end(True, version=3) == ErrorCode.PRODUCER_FENCED
    assert values(wire, say, COMMITTED) == []


def test_timeouts_above_the_maximum_are_refused(wire: Any, say: Any, topic: str) -> None:
    client = Client(wire, say, 2)
    client.find()
    assert client.init(timeout_ms=900_001) == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert client.init(timeout_ms=0) == ErrorCode.INVALID_TRANSACTION_TIMEOUT


# Offsets.


def test_offsets_count_once_the_transaction_commits(client: Client, wire: Any) -> None:
    if not client.is_new:
        assert client.add_offsets() == 0
    assert client.commit_offset(5) == 0
    assert committed_offset(wire) == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
    assert committed_offset(wire, require_stable=False) == (0, -1)
    assert client.end(True) == 0
    error_code, offset = committed_offset(wire)
    while error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT:
        error_code, offset = committed_offset(wire)
    assert (error_code, offset) == (0, 5)
    if not client.is_new:
        client.add_offsets()
    assert client.commit_offset(9) == 0
    assert client.end(False) == 0
    error_code, offset = committed_offset(wire)
    while error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT:
        error_code, offset = committed_offset(wire)
    assert (error_code, offset) == (0, 5)


def test_offsets_outside_of_the_transaction_are_refused(wire: Any, say: Any, topic: str) -> None:
    client = Client(wire, say, 1)
    client.find()
    client.init()
    assert client.commit_offset(5) == ErrorCode.INVALID_TXN_STATE
    assert committed_offset(wire) == (0, -1)


def test_a_group_member_of_an_old_generation_is_refused(client: Client) -> None:
    if not client.is_new:
        client.add_offsets()
    assert client.commit_offset(5, member="nobody", gen=3) in (
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
    )


# What operators see.


def test_describe_and_list(client: Client, wire: Any) -> None:
    client.put(b"a", partition=2)
    request = DescribeTransactionsRequest(transactional_ids=["tx", "other"])
    answer = wire.ask(coordinator_apis.DESCRIBE_TRANSACTIONS, 0, request)
    found, missing = answer.transaction_states
    assert found.transaction_state == "Ongoing"
    assert found.producer_id == client.producer_id
    assert [(topic.topic, list(topic.partitions)) for topic in found.topics] == [("t", [2])]
    assert missing.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    listing = ListTransactionsRequest(state_filters=["Ongoing", "Odd"], producer_id_filters=())
    answer = wire.ask(coordinator_apis.LIST_TRANSACTIONS, 2, listing)
    assert [each.transactional_id for each in answer.transaction_states] == ["tx"]
    assert answer.unknown_state_filters == ["Odd"]
    client.end(True)
    answer = wire.ask(coordinator_apis.LIST_TRANSACTIONS, 0, listing)
    assert not answer.transaction_states


@pytest.mark.parametrize(
    ("pattern", "found"), [(None, ["tx"]), ("t.", ["tx"]), ("t", []), ("(", None)]
)
def test_list_by_pattern(
    client: Client, wire: Any, pattern: str | None, found: list[str] | None
) -> None:
    request = ListTransactionsRequest(
        state_filters=(), producer_id_filters=(), transactional_id_pattern=pattern
    )
    answer = wire.ask(coordinator_apis.LIST_TRANSACTIONS, 2, request)
    if found is None:
        assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    else:
        assert [each.transactional_id for each in answer.transaction_states] == found


def test_a_hanging_transaction_is_described_and_ended_by_a_marker(
    client: Client, wire: Any, say: Any, broker: Broker
) -> None:
    node, loop = broker.node, broker._loop
    assert node is not None
    assert loop is not None
    data = say.batch(
        b"hangs", producer_id=4711, producer_epoch=3, base_sequence=0, transactional=True
    )

    async def hang() -> None:
        partition = node.replicas.find(node.metadata.image.topics["t"], 0)
        now_ms = 1_700_000_000_000
        partition.append(data, version=11, acks=1, now_ms=now_ms, verify=False)

    asyncio.run_coroutine_threadsafe(hang(), loop).result(10)
    assert client.put(b"a") == 0
    assert client.end(True) == 0
    assert values(wire, say, COMMITTED) == []
    topics = [DescribeProducersTopic(name="t", partition_indexes=[0, 9])]
    request = DescribeProducersRequest(topics=topics)
    answer = wire.ask(coordinator_apis.DESCRIBE_PRODUCERS, 0, request)
    found, missing = answer.topics[0].partitions
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    (producer,) = [each for each in found.active_producers if each.producer_id == 4711]
    assert producer.current_txn_start_offset == 0
    marker = WritableTxnMarker(
        producer_id=4711,
        producer_epoch=3,
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(name="t", partition_indexes=[0])],
        coordinator_epoch=0,
    )
    wire.ask(coordinator_apis.WRITE_TXN_MARKERS, 1, WriteTxnMarkersRequest(markers=[marker]))
    assert values(wire, say, COMMITTED) == [b"a"]


def test_verify_only_says_what_is_in_the_transaction(client: Client, wire: Any) -> None:
    client.put(b"a")
    asked = AddPartitionsToTxnTransaction(
        transactional_id="tx",
        producer_id=client.producer_id,
        producer_epoch=client.epoch,
        verify_only=True,
        topics=[AddPartitionsToTxnTopic(name="t", partitions=[0, 1])],
    )
    request = AddPartitionsToTxnRequest(transactions=[asked])
    answer = wire.ask(coordinator_apis.ADD_PARTITIONS_TO_TXN, 5, request)
    (result,) = answer.results_by_transaction[0].topic_results
    codes = [each.partition_error_code for each in result.results_by_partition]
    assert codes == [0, ErrorCode.TRANSACTION_ABORTABLE]


# Restarts.


@pytest.fixture
def data_dir(tmp_path: Path) -> str:
    return str(tmp_path / "data")


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("committed", [True, False])
def test_an_open_transaction_goes_on_after_a_restart(
    data_dir: str, connect: Any, say: Any, version: int, committed: bool
) -> None:
    with Broker(data_dir=data_dir) as broker:
        wire = connect(broker)
        say.create(wire, "t", partitions=3)
        client = Client(wire, say, version)
        client.find()
        client.init()
        client.put(b"a")
        if version == 1:
            client.add_offsets()
        assert client.commit_offset(3) == 0
    with Broker(data_dir=data_dir) as broker:
        client.wire = wire = connect(broker)
        client.find()
        while client.write(b"b") == ErrorCode.NOT_ENOUGH_REPLICAS:
            pass  # The coordinator is loading.
        assert values(wire, say, COMMITTED) == []
        while (error_code := client.end(committed)) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            pass
        assert error_code == 0
        shown = [b"a", b"b"] if committed else []
        code, offset = committed_offset(wire)
        while code:
            code, offset = committed_offset(wire)
        assert offset == (3 if committed else -1)
        assert values(wire, say, COMMITTED) == shown
    with Broker(data_dir=data_dir) as broker:
        wire = connect(broker)
        assert values(wire, say, COMMITTED) == shown
