"""Logs on a disk that loses whatever was not fsynced.

A random life of a log is cut by a crash at a random operation, again and again. After each recovery
every durable batch must be there, offsets must be dense and the log a prefix of what was appended.
Some crashes are only a process's end: then everything is synced at once before the log is loaded.
The same lives on a disk that ignores one kind of fsync must break one of these promises: otherwise
that fsync, or this test, would be worth nothing.
"""

import random
from dataclasses import dataclass, field

import pytest
from batches import append, make_batch, read_all
from crash_disk import Crash, CrashDisk, Ignore, nothing_ignored

from chronik.protocol.batch import read_header
from chronik.storage.errors import StorageError
from chronik.storage.log import Log, LogConfig

DIRECTORY = "/data/topics/orders.id/0"
CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=150, retention_ms=-1)


@dataclass
class Promises:
    """What the log's user was told."""

    batches: list[bytes] = field(default_factory=list)  # appended and not truncated
    durable_offset: int = 0
    start_offset: int = 0  # confirmed by a checkpoint
    asked_start_offset: int = 0


class Life:
    """One log through many crashes."""

    def __init__(self, seed: int, ignore: Ignore = nothing_ignored) -> None:
        self.rng = random.Random(seed)
        self.disk = CrashDisk(ignore)
        self.disk.make_directory("/data/topics")
        for path in ("", "/data"):
            self.disk.sync_directory(path)
        self.promises = Promises()
        self.counter = 0

    def run(self, crashes: int) -> None:
        for _ in range(crashes):
            self.disk.operations_left = self.rng.randrange(60)
            try:
                log = self.opened()
                while True:
                    self.act(log)
            except Crash:
                is_killed = self.rng.random() < 0.3
                if is_killed:
                    self.disk.end_process()
                    self.disk.sync_everything("/data")
                else:
                    self.disk.crash(self.rng.randrange(1 << 30))
            log = self.opened(is_synced=is_killed)
            self.check(log)

    def opened(self, *, is_synced: bool = False) -> Log:
        log = Log(self.disk, DIRECTORY, CONFIG)
        log.load(is_synced=is_synced)
        return log

    def act(self, log: Log) -> None:
        promises = self.promises
        action = self.rng.choices(
            ("append", "sync", "checkpoint", "roll", "truncate", "advance", "close"),
            (10, 4, 1, 1, 1, 1, 1),
        )[0]
        match action:
            case "append":
                self.counter += 1
                value = b"%d" % self.counter * self.rng.randrange(1, 20)
                batch = make_batch(log.end_offset, value, count=self.rng.randrange(1, 4))
                promises.batches.append(batch)
                append(log, batch, born=False)
            case "sync":
                log.sync()
                promises.durable_offset = log.durable_offset
            case "checkpoint":
                log.checkpoint()
                promises.start_offset = log.log_start_offset
            case "roll":
                log.roll(0)
            case "truncate":
                self.truncate(log)
            case "advance":
                offset = self.rng.randint(log.log_start_offset, log.durable_offset)
                promises.asked_start_offset = offset
                log.advance_log_start(offset)
            case "close":
                log.close()
                promises.durable_offset = log.durable_offset
                promises.start_offset = log.log_start_offset

    def truncate(self, log: Log) -> None:
        if log.end_offset - log.log_start_offset < 2 or self.rng.random() < 0.5:
            return
        promises = self.promises
        to_offset = self.rng.randint(log.log_start_offset + 1, log.end_offset)
        kept = [b for b in promises.batches if read_header(b).last_offset < to_offset]
        end = read_header(kept[-1]).next_offset if kept else 0
        promises.durable_offset = min(promises.durable_offset, end)
        promises.start_offset = min(promises.start_offset, end)
        log.truncate(to_offset)
        promises.asked_start_offset = log.log_start_offset
        promises.batches = kept

    def check(self, log: Log) -> None:
        promises = self.promises
        start = log.log_start_offset
        assert promises.start_offset <= start <= promises.asked_start_offset
        assert log.end_offset >= promises.durable_offset
        found = read_all(log)
        expected = [b for b in promises.batches if read_header(b).last_offset >= start]
        assert found == expected[: len(found)]
        end = read_header(found[-1]).next_offset if found else start
        assert log.end_offset == log.durable_offset == end
        dropped = len(promises.batches) - len(expected)
        promises.batches = promises.batches[: dropped + len(found)]
        promises.durable_offset = end
        promises.start_offset = promises.asked_start_offset = start


@pytest.mark.parametrize("seed", range(150))
def test_no_crash_loses_a_durable_batch(seed: int) -> None:
    Life(seed).run(crashes=8)


@pytest.mark.parametrize(
    ("what", "ignore"),
    [
        ("commit's fsync of the segment", lambda kind, path, caller: kind == "file"),
        (
            "the partition directory's",
            lambda kind, path, caller: kind == "directory" and path == DIRECTORY,
        ),
        (
            "the topic directory's",
            lambda kind, path, caller: kind == "directory" and path == "/data/topics/orders.id",
        ),
        (
            "the topics directory's",
            lambda kind, path, caller: kind == "directory" and path == "/data/topics",
        ),
        (
            "the checkpoint's",
            lambda kind, path, caller: kind == "replaced file" and "checkpoint" in path,
        ),
        ("the file system's", lambda kind, path, caller: kind == "everything"),
        (
            "the checkpoint's rename's",
            lambda kind, path, caller: kind == "replaced directory",
        ),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_without_any_one_fsync_something_is_lost(what: str, ignore: Ignore) -> None:
    for seed in range(150):
        try:
            Life(seed, ignore).run(crashes=8)
        except (AssertionError, StorageError):
            return
    pytest.fail(f"nobody noticed that {what} fsync is missing")


def test_what_a_killed_run_has_left_costs_one_sync_and_no_checkpoint() -> None:
    """A node may have thousands of logs to load before it is in sync again."""
    syncs: list[str] = []

    def counted(kind: str, path: str, caller: str) -> bool:
        syncs.append(kind)
        return False

    disk = CrashDisk(counted)
    disk.make_directory("/data/topics")
    log = Log(disk, DIRECTORY, LogConfig())
    log.load()
    for number in range(3):
        append(log, make_batch(log.end_offset, b"%d" % number), born=False)
    disk.sync_everything("/data")
    syncs.clear()
    log = Log(disk, DIRECTORY, LogConfig())
    log.load(is_synced=True)
    assert log.durable_offset == log.end_offset == 3
    assert syncs == []
    assert not log.is_checkpointed
    log.checkpoint()
    assert log.is_checkpointed
