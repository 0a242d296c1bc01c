"""Our codec against kio's: the same bytes and the same values, in both directions.

kio has a class for each message and version, generated from Kafka's own schemas, so whatever both
know must agree field by field. Values are built from kio's declarations: one with as little in it
as is allowed, one with everything present, and some by chance from a fixed seed.
"""

import dataclasses
import io
import random
import types
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Union, get_args, get_origin
from uuid import UUID

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.schema.index import api_key_map, schema_name_map
from kio.schema.request_header.v1.header import RequestHeader as KioRequestHeaderV1
from kio.schema.request_header.v2.header import RequestHeader as KioRequestHeaderV2
from kio.schema.response_header.v0.header import ResponseHeader as KioResponseHeaderV0
from kio.schema.response_header.v1.header import ResponseHeader as KioResponseHeaderV1
from kio.serial import entity_reader, entity_writer

from chronik.protocol.apis import APIS, Api
from chronik.protocol.codec import decode, encode
from chronik.protocol.errors import RETRIABLE, ErrorCode
from chronik.protocol.messages.headers import (
    RequestHeader,
    decode_request_header,
    decode_response_header,
    encode_request_header,
    encode_response_header,
    skip_tagged_fields,
)
from chronik.protocol.messages.quorum import OWN_TAG_FIRST
from chronik.protocol.schema import NO_UUID, Field, Message, fields_of

RANDOM_CASES = 6
CHARACTERS = "aZ0.-_ß€𝄞"
MILLISECOND = timedelta(milliseconds=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
INT_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64, "timedelta_i32": 32}
# Written out, so that the test notices when kio or our table stops covering a version.
KIO_COVERS = {
    "Produce": range(3, 14),
    "Fetch": range(4, 19),
    "ListOffsets": range(1, 11),
    "Metadata": range(14),
    "ApiVersions": range(5),
    "CreateTopics": range(2, 8),
    "DeleteTopics": range(1, 7),
    "DeleteRecords": range(3),
    "InitProducerId": range(6),
    "OffsetForLeaderEpoch": range(2, 5),
    "DescribeConfigs": range(1, 5),
    "AlterConfigs": range(3),
    "DescribeLogDirs": range(1, 6),
    "CreatePartitions": range(4),
    "ElectLeaders": range(3),
    "IncrementalAlterConfigs": range(2),
    "AlterPartitionReassignments": range(2),
    "ListPartitionReassignments": range(1),
    "DescribeQuorum": range(3),
    "DescribeCluster": range(3),
    "UnregisterBroker": range(1),
    "ListConfigResources": range(2),
    "DescribeTopicPartitions": range(1),
    "OffsetCommit": range(2, 11),
    "OffsetFetch": range(1, 11),
    "FindCoordinator": range(7),
    "JoinGroup": range(10),
    "Heartbeat": range(5),
    "LeaveGroup": range(6),
    "SyncGroup": range(6),
    "DescribeGroups": range(7),
    "ListGroups": range(6),
    "AddPartitionsToTxn": range(6),
    "AddOffsetsToTxn": range(5),
    "EndTxn": range(6),
    "WriteTxnMarkers": range(1, 3),
    "TxnOffsetCommit": range(6),
    "DeleteGroups": range(3),
    "OffsetDelete": range(1),
    "DescribeProducers": range(1),
    "DescribeTransactions": range(1),
    "ListTransactions": range(3),
    "ConsumerGroupHeartbeat": range(2),
    "ConsumerGroupDescribe": range(2),
    "ChangeCluster": range(0),  # our own
}

BOTH_KNOW = [
    pytest.param(api, version, id=f"{api.name}-v{version}")
    for api in APIS.values()
    for version in KIO_COVERS[api.name]
]


