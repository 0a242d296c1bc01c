"""Every message in every served version: layouts, round trips, broken bytes, real clients' bytes.

`test_kio` compares with another implementation; the versions it does not know are compared here
with layouts written out by hand. `vectors/` holds requests as real clients sent them.
"""

import itertools
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from chronik.protocol.apis import API_VERSIONS, APIS, FETCH, METADATA, PRODUCE, Api
from chronik.protocol.codec import decode, decoder, encode
from chronik.protocol.errors import ErrorCode, ProtocolError
from chronik.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from chronik.protocol.messages.configs import DescribeConfigsResourceResult
from chronik.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from chronik.protocol.messages.groups import HeartbeatRequest
from chronik.protocol.messages.headers import decode_request_header, skip_tagged_fields
from chronik.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
)
from chronik.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from chronik.protocol.messages.offset_commits import OffsetCommitRequestPartition
from chronik.protocol.messages.produce import (
    LeaderIdAndEpoch,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from chronik.protocol.schema import Field, Kind, Message, Versions, fields_of

VECTORS = Path(__file__).parents[2] / "vectors"

# The versions that Kafka 4 and kio dropped. "?" marks what may be null.
OLD_LAYOUTS = [
    (
        "ProduceRequest",
        Versions(0, 2),
        "acks:int16 timeout_ms:int32 topic_data:[{name:string partition_data:[{index:int32 "
        "records:records?}]}]",
    ),
    (
        "ProduceResponse",
        Versions(0, 0),
        "responses:[{name:string partition_responses:[{index:int32 error_code:int16 "
        "base_offset:int64}]}]",
    ),
    (
        "ProduceResponse",
        Versions(1, 1),
        "responses:[{name:string partition_responses:[{index:int32 error_code:int16 "
        "base_offset:int64}]}] throttle_time_ms:int32",
    ),
    (
        "ProduceResponse",
        Versions(2, 2),
        "responses:[{name:string partition_responses:[{index:int32 error_code:int16 "
        "base_offset:int64 log_append_time_ms:int64}]}] throttle_time_ms:int32",
    ),
    (
        "FetchRequest",
        Versions(0, 2),
        "replica_id:int32 max_wait_ms:int32 min_bytes:int32 topics:[{topic:string "
        "partitions:[{partition:int32 fetch_offset:int64 partition_max_bytes:int32}]}]",
    ),
    (
        "FetchRequest",
        Versions(3, 3),
        "replica_id:int32 max_wait_ms:int32 min_bytes:int32 max_bytes:int32 "
        "topics:[{topic:string partitions:[{partition:int32 fetch_offset:int64 "
        "partition_max_bytes:int32}]}]",
    ),
    (
        "FetchResponse",
        Versions(0, 0),
        "responses:[{topic:string partitions:[{partition_index:int32 error_code:int16 "
        "high_watermark:int64 records:records?}]}]",
    ),
    (
        "FetchResponse",
        Versions(1, 3),
        "throttle_time_ms:int32 responses:[{topic:string partitions:[{partition_index:int32 "
        "error_code:int16 high_watermark:int64 records:records?}]}]",
    ),
    (
        "ListOffsetsRequest",
        Versions(0, 0),
        "replica_id:int32 topics:[{name:string partitions:[{partition_index:int32 "
        "timestamp:int64 max_num_offsets:int32}]}]",
    ),
    (
        "ListOffsetsResponse",
        Versions(0, 0),
        "topics:[{name:string partitions:[{partition_index:int32 error_code:int16 "
        "old_style_offsets:[int64]}]}]",
    ),
    (
        "CreateTopicsRequest",
        Versions(0, 0),
        "topics:[{name:string num_partitions:int32 replication_factor:int16 "
        "assignments:[{partition_index:int32 broker_ids:[int32]}] configs:[{name:string "
        "value:string?}]}] timeout_ms:int32",
    ),
    (
        "CreateTopicsRequest",
        Versions(1, 1),
        "topics:[{name:string num_partitions:int32 replication_factor:int16 "
        "assignments:[{partition_index:int32 broker_ids:[int32]}] configs:[{name:string "
        "value:string?}]}] timeout_ms:int32 validate_only:bool",
    ),
    (
        "CreateTopicsResponse",
        Versions(0, 0),
        "topics:[{name:string error_code:int16}]",
    ),
    (
        "CreateTopicsResponse",
        Versions(1, 1),
        "topics:[{name:string error_code:int16 error_message:string?}]",
    ),
    (
        "DeleteTopicsRequest",
        Versions(0, 0),
        "topic_names:[string] timeout_ms:int32",
    ),
    (
        "DeleteTopicsResponse",
        Versions(0, 0),
        "responses:[{name:string error_code:int16}]",
    ),
    (
        "OffsetForLeaderEpochRequest",
        Versions(0, 1),
        "topics:[{topic:string partitions:[{partition:int32 leader_epoch:int32}]}]",
    ),
    (
        "OffsetForLeaderEpochResponse",
        Versions(0, 0),
        "topics:[{topic:string partitions:[{error_code:int16 partition:int32 end_offset:int64}]}]",
    ),
    (
        "OffsetForLeaderEpochResponse",
        Versions(1, 1),
        "topics:[{topic:string partitions:[{error_code:int16 partition:int32 "
        "leader_epoch:int32 end_offset:int64}]}]",
    ),
    (
        "DescribeConfigsRequest",
        Versions(0, 0),
        "resources:[{resource_type:int8 resource_name:string configuration_keys:[string]?}]",
    ),
    (
        "DescribeConfigsResponse",
        Versions(0, 0),
        "throttle_time_ms:int32 results:[{error_code:int16 error_message:string? "
        "resource_type:int8 resource_name:string configs:[{name:string value:string? "
        "read_only:bool is_default:bool is_sensitive:bool}]}]",
    ),
    (
        "DescribeLogDirsRequest",
        Versions(0, 0),
        "topics:[{topic:string partitions:[int32]}]?",
    ),
    (
        "DescribeLogDirsResponse",
        Versions(0, 0),
        "throttle_time_ms:int32 results:[{error_code:int16 log_dir:string "
        "topics:[{name:string partitions:[{partition_index:int32 partition_size:int64 "
        "offset_lag:int64 is_future_key:bool}]}]}]",
    ),
    (
        "OffsetCommitRequest",
        Versions(0, 0),
        "group_id:string topics:[{name:string partitions:[{partition_index:int32 "
        "committed_offset:int64 committed_metadata:string?}]}]",
    ),
    (
        "OffsetCommitRequest",
        Versions(1, 1),
        "group_id:string generation_id_or_member_epoch:int32 member_id:string "
        "topics:[{name:string partitions:[{partition_index:int32 committed_offset:int64 "
        "commit_timestamp:int64 committed_metadata:string?}]}]",
    ),
    (
        "OffsetCommitResponse",
        Versions(0, 1),
        "topics:[{name:string partitions:[{partition_index:int32 error_code:int16}]}]",
    ),
    (
        "OffsetFetchRequest",
        Versions(0, 0),
        "group_id:string topics:[{name:string partition_indexes:[int32]}]",
    ),
    (
        "OffsetFetchResponse",
        Versions(0, 0),
        "topics:[{name:string partitions:[{partition_index:int32 committed_offset:int64 "
        "metadata:string? error_code:int16}]}]",
    ),
    (
        "WriteTxnMarkersRequest",
        Versions(0, 0),
        "markers:[{producer_id:int64 producer_epoch:int16 transaction_result:bool "
        "topics:[{name:string partition_indexes:[int32]}] coordinator_epoch:int32}]",
    ),
    (
        "WriteTxnMarkersResponse",
        Versions(0, 0),
        "markers:[{producer_id:int64 topics:[{name:string partitions:[{partition_index:int32 "
        "error_code:int16}]}]}]",
    ),
]

INT_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
EVERY_VERSION = [
    pytest.param(api, version, id=f"{api.name}-v{version}")
    for api in APIS.values()
    for version in range(api.versions.first, api.versions.last + 1)
]
EVERY_MESSAGE = {
    message.__name__: (api, message)
    for api in APIS.values()
    for message in (api.request, api.response)
}


@cache
def present(message: type[Message], version: int) -> list[Field]:
    return [field for field in fields_of(message) if version in field.versions]


def layout(message: type[Message], version: int) -> str:
    return " ".join(
        f"{field.name}:{kind_layout(field.kind, version)}{'?' * field.nullable_in(version)}"
        for field in present(message, version)
    )


def kind_layout(kind: Kind, version: int) -> str:
    if kind.element is not None:
        return f"[{kind_layout(kind.element, version)}]"
    return f"{{{layout(kind.message, version)}}}" if kind.message is not None else kind.wire


@cache
def values(message: type[Message], version: int) -> st.SearchStrategy[Any]:
    """Any value of this message that this version can carry."""
    return st.builds(
        message, **{field.name: of_field(field, version) for field in present(message, version)}
    )


def of_field(field: Field, version: int) -> st.SearchStrategy[Any]:
    strategy = of_kind(field.kind, version)
    if field.tag is not None:
        # An empty tagged array is not sent, and so comes back as the default.
        strategy = st.just(field.default) | strategy.filter(lambda value: value != [])
    return st.none() | strategy if field.nullable_in(version) else strategy


def of_kind(kind: Kind, version: int) -> st.SearchStrategy[Any]:
    if kind.element is not None:
        return st.lists(of_kind(kind.element, version), max_size=3)
    if kind.message is not None:
        return values(kind.message, version)
    if kind.wire in INT_BITS:
        limit = 2 ** (INT_BITS[kind.wire] - 1)
        return st.integers(-limit, limit - 1)
    return {
        "bool": st.booleans(),
        "uint16": st.integers(0, 2**16 - 1),
        "string": st.text(max_size=200),
        "records": st.binary(max_size=200),
        "bytes": st.binary(max_size=200),
        "uuid": st.binary(min_size=16, max_size=16),
    }[kind.wire]


def filled(message: type[Message], version: int) -> Message:
    """A value with every field of the version present and different, two elements an array."""
    numbers = itertools.count(1)

    def of(kind: Kind) -> Any:
        if kind.element is not None:
            return [of(kind.element), of(kind.element)]
        if kind.message is not None:
            fields = present(kind.message, version)
            return kind.message(**{field.name: of(field.kind) for field in fields})
        number = next(numbers) % 127
        return {
            "bool": True,
            "string": f"text {number}",
            "records": bytes(number),
            "bytes": bytes(number),
            "uuid": bytes([number] * 16),
        }.get(kind.wire, number)

    value = of(Kind("struct", message=message))
    assert isinstance(value, message)
    return value


def test_old_layouts_are_the_versions_without_an_oracle() -> None:
    covered = {
        (name, version)
        for name, versions, _ in OLD_LAYOUTS
        for version in range(versions.first, versions.last + 1)
    }
    # Kafka 4 removed these; what it kept, kio knows too.
    removed = {
        "Produce": 3,
        "Fetch": 4,
        "ListOffsets": 1,
        "CreateTopics": 2,
        "DeleteTopics": 1,
        "OffsetForLeaderEpoch": 2,
        "DescribeConfigs": 1,
        "DescribeLogDirs": 1,
        "OffsetCommit": 2,
        "OffsetFetch": 1,
        "WriteTxnMarkers": 1,
    }
    assert covered == {
        (name + side, version)
        for name, count in removed.items()
        for side in ("Request", "Response")
        for version in range(count)
    }


@pytest.mark.parametrize(("name", "versions", "expected"), OLD_LAYOUTS)
def test_old_versions_have_the_documented_layout(
    name: str, versions: Versions, expected: str
) -> None:
    api, message = EVERY_MESSAGE[name]
    for version in range(versions.first, versions.last + 1):
        assert layout(message, version) == expected
        assert not api.is_flexible(version)


@pytest.mark.parametrize("message", [entry[1] for entry in EVERY_MESSAGE.values()])
def test_what_some_version_lacks_has_a_default(message: type[Message]) -> None:
    api, _ = EVERY_MESSAGE[message.__name__]
    for version in range(api.versions.first, api.versions.last + 1):
        filled(message, version)  # A missing argument would raise TypeError.


@pytest.mark.parametrize(("api", "version"), EVERY_VERSION)
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_round_trip(api: Api, version: int, data: st.DataObject) -> None:
    flexible = api.is_flexible(version)
    for message in (api.request, api.response):
        value = data.draw(values(message, version))
        assert decode(message, encode(value, version, flexible), version, flexible) == value


@pytest.mark.parametrize(("api", "version"), EVERY_VERSION)
def test_round_trip_of_everything_and_of_every_prefix(api: Api, version: int) -> None:
    flexible = api.is_flexible(version)
    for message in (api.request, api.response):
        value = filled(message, version)
        data = encode(value, version, flexible)
        assert decode(message, data, version, flexible) == value
        assert decode(message, memoryview(data), version, flexible) == value
        for size in range(len(data)):
            with pytest.raises(ProtocolError):
                decode(message, data[:size], version, flexible)


@pytest.mark.parametrize(("api", "version"), EVERY_VERSION)
def test_every_flipped_byte_is_a_value_or_a_protocol_error(api: Api, version: int) -> None:
    flexible = api.is_flexible(version)
    for message in (api.request, api.response):
        data = encode(filled(message, version), version, flexible)
        for position, flip in itertools.product(range(len(data)), (0x80, 0xFF)):
            broken = bytearray(data)
            broken[position] ^= flip
            decodes_or_refuses(message, bytes(broken), version, flexible)


@pytest.mark.parametrize("name", EVERY_MESSAGE)
@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.binary(max_size=300), chosen=st.integers(0, 100))
@example(data=b"\xff" * 300, chosen=0)
@example(data=b"\xff" * 300, chosen=100)
@example(data=b"\x7f" * 300, chosen=0)
@example(data=b"\x7f" * 300, chosen=100)
def test_any_bytes_are_a_value_or_a_protocol_error(name: str, data: bytes, chosen: int) -> None:
    api, message = EVERY_MESSAGE[name]
    version = min(api.versions.first + chosen, api.versions.last)
    decodes_or_refuses(message, data, version, api.is_flexible(version))


