"""Consumer groups (KIP-848): ConsumerGroupHeartbeat and ConsumerGroupDescribe.

Versions: both 0-1. Behaviour: the group's machine decides (`coordinator.consumer`).
"""

from chronik.coordinator.pending import Pending
from chronik.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedConsumerGroup,
)
from chronik.server.context import Context
from chronik.server.handlers.groups import OPERATIONS_OMITTED, in_turns
from chronik.server.operations import GROUP_OPERATIONS


def consumer_group_heartbeat(context: Context, request: ConsumerGroupHeartbeatRequest) -> Pending:
    return context.node.groups.ask(
        request.group_id,
        lambda shard, token, now_ms: shard.consumer_group_heartbeat(
            request, context.caller, token, now_ms
        ),
        lambda error_code: ConsumerGroupHeartbeatResponse(
            error_code=error_code, member_epoch=0, heartbeat_interval_ms=0
        ),
    )


async def consumer_group_describe(
    context: Context, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    operations = GROUP_OPERATIONS if request.include_authorized_operations else OPERATIONS_OMITTED
    replies = (_describe(context, group_id, operations) for group_id in request.group_ids)
    return ConsumerGroupDescribeResponse(groups=await in_turns(replies))


def _describe(context: Context, group_id: str, operations: int) -> Pending:
    return context.node.groups.ask(
        group_id,
        lambda shard, token, _: shard.describe_consumer_group(group_id, operations, token),
        lambda error_code: DescribedConsumerGroup(
            error_code=error_code,
            group_id=group_id,
            group_state="",
            group_epoch=0,
            assignment_epoch=0,
            assignor_name="",
            members=(),
        ),
    )
