"""What a frame means to a sink: which columns are the record, and which are its value's fields.

As in Spark's `kafka` sink a frame has `value`, and may have `key`, `headers`, `topic` and
`partition`; text and bytes will do. With `encode` all other columns together become the value.

Columns that would be dropped in silence are refused. Those that a read of a topic brings along
(offset, timestamp, timestampType) are dropped, since the new record gets its own; with `encode`
the `_` columns of a decoded read must be dropped or renamed first: they are no part of a value.
"""

from typing import Final

import pyarrow as pa

from chronik.spark.errors import OptionsError, SourceError
from chronik.spark.options import WriteOptions
from chronik.spark.record_columns import HEADERS_TYPE

KEY: Final = "key"
VALUE: Final = "value"
HEADERS: Final = "headers"
TOPIC: Final = "topic"
PARTITION: Final = "partition"
# What a sink is given, in this order.
WRITTEN: Final = pa.schema(
    [
        (TOPIC, pa.string()),
        (PARTITION, pa.int32()),
        (KEY, pa.binary()),
        (VALUE, pa.binary()),
        (HEADERS, HEADERS_TYPE),
    ]
)
_OF_A_READ: Final = ("offset", "timestamp", "timestampType")
_OF_A_DECODED_READ: Final = frozenset(
    f"_{name}" for name in (KEY, VALUE, HEADERS, TOPIC, PARTITION, *_OF_A_READ, "error")
)


def encoded_fields(schema: pa.Schema, options: WriteOptions) -> pa.Schema:
    """The columns that become the value; none without `encode`. OptionsError for a wrong frame."""
    for field in schema:
        _check_type(field)
    if options.topic is None and TOPIC not in schema.names:
        raise OptionsError(
            "nothing says where to write: add the option topic, or a column topic to the frame"
        )
    others = [field for field in schema if field.name not in WRITTEN.names or field.name == VALUE]
    if options.encode is None:
        _check_raw(schema)
        return pa.schema([])
    fields = [field for field in others if field.name not in _OF_A_READ]
    ours = [field.name for field in fields if field.name in _OF_A_DECODED_READ]
    if ours:
        raise OptionsError(
            f"encode={options.encode} would write the source's own {', '.join(ours)} into the"
            " value: drop or rename them first"
        )
    if not fields:
        raise OptionsError(f"encode={options.encode} has no column to make a value of")
    return pa.schema(fields)


def _check_raw(schema: pa.Schema) -> None:
    if VALUE not in schema.names:
        raise OptionsError(
            "the frame has no column value: make one, or set encode to json or avro to make it of"
            " all columns"
        )
    kind = schema.field(VALUE).type
    if not (pa.types.is_binary(kind) or pa.types.is_string(kind)):
        raise OptionsError(f"the column value is {kind}, and must be string or binary: cast it")
    dropped = [
        name for name in schema.names if name not in WRITTEN.names and name not in _OF_A_READ
    ]
    if dropped:
        raise OptionsError(
            f"the columns {', '.join(dropped)} would not be written: drop them, or set encode to"
            " json or avro to make the value of all columns"
        )


def _check_type(field: pa.Field) -> None:
    wanted = {
        KEY: "string or binary",
        TOPIC: "string",
        PARTITION: "int",
        HEADERS: "array<struct<key: string, value: binary>>",
    }.get(field.name)
    if wanted is None:
        return
    kind = field.type
    is_fine = {
        KEY: pa.types.is_binary(kind) or pa.types.is_string(kind),
        TOPIC: pa.types.is_string(kind),
        PARTITION: pa.types.is_int32(kind),
        HEADERS: _is_headers(kind),
    }[field.name]
    if not is_fine:
        raise OptionsError(f"the column {field.name} is {kind}, and must be {wanted}: cast it")


def _is_headers(kind: pa.DataType) -> bool:
    if not (pa.types.is_list(kind) and pa.types.is_struct(kind.value_type)):
        return False
    pair = kind.value_type
    return (
        [pair.field(index).name for index in range(pair.num_fields)] == ["key", "value"]
        and pa.types.is_string(pair.field(0).type)
        and pa.types.is_binary(pair.field(1).type)
    )


def written(
    batch: pa.RecordBatch, values: pa.Array | None, options: WriteOptions
) -> pa.RecordBatch:
    """The records that a batch of a frame stands for; `values` where they were encoded."""
    names = batch.schema.names
    columns = []
    for field in WRITTEN:
        if field.name == VALUE and values is not None:
            columns.append(values)
        elif field.name == TOPIC and options.topic is not None:
            columns.append(pa.repeat(pa.scalar(options.topic), batch.num_rows))
        elif field.name in names:
            columns.append(batch.column(field.name).cast(field.type))
        else:
            columns.append(pa.nulls(batch.num_rows, field.type))
    if columns[0].null_count:
        raise SourceError("a row has a null topic: fill it, or set the option topic for all rows")
    return pa.RecordBatch.from_arrays(columns, schema=WRITTEN)
