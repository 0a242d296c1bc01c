"""Room that is kept for the metadata log: a file that is given up when the disk is full.

A full disk must not silence a node: it still has to write that others lead now, and that a topic
was deleted. So before the disk is full some room is taken, and given back when nothing else is
left. Partitions take no records meanwhile (`replication.room`), so it is not theirs.
"""

from typing import Final

from chronik.storage.disk import Disk

FILE_NAME: Final = "reserve"
RESERVE_BYTES: Final = 16 * 1024 * 1024  # hours of metadata changes, and a snapshot of them

START_BYTES: Final = 1024 * 1024  # the small files that a start writes, many times over


class Reserve:
    """The reserve of one data directory. Everything here blocks."""

    def __init__(self, disk: Disk, data_dir: str) -> None:
        self._disk = disk
        self._data_dir = data_dir
        self._path = f"{data_dir}/{FILE_NAME}"
        self.is_held = disk.exists(self._path)

    def take(self) -> bool:
        """Take it, if it was given up; whether it is there now."""
        if not self.is_held:
            try:
                self._disk.allocate(self._path, RESERVE_BYTES)
            except OSError:
                self._disk.remove(self._path)  # A part of it may be there.
            else:
                self.is_held = True
                self._disk.release(self._path)
        return self.is_held

    def make_room_to_start(self) -> None:
        """Give it up if even a start would fail."""
        if self.is_held and self._disk.free_bytes(self._data_dir) < START_BYTES:
            self.give_up()

    def give_up(self) -> None:
        """Let others have the room."""
        self.is_held = False
        self._disk.remove(self._path)
