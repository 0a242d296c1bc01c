"""Syncs a whole file system at once, which Python has a call for only if errors do not matter."""

import ctypes
import os
import sys

if sys.platform == "linux":
    _libc = ctypes.CDLL(None, use_errno=True)


def sync_file_system(descriptor: int) -> None:
    """Make durable all that was written to the file system of an open file. Blocking.

    Linux says what went wrong, also before this call, if nobody has been told yet.
    """
    if sys.platform != "linux":
        os.sync()
    elif _libc.syncfs(descriptor) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
