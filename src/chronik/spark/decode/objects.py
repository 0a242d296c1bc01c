"""Columns of Python objects, for the formats whose readers give nothing else.

An object is a dictionary by column name. Whole columns are tried first; if one does not take its
objects (a decimal with too many digits, a year beyond 9999), halving finds the rows.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from chronik.spark.decode.decoder import Decoded, error_column, record_batch, spread
from chronik.spark.decode.json_types import taken

Object = Mapping[str, Any]


def decode_objects(
    values: pa.BinaryArray, schema: pa.Schema, read: Callable[[bytes], Object]
) -> Decoded:
    """Typed columns of what `read` makes of each value; its exceptions are the rows' errors."""
    rows: list[int] = []
    objects: list[Object] = []
    errors: dict[int, str] = {}
    for row, value in enumerate(values.to_pylist()):
        if value is None:
            continue
        try:
            objects.append(read(value))
            rows.append(row)
        except Exception as error:  # The libraries raise whatever malformed bytes lead them to.
            errors[row] = f"{type(error).__name__}: {error}"
    arrays, bad = _columns(objects, schema)
    errors.update((rows[place], text) for place, text in bad.items())
    kept = np.ones(len(rows), dtype=np.bool_)
    kept[list(bad)] = False
    if bad:
        arrays = [array.filter(pa.array(kept)) for array in arrays]
    arrays = spread(arrays, np.array(rows, dtype=np.int64)[kept], len(values))
    return Decoded(record_batch(arrays, schema, len(values)), error_column(errors, len(values)))


def _columns(objects: list[Object], schema: pa.Schema) -> tuple[list[pa.Array], dict[int, str]]:
    arrays = []
    bad: dict[int, str] = {}
    for column in schema:
        items = [each[column.name] for each in objects]
        array, refused = taken(items, column.type)
        for place in refused.tolist():
            bad.setdefault(place, f"{column.name}: not a {column.type}: {items[place]!r}"[:100])
        arrays.append(array)
    return arrays, bad
