"""How a wire message is declared: once, for all of its versions.

A message is a frozen struct whose annotations carry the wire type, and the versions in which a
field exists, may be null or is a tagged field:

    class FetchPartition(Message):
        partition: int32
        current_leader_epoch: Annotated[int32, since(9)] = -1
        topics: Annotated[Sequence[FetchTopic] | None, nullable_since(1)]
        high_watermark: Annotated[int64, tagged(1, since=18)] = MAX_INT64

Field order is wire order. A field that is absent in a version decodes to its default and is not
encoded. `| None` means nullable in every version unless `nullable_since` narrows it.
`codec` compiles a message and a version into one decode and one encode function.

A nested message is written without a length; a nullable one is preceded by a signed byte, -1 for
null. The API table (`apis`) says which versions are flexible: compact lengths, tagged fields.
"""

import types
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Protocol,
    TypeAlias,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

VERSION_MAX: Final = 32_767


@dataclass(frozen=True, slots=True)
class Wire:
    """A primitive wire type, known to the compiler by name."""

    name: str


@dataclass(frozen=True, slots=True)
class Versions:
    """An inclusive range of versions."""

    first: int
    last: int = VERSION_MAX

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last

    def __str__(self) -> str:
        return f"{self.first}" if self.first == self.last else f"{self.first}-{self.last}"


@dataclass(frozen=True, slots=True)
class Nullable:
    versions: Versions


@dataclass(frozen=True, slots=True)
class Tagged:
    tag: int
    versions: Versions


def since(first: int) -> Versions:
    """The field exists from this version on."""
    return Versions(first)


def until(last: int) -> Versions:
    """The field exists up to and including this version."""
    return Versions(0, last)


def between(first: int, last: int) -> Versions:
    """The field exists in these versions, both included."""
    return Versions(first, last)


def nullable_since(first: int) -> Nullable:
    """The field may be null only from this version on."""
    return Nullable(Versions(first))


def tagged(tag: int, *, since: int) -> Tagged:
    """The field is a tagged field, and exists from this version on."""
    return Tagged(tag, Versions(since))


# Wire types. Names are Kafka's own; the Python type is what mypy sees.
int8 = Annotated[int, Wire("int8")]
int16 = Annotated[int, Wire("int16")]
uint16 = Annotated[int, Wire("uint16")]
int32 = Annotated[int, Wire("int32")]
int64 = Annotated[int, Wire("int64")]
float64 = Annotated[float, Wire("float64")]
boolean = Annotated[bool, Wire("bool")]
string = Annotated[str, Wire("string")]
blob = Annotated[bytes, Wire("bytes")]
uuid = Annotated[bytes, Wire("uuid")]  # 16 bytes, as they are on the wire
Buffer: TypeAlias = bytes | bytearray | memoryview


class InFile(Protocol):
    """Bytes that a socket takes from a file."""

    def __len__(self) -> int: ...

    def send(self, socket_descriptor: int) -> None:
        """Let a socket take as much as it has room for."""
        ...

    def rest(self) -> Buffer:
        """What was not sent."""
        ...


Part: TypeAlias = Buffer | InFile
# Record bytes: a view of the request when decoded, any parts (written one after the other,
# never copied) when encoded.
records = Annotated[Part | Sequence[Buffer], Wire("records")]

NO_UUID: Final = bytes(16)


if TYPE_CHECKING:

    @dataclass_transform(kw_only_default=True, frozen_default=True)
    class MessageMeta(type):
        """What a type checker sees: msgspec's own declaration is not keyword-only."""

    class Message(metaclass=MessageMeta):
        """The parent of every request, response and nested struct."""

else:

    class MessageMeta(msgspec.StructMeta):
        """Makes every message frozen and keyword-only without saying so in each declaration."""

        def __new__(mcls, name, bases, namespace, **options):
            options = {"frozen": True, "kw_only": True, "gc": False, **options}
            return super().__new__(mcls, name, bases, namespace, **options)

    class Message(msgspec.Struct, metaclass=MessageMeta):
        """The parent of every request, response and nested struct."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What a field holds: a primitive, an array of a kind, or a nested message."""

    wire: str  # a primitive's name, "array" or "struct"
    element: "Kind | None" = None
    message: type[Message] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One declared field, as the compiler sees it."""

    name: str
    kind: Kind
    versions: Versions
    nullable: Versions | None
    tag: int | None
    default: Any

    def nullable_in(self, version: int) -> bool:
        return self.nullable is not None and version in self.nullable


@cache
def fields_of(message: type[Message]) -> tuple[Field, ...]:
    """The declared fields of a message, in wire order."""
    hints = get_type_hints(message, include_extras=True)
    return tuple(
        _field(info.name, hints[info.name], _default(info))
        for info in msgspec.structs.fields(message)  # type: ignore[arg-type]
    )


def _default(info: msgspec.structs.FieldInfo) -> Any:
    if info.default_factory is not msgspec.NODEFAULT:
        return info.default_factory()
    return None if info.default is msgspec.NODEFAULT else info.default


def _field(name: str, hint: Any, default: Any) -> Field:
    hint, marks = _unwrap(hint)
    optional = False
    if get_origin(hint) in (Union, types.UnionType) and type(None) in get_args(hint):
        optional = True
        hint, inner_marks = _unwrap(_without_none(hint))
        marks = inner_marks + marks
    versions = next((mark for mark in marks if isinstance(mark, Versions)), Versions(0))
    nullable = next((mark for mark in marks if isinstance(mark, Nullable)), None)
    tag = next((mark for mark in marks if isinstance(mark, Tagged)), None)
    if tag is not None:
        versions = tag.versions
    if nullable is None and optional:
        nullable = Nullable(Versions(0))
    return Field(
        name=name,
        kind=_kind(hint, marks),
        versions=versions,
        nullable=nullable.versions if nullable else None,
        tag=tag.tag if tag else None,
        default=default,
    )


def _kind(hint: Any, marks: tuple[Any, ...]) -> Kind:
    wire = next((mark for mark in marks if isinstance(mark, Wire)), None)
    if wire is not None:
        return Kind(wire.name)
    if get_origin(hint) is Sequence:
        element, element_marks = _unwrap(get_args(hint)[0])
        return Kind("array", element=_kind(element, element_marks))
    assert isinstance(hint, type), f"not a wire type: {hint}"
    assert issubclass(hint, Message), f"not a wire type: {hint}"
    return Kind("struct", message=hint)


def _unwrap(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    if get_origin(hint) is Annotated:
        inner, *marks = get_args(hint)
        inner, inner_marks = _unwrap(inner)
        return inner, inner_marks + tuple(marks)
    return hint, ()


def _without_none(hint: Any) -> Any:
    rest = [arm for arm in get_args(hint) if arm is not type(None)]
    return rest[0] if len(rest) == 1 else Union[tuple(rest)]  # noqa: UP007
