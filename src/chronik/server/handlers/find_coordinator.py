"""FindCoordinator: which node has a group or a transactional id.

Versions: 0-6 (0 knows groups only, 4 and later take many keys).

Behaviour: the leader of the key's partition of `__consumer_offsets` or `__transaction_state`
coordinates it. The first request creates that topic. A key type that we do not know is
INVALID_REQUEST; a partition without a leader is COORDINATOR_NOT_AVAILABLE. A broker that rests, for
maintenance or because its disk is full, coordinates what it still leads. Like Metadata it waits
until it is known whether a broker is gone whose connection has just closed.
"""

import asyncio
from typing import Any

from chronik.coordinator.runtime import CoordinatorRuntime
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.groups import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from chronik.server.context import Context

GROUP, TRANSACTION = 0, 1
BATCH_VERSION = 4
FOUND_AT_ONCE = 500  # keys in one turn of the loop: 5 ms


async def find_coordinator(
    context: Context, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    await context.node.without_doubt()
    keys = request.coordinator_keys if context.version >= BATCH_VERSION else (request.key,)
    found = []
    for key in keys:
        found.append(await _find(context, request.key_type, key))
        if len(found) % FOUND_AT_ONCE == 0:
            await asyncio.sleep(0)
    if context.version >= BATCH_VERSION:
        return FindCoordinatorResponse(coordinators=found)
    first = found[0]
    return FindCoordinatorResponse(
        error_code=first.error_code,
        error_message=first.error_message,
        node_id=first.node_id,
        host=first.host,
        port=first.port,
    )


async def _find(context: Context, key_type: int, key: str) -> Coordinator:
    try:
        topic = await _coordinator(context, key_type).ensure_topic()
        index = _coordinator(context, key_type).partition_of(key, topic)
        leader = topic.partitions[index].leader
        if leader not in context.image.online_ids:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        broker = context.image.brokers[leader]
    except KafkaError as error:
        return Coordinator(
            key=key,
            node_id=-1,
            host="",
            port=-1,
            error_code=error.code,
            error_message=error.message,
        )
    return Coordinator(
        key=key,
        node_id=broker.node_id,
        host=broker.host,
        port=broker.port,
        error_code=ErrorCode.NONE,
    )


def _coordinator(context: Context, key_type: int) -> CoordinatorRuntime[Any]:
    if key_type == GROUP:
        return context.node.groups
    if key_type == TRANSACTION:
        return context.node.transactions
    raise KafkaError(ErrorCode.INVALID_REQUEST, f"There is no coordinator of type {key_type}.")
