"""What was committed, saved from time to time: a replica that restarts need not find out anew.

One small file for all partitions with several replicas. It may be old: a high watermark that is too
low is only a reader that waits until the leader knows better.
"""

from collections.abc import Iterable

import msgspec

from chronik.metadata.image import Topic, id_text
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


def gathered(
    now: Iterable[tuple[str, int, int]], saved: Saved, untouched: Iterable[tuple[Topic, int]]
) -> Saved:
    """What to save: what is known now, and what was saved of partitions not used since."""
    found: Saved = {}
    for topic, partition in untouched if saved else ():
        known = saved.get(id_text(topic.id), {}).get(partition)
        if known is not None:
            found.setdefault(id_text(topic.id), {})[partition] = known
    for topic_id, partition, high_watermark in now:
        found.setdefault(topic_id, {})[partition] = high_watermark
    return found
