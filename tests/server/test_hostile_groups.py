"""Every API of groups and transactions, in every version, with whatever a field can hold.

Each request must be answered or left waiting; none may fail inside, and the broker goes on.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chronik.protocol import apis, coordinator_apis
from chronik.protocol.api import Api
from chronik.protocol.codec import encode
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.groups import (
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    ListGroupsRequest,
)
from chronik.protocol.messages.headers import RequestHeader, encode_request_header
from chronik.protocol.messages.producer_ids import InitProducerIdRequest
from chronik.protocol.messages.transactions import ListTransactionsRequest
from chronik.protocol.schema import Field, Kind, Message, fields_of
from chronik.testing import Broker

APIS = [each for each in vars(coordinator_apis).values() if isinstance(each, Api)]
APIS.append(apis.INIT_PRODUCER_ID)

# Few names, so that requests meet each other's groups, members and transactions.
TEXT = st.sampled_from(
    ["g", "h", "t", "m", "tx", "consumer", "range", "uniform", "é\U0001f600", "", "(a+)+b", "["]
)
# Subscriptions: a sound one, one whose topic is no UTF-8, and pieces.
SUBSCRIPTION = b"\0\1\0\0\0\1\0\1t\xff\xff\xff\xff\0\0\0\0"
BYTES = st.sampled_from(
    [SUBSCRIPTION, SUBSCRIPTION.replace(b"t", b"\xff"), b"", b"\0", b"\xff" * 9]
)
SMALL = st.sampled_from([0, 1, 2, 3, -1, -2])
ANSWER_S = 0.02  # a JoinGroup may wait for longer: then nobody is there when its answer comes


def integers(bits: int) -> st.SearchStrategy[int]:
    extremes = [2 ** (bits - 1) - 1, -(2 ** (bits - 1)), *([10_000, 60_000] if bits > 16 else [])]
    return st.one_of(SMALL, SMALL, SMALL, st.sampled_from(extremes))


PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "int8": integers(8),
    "int16": integers(16),
    "int32": integers(32),
    "int64": integers(64),
    "bool": st.booleans(),
    "string": TEXT,
    "bytes": BYTES,
    "uuid": st.sampled_from([bytes(16), bytes(15) + b"\1"]),
}


def value_of(kind: Kind, version: int) -> st.SearchStrategy[Any]:
    if kind.wire == "array":
        assert kind.element is not None
        return st.lists(value_of(kind.element, version), max_size=3)
    if kind.wire == "struct":
        assert kind.message is not None
        return message_of(kind.message, version)
    return PRIMITIVES[kind.wire]


def field_of(field: Field, version: int) -> st.SearchStrategy[Any]:
    values = value_of(field.kind, version)
    if field.name == "session_timeout_ms":
        values = st.one_of(st.just(10_000), values)
    return st.one_of(values, st.none()) if field.nullable_in(version) else values


def message_of(message: type[Message], version: int) -> st.SearchStrategy[Message]:
    fields = {
        field.name: field_of(field, version)
        for field in fields_of(message)
        if version in field.versions or field.default is None
    }
    return st.builds(message, **fields)


@st.composite
def requests(draw: st.DrawFn) -> tuple[Api, int, Message]:
    api = draw(st.sampled_from(APIS))
    version = draw(st.integers(api.versions.first, api.versions.last))
    return api, version, draw(message_of(api.request, version))


@pytest.fixture(scope="module")
def shared() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(asked=st.lists(requests(), min_size=1, max_size=12))
def test_no_request_fails_inside_the_broker(
    shared: Broker, connect: Any, say: Any, asked: list[tuple[Api, int, Message]]
) -> None:
    assert shared.node is not None
    wire = connect(shared)
    if "t" not in shared.node.metadata.image.topics:
        say.create(wire, "t")
        for key_type in (0, 1):
            request = FindCoordinatorRequest(key="g", key_type=key_type)
            wire.ask(coordinator_apis.FIND_COORDINATOR, 1, request)
    for api, version, request in asked:
        wire.socket.settimeout(ANSWER_S)
        try:
            wire.ask(api, version, request)
        except TimeoutError:
            wire.close()
            wire = connect(shared)
        assert not shared.node.metrics.errors, (api.name, version, request)
    wire.socket.settimeout(10)
    wire.ask(coordinator_apis.LIST_GROUPS, 3, ListGroupsRequest())
    wire.close()


LONG = "x" * 40_000
MEMBER_OF_A_LONG_CLIENT = "c" * 32_767  # the longest name that a header can hold


@pytest.mark.parametrize(
    ("api", "version", "request_"),
    [
        (coordinator_apis.FIND_COORDINATOR, 4, FindCoordinatorRequest(coordinator_keys=[LONG])),
        (
            coordinator_apis.HEARTBEAT,
            4,
            HeartbeatRequest(group_id=LONG, generation_id=0, member_id=""),
        ),
        (
            apis.INIT_PRODUCER_ID,
            4,
            InitProducerIdRequest(transactional_id=LONG, transaction_timeout_ms=1),
        ),
    ],
    ids=["key", "group", "transactional id"],
)
def test_a_string_that_no_record_can_hold_closes_the_connection(
    broker: Broker, wire: Any, api: Api, version: int, request_: Message
) -> None:
    wire.send(api, version, request_)
    assert wire.is_closed()
    assert broker.node is not None
    assert broker.node.metrics.errors == {"protocol": 1}


@pytest.mark.parametrize("version", [0, 9])
def test_a_client_with_the_longest_name_can_join(broker: Broker, wire: Any, version: int) -> None:
    wire.ask(coordinator_apis.FIND_COORDINATOR, 1, FindCoordinatorRequest(key="g"))
    api = coordinator_apis.JOIN_GROUP
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="",
        group_instance_id="i" * 32_767,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    header = RequestHeader(
        request_api_key=api.key,
        request_api_version=version,
        correlation_id=1,
        client_id=MEMBER_OF_A_LONG_CLIENT,
    )
    head = encode_request_header(header, api.request_header_version(version))
    wire.frame(head + encode(request, version, api.is_flexible(version)))
    assert wire.receive(api, version)[1].error_code == ErrorCode.NONE
    assert broker.node is not None
    assert not broker.node.metrics.errors


def test_a_pattern_cannot_hold_the_broker_up(broker: Broker, wire: Any) -> None:
    wire.ask(coordinator_apis.FIND_COORDINATOR, 1, FindCoordinatorRequest(key="x", key_type=1))
    for name in ("a" * 60, "ab"):
        request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=1000)
        assert wire.ask(apis.INIT_PRODUCER_ID, 4, request).error_code == ErrorCode.NONE
    found = wire.ask(
        coordinator_apis.LIST_TRANSACTIONS,
        2,
        ListTransactionsRequest(
            state_filters=(), producer_id_filters=(), transactional_id_pattern="(a+)+b"
        ),
    )
    assert [each.transactional_id for each in found.transaction_states] == ["ab"]
