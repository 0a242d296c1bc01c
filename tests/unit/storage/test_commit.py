"""Group commit: rounds, failures, and what is durable when."""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from batches import append, fill, make_batch, read_all, reopened
from crash_disk import Crash, CrashDisk, Ignore, nothing_ignored

from chronik.protocol.schema import Buffer
from chronik.storage.commit import GroupCommit
from chronik.storage.disk import FileDisk
from chronik.storage.errors import LogFailed, StorageError
from chronik.storage.log import Log, LogConfig
from chronik.storage.memory import MemoryDisk

CONFIG = LogConfig(segment_bytes=800, index_interval_bytes=100)


class RecordingDisk(MemoryDisk):
    def __init__(self) -> None:
        super().__init__()
        self.rounds: list[tuple[list[str], list[str]]] = []
        self.failing = ""  # fsyncs of paths with this in them fail

    def sync(self, path: str) -> None:
        if self.failing and self.failing in path:
            raise OSError(5, "Input/output error")
        super().sync(path)

    def _sync_round(self, files: Sequence[str], directories: Sequence[str]) -> dict[str, OSError]:
        self.rounds.append((list(files), list(directories)))
        return super()._sync_round(files, directories)


def unexpected(log: Log, error: Exception) -> None:
    raise AssertionError(error)


def test_many_appends_share_a_round() -> None:
    disk = RecordingDisk()
    logs = [Log(disk, f"/data/topics/t.id/{i}", CONFIG) for i in range(3)]
    durable: list[Log] = []

    async def main() -> None:
        commit = GroupCommit(disk, durable.append, unexpected)
        for _ in range(5):
            for log in logs:
                append(log, make_batch(log.end_offset), born=False)
                commit.add(log)
        assert not durable
        await commit.drain()
        assert commit.round_count == 1

    asyncio.run(main())
    assert durable == logs
    assert [log.durable_offset for log in logs] == [5, 5, 5]
    files, directories = disk.rounds[0]
    assert files == [log.segments[0].path for log in logs]
    assert {"/data", "/data/topics", "/data/topics/t.id", logs[0].directory} <= set(directories)
    assert len(directories) == len(set(directories))


def test_batches_that_come_during_a_round_wait_for_the_next() -> None:
    disk = RecordingDisk()
    log = Log(disk, "/data/t/0", CONFIG)
    seen: list[int] = []

    async def main() -> None:
        commit = GroupCommit(disk, lambda log: seen.append(log.durable_offset), unexpected)
        append(log, make_batch(0), born=False)
        commit.add(log)
        while not disk.rounds:
            assert log.durable_offset == 0
            await asyncio.sleep(0)
        append(log, make_batch(1), born=False)
        commit.add(log)
        await commit.drain()

    asyncio.run(main())
    assert seen == [1, 2]
    assert disk.rounds[1] == ([log.segments[0].path], [])


def test_a_round_with_a_new_segment_writes_a_checkpoint_first() -> None:
    disk = RecordingDisk()
    log = Log(disk, "/data/t/0", CONFIG)

    def on_durable(log: Log) -> None:
        text = bytes(disk.pread("/data/t/0/checkpoint", 1000, 0)).decode()
        assert f"recovery_point {log.end_offset}\n" in text
        assert f"active {log.segments[-1].base_offset} " in text

    async def main() -> None:
        commit = GroupCommit(disk, on_durable, unexpected)
        fill(log, 30)
        assert log.segment_count > 2
        commit.add(log)
        await commit.drain()

    asyncio.run(main())
    assert log.durable_offset == log.end_offset
    assert len(disk.rounds[0][0]) == log.segment_count


def test_a_file_that_fails_takes_no_other_log_with_it() -> None:
    disk = RecordingDisk()
    logs = [Log(disk, f"/data/t/{i}", CONFIG) for i in range(3)]
    durable: list[Log] = []
    failed: list[Log] = []

    async def main() -> None:
        commit = GroupCommit(disk, durable.append, lambda log, error: failed.append(log))
        for log in logs:
            append(log, make_batch(0), born=False)
            commit.add(log)
        disk.failing = "/t/1/"
        await commit.drain()

    asyncio.run(main())
    assert failed == [logs[1]]
    assert durable == [logs[0], logs[2]]


