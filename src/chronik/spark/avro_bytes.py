"""Arrow columns as Avro's bytes, column by column: no Python object for a cell.

Avro has no framing inside a record: its bytes are those of its fields, one after the other. So each
column becomes a column of bytes, by numpy and Arrow, and Arrow joins them row by row.

Invariants
    A column of bytes is as long as its column, and null exactly where that is null.
    The bytes are those that fastavro writes.

What does not fit (a null where none may be, a number out of range, a union of several types) raises
`NotByColumns`: then `encode` writes the rows one by one, and says which row is to blame.
"""

import io
from collections.abc import Callable, Mapping
from typing import Any, Final

import fastavro
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from chronik.spark.record_encoding import sized, varints

Writer = Callable[[pa.Array], pa.BinaryArray]

_NOTHING: Final = pa.scalar(b"")
_NULL: Final = pa.scalar(None, pa.binary())
_ZERO: Final = pa.scalar(b"\x00")
_DECIMAL_BYTES: Final = 16
_UTC: Final = "UTC"


class NotByColumns(Exception):
    """Rows or a schema that this way of writing does not know."""


def record_writer(parsed: Mapping[str, Any], names: list[str]) -> Callable[[pa.RecordBatch], Any]:
    """What writes rows of these columns by a schema that fastavro has parsed."""
    kinds = _Kinds()
    fields = [
        (names.index(field["name"]), kinds.writer(field["type"]))
        if field["name"] in names
        else (_default(field, parsed), None)
        for field in parsed["fields"]
    ]

    def write(columns: pa.RecordBatch) -> pa.BinaryArray:
        parts: list[Any] = []
        for found, writer in fields:
            if writer is None:
                parts.append(pa.repeat(pa.scalar(found), columns.num_rows))
            else:
                parts.append(_present(writer(columns.column(found))))
        if not parts:
            return pa.repeat(_NOTHING, columns.num_rows)
        return pc.binary_join_element_wise(*parts, _NOTHING)

    return write


def _default(field: Mapping[str, Any], parsed: Mapping[str, Any]) -> bytes:
    """The bytes of a field that no column has."""
    alone = {"type": "record", "name": "D", "fields": [dict(field)]}
    named = parsed.get("__named_schemas", {})
    out = io.BytesIO()
    try:
        whole = fastavro.parse_schema(alone, named_schemas=dict(named), _force=True)
        fastavro.schemaless_writer(out, whole, {})
    except Exception as error:
        raise NotByColumns(str(error)) from None
    return out.getvalue()


class _Kinds:
    """Writers of Avro's types, with the names that were defined on the way."""

    def __init__(self) -> None:
        self._named: dict[str, Writer] = {}

    def writer(self, kind: Any) -> Writer:
        if isinstance(kind, list):
            return self._union(kind)
        if isinstance(kind, str):
            plain = _PLAIN.get(kind) or self._named.get(kind)
            if plain is None:
                raise NotByColumns(kind)
            return plain
        return self._whole(kind)

    def _whole(self, kind: Mapping[str, Any]) -> Writer:
        logical = kind.get("logicalType")
        match kind["type"]:
            case "record" | "error":
                return self._name(kind, self._record(kind))
            case "array":
                return _array_writer(self.writer(kind["items"]))
            case "map":
                return _map_writer(self.writer(kind["values"]))
            case "enum":
                return self._name(kind, _enum_writer(kind["symbols"]))
            case "fixed" if logical is None:
                return self._name(kind, _fixed_writer(kind["size"]))
            case "bytes" if logical == "decimal":
                return _decimal_writer(kind["precision"], kind.get("scale", 0))
            case inner if logical is None:
                return self.writer(inner)
            case "int" | "long" if logical in _TIMES:
                return _number_writer(_TIMES[logical])
            case _:
                raise NotByColumns(str(logical))

    def _name(self, kind: Mapping[str, Any], writer: Writer) -> Writer:
        self._named[kind["name"]] = writer
        return writer

    def _union(self, branches: list[Any]) -> Writer:
        others = [each for each in branches if each != "null"]
        if len(others) != 1 or len(branches) > 2:
            raise NotByColumns("a union of several types")
        inner = self.writer(others[0])
        before = pa.scalar(bytes([2 * branches.index(others[0])]))
        if len(branches) == 1:
            return lambda array: pc.binary_join_element_wise(before, inner(array), _NOTHING)
        null = pa.scalar(bytes([2 * branches.index("null")]))

        def write(array: pa.Array) -> pa.BinaryArray:
            if array.null_count == len(array):
                return pa.repeat(null, len(array))
            return pc.fill_null(pc.binary_join_element_wise(before, inner(array), _NOTHING), null)

        return write

    def _record(self, kind: Mapping[str, Any]) -> Writer:
        fields = [(field["name"], self.writer(field["type"])) for field in kind["fields"]]

        def write(array: pa.Array) -> pa.BinaryArray:
            if not pa.types.is_struct(array.type) or not fields:
                raise NotByColumns("a record that is no struct")
            there = {child.name: index for index, child in enumerate(array.type)}
            if there.keys() != {name for name, _ in fields}:
                raise NotByColumns("other fields")
            valid = array.drop_null()
            columns = valid.flatten()
            parts = [_present(writer(columns[there[name]])) for name, writer in fields]
            return _spread(pc.binary_join_element_wise(*parts, _NOTHING), array)

        return write


