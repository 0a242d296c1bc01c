"""Columns become values: JSON or Avro, one value for each row.

    column        JSON                                                   Avro, if it is derived
    string        text                                                   string
    boolean       true, false                                            boolean
    byte to long  number                                                 int, long
    float, double number; null for NaN and Infinity, which JSON has not  float, double
    decimal       text ("12.50"): no reader loses a digit                decimal of bytes
    timestamp     RFC 3339 in UTC ("2026-01-02T03:04:05.000006Z")        timestamp-micros
    ... ntz       the same without a zone                                local-timestamp-micros
    date          "2026-01-02"                                           date
    binary        base64 text                                            bytes
    array         array                                                  array
    struct        object with all its fields                             record
    map           object; keys must be text                              map
    null          null, and not a field that is missing                  null, of a union with null

`decode` takes all of it back. Both are made by Arrow's kernels for all rows at once (`json_text`,
`avro_bytes`).

Avro is written by the schema that is given: each of its fields is a column, or has a default; a
column that the schema has not is refused. Without one it is derived from the columns, and whoever
reads must be given it: `avro_schema` tells it. No frame is written before a value, since no
registry is asked for an id; so a column that is never null goes first, or else a value whose first
columns are null may look like a frame to a reader that expects some. A row that does not fit raises
SourceError: nothing of it is written.
"""

import io
import json
import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Final, Protocol

import fastavro
import pyarrow as pa

from chronik.spark.avro_bytes import NotByColumns, record_writer
from chronik.spark.decode.avro import parse
from chronik.spark.errors import OptionsError, SourceError
from chronik.spark.json_text import check_type, object_texts

FORMATS: Final = ("json", "avro")
# Arrow's offsets have 32 bits, and JSON of control characters is six times as long as they are.
PART_BYTES_MAX: Final = 256 * 1024 * 1024
_AVRO_PLAIN: Final[dict[pa.DataType, Any]] = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "bytes",
    pa.date32(): {"type": "int", "logicalType": "date"},
}
_AVRO_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


class Encoder(Protocol):
    """Makes a value of each row; can be pickled."""

    def encode(self, columns: pa.RecordBatch) -> pa.BinaryArray:
        """As many values as there are rows."""
        ...


def encoder_for(
    format: str, *, schema: pa.Schema, options: Mapping[str, str] | None = None
) -> Encoder:
    """What encodes rows of these columns. Raises OptionsError."""
    match format:
        case "json":
            return JsonEncoder(schema)
        case "avro":
            text = (options or {}).get("schema")
            return AvroEncoder(text or avro_schema(schema), schema.names)
        case _:
            raise OptionsError(f"there is no format {format!r}, only {', '.join(FORMATS)}")


