"""Arrow columns as JSON text, by Arrow's own kernels: no Python object for a cell.

Each type has a way to become a column of JSON texts; those of a struct, a list or a map are joined
to the text of the whole. What each type becomes is told in `encode`.

Invariants
    A column of texts is as long as its column, and null exactly where that is null.
    A text is whole JSON without a newline.

Only base64 is made value by value: Arrow has no kernel for it.
"""

import binascii
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from chronik.spark.errors import OptionsError

_UTC: Final = pa.timestamp("us", tz="UTC")
_NAIVE: Final = pa.timestamp("us")
_NULL: Final = pa.scalar("null")
_NOTHING: Final = pa.scalar(None, pa.string())
_SPACE: Final = 0x20  # Everything below it is a control character, which JSON escapes.
_YEAR_MAX: Final = 9999
_SHORT: Final = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_WHOLE: Final = r"^(-?[0-9]+)$"


def check_type(name: str, kind: pa.DataType) -> None:
    """Raise OptionsError for a type that has no JSON."""
    if pa.types.is_struct(kind):
        for child in kind:
            check_type(f"{name}.{child.name}", child.type)
    elif pa.types.is_list(kind):
        check_type(f"{name}[]", kind.value_type)
    elif pa.types.is_map(kind):
        if not pa.types.is_string(kind.key_type):
            raise OptionsError(
                f"{name}: keys of a map are text in JSON, and not {kind.key_type}: cast them"
            )
        check_type(f"{name}{{}}", kind.item_type)
    elif not any(is_kind(kind) for is_kind in _PLAIN):
        raise OptionsError(f"the column {name} is {kind}, which has no JSON: cast it or drop it")


_PLAIN: Final = (
    pa.types.is_null,
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_string,
    pa.types.is_binary,
    pa.types.is_date,
    pa.types.is_timestamp,
)


def object_texts(columns: Sequence[pa.Array], names: Sequence[str], count: int) -> pa.StringArray:
    """An object for each row, with a field for each column."""
    if not columns:
        return pa.repeat(pa.scalar("{}"), count)
    parts: list[pa.Array | pa.Scalar] = []
    for index, (column, name) in enumerate(zip(columns, names, strict=True)):
        quoted = _quoted(pa.array([name]))[0].as_py()
        parts += [pa.scalar(f"{',' if index else '{'}{quoted}:"), _present(texts(column))]
    return pc.binary_join_element_wise(*parts, pa.scalar("}"), pa.scalar(""))


def texts(array: pa.Array) -> pa.StringArray:
    """A JSON text for each element that is not null."""
    kind = array.type
    if pa.types.is_null(kind):
        return pa.nulls(len(array), pa.string())
    if pa.types.is_struct(kind):
        whole = object_texts(array.flatten(), [child.name for child in kind], len(array))
        return _masked(whole, array)
    if pa.types.is_list(kind):
        return _between("[", _joined(array, _present(texts(array.flatten()))), "]")
    if pa.types.is_map(kind):
        return _map_texts(array)
    if pa.types.is_floating(kind):
        return _float_texts(array)
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return array.cast(pa.string())
    return _between('"', _plain_texts(array), '"')


def _plain_texts(array: pa.Array) -> pa.StringArray:
    """What stands between the quotes."""
    kind = array.type
    if pa.types.is_string(kind):
        return _escaped(array)
    if pa.types.is_binary(kind):
        found = [None if each is None else _base64(each) for each in array.to_pylist()]
        return pa.array(found, pa.string())
    if pa.types.is_timestamp(kind):
        return _time_texts(array.cast(_NAIVE if kind.tz is None else _UTC))
    assert pa.types.is_date(kind) or pa.types.is_decimal(kind), kind
    return array.cast(pa.string())


