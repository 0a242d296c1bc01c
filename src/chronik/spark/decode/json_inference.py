"""A schema for JSON objects, from samples of them.

    whole numbers   BIGINT, or DOUBLE if some are larger     numbers   DOUBLE
    text            TIMESTAMP or DATE if all of it reads as one, else STRING
    objects         STRUCT of all fields that occur          arrays    ARRAY of what they hold
    only nulls      STRING

Fields keep the order in which they occur first. Where a field changes its mind, what most samples
have is chosen: the others will be errors, which is what a reader wants to hear of. Samples that are
no objects are left out, and those that are nested deeper than any column (`json_depth`).
"""

import re
from collections import Counter
from typing import Any, Final

import msgspec
import pyarrow as pa

from chronik.spark.decode.framing import unframed
from chronik.spark.decode.json_depth import is_too_deep
from chronik.spark.errors import OptionsError

_TIMESTAMP: Final = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d(:?\d\d)?)?", re.ASCII
)
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_LONG_MAX: Final = 2**63 - 1


class _Seen:
    """What was seen in one place: how often of each kind, and what the kinds hold."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self.fields: dict[str, _Seen] = {}
        self.element: _Seen | None = None

    def add(self, value: Any) -> None:
        kind = _kind(value)
        self.kinds[kind] += 1
        if kind == "object":
            for name, child in value.items():
                self.fields.setdefault(name, _Seen()).add(child)
        elif kind == "array":
            self.element = self.element or _Seen()
            for child in value:
                self.element.add(child)

    def type(self) -> pa.DataType:
        kinds = self.kinds
        kinds.pop("null", None)
        if not kinds:
            return pa.string()
        chosen, _ = _merged(kinds).most_common(1)[0]
        match chosen:
            case "object":
                return pa.struct([(name, seen.type()) for name, seen in self.fields.items()])
            case "array":
                assert self.element is not None
                return pa.list_(pa.field("element", self.element.type()))
            case _:
                return _TYPES[chosen]


_TYPES: Final = {
    "boolean": pa.bool_(),
    "long": pa.int64(),
    "double": pa.float64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "date": pa.date32(),
    "string": pa.string(),
}


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "long" if -_LONG_MAX - 1 <= value <= _LONG_MAX else "double"
        case float():
            return "double"
        case dict():
            return "object"
        case list():
            return "array"
        case _ if _TIMESTAMP.fullmatch(value):
            return "timestamp"
        case _:
            return "date" if _DATE.fullmatch(value) else "string"


def _merged(kinds: Counter[str]) -> Counter[str]:
    """Kinds of which one takes the other as well are one."""
    merged = Counter(kinds)
    if merged["double"]:
        merged["double"] += merged.pop("long", 0)
    texts = [kind for kind in ("timestamp", "date", "string") if merged[kind]]
    if len(texts) > 1:
        common = "timestamp" if texts == ["timestamp", "date"] else "string"
        merged[common] = sum(merged.pop(kind) for kind in texts)
    return merged


def infer(samples: pa.BinaryArray) -> pa.Schema:
    """The schema of the objects among some values, or OptionsError if there is none."""
    seen = _Seen()
    for value in unframed(samples).to_pylist():
        if value is None or is_too_deep(value):
            continue
        try:
            found = msgspec.json.decode(value)
        except msgspec.DecodeError:
            continue
        if isinstance(found, dict):
            seen.add(found)
    if not seen.fields:
        raise OptionsError(
            f"none of {len(samples)} values is a JSON object with fields: give the schema"
        )
    return pa.schema([(name, field.type()) for name, field in seen.fields.items()])
