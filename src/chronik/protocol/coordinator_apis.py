"""The API table, its part for groups and transactions: see `apis` for what such a table means."""

from typing import Final

from chronik.protocol.api import Api
from chronik.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from chronik.protocol.messages.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
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
from chronik.protocol.messages.offset_commits import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from chronik.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from chronik.protocol.schema import Versions

OFFSET_COMMIT: Final = Api(
    key=8,
    name="OffsetCommit",
    request=OffsetCommitRequest,
    response=OffsetCommitResponse,
    versions=Versions(0, 10),
    flexible_since=8,
    summary="Store how far a group has read.",
    notes="v1 carries a time for each partition, v2-4 a retention for all, and v5 on leaves "
    "it to the broker. v10 names topics by id.",
)
OFFSET_FETCH: Final = Api(
    key=9,
    name="OffsetFetch",
    request=OffsetFetchRequest,
    response=OffsetFetchResponse,
    versions=Versions(0, 10),
    flexible_since=6,
    summary="Say how far groups have read.",
    notes="v2 takes null for all partitions, v7 may refuse while a transaction is open, v8 "
    "takes several groups, v10 names topics by id.",
)
FIND_COORDINATOR: Final = Api(
    key=10,
    name="FindCoordinator",
    request=FindCoordinatorRequest,
    response=FindCoordinatorResponse,
    versions=Versions(0, 6),
    flexible_since=3,
    summary="Find the node that coordinates a group or a transaction.",
    notes="v0 knows groups only; v4 takes several keys.",
)
JOIN_GROUP: Final = Api(
    key=11,
    name="JoinGroup",
    request=JoinGroupRequest,
    response=JoinGroupResponse,
    versions=Versions(0, 9),
    flexible_since=6,
    summary="Join a classic group and learn its generation.",
    notes="Answered when the rebalance has every member or runs out of time. v1 adds the "
    "rebalance timeout, v4 sends a new member back for its id first, v5 adds static "
    "members.",
)
HEARTBEAT: Final = Api(
    key=12,
    name="Heartbeat",
    request=HeartbeatRequest,
    response=HeartbeatResponse,
    versions=Versions(0, 4),
    flexible_since=4,
    summary="Keep a classic member's session alive.",
    notes="v3 adds static members.",
)
LEAVE_GROUP: Final = Api(
    key=13,
    name="LeaveGroup",
    request=LeaveGroupRequest,
    response=LeaveGroupResponse,
    versions=Versions(0, 5),
    flexible_since=4,
    summary="Take members out of a classic group.",
    notes="v3 takes several, by member id or by instance id.",
)
SYNC_GROUP: Final = Api(
    key=14,
    name="SyncGroup",
    request=SyncGroupRequest,
    response=SyncGroupResponse,
    versions=Versions(0, 5),
    flexible_since=4,
    summary="Hand out the leader's assignment.",
    notes="Answered when the leader has sent it. v3 adds static members.",
)
DESCRIBE_GROUPS: Final = Api(
    key=15,
    name="DescribeGroups",
    request=DescribeGroupsRequest,
    response=DescribeGroupsResponse,
    versions=Versions(0, 6),
    flexible_since=5,
    summary="Show classic groups and their members.",
    notes="v6 says with an error when there is no such group; before, it is shown as Dead.",
)
LIST_GROUPS: Final = Api(
    key=16,
    name="ListGroups",
    request=ListGroupsRequest,
    response=ListGroupsResponse,
    versions=Versions(0, 5),
    flexible_since=3,
    summary="List the groups that this node coordinates.",
    notes="v4 filters by state, v5 by type.",
)
ADD_PARTITIONS_TO_TXN: Final = Api(
    key=24,
    name="AddPartitionsToTxn",
    request=AddPartitionsToTxnRequest,
    response=AddPartitionsToTxnResponse,
    versions=Versions(0, 5),
    flexible_since=3,
    summary="Add partitions to a transaction.",
    notes="v4 and later are for brokers: several transactions, or only a check.",
)
ADD_OFFSETS_TO_TXN: Final = Api(
    key=25,
    name="AddOffsetsToTxn",
    request=AddOffsetsToTxnRequest,
    response=AddOffsetsToTxnResponse,
    versions=Versions(0, 4),
    flexible_since=3,
    summary="Add a group's offsets to a transaction.",
)
END_TXN: Final = Api(
    key=26,
    name="EndTxn",
    request=EndTxnRequest,
    response=EndTxnResponse,
    versions=Versions(0, 5),
    flexible_since=3,
    summary="Commit or abort a transaction.",
    notes="v5 raises the epoch with every transaction and answers with it (KIP-890).",
)
WRITE_TXN_MARKERS: Final = Api(
    key=27,
    name="WriteTxnMarkers",
    request=WriteTxnMarkersRequest,
    response=WriteTxnMarkersResponse,
    versions=Versions(0, 2),
    flexible_since=1,
    summary="Append the markers that end transactions.",
    notes="Sent by coordinators, and by operators to abort a hanging transaction.",
)
TXN_OFFSET_COMMIT: Final = Api(
    key=28,
    name="TxnOffsetCommit",
    request=TxnOffsetCommitRequest,
    response=TxnOffsetCommitResponse,
    versions=Versions(0, 5),
    flexible_since=3,
    summary="Store a group's offsets as part of a transaction.",
    notes="v3 adds the member, so that one from an old generation is refused. v5 adds the "
    "group to the transaction itself.",
)
DELETE_GROUPS: Final = Api(
    key=42,
    name="DeleteGroups",
    request=DeleteGroupsRequest,
    response=DeleteGroupsResponse,
    versions=Versions(0, 2),
    flexible_since=2,
    summary="Delete empty groups and their offsets.",
)
OFFSET_DELETE: Final = Api(
    key=47,
    name="OffsetDelete",
    request=OffsetDeleteRequest,
    response=OffsetDeleteResponse,
    versions=Versions(0, 0),
    flexible_since=None,
    summary="Forget offsets of topics that the group does not read any more.",
)
DESCRIBE_PRODUCERS: Final = Api(
    key=61,
    name="DescribeProducers",
    request=DescribeProducersRequest,
    response=DescribeProducersResponse,
    versions=Versions(0, 0),
    flexible_since=0,
    summary="Show the producers that a partition remembers.",
)
DESCRIBE_TRANSACTIONS: Final = Api(
    key=65,
    name="DescribeTransactions",
    request=DescribeTransactionsRequest,
    response=DescribeTransactionsResponse,
    versions=Versions(0, 0),
    flexible_since=0,
    summary="Show the state of transactions.",
)
LIST_TRANSACTIONS: Final = Api(
    key=66,
    name="ListTransactions",
    request=ListTransactionsRequest,
    response=ListTransactionsResponse,
    versions=Versions(0, 2),
    flexible_since=0,
    summary="List the transactions that this node coordinates.",
    notes="v1 filters by duration, v2 by a pattern of the transactional id.",
)
CONSUMER_GROUP_HEARTBEAT: Final = Api(
    key=68,
    name="ConsumerGroupHeartbeat",
    request=ConsumerGroupHeartbeatRequest,
    response=ConsumerGroupHeartbeatResponse,
    versions=Versions(0, 1),
    flexible_since=0,
    summary="Join, keep up and leave a consumer group, whose assignment the broker computes "
    "(KIP-848).",
    notes="v1 adds subscriptions by regular expression, and the member chooses its id.",
)
CONSUMER_GROUP_DESCRIBE: Final = Api(
    key=69,
    name="ConsumerGroupDescribe",
    request=ConsumerGroupDescribeRequest,
    response=ConsumerGroupDescribeResponse,
    versions=Versions(0, 1),
    flexible_since=0,
    summary="Show consumer groups and their members.",
    notes="v1 says which protocol a member speaks.",
)

COORDINATOR_APIS: Final = (
    OFFSET_COMMIT,
    OFFSET_FETCH,
    FIND_COORDINATOR,
    JOIN_GROUP,
    HEARTBEAT,
    LEAVE_GROUP,
    SYNC_GROUP,
    DESCRIBE_GROUPS,
    LIST_GROUPS,
    ADD_PARTITIONS_TO_TXN,
    ADD_OFFSETS_TO_TXN,
    END_TXN,
    WRITE_TXN_MARKERS,
    TXN_OFFSET_COMMIT,
    DELETE_GROUPS,
    OFFSET_DELETE,
    DESCRIBE_PRODUCERS,
    DESCRIBE_TRANSACTIONS,
    LIST_TRANSACTIONS,
    CONSUMER_GROUP_HEARTBEAT,
    CONSUMER_GROUP_DESCRIBE,
)