def test_a_failed_round_fails_its_logs_for_good() -> None:
    disk = RecordingDisk()
    log = Log(disk, "/data/t/0", CONFIG)
    failed: list[tuple[Log, Exception]] = []

    async def main() -> None:
        commit = GroupCommit(
            disk, lambda log: pytest.fail("durable"), lambda log, error: failed.append((log, error))
        )
        append(log, make_batch(0), born=False)
        commit.add(log)
        disk.failing = ".log"
        await commit.drain()
        disk.failing = ""
        commit.add(log)
        await commit.drain()

    asyncio.run(main())
    assert [log for log, _ in failed] == [log]
    assert log.durable_offset == 0
    assert len(disk.rounds) == 1
    with pytest.raises(LogFailed):
        append(log, make_batch(1), born=False)


def test_a_log_truncated_during_a_round_is_not_durable_beyond() -> None:
    disk = MemoryDisk()
    log = Log(disk, "/data/t/0", LogConfig())
    for i in range(4):
        append(log, make_batch(i))
    log.begin_sync()
    log.truncate(2)
    append(log, make_batch(2))
    append(log, make_batch(3))
    log.finish_sync()
    log.publish_durable()
    assert log.durable_offset == 2
    log.sync()
    assert log.durable_offset == 4


def test_with_an_interval_batches_gather() -> None:
    disk = RecordingDisk()
    log = Log(disk, "/data/t/0", CONFIG)

    async def main() -> None:
        commit = GroupCommit(disk, lambda log: None, unexpected, interval_ms=60_000)
        for i in range(3):
            append(log, make_batch(i))
            commit.add(log)
            for _ in range(5):
                await asyncio.sleep(0)
        assert not disk.rounds
        await commit.drain()

    asyncio.run(main())
    assert len(disk.rounds) == 1
    assert log.durable_offset == 3


def test_a_deleted_log_does_not_fail_its_round() -> None:
    disk = MemoryDisk()
    logs = [Log(disk, f"/data/t/{i}", CONFIG) for i in range(2)]
    durable: list[Log] = []

    async def main() -> None:
        commit = GroupCommit(disk, durable.append, unexpected)
        for log in logs:
            append(log, make_batch(0))
            commit.add(log)
        logs[0].abandon()
        disk.remove_tree(logs[0].directory)
        await commit.drain()

    asyncio.run(main())
    assert logs[1] in durable
    assert disk.list("/data/t") == ["1"]


def test_rounds_on_a_real_disk(tmp_path: Path) -> None:
    disk = FileDisk(open_files_max=5)
    logs = [Log(disk, f"{tmp_path}/topics/t.id/{i}", CONFIG) for i in range(20)]

    async def main() -> None:
        commit = GroupCommit(disk, lambda log: None, unexpected)
        for i in range(300):
            log = logs[i % len(logs)]
            append(log, make_batch(log.end_offset, b"x" * 100))
            commit.add(log)
            if i % 7 == 0:
                await asyncio.sleep(0)
        await commit.drain()
        assert 1 <= commit.round_count < 300

    asyncio.run(main())
    assert [log.durable_offset for log in logs] == [15] * 20
    for log in logs:
        assert read_all(reopened(disk, log.directory, CONFIG)) == read_all(log)
    disk.close()


