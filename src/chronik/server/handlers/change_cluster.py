"""ChangeCluster: nodes are removed, replaced or drained, and leadership is handed over.

Versions: 0. It is our own: what `chronik cluster` asks for and Kafka has no request for.

Behaviour
    Any node can be asked; the leader does it, and the answer comes once it is committed.
    Each change can be asked for again. A node that was removed is then no node any more:
    BROKER_ID_NOT_REGISTERED.
"""

from chronik.metadata.commands import SetMaintenance
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.quorum import (
    MAINTENANCE_OFF,
    MAINTENANCE_ON,
    NO_NODE,
    REMOVE_NODE,
    REPLACE_NODE,
    TRANSFER_LEADERSHIP,
    ChangeClusterRequest,
    ChangeClusterResponse,
)
from chronik.server.context import Context
from chronik.server.members import Remove, Transfer


async def change_cluster(context: Context, request: ChangeClusterRequest) -> ChangeClusterResponse:
    try:
        node_id = await _change(context, request)
    except KafkaError as error:
        return ChangeClusterResponse(error_code=error.code, error_message=error.message)
    return ChangeClusterResponse(error_code=ErrorCode.NONE, node_id=node_id)


async def _change(context: Context, request: ChangeClusterRequest) -> int:
    node, node_id = context.node, request.node_id
    if request.change in (REMOVE_NODE, REPLACE_NODE):
        replaces = request.change == REPLACE_NODE
        change = Remove(node_id, accepts_loss=request.accepts_loss, replaces=replaces)
        return await node.members.change(change)
    if request.change == TRANSFER_LEADERSHIP:
        return await node.members.change(Transfer(None if node_id == NO_NODE else node_id))
    if request.change in (MAINTENANCE_ON, MAINTENANCE_OFF):
        is_on = request.change == MAINTENANCE_ON
        await node.metadata.submit(SetMaintenance(node_id=node_id, in_maintenance=is_on))
        return node_id
    raise KafkaError(ErrorCode.INVALID_REQUEST, f"There is no change {request.change!r}.")
