"""The columns of a table: the ones that every table has, the types that a format has, and change.

A type of Arrow that a format does not have becomes one that holds all its values. Delta cannot
widen a column, so its numbers are bigint and double from the start. What changes later is told
apart by `compare`: new columns, columns that can be widened, and conflicts, which the topic's
policy sends to a column of another name or to the dead letters.
"""

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SYSTEM_COLUMNS: Final = pa.schema(
    [
        ("_topic", pa.string()),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
        ("_timestamp", TIMESTAMP),
        ("_key", pa.binary()),
        ("_headers", HEADERS),
    ]
)
DEAD_LETTER_COLUMNS: Final = pa.schema(
    [
        *SYSTEM_COLUMNS,
        pa.field("_value", pa.binary()),
        pa.field("_reason", pa.string()),
        # Tells the rows of a topic from those of a namesake that was deleted before.
        pa.field("_topic_id", pa.binary()),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How the columns of data differ from those of a table."""

    added: tuple[pa.Field, ...] = ()  # new columns, and structs with all their fields
    widened: tuple[pa.Field, ...] = ()
    conflicts: tuple[pa.Field, ...] = ()  # of a type that the table's column cannot become

    @property
    def is_none(self) -> bool:
        return not (self.added or self.widened or self.conflicts)


def table_schema(columns: pa.Schema, table_format: str) -> pa.Schema:
    """The schema of a table with these typed columns."""
    typed = (pa.field(each.name, stored_type(each.type, table_format)) for each in columns)
    return pa.schema([*SYSTEM_COLUMNS, *typed])


def stored_type(kind: pa.DataType, table_format: str) -> pa.DataType:
    """The type that a format keeps values of this type in."""
    nested = _stored_nested(kind, table_format)
    if nested is not None:
        return nested
    if pa.types.is_timestamp(kind):
        return TIMESTAMP
    if pa.types.is_date(kind):
        return pa.date32()
    if pa.types.is_time(kind) or pa.types.is_null(kind) or pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    return _stored_number(kind, table_format)


def _stored_number(kind: pa.DataType, table_format: str) -> pa.DataType:
    if pa.types.is_integer(kind):
        if kind == pa.uint64():
            return pa.decimal128(20, 0)
        is_small = kind.bit_width < 32 or kind == pa.int32()
        return pa.int32() if is_small and table_format == "iceberg" else pa.int64()
    if pa.types.is_floating(kind):
        is_small = kind.bit_width < 64
        return pa.float32() if is_small and table_format == "iceberg" else pa.float64()
    return kind


def _stored_nested(kind: pa.DataType, table_format: str) -> pa.DataType | None:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(stored_type(kind.value_type, table_format))
    if pa.types.is_map(kind):
        return pa.map_(
            stored_type(kind.key_type, table_format), stored_type(kind.item_type, table_format)
        )
    if pa.types.is_struct(kind):
        return pa.struct(pa.field(each.name, stored_type(each.type, table_format)) for each in kind)
    return None


def compare(table: pa.Schema, data: pa.Schema, table_format: str) -> Difference:
    """How a table must change to take this data."""
    added, widened, conflicts = [], [], []
    for field in data:
        wanted = stored_type(field.type, table_format)
        if field.name not in table.names:
            added.append(pa.field(field.name, wanted))
            continue
        current = table.field(field.name).type
        grown = with_fields(current, wanted)
        if wanted == current or _is_wider(current, wanted) or grown == current:
            continue
        if grown is not None:
            added.append(pa.field(field.name, grown))
        elif table_format == "iceberg" and _is_wider(wanted, current):
            widened.append(pa.field(field.name, wanted))
        else:
            conflicts.append(pa.field(field.name, wanted))
    return Difference(added=tuple(added), widened=tuple(widened), conflicts=tuple(conflicts))


def with_fields(current: pa.DataType, wanted: pa.DataType) -> pa.DataType | None:
    """A type with the fields of both, at any depth; None if they differ in anything else."""
    if pa.types.is_struct(current) and pa.types.is_struct(wanted):
        fields = [_with_fields_of(field, wanted) for field in current]
        if any(field is None for field in fields):
            return None
        known = {field.name for field in current}
        return pa.struct([*fields, *(field for field in wanted if field.name not in known)])
    if _is_list(current) and _is_list(wanted):
        element = with_fields(current.value_type, wanted.value_type)
        return None if element is None else pa.list_(element)
    is_same = current == wanted or _is_wider(current, wanted)
    return current if is_same else None


def _with_fields_of(field: pa.Field, wanted: pa.DataType) -> pa.Field | None:
    index = wanted.get_field_index(field.name)
    if index < 0:
        return field
    kind = with_fields(field.type, wanted.field(index).type)
    return None if kind is None else field.with_type(kind)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def leaf_count(kind: pa.DataType) -> int:
    """How many columns of its own a type takes in a file."""
    if pa.types.is_struct(kind):
        return sum(leaf_count(field.type) for field in kind)
    if pa.types.is_map(kind):
        return 1 + leaf_count(kind.item_type)
    return leaf_count(kind.value_type) if _is_list(kind) else 1


def nesting(kind: pa.DataType) -> int:
    """How many levels a type has: 1 if it is a number or text."""
    if pa.types.is_struct(kind):
        return 1 + max((nesting(field.type) for field in kind), default=0)
    if pa.types.is_map(kind):
        return 1 + nesting(kind.item_type)
    return 1 + nesting(kind.value_type) if _is_list(kind) else 1


def _is_wider(wide: pa.DataType, narrow: pa.DataType) -> bool:
    """Whether a column of one type holds every value of the other, as Iceberg promotes types."""
    if wide == pa.int64() and narrow == pa.int32():
        return True
    if wide == pa.float64() and narrow == pa.float32():
        return True
    if pa.types.is_decimal(wide) and pa.types.is_decimal(narrow):
        return bool(wide.scale == narrow.scale and wide.precision >= narrow.precision)
    return False


def other_name(name: str, taken: list[str]) -> str:
    """The name of the column that takes a conflicting type: price_v2, then price_v3."""
    number, lower = 2, {each.lower() for each in taken}
    while f"{name}_v{number}".lower() in lower:
        number += 1
    return f"{name}_v{number}"