def decodes_or_refuses(message: type[Message], data: bytes, version: int, flexible: bool) -> None:
    try:
        _, position = decoder(message, version, flexible)(data, 0)
    except ProtocolError:
        return
    assert position <= len(data)


@pytest.mark.parametrize("path", sorted(VECTORS.glob("*_request.json")), ids=lambda p: p.stem)
def test_requests_of_real_clients(path: Path) -> None:
    expected = json.loads(path.read_text())
    frame = bytes.fromhex(path.with_suffix(".hex").read_text())
    header, position = decode_request_header(frame)
    api, version = APIS[header.request_api_key], header.request_api_version
    flexible = api.is_flexible(version)
    if flexible:
        position = skip_tagged_fields(frame, position)
    body, end = decoder(api.request, version, flexible)(frame, position)
    assert (api.name, version) == (expected["api"], expected["version"])
    assert plain(header, 1) == expected["header"]
    assert plain(body, version) == expected["body"]
    assert len(frame) - end == expected["bytes_left"]
    assert encode(body, version, flexible) == frame[position:end]


def plain(value: Any, version: int) -> Any:
    """As in the JSON beside a vector: the fields of the version, bytes as hexadecimal digits."""
    match value:
        case Message():
            fields = present(type(value), version)
            return {field.name: plain(getattr(value, field.name), version) for field in fields}
        case list() | tuple():
            return [plain(item, version) for item in value]
        case bytes():
            return value.hex()
    return value


