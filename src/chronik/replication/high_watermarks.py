"""What was committed, saved from time to time: a replica that restarts need not find out anew.

One small file for all partitions with several replicas. It may be old: a high watermark that is too
low is only a reader that waits until the leader knows better.
"""

import msgspec

from chronik.storage.disk import Disk

FILE_NAME = "high-watermarks"

Saved = dict[str, dict[int, int]]  # by topic id, then by partition


def read_high_watermarks(disk: Disk, data_dir: str) -> Saved:
    """What was saved last. Blocking."""
    path = f"{data_dir}/{FILE_NAME}"
    if not disk.exists(path):
        return {}
    try:
        return msgspec.json.decode(bytes(disk.pread(path, disk.size(path), 0)), type=Saved)
    except msgspec.MsgspecError:
        return {}  # All of it can be found out again.


def write_high_watermarks(disk: Disk, data_dir: str, saved: Saved) -> None:
    """Save. Blocking."""
    disk.write_durably(f"{data_dir}/{FILE_NAME}", msgspec.json.encode(saved))