def crashed_commits(seed: int, ignore: Ignore = nothing_ignored) -> None:
    """Append to several logs of a topic through group commit, crash, and look."""
    rng = random.Random(seed)
    disk = CrashDisk(ignore)
    disk.make_directory("/data/topics")
    for path in ("", "/data"):
        disk.sync_directory(path)
    logs = [Log(disk, f"/data/topics/t.id/{i}", CONFIG) for i in range(3)]
    appended: dict[str, list[bytes]] = {log.directory: [] for log in logs}
    acked = dict.fromkeys(appended, 0)

    def on_durable(log: Log) -> None:
        acked[log.directory] = log.durable_offset

    async def main() -> None:
        commit = GroupCommit(disk, on_durable, lambda log, error: None)
        disk.operations_left = rng.randrange(80)
        for _ in range(200):
            log = rng.choice(logs)
            batch = make_batch(log.end_offset, b"x" * rng.randrange(300))
            try:
                appended[log.directory].append(batch)
                append(log, batch)
            except (Crash, LogFailed):
                break
            commit.add(log)
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)
        await commit.drain()

    asyncio.run(main())
    disk.crash(rng.randrange(1 << 30))
    for log in logs:
        again = reopened(disk, log.directory, CONFIG)
        found = read_all(again)
        assert found == appended[log.directory][: len(found)]
        assert again.end_offset >= acked[log.directory]


@pytest.mark.parametrize("seed", range(60))
def test_what_was_reported_durable_survives(seed: int) -> None:
    crashed_commits(seed)


@pytest.mark.parametrize(
    "ignore",
    [
        pytest.param(lambda kind, path, caller: kind == "file", id="segment"),
        pytest.param(lambda kind, path, caller: path.endswith(("/0", "/1", "/2")), id="partition"),
        pytest.param(lambda kind, path, caller: path.endswith("t.id"), id="topic"),
        pytest.param(lambda kind, path, caller: path.endswith("topics"), id="topics"),
    ],
)
def test_without_one_kind_of_fsync_it_does_not(ignore: Ignore) -> None:
    for seed in range(100):
        try:
            crashed_commits(seed, ignore)
        except (AssertionError, StorageError):
            return
    pytest.fail("nobody noticed")


class NoRoomForCheckpoints(MemoryDisk):
    is_full = True

    def write_durably(self, path: str, data: Buffer) -> None:
        if self.is_full:
            raise OSError(28, "No space left on device")
        super().write_durably(path, data)


def test_a_checkpoint_without_room_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chronik.storage.commit.RETRY_S", 0.001)
    disk = NoRoomForCheckpoints()
    log = Log(disk, "/data/t/0", CONFIG)

    async def main() -> None:
        commit = GroupCommit(disk, lambda log: None, unexpected)
        while len(log.segments) < 2:
            append(log, make_batch(log.end_offset))
        commit.add(log)
        await commit.drain()
        assert log.durable_offset < log.end_offset
        disk.is_full = False
        while log.durable_offset < log.end_offset:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert log.failed is None

    asyncio.run(asyncio.wait_for(main(), 10))


def test_a_log_that_nobody_waits_for_waits_for_another() -> None:
    disk = RecordingDisk()
    lazy, urgent = (Log(disk, f"/data/t/{i}", CONFIG) for i in range(2))
    durable: list[Log] = []

    async def main() -> None:
        commit = GroupCommit(disk, durable.append, unexpected)
        append(lazy, make_batch(0), born=False)
        commit.add(lazy, may_wait=True)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not disk.rounds, "it tarries"
        append(urgent, make_batch(0), born=False)
        commit.add(urgent)
        await asyncio.sleep(0)
        assert commit.round_count == 1
        await commit.drain()
        append(lazy, make_batch(1), born=False)
        commit.add(lazy, may_wait=True)
        commit.add(lazy)  # Somebody waits now.
        await asyncio.sleep(0)
        assert commit.round_count == 2
        append(lazy, make_batch(2), born=False)
        commit.add(lazy, may_wait=True)  # During a round: the next one follows by itself.
        await commit.drain()
        assert commit.round_count == 3

    asyncio.run(main())
    assert durable == [lazy, urgent, lazy, lazy]


def test_whoever_drains_does_not_tarry() -> None:
    disk = RecordingDisk()
    log = Log(disk, "/data/t/0", CONFIG)

    async def main() -> None:
        commit = GroupCommit(disk, lambda log: None, unexpected)
        append(log, make_batch(0), born=False)
        commit.add(log, may_wait=True)
        await commit.drain()
        assert log.durable_offset == 1

    asyncio.run(main())
