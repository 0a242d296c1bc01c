"""A disk that remembers what is on the platter and what is only in the page cache.

`crash` keeps what was fsynced and lets chance decide about the rest: bytes that were not synced are
dropped, torn or kept; creations, renames and removals in a directory that was not synced happen or
not, each on its own. A disk can be told to fail at a certain operation, and to ignore one kind of
fsync, which a test then must notice.
"""

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from chronik.protocol.schema import Buffer
from chronik.storage.memory import MemoryDisk


class Crash(OSError):
    """The machine lost power in the middle of an operation."""


@dataclass(eq=False)
class File:
    content: bytearray = field(default_factory=bytearray)
    durable: bytes = b""


@dataclass(eq=False)
class Directory:
    entries: dict[str, "File | Directory"] = field(default_factory=dict)
    durable: dict[str, "File | Directory"] = field(default_factory=dict)
    # Each change gives entries that the names get, None for a name that goes away.
    pending: list[dict[str, "File | Directory | None"]] = field(default_factory=list)

    def apply(self, change: "dict[str, File | Directory | None]") -> None:
        _apply(self.entries, change)
        self.pending.append(change)


def _apply(
    entries: "dict[str, File | Directory]", change: "dict[str, File | Directory | None]"
) -> None:
    for name, node in change.items():
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


Ignore = Callable[[str, str, str], bool]


def nothing_ignored(kind: str, path: str, caller: str) -> bool:
    return False


class CrashDisk(MemoryDisk):
    """`ignore(kind, path, caller)` says which syncs do nothing; the caller is a function's name.

    Kinds: file, directory, replaced file, replaced directory (the last two in `write_durably`).
    """

    def __init__(self, ignore: Ignore = nothing_ignored) -> None:
        super().__init__()
        self.root = Directory()
        self.ignore = ignore
        self.operations_left = -1  # no crash
        self.operation_count = 0
        self._replacing = ""

    # The crash

    def _step(self) -> None:
        self.operation_count += 1
        if self.operations_left == 0:
            raise Crash
        self.operations_left -= 1

    def crash(self, seed: int) -> None:
        """Lose power and come back with what survived."""
        rng = random.Random(seed)
        self.end_process()
        _survive_directory(self.root, rng)

    def end_process(self) -> None:
        """The process ends; what it has written stays in the page cache."""
        self.operations_left = -1
        self._replacing = ""

    # Names

    def _find(self, path: str) -> "File | Directory | None":
        node: File | Directory | None = self.root
        for name in path.split("/"):
            if name:
                if not isinstance(node, Directory):
                    return None
                node = node.entries.get(name)
        return node

    def _directory(self, path: str) -> Directory:
        node = self._find(path)
        if not isinstance(node, Directory):
            raise FileNotFoundError(path)
        return node

    def _file(self, path: str) -> File:
        node = self._find(path)
        if not isinstance(node, File):
            raise FileNotFoundError(path)
        return node

    def _content(self, path: str) -> bytearray:
        return self._file(path).content

    def _create(self, path: str) -> bytearray:
        parent, _, name = path.rpartition("/")
        file = File()
        self._directory(parent).apply({name: file})
        return file.content

    def append(self, path: str, buffers: Sequence[Buffer]) -> None:
        self._step()
        content = self._content(path) if self.exists(path) else self._create(path)
        for buffer in buffers:
            content += buffer

    def write(self, path: str, data: Buffer) -> None:
        self._step()
        content = self._content(path) if self.exists(path) else self._create(path)
        content[:] = data

    def write_durably(self, path: str, data: Buffer) -> None:
        self._replacing = "replaced "
        try:
            super().write_durably(path, data)
        finally:
            self._replacing = ""

    def truncate(self, path: str, size: int) -> None:
        self._step()
        super().truncate(path, size)

    def exists(self, path: str) -> bool:
        return self._find(path) is not None

    def list(self, directory: str) -> list[str]:
        node = self._find(directory)
        return sorted(node.entries) if isinstance(node, Directory) else []

    def remove(self, path: str) -> None:
        self._step()
        parent, _, name = path.rpartition("/")
        if self.exists(path):
            self._directory(parent).apply({name: None})

    def remove_tree(self, directory: str) -> None:
        self.remove(directory)

    def rename(self, source: str, target: str) -> None:
        self._step()
        parent, _, name = source.rpartition("/")
        target_parent, _, target_name = target.rpartition("/")
        assert parent == target_parent, "renames across directories are not modelled"
        node = self._find(source)
        if node is None:
            raise FileNotFoundError(source)
        self._directory(parent).apply({name: None, target_name: node})

    def make_directory(self, path: str) -> Sequence[str]:
        self._step()
        changed = []
        where = ""
        for name in path.strip("/").split("/"):
            parent = self._directory(where)
            if name not in parent.entries:
                parent.apply({name: Directory()})
                changed.append(where)
            where = f"{where}/{name}"
        return changed

    # Durability

    def sync(self, path: str) -> None:
        self._step()
        file = self._file(path)
        if not self.ignore(self._replacing + "file", path, _caller()):
            file.durable = bytes(file.content)

    def sync_directory(self, path: str) -> None:
        self._step()
        directory = self._directory(path)
        if not self.ignore(self._replacing + "directory", path, _caller()):
            directory.durable = dict(directory.entries)
            directory.pending.clear()

    def sync_everything(self, path: str) -> None:
        self._step()
        if not self.ignore("everything", path, _caller()):
            _survive_whole(self.root)

    @property
    def is_synced(self) -> bool:
        """Whether a crash would lose nothing."""
        return _is_synced(self.root)


def _caller() -> str:
    return sys._getframe(2).f_code.co_name


def _survive_directory(directory: Directory, rng: random.Random) -> None:
    entries = dict(directory.durable)
    for change in directory.pending:
        if rng.random() < 0.5:
            _apply(entries, change)
    directory.entries = entries
    directory.durable = dict(entries)
    directory.pending = []
    for node in entries.values():
        if isinstance(node, Directory):
            _survive_directory(node, rng)
        else:
            node.durable = _survive_file(node.durable, bytes(node.content), rng)
            node.content = bytearray(node.durable)


def _survive_whole(directory: Directory) -> None:
    directory.durable = dict(directory.entries)
    directory.pending.clear()
    for node in directory.entries.values():
        if isinstance(node, Directory):
            _survive_whole(node)
        else:
            node.durable = bytes(node.content)


def _is_synced(directory: Directory) -> bool:
    return not directory.pending and all(
        _is_synced(node) if isinstance(node, Directory) else node.durable == bytes(node.content)
        for node in directory.entries.values()
    )


def _survive_file(durable: bytes, current: bytes, rng: random.Random) -> bytes:
    chance = rng.random()
    if chance < 0.3 or current == durable:
        return durable
    if chance < 0.6:
        return current
    if durable.startswith(current):  # A truncation happened or not.
        return rng.choice((durable, current))
    kept = durable if current.startswith(durable) else b""
    rest = current[len(kept) :]
    rest = rest[: rng.randrange(len(rest) + 1)]
    torn_from = rng.randrange(len(rest) + 1)
    torn = len(rest) - torn_from
    return kept + rest[:torn_from] + rng.choice((bytes(torn), rng.randbytes(torn), b""))