class Values:
    """Builds values of kio's classes: the least, the most, or by chance."""

    def __init__(self, seed: str, fill: bool | None) -> None:
        self.random = random.Random(seed)
        self.fill = fill

    def some(self) -> bool:
        return self.random.random() < 0.7 if self.fill is None else self.fill

    def entity(self, cls: type) -> Any:
        return cls(**{field.name: self.field(field) for field in dataclasses.fields(cls)})

    def field(self, field: "dataclasses.Field[Any]") -> Any:
        kind, nullable = without_none(field.type)
        if nullable and not self.some():
            return None
        if "tag" in field.metadata and not self.some():
            return default_of(field)
        if get_origin(kind) is not tuple:
            return self.single(kind, field.metadata.get("kafka_type"))
        count = self.random.choice((1, 2, 3)) if self.some() else 0
        element = get_args(kind)[0]
        return tuple(self.single(element, field.metadata.get("kafka_type")) for _ in range(count))

    def single(self, kind: Any, kafka_type: str | None) -> Any:
        if dataclasses.is_dataclass(kind):
            return self.entity(kind)  # type: ignore[arg-type]
        match kafka_type:
            case "bool":
                return self.some()
            case "string":
                # 200 characters need two bytes of length in a compact string.
                return self.random.choice(CHARACTERS) * (200 if self.some() else 0)
            case "bytes" | "records":
                return self.random.randbytes(300 if self.some() else 0)
            case "uuid":
                return UUID(bytes=self.random.randbytes(16))
            case "error_code":
                return self.random.choice(list(KioErrorCode))
            case "datetime_i64":
                # kio holds dates: the year 9999 is the limit, and its floats round milliseconds.
                return EPOCH + timedelta(seconds=self.random.randrange(253_402_300_799))
            case "timedelta_i32":
                return self.integer(32) * MILLISECOND
            case "timedelta_i64":
                return self.integer(40) * MILLISECOND
            case "uint16":
                return kind(self.random.choice((0, 1, 2**15, 2**16 - 1)))
            case "int8" | "int16" | "int32" | "int64":
                return kind(self.integer(INT_BITS[kafka_type]))
        raise AssertionError(f"no values for {kafka_type}")

    def integer(self, bits: int) -> int:
        limits = (-(2 ** (bits - 1)), -1, 0, 1, 2 ** (bits - 1) - 1)
        return self.random.choice((*limits, self.random.randint(limits[0], limits[-1])))


def without_none(kind: Any) -> tuple[Any, bool]:
    if get_origin(kind) not in (Union, types.UnionType):
        return kind, False
    (inner,) = (arm for arm in get_args(kind) if arm is not type(None))
    return inner, True


def default_of(field: "dataclasses.Field[Any]") -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    # kio leaves out the default of a tagged field where it is the zero of its type.
    return {"uuid": None, "error_code": KioErrorCode.none, "bool": False}.get(
        field.metadata["kafka_type"], 0
    )


@cache
def present(message: type[Message], version: int) -> list[Field]:
    """The fields that Kafka has too."""
    return [
        field
        for field in fields_of(message)
        if version in field.versions and (field.tag is None or field.tag < OWN_TAG_FIRST)
    ]


def to_ours(message: type[Message], value: Any, version: int) -> Message:
    """The same value as one of our messages: fields correspond by position and by name."""
    ours = present(message, version)
    theirs = dataclasses.fields(value)
    for field, their in zip(ours, theirs, strict=True):
        assert_same_declaration(field, their, version)
    return message(
        **{
            field.name: translated(field, getattr(value, their.name), version)
            for field, their in zip(ours, theirs, strict=True)
        }
    )


def assert_same_declaration(field: Field, their: "dataclasses.Field[Any]", version: int) -> None:
    assert plain_name(field.name) == plain_name(their.name)
    assert field.tag == their.metadata.get("tag")
    # To kio a null id is the zero id, and a null date is -1.
    if their.metadata.get("kafka_type") not in ("uuid", "datetime_i64"):
        assert field.nullable_in(version) == without_none(their.type)[1], field.name
    # kio gives every array a default, Kafka only the tagged ones.
    if their.default not in (dataclasses.MISSING, ()) or field.tag is not None:
        default = default_of(their)
        assert field.default == translated(field, default, version), field.name


def plain_name(name: str) -> str:
    return name.removesuffix("_ms")  # kio turns milliseconds into timedeltas and dates.


