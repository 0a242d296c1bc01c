"""Protobuf messages as typed columns, by a descriptor set and the name of a message.

    protoc --include_imports --descriptor_set_out=orders.desc orders.proto
    .option("decode", "protobuf").option("schema", "orders.desc#shop.Order")

    Protobuf                         column
    int32, sint32, sfixed32          int;  the 64-bit ones long
    uint32, fixed32                  long; uint64, fixed64 decimal(20, 0)
    enum                             string: the name, or the number if it has none
    message                          struct; Timestamp a timestamp, wrappers what they wrap
    repeated, map                    array, map

A field that tracks its presence is null when it is not set; another has its default. The bytes of
the descriptor set travel with the decoder, so that executors need no file. A message begins with a
tag, which is never zero: a zero byte is Confluent's frame. Fields that the message has not are
skipped, as Protobuf wants it, which is why many a damaged value still decodes.
"""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from chronik.spark.decode.decoder import Decoded, nullable, projected
from chronik.spark.decode.framing import after_message_indexes, is_framed
from chronik.spark.decode.objects import Object, decode_objects
from chronik.spark.errors import OptionsError

_TYPES: Final = {
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT64: pa.decimal128(20, 0),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_ENUM: pa.string(),
    FieldDescriptor.CPPTYPE_STRING: pa.string(),
}
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_WRAPPERS: Final = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)

Getter = Callable[[Any], Any]


class ProtobufDecoder:
    """Reads messages of one type."""

    def __init__(
        self, descriptors: bytes, message_name: str, *, wanted: pa.Schema | None = None
    ) -> None:
        self._descriptors = descriptors
        self._message_name = message_name
        self._descriptor = _find(descriptors, message_name)
        names = None if wanted is None else set(wanted.names)
        fields = [
            (field.name, _type(field, (self._descriptor.full_name,)))
            for field in self._descriptor.fields
            if names is None or field.name in names
        ]
        self.schema = projected(nullable(pa.schema(fields)), wanted, f"message {message_name}")

    @classmethod
    def from_text(cls, text: str, *, wanted: pa.Schema | None = None) -> "ProtobufDecoder":
        """By `FILE#package.Message`."""
        path, mark, name = text.rpartition("#")
        if not (mark and path and name):
            raise OptionsError(f"schema {text!r} must be FILE#package.Message for protobuf")
        try:
            descriptors = Path(path).read_bytes()
        except OSError as error:
            raise OptionsError(
                f"the descriptor set {path} cannot be read: {error.strerror}"
            ) from None
        return cls(descriptors, name, wanted=wanted)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self._descriptors, self._message_name, self.schema)

    @cached_property
    def _class(self) -> Any:
        return message_factory.GetMessageClass(self._descriptor)

    @cached_property
    def _getters(self) -> list[tuple[str, Getter]]:
        by_name = self._descriptor.fields_by_name
        return [(name, _getter(by_name[name])) for name in self.schema.names]

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """As many rows as there are values."""
        return decode_objects(values, self.schema, self._read)

    def _read(self, value: bytes) -> Object:
        message = self._class()
        if is_framed(value):
            value = value[after_message_indexes(value) :]
        message.ParseFromString(value)
        return {name: get(message) for name, get in self._getters}


def _unpickled(descriptors: bytes, message_name: str, schema: pa.Schema) -> ProtobufDecoder:
    return ProtobufDecoder(descriptors, message_name, wanted=schema)


def _find(descriptors: bytes, message_name: str) -> Descriptor:
    found = descriptor_pb2.FileDescriptorSet()
    pool = descriptor_pool.DescriptorPool()
    try:
        found.ParseFromString(descriptors)
        _fill(pool, found)
    except (DecodeError, TypeError, KeyError) as error:
        raise OptionsError(
            f"this is no complete descriptor set ({error}): make it by protoc --include_imports"
            " --descriptor_set_out=FILE"
        ) from None
    try:
        return pool.FindMessageTypeByName(message_name)
    except KeyError:
        names = [
            f"{file.package}.{each.name}".lstrip(".")
            for file in found.file
            for each in file.message_type
        ]
        raise OptionsError(
            f"the descriptor set has no message {message_name}, only {', '.join(names)}"
        ) from None


