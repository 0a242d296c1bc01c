"""The metadata of a stopped node, read from its directory without changing it.

All that the log holds is taken, also what was not known to be committed when the node stopped. Of
several nodes' logs the one that goes furthest, by term and then by index, has everything that was
committed: its node is the one that would be elected.
"""

from dataclasses import dataclass

from chronik.metadata.image import Image
from chronik.metadata.journal import (
    METADATA_DIRECTORY,
    UnusableMetadata,
    decode_entry,
    decode_snapshot,
    read_vote,
    records_of,
    snapshot_names,
)
from chronik.protocol.batch import Batch, verify_crc
from chronik.protocol.errors import CorruptBatch
from chronik.raft.types import FIRST_INDEX, Snapshot
from chronik.storage.disk import Disk
from chronik.storage.errors import CorruptLog
from chronik.storage.stopped import StoppedLog


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedMetadata:
    """What one node knew, and how far its log goes."""

    image: Image
    last_term: int
    last_index: int

    @property
    def reach(self) -> tuple[int, int]:
        return self.last_term, self.last_index


def read_metadata(disk: Disk, data_dir: str) -> StoppedMetadata:
    """What a node's directory says; UnusableMetadata if it lacks what was committed."""
    directory = f"{data_dir}/{METADATA_DIRECTORY}"
    try:
        committed = read_vote(disk, f"{directory}/vote.json").commit_index
        found = _replayed(disk, directory)
    except FileNotFoundError as error:
        raise UnusableMetadata(f"{error.filename} is missing") from None
    except CorruptLog as error:
        raise UnusableMetadata(str(error)) from None
    if found.last_index < committed:
        raise UnusableMetadata(
            f"{directory}: the log can be read up to entry {found.last_index}, and everything up "
            f"to {committed} was committed"
        )
    return found


def _replayed(disk: Disk, directory: str) -> StoppedMetadata:
    image, index, term = Image(), FIRST_INDEX - 1, 0
    snapshot: Snapshot | None = None
    names = snapshot_names(disk, directory)
    if names:
        path = f"{directory}/{names[-1]}"
        snapshot, records = decode_snapshot(bytes(disk.pread(path, disk.size(path), 0)), path)
        image, index, term = image.apply(records), snapshot.index, snapshot.term
    for piece in StoppedLog(disk, directory).batches(index):
        if not isinstance(piece, Batch) or not _is_sound(piece):
            break
        header = piece.header
        if snapshot is not None and header.base_offset == snapshot.index:
            if header.leader_epoch != snapshot.term:
                break  # The snapshot is a leader's, and takes the place of this log.
            continue
        if header.base_offset != index + 1:
            break
        index, term = header.base_offset, header.leader_epoch
        image = image.apply(records_of(decode_entry(piece.data, index, term)))
    return StoppedMetadata(image=image, last_term=term, last_index=index)


def _is_sound(batch: Batch) -> bool:
    try:
        verify_crc(batch)
    except CorruptBatch:
        return False
    return True
