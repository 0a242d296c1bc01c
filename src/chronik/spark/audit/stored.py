"""Reads one replica of a partition from the files of a stopped node.

The same rows as of a running one (`replicas`), and the offsets of its committed records, which a
broker would else have told: aborted transactions follow from the markers in the log.

Invariant: what is damaged is one row, and what follows it is read.
"""

from collections.abc import Iterator
from contextlib import closing

import numpy as np

from chronik.client.aborted import AbortedBatches
from chronik.protocol.batch import Batch, verify_crc
from chronik.protocol.control import read_marker
from chronik.protocol.errors import CorruptBatch, ProtocolError
from chronik.protocol.messages.fetch import AbortedTransaction
from chronik.spark.audit.replicas import Replica, Row, batch_row, unread_row
from chronik.spark.record_columns import Int64s, read_columns, unpack
from chronik.storage.disk import FileDisk
from chronik.storage.errors import CorruptLog
from chronik.storage.stopped import Hole, StoppedLog


def stored_rows(replica: Replica) -> Iterator[Row]:
    """A row for each batch of a replica, from its directory."""
    with closing(FileDisk(read_only=True)) as disk:
        try:
            yield from _rows(StoppedLog(disk, replica.directory), replica)
        except CorruptLog as error:
            yield unread_row(replica.start_offset, replica, "crc", str(error))
        except OSError as error:
            where = error.filename or replica.directory
            text = f"it cannot be read: {where}: {error.strerror}"
            yield unread_row(replica.start_offset, replica, "unreadable", text)


def _rows(log: StoppedLog, replica: Replica) -> Iterator[Row]:
    position, is_first = max(replica.start_offset, log.checkpoint.log_start_offset), True
    why = "nothing follows"
    for piece in log.batches(position):
        if isinstance(piece, Hole):
            why = f"{piece.path}, from byte {piece.position} on: {piece.reason}"
            if not piece.is_tail:
                yield Row(position, position, kind="crc", problem=f"bytes are no batch: {why}")
            continue
        header = piece.header
        if header.base_offset >= replica.end_offset:
            break
        # The log may start in the middle of a batch.
        begins_before = is_first and header.base_offset < position
        expected = header.base_offset if begins_before else position
        is_first = False
        yield batch_row(piece, expected, is_compacted=replica.is_compacted)
        position = max(position, header.next_offset)
    if replica.is_compacted:
        yield from _shortened(log, replica)
    elif position < replica.end_offset:
        problem = f"offsets {position} to {replica.end_offset - 1} are missing: {why}"
        yield unread_row(position, replica, "gap", problem)


def _shortened(log: StoppedLog, replica: Replica) -> Iterator[Row]:
    """What a compacted log lacks: offsets do not tell, but the checkpoint does."""
    for path in log.shortened():
        problem = f"{path} is not as long as the checkpoint says"
        yield unread_row(replica.start_offset, replica, "gap", problem)
    end_offset, recovery_point = log.end_offset(), log.checkpoint.recovery_point
    if end_offset < recovery_point:
        problem = f"it ends at {end_offset}, and had {recovery_point} on disk"
        yield unread_row(end_offset, replica, "gap", problem)


def stored_offsets(directory: str, start_offset: int, end_offset: int) -> Iterator[Int64s]:
    """The offsets of the committed data records of a range, in order."""
    with closing(FileDisk(read_only=True)) as disk:
        log = StoppedLog(disk, directory)
        aborted = AbortedBatches(_aborted(log, end_offset))
        for batch in _batches(log, end_offset):
            header = batch.header
            if header.is_control:
                if _is_sound(batch):
                    aborted.ended(batch)
            elif not aborted.includes(batch) and header.next_offset > start_offset:
                offsets = _offsets_in(batch)
                yield offsets[(offsets >= start_offset) & (offsets < end_offset)]


def _batches(log: StoppedLog, end_offset: int) -> Iterator[Batch]:
    for piece in log.batches(log.checkpoint.log_start_offset):
        if isinstance(piece, Batch):
            if piece.header.base_offset >= end_offset:
                return
            yield piece


def _aborted(log: StoppedLog, end_offset: int) -> list[AbortedTransaction]:
    """The transactions that were aborted, as the markers say."""
    begun: dict[int, int] = {}
    found = []
    for batch in _batches(log, end_offset):
        producer_id = batch.header.producer_id
        if batch.header.is_control and _is_sound(batch):
            marker = read_marker(batch.data)
            first_offset = begun.pop(producer_id, None) if marker is not None else None
            if marker is not None and not marker.commit and first_offset is not None:
                found.append(AbortedTransaction(producer_id=producer_id, first_offset=first_offset))
        elif batch.header.is_transactional:
            begun.setdefault(producer_id, batch.header.base_offset)
    return found


def _is_sound(batch: Batch) -> bool:
    try:
        verify_crc(batch)
        read_marker(batch.data)
    except ProtocolError:
        return False
    return True


def _offsets_in(batch: Batch) -> Int64s:
    """The offsets of a batch's records; of a damaged one, which is told elsewhere, all it spans."""
    try:
        verify_crc(batch)
        return read_columns([unpack(batch)]).offsets
    except (CorruptBatch, ProtocolError, ValueError):
        return np.arange(batch.header.base_offset, batch.header.next_offset, dtype=np.int64)
