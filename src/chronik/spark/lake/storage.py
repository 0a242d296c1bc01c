"""The files of a warehouse, on a local disk or in an object store, by pyarrow's file systems.

A `Storage` is a directory. It is picklable: a task on another machine opens the same one. What is
written to a local disk is synced, because a commit that follows says that it is there; an object
is durable once it is closed. What goes wrong is a LakeError, but for a file that is not there.
"""

import os
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from chronik.spark.lake.failures import telling
from chronik.spark.lake.object_store import BY_ITSELF, ObjectStore, is_local
from chronik.spark.lake.table import LakeError

if TYPE_CHECKING:
    from pyarrow import fs


@dataclass(frozen=True, slots=True)
class Storage:
    """A directory of the warehouse."""

    url: str
    store: ObjectStore = BY_ITSELF

    @property
    def is_local(self) -> bool:
        return is_local(self.url)

    @property
    def path(self) -> str:
        """The path within its file system."""
        return str(self._open()[1])

    def at(self, *parts: str) -> "Storage":
        """A directory below this one."""
        return Storage(posixpath.join(self.url, *parts), self.store)

    def _open(self) -> "tuple[fs.FileSystem, str]":
        from pyarrow import fs

        if "://" not in self.url:
            return fs.LocalFileSystem(), os.path.abspath(self.url)
        return self.store.file_system(self.url)

    def create(self, path: str) -> "IO[Any]":
        """A new file, open for writing. Finish it with `sync` once it is closed."""
        opened, root = self._open()
        target = posixpath.join(root, path)
        with telling(self.url):
            if self.is_local:  # A store has no directories: what looks like one is an object.
                opened.create_dir(posixpath.dirname(target), recursive=True)
            return opened.open_output_stream(target)  # type: ignore[no-any-return]

    def sync(self, path: str) -> int:
        """Make a closed file durable, and return its size."""
        opened, root = self._open()
        target = posixpath.join(root, path)
        if self.is_local:
            for name in (target, posixpath.dirname(target)):
                descriptor = os.open(name, os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
        with telling(self.url):
            return int(opened.get_file_info(target).size)

    def size(self, path: str) -> int | None:
        """A file's bytes, None if there is no such file."""
        from pyarrow import fs

        opened, root = self._open()
        with telling(self.url):
            info = opened.get_file_info(posixpath.join(root, path))
        return int(info.size) if info.type is fs.FileType.File else None

    def write(self, path: str, content: bytes) -> None:
        """Write a small file; it is there whole or not at all."""
        target = f"{path}.partial" if self.is_local else path
        with telling(self.url), self.create(target) as stream:
            stream.write(content)
        self.sync(target)
        if target != path:
            opened, root = self._open()
            opened.move(posixpath.join(root, target), posixpath.join(root, path))
            self.sync(path)

    def read(self, path: str) -> bytes:
        """A small file's bytes, or FileNotFoundError."""
        with telling(self.url), self.open_file(path) as stream:
            return bytes(stream.read())

    def open_file(self, path: str) -> "IO[Any]":
        """A file, open for reading anywhere in it."""
        opened, root = self._open()
        with telling(self.url):
            return opened.open_input_file(posixpath.join(root, path))  # type: ignore[no-any-return]

    def delete(self, path: str) -> None:
        """Delete a file; one that is gone already is fine."""
        opened, root = self._open()
        try:
            with telling(self.url):
                opened.delete_file(posixpath.join(root, path))
        except FileNotFoundError:
            return

    def list(self) -> Iterator[tuple[str, int, int]]:
        """(path relative to this directory, bytes, last changed in ms) of every file below it."""
        from pyarrow import fs

        opened, root = self._open()
        selector = fs.FileSelector(root, allow_not_found=True, recursive=True)
        with telling(self.url):
            found = opened.get_file_info(selector)
        for info in found:
            if info.type is fs.FileType.File:
                changed_ms = (info.mtime_ns or 0) // 1_000_000
                yield posixpath.relpath(info.path, root), int(info.size), changed_ms

    def check(self) -> None:
        """Raise LakeError if there is no such bucket, or the store does not let us in."""
        from pyarrow import fs

        if self.is_local:
            return
        opened, root = self._open()
        with telling(f"{self.url} at {self.store.name}"):
            if opened.get_file_info(fs.FileSelector(root, allow_not_found=True)):
                return
            # Nothing is there yet, or the bucket is missing.
            bucket = root.partition("/")[0]
            if opened.get_file_info(bucket).type is fs.FileType.NotFound:
                raise LakeError(
                    f"{self.url}: there is no bucket {bucket} at {self.store.name}: create it, or "
                    "check the URL of the warehouse"
                )
