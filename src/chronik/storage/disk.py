"""The disk: the only file that opens files, calls fsync or uses threads.

Files are named by path. Descriptors are opened on first use and kept in a bounded LRU, so that
ten thousand idle partitions cost none. The event loop appends and reads what is in the page
cache; threads sync, read cold data and do whatever else may block, through `run` and `sync_all`.

Invariants
    A descriptor is closed only when nobody uses it.
    A path's cached descriptor is that of the file the path names: removing or renaming drops it.
    A path whose fsync failed stays failed: the kernel may have thrown the dirty pages away, so a
    second fsync would report a success that never was.

Callers decide what must be synced and in which order; `log`, `commit` and `compaction` do.
"""

import asyncio
import contextlib
import errno
import fcntl
import os
import shutil
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, Protocol, TypeVar

from chronik.protocol.schema import Buffer
from chronik.storage.errors import DirectoryLocked
from chronik.storage.file_range import CAN_SEND_FILES, FileRange, is_cached
from chronik.storage.file_system import sync_file_system

T = TypeVar("T")

OPEN_FILES_MAX: Final = 512  # half of the usual soft limit of 1,024: sockets need the rest
BUFFERS_MAX: Final = 1024  # IOV_MAX on Linux: what one writev takes
WORKER_THREADS: Final = 4  # cold reads and housekeeping: more only queue at the device
SYNC_THREADS: Final = 8  # where parallel fdatasyncs stop getting cheaper per file
LOCK_STRIPES: Final = 64  # enough that checkpoints of different logs rarely wait for each other
BOOT_ID_PATH: Final = "/proc/sys/kernel/random/boot_id"  # Linux only
_NO_WAIT: Final[int | None] = getattr(os, "RWF_NOWAIT", None)  # Linux only
_NO_WAIT_UNSUPPORTED: Final = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


Done = Callable[[Mapping[str, OSError]], None]