def translated(field: Field, value: Any, version: int) -> Any:
    if isinstance(value, tuple):
        if field.tag is not None and not value:
            return field.default
        element = field.kind.element
        assert element is not None
        return [
            to_ours(element.message, item, version) if element.message else item for item in value
        ]
    if field.kind.message is not None and value is not None:
        return to_ours(field.kind.message, value, version)
    return plain_value(field, value)


def plain_value(field: Field, value: Any) -> Any:
    match value:
        case UUID():
            return value.bytes
        case None if field.kind.wire == "uuid":
            return NO_UUID
        case None if not field.nullable and field.kind.wire == "int64":
            return -1  # kio's null date
        case timedelta():
            return value // MILLISECOND
        case datetime():
            return (value - EPOCH) // MILLISECOND
        case KioErrorCode():
            return int(value)
    return value


def kio_bytes(value: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(value))(buffer, value)
    return buffer.getvalue()


def test_covers_every_version_that_both_know() -> None:
    both = {
        (api.name, version)
        for api in APIS.values()
        if api.key in api_key_map  # Our own is not Kafka's.
        for version in schema_name_map[api_key_map[api.key]]
        if version in api.versions
    }
    assert both == {(name, version) for name, covered in KIO_COVERS.items() for version in covered}


@pytest.mark.parametrize("side", ["request", "response"])
@pytest.mark.parametrize(("api", "version"), BOTH_KNOW)
def test_same_bytes_and_values_as_kio(api: Api, version: int, side: str) -> None:
    load = load_request_schema if side == "request" else load_response_schema
    cls: Any = load(api.key, version)
    message = api.request if side == "request" else api.response
    flexible = api.is_flexible(version)
    assert cls.__name__ == message.__name__
    assert cls.__flexible__ == flexible
    read = entity_reader(cls)
    for case, fill in enumerate((False, True, *[None] * RANDOM_CASES)):
        theirs = Values(f"{api.name} {version} {side} {case}", fill).entity(cls)
        ours = to_ours(message, theirs, version)
        expected = kio_bytes(theirs)
        assert encode(ours, version, flexible) == expected
        assert decode(message, expected, version, flexible) == ours
        value, size = read(expected, 0)
        assert size == len(expected)
        assert to_ours(message, value, version) == ours


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_same_headers_as_kio(api: Api) -> None:
    for version in KIO_COVERS[api.name]:
        request: Any = load_request_schema(api.key, version)
        response: Any = load_response_schema(api.key, version)
        header = api.request_header_version(version)
        assert request.__header_schema__.__version__ == header
        assert response.__header_schema__.__version__ == api.response_header_version(version)


@pytest.mark.parametrize("client_id", [None, "", "rdkafka"])
@pytest.mark.parametrize(("version", "cls"), [(1, KioRequestHeaderV1), (2, KioRequestHeaderV2)])
def test_same_request_header_bytes(version: int, cls: Any, client_id: str | None) -> None:
    header = RequestHeader(
        request_api_key=3, request_api_version=9, correlation_id=-7, client_id=client_id
    )
    expected = kio_bytes(
        cls(request_api_key=3, request_api_version=9, correlation_id=-7, client_id=client_id)
    )
    assert encode_request_header(header, version) == expected
    decoded, position = decode_request_header(expected)
    if version == 2:
        position = skip_tagged_fields(expected, position)
    assert (decoded, position) == (header, len(expected))


@pytest.mark.parametrize(("version", "cls"), [(0, KioResponseHeaderV0), (1, KioResponseHeaderV1)])
def test_same_response_header_bytes(version: int, cls: Any) -> None:
    expected = kio_bytes(cls(correlation_id=2**31 - 1))
    assert encode_response_header(2**31 - 1, version) == expected
    header, position = decode_response_header(expected)
    if version == 1:
        position = skip_tagged_fields(expected, position)
    assert (header.correlation_id, position) == (2**31 - 1, len(expected))


def test_same_error_codes_as_kio() -> None:
    theirs = {code.name.upper(): (code.value, code.retriable) for code in KioErrorCode}
    ours = {code.name: (code.value, code in RETRIABLE) for code in ErrorCode}
    assert {name: ours.get(name) for name in theirs} == theirs