def test_librdkafka_sends_more_bytes_than_a_metadata_request_has() -> None:
    # It reserves four bytes for the count of topics and, asking for all, fills only one. Kafka
    # ignores what follows a request, so that a strict decoder would refuse a client it serves.
    vector = json.loads((VECTORS / "metadata_v13_request.json").read_text())
    assert vector["bytes_left"] == 3
    assert vector["body"]["topics"] is None


def test_fields_that_only_old_versions_have_hold_kafkas_defaults() -> None:
    # Defaults of fields that newer versions have are compared with kio's.
    partition = ListOffsetsPartition(partition_index=0, timestamp=-1)
    assert partition.max_num_offsets == 1
    answer = ListOffsetsPartitionResponse(partition_index=0, error_code=0)
    assert answer.old_style_offsets == ()
    config = DescribeConfigsResourceResult(name="", value="", read_only=False, is_sensitive=False)
    assert not config.is_default
    commit = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=0, committed_metadata=None
    )
    assert commit.commit_timestamp == -1


def golden(text: str) -> bytes:
    return bytes.fromhex(text)


def test_golden_api_versions_v0_response() -> None:
    value = ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[ApiVersion(api_key=18, min_version=0, max_version=4)],
    )
    data = golden("0023 00000001 0012 0000 0004")
    assert encode(value, 0, flexible=False) == data
    assert decode(ApiVersionsResponse, data, 0, flexible=False) == value


