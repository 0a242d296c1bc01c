"""What Delta's log says about a file: row count, nulls, least and greatest values.

Readers skip files by it, so it must never claim too little. A column whose statistics are missing
or not a number is left out. Otherwise it is there if it can be: where only some files have a
column's bounds, deltalake's dataset takes those of the others for null, and shows none of their
rows to whoever filters by it. So a long text is cut to a bound, and times are there for all years
that readers have.
"""

import decimal
import json
import math
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

COLUMNS_MAX: Final = 32  # as other writers of Delta do: the first ones are what queries filter on
TEXT_LENGTH_MAX: Final = 64
_LAST_CHARACTER: Final = "\U0010ffff"  # behind a text that was cut: what it was comes before that
_LAST_TEXT: Final = _LAST_CHARACTER * TEXT_LENGTH_MAX
_FIRST: Final = np.datetime64("0001-01-01", "us")
_LAST: Final = np.datetime64("9999-12-31T23:59:59.999999", "us")


def delta_stats(footer: pq.FileMetaData) -> str:
    """The statistics of a file, as JSON."""
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for index, field in enumerate(_flat_columns(footer)):
        if field is None:
            continue
        chunks = [
            footer.row_group(group).column(index).statistics
            for group in range(footer.num_row_groups)
        ]
        if not chunks or any(chunk is None for chunk in chunks):
            continue
        if all(chunk.has_null_count for chunk in chunks):
            nulls[field.name] = sum(chunk.null_count for chunk in chunks)
        bounds = [
            chunk for chunk in chunks if chunk.null_count != chunk.num_values + chunk.null_count
        ]
        values = _bounds(bounds, field.type)
        if values is not None:
            least[field.name], greatest[field.name] = values
    stats = {"numRecords": footer.num_rows, "minValues": least, "maxValues": greatest}
    return json.dumps({**stats, "nullCount": nulls}, separators=(",", ":"))


def _flat_columns(footer: pq.FileMetaData) -> list[pa.Field | None]:
    """Of each leaf: its column if it is one by itself, else None."""
    schema = footer.schema.to_arrow_schema()
    leaves: list[pa.Field | None] = []
    for index in range(min(footer.num_columns, COLUMNS_MAX)):
        path = footer.schema.column(index).path
        leaves.append(schema.field(path) if path in schema.names else None)
    return leaves


def _bounds(chunks: list[Any], kind: pa.DataType) -> tuple[Any, Any] | None:
    if not chunks:
        return None
    if not all(chunk.has_min_max for chunk in chunks):
        # Parquet has no bounds of texts that are very long. Those are bounds of any.
        return ("", _LAST_TEXT) if pa.types.is_string(kind) else None
    try:
        if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
            # As the file has it: Python's calendar has fewer years.
            least = np.datetime64(min(chunk.min_raw for chunk in chunks), _unit(kind))
            greatest = np.datetime64(max(chunk.max_raw for chunk in chunks), _unit(kind))
            return _time_as_json(least, is_upper=False), _time_as_json(greatest, is_upper=True)
        return (
            _as_json(min(chunk.min for chunk in chunks), is_upper=False),
            _as_json(max(chunk.max for chunk in chunks), is_upper=True),
        )
    except (TypeError, ValueError):
        return None


def _unit(kind: pa.DataType) -> Any:
    return kind.unit if pa.types.is_timestamp(kind) else "D"


def _time_as_json(value: np.datetime64, *, is_upper: bool) -> str:
    is_date = np.datetime_data(value)[0] == "D"
    # In its own unit: the others overflow for what is far enough away.
    first, last = (each.astype("datetime64[D]") if is_date else each for each in (_FIRST, _LAST))
    if not first <= value <= last:
        raise ValueError("readers in Python have no such year")
    if is_date:
        return str(value)
    # Milliseconds is what all readers know: round the greatest up, unless that is another year.
    milliseconds = value.astype("datetime64[ms]")
    if is_upper and milliseconds < value:
        milliseconds += np.timedelta64(1, "ms")
    return f"{milliseconds if milliseconds <= _LAST else value}Z"


def _as_json(value: Any, *, is_upper: bool) -> Any:
    if isinstance(value, decimal.Decimal):
        raise ValueError("readers disagree about decimals in JSON")
    if isinstance(value, bytes):
        raise ValueError("binary values have no order that readers agree on")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("not a number")
    if isinstance(value, str) and len(value) > TEXT_LENGTH_MAX:
        if not is_upper:
            return value[:TEXT_LENGTH_MAX]
        is_last = value[TEXT_LENGTH_MAX] == _LAST_CHARACTER
        return _LAST_TEXT if is_last else value[:TEXT_LENGTH_MAX] + _LAST_CHARACTER
    return value
