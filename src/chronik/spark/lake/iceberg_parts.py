"""A file's part of a table: our text, and Iceberg's partition values, which are numbers of time."""

import datetime
from typing import Any, Final

from pyiceberg.typedef import Record
from pyiceberg.types import (
    BooleanType,
    DateType,
    IcebergType,
    IntegerType,
    LongType,
)

from chronik.spark.lake.table import PartitionField

_EPOCH: Final = datetime.date(1970, 1, 1)


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
            return (datetime.date.fromisoformat(text) - _EPOCH).days
        case "hour":
            day, _, hour = text.rpartition("-")
            return (datetime.date.fromisoformat(day) - _EPOCH).days * 24 + int(hour)
    match kind:
        case BooleanType():
            return text == "true"
        case IntegerType() | LongType():
            return int(text)
        case DateType():
            return (datetime.date.fromisoformat(text) - _EPOCH).days
        case _:
            return text


def part_from_record(record: Record, fields: tuple[PartitionField, ...]) -> tuple[str | None, ...]:
    """A partition record as text."""
    return tuple(_text(record[index], field.transform) for index, field in enumerate(fields))


def _text(value: Any, transform: str) -> str | None:
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
            return value.isoformat() if isinstance(value, datetime.date) else str(value)


def _date(value: Any) -> str:
    day = value if isinstance(value, datetime.date) else _EPOCH + datetime.timedelta(days=value)
    return day.isoformat()
