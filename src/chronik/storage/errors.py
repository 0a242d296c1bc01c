"""What can go wrong with stored data, each with what a person needs to act on it."""

import errno
from typing import Final

NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)


def is_no_room(error: BaseException | None) -> bool:
    """Whether something failed for want of room, which may come back, and for nothing worse."""
    return isinstance(error, OSError) and error.errno in NO_ROOM


class StorageError(Exception):
    """The disk or the data on it failed; never a client's mistake."""


class CorruptLog(StorageError):
    """Stored bytes are not what was written: the log is refused until salvaged or refilled."""

    def __init__(self, path: str, position: int, offset: int, reason: str) -> None:
        super().__init__(f"{path}: bytes from {position}, offset {offset}: {reason}")
        self.path = path
        self.position = position
        self.offset = offset
        self.reason = reason


class LogFailed(StorageError):
    """A write or fsync of this log failed earlier: what the disk holds is unknown."""


class OffsetOutOfRange(StorageError):
    """The offset lies outside of what the log holds now."""

    def __init__(self, offset: int, log_start_offset: int, end_offset: int) -> None:
        super().__init__(f"offset {offset} is not in [{log_start_offset}, {end_offset}]")
        self.offset = offset


class DirectoryLocked(StorageError):
    """Another process uses the data directory."""


class WouldBlock(Exception):
    """A read without waiting met bytes that are not in the page cache."""


class BadIndex(Exception):
    """An index file does not describe its log."""
