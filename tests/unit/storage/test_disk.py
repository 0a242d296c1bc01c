"""The real disk: descriptors, short writes, failed fsyncs, the lock, threads."""

import asyncio
import errno
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from chronik.storage.disk import BOOT_ID_PATH, Disk, FileDisk
from chronik.storage.errors import DirectoryLocked
from chronik.storage.memory import MemoryDisk


@pytest.fixture
def file_disk() -> Iterator[FileDisk]:
    disk = FileDisk(open_files_max=4)
    yield disk
    disk.close()


@pytest.fixture(params=["files", "memory"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    disk: Disk = FileDisk(open_files_max=4) if request.param == "files" else MemoryDisk()
    disk.make_directory(str(tmp_path))
    yield disk
    disk.close()


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_both_disks_keep_bytes_alike(disk: Disk, tmp_path: Path) -> None:
    path = f"{tmp_path}/a"
    assert not disk.exists(path)
    with pytest.raises(FileNotFoundError):
        disk.pread(path, 1, 0)
    assert not disk.exists(path)
    disk.append(path, [b"hello ", memoryview(b"world"), bytearray(b"!")])
    disk.append(path, [])
    assert disk.pread(path, 5, 6) == b"world"
    assert disk.pread(path, 100, 6) == b"world!"
    assert disk.pread_nowait(path, 100, 6) in (b"world!", None)
    assert disk.pread(path, 10, 100) == b""
    disk.truncate(path, 5)
    assert disk.size(path) == 5
    disk.write(path, b"new")
    assert disk.pread(path, 10, 0) == b"new"
    disk.sync(path)
    disk.remove(path)
    disk.remove(path)
    assert not disk.exists(path)


def test_both_disks_keep_names_alike(disk: Disk, tmp_path: Path) -> None:
    top = str(tmp_path / "x")
    assert list(disk.make_directory(f"{top}/y/z")) == [f"{top}/y", top, str(tmp_path)]
    assert list(disk.make_directory(f"{top}/y/z")) == []
    disk.write_durably(f"{top}/y/z/f", b"1")
    disk.write_durably(f"{top}/y/z/f", b"2")
    disk.write(f"{top}/g", b"3")
    assert disk.list(f"{top}/y/z") == ["f"]
    assert disk.list(top) == ["g", "y"]
    assert disk.list(f"{top}/nothing") == []
    disk.rename(f"{top}/y", f"{top}/moved")
    assert disk.pread(f"{top}/moved/z/f", 9, 0) == b"2"
    disk.rename(f"{top}/g", f"{top}/moved/z/f")
    assert disk.pread(f"{top}/moved/z/f", 9, 0) == b"3"
    disk.sync_directory(top)
    with pytest.raises(FileNotFoundError):
        disk.sync_directory(f"{top}/y")
    disk.remove_tree(f"{top}/moved")
    disk.remove_tree(f"{top}/moved")
    assert disk.list(top) == []
    assert 0 < disk.free_bytes(top) <= disk.total_bytes(top)


def test_work_and_rounds_complete_on_the_loop(disk: Disk, tmp_path: Path) -> None:
    async def main() -> None:
        paths = [f"{tmp_path}/{i}" for i in range(20)]
        for path in paths:
            disk.append(path, [b"x"])
        loop = asyncio.get_running_loop()
        for files, directories in (
            ([*paths, f"{tmp_path}/removed"], [str(tmp_path), "/no/such"]),
            ([], []),
        ):
            synced: asyncio.Future[Mapping[str, OSError]] = loop.create_future()
            disk.sync_all(files, directories, synced.set_result)
            assert await synced == {}
        assert await disk.run(lambda: disk.size(paths[0])) == 1
        with pytest.raises(ZeroDivisionError):
            await disk.run(lambda: 1 // 0)

    asyncio.run(main())


def test_descriptors_are_bounded(file_disk: FileDisk, tmp_path: Path) -> None:
    before = open_descriptors()
    for i in range(50):
        file_disk.append(f"{tmp_path}/{i}", [b"x"])
        file_disk.pread(f"{tmp_path}/{i // 2}", 1, 0)
    assert open_descriptors() <= before + 4
    file_disk.release(f"{tmp_path}/49")
    assert open_descriptors() <= before + 3


def test_a_replaced_file_is_not_read_through_an_old_descriptor(
    file_disk: FileDisk, tmp_path: Path
) -> None:
    path = f"{tmp_path}/a"
    file_disk.write(path, b"old")
    assert file_disk.pread(path, 3, 0) == b"old"
    file_disk.write(f"{tmp_path}/b", b"new")
    file_disk.rename(f"{tmp_path}/b", path)
    assert file_disk.pread(path, 3, 0) == b"new"
    file_disk.remove(path)
    with pytest.raises(FileNotFoundError):
        file_disk.pread(path, 3, 0)


def test_threads_never_read_a_closed_or_foreign_descriptor(tmp_path: Path) -> None:
    disk = FileDisk(open_files_max=2)
    names = [f"{tmp_path}/{i}" for i in range(8)]
    for name in names:
        disk.write(name, name.encode())
    wrong: list[object] = []

    def read(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(400):
            name = rng.choice(names)
            data = disk.pread(name, 500, 0)
            if data != name.encode():
                wrong.append((name, data))

    threads = [threading.Thread(target=read, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        disk.write(f"{tmp_path}/other", b"other")
        disk.rename(f"{tmp_path}/other", f"{tmp_path}/another")
    for thread in threads:
        thread.join()
    disk.close()
    assert not wrong


def test_many_buffers_and_short_writes(
    file_disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffers = [b"%d," % i for i in range(3000)]
    file_disk.append(f"{tmp_path}/many", buffers)
    assert Path(tmp_path, "many").read_bytes() == b"".join(buffers)
    real = os.writev

    def short(descriptor: int, parts) -> int:  # type: ignore[no-untyped-def]
        return real(descriptor, [b"".join(parts)[:7]])

    monkeypatch.setattr(os, "writev", short)
    file_disk.append(f"{tmp_path}/short", [b"", *buffers[:100], b""])
    assert Path(tmp_path, "short").read_bytes() == b"".join(buffers[:100])


def test_a_read_without_waiting_says_when_it_would(
    file_disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"{tmp_path}/a"
    file_disk.write(path, b"data")

    def raising(number: int) -> Callable[..., int]:
        def preadv(*_: object) -> int:
            raise OSError(number, os.strerror(number))

        return preadv

    monkeypatch.setattr(os, "preadv", raising(errno.EAGAIN))
    assert file_disk.pread_nowait(path, 4, 0) is None
    monkeypatch.setattr(os, "preadv", raising(errno.EOPNOTSUPP))
    assert file_disk.pread_nowait(path, 4, 0) == b"data"
    monkeypatch.setattr(os, "preadv", raising(errno.EIO))
    with pytest.raises(OSError):
        file_disk.pread_nowait(path, 4, 0)


def test_a_failed_fsync_is_never_followed_by_a_success(
    file_disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"{tmp_path}/a"
    file_disk.append(path, [b"x"])

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError):
        file_disk.sync(path)
    with pytest.raises(OSError):
        file_disk.sync_directory(str(tmp_path))
    monkeypatch.undo()
    for attempt in (
        lambda: file_disk.sync(path),
        lambda: file_disk.append(path, [b"y"]),
        lambda: file_disk.sync_directory(str(tmp_path)),
    ):
        with pytest.raises(OSError, match="earlier fsync failed"):
            attempt()


def test_a_whole_file_system_is_synced_or_says_why_not(
    file_disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_disk.append(f"{tmp_path}/a", [b"x"])
    file_disk.sync_everything(str(tmp_path))
    with pytest.raises(FileNotFoundError):
        file_disk.sync_everything(f"{tmp_path}/nowhere")
    monkeypatch.setattr(os, "open", lambda *_: -1)
    monkeypatch.setattr(os, "close", lambda _: None)
    with pytest.raises(OSError, match="Bad file descriptor"):
        file_disk.sync_everything(str(tmp_path))


def test_a_second_process_is_refused_and_told_by_whom(file_disk: FileDisk, tmp_path: Path) -> None:
    path = f"{tmp_path}/lock"
    file_disk.lock(path)
    code = (
        "import sys\n"
        "from chronik.storage.disk import FileDisk\n"
        "from chronik.storage.errors import DirectoryLocked\n"
        "try:\n    FileDisk().lock(sys.argv[1])\n"
        "except DirectoryLocked as error:\n    print(error)\n"
    )
    run = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
    assert str(tmp_path) in run.stdout, run.stderr
    assert f"process {os.getpid()}" in run.stdout
    with pytest.raises(DirectoryLocked):
        FileDisk().lock(path)
    file_disk.close()
    other = FileDisk()
    other.lock(path)
    other.close()


@pytest.mark.skipif(not Path(BOOT_ID_PATH).exists(), reason="only Linux tells its boot")
def test_the_boot_of_the_machine_is_known() -> None:
    disk = FileDisk()
    assert disk.boot_id() == Path(BOOT_ID_PATH).read_text().strip() != ""
    disk.close()