def _fill(pool: Any, found: descriptor_pb2.FileDescriptorSet) -> None:
    """Add all files, and those of Google's own that they import and that were left out."""
    files = {file.name: file for file in found.file}
    added: set[str] = set()

    def add(name: str) -> None:
        if name in added:
            return
        added.add(name)
        file = files.get(name)
        if file is None:
            file = descriptor_pb2.FileDescriptorProto()
            _well_known(name).CopyToProto(file)
        for dependency in file.dependency:
            add(dependency)
        pool.Add(file)

    for name in files:
        add(name)


def _well_known(name: str) -> Any:
    from google.protobuf import duration_pb2, struct_pb2, timestamp_pb2, wrappers_pb2

    for module in (timestamp_pb2, wrappers_pb2, duration_pb2, struct_pb2):
        if module.DESCRIPTOR.name == name:
            return module.DESCRIPTOR
    raise KeyError(f"{name} is missing")


def _is_map(field: FieldDescriptor) -> bool:
    kind = field.message_type
    return kind is not None and kind.GetOptions().map_entry


def _is_repeated(field: FieldDescriptor) -> bool:
    # Protobuf 7 has no label, and 5 nothing else.
    if hasattr(field, "is_repeated"):
        return bool(field.is_repeated)
    return bool(field.label == FieldDescriptor.LABEL_REPEATED)


def _type(field: FieldDescriptor, within: tuple[str, ...]) -> pa.DataType:
    if _is_map(field):
        entry = field.message_type.fields_by_name
        return pa.map_(_single_type(entry["key"], within), _single_type(entry["value"], within))
    single = _single_type(field, within)
    return pa.list_(pa.field("element", single)) if _is_repeated(field) else single


def _single_type(field: FieldDescriptor, within: tuple[str, ...]) -> pa.DataType:
    if field.type == FieldDescriptor.TYPE_BYTES:
        return pa.binary()
    if field.message_type is None:
        return _TYPES[field.cpp_type]
    name = field.message_type.full_name
    if name == _TIMESTAMP:
        return pa.timestamp("us", tz="UTC")
    if name in _WRAPPERS:
        return _single_type(field.message_type.fields_by_name["value"], within)
    if name in within:
        raise OptionsError(
            f"{field.full_name}: {name} contains itself, and Spark has no such type; name the"
            " fields that are wanted"
        )
    inside = (*within, name)
    return pa.struct([(each.name, _type(each, inside)) for each in field.message_type.fields])


def _getter(field: FieldDescriptor) -> Getter:
    """What gives a field of a message as pyarrow takes it."""
    name = field.name
    if _is_map(field):
        convert = _converter(field.message_type.fields_by_name["value"])
        return lambda message: [
            (key, convert(item)) for key, item in getattr(message, name).items()
        ]
    convert = _converter(field)
    if _is_repeated(field):
        return lambda message: [convert(item) for item in getattr(message, name)]
    if field.has_presence:
        return lambda message: convert(getattr(message, name)) if message.HasField(name) else None
    return lambda message: convert(getattr(message, name))


def _converter(field: FieldDescriptor) -> Getter:
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return lambda number: names.get(number, str(number))
    kind = field.message_type
    if kind is None:
        return lambda value: value
    if kind.full_name == _TIMESTAMP:
        return lambda value: value.seconds * 1_000_000 + value.nanos // 1000
    if kind.full_name in _WRAPPERS:
        return lambda value: value.value
    getters = [(each.name, _getter(each)) for each in kind.fields]
    return lambda message: {name: get(message) for name, get in getters}