class Disk(Protocol):
    """What storage needs of a disk. Paths are strings; a path's file is opened as needed."""

    def append(self, path: str, buffers: Sequence[Buffer]) -> None:
        """Append to a file, creating it. After an OSError part of the bytes may be there."""
        ...

    def pread(self, path: str, size: int, position: int) -> Buffer:
        """Read; shorter than asked only at the end of the file."""
        ...

    def pread_nowait(self, path: str, size: int, position: int) -> Buffer | None:
        """Read from the page cache, None where that would wait for the device."""
        ...

    def file_range(self, path: str, position: int, size: int) -> FileRange | None:
        """A part of a file that a socket can take from the page cache; None: read it."""
        ...

    def write(self, path: str, data: Buffer) -> None:
        """Create a file or replace its content."""
        ...

    def write_durably(self, path: str, data: Buffer) -> None:
        """Replace a file: a crash leaves the old or the new content. One writer a path."""
        ...

    def make_private(self, path: str) -> None:
        """Let nobody but this user read a file."""
        ...

    def allocate(self, path: str, size: int) -> None:
        """Create a file whose room is taken at once, whatever is written into it later."""
        ...

    def truncate(self, path: str, size: int) -> None:
        """Cut a file to a size."""
        ...

    def size(self, path: str) -> int:
        """The bytes of a file."""
        ...

    def exists(self, path: str) -> bool:
        """Whether a file or directory is there."""
        ...

    def list(self, directory: str) -> list[str]:
        """The names in a directory, sorted; none if it does not exist."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file, if it is there."""
        ...

    def remove_tree(self, directory: str) -> None:
        """Remove a directory and all in it, if it is there."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory, replacing a file that has the name."""
        ...

    def make_directory(self, path: str) -> Sequence[str]:
        """Create a directory and its parents; returns the directories that got a new entry."""
        ...

    def sync(self, path: str) -> None:
        """Make a file's bytes and size durable."""
        ...

    def sync_directory(self, path: str) -> None:
        """Make a directory's entries durable."""
        ...

    def sync_everything(self, path: str) -> None:
        """Make durable whatever was written to the file system of a path, also by others."""
        ...

    def release(self, path: str) -> None:
        """Close the file if it is open and unused; the next use opens it again."""
        ...

    def exclusive(self, key: str) -> AbstractContextManager[Any]:
        """A re-entrant lock between the loop and the threads of this disk."""
        ...

    def lock(self, path: str) -> None:
        """Take the lock file for this process or raise DirectoryLocked."""
        ...

    def boot_id(self) -> str:
        """Which boot of the machine this is; empty if that cannot be known."""
        ...

    def free_bytes(self, directory: str) -> int:
        """What is left for us on the file system that holds a directory."""
        ...

    def total_bytes(self, directory: str) -> int:
        """The size of the file system that holds a directory."""
        ...

    def run(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        """Do blocking work off the running loop."""
        ...

    def sync_all(self, files: Sequence[str], directories: Sequence[str], done: Done) -> None:
        """One commit round off the loop; `done` is called on the loop with what failed, by path.

        A file or directory that was removed meanwhile is skipped.
        """
        ...

    def close(self) -> None:
        """Wait for running work, close every file and give up the lock."""
        ...


class _OpenFile:
    __slots__ = ("descriptor", "dropped", "users")

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.users = 0
        self.dropped = False


_Work = Sequence[tuple[Callable[[str], None], str]]
_Round = tuple[asyncio.AbstractEventLoop, Sequence[str], Sequence[str], Done]


class FileDisk:
    """The machine's file system; with `read_only` no file can be written through it."""

    def __init__(self, open_files_max: int = OPEN_FILES_MAX, *, read_only: bool = False) -> None:
        self._open_files_max = open_files_max
        self._flags = os.O_CLOEXEC | (os.O_RDONLY if read_only else os.O_RDWR | os.O_APPEND)
        self._files: OrderedDict[str, _OpenFile] = OrderedDict()
        self._mutex = threading.Lock()
        self._generation = 0  # counts drops, so that a file opened across one is not cached
        self._failed: dict[str, OSError] = {}
        self._stripes = [threading.RLock() for _ in range(LOCK_STRIPES)]
        self._lock_descriptors: list[int] = []
        self._workers = ThreadPoolExecutor(WORKER_THREADS, thread_name_prefix="chronik-disk")
        self._committer: threading.Thread | None = None
        self._rounds: SimpleQueue[_Round | None] = SimpleQueue()
        self._syncers: list[threading.Thread] = []
        self._shares: SimpleQueue[_Work | None] = SimpleQueue()
        self._shares_done: SimpleQueue[dict[str, OSError]] = SimpleQueue()

    # Descriptors

    def _acquire(self, path: str, create: bool = False) -> _OpenFile:
        while True:
            with self._mutex:
                file = self._files.get(path)
                if file is not None:
                    file.users += 1
                    self._files.move_to_end(path)
                    return file
                generation = self._generation
            flags = self._flags | (os.O_CREAT if create else 0)
            descriptor = os.open(path, flags, 0o644)  # Outside of the mutex: it may wait.
            with self._mutex:
                if generation != self._generation or path in self._files:
                    os.close(descriptor)
                    continue
                file = self._files[path] = _OpenFile(descriptor)
                file.users = 1
                self._evict()
                return file

    def _release(self, file: _OpenFile) -> None:
        with self._mutex:
            file.users -= 1
            if file.dropped and not file.users:
                os.close(file.descriptor)

    def _evict(self) -> None:
        while len(self._files) > self._open_files_max:
            _, file = self._files.popitem(last=False)
            self._discard(file)

    def _discard(self, file: _OpenFile) -> None:
        file.dropped = True
        if not file.users:
            os.close(file.descriptor)

    def _drop(self, path: str, *, is_tree: bool = False) -> None:
        """Forget a path, and all under it, because its name no longer means that file."""
        with self._mutex:
            self._generation += 1
            names = [path]
            if is_tree:
                below = path + "/"
                names += [n for n in (*self._files, *self._failed) if n.startswith(below)]
            for name in names:
                file = self._files.pop(name, None)
                if file is not None:
                    self._discard(file)
                self._failed.pop(name, None)

    @contextmanager
    def _open(self, path: str, create: bool = False) -> Iterator[int]:
        file = self._acquire(path, create)
        try:
            yield file.descriptor
        finally:
            self._release(file)

    def release(self, path: str) -> None:
        with self._mutex:
            file = self._files.get(path)
            if file is not None and not file.users:
                self._discard(self._files.pop(path))

    # Bytes

    def append(self, path: str, buffers: Sequence[Buffer]) -> None:
        if self._failed:
            self._check(path)
        file = self._acquire(path, create=True)
        try:
            if len(buffers) <= BUFFERS_MAX:
                written = os.writev(file.descriptor, buffers)
                if written == sum(map(len, buffers)):
                    return
                _write_rest(file.descriptor, buffers, written)
            else:
                _write_rest(file.descriptor, buffers, 0)
        finally:
            self._release(file)

    def pread(self, path: str, size: int, position: int) -> Buffer:
        with self._open(path) as descriptor:
            data = os.pread(descriptor, size, position)
            if len(data) == size or not data:
                return data
            parts = [data]
            done = len(data)
            while done < size and (data := os.pread(descriptor, size - done, position + done)):
                parts.append(data)
                done += len(data)
            return b"".join(parts)

    def pread_nowait(self, path: str, size: int, position: int) -> Buffer | None:
        if _NO_WAIT is None:
            return self.pread(path, size, position)
        file = self._acquire(path)
        try:
            view = memoryview(bytearray(size))
            done = 0
            while done < size:
                count = os.preadv(file.descriptor, [view[done:]], position + done, _NO_WAIT)
                if not count:
                    break
                done += count
            return view[:done]
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno not in _NO_WAIT_UNSUPPORTED:
                raise
            return self.pread(path, size, position)
        finally:
            self._release(file)

    def file_range(self, path: str, position: int, size: int) -> FileRange | None:
        if not CAN_SEND_FILES:
            return None
        file = self._acquire(path)
        part = FileRange(file.descriptor, position, size, partial(self._release, file))
        return part if is_cached(file.descriptor, position, size) else None

    def write(self, path: str, data: Buffer) -> None:
        with self._open(path, create=True) as descriptor:
            os.ftruncate(descriptor, 0)
            _write_rest(descriptor, [data], 0)

    def write_durably(self, path: str, data: Buffer) -> None:
        temporary = path + ".tmp"
        self.write(temporary, data)
        self.sync(temporary)
        self.rename(temporary, path)
        self.sync_directory(os.path.dirname(path))
        self.release(path)

    def make_private(self, path: str) -> None:
        os.chmod(path, 0o600)

    def allocate(self, path: str, size: int) -> None:
        with self._open(path, create=True) as descriptor:
            os.posix_fallocate(descriptor, 0, size)

    def truncate(self, path: str, size: int) -> None:
        with self._open(path) as descriptor:
            os.ftruncate(descriptor, size)

    # Names

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def list(self, directory: str) -> list[str]:
        try:
            return sorted(os.listdir(directory))
        except FileNotFoundError:
            return []

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        self._drop(path)

    def remove_tree(self, directory: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(directory)
        self._drop(directory, is_tree=True)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)
        is_tree = os.path.isdir(target)
        self._drop(source, is_tree=is_tree)
        self._drop(target, is_tree=is_tree)

    def make_directory(self, path: str) -> Sequence[str]:
        changed = []
        while not os.path.isdir(path):
            changed.append(path)
            path = os.path.dirname(path) or "."
        for created in reversed(changed):
            with contextlib.suppress(FileExistsError):
                os.mkdir(created)
        return [os.path.dirname(created) or "." for created in changed]

    # Durability

    def _check(self, path: str) -> None:
        error = self._failed.get(path)
        if error is not None:
            raise OSError(error.errno, f"an earlier fsync failed: {error.strerror}", path)

    def sync(self, path: str) -> None:
        self._check(path)
        with self._open(path) as descriptor:
            try:
                os.fdatasync(descriptor)
            except OSError as error:
                self._failed[path] = error
                raise

    def sync_directory(self, path: str) -> None:
        self._check(path)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except PermissionError:
            return  # Above the data directory: we create our own ones readable.
        try:
            os.fsync(descriptor)
        except OSError as error:
            self._failed[path] = error
            raise
        finally:
            os.close(descriptor)

    def sync_everything(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            sync_file_system(descriptor)
        finally:
            os.close(descriptor)

    def sync_all(self, files: Sequence[str], directories: Sequence[str], done: Done) -> None:
        if self._committer is None:
            self._committer = _thread(self._commit_rounds, "chronik-commit")
        self._rounds.put((asyncio.get_running_loop(), files, directories, done))

    def _commit_rounds(self) -> None:
        """The commit thread: one queue in, one callback out, so that a round costs two hops."""
        while (work := self._rounds.get()) is not None:
            loop, files, directories, done = work
            errors = self._sync_round(files, directories)
            with contextlib.suppress(RuntimeError):  # The loop was closed: nobody waits.
                loop.call_soon_threadsafe(done, errors)

    def _sync_round(self, files: Sequence[str], directories: Sequence[str]) -> dict[str, OSError]:
        work = [(self.sync, path) for path in files]
        work += [(self.sync_directory, path) for path in directories]
        if len(work) <= 1:
            return _sync_some(work)
        own, *others = (work[i::SYNC_THREADS] for i in range(min(SYNC_THREADS, len(work))))
        while len(self._syncers) < len(others):
            self._syncers.append(_thread(self._sync_shares, "chronik-sync"))
        for share in others:
            self._shares.put(share)
        errors = _sync_some(own)
        for _ in others:
            errors |= self._shares_done.get()
        return errors

    def _sync_shares(self) -> None:
        """A thread that helps the commit thread. Queues cost less than the futures of a pool."""
        while (share := self._shares.get()) is not None:
            self._shares_done.put(_sync_some(share))

    def run(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        return asyncio.get_running_loop().run_in_executor(self._workers, work)

    # Exclusion

    def exclusive(self, key: str) -> AbstractContextManager[Any]:
        return self._stripes[hash(key) % LOCK_STRIPES]

    def lock(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._hold(descriptor, path, fcntl.LOCK_EX)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)

    def lock_shared(self, path: str) -> None:
        """Keep nodes away while somebody looks, or raise DirectoryLocked; changes nothing.

        A copy of a directory may come without the file: nobody can hold it then.
        """
        with contextlib.suppress(FileNotFoundError):
            self._hold(os.open(path, os.O_RDONLY | os.O_CLOEXEC), path, fcntl.LOCK_SH)

    def _hold(self, descriptor: int, path: str, kind: int) -> None:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            by = f"process {holder}" if holder else "another process"
            directory = os.path.dirname(path)
            raise DirectoryLocked(f"the data directory {directory} is in use by {by}") from None
        self._lock_descriptors.append(descriptor)

    def boot_id(self) -> str:
        try:
            with open(BOOT_ID_PATH, encoding="ascii") as file:  # Nobody may open it for writing.
                return file.read().strip()
        except OSError:
            return ""

    def free_bytes(self, directory: str) -> int:
        return shutil.disk_usage(directory).free

    def total_bytes(self, directory: str) -> int:
        return shutil.disk_usage(directory).total

    def close(self) -> None:
        if self._committer is not None:
            self._rounds.put(None)
            self._committer.join()
        for _ in self._syncers:
            self._shares.put(None)
        for syncer in self._syncers:
            syncer.join()
        self._workers.shutdown(wait=True)
        with self._mutex:
            for file in self._files.values():
                self._discard(file)
            self._files.clear()
        for descriptor in self._lock_descriptors:
            os.close(descriptor)
        self._lock_descriptors.clear()


def _thread(work: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    return thread


def _sync_some(work: _Work) -> dict[str, OSError]:
    errors: dict[str, OSError] = {}
    for sync, path in work:
        try:
            sync(path)
        except FileNotFoundError:
            pass  # Removed by retention or deletion since the round began: nobody needs it.
        except OSError as error:
            errors[path] = error
    return errors


def _write_rest(descriptor: int, buffers: Sequence[Buffer], written: int) -> None:
    """Go on after a short write: pipes, quotas and signals can cut one anywhere."""
    rest = [memoryview(buffer).cast("B") for buffer in buffers if len(buffer)]
    while rest:
        while rest and written >= len(rest[0]):
            written -= len(rest.pop(0))
        if rest:
            rest[0] = rest[0][written:]
            written = os.writev(descriptor, rest[:BUFFERS_MAX])
