"""Whether a replica still has all that it ever wrote: how its last run ended.

While a node runs a file in its data directory says so, and in which boot of the machine. A process
that was killed has lost nothing: what it wrote is in the page cache. A machine that went down has
lost what was not fsynced. So a run that did not end by itself counts as clean within the same boot.
What such a run has left there the next one may never touch, and the machine may go down later: the
next one syncs all of it when it starts, and that is done before its own end can be a clean one.
"""

from typing import Final

from chronik.storage.disk import Disk

FILE_NAME: Final = "running"


def ended_cleanly(disk: Disk, data_dir: str) -> bool:
    """Whether the last run left everything that it had written. Blocking."""
    path = f"{data_dir}/{FILE_NAME}"
    if not disk.exists(path):
        return True
    before = bytes(disk.pread(path, disk.size(path), 0)).decode(errors="replace")
    boot_id = disk.boot_id()
    return bool(boot_id) and before == boot_id


def was_killed(disk: Disk, data_dir: str) -> bool:
    """Whether the last run did not end by itself. Blocking."""
    return disk.exists(f"{data_dir}/{FILE_NAME}")


def mark_running(disk: Disk, data_dir: str) -> None:
    """From now on something is written that may be lost. Blocking.

    Not before the cluster knows how the last run ended: a process that dies earlier has told
    nobody, and the next one must still find out.
    """
    disk.write_durably(f"{data_dir}/{FILE_NAME}", disk.boot_id().encode())


def mark_stopped(disk: Disk, data_dir: str) -> None:
    """The run ends, and everything that it or an earlier one wrote is on disk. Blocking."""
    path = f"{data_dir}/{FILE_NAME}"
    if disk.exists(path):
        disk.remove(path)
        disk.sync_directory(data_dir)