def _present(found: pa.BinaryArray) -> pa.BinaryArray:
    if found.null_count:
        raise NotByColumns("a null where none may be")
    return found


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return array.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise NotByColumns(str(error)) from None


def _masked(found: pa.BinaryArray, like: pa.Array) -> pa.BinaryArray:
    return pc.if_else(like.is_null(), _NULL, found) if like.null_count else found


def _spread(found: pa.BinaryArray, like: pa.Array) -> pa.BinaryArray:
    """The bytes of the elements that are not null, at the places that those have."""
    if not like.null_count:
        return found
    valid = np.asarray(like.is_valid())
    places = np.zeros(len(like), dtype=np.int64)
    places[valid] = np.arange(len(found))
    return found.take(pa.array(places, mask=~valid))


def _number_writer(kind: pa.DataType) -> Writer:
    def write(array: pa.Array) -> pa.BinaryArray:
        if not _is_alike(array.type, kind):
            raise NotByColumns(f"{array.type} for {kind}")
        exact = _cast(array, kind)
        whole = exact.view(pa.int32() if kind.bit_width == 32 else pa.int64())
        numbers = np.asarray(pc.fill_null(whole, 0)).astype(np.int64)
        return _masked(varints(numbers), array)

    return write


def _is_alike(given: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_timestamp(wanted):
        return bool(pa.types.is_timestamp(given) and (given.tz is None) == (wanted.tz is None))
    if pa.types.is_date(wanted):
        return bool(given == wanted)
    return bool(pa.types.is_integer(given))


def _float_writer(kind: pa.DataType) -> Writer:
    def write(array: pa.Array) -> pa.BinaryArray:
        if not pa.types.is_floating(array.type):
            raise NotByColumns(f"{array.type} for {kind}")
        numbers = np.asarray(pc.fill_null(array.cast(kind, safe=False), 0.0))
        little = np.ascontiguousarray(numbers, dtype=numbers.dtype.newbyteorder("<"))
        width = numbers.dtype.itemsize
        return _masked(_cells(little.view(np.uint8).reshape(len(little), width)), array)

    return write


def _cells(chars: npt.NDArray[np.uint8]) -> pa.BinaryArray:
    """Rows of a matrix of bytes."""
    count, width = chars.shape
    offsets = np.arange(count + 1, dtype=np.int32) * width
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(chars))]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def _write_boolean(array: pa.Array) -> pa.BinaryArray:
    if not pa.types.is_boolean(array.type):
        raise NotByColumns(f"{array.type} for boolean")
    return pc.if_else(array, pa.scalar(b"\x01"), _ZERO)


def _bytes_writer(is_kind: Callable[[pa.DataType], bool], name: str) -> Writer:
    def write(array: pa.Array) -> pa.BinaryArray:
        if not is_kind(array.type):
            raise NotByColumns(f"{array.type} for {name}")
        found = array.cast(pa.binary())
        return _masked(pc.binary_join_element_wise(*sized(found), _NOTHING), array)

    return write


def _fixed_writer(size: int) -> Writer:
    def write(array: pa.Array) -> pa.BinaryArray:
        if not pa.types.is_binary(array.type):
            raise NotByColumns(f"{array.type} for fixed")
        if pc.any(pc.not_equal(pc.binary_length(array), size)).as_py():
            raise NotByColumns("another size")
        return array

    return write


