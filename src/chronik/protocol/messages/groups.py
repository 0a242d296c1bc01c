"""Classic groups: FindCoordinator, JoinGroup, SyncGroup, Heartbeat, LeaveGroup, and their upkeep.

A member's subscription and assignment are opaque bytes here: what consumers put into them is
declared in `consumer_protocol`. FindCoordinator also finds the coordinator of a transaction.
"""

from collections.abc import Sequence
from typing import Annotated

from chronik.protocol.messages.metadata import OPERATIONS_OMITTED
from chronik.protocol.schema import (
    Message,
    between,
    blob,
    boolean,
    int8,
    int16,
    int32,
    nullable_since,
    since,
    string,
    until,
)


class FindCoordinatorRequest(Message):
    """Asks who coordinates a group or transaction; from v4 on many at once."""

    key: Annotated[string, until(3)] = ""
    key_type: Annotated[int8, since(1)] = 0
    coordinator_keys: Annotated[Sequence[string], since(4)] = ()


class Coordinator(Message):
    """The coordinator of one key, or why there is none."""

    key: string
    node_id: int32
    host: string
    port: int32
    error_code: int16
    error_message: string | None = None


class FindCoordinatorResponse(Message):
    """The coordinator; from v4 on one for each key."""

    throttle_time_ms: Annotated[int32, since(1)] = 0
    error_code: Annotated[int16, until(3)] = 0
    error_message: Annotated[string | None, between(1, 3)] = None
    node_id: Annotated[int32, until(3)] = 0
    host: Annotated[string, until(3)] = ""
    port: Annotated[int32, until(3)] = 0
    coordinators: Annotated[Sequence[Coordinator], since(4)] = ()


class JoinGroupRequestProtocol(Message):
    """An assignor that the member knows, and its subscription for it."""

    name: string
    metadata: blob


class JoinGroupRequest(Message):
    """Joins a group or joins it again; v0 has one timeout for session and rebalance."""

    group_id: string
    session_timeout_ms: int32
    rebalance_timeout_ms: Annotated[int32, since(1)] = -1
    member_id: string
    group_instance_id: Annotated[string | None, since(5)] = None
    protocol_type: string
    protocols: Sequence[JoinGroupRequestProtocol]
    reason: Annotated[string | None, since(8)] = None


class JoinGroupResponseMember(Message):
    """A member and its subscription, as the leader needs it to assign partitions."""

    member_id: string
    group_instance_id: Annotated[string | None, since(5)] = None
    metadata: blob


class JoinGroupResponse(Message):
    """The generation that was joined; the leader also gets the members."""

    throttle_time_ms: Annotated[int32, since(2)] = 0
    error_code: int16
    generation_id: int32 = -1
    protocol_type: Annotated[string | None, since(7)] = None
    protocol_name: Annotated[string | None, nullable_since(7)]
    leader: string
    skip_assignment: Annotated[boolean, since(9)] = False
    member_id: string
    members: Sequence[JoinGroupResponseMember]


class SyncGroupRequestAssignment(Message):
    """What the leader assigned to one member."""

    member_id: string
    assignment: blob


class SyncGroupRequest(Message):
    """Asks for the member's assignment; the leader brings everyone's."""

    group_id: string
    generation_id: int32
    member_id: string
    group_instance_id: Annotated[string | None, since(3)] = None
    protocol_type: Annotated[string | None, since(5)] = None
    protocol_name: Annotated[string | None, since(5)] = None
    assignments: Sequence[SyncGroupRequestAssignment]


class SyncGroupResponse(Message):
    """The member's assignment."""

    throttle_time_ms: Annotated[int32, since(1)] = 0
    error_code: int16
    protocol_type: Annotated[string | None, since(5)] = None
    protocol_name: Annotated[string | None, since(5)] = None
    assignment: blob


class HeartbeatRequest(Message):
    """Keeps a member's session alive."""

    group_id: string
    generation_id: int32
    member_id: string
    group_instance_id: Annotated[string | None, since(3)] = None


class HeartbeatResponse(Message):
    """Whether the member is still one, and whether it must join again."""

    throttle_time_ms: Annotated[int32, since(1)] = 0
    error_code: int16


class MemberIdentity(Message):
    """A member that leaves, by its id or, if static, by its instance id."""

    member_id: string
    group_instance_id: string | None = None
    reason: Annotated[string | None, since(5)] = None


class LeaveGroupRequest(Message):
    """Takes a member out of its group; from v3 on several."""

    group_id: string
    member_id: Annotated[string, until(2)] = ""
    members: Annotated[Sequence[MemberIdentity], since(3)] = ()


class MemberResponse(Message):
    """Whether one member left."""

    member_id: string
    group_instance_id: string | None
    error_code: int16


class LeaveGroupResponse(Message):
    """The outcome; from v3 on member by member."""

    throttle_time_ms: Annotated[int32, since(1)] = 0
    error_code: int16
    members: Annotated[Sequence[MemberResponse], since(3)] = ()


class ListGroupsRequest(Message):
    """Asks for groups; an empty filter lets everything through."""

    states_filter: Annotated[Sequence[string], since(4)] = ()
    types_filter: Annotated[Sequence[string], since(5)] = ()


class ListedGroup(Message):
    """A group, its state and whether it is a classic or a consumer group."""

    group_id: string
    protocol_type: string
    group_state: Annotated[string, since(4)] = ""
    group_type: Annotated[string, since(5)] = ""


class ListGroupsResponse(Message):
    """The groups that this node coordinates."""

    throttle_time_ms: Annotated[int32, since(1)] = 0
    error_code: int16
    groups: Sequence[ListedGroup]


class DescribeGroupsRequest(Message):
    """Asks for classic groups with their members."""

    groups: Sequence[string]
    include_authorized_operations: Annotated[boolean, since(3)] = False


class DescribedGroupMember(Message):
    """A member, who it is and what it was assigned."""

    member_id: string
    group_instance_id: Annotated[string | None, since(4)] = None
    client_id: string
    client_host: string
    member_metadata: blob
    member_assignment: blob


class DescribedGroup(Message):
    """A group, its state and its members, or why it cannot be described."""

    error_code: int16
    error_message: Annotated[string | None, since(6)] = None
    group_id: string
    group_state: string
    protocol_type: string
    protocol_data: string
    members: Sequence[DescribedGroupMember]
    authorized_operations: Annotated[int32, since(3)] = OPERATIONS_OMITTED


class DescribeGroupsResponse(Message):
    """The groups, in the order in which they were asked for."""

    throttle_time_ms: Annotated[int32, since(1)] = 0
    groups: Sequence[DescribedGroup]


class DeleteGroupsRequest(Message):
    """Deletes empty groups and their offsets."""

    groups_names: Sequence[string]


class DeletableGroupResult(Message):
    """Whether one group was deleted."""

    group_id: string
    error_code: int16


class DeleteGroupsResponse(Message):
    """The outcome, group by group."""

    throttle_time_ms: int32 = 0
    results: Sequence[DeletableGroupResult]
