"""What every decoder promises: a row for each value, in order, whatever the value is.

A value that cannot be decoded keeps its row: null in every column, and a text that says why. A null
value is a row of nulls and no error.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from chronik.spark.errors import OptionsError

Rows = npt.NDArray[np.int64]


class Decoded(NamedTuple):
    """Typed columns, and for each row why it has none, or null."""

    columns: pa.RecordBatch
    errors: pa.StringArray


class Decoder(Protocol):
    """Turns values into typed columns; can be pickled."""

    @property
    def schema(self) -> pa.Schema:
        """The columns, all of them nullable."""
        ...

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """As many rows as there are values."""
        ...


def error_column(errors: Mapping[int, str], count: int) -> pa.StringArray:
    """A text for each row that has an error."""
    if not errors:
        return pa.nulls(count, pa.string())
    texts = pa.array(errors.values(), pa.string())
    return spread([texts], np.array(list(errors), dtype=np.int64), count)[0]


def spread(arrays: Sequence[pa.Array], rows: Rows, count: int) -> list[pa.Array]:
    """Arrays of some rows, in any order, as arrays of all rows: null where there is none."""
    if len(rows) == count and np.array_equal(rows, np.arange(count)):
        return list(arrays)
    places = np.zeros(count, dtype=np.int64)
    places[rows] = np.arange(len(rows))
    absent = np.ones(count, dtype=np.bool_)
    absent[rows] = False
    indices = pa.array(places, mask=absent)
    return [array.take(indices) for array in arrays]


def record_batch(arrays: Sequence[pa.Array], schema: pa.Schema, count: int) -> pa.RecordBatch:
    """Columns as a batch that knows its number of rows, even without any column."""
    if not len(schema):
        rows = pa.StructArray.from_buffers(pa.struct([]), count, [None])
        return pa.RecordBatch.from_struct_array(rows)
    return pa.RecordBatch.from_arrays(list(arrays), schema=schema)


def nullable(schema: pa.Schema) -> pa.Schema:
    """The schema with every field nullable: a row that cannot be decoded has no values."""
    return pa.schema(
        [field.with_nullable(True).with_type(_nullable(field.type)) for field in schema]
    )


def _nullable(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct(
            [field.with_nullable(True).with_type(_nullable(field.type)) for field in kind]
        )
    if pa.types.is_list(kind):
        element = kind.value_field
        return pa.list_(element.with_nullable(True).with_type(_nullable(element.type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _nullable(kind.item_type))
    return kind


def projected(whole: pa.Schema, wanted: pa.Schema | None, source: str) -> pa.Schema:
    """The fields that are wanted of those that a format's own schema has."""
    if wanted is None:
        return whole
    for field in wanted:
        index = whole.get_field_index(field.name)
        if index < 0:
            raise OptionsError(f"{source} has no field {field.name}, only {', '.join(whole.names)}")
        if nullable(pa.schema([field])).field(0).type != whole.field(index).type:
            raise OptionsError(
                f"field {field.name} is {whole.field(index).type} in {source}, and not"
                f" {field.type}: read it as it is and cast it afterwards"
            )
    return nullable(wanted)