def test_golden_produce_responses() -> None:
    partition = PartitionProduceResponse(
        index=1,
        error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER,
        base_offset=-1,
        current_leader=LeaderIdAndEpoch(leader_id=3, leader_epoch=7),
    )
    value = ProduceResponse(
        responses=[TopicProduceResponse(name="ab", partition_responses=[partition])],
        throttle_time_ms=5,
    )
    nowhere = "ffffffffffffffff"
    assert encode(value, 0, flexible=False) == golden(
        f"00000001 0002 6162 00000001 00000001 0006 {nowhere}"
    )
    assert encode(value, 2, flexible=False) == golden(
        f"00000001 0002 6162 00000001 00000001 0006 {nowhere} {nowhere} 00000005"
    )
    # Compact lengths are one more than the length; the leader is tag 0 with 9 bytes.
    assert encode(value, 10, flexible=True) == golden(
        f"02 03 6162 02 00000001 0006 {nowhere} {nowhere} {nowhere} 01 00"
        "01 00 09 00000003 00000007 00  00 00000005 00"
    )


def test_golden_fetch_v4_response() -> None:
    value = FetchResponse(
        responses=[
            FetchableTopicResponse(
                topic="a",
                partitions=[
                    PartitionData(
                        partition_index=0,
                        error_code=0,
                        high_watermark=9,
                        last_stable_offset=8,
                        aborted_transactions=None,
                        records=[b"\x01\x02", memoryview(b"\x03")],
                    )
                ],
            )
        ],
    )
    assert encode(value, 4, flexible=False) == golden(
        "00000000 00000001 0001 61 00000001 00000000 0000 0000000000000009 0000000000000008"
        "ffffffff 00000003 010203"
    )


