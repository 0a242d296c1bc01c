"""Control batches: the markers that end a transaction in a partition.

A control batch has one record whose key says what it is and whose value depends on that:

    key    version int16 (0), type int16 (0 abort, 1 commit)
    value  version int16 (0), coordinator epoch int32

Later versions of either may be longer: what is known stands first. Other types (a Raft quorum's
own records) say nothing about transactions, and neither does a control batch without records,
which Kafka's compaction can leave.
"""

from struct import Struct
from typing import Final, NamedTuple

from chronik.protocol.batch import CONTROL_FLAG, TIMESTAMP_TYPE_FLAG, TRANSACTIONAL_FLAG
from chronik.protocol.errors import CorruptBatch
from chronik.protocol.records import BatchBuilder, iter_records
from chronik.protocol.schema import Buffer

ABORT: Final = 0
COMMIT: Final = 1
VERSION: Final = 0  # of both key and value

_KEY: Final = Struct(">hh")
_VALUE: Final = Struct(">hi")


class EndTxnMarker(NamedTuple):
    """How a transaction ended, and the epoch of the coordinator that says so."""

    commit: bool
    coordinator_epoch: int


def build_marker(
    marker: EndTxnMarker,
    *,
    producer_id: int,
    producer_epoch: int,
    timestamp: int,
    append_time: bool = False,
) -> bytes:
    """The control batch that ends a producer's transaction, with base offset 0."""
    builder = BatchBuilder()
    key = _KEY.pack(VERSION, COMMIT if marker.commit else ABORT)
    builder.append(timestamp, key, _VALUE.pack(VERSION, marker.coordinator_epoch))
    flags = TRANSACTIONAL_FLAG | CONTROL_FLAG | (TIMESTAMP_TYPE_FLAG if append_time else 0)
    return builder.build(producer_id=producer_id, producer_epoch=producer_epoch, flags=flags)


def read_marker(batch: Buffer) -> EndTxnMarker | None:
    """What a whole control batch says about a transaction. Raises CorruptBatch."""
    record = next(iter_records(batch), None)
    if record is None:
        return None
    key, value = record.key or b"", record.value or b""
    if len(key) < _KEY.size:
        raise CorruptBatch("a control record has no type")
    _, kind = _KEY.unpack_from(key)
    if kind not in (ABORT, COMMIT):
        return None
    if len(value) < _VALUE.size:
        raise CorruptBatch("a transaction marker has no coordinator epoch")
    return EndTxnMarker(commit=kind == COMMIT, coordinator_epoch=_VALUE.unpack_from(value)[1])
