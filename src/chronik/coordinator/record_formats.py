"""How a coordinator's record becomes a key and a value, and back.

A key is a record type and a message, a value is a version and a message. Keys are never flexible.
Kafka reads and writes the same formats, so that its tools can read our internal topics.

A record type that is not known is an UnknownKey: a newer Kafka wrote it, and its reader passes
over it. A value version that is not known is an error, because a state without it would be wrong.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from chronik.protocol.codec import decode, encode
from chronik.protocol.errors import ProtocolError
from chronik.protocol.schema import Buffer, Message


@dataclass(frozen=True, slots=True)
class UnknownKey:
    """The key of a record type that we do not know."""

    type: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFormat:
    """One record type: its key, its value, and the version of the value that is written."""

    number: int
    key: type[Message]
    value: type[Message]
    newest: int = 0
    written: int = 0
    flexible_since: int = 0


class RecordFormats:
    """The record types of one internal topic."""

    def __init__(self, formats: Sequence[RecordFormat], aliases: dict[int, int]) -> None:
        """Aliases are types that are read like another one and never written."""
        self._by_type = {each.number: each for each in formats}
        self._by_key = {each.key: each for each in formats}
        self._by_value = {each.value: each for each in formats}
        self._by_type.update({alias: self._by_type[of] for alias, of in aliases.items()})

    def encode_key(self, key: Message) -> bytes:
        """The type, then the key."""
        return _int16(self._by_key[type(key)].number) + encode(key, 0, flexible=False)

    def encode_value(self, value: Message, version: int | None = None) -> bytes:
        """The version, then the value; None means the version that Kafka writes."""
        known = self._by_value[type(value)]
        chosen = known.written if version is None else version
        assert 0 <= chosen <= known.newest, f"{type(value).__name__} v{chosen}"
        return _int16(chosen) + encode(value, chosen, chosen >= known.flexible_since)

    def decode_key(self, data: Buffer) -> Message | UnknownKey:
        """The key, or what can be said of a key of an unknown type."""
        number, rest = _split(data, "key")
        known = self._by_type.get(number)
        return decode(known.key, rest, 0, flexible=False) if known else UnknownKey(number)

    def decode_value(self, key: Message | UnknownKey, data: Buffer | None) -> Message | None:
        """The value of a key; None if it was deleted, or if its key is unknown."""
        if data is None or isinstance(key, UnknownKey):
            return None
        known = self._by_key[type(key)]
        version, rest = _split(data, "value")
        if not 0 <= version <= known.newest:
            raise ProtocolError(f"{known.value.__name__} v{version} is not known")
        return decode(known.value, rest, version, version >= known.flexible_since)


def _int16(number: int) -> bytes:
    return number.to_bytes(2, "big", signed=True)


def _split(data: Buffer, what: str) -> tuple[int, Buffer]:
    if len(data) < 2:
        raise ProtocolError(f"a record's {what} has {len(data)} bytes")
    return int.from_bytes(data[:2], "big", signed=True), memoryview(data)[2:]