def _enum_writer(symbols: list[str]) -> Writer:
    words = pa.array(symbols, pa.string())

    def write(array: pa.Array) -> pa.BinaryArray:
        if not pa.types.is_string(array.type):
            raise NotByColumns(f"{array.type} for enum")
        places = pc.index_in(array, value_set=words)
        if places.null_count != array.null_count:
            raise NotByColumns("no symbol of the enum")
        return _masked(varints(np.asarray(pc.fill_null(places, 0)).astype(np.int64)), array)

    return write


def _decimal_writer(precision: int, scale: int) -> Writer:
    def write(array: pa.Array) -> pa.BinaryArray:
        if not pa.types.is_decimal128(array.type):
            raise NotByColumns(f"{array.type} for decimal")
        exact = _cast(array, pa.decimal128(precision, scale)).drop_null()
        data = np.frombuffer(exact.buffers()[1], dtype=np.uint8)
        at = exact.offset * _DECIMAL_BYTES
        cells = data[at : at + len(exact) * _DECIMAL_BYTES].reshape(-1, _DECIMAL_BYTES)[:, ::-1]
        return _spread(_shortest(cells), array)

    return write


def _shortest(cells: npt.NDArray[np.uint8]) -> pa.BinaryArray:
    """Numbers without the leading bytes that only repeat their sign."""
    sign = np.where(cells[:, :1] >= 0x80, 0xFF, 0).astype(np.uint8)
    # A byte may go if it is the sign's, and so is the first bit of the next one.
    next_sign = np.where(cells[:, 1:] >= 0x80, 0xFF, 0).astype(np.uint8)
    may_go = (cells[:, :-1] == sign) & (next_sign == sign)
    gone = np.logical_and.accumulate(may_go, axis=1).sum(axis=1)
    kept = np.arange(_DECIMAL_BYTES) >= gone[:, None]
    offsets = np.zeros(len(cells) + 1, dtype=np.int32)
    np.cumsum(_DECIMAL_BYTES - gone, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(cells[kept]))]
    found = pa.Array.from_buffers(pa.binary(), len(cells), buffers)
    return pc.binary_join_element_wise(*sized(found), _NOTHING)


def _array_writer(inner: Writer) -> Writer:
    def write(array: pa.Array) -> pa.BinaryArray:
        if not pa.types.is_list(array.type):
            raise NotByColumns(f"{array.type} for array")
        return _blocks(array, _present(inner(array.flatten())))

    return write


def _map_writer(inner: Writer) -> Writer:
    text = _PLAIN["string"]

    def write(array: pa.Array) -> pa.BinaryArray:
        if not pa.types.is_map(array.type):
            raise NotByColumns(f"{array.type} for map")
        kind = array.type
        pair = [pa.field("key", kind.key_type, nullable=False), pa.field("value", kind.item_type)]
        keys, items = array.cast(pa.list_(pa.struct(pair))).flatten().flatten()
        keys = keys if pa.types.is_string(keys.type) else _cast(keys, pa.string())
        each = pc.binary_join_element_wise(text(keys), _present(inner(items)), _NOTHING)
        return _blocks(array, each)

    return write


def _blocks(array: pa.Array, elements: pa.BinaryArray) -> pa.BinaryArray:
    """Lists as one block each: how many, the elements, and a zero for the end."""
    counts = np.diff(np.asarray(array.offsets)).astype(np.int64)
    if array.null_count:  # What lies under a null list was left out when it was flattened.
        counts[np.asarray(array.is_null())] = 0
    offsets = np.zeros(len(array) + 1, dtype=np.int32)
    np.cumsum(counts, out=offsets[1:])
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), elements), b"")
    ends = pc.if_else(pa.array(counts > 0), _ZERO, _NOTHING)  # An empty list is the zero alone.
    return _masked(pc.binary_join_element_wise(varints(counts), joined, ends, _NOTHING), array)


_TIMES: Final = {
    "date": pa.date32(),
    "timestamp-micros": pa.timestamp("us", tz=_UTC),
    "timestamp-millis": pa.timestamp("ms", tz=_UTC),
    "local-timestamp-micros": pa.timestamp("us"),
    "local-timestamp-millis": pa.timestamp("ms"),
}
_PLAIN: Final[dict[str, Writer]] = {
    "boolean": _write_boolean,
    "int": _number_writer(pa.int32()),
    "long": _number_writer(pa.int64()),
    "float": _float_writer(pa.float32()),
    "double": _float_writer(pa.float64()),
    "string": _bytes_writer(pa.types.is_string, "string"),
    "bytes": _bytes_writer(pa.types.is_binary, "bytes"),
}