def _time_texts(array: pa.Array) -> pa.StringArray:
    """Times to the microsecond; digit by digit for all rows, twenty times as fast as Arrow's."""
    times = np.asarray(pc.fill_null(array.view(pa.int64()), 0)).view("datetime64[us]")
    days = times.astype("datetime64[D]")
    months = days.astype("datetime64[M]")
    years = months.astype("datetime64[Y]").astype(np.int64) + 1970
    if len(years) and (years.min() < 0 or years.max() > _YEAR_MAX):
        return pc.replace_substring(array.cast(pa.string()), " ", "T")
    in_day = (times - days).astype(np.int64)
    seconds = in_day // 1_000_000
    shape = b"0000-00-00T00:00:00.000000" + (b"" if array.type.tz is None else b"Z")
    chars = np.tile(np.frombuffer(shape, dtype=np.uint8), (len(times), 1))
    for place, width, number in (
        (0, 4, years),
        (5, 2, months.astype(np.int64) % 12 + 1),
        (8, 2, (days - months.astype("datetime64[D]")).astype(np.int64) + 1),
        (11, 2, seconds // 3600),
        (14, 2, seconds // 60 % 60),
        (17, 2, seconds % 60),
        (20, 6, in_day % 1_000_000),
    ):
        for digit in range(place + width - 1, place - 1, -1):
            chars[:, digit] += (number % 10).astype(np.uint8)
            number = number // 10
    offsets = np.arange(len(times) + 1, dtype=np.int32) * len(shape)
    found = pa.StringArray.from_buffers(len(times), pa.py_buffer(offsets), pa.py_buffer(chars))
    return _masked(found, array)


def _base64(value: bytes) -> str:
    return binascii.b2a_base64(value, newline=False).decode()


def _float_texts(array: pa.Array) -> pa.StringArray:
    finite = pc.if_else(pc.is_finite(array), array, pa.scalar(None, array.type))
    # A whole number keeps its point, so that who infers a schema does not take it for an integer.
    found = pc.replace_substring_regex(finite.cast(pa.string()), _WHOLE, r"\1.0")
    return _masked(_present(found), array)


def _map_texts(array: pa.MapArray) -> pa.StringArray:
    pairs = array.cast(pa.list_(pa.struct(list(_pair(array.type))))).flatten()
    keys, items = pairs.flatten()
    entries = pc.binary_join_element_wise(_quoted(keys), _present(texts(items)), pa.scalar(":"))
    return _between("{", _joined(array, entries), "}")


def _pair(kind: pa.MapType) -> list[pa.Field]:
    return [
        pa.field("key", kind.key_type, nullable=False),
        pa.field("value", kind.item_type),
    ]


def _joined(array: pa.Array, elements: pa.StringArray) -> pa.StringArray:
    """The texts of each list's elements, with commas between them."""
    ends = array.offsets
    lengths = np.diff(np.asarray(ends))
    if array.null_count:  # What lies under a null list was left out when it was flattened.
        lengths[np.asarray(array.is_null())] = 0
    offsets = np.zeros(len(array) + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    lists = pa.ListArray.from_arrays(pa.array(offsets), elements)
    return _masked(pc.binary_join(lists, ","), array)


def _quoted(names: pa.StringArray) -> pa.StringArray:
    return _between('"', _escaped(names), '"')


def _between(before: str, middle: pa.StringArray, after: str) -> pa.StringArray:
    return pc.binary_join_element_wise(pa.scalar(before), middle, pa.scalar(after), pa.scalar(""))


def _escaped(array: pa.StringArray) -> pa.StringArray:
    """Text as it stands in JSON: quotes, backslashes and control characters are escaped."""
    data = _bytes_of(array)
    if (data == ord("\\")).any():  # First: the others bring backslashes of their own.
        array = pc.replace_substring(array, "\\", "\\\\")
    if (data == ord('"')).any():
        array = pc.replace_substring(array, '"', '\\"')
    for code in np.unique(data[data < _SPACE]).tolist():
        array = pc.replace_substring(array, chr(code), _SHORT.get(chr(code), f"\\u{code:04x}"))
    return array


def _bytes_of(array: pa.StringArray) -> npt.NDArray[np.uint8]:
    """The bytes of all elements, and perhaps of null ones."""
    _, offsets, data = array.buffers()
    if data is None or not len(array):
        return np.zeros(0, dtype=np.uint8)
    bounds = np.frombuffer(offsets, dtype=np.int32)
    first, last = bounds[array.offset], bounds[array.offset + len(array)]
    return np.frombuffer(data, dtype=np.uint8)[first:last]


def _present(found: pa.StringArray) -> pa.StringArray:
    return pc.fill_null(found, _NULL) if found.null_count else found


def _masked(found: pa.StringArray, like: pa.Array) -> pa.StringArray:
    return pc.if_else(like.is_null(), _NOTHING, found) if like.null_count else found
