"""What a partition's files say: its log, and the producers of what is in it. Blocks.

The producers come from their snapshot and the batches behind it. A snapshot is a shortcut: one that
cannot be read, or tells of more than the log has, is left out, and all batches are read.
"""

import logging
from typing import Final

from chronik.protocol.errors import ProtocolError
from chronik.replication.partition import Partition
from chronik.replication.producers import Producers
from chronik.storage.disk import Disk
from chronik.storage.scan import scan

logger = logging.getLogger(__name__)

PRODUCERS_FILE: Final = "producers"


def recover_partition(disk: Disk, partition: Partition, is_synced: bool) -> Producers:
    """Load the log; `is_synced` as in `Log.load`."""
    log = partition.log
    log.load(is_synced=is_synced)
    producers = recover_producers(disk, partition)
    for path in (f"{log.directory}/{PRODUCERS_FILE}", *(each.path for each in log.segments)):
        disk.release(path)  # It may have been loaded for a look, and stay idle.
    return producers


def recover_producers(disk: Disk, partition: Partition) -> Producers:
    """The producers of a log that is loaded."""
    log = partition.log
    producers = Producers()
    path = f"{log.directory}/{PRODUCERS_FILE}"
    if disk.exists(path):
        try:
            producers = Producers.from_snapshot(bytes(disk.pread(path, disk.size(path), 0)))
        except ProtocolError as reason:
            logger.warning("producers rebuilt", extra={"path": path, "reason": str(reason)})
    if producers.end_offset > log.end_offset:
        # It tells of batches that a crash has cut off, and would pass for true once as many
        # others are appended: it goes now.
        producers = Producers()
        disk.remove(path)
        disk.sync_directory(log.directory)
    partition.snapshot_offset = producers.end_offset
    producers.replay(scan(log, producers.end_offset))
    return producers
