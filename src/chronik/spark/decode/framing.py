"""The frame that Confluent's serialisers put before a value: a zero byte and a schema's id.

    magic 0 (1 byte), schema id (4 bytes), then for protobuf the message's indexes, then the value

The id belongs to a registry that is not asked: values are read by the schema that was given. JSON
text and protobuf messages never begin with a zero byte, so that the frame is known by it. Avro may,
which is why its decoder tries both.
"""

from typing import Final

import numpy as np
import pyarrow as pa

from chronik.protocol.errors import ProtocolError
from chronik.protocol.records import read_varint
from chronik.spark.record_columns import Int64s, Spans

FRAME_SIZE: Final = 5
MAGIC: Final = 0


def is_framed(value: bytes) -> bool:
    """Whether a value may have the frame."""
    return len(value) >= FRAME_SIZE and value[0] == MAGIC


def unframed(values: pa.BinaryArray) -> pa.BinaryArray:
    """The values without the frame, where they have one."""
    starts, lengths, data = spans_of(values)
    long_enough = np.flatnonzero(lengths >= FRAME_SIZE)
    framed = long_enough[np.frombuffer(data, np.uint8)[starts[long_enough]] == MAGIC]
    if not len(framed):
        return values
    starts, lengths = starts.copy(), lengths.copy()
    starts[framed] += FRAME_SIZE
    lengths[framed] -= FRAME_SIZE
    return Spans(starts=starts, lengths=lengths).to_arrow(data)


def spans_of(values: pa.BinaryArray) -> tuple[Int64s, Int64s, pa.Buffer]:
    """Where each value lies in the array's buffer; length -1 is null."""
    _, offsets_buffer, data = values.buffers()
    count = len(values)
    if not count:
        empty = np.zeros(0, dtype=np.int64)
        return empty, empty, pa.py_buffer(b"")
    offsets = np.frombuffer(offsets_buffer, np.int32)[values.offset : values.offset + count + 1]
    starts = offsets[:-1].astype(np.int64)
    lengths = np.diff(offsets).astype(np.int64)
    if values.null_count:
        lengths[np.asarray(values.is_null())] = -1
    return starts, lengths, pa.py_buffer(b"") if data is None else data


def after_message_indexes(value: bytes) -> int:
    """Where a protobuf message begins in a framed value: after the path to its type."""
    try:
        count, position = read_varint(value, FRAME_SIZE)
        if count < 0:
            raise ValueError("the frame's message indexes are malformed")
        for _ in range(count):
            _, position = read_varint(value, position)
    except (IndexError, ProtocolError):
        raise ValueError("the frame's message indexes are malformed") from None
    return position
