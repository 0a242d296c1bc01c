"""Values as text: UTF-8, or an error."""

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chronik.spark.decode.decoder import Decoded, Rows, error_column, record_batch
from chronik.spark.decode.framing import spans_of
from chronik.spark.errors import OptionsError

_SCHEMA = pa.schema([("value", pa.string())])


@dataclass(frozen=True, slots=True)
class StringDecoder:
    """One column of text, or none: then it only tells which values are no text."""

    schema: pa.Schema = field(default=_SCHEMA)

    def __post_init__(self) -> None:
        if [each.type for each in self.schema] not in ([], [pa.string()]):
            raise OptionsError(
                f"decode=string gives one column of text, and not {self.schema.names}"
            )

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """The values as text."""
        errors = not_texts(values)
        if errors:
            is_bad = np.zeros(len(values), dtype=np.bool_)
            is_bad[list(errors)] = True
            values = pc.if_else(pa.array(is_bad), pa.scalar(None, pa.binary()), values)
        texts = [values.cast(pa.string())][: len(self.schema)]
        columns = record_batch(texts, self.schema, len(values))
        return Decoded(columns, error_column(errors, len(values)))


def not_texts(values: pa.BinaryArray) -> dict[int, str]:
    """The rows whose bytes are not UTF-8, and what is wrong with them."""
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        rows = _beyond_ascii(values)
    else:
        return {}
    errors = {}
    for row, value in zip(rows.tolist(), values.take(pa.array(rows)).to_pylist(), strict=True):
        try:
            if value is not None:
                value.decode()
        except UnicodeDecodeError as error:
            errors[row] = not_utf8(error)
    return errors


def _beyond_ascii(values: pa.BinaryArray) -> Rows:
    """The rows with any byte that is not ASCII; all rows if there are many such bytes."""
    starts, lengths, data = spans_of(values)
    begin, end = starts[0], starts[-1] + max(lengths[-1], 0)
    is_beyond = np.frombuffer(data, np.uint8)[begin:end] >= 0x80
    if np.count_nonzero(is_beyond) > len(values):
        return np.arange(len(values))
    places = begin + np.flatnonzero(is_beyond)
    return np.unique(np.searchsorted(starts, places, side="right") - 1)


def not_utf8(error: UnicodeDecodeError) -> str:
    """What is wrong with bytes that are no text."""
    return f"not UTF-8: {error.reason} (byte {error.start})"
