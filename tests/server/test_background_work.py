"""Background work, deletion and failing disks: what goes wrong in one place stays there."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from chronik.metadata.commands import CreateTopic, RegisterBroker
from chronik.metadata.image import id_text
from chronik.metadata.journal import Journal, begin_votes
from chronik.metadata.runtime import SLICE_ENTRY_COUNT, MetadataRuntime
from chronik.protocol import apis
from chronik.protocol.batch import read_header
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.cluster import DescribeLogDirsRequest
from chronik.protocol.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from chronik.protocol.messages.topics import DeleteTopicsRequest
from chronik.raft.types import Snapshot
from chronik.replication import partition as partition_module
from chronik.replication.partition import Partition
from chronik.replication.producers import Producers
from chronik.storage.commit import GroupCommit
from chronik.storage.config import LogConfig
from chronik.storage.disk import FileDisk
from chronik.storage.log import Log
from chronik.storage.memory import MemoryDisk
from chronik.testing import Broker

NOW_MS = 1_700_000_000_000


def run_on(broker: Broker, work: Coroutine[Any, Any, Any]) -> Any:
    assert broker._loop is not None
    return asyncio.run_coroutine_threadsafe(work, broker._loop).result(20)


def parts(broker: Broker) -> Any:
    assert broker.node is not None
    return broker.node


def full(*_: Any) -> None:
    raise OSError(28, "No space left on device")


def delete_topic(wire: Any, name: str) -> None:
    request = DeleteTopicsRequest(topic_names=[name], timeout_ms=1000)
    answer = wire.ask(apis.DELETE_TOPICS, 5, request)
    assert answer.responses[0].error_code == 0


# Checkpoints.


def test_an_older_producers_snapshot_never_replaces_a_newer_one(
    broker: Broker, wire: Any, say: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    say.create(wire, "t")
    say.produce(wire, "t", say.batch(b"x"))
    node = parts(broker)

    async def race() -> int:
        loop = asyncio.get_running_loop()
        replicas = node.replicas
        partition = replicas.find(node.metadata.image.topics["t"], 0)
        held: list[tuple[Callable[[], Any], asyncio.Future[Any]]] = []

        def hold(_: Any, work: Callable[[], Any]) -> "asyncio.Future[Any]":
            held.append((work, loop.create_future()))
            return held[-1][1]

        with monkeypatch.context() as patched:
            patched.setattr(MemoryDisk, "run", hold)
            older = loop.create_task(replicas.checkpoint(partition))
            await asyncio.sleep(0)
            partition.append(say.batch(b"y"), version=9, acks=1, now_ms=NOW_MS)
            newer = loop.create_task(replicas.checkpoint(partition))
            await asyncio.sleep(0)
            for work, done in reversed(held):
                done.set_result(work())
        await asyncio.gather(older, newer)
        path = f"{partition.log.directory}/producers"
        data = bytes(node._disk.pread(path, node._disk.size(path), 0))
        return Producers.from_snapshot(data).end_offset

    assert run_on(broker, race()) == 2


def test_a_checkpoint_without_changes_writes_nothing(
    broker: Broker, wire: Any, say: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    say.create(wire, "t")
    say.produce(wire, "t", say.batch(b"x"))
    node = parts(broker)
    run_on(broker, node.maintenance.checkpoint_all())
    monkeypatch.setattr(MemoryDisk, "write_durably", full)
    partition = node.replicas.find(node.metadata.image.topics["t"], 0)
    run_on(broker, node.replicas.checkpoint(partition))
    run_on(broker, node.maintenance.checkpoint_all())
    assert partition.failure is None


@pytest.mark.parametrize(("number", "offline"), [(28, False), (5, True)], ids=["full", "broken"])
def test_a_checkpoint_on_a_bad_disk(
    broker: Broker,
    wire: Any,
    say: Any,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    offline: bool,
) -> None:
    """A full disk costs nothing but a longer recovery; a broken one takes the partition offline."""

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    say.create(wire, "t")
    say.produce(wire, "t", say.batch(b"x"))
    node = parts(broker)
    monkeypatch.setattr(MemoryDisk, "write_durably", fail)
    run_on(broker, node.maintenance.checkpoint_all())
    partition = node.replicas.find(node.metadata.image.topics["t"], 0)
    assert (partition.failure is not None) == offline
    assert (say.fetch(wire, "t", 0).error_code == 0) == (not offline)


def test_a_checkpoint_of_a_partition_that_goes_meanwhile_fails_nothing(
    tmp_path: Path, connect: Any, say: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Broker(data_dir=str(tmp_path)) as broker:
        wire = connect(broker)
        say.create(wire, "t")
        say.produce(wire, "t", say.batch(b"x"))
        node = parts(broker)
        partition = node.replicas.find(node.metadata.image.topics["t"], 0)
        written = FileDisk.write_durably

        def delete_first(disk: FileDisk, path: str, data: bytes) -> None:
            if "/topics/" in path:
                delete_topic(wire, "t")
                while any(tmp_path.glob("topics/*/0")):
                    os.sched_yield()
            written(disk, path, data)

        monkeypatch.setattr(FileDisk, "write_durably", delete_first)
        run_on(broker, node.maintenance.checkpoint_all())
        assert partition.is_deleted
        assert partition.failure is None


def test_closing_leaves_out_what_is_clean_and_survives_what_fails(
    tmp_path: Path, connect: Any, say: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    write = FileDisk.write_durably

    def noted(disk: FileDisk, path: str, data: bytes) -> None:
        if path.endswith("/1/producers"):
            full()
        if "/topics/" in path:
            written.append("/".join(path.split("/")[-2:]))
        write(disk, path, data)

    with Broker(data_dir=str(tmp_path)) as broker:
        wire = connect(broker)
        say.create(wire, "t", 12)
        say.produce(wire, "t", say.batch(b"x"), partition=0)
        run_on(broker, parts(broker).maintenance.checkpoint_all())
        for index in range(1, 12):
            say.produce(wire, "t", say.batch(b"x"), partition=index)
        written.clear()
        monkeypatch.setattr(FileDisk, "write_durably", noted)
    saved = {name.partition("/")[0] for name in written if name.endswith("/producers")}
    assert saved == {str(index) for index in range(2, 12)}
    assert not any(name.startswith("0/") for name in written)


# Deletion.


def test_a_topic_that_is_gone_is_not_opened_again(broker: Broker, wire: Any, say: Any) -> None:
    say.create(wire, "t")
    node = parts(broker)
    stale = node.metadata.image.topics["t"]
    delete_topic(wire, "t")
    with pytest.raises(KafkaError) as refused:
        node.replicas.find(stale, 0)
    assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert not list(node.replicas.used())


def test_a_start_removes_what_a_deletion_left(tmp_path: Path, connect: Any, say: Any) -> None:
    name = "t.deleted-" + "A" * 22
    with Broker(data_dir=str(tmp_path)) as broker:
        wire = connect(broker)
        say.create(wire, name)
        say.produce(wire, name, say.batch(b"x"))
    left = tmp_path / "topics" / ("u.deleted-" + "A" * 22) / "0"
    left.mkdir(parents=True)
    (left / "x.log").write_bytes(b"x")
    with Broker(data_dir=str(tmp_path)) as broker:
        assert not left.parent.exists()
        assert bytes(say.fetch(connect(broker), name, 0).records)


def test_a_deleted_topic_leaves_no_files(tmp_path: Path, connect: Any, say: Any) -> None:
    with Broker(data_dir=str(tmp_path)) as broker:
        wire = connect(broker)
        say.create(wire, "t", 20)
        for index in range(10):
            say.produce(wire, "t", say.batch(b"x"), partition=index)
        delete_topic(wire, "t")
    assert not list((tmp_path / "topics").iterdir())


# Settings and epochs.


def test_a_topic_s_settings_are_taken_over_once_and_only_there(
    broker: Broker, wire: Any, say: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        say.create(wire, name, 3)
        for index in range(3):
            say.produce(wire, name, say.batch(b"x"), partition=index)
    configured: list[str] = []
    configure = Partition.configure

    def noted(partition: Partition, *arguments: Any) -> None:
        configured.append(str(partition))
        configure(partition, *arguments)

    monkeypatch.setattr(Partition, "configure", noted)
    values = {"retention.ms": "5000", "segment.bytes": "5000", "max.message.bytes": "5000"}
    configs = [
        IncrementalAlterableConfig(name=name, config_operation=0, value=value)
        for name, value in values.items()
    ]
    resource = IncrementalAlterConfigsResource(resource_type=2, resource_name="a", configs=configs)
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
    answer = wire.ask(apis.INCREMENTAL_ALTER_CONFIGS, 1, request)
    assert answer.responses[0].error_code == 0
    assert sorted(configured) == ["a-0", "a-1", "a-2"]
    topic = parts(broker).metadata.image.topics["a"]
    assert parts(broker).replicas.find(topic, 2).log.config.segment_bytes == 5000


# Maintenance.


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), RuntimeError("unforeseen")])
def test_one_partition_s_failure_does_not_end_a_pass(
    broker: Broker, wire: Any, say: Any, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    say.create(wire, "t", 3)
    for index in range(3):
        say.produce(wire, "t", say.batch(b"x"), partition=index)
    seen: list[str] = []

    def retain(log: Log, *_: Any) -> bool:
        seen.append(log.directory[-1])
        raise error

    monkeypatch.setattr(Log, "retain", retain)
    run_on(broker, parts(broker).maintenance.retain_all())
    assert seen == ["0", "1", "2"]


def test_a_pass_that_fails_is_followed_by_another(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    maintenance = parts(broker).maintenance
    passes: list[int] = []

    async def fail(_: float) -> None:
        passes.append(1)
        raise RuntimeError("unforeseen")

    async def two_passes() -> None:
        slept: list[float] = []

        async def sleep(seconds: float) -> None:
            slept.append(seconds)
            if len(slept) > 2:
                raise asyncio.CancelledError

        with monkeypatch.context() as patched:
            patched.setattr(maintenance, "checkpoint_all", fail)
            patched.setattr("chronik.replication.maintenance.asyncio.sleep", sleep)
            with pytest.raises(asyncio.CancelledError):
                await maintenance.checkpoints()

    run_on(broker, two_passes())
    assert len(passes) == 2


def test_checkpoints_of_many_partitions_take_their_time(
    broker: Broker, wire: Any, say: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of those that were written to; a second pass finds nothing to do."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    for name in ("a", "b", "c"):
        say.create(wire, name)
    for name in ("a", "b"):
        say.produce(wire, name, say.batch(b"x"))
    maintenance = parts(broker).maintenance
    with monkeypatch.context() as patched:
        patched.setattr("chronik.replication.maintenance.asyncio.sleep", sleep)
        run_on(broker, maintenance.checkpoint_all(15.0))
        assert [seconds for seconds in slept if seconds] == [15.0, 15.0]
        slept.clear()
        run_on(broker, maintenance.checkpoint_all(15.0))
        assert slept == []


def test_a_log_file_that_goes_while_it_is_measured_has_no_bytes(
    broker: Broker, wire: Any, say: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    say.create(wire, "t")
    say.produce(wire, "t", say.batch(b"x"))

    def gone(_: Any, path: str) -> int:
        raise FileNotFoundError(path)

    monkeypatch.setattr(MemoryDisk, "size", gone)
    answer = wire.ask(apis.DESCRIBE_LOG_DIRS, 4, DescribeLogDirsRequest(topics=None))
    assert answer.results[0].topics[0].partitions[0].partition_size == 0


# The log.


def test_historical_records_do_not_roll_a_segment_by_the_clock(say: Any) -> None:
    log = Log(MemoryDisk(), "/data/t/0", LogConfig(segment_ms=1000))
    old = say.batch(b"x", timestamp=1)
    log.append(read_header(old), [old], NOW_MS)
    log.sync()
    assert not log.roll_if_due(NOW_MS + 1000)
    assert log.roll_if_due(NOW_MS + 1001)


def test_a_segment_s_age_is_guessed_once_after_a_load(say: Any) -> None:
    disk = MemoryDisk()
    log = Log(disk, "/data/t/0", LogConfig(segment_ms=1000))
    old = say.batch(b"x", timestamp=1)
    log.append(read_header(old), [old], NOW_MS)
    log.close()
    log = Log(disk, "/data/t/0", LogConfig(segment_ms=1000))
    log.load()
    assert log.roll_if_due(NOW_MS)
    next_old = say.batch(b"y", timestamp=1, base_offset=1)
    log.append(read_header(next_old), [next_old], NOW_MS)
    assert not log.roll_if_due(NOW_MS + 1000)


def test_retries_on_a_full_disk_do_not_pile_up(say: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()
    log = Log(disk, "/data/t/0", LogConfig())
    batch = say.batch(b"x")
    counts = []
    with monkeypatch.context() as patched:
        patched.setattr(MemoryDisk, "append", full)
        for _ in range(3):
            with pytest.raises(OSError, match="No space"):
                log.append(read_header(batch), [batch], NOW_MS)
            counts.append(len(log._unsynced_directories))
    assert len(set(counts)) == 1


def test_a_legacy_set_that_fails_halfway_keeps_what_is_written(
    broker: Broker, wire: Any, say: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    say.create(wire, "t")
    node = parts(broker)
    admitted = partition_module.admit(say.batch(b"a"), 9, node.replicas.config_of("t"), NOW_MS) * 2
    monkeypatch.setattr(partition_module, "admit", lambda *_: admitted)
    appended = MemoryDisk.append
    calls: list[str] = []

    def fails_second(disk: MemoryDisk, path: str, buffers: Any) -> None:
        calls.append(path)
        if "/topics/" in path and len(calls) == 2:
            full()
        appended(disk, path, buffers)

    monkeypatch.setattr(MemoryDisk, "append", fails_second)
    answer = say.produce(wire, "t", say.batch(b"a"))
    assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    found = say.fetch(wire, "t", 0, max_wait_ms=2000)
    assert found.high_watermark == 1
    assert bytes(found.records)


# The metadata log.


def on_runtime(work: Callable[[MetadataRuntime, MemoryDisk], Awaitable[None]]) -> None:
    async def run() -> None:
        disk = MemoryDisk()
        begin_votes(disk, "/data/m")
        commit = GroupCommit(disk, lambda log: made.on_durable(), lambda log, error: None)
        made = MetadataRuntime(Journal(disk, "/data/m", lambda: 1), commit, 1, disk)
        made.start()
        register = RegisterBroker(node_id=1, incarnation_id="i", directory_id="d", host="h", port=1)
        await made.submit(register)
        await work(made, disk)

    asyncio.run(run())


def topic(number: int) -> CreateTopic:
    return CreateTopic(name=f"t{number}", topic_id=id_text(number.to_bytes(16)), partition_count=1)


def test_a_large_round_is_applied_in_slices_and_answered_in_order() -> None:
    async def work(metadata: MetadataRuntime, _: MemoryDisk) -> None:
        loop = asyncio.get_running_loop()
        turns: list[int] = []
        answered: list[int] = []
        turn = 0

        def count_turn() -> None:
            nonlocal turn
            turn += 1
            loop.call_soon(count_turn)

        count_turn()
        metadata.subscribe(lambda *_: turns.append(turn))
        count = 2 * SLICE_ENTRY_COUNT + 1
        replies = [metadata.submit(topic(number)) for number in range(count)]
        for number, reply in enumerate(replies):
            reply.add_done_callback(lambda _, number=number: answered.append(number))
        await asyncio.gather(*replies)
        assert answered == list(range(count))
        assert max(turns.count(each) for each in turns) <= SLICE_ENTRY_COUNT
        assert len(metadata.image.topics) == count

    on_runtime(work)


def test_a_full_disk_refuses_a_command_and_is_forgotten_once_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(metadata: MetadataRuntime, _: MemoryDisk) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(MemoryDisk, "append", full)
            with pytest.raises(KafkaError) as refused:
                await metadata.submit(topic(1))
        assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        assert metadata.failure is None
        await metadata.submit(topic(1))
        assert list(metadata.image.topics) == ["t1"]

    on_runtime(work)


def test_a_metadata_log_that_cannot_be_mended_fails_the_runtime(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(metadata: MetadataRuntime, _: MemoryDisk) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(MemoryDisk, "append", full)
            patched.setattr(MemoryDisk, "truncate", full)
            with pytest.raises(KafkaError):
                await metadata.submit(topic(1))
        assert metadata.failure is not None
        with pytest.raises(KafkaError):
            await metadata.submit(topic(2))

    on_runtime(work)


@pytest.mark.parametrize("broken", ["write_durably", "checkpoint", "advance_log_start", None])
def test_the_end_of_a_snapshot_is_always_told(
    monkeypatch: pytest.MonkeyPatch, broken: str | None
) -> None:
    async def work(metadata: MetadataRuntime, _: MemoryDisk) -> None:
        told = asyncio.get_running_loop().create_future()
        owner = MemoryDisk if broken == "write_durably" else Log
        if broken is not None:
            monkeypatch.setattr(owner, broken, full)
        index = metadata.applied_index
        metadata._journal.save_snapshot_later(
            Snapshot(index, 1),
            metadata.image.to_records,
            lambda *answer: told.set_result(answer),
        )
        snapshot, error = await asyncio.wait_for(told, 5)
        assert snapshot.index == index
        assert (error is None) == (broken is None)

    on_runtime(work)
