"""The types of JSON columns, as three readers see them: Arrow's, msgspec's, and the user.

Arrow's reader of JSON knows numbers, text, booleans, decimals, lists and structs. Dates and binary
are read as text and converted here, and so are timestamps where its own parser is too narrow. Maps
it does not know at all: columns with a map in them are read by msgspec.

    JSON                              column
    number without fraction, exponent byte, short, int, long: out of range is an error
    number                            float, double
    number, or text of one            decimal: more digits than it has are an error, not rounded
    text                              string
    ISO 8601 text                     timestamp: UTC unless it says otherwise, cut to microseconds
    YYYY-MM-DD                        date
    base64 text                       binary
    object                            struct, or map from string

Whatever converts here does it for all rows at once, and finds the elements that do not by halves.
"""

import base64
import binascii
from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from chronik.spark.errors import OptionsError

Rows = npt.NDArray[np.int64]

_NO_ROWS: Final = np.zeros(0, dtype=np.int64)
_UTC: Final = pa.timestamp("us", tz="UTC")
_NAIVE: Final = pa.timestamp("us")
# What nearly all timestamps look like. It decides nothing: others are tried by themselves.
_LIKELY_TIME: Final = (
    r"^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
    r"([T ]([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9](\.[0-9]+)?)?(Z|[+-][0-9]{2}:?[0-9]{2})?)?$"
)
_HAS_ZONE: Final = r"[T ][^Z+-]*(Z|[+-][0-9:]+)$"
_INTEGERS: Final = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}
_PLAIN: Final = frozenset({pa.string(), pa.bool_(), pa.float64(), *_INTEGERS})
_AS_TEXT: Final = frozenset({pa.date32(), pa.binary()})


def check_type(name: str, kind: pa.DataType) -> None:
    """Raise OptionsError for a type that no JSON becomes."""
    if pa.types.is_struct(kind):
        for child in kind:
            check_type(f"{name}.{child.name}", child.type)
    elif pa.types.is_list(kind):
        check_type(f"{name}[]", kind.value_type)
    elif pa.types.is_map(kind):
        if kind.key_type != pa.string():
            raise OptionsError(f"{name}: keys of a map are text in JSON, and not {kind.key_type}")
        check_type(f"{name}{{}}", kind.item_type)
    elif not (
        kind in _PLAIN
        or kind in _AS_TEXT
        or kind in (_UTC, _NAIVE, pa.float32())
        or pa.types.is_decimal128(kind)
    ):
        raise OptionsError(f"{name}: JSON cannot be read as {kind}")


def has_map(kind: pa.DataType) -> bool:
    """Whether there is a map somewhere in a type."""
    return pa.types.is_map(kind) or any(has_map(child) for child in _children(kind))


def has_timestamp(kind: pa.DataType) -> bool:
    """Whether there is a timestamp somewhere in a type."""
    return pa.types.is_timestamp(kind) or any(has_timestamp(child) for child in _children(kind))


def _children(kind: pa.DataType) -> list[pa.DataType]:
    if pa.types.is_map(kind):
        return [kind.item_type]
    if pa.types.is_list(kind):
        return [kind.value_type]
    return [child.type for child in kind] if pa.types.is_struct(kind) else []


