"""Requests at the edges of their promises: limits, races, empty partitions, odd names."""

import asyncio
import time
from pathlib import Path
from struct import pack
from typing import Any

import pytest

from chronik.protocol import apis
from chronik.protocol.batch import assemble, read_header
from chronik.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from chronik.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from chronik.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from chronik.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from chronik.protocol.messages.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
)
from chronik.protocol.records import Record, build_batch
from chronik.server.context import Context
from chronik.server.handlers.fetch import fetch as handle_fetch
from chronik.storage.disk import FileDisk
from chronik.storage.memory import MemoryDisk
from chronik.testing import Broker


def delete_records(wire: Any, topic: str, offset: int) -> Any:
    asked = [DeleteRecordsPartition(partition_index=0, offset=offset)]
    request = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name=topic, partitions=asked)], timeout_ms=1000
    )
    return wire.ask(apis.DELETE_RECORDS, 2, request).topics[0].partitions[0]


def test_session_does_not_forget_a_partition_that_the_limit_left_out(wire: Any, say: Any) -> None:
    say.create(wire, "t", 2)
    for partition in (0, 1):
        say.produce(wire, "t", say.batch(b"x" * 1000), partition=partition)
    request = say.fetch_request(
        "t", 0, partitions=(0, 1), max_bytes=1000, session_epoch=0, session_id=0
    )
    first = wire.ask(apis.FETCH, 12, request)
    got = {p.partition_index: bytes(p.records) for p in first.responses[0].partitions}
    read = {index for index, records in got.items() if records}
    assert len(read) == 1
    done = read.pop()
    position = FetchPartition(partition=done, fetch_offset=1, partition_max_bytes=1 << 20)
    second = wire.ask(
        apis.FETCH,
        12,
        FetchRequest(
            max_wait_ms=300,
            min_bytes=1,
            max_bytes=1000,
            session_id=first.session_id,
            session_epoch=1,
            topics=[FetchTopic(topic="t", partitions=[position])],
        ),
    )
    found = {p.partition_index for topic in second.responses for p in topic.partitions if p.records}
    assert found == {1 - done}


def test_append_between_a_fetch_and_its_parking_wakes_it(say: Any, connect: Any) -> None:
    with Broker(durability="replicated") as broker:
        say.create(connect(broker), "t")
        node = broker.node
        assert node is not None

        async def run() -> float:
            context = Context(node.node, 12, "c", "h")
            waiting = handle_fetch(context, say.fetch_request("t", 0, max_wait_ms=3000))
            partition = node.replicas.find(node.metadata.image.topics["t"], 0)
            partition.append(say.batch(b"x"), version=12, acks=1, now_ms=1_700_000_000_000)
            started = time.monotonic()
            await waiting
            return time.monotonic() - started

        assert broker._loop is not None
        took = asyncio.run_coroutine_threadsafe(run(), broker._loop).result(10)
        assert took < 1


def test_delete_records_of_an_empty_partition(wire: Any, say: Any) -> None:
    say.create(wire, "t")
    answer = delete_records(wire, "t", -1)
    assert (answer.error_code, answer.low_watermark) == (0, 0)


def test_time_search_goes_on_after_a_batch_that_the_log_start_cut(wire: Any, say: Any) -> None:
    say.create(wire, "t")
    base = 1_700_000_000_000
    first = build_batch([Record(0, base + 100, b"k", b"a"), Record(1, base + 50, b"k", b"b")])
    say.produce(wire, "t", first)
    say.produce(wire, "t", say.batch(b"c", timestamp=base + 200))
    assert delete_records(wire, "t", 1).error_code == 0
    assert say.list_offset(wire, "t", base + 60).offset == 2


def test_claimed_frames_that_never_come_do_not_stop_other_clients(
    broker: Broker, connect: Any, say: Any
) -> None:
    wire = connect(broker)
    say.create(wire, "t")
    for _ in range(6):
        claim = connect(broker)
        claim.socket.sendall(pack(">ihh", 100 * 1024 * 1024, 0, 9) + bytes(20))
    wire.socket.settimeout(5)
    assert say.produce(wire, "t", say.batch(b"x" * 500_000)).error_code == 0


def test_a_connection_that_does_not_read_can_be_closed(
    broker: Broker, connect: Any, say: Any
) -> None:
    wire = connect(broker)
    say.create(wire, "t")
    for _ in range(20):
        say.produce(wire, "t", say.batch(b"x" * 1_000_000))
    lazy = connect(broker)
    lazy.send(
        apis.FETCH,
        12,
        say.fetch_request("t", 0, max_bytes=1 << 30, partition_max_bytes=1 << 30),
    )
    node, loop = broker.node, broker._loop
    assert node is not None
    assert loop is not None
    deadline = time.monotonic() + 5
    while not node.listener.stalled and time.monotonic() < deadline:
        time.sleep(0.01)
    stalled = next(iter(node.listener.stalled))
    stalled.last_active -= 10_000
    loop.call_soon_threadsafe(node.listener._sweep)
    while stalled in node.listener._connections and time.monotonic() < deadline:
        time.sleep(0.01)
    assert stalled not in node.listener._connections


