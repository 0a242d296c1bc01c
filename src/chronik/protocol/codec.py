"""The compiler: one message and one version become one decode and one encode function.

Neighbouring fields of fixed size become one `struct` call, so that a hot message costs a few calls
and not one a field. Functions are compiled on first use: a broker that never meets DescribeLogDirs
v0 never pays for it.

Invariants
    Decoding any bytes returns a value or raises ProtocolError, nothing else.
    A number or a string for which a field has no room raises ProtocolError when it is encoded.
    No decoded array is longer than the bytes that remain, whatever length it claims.
    Record bytes are passed on as a view when decoded and by reference when encoded.

See `schema` for how a message is declared.
"""

from collections.abc import Callable, Sequence
from functools import cache
from struct import Struct, error, pack, unpack_from
from typing import Any, Final, TypeVar

from chronik.protocol.errors import ProtocolError
from chronik.protocol.schema import Buffer, Field, Kind, Message, Part, fields_of

M = TypeVar("M", bound=Message)
Decoder = Callable[[Buffer, int], tuple[M, int]]
Encoder = Callable[[M], list[Buffer]]

# Elements of one array. Ten times what the largest batch client sends, and small enough that one
# hostile request cannot hold the loop for long.
ARRAY_LENGTH_MAX: Final = 100_000
STRING_BYTES_MAX: Final = 2**15 - 1  # Kafka's, in every encoding

FIXED: Final = {
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "int64": "q",
    "float64": "d",
    "bool": "?",
    "uuid": "16s",
}
_UVARINTS: Final = [bytes((n,)) for n in range(128)]