def read_type(kind: pa.DataType, *, timestamps_as_text: bool) -> pa.DataType:
    """The type to read, of which `convert` makes the one that is wanted."""

    def inner(child: pa.DataType) -> pa.DataType:
        return read_type(child, timestamps_as_text=timestamps_as_text)

    if pa.types.is_struct(kind):
        return pa.struct([child.with_type(inner(child.type)) for child in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(inner(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, inner(kind.item_type))
    if kind in _AS_TEXT or (timestamps_as_text and pa.types.is_timestamp(kind)):
        return pa.string()
    return pa.float64() if kind == pa.float32() else kind


def convert(array: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Rows]:
    """An array as the type that is wanted, and the elements that cannot be: they are null."""
    if array.type == kind:
        return array, _NO_ROWS
    if pa.types.is_struct(kind):
        return _convert_struct(array, kind)
    if pa.types.is_list(kind):
        values, bad = convert(array.values, kind.value_type)
        converted = pa.ListArray.from_arrays(
            array.offsets, values, type=kind, mask=array.is_null() if array.null_count else None
        )
        return converted, _owners(array.offsets, bad)
    if pa.types.is_map(kind):
        items, bad = convert(array.items, kind.item_type)
        converted = pa.MapArray.from_arrays(
            array.offsets,
            array.keys,
            items,
            type=kind,
            mask=array.is_null() if array.null_count else None,
        )
        return converted, _owners(array.offsets, bad)
    if pa.types.is_timestamp(kind):
        return _timestamps(array, kind)
    return by_halves(array, _CASTS[kind], kind)


def _convert_struct(array: pa.StructArray, kind: pa.StructType) -> tuple[pa.Array, Rows]:
    # Flattened, what lies under a null struct is null too, and not some text to convert.
    found = [convert(child, field.type) for child, field in zip(array.flatten(), kind, strict=True)]
    mask = array.is_null() if array.null_count else None
    children = [child for child, _ in found]
    converted = pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    return converted, np.unique(np.concatenate([bad for _, bad in found]))


def _owners(offsets: pa.Array, elements: Rows) -> Rows:
    """Which lists some elements are in."""
    if not len(elements):
        return elements
    return np.unique(np.searchsorted(np.asarray(offsets), elements, side="right") - 1)


def by_halves(
    array: pa.Array, cast: Callable[[pa.Array], pa.Array], kind: pa.DataType
) -> tuple[pa.Array, Rows]:
    """An array cast, with null where an element cannot be, and where that is."""
    try:
        return cast(array), _NO_ROWS
    except (pa.ArrowInvalid, ValueError):
        if len(array) == 1:
            return pa.nulls(1, kind), np.zeros(1, dtype=np.int64)
    middle = len(array) // 2
    first, bad_first = by_halves(array.slice(0, middle), cast, kind)
    second, bad_second = by_halves(array.slice(middle), cast, kind)
    return pa.concat_arrays([first, second]), np.concatenate([bad_first, bad_second + middle])


def _timestamps(texts: pa.StringArray, kind: pa.DataType) -> tuple[pa.Array, Rows]:
    """ISO 8601 with or without a zone, and with any number of digits after the second."""
    likely = pc.fill_null(pc.match_substring_regex(texts, _LIKELY_TIME), True)
    if pc.all(likely).as_py():
        return _times_of(texts, kind)
    # By halves, what is no time would be looked for among all others, each time from the beginning.
    places = [np.flatnonzero(np.asarray(each)) for each in (likely, pc.invert(likely))]
    found = [_times_of(texts.take(pa.array(each)), kind) for each in places]
    order = np.argsort(np.concatenate(places), kind="stable")
    whole = pa.concat_arrays([times for times, _ in found]).take(pa.array(order))
    bad = [each[refused] for each, (_, refused) in zip(places, found, strict=True)]
    return whole, np.sort(np.concatenate(bad))


def _times_of(texts: pa.StringArray, kind: pa.DataType) -> tuple[pa.Array, Rows]:
    longest = pc.max(pc.binary_length(texts)).as_py() or 0
    cut = texts
    if longest > len("2026-01-02T03:04:05.678901"):  # Else no second has more digits than six.
        cut = pc.replace_substring_regex(texts, r"(\.[0-9]{6})[0-9]+", r"\1")
    if pc.all(pc.fill_null(pc.ends_with(cut, "Z"), True)).as_py():
        found, bad = by_halves(cut, lambda array: array.cast(_UTC), _UTC)
        return found.view(pa.int64()).view(kind), bad
    zoned = pc.match_substring_regex(cut, _HAS_ZONE)
    nothing = pa.scalar(None, pa.string())
    with_zone, bad = by_halves(
        pc.if_else(zoned, cut, nothing), lambda array: array.cast(_UTC), _UTC
    )
    without, bad_without = by_halves(
        pc.if_else(zoned, nothing, cut), lambda array: array.cast(_NAIVE), _NAIVE
    )
    found = pc.coalesce(with_zone, without.view(pa.int64()).view(_UTC))
    return found.view(pa.int64()).view(kind), np.union1d(bad, bad_without)


def _to_float32(array: pa.Array) -> pa.Array:
    narrow = array.cast(pa.float32(), safe=False)
    if pc.any(pc.and_(pc.is_inf(narrow), pc.is_finite(array))).as_py():
        raise ValueError("out of range")
    return narrow


def _from_base64(array: pa.Array) -> pa.Array:
    try:
        values = [
            None if text is None else base64.b64decode(text, validate=True)
            for text in array.to_pylist()
        ]
    except binascii.Error as error:
        raise ValueError(str(error)) from None
    return pa.array(values, pa.binary())


_CASTS: Final[dict[pa.DataType, Callable[[pa.Array], pa.Array]]] = {
    pa.date32(): lambda array: array.cast(pa.date32()),
    pa.binary(): _from_base64,
    pa.float32(): _to_float32,
}


def object_type(schema: pa.Schema) -> type[msgspec.Struct]:
    """The msgspec type that accepts what these columns accept; fields beside them are skipped."""
    fields: list[tuple[str, Any, Any]] = []
    names = {}
    for index, column in enumerate(schema):
        names[f"f{index}"] = column.name
        fields.append((f"f{index}", _msgspec_type(column.type), None))
    return msgspec.defstruct("Value", fields, rename=names, gc=False)


def _msgspec_type(kind: pa.DataType) -> Any:
    if pa.types.is_struct(kind):
        return object_type(pa.schema(list(kind))) | None
    if pa.types.is_list(kind):
        return list[_msgspec_type(kind.value_type)] | None  # type: ignore[misc]
    if pa.types.is_map(kind):
        return dict[str, _msgspec_type(kind.item_type)] | None  # type: ignore[misc]
    if kind in _INTEGERS:
        most = 1 << _INTEGERS[kind] - 1
        return Annotated[int, msgspec.Meta(ge=-most, le=most - 1)] | None
    if pa.types.is_decimal128(kind):
        return Decimal | None
    if kind == pa.bool_():
        return bool | None
    return float | None if pa.types.is_floating(kind) else str | None


def taken(items: list[Any], kind: pa.DataType) -> tuple[pa.Array, Rows]:
    """An array of Python objects, with null for those that the type does not take."""

    def made(places: pa.Array) -> pa.Array:
        if len(places) == len(items):
            return pa.array(items, kind)
        return pa.array([items[place] for place in places.to_pylist()], kind)

    return by_halves(pa.array(np.arange(len(items))), made, kind)


def from_objects(objects: list[Any], kind: pa.DataType) -> tuple[pa.Array, Rows]:
    """A column of what msgspec has read, and the rows that do not fit into it."""
    plain = [to_plain(value, kind) for value in objects]
    read = read_type(kind, timestamps_as_text=True)
    found, bad = taken(plain, read)
    converted, not_converted = convert(found, kind)
    return converted, np.union1d(bad, not_converted)


def to_plain(value: Any, kind: pa.DataType) -> Any:
    """A msgspec value as pyarrow takes it: structs as dictionaries by their own names."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {
            child.name: to_plain(getattr(value, f"f{index}"), child.type)
            for index, child in enumerate(kind)
        }
    if pa.types.is_list(kind):
        return [to_plain(each, kind.value_type) for each in value]
    if pa.types.is_map(kind):
        return [(key, to_plain(each, kind.item_type)) for key, each in value.items()]
    return value
