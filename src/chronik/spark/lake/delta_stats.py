"""What Delta's log says about a file: row count, nulls, least and greatest values.

Readers skip files by it, so it must never claim too little: a column whose statistics are
missing, cut or not a number is left out.
"""

import datetime
import decimal
import json
import math
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

COLUMNS_MAX: Final = 32  # as other writers of Delta do: the first ones are what queries filter on
TEXT_LENGTH_MAX: Final = 64


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
        values = _bounds(bounds)
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


def _bounds(chunks: list[Any]) -> tuple[Any, Any] | None:
    if not chunks or not all(chunk.has_min_max for chunk in chunks):
        return None
    try:
        least = _as_json(min(chunk.min for chunk in chunks), is_upper=False)
        greatest = _as_json(max(chunk.max for chunk in chunks), is_upper=True)
    except (TypeError, ValueError):
        return None
    return least, greatest


def _as_json(value: Any, *, is_upper: bool) -> Any:
    if isinstance(value, datetime.datetime):
        # Milliseconds is all that the log has room for: round the greatest up.
        extra = datetime.timedelta(microseconds=999 if is_upper else 0)
        utc = (value + extra).astimezone(datetime.UTC)
        return utc.strftime("%Y-%m-%dT%H:%M:%S.") + f"{utc.microsecond // 1000:03d}Z"
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        raise ValueError("readers disagree about decimals in JSON")
    if isinstance(value, bytes):
        raise ValueError("binary values have no order that readers agree on")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("not a number")
    if isinstance(value, str) and len(value) > TEXT_LENGTH_MAX:
        raise ValueError("a cut text is no bound")
    return value