class JsonEncoder:
    """Writes an object for each row."""

    def __init__(self, schema: pa.Schema) -> None:
        for column in schema:
            check_type(column.name, column.type)
        self._schema = schema

    def encode(self, columns: pa.RecordBatch) -> pa.BinaryArray:
        """As many values as there are rows."""
        count = columns.num_rows
        if columns.nbytes > PART_BYTES_MAX and count > 1:
            first, second = columns.slice(0, count // 2), columns.slice(count // 2)
            return pa.concat_arrays([self.encode(first), self.encode(second)])
        if columns.schema.types != self._schema.types:
            # Spark may hand over the large types of Arrow, and times in the session's zone.
            columns = columns.cast(self._schema)
        found = object_texts(columns.columns, columns.schema.names, count)
        return found.cast(pa.binary())


def avro_schema(schema: pa.Schema) -> str:
    """The Avro schema of some columns, as JSON: each of them may be null. Raises OptionsError."""
    return json.dumps(_avro_record("Value", list(schema)))


def _avro_record(name: str, fields: list[pa.Field]) -> dict[str, Any]:
    found = []
    for field in fields:
        if not _AVRO_NAME.fullmatch(field.name):
            raise OptionsError(
                f"{field.name!r} is no name in Avro, which has letters, digits and _: rename it"
            )
        kind = ["null", _avro_type(f"{name}_{field.name}", field.type)]
        found.append({"name": field.name, "type": kind, "default": None})
    return {"type": "record", "name": name, "fields": found}


def _avro_type(name: str, kind: pa.DataType) -> Any:
    if kind in _AVRO_PLAIN:
        return _AVRO_PLAIN[kind]
    if pa.types.is_timestamp(kind):
        word = "local-timestamp-micros" if kind.tz is None else "timestamp-micros"
        return {"type": "long", "logicalType": word}
    if pa.types.is_decimal128(kind):
        digits = {"precision": kind.precision, "scale": kind.scale}
        return {"type": "bytes", "logicalType": "decimal", **digits}
    if pa.types.is_struct(kind):
        return _avro_record(name, list(kind))
    if pa.types.is_list(kind):
        return {"type": "array", "items": ["null", _avro_type(name, kind.value_type)]}
    if pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
        return {"type": "map", "values": ["null", _avro_type(name, kind.item_type)]}
    raise OptionsError(
        f"the column {name.partition('_')[2]} is {kind}, which Avro has not: cast it"
    )


class AvroEncoder:
    """Writes rows by one schema."""

    def __init__(self, text: str, names: list[str]) -> None:
        self._text = text
        self._names = names
        parsed = parse(text)
        if not isinstance(parsed, dict) or parsed.get("type") != "record":
            raise OptionsError("encode=avro needs the schema of a record, with a field per column")
        fields = {field["name"]: field for field in parsed["fields"]}
        unknown = [name for name in names if name not in fields]
        if unknown:
            raise OptionsError(
                f"the Avro schema has no field for the columns {', '.join(unknown)}: drop them,"
                " or add fields"
            )
        missing = [
            name for name, field in fields.items() if name not in names and "default" not in field
        ]
        if missing:
            raise OptionsError(
                f"the Avro schema's fields {', '.join(missing)} have neither column nor default"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return AvroEncoder, (self._text, self._names)

    @cached_property
    def _parsed(self) -> Any:
        return parse(self._text)

    @cached_property
    def _by_columns(self) -> Callable[[pa.RecordBatch], pa.BinaryArray] | None:
        try:
            return record_writer(self._parsed, self._names)
        except NotByColumns:
            return None

    def encode(self, columns: pa.RecordBatch) -> pa.BinaryArray:
        """As many values as there are rows."""
        count = columns.num_rows
        if columns.nbytes > PART_BYTES_MAX and count > 1:
            first, second = columns.slice(0, count // 2), columns.slice(count // 2)
            return pa.concat_arrays([self.encode(first), self.encode(second)])
        if self._by_columns is not None:
            try:
                return self._by_columns(columns.select(self._names))
            except NotByColumns:
                pass  # One by one, a row that does not fit is found and named.
        return pa.array([self._encoded(row) for row in _rows(columns)], pa.binary())

    def _encoded(self, row: dict[str, Any]) -> bytes:
        out = io.BytesIO()
        try:
            # The writer alone would make false of a null.
            fastavro.validate(row, self._parsed, raise_errors=True)
            fastavro.schemaless_writer(out, self._parsed, row, strict_allow_default=True)
        except Exception as error:  # fastavro raises whatever a wrong type leads it to.
            shown = json.dumps(row, default=str)[:200]
            raise SourceError(f"a row does not fit the Avro schema: {error!r} in {shown}") from None
        return out.getvalue()


def _rows(columns: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows as dictionaries, with maps as dictionaries too."""
    names = columns.schema.names
    try:
        lists = [
            _plain(column.to_pylist(), field.type)
            for column, field in zip(columns.columns, columns.schema, strict=True)
        ]
    except (OverflowError, ValueError) as error:
        raise SourceError(f"a date or a timestamp is out of Python's range: {error}") from None
    if not lists:
        return [{} for _ in range(columns.num_rows)]
    return [dict(zip(names, row, strict=True)) for row in zip(*lists, strict=True)]


def _plain(values: list[Any], kind: pa.DataType) -> list[Any]:
    return [_plain_value(value, kind) for value in values] if _has_map(kind) else values


def _has_map(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return True
    if pa.types.is_list(kind):
        return _has_map(kind.value_type)
    return pa.types.is_struct(kind) and any(_has_map(field.type) for field in kind)


def _plain_value(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_map(kind):
        return {str(key): _plain_value(item, kind.item_type) for key, item in value}
    if pa.types.is_list(kind):
        return [_plain_value(item, kind.value_type) for item in value]
    if pa.types.is_struct(kind):
        return {field.name: _plain_value(value[field.name], field.type) for field in kind}
    return value