def encode_uvarint(value: int) -> bytes:
    """An unsigned varint, as compact lengths and tags are written."""
    if value < 128:
        return _UVARINTS[value]
    out = bytearray()
    while value >= 128:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode_uvarint(data: Buffer, position: int) -> tuple[int, int]:
    """The unsigned varint at a position, and the position after it."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 128:
            return value, position
        shift += 7
        if shift > 28:
            raise ProtocolError("a varint is longer than five bytes")


def _fail(reason: str) -> None:
    raise ProtocolError(reason)


def _skip_tags(data: Buffer, position: int, size: int) -> int:
    """Pass over tagged fields that this version does not know."""
    count, position = decode_uvarint(data, position)
    for _ in range(count):
        _, position = decode_uvarint(data, position)
        length, position = decode_uvarint(data, position)
        position += length
        if position > size:
            raise ProtocolError("a tagged field is longer than the message")
    return position


def _records_parts(value: Any) -> tuple[int, Sequence[Part]]:
    if isinstance(value, (list, tuple)):
        return sum(map(len, value)), value
    return len(value), (value,)


_DECODE_GLOBALS: Final = {
    "uvarint": decode_uvarint,
    "unpack_from": unpack_from,
    "skip_tags": _skip_tags,
    "fail": _fail,
}
_ENCODE_GLOBALS: Final = {
    "uvarint": encode_uvarint,
    "records_parts": _records_parts,
    "pack": pack,
    "fail": _fail,
    "UV": _UVARINTS,
}


class _Source:
    """Lines of a function under construction, and the names it may use."""

    def __init__(self, scope: dict[str, Any], version: int, flexible: bool) -> None:
        self.scope = scope
        self.version = version
        self.flexible = flexible
        self.lines: list[str] = []
        self.indent = 1
        self.run: list[tuple[str, str]] = []  # fixed-size fields not yet written: format, name

    def line(self, text: str) -> None:
        self.flush()
        self.lines.append("    " * self.indent + text)

    def flush(self) -> None:
        """Write the fixed-size fields gathered so far as one struct call."""
        raise NotImplementedError

    def packer(self, formats: str, method: str) -> str:
        name = f"{method}_{formats}".replace("?", "t")
        self.scope[name] = getattr(Struct(">" + formats), method)
        return name

    def present(self, message: type[Message]) -> tuple[list[Field], list[Field]]:
        """The fields of this version: plain ones in wire order, tagged ones by tag."""
        fields = [field for field in fields_of(message) if self.version in field.versions]
        plain = [field for field in fields if field.tag is None or not self.flexible]
        tagged = [field for field in fields if field.tag is not None and self.flexible]
        return plain, sorted(tagged, key=lambda field: field.tag or 0)

    def define(self, name: str, arguments: str) -> Callable[..., Any]:
        self.flush()
        source = f"def {name}({arguments}):\n" + "\n".join(self.lines) + "\n"
        exec(compile(source, f"<{name} v{self.version}>", "exec"), self.scope)
        function: Callable[..., Any] = self.scope[name]
        return function


class _DecodeSource(_Source):
    def flush(self) -> None:
        if not self.run:
            return
        run, self.run = self.run, []
        formats = "".join(form for form, _ in run)
        names = ", ".join(name for _, name in run)
        size = Struct(">" + formats).size
        unpack = self.packer(formats, "unpack_from")
        self.line(f"{names}{',' if len(run) == 1 else ''} = {unpack}(data, pos)")
        self.line(f"pos += {size}")

    def message(self, message: type[Message]) -> str:
        """Define the function that decodes a nested or top-level message; return its name."""
        name = f"decode_{message.__name__}"
        if name in self.scope:
            return name
        inner = _DecodeSource(self.scope, self.version, self.flexible)
        plain, tagged = inner.present(message)
        for field in plain:
            inner.field(f"f_{field.name}", field.kind, field.nullable_in(self.version), field.name)
        for field in tagged:
            inner.scope[f"default_{name}_{field.name}"] = field.default
            inner.line(f"f_{field.name} = default_{name}_{field.name}")
        if self.flexible:
            inner.tags(tagged)
        self.scope[message.__name__] = message
        given = ", ".join(f"{field.name}=f_{field.name}" for field in plain + tagged)
        absent = [
            field for field in fields_of(message) if field not in plain and field not in tagged
        ]
        for field in absent:
            self.scope[f"default_{name}_{field.name}"] = field.default
        rest = ", ".join(f"{field.name}=default_{name}_{field.name}" for field in absent)
        arguments = ", ".join(part for part in (given, rest) if part)
        inner.line(f"return {message.__name__}({arguments}), pos")
        inner.define(name, "data, pos, size")
        return name

    def field(self, target: str, kind: Kind, nullable: bool, label: str) -> None:
        if kind.wire in FIXED:
            self.run.append((FIXED[kind.wire], target))
        elif kind.wire == "struct":
            self.struct(target, kind, nullable)
        else:
            self.length(kind.wire)
            self.sized(target, kind, nullable, label)

    def struct(self, target: str, kind: Kind, nullable: bool) -> None:
        assert kind.message is not None
        function = self.message(kind.message)
        if not nullable:
            self.line(f"{target}, pos = {function}(data, pos, size)")
            return
        self.run.append(("b", "n"))
        self.line(f"{target} = None")
        self.line("if n >= 0:")
        self.line(f"    {target}, pos = {function}(data, pos, size)")

    def length(self, wire: str) -> None:
        """Leave the length of a string, blob or array in `n`, -1 for null."""
        if not self.flexible:
            self.run.append(("h" if wire == "string" else "i", "n"))
            self.flush()
            return
        self.line("n = data[pos]; pos += 1")
        self.line("if n >= 128: n, pos = uvarint(data, pos - 1)")
        self.line("n -= 1")

    def sized(self, target: str, kind: Kind, nullable: bool, label: str) -> None:
        self.line("if n < 0:")
        self.indent += 1
        self.line(f"{target} = None" if nullable else f"fail('{label} is null')")
        self.indent -= 1
        self.line("else:")
        self.indent += 1
        if kind.wire == "array":
            assert kind.element is not None
            self.array(target, kind.element, label)
        else:
            self.line("end = pos + n")
            self.line(f"if end > size: fail('{label} is longer than the message')")
            if kind.wire == "string" and self.flexible:
                # Where the length has two bytes nothing else fits; records have it so, too.
                self.line(f"if n > {STRING_BYTES_MAX}: fail('{label} is too long')")
            value = {
                "string": "str(data[pos:end], 'utf-8')",
                "bytes": "bytes(data[pos:end])",
                "records": "data[pos:end]",
            }[kind.wire]
            self.line(f"{target} = {value}; pos = end")
        self.indent -= 1

    def array(self, target: str, element: Kind, label: str) -> None:
        self.line(
            f"if n > size - pos or n > {ARRAY_LENGTH_MAX}: fail('{label} claims too many elements')"
        )
        if element.wire in FIXED and element.wire != "uuid":
            form = FIXED[element.wire]
            self.line(f"{target} = list(unpack_from(f'>{{n}}{form}', data, pos))")
            self.line(f"pos += n * {Struct('>' + form).size}")
            return
        self.line(f"{target} = []")
        self.line(f"add_{target} = {target}.append")
        self.line("for _ in range(n):")
        self.indent += 1
        self.field(f"item_{target}", element, False, label)
        self.line(f"add_{target}(item_{target})")
        self.indent -= 1

    def tags(self, tagged: list[Field]) -> None:
        self.line("if data[pos] == 0: pos += 1")
        if not tagged:
            self.line("else: pos = skip_tags(data, pos, size)")
            return
        self.line("else:")
        self.indent += 1
        self.line("count, pos = uvarint(data, pos)")
        self.line("for _ in range(count):")
        self.indent += 1
        self.line("tag, pos = uvarint(data, pos)")
        self.line("length, pos = uvarint(data, pos)")
        self.line("after = pos + length")
        self.line("if after > size: fail('a tagged field is longer than the message')")
        for field in tagged:
            self.line(f"if tag == {field.tag}:")
            self.indent += 1
            nullable = field.nullable_in(self.version)
            self.field(f"f_{field.name}", field.kind, nullable, field.name)
            self.line(f"if pos != after: fail('tagged field {field.name} has a wrong length')")
            self.indent -= 1
        self.line("pos = after")
        self.indent -= 2


class _EncodeSource(_Source):
    def flush(self) -> None:
        if not self.run:
            return
        run, self.run = self.run, []
        formats = "".join(form for form, _ in run)
        values = ", ".join(value for _, value in run)
        if values.strip("0, ") == "" and set(formats) == {"B"}:
            self.line(f"append({bytes(len(run))!r})")
            return
        self.line(f"append({self.packer(formats, 'pack')}({values}))")

    def message(self, message: type[Message]) -> str:
        """Define the function that encodes a nested or top-level message; return its name."""
        name = f"encode_{message.__name__}"
        if name in self.scope:
            return name
        inner = _EncodeSource(self.scope, self.version, self.flexible)
        plain, tagged = inner.present(message)
        inner.line("append = out.append")
        for field in plain:
            nullable = field.nullable_in(self.version)
            inner.field(f"m.{field.name}", field.kind, nullable, field.name)
        if self.flexible:
            inner.tags(tagged, name)
        inner.define(name, "m, out")
        return name

    def field(self, value: str, kind: Kind, nullable: bool, label: str) -> None:
        if kind.wire in FIXED:
            self.run.append((FIXED[kind.wire], value))
            return
        variable = "v_" + label
        self.line(f"{variable} = {value}")
        if nullable:
            self.line(f"if {variable} is None:")
            self.indent += 1
            self.null(kind.wire)
            self.flush()
            self.indent -= 1
            self.line("else:")
            self.indent += 1
        else:
            self.line(f"if {variable} is None: fail('{label} is null')")
        self.value(variable, kind, nullable, label)
        if nullable:
            self.flush()
            self.indent -= 1

    def null(self, wire: str) -> None:
        if wire == "struct":
            self.run.append(("b", "-1"))
        elif self.flexible:
            self.run.append(("B", "0"))
        else:
            self.run.append(("h" if wire == "string" else "i", "-1"))

    def value(self, variable: str, kind: Kind, nullable: bool, label: str) -> None:
        match kind.wire:
            case "struct":
                assert kind.message is not None
                if nullable:
                    self.run.append(("b", "1"))
                self.line(f"{self.message(kind.message)}({variable}, out)")
            case "string":
                self.line(f"{variable} = {variable}.encode()")
                self.prefixed(variable, "h")
            case "bytes":
                self.prefixed(variable, "i")
            case "records":
                self.line(f"n, parts = records_parts({variable})")
                self.length("n", "i")
                self.line("out.extend(parts)")
            case _:
                assert kind.element is not None
                self.length(f"len({variable})", "i")
                self.elements(variable, kind.element, label)

    def length(self, expression: str, form: str) -> None:
        if self.flexible:
            self.line(f"append(uvarint({expression} + 1))")
        else:
            self.run.append((form, expression))

    def prefixed(self, variable: str, form: str) -> None:
        if self.flexible:
            self.line(f"n = len({variable}) + 1")
            self.line(f"append((UV[n] if n < 128 else uvarint(n)) + {variable})")
        else:
            self.run.append((form, f"len({variable})"))
            self.line(f"append({variable})")

    def elements(self, variable: str, element: Kind, label: str) -> None:
        if element.wire in FIXED and element.wire != "uuid":
            form = FIXED[element.wire]
            self.line(f"append(pack(f'>{{len({variable})}}{form}', *{variable}))")
            return
        if element.wire == "struct":
            assert element.message is not None
            function = self.message(element.message)
            # An element may come encoded: a Metadata answer has thousands that never change.
            self.line(f"for item in {variable}:")
            self.line("    if item.__class__ is bytes: append(item)")
            self.line(f"    else: {function}(item, out)")
            return
        self.line(f"for item_{label} in {variable}:")
        self.indent += 1
        self.field(f"item_{label}", element, False, f"item_{label}")
        self.flush()
        self.indent -= 1

    def tags(self, tagged: list[Field], name: str) -> None:
        """Tagged fields that hold their default are left out, as every Kafka does."""
        if not tagged:
            self.run.append(("B", "0"))
            return
        self.line("tags = []")
        for field in tagged:
            default = f"default_{name}_{field.name}"
            self.scope[default] = field.default
            # An array may be given as a list where the default is an empty tuple.
            differs = (
                f"len(m.{field.name})" if field.default == () else f"m.{field.name} != {default}"
            )
            self.line(f"if {differs}:")
            self.indent += 1
            self.line("outer = out; out = []; append = out.append")
            nullable = field.nullable_in(self.version)
            self.field(f"m.{field.name}", field.kind, nullable, field.name)
            self.line("body = b''.join(out); out = outer; append = out.append")
            self.line(f"tags.append(uvarint({field.tag}) + uvarint(len(body)) + body)")
            self.indent -= 1
        self.line("append(uvarint(len(tags)))")
        self.line("out.extend(tags)")


@cache
def decoder(message: type[M], version: int, flexible: bool) -> Decoder[M]:
    """The function that decodes this message in this version from (data, position)."""
    source = _DecodeSource(dict(_DECODE_GLOBALS), version, flexible)
    body: Callable[[Buffer, int, int], tuple[M, int]] = source.scope[source.message(message)]

    def decode_message(data: Buffer, position: int) -> tuple[M, int]:
        try:
            value, position = body(data, position, len(data))
        except (error, IndexError, ValueError) as reason:
            raise ProtocolError(f"{message.__name__} v{version}: {reason}") from None
        return value, position

    return decode_message


@cache
def encoder(message: type[M], version: int, flexible: bool) -> Encoder[M]:
    """The function that encodes this message in this version, as parts to be joined."""
    source = _EncodeSource(dict(_ENCODE_GLOBALS), version, flexible)
    body: Callable[[M, list[Buffer]], None] = source.scope[source.message(message)]

    def encode_message(value: M) -> list[Buffer]:
        out: list[Buffer] = []
        try:
            body(value, out)
        except (error, UnicodeEncodeError) as reason:
            raise ProtocolError(f"{message.__name__} v{version}: {reason}") from None
        return out

    return encode_message


def encode(value: Message, version: int, flexible: bool) -> bytes:
    """The bytes of a message."""
    return b"".join(encoder(type(value), version, flexible)(value))


def decode(message: type[M], data: Buffer, version: int, flexible: bool) -> M:
    """The one message that these bytes hold; bytes left over are an error."""
    function: Decoder[M] = decoder(message, version, flexible)
    value, position = function(data, 0)
    if position != len(data):
        raise ProtocolError(f"{message.__name__} v{version}: {len(data) - position} bytes left")
    return value