def test_concurrent_delete_records_on_disk(tmp_path: Path, connect: Any, say: Any) -> None:
    with Broker(data_dir=str(tmp_path)) as broker:
        wire = connect(broker)
        say.create(wire, "t")
        for _ in range(50):
            say.produce(wire, "t", say.batch(b"x"))
        asked = [DeleteRecordsPartition(partition_index=0, offset=0)]
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name="t", partitions=asked)], timeout_ms=1000
        )
        wires = [connect(broker) for _ in range(4)]
        for _ in range(20):
            for each in wires:
                each.send(apis.DELETE_RECORDS, 2, request)
        for _ in range(20):
            for each in wires:
                _, answer = each.receive(apis.DELETE_RECORDS, 2)
                assert answer.topics[0].partitions[0].error_code == 0


def test_max_bytes_bounds_a_cold_fetch(
    broker: Broker, connect: Any, say: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = connect(broker)
    say.create(wire, "t", 5)
    for partition in range(5):
        say.produce(wire, "t", say.batch(b"x" * 100_000), partition=partition)
    monkeypatch.setattr(MemoryDisk, "pread_nowait", lambda *_: None)
    request = say.fetch_request("t", 0, partitions=tuple(range(5)), max_bytes=150_000)
    answer = wire.ask(apis.FETCH, 12, request)
    assert sum(len(p.records) for p in answer.responses[0].partitions) <= 150_000


def test_transactional_batch_without_transaction_is_refused(wire: Any, say: Any) -> None:
    say.create(wire, "t")
    data = say.batch(b"x", producer_id=5, producer_epoch=0, base_sequence=0)
    header = read_header(data)
    data = assemble(header._replace(attributes=header.attributes | 0x10), data[61:])
    assert say.produce(wire, "t", data).error_code == 48


def test_acks_1_does_not_time_out(tmp_path: Path, connect: Any, say: Any) -> None:
    with Broker(data_dir=str(tmp_path)) as broker:
        wire = connect(broker)
        say.create(wire, "t")
        data = PartitionProduceData(index=0, records=say.batch(b"x"))
        topic = TopicProduceData(name="t", partition_data=[data])
        request = ProduceRequest(acks=1, timeout_ms=0, topic_data=[topic])
        answer = wire.ask(apis.PRODUCE, 9, request)
        assert answer.responses[0].partition_responses[0].error_code == 0


def test_retention_survives_a_topic_that_is_deleted_under_it(
    tmp_path: Path, connect: Any, say: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Broker(data_dir=str(tmp_path)) as broker:
        wire = connect(broker)
        say.create(wire, "t")
        say.produce(wire, "t", say.batch(b"x"))
    with Broker(data_dir=str(tmp_path)) as broker:
        node, loop = broker.node, broker._loop
        assert node is not None
        assert loop is not None
        wire = connect(broker)
        listed = FileDisk.list

        def list_then_delete(disk: FileDisk, directory: str) -> list[str]:
            names = listed(disk, directory)
            if directory.endswith("/0") and names:
                wire.ask(
                    apis.DELETE_TOPICS, 5, DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000)
                )
                while tmp_path.glob("topics/*/0") and any(tmp_path.glob("topics/*/0")):
                    time.sleep(0.01)
            return names

        monkeypatch.setattr(FileDisk, "list", list_then_delete)
        retained = node.maintenance.retain_all()
        asyncio.run_coroutine_threadsafe(retained, loop).result(10)


def test_full_disk_under_the_metadata_log_is_an_error_code(
    wire: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(MemoryDisk, "append", full)
        topic = CreatableTopic(
            name="t", num_partitions=1, replication_factor=1, assignments=(), configs=()
        )
        answer = wire.ask(apis.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[topic]))
    assert answer.topics[0].error_code == 56


def test_auto_creation_by_two_connections_at_once(tmp_path: Path, connect: Any, say: Any) -> None:
    with Broker(data_dir=str(tmp_path)) as broker:
        wires = [connect(broker) for _ in range(5)]
        for n in range(20):
            request = MetadataRequest(topics=[MetadataRequestTopic(name=f"t{n}")])
            for wire in wires:
                wire.send(apis.METADATA, 12, request)
            codes = [wire.receive(apis.METADATA, 12)[1].topics[0].error_code for wire in wires]
            assert codes == [0] * 5


def test_describe_configs_with_no_keys_gives_all(wire: Any, say: Any) -> None:
    say.create(wire, "t")
    resource = DescribeConfigsResource(resource_type=2, resource_name="t", configuration_keys=[])
    answer = wire.ask(apis.DESCRIBE_CONFIGS, 4, DescribeConfigsRequest(resources=[resource]))
    assert answer.results[0].configs


def test_a_broker_id_has_one_spelling(wire: Any) -> None:
    config = IncrementalAlterableConfig(name="log.retention.ms", config_operation=0, value="5000")
    resource = IncrementalAlterConfigsResource(
        resource_type=4, resource_name="01", configs=[config]
    )
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
    answer = wire.ask(apis.INCREMENTAL_ALTER_CONFIGS, 1, request)
    described = wire.ask(
        apis.DESCRIBE_CONFIGS,
        4,
        DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=4, resource_name="1", configuration_keys=["log.retention.ms"]
                )
            ]
        ),
    )
    took_effect = described.results[0].configs[0].value == "5000"
    assert took_effect == (answer.responses[0].error_code == 0)
