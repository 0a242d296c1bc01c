"""Schemas as text: Spark's DDL, or the JSON of its StructType.

    id BIGINT, amount DECIMAL(10, 2), tags ARRAY<STRING>, who STRUCT<name: STRING, born: DATE>

Spark parses DDL in its JVM, and where values are decoded there is none. Names may be in backquotes,
a colon may stand before a type, and `NOT NULL` and `COMMENT '...'` are read over: a value that
cannot be decoded is null in every column.
"""

import json
import re
from typing import Final

import pyarrow as pa

from chronik.spark.errors import OptionsError

_TOKEN: Final = re.compile(
    r"\s*(?:(?P<quoted>`(?:[^`]|``)*`)|(?P<text>'(?:[^'\\]|\\.)*')|(?P<word>\w+)|(?P<mark>[<>(),:]))"
)
_PLAIN: Final = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "tinyint": pa.int8(),
    "short": pa.int16(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ltz": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_DECIMALS: Final = ("decimal", "dec", "numeric")
_DECIMAL_DEFAULT: Final = (10, 0)  # Spark's own


def parse_schema(text: str) -> pa.Schema:
    """The schema that a text describes, or OptionsError."""
    try:
        if text.lstrip().startswith("{"):
            return _from_json(text)
        return _Ddl(text).schema()
    except (ValueError, KeyError, TypeError, pa.ArrowInvalid) as error:
        reason = f"{type(error).__name__} {error}" if isinstance(error, KeyError) else error
        raise OptionsError(
            f"schema {text!r}: {reason}; write it like 'id BIGINT, name STRING', or as"
            " the JSON of a StructType"
        ) from None


def _from_json(text: str) -> pa.Schema:
    found = json.loads(text)
    kind = _json_type(found)
    if not pa.types.is_struct(kind):
        raise ValueError("a schema is a struct")
    return pa.schema(list(kind))


def _json_type(found: object) -> pa.DataType:
    """A type as `StructType.json()` writes it."""
    if isinstance(found, str):
        return _Ddl(found).one_type()
    if not isinstance(found, dict):
        raise ValueError(f"{found!r} is no type")
    match found["type"]:
        case "struct":
            return pa.struct([(each["name"], _json_type(each["type"])) for each in found["fields"]])
        case "array":
            return pa.list_(pa.field("element", _json_type(found["elementType"])))
        case "map":
            return pa.map_(_json_type(found["keyType"]), _json_type(found["valueType"]))
        case other:
            raise ValueError(f"{other!r} is no type")


class _Ddl:
    """A text read token by token, from the left to the right."""

    def __init__(self, text: str) -> None:
        self._tokens: list[str] = []
        position = 0
        while text[position:].strip():
            found = _TOKEN.match(text, position)
            if found is None:
                raise ValueError(f"{text[position:].strip()[:20]!r} was not expected")
            self._tokens.append(found[0].strip())
            position = found.end()
        self._at = 0

    def schema(self) -> pa.Schema:
        """The whole text as fields."""
        fields = self._fields()
        self._end()
        return pa.schema(fields)

    def one_type(self) -> pa.DataType:
        """The whole text as a type."""
        kind = self._type()
        self._end()
        return kind

    def _end(self) -> None:
        if self._peek():
            raise ValueError(f"{self._peek()!r} was not expected")

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _next(self, wanted: str | None = None) -> str:
        token = self._peek()
        if not token or (wanted is not None and token != wanted):
            where = f"before {token!r}" if token else "at the end"
            raise ValueError(f"{wanted or 'something'} is missing {where}")
        self._at += 1
        return token

    def _takes(self, word: str) -> bool:
        if self._peek().lower() != word:
            return False
        self._at += 1
        return True

    def _fields(self) -> list[pa.Field]:
        fields = [self._field()]
        while self._takes(","):
            fields.append(self._field())
        names = [field.name for field in fields]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"there are two fields {name}")
        return fields

    def _field(self) -> pa.Field:
        token = self._next()
        name = token[1:-1].replace("``", "`") if token.startswith("`") else token
        if not re.match(r"[`\w]", token):
            raise ValueError(f"{token!r} is no name of a field")
        self._takes(":")
        field = pa.field(name, self._type())
        if self._takes("not"):
            self._next_word("null")
        if self._takes("comment"):
            self._next()
        return field

    def _next_word(self, word: str) -> None:
        if not self._takes(word):
            raise ValueError(f"{word.upper()!r} is missing")

    def _type(self) -> pa.DataType:
        word = self._next().lower()
        if word in _PLAIN:
            return _PLAIN[word]
        if word in _DECIMALS:
            return pa.decimal128(*self._numbers(_DECIMAL_DEFAULT))
        if word in ("varchar", "char", "character"):
            self._numbers((0, 0))
            return pa.string()
        if word not in ("array", "map", "struct"):
            raise ValueError(f"{word!r} is no type")
        self._next("<")
        kind = self._nested(word)
        self._next(">")
        return kind

    def _nested(self, word: str) -> pa.DataType:
        if word == "struct":
            return pa.struct(self._fields())
        first = self._type()
        if word == "array":
            return pa.list_(pa.field("element", first))
        self._next(",")
        return pa.map_(first, self._type())

    def _numbers(self, default: tuple[int, int]) -> tuple[int, int]:
        if not self._takes("("):
            return default
        first, second = int(self._next()), 0
        if self._takes(","):
            second = int(self._next())
        self._next(")")
        return first, second
