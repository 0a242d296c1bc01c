"""A file's part of a table: our text, and Iceberg's partition values, which are numbers of time."""

import datetime
from typing import Any

import numpy as np
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BooleanType,
    DateType,
    IcebergType,
    IntegerType,
    LongType,
)

from chronik.spark.lake.table import PartitionField


def part_to_values(
    part: tuple[str | None, ...], fields: tuple[PartitionField, ...], types: list[IcebergType]
) -> list[Any]:
    """The values of a partition record."""
    return [
        None if text is None else _value(text, field.transform, kind)
        for text, field, kind in zip(part, fields, types, strict=True)
    ]


def _value(text: str, transform: str, kind: IcebergType) -> Any:
    match transform:
        case "year":
            return int(text) - 1970
        case "month":
            year, month = map(int, text.split("-"))
            return (year - 1970) * 12 + month - 1
        case "day":
            return _days(text)
        case "hour":
            day, _, hour = text.rpartition("-")
            return _days(day) * 24 + int(hour)
    match kind:
        case BooleanType():
            return text == "true"
        case IntegerType() | LongType():
            return int(text)
        case DateType():
            return _days(text)
        case _:
            return text


def _days(text: str) -> int:
    """Since 1970; numpy's calendar has the years that Python's has not."""
    return int(np.datetime64(text, "D").astype(np.int64))


def part_from_record(
    record: Record, fields: tuple[PartitionField, ...], types: list[IcebergType]
) -> tuple[str | None, ...]:
    """A partition record as text."""
    return tuple(
        _text(record[index], field.transform, kind)
        for index, (field, kind) in enumerate(zip(fields, types, strict=True))
    )


def _text(value: Any, transform: str, kind: IcebergType) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    match transform:
        case "year":
            return f"{value + 1970:04d}"
        case "month":
            return f"{value // 12 + 1970:04d}-{value % 12 + 1:02d}"
        case "day":
            return _date(value)
        case "hour":
            return f"{_date(value // 24)}-{value % 24:02d}"
        case _:
            return _date(value) if isinstance(kind, DateType) else str(value)


def _date(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime.date) else str(np.datetime64(value, "D"))
