"""A disk in memory, for brokers that live as long as a test.

Same protocol as `FileDisk`, no files, no threads: work that would run in a thread runs in a later
turn of the running loop, so that callers see the same order of events. Nothing survives it.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, TypeVar

from chronik.protocol.schema import Buffer
from chronik.storage.disk import Done
from chronik.storage.file_range import FileRange

T = TypeVar("T")

# Memory has no meaningful amount of free space; callers only compare it with small reserves.
FREE_BYTES: Final = 1 << 40


class MemoryDisk:
    """Files are byte arrays by path; a directory is a name in a set."""

    def __init__(self) -> None:
        self._files: dict[str, bytearray] = {}
        self._directories: set[str] = {"", "/", "."}

    # Bytes

    def append(self, path: str, buffers: Sequence[Buffer]) -> None:
        content = self._files.get(path)
        if content is None:
            content = self._create(path)
        for buffer in buffers:
            content += buffer

    def _create(self, path: str) -> bytearray:
        if _parent(path) not in self._directories:
            raise FileNotFoundError(path)
        content = self._files[path] = bytearray()
        return content

    def _content(self, path: str) -> bytearray:
        try:
            return self._files[path]
        except KeyError:
            raise FileNotFoundError(path) from None

    def pread(self, path: str, size: int, position: int) -> Buffer:
        # The view ends before an append can resize the array.
        with memoryview(self._content(path)) as view:
            return bytes(view[position : position + size])

    def pread_nowait(self, path: str, size: int, position: int) -> Buffer | None:
        return self.pread(path, size, position)

    def file_range(self, path: str, position: int, size: int) -> FileRange | None:
        return None

    def write(self, path: str, data: Buffer) -> None:
        self._create(path).extend(data)

    def write_durably(self, path: str, data: Buffer) -> None:
        temporary = path + ".tmp"
        self.write(temporary, data)
        self.sync(temporary)
        self.rename(temporary, path)
        self.sync_directory(_parent(path))

    def make_private(self, path: str) -> None:
        pass  # Nobody else can read it.

    def allocate(self, path: str, size: int) -> None:
        self.write(path, b"")  # Memory needs no reserve.

    def truncate(self, path: str, size: int) -> None:
        del self._content(path)[size:]

    # Names

    def size(self, path: str) -> int:
        return len(self._content(path))

    def exists(self, path: str) -> bool:
        return path in self._files or path in self._directories

    def list(self, directory: str) -> list[str]:
        names = [*self._files, *self._directories]
        return sorted(_name(path) for path in names if path and _parent(path) == directory)

    def remove(self, path: str) -> None:
        self._files.pop(path, None)

    def remove_tree(self, directory: str) -> None:
        below = directory + "/"
        for path in [p for p in self._files if p.startswith(below)]:
            del self._files[path]
        self._directories -= {
            path for path in self._directories if path == directory or path.startswith(below)
        }

    def rename(self, source: str, target: str) -> None:
        if source in self._files:
            self._files[target] = self._files.pop(source)
            return
        if source not in self._directories:
            raise FileNotFoundError(source)
        below = source + "/"
        for path in [p for p in self._files if p.startswith(below)]:
            self._files[target + path[len(source) :]] = self._files.pop(path)
        moved = {p for p in self._directories if p == source or p.startswith(below)}
        self._directories -= moved
        self._directories |= {target + path[len(source) :] for path in moved}

    def make_directory(self, path: str) -> Sequence[str]:
        changed = []
        while path not in self._directories:
            self._directories.add(path)
            path = _parent(path)
            changed.append(path)
        return changed

    # Durability

    def sync(self, path: str) -> None:
        self._content(path)

    def sync_directory(self, path: str) -> None:
        if path not in self._directories:
            raise FileNotFoundError(path)

    def sync_everything(self, path: str) -> None:
        pass

    def release(self, path: str) -> None:
        pass

    def exclusive(self, key: str) -> AbstractContextManager[Any]:
        return nullcontext()

    def lock(self, path: str) -> None:
        pass

    def boot_id(self) -> str:
        return ""  # As if the machine had gone down: whatever is not synced may be lost.

    def free_bytes(self, directory: str) -> int:
        return FREE_BYTES

    def total_bytes(self, directory: str) -> int:
        return FREE_BYTES + sum(map(len, self._files.values()))

    def run(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        loop.call_soon(_complete, future, work)
        return future

    def sync_all(self, files: Sequence[str], directories: Sequence[str], done: Done) -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(lambda: loop.call_soon(done, self._sync_round(files, directories)))

    def _sync_round(self, files: Sequence[str], directories: Sequence[str]) -> dict[str, OSError]:
        errors: dict[str, OSError] = {}
        work = [(self.sync, path) for path in files]
        work += [(self.sync_directory, path) for path in directories]
        for sync, path in work:
            try:
                if self.exists(path):
                    sync(path)
            except OSError as error:
                errors[path] = error
        return errors

    def close(self) -> None:
        pass


def _complete(future: "asyncio.Future[T]", work: Callable[[], T]) -> None:
    if future.cancelled():
        return
    try:
        result = work()
    except Exception as error:
        future.set_exception(error)
    else:
        future.set_result(result)


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _name(path: str) -> str:
    return path.rpartition("/")[2]