def test_unknown_tagged_fields_are_passed_over() -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="a")])
    data = golden("02 00000000000000000000000000000000 02 61 01 63 02 abcd 01 00 01 07 00")
    assert decode(MetadataRequest, data, 12, flexible=True) == request


@pytest.mark.parametrize(
    ("api", "version", "body"),
    [
        (METADATA, 0, "ffffffff"),  # Only from v1 on null asks for all topics.
        (METADATA, 9, "02 00 00 01 00 00 00"),  # A name may be null from v10 on.
        (PRODUCE, 0, "ffff 00000000 ffffffff"),
        (FETCH, 0, "ffffffff 00000000 00000000 ffffffff"),
        (API_VERSIONS, 3, "00 02 61 00"),
    ],
)
def test_null_is_refused_where_it_is_not_allowed(api: Api, version: int, body: str) -> None:
    with pytest.raises(ProtocolError):
        decode(api.request, golden(body), version, api.is_flexible(version))


@pytest.mark.parametrize("group_id", ["x" * 32_768, "\udcff"], ids=["too long", "no Unicode"])
def test_a_string_for_which_there_is_no_room_is_a_protocol_error(group_id: str) -> None:
    request = HeartbeatRequest(group_id=group_id, generation_id=0, member_id="")
    with pytest.raises(ProtocolError, match="HeartbeatRequest v0"):
        encode(request, 0, flexible=False)


@pytest.mark.parametrize("generation_id", [2**31, -(2**31) - 1, 10**20])
def test_a_number_for_which_there_is_no_room_is_a_protocol_error(generation_id: int) -> None:
    request = HeartbeatRequest(group_id="g", generation_id=generation_id, member_id="")
    with pytest.raises(ProtocolError, match="HeartbeatRequest v4"):
        encode(request, 4, flexible=True)


def test_null_is_read_where_it_is_allowed() -> None:
    everything = decode(MetadataRequest, golden("ffffffff"), 1, flexible=False)
    assert everything.topics is None
    by_id = decode(MetadataRequest, golden("02" + "07" * 16 + "00 00 01 00 00 00"), 10, True)
    assert by_id.topics == [MetadataRequestTopic(topic_id=b"\x07" * 16, name=None)]
