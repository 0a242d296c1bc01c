"""Columns become values: JSON or Avro, one value for each row.

    column        JSON
    timestamp     RFC 3339 in UTC ("2026-01-02T03:04:05.000006Z"); without a zone if it has none
    date          "2026-01-02"
    decimal       text ("12.50"): no reader loses a digit, and `decode` takes it back
    binary        base64 text
    NaN, Infinity null: JSON has no such numbers
    struct, map   object; null fields are written as null

Avro is written by the schema that is given: each of its fields is a column, or has a default; a
column that the schema has not is refused. No frame is written before it, since no registry is asked
for an id. A row that does not fit raises SourceError: nothing of it is written.
"""

import io
import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Protocol

import fastavro
import msgspec
import pyarrow as pa

from chronik.spark.decode.avro import parse
from chronik.spark.errors import OptionsError, SourceError

FORMATS = ("json", "avro")


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
            return JsonEncoder()
        case "avro":
            text = (options or {}).get("schema")
            if not text:
                raise OptionsError("encode=avro needs the option schema: the schema as JSON")
            return AvroEncoder(text, schema.names)
        case _:
            raise OptionsError(f"there is no format {format!r}, only {', '.join(FORMATS)}")


class JsonEncoder:
    """Writes an object for each row."""

    def encode(self, columns: pa.RecordBatch) -> pa.BinaryArray:
        """As many values as there are rows."""
        encode = msgspec.json.Encoder().encode
        return pa.array([encode(row) for row in _rows(columns)], pa.binary())


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

    def encode(self, columns: pa.RecordBatch) -> pa.BinaryArray:
        """As many values as there are rows."""
        return pa.array([self._encoded(row) for row in _rows(columns)], pa.binary())

    def _encoded(self, row: dict[str, Any]) -> bytes:
        out = io.BytesIO()
        try:
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
