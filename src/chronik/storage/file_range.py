"""Bytes of a file on their way to a socket, which never pass through this process.

The kernel sends what it has in its page cache by itself (sendfile). That is worth it for large
ranges only, and only for those that are all there: what is missing would be read from the device
while the whole loop waits. `is_cached` asks the kernel, without reading.

A range keeps its file open, whatever becomes of the file's name, until it is dropped.
"""

import contextlib
import ctypes
import mmap
import os
import sys
from collections.abc import Callable
from errno import EIO
from typing import Final

from chronik.protocol.schema import Buffer

RANGE_BYTES_MIN: Final = 128 * 1024  # below, copying costs less than asking what is cached
CAN_SEND_FILES: Final = sys.platform == "linux"  # elsewhere both calls mean something else
_MAP_FAILED: Final = ctypes.c_void_p(-1).value

if CAN_SEND_FILES:
    _libc = ctypes.CDLL(None)
    _libc.mmap.restype = ctypes.c_void_p
    _libc.mmap.argtypes = (
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
    )  # fmt: skip
    _libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
    _libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


def is_cached(descriptor: int, position: int, size: int) -> bool:
    """Whether the page cache has all of a file's range; the mapping is never looked into."""
    before = position % mmap.PAGESIZE
    length = before + size
    address = _libc.mmap(
        None, length, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, position - before
    )
    if address == _MAP_FAILED:
        return False
    try:
        pages = ctypes.create_string_buffer(-(-length // mmap.PAGESIZE))
        return _libc.mincore(address, length, pages) == 0 and b"\0" not in pages.raw
    finally:
        _libc.munmap(address, length)


class FileRange:
    """Part of an open file, as a part of a message."""

    __slots__ = ("_descriptor", "_done", "_position", "_release", "_size")

    def __init__(
        self, descriptor: int, position: int, size: int, release: Callable[[], None]
    ) -> None:
        self._descriptor = descriptor
        self._position = position
        self._size = size
        self._done = 0
        self._release = release

    def __len__(self) -> int:
        return self._size

    def __del__(self) -> None:
        self._release()

    def send(self, socket_descriptor: int) -> None:
        """Let a socket take as much as it has room for."""
        # A peer that is gone is noticed by whoever writes the rest.
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while self._done < self._size:
                position, left = self._position + self._done, self._size - self._done
                sent = os.sendfile(socket_descriptor, self._descriptor, position, left)
                if not sent:
                    return
                self._done += sent

    def rest(self) -> Buffer:
        """What was not sent; raises OSError if it is not there any more."""
        left = self._size - self._done
        data = os.pread(self._descriptor, left, self._position + self._done) if left else b""
        if len(data) != left:
            raise OSError(EIO, "a file is shorter than the part of it that is to be sent")
        return data
