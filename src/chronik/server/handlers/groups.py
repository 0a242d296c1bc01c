"""Classic groups: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, and what operators ask of them.

Versions: JoinGroup 0-9, SyncGroup 0-5, Heartbeat 0-4, LeaveGroup 0-5, DescribeGroups 0-6,
ListGroups 0-5, DeleteGroups 0-2.

Behaviour: the group's machine decides (`coordinator.classic`); an answer that must wait for other
members, or for the log, comes later.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

from chronik.coordinator.pending import Pending
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from chronik.server.context import Context
from chronik.server.operations import GROUP_OPERATIONS

OPERATIONS_OMITTED = -(2**31)
ASKED_AT_ONCE = 500  # questions about one group each: 5 to 10 ms


def join_group(context: Context, request: JoinGroupRequest) -> Pending:
    return context.node.groups.ask(
        request.group_id,
        lambda shard, token, now_ms: shard.join_group(request, context.caller, token, now_ms),
        lambda error_code: JoinGroupResponse(
            error_code=error_code,
            protocol_name=None if context.version >= 7 else "",
            leader="",
            member_id=request.member_id,
            members=(),
        ),
    )


def sync_group(context: Context, request: SyncGroupRequest) -> Pending:
    return context.node.groups.ask(
        request.group_id,
        lambda shard, token, now_ms: shard.sync_group(request, context.caller, token, now_ms),
        lambda error_code: SyncGroupResponse(error_code=error_code, assignment=b""),
    )


def heartbeat(context: Context, request: HeartbeatRequest) -> Pending:
    return context.node.groups.ask(
        request.group_id,
        lambda shard, token, now_ms: shard.heartbeat(request, context.caller, token, now_ms),
        lambda error_code: HeartbeatResponse(error_code=error_code),
    )


def leave_group(context: Context, request: LeaveGroupRequest) -> Pending:
    return context.node.groups.ask(
        request.group_id,
        lambda shard, token, now_ms: shard.leave_group(request, context.caller, token, now_ms),
        lambda error_code: LeaveGroupResponse(error_code=error_code),
    )


async def in_turns(replies: Iterable[Pending]) -> list[Any]:
    """The answers to many questions, which are asked as they are taken: some in each turn."""
    asked = []
    for reply in replies:
        asked.append(reply)
        if len(asked) % ASKED_AT_ONCE == 0:
            await asyncio.sleep(0)
    return [await reply for reply in asked]


async def describe_groups(
    context: Context, request: DescribeGroupsRequest
) -> DescribeGroupsResponse:
    operations = GROUP_OPERATIONS if request.include_authorized_operations else OPERATIONS_OMITTED
    replies = (_describe(context, group_id, operations) for group_id in request.groups)
    return DescribeGroupsResponse(groups=await in_turns(replies))


def _describe(context: Context, group_id: str, operations: int) -> Pending:
    return context.node.groups.ask(
        group_id,
        lambda shard, token, _: shard.describe_group(group_id, context.caller, operations, token),
        lambda error_code: DescribedGroup(
            error_code=error_code,
            group_id=group_id,
            group_state="",
            protocol_type="",
            protocol_data="",
            members=(),
        ),
    )


async def list_groups(context: Context, request: ListGroupsRequest) -> ListGroupsResponse:
    found, is_loading = await context.node.groups.survey(
        lambda shard: shard.list_groups(request.states_filter, request.types_filter)
    )
    return ListGroupsResponse(
        error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_loading else ErrorCode.NONE,
        groups=[group for groups in found for group in groups],
    )


async def delete_groups(context: Context, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    replies = (_delete(context, group_id) for group_id in dict.fromkeys(request.groups_names))
    return DeleteGroupsResponse(results=await in_turns(replies))


def _delete(context: Context, group_id: str) -> Pending:
    return context.node.groups.ask(
        group_id,
        lambda shard, token, now_ms: shard.delete_group(group_id, token, now_ms),
        lambda error_code: DeletableGroupResult(group_id=group_id, error_code=error_code),
    )
