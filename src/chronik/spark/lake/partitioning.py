"""What a table is partitioned by, and which part of it a row belongs to.

Written as in `day(_timestamp),country`: a column itself, or the hour, day, month or year (in UTC)
of a date or timestamp. A part is named by text, the same for both formats, so that a file's
description does not depend on where it goes.

Iceberg keeps the field in the table's metadata. Delta has only columns, so a span of time becomes
a column of its own (`_timestamp_day`), and cannot tell an empty string from null in one.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chronik.spark.lake.table import LakeError, PartitionField

TRANSFORMS: Final = {"hour": "%Y-%m-%d-%H", "day": "%Y-%m-%d", "month": "%Y-%m", "year": "%Y"}
_YEARS: Final = ("0001-01-01T00:00:00", "9999-12-31T23:59:59")
_FIELD: Final = re.compile(r"(?:(hour|day|month|year)\(\s*(\w+)\s*\)|(\w+))")


def parse_partitioning(text: str) -> tuple[PartitionField, ...]:
    """The fields that a topic's setting names."""
    fields = []
    for part in filter(None, (each.strip() for each in text.split(","))):
        match = _FIELD.fullmatch(part)
        if match is None:
            raise LakeError(
                f"cannot partition by {part!r}: write a column, or hour(c), day(c), month(c) or "
                "year(c) of a timestamp column c, several separated by commas"
            )
        transform, of_time, column = match.groups()
        fields.append(PartitionField(column or of_time, transform or "identity"))
    return tuple(fields)


def check_partitioning(fields: tuple[PartitionField, ...], schema: pa.Schema) -> None:
    """Raise LakeError if the schema has no such columns or they cannot part a table."""
    for field in fields:
        if field.column not in schema.names:
            raise LakeError(
                f"cannot partition by {field.column}: there is no such column; the columns are "
                f"{', '.join(schema.names)}"
            )
        kind = schema.field(field.column).type
        if field.transform != "identity":
            if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
                raise LakeError(f"{field.transform}({field.column}) needs a timestamp, not {kind}")
        elif not _can_part(kind):
            raise LakeError(
                f"cannot partition by {field.column} of type {kind}: a string, whole number, "
                "boolean or date can be partitioned by"
            )


def _can_part(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_date32(kind)
    )


def parts_of(
    batch: pa.RecordBatch, fields: tuple[PartitionField, ...]
) -> Iterator[tuple[tuple[str | None, ...], pa.RecordBatch]]:
    """The batch cut by part; the order of rows within a part is kept."""
    if not fields or not batch.num_rows:
        yield (None,) * len(fields), batch
        return
    texts = [_texts(batch.column(field.column), field.transform) for field in fields]
    codes = [text.dictionary_encode(null_encoding="encode") for text in texts]
    if all(len(code.dictionary) == 1 for code in codes):
        yield tuple(code.dictionary[0].as_py() for code in codes), batch
        return
    key = pa.array([0] * batch.num_rows, pa.int64())
    for code in codes:
        key = pc.add(pc.multiply(key, len(code.dictionary)), code.indices.cast(pa.int64()))
    for number in pc.unique(key):
        rows = batch.filter(pc.equal(key, number))
        rest, part = number.as_py(), []
        for code in reversed(codes):
            rest, index = divmod(rest, len(code.dictionary))
            part.append(code.dictionary[index].as_py())
        yield tuple(reversed(part)), rows


def part_faults(rows: pa.RecordBatch, fields: tuple[PartitionField, ...]) -> pa.Array | None:
    """For each row why it belongs to no part; None if all do.

    A part of a time is named by a date, and readers have no others than Python's: one file with
    another makes a table that nobody can read any more.
    """
    faults: pa.Array | None = None
    for field in fields:
        times = rows.column(field.column)
        if not (pa.types.is_timestamp(times.type) or pa.types.is_date32(times.type)):
            continue
        unit: Any = times.type.unit if pa.types.is_timestamp(times.type) else "D"
        if unit == "ns":
            continue  # It has only years that everybody has.
        first, last = (np.datetime64(each, unit).astype(np.int64) for each in _YEARS)
        numbers = times.cast(pa.int32() if unit == "D" else pa.int64())
        is_out = pc.or_(pc.less(numbers, first.item()), pc.greater(numbers, last.item()))
        if pc.any(is_out).as_py():
            why = f"{field.column} has no year from 1 to 9999, and the table is partitioned by it"
            found = pc.if_else(is_out, pa.scalar(why), pa.scalar(None, pa.string()))
            faults = found if faults is None else pc.coalesce(faults, found)
    return faults


def _texts(column: pa.Array, transform: str) -> pa.Array:
    if transform == "identity":
        return column.cast(pa.string())
    if pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("us"))
    # The text is that of UTC: without a zone, strftime does not convert.
    return pc.strftime(column.cast(pa.timestamp("us")), format=TRANSFORMS[transform])
