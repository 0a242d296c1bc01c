"""Avro values as typed columns, by fastavro and a schema that is given.

    Avro                             column
    int, long, float, double         the same; [int, long] is long, [float, double] double
    bytes, fixed                     binary
    enum, uuid                       string
    date, timestamp-*                date, timestamp; local-timestamp-* without a zone
    decimal                          decimal, up to 38 digits
    time-*, duration                 the number or the bytes underneath: Spark has no such type
    [null, x]                        x, since every column is nullable
    record, array, map               struct, array, map

Other unions have no one type in Spark, and types that contain themselves none at all: both are
refused when the decoder is made. A top level that is no record is one column, `value`.

With Confluent's frame the value behind it is read; a value that only begins like a frame is read as
it is. Bytes after the end of the value are an error.
"""

import io
import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final

import fastavro
import pyarrow as pa

from chronik.spark.decode.decoder import Decoded, nullable, projected
from chronik.spark.decode.framing import FRAME_SIZE, is_framed
from chronik.spark.decode.objects import Object, decode_objects
from chronik.spark.errors import OptionsError

_PLAIN: Final = {
    "null": pa.string(),  # It holds nothing anyway.
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL: Final = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("us", tz="UTC"),
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
}
_KEPT: Final = frozenset({*_LOGICAL, "decimal"})
_WIDER: Final = {
    frozenset({pa.int32(), pa.int64()}): pa.int64(),
    frozenset({pa.float32(), pa.float64()}): pa.float64(),
}
_DECIMAL_DIGITS_MAX: Final = 38
VALUE: Final = "value"


class AvroDecoder:
    """Reads values by one schema."""

    def __init__(self, text: str, *, wanted: pa.Schema | None = None) -> None:
        self._text = text
        kind = arrow_type(text)
        self._is_record = pa.types.is_struct(kind)
        whole = pa.schema(list(kind)) if self._is_record else pa.schema([(VALUE, kind)])
        self.schema = projected(nullable(whole), wanted, "the Avro schema")

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self._text, self.schema)

    @cached_property
    def _parsed(self) -> Any:
        return parse(self._text)

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """As many rows as there are values."""
        return decode_objects(values, self.schema, self._read)

    def _read(self, value: bytes) -> Object:
        if not is_framed(value):
            return self._read_at(value, 0)
        # The zero byte may be the value's own: an empty string, a zero, a null. Bytes that can be
        # read both ways have a frame if its id is one that a registry may have given by now.
        has_likely_id = value[1] == 0
        first, second = (FRAME_SIZE, 0) if has_likely_id else (0, FRAME_SIZE)
        try:
            return self._read_at(value, first)
        except Exception:
            return self._read_at(value, second)

    def _read_at(self, value: bytes, position: int) -> Object:
        source = io.BytesIO(value)
        source.seek(position)
        found = fastavro.schemaless_reader(source, self._parsed, None)
        if source.tell() != len(value):
            raise ValueError(f"{len(value) - source.tell()} bytes follow the value")
        if self._is_record:
            assert isinstance(found, dict)
            return found
        return {VALUE: found}


def _unpickled(text: str, schema: pa.Schema) -> AvroDecoder:
    return AvroDecoder(text, wanted=schema)


def parse(text: str) -> Any:
    """A schema as fastavro reads by it: without the logical types that Spark has not."""
    try:
        return fastavro.parse_schema(_without_others(json.loads(text)))
    except fastavro.schema.UnknownType as error:
        raise OptionsError(f"the Avro schema names a type it does not define: {error}") from None
    except (ValueError, TypeError, KeyError, fastavro.schema.SchemaParseException) as error:
        raise OptionsError(f"the Avro schema cannot be read: {error!r}") from None


def _without_others(found: Any) -> Any:
    if isinstance(found, list):
        return [_without_others(each) for each in found]
    if not isinstance(found, dict):
        return found
    return {
        name: _without_others(each) if name in ("type", "fields", "items", "values") else each
        for name, each in found.items()
        if name != "logicalType" or each in _KEPT
    }


def arrow_type(text: str) -> pa.DataType:
    """The type that Spark has for an Avro schema, or OptionsError."""
    parse(text)
    return _Types().type(json.loads(text), "value")


class _Types:
    """Arrow types of Avro's, with the names that were defined on the way."""

    def __init__(self) -> None:
        self._named: dict[str, pa.DataType | None] = {}  # None while it is being defined
        self._namespace = ""

    def type(self, found: Any, at: str) -> pa.DataType:
        if isinstance(found, list):
            return self._union(found, at)
        if isinstance(found, str):
            return _PLAIN[found] if found in _PLAIN else self._reference(found, at)
        kind = found["type"]
        if isinstance(kind, dict | list):
            return self.type(kind, at)
        match kind:
            case "record" | "error":
                return self._record(found, at)
            case "array":
                return pa.list_(pa.field("element", self.type(found["items"], f"{at}[]")))
            case "map":
                return pa.map_(pa.string(), self.type(found["values"], f"{at}{{}}"))
            case "enum":
                return self._define(found, pa.string())
            case "fixed":
                return self._define(found, _logical(found, at) or pa.binary())
            case _:
                return _logical(found, at) or self.type(kind, at)

    def _union(self, branches: list[Any], at: str) -> pa.DataType:
        kinds = {self.type(each, at) for each in branches if each != "null"}
        if len(kinds) == 1:
            return kinds.pop()
        wider = _WIDER.get(frozenset(kinds))
        if wider is None:
            raise OptionsError(f"{at}: a union of {len(kinds)} types has no one type in Spark")
        return wider

    def _record(self, found: Mapping[str, Any], at: str) -> pa.DataType:
        outer = self._namespace
        name = self._full_name(found)
        self._namespace = name.rpartition(".")[0]
        self._named[name] = None
        fields = [
            (field["name"], self.type(field["type"], f"{at}.{field['name']}"))
            for field in found["fields"]
        ]
        self._namespace = outer
        return self._define(found, pa.struct(fields))

    def _define(self, found: Mapping[str, Any], kind: pa.DataType) -> pa.DataType:
        self._named[self._full_name(found)] = kind
        return kind

    def _full_name(self, found: Mapping[str, Any]) -> str:
        name: str = found["name"]
        namespace = found.get("namespace", self._namespace)
        return name if "." in name or not namespace else f"{namespace}.{name}"

    def _reference(self, name: str, at: str) -> pa.DataType:
        full = name if "." in name or not self._namespace else f"{self._namespace}.{name}"
        kind = self._named.get(full, self._named.get(name))
        if kind is None:
            raise OptionsError(f"{at}: {name} contains itself, and Spark has no such type")
        return kind


def _logical(found: Mapping[str, Any], at: str) -> pa.DataType | None:
    name = found.get("logicalType")
    if name == "decimal":
        if found["precision"] > _DECIMAL_DIGITS_MAX:
            raise OptionsError(f"{at}: {found['precision']} digits are more than Spark has")
        return pa.decimal128(found["precision"], found.get("scale", 0))
    return None if name is None else _LOGICAL.get(name)
