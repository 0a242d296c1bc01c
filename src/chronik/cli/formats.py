"""Bytes of records as people type and read them.

text     UTF-8; bytes that are not are shown as escapes
json     a JSON document: checked when produced, nested when consumed with --json
hex      two digits a byte
base64   the usual alphabet
"""

import base64
import json
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final

_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Format(StrEnum):
    """How keys and values are written."""

    TEXT = "text"
    JSON = "json"
    HEX = "hex"
    BASE64 = "base64"


def encode(text: bytes, form: Format) -> bytes:
    """The bytes that were typed, or ValueError."""
    match form:
        case Format.TEXT:
            return text
        case Format.JSON:
            json.loads(text)
            return text
        case Format.HEX:
            return bytes.fromhex(text.decode("ascii"))
        case Format.BASE64:
            return base64.b64decode(text, validate=True)


def decode(data: bytes | None, form: Format) -> Any:
    """A JSON value for these bytes: a string, for the format json whatever they hold."""
    if data is None:
        return None
    match form:
        case Format.HEX:
            return data.hex()
        case Format.BASE64:
            return base64.b64encode(data).decode("ascii")
        case Format.JSON:
            try:
                return json.loads(data)
            except ValueError:
                return data.decode(errors="backslashreplace")
        case Format.TEXT:
            return data.decode(errors="backslashreplace")


def show(data: bytes | None, form: Format) -> str:
    """These bytes on a line of text."""
    value = decode(data, form)
    if value is None:
        return "null"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def parse_time_ms(text: str, now_ms: int) -> int:
    """A time in ISO 8601 (UTC unless it says otherwise), or one before now: -10m, -2h, -1d."""
    if text.startswith("-"):
        ago = timedelta(seconds=float(text[1:-1]) * _UNITS_S.get(text[-1], float("nan")))
        return now_ms - int(ago.total_seconds() * 1000)
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return int(time.timestamp() * 1000)


def time_text(timestamp_ms: int) -> str | None:
    """A record's timestamp in ISO 8601, UTC; None if it has none."""
    if timestamp_ms < 0:
        return None
    time = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
