"""`chronik` on a disk whose size a test sets: `small_disks.py SIZE_FILE start ...`.

While the file exists, it says how many bytes all files of the data directory may have together.
Whatever does not fit fails as on a full file system: with ENOSPC, and what did fit is written.
"""

import errno
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import chronik.broker
from chronik.cli.main import main
from chronik.protocol.schema import Buffer
from chronik.storage.disk import FileDisk

COUNTED_FOR_S = 0.05  # how old the sum of all files may be
ENDLESS = 1 << 40


class SmallDisk(FileDisk):
    """A disk that is full when the test says so."""

    def __init__(self, size_file: Path, data_dir: Path) -> None:
        super().__init__()
        self._size_file, self._data_dir = size_file, data_dir
        self._counted_s = 0.0
        self._left = ENDLESS

    def _count(self) -> int:
        now_s = time.monotonic()
        if now_s - self._counted_s > COUNTED_FOR_S:
            self._counted_s = now_s
            try:
                size = int(self._size_file.read_text() or 0)
            except FileNotFoundError:
                self._left = ENDLESS
            else:
                self._left = max(size - used_bytes(self._data_dir), 0)
        return self._left

    def _use(self, size: int) -> None:
        if size > self._count():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._left -= size

    def append(self, path: str, buffers: Sequence[Buffer]) -> None:
        self._use(sum(map(len, buffers)))
        super().append(path, buffers)

    def write(self, path: str, data: Buffer) -> None:
        self._use(len(data))
        super().write(path, data)

    def allocate(self, path: str, size: int) -> None:
        self._use(size)
        super().allocate(path, size)

    def remove(self, path: str) -> None:
        super().remove(path)
        self._counted_s = 0.0

    def free_bytes(self, directory: str) -> int:
        return self._count()


def on_small_disk(size_file: Path) -> list[str]:
    """The command in the place of `chronik` for a node with such a disk."""
    return [sys.executable, __file__, str(size_file)]


def used_bytes(data_dir: Path) -> int:
    """What all files of a directory have together."""
    used = 0
    for directory, _, names in os.walk(data_dir):
        for name in names:
            try:
                used += os.stat(f"{directory}/{name}").st_size
            except FileNotFoundError:
                pass  # Renamed or removed since it was listed.
    return used


if __name__ == "__main__":
    given = Path(sys.argv.pop(1))
    directory = Path(sys.argv[sys.argv.index("--data-dir") + 1])
    chronik.broker.FileDisk = lambda: SmallDisk(given, directory)  # type: ignore[assignment,misc]
    main()
