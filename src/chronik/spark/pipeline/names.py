"""Which fields of a JSON topic can be columns, and which rows have one that cannot.

A table's columns have names that every reader takes, that differ in more than case, and that are
none of the table's own. A field that has no such name never becomes a column: a row in which it has
a value is a dead letter that names it, and all other rows go on. The same holds at any depth, and
of what is nested deeper than tables can be. Paths count, joined by dots as Iceberg has them: beside
`a.b` no object `a` can have a field `b`.

Of two names that exclude each other the first to become a column stays.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
import pyarrow as pa

from chronik.spark.decode.framing import unframed
from chronik.spark.decode.json_depth import NESTED_MAX, TOO_DEEP
from chronik.spark.lake.schemas import SYSTEM_COLUMNS
from chronik.spark.lake.table import PartitionField

Path = tuple[str, ...]

_NOT_IN_NAMES: Final = frozenset(" ,;{}()=\x7f").union(map(chr, range(32)))  # by Delta's readers
_ELEMENT: Final = "element"
_OWN: Final[Path] = ()  # stands where a column is the table's own


def own_columns(partitioning: Iterable[PartitionField] = ()) -> frozenset[str]:
    """The columns that a table has whatever its values: ours, and spans of time it is parted by."""
    derived = (field.name for field in partitioning if field.transform != "identity")
    return frozenset((*SYSTEM_COLUMNS.names, *derived))


OWN_COLUMNS: Final = own_columns()


def is_name(name: str) -> bool:
    """Whether every reader takes it for the name of a column."""
    return bool(name) and not _NOT_IN_NAMES.intersection(name)


class FieldNames:
    """The names that a table's columns leave for others."""

    def __init__(self, columns: pa.Schema, own: Iterable[str]) -> None:
        self._columns = columns
        self._taken: dict[str, Path] = {name.lower(): _OWN for name in own}
        for field in columns:
            self._take((field.name,), field.type)
        self.has_refused = False  # a field that had a value somewhere

    def _take(self, path: Path, kind: pa.DataType) -> None:
        for each in _paths(path, kind):
            self._taken.setdefault(".".join(each).lower(), each)

    def addition(self, name: str, seen: pa.DataType) -> pa.DataType | None:
        """The type of a new column, or a known one's with new fields; None if nothing is new."""
        if name in self._columns.names:
            known = self._columns.field(name).type
            grown = self._grown((name,), known, seen)
            return None if grown == known else grown
        kind = self._admitted((name,), seen)
        if kind is not None:
            self._take((name,), kind)
        return kind

    def _admitted(self, path: Path, seen: pa.DataType) -> pa.DataType | None:
        """A type without what no column can hold, and what is only null: that will show later."""
        if pa.types.is_null(seen):
            return None
        if len(path) > NESTED_MAX:
            self.has_refused = True
            return None
        kind = seen
        if pa.types.is_struct(seen):
            found = self._fields(path, seen)
            kind = pa.struct(found) if found else None
        elif pa.types.is_list(seen):
            element = self._admitted((*path, _ELEMENT), seen.value_type)
            kind = None if element is None else pa.list_(element)
        if kind is not None and path[-1] is not _ELEMENT and self.fault(path) is not None:
            self.has_refused = True
            return None
        return kind

    def _fields(self, path: Path, seen: Iterable[pa.Field]) -> list[pa.Field]:
        """The fields of a new object, or the new ones of a known object."""
        found: dict[str, pa.Field] = {}
        for field in seen:
            kind = self._admitted((*path, field.name), field.type)
            if kind is None:
                continue
            if field.name.lower() in found:
                self.has_refused = True
            else:
                found[field.name.lower()] = pa.field(field.name, kind)
        return list(found.values())

    def _grown(self, path: Path, known: pa.DataType, seen: pa.DataType) -> pa.DataType:
        """A known type with the fields that its objects were seen to have beside."""
        if pa.types.is_list(known) and pa.types.is_list(seen):
            return pa.list_(self._grown((*path, _ELEMENT), known.value_type, seen.value_type))
        if not (pa.types.is_struct(known) and pa.types.is_struct(seen)):
            return known
        fields = [
            field
            if seen.get_field_index(field.name) < 0
            else field.with_type(
                self._grown((*path, field.name), field.type, seen.field(field.name).type)
            )
            for field in known
        ]
        names = {field.name for field in known}
        more = self._fields(path, [field for field in seen if field.name not in names])
        return pa.struct([*fields, *more])

    def fault(self, path: Path) -> str | None:
        """Why no column can have this path, if none can."""
        if len(path) > NESTED_MAX:
            return TOO_DEEP
        text = ".".join(path)
        if not is_name(path[-1]):
            return f"field {text!r} has a name that no column can have"
        taken = self._taken.get(text.lower())
        if taken is None or taken == path:
            return None
        if taken == _OWN:
            return f"field {text!r} has the name of one of the table's own columns"
        other = ".".join(taken)
        why = "another place" if other == text else "nothing but case"
        return f"field {text!r} differs from the column {other!r} in {why}"

    # Rows

    def faults(self, values: pa.BinaryArray) -> list[str | None]:
        """For each value why it cannot be a row, if a field of it cannot be a column."""
        return [self._row_fault(value) for value in unframed(values).to_pylist()]

    def _row_fault(self, value: bytes | None) -> str | None:
        try:
            found = None if value is None else _document(value)
            return self._value_fault((), pa.struct(list(self._columns)), found)
        except (ValueError, RecursionError):
            return None  # It is no row either way, and why is known.

    def _value_fault(self, path: Path, known: pa.DataType | None, value: Any) -> str | None:
        if isinstance(value, list):
            if len(path) >= NESTED_MAX and _has_value(value):
                return TOO_DEEP
            element = known.value_type if known is not None and pa.types.is_list(known) else None
            found = (self._value_fault((*path, _ELEMENT), element, each) for each in value)
            return next(filter(None, found), None)
        if not isinstance(value, dict) or (known is not None and pa.types.is_map(known)):
            return None
        names = known if known is not None and pa.types.is_struct(known) else pa.struct([])
        for name, child in value.items():
            if not _has_value(child):
                continue
            index = names.get_field_index(name)
            fault = self.fault((*path, name)) if index < 0 else None
            kind = None if index < 0 else names.field(index).type
            fault = fault or self._value_fault((*path, name), kind, child)
            if fault is not None:
                return fault
        return None


def _paths(path: Path, kind: pa.DataType) -> Iterator[Path]:
    yield path
    if pa.types.is_struct(kind):
        for field in kind:
            yield from _paths((*path, field.name), field.type)
    elif pa.types.is_list(kind):
        yield from _paths((*path, _ELEMENT), kind.value_type)
    elif pa.types.is_map(kind):
        yield (*path, "key")
        yield from _paths((*path, "value"), kind.item_type)


def _document(value: bytes) -> Any:
    try:
        return msgspec.json.decode(value)
    except msgspec.MsgspecError:
        import json

        return json.loads(value)  # It reads NaN, as Arrow does.


def _has_value(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_value, value.values()))
    if isinstance(value, list):
        return any(map(_has_value, value))
    return value is not None
