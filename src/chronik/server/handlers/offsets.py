"""Committed offsets: OffsetCommit, OffsetFetch, OffsetDelete, and TxnOffsetCommit's second half.

Versions: OffsetCommit 0-10, OffsetFetch 0-10, OffsetDelete 0, TxnOffsetCommit 0-5.

Behaviour: the group's machine decides (`coordinator.offsets`). A commit is refused partition by
partition, a fetch group by group; before OffsetFetch 2 there was no room for a group's error, so
it stands at each partition. From OffsetFetch 8 on one request asks for many groups.

Whether a transaction is open is asked by `handlers.transactions`, before it comes here.
"""

from chronik.coordinator.pending import Pending
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.offset_commits import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from chronik.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from chronik.server.context import Context
from chronik.server.handlers.groups import in_turns

MANY_GROUPS_VERSION = 8
GROUP_ERROR_VERSION = 2
NO_OFFSET = -1


def offset_commit(context: Context, request: OffsetCommitRequest) -> Pending:
    return context.node.groups.ask(
        request.group_id,
        lambda shard, token, now_ms: shard.offset_commit(request, context.caller, token, now_ms),
        lambda error_code: _refused_commit(request, error_code),
    )


def _refused_commit(request: OffsetCommitRequest, error_code: ErrorCode) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=error_code
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


async def offset_fetch(context: Context, request: OffsetFetchRequest) -> OffsetFetchResponse:
    if context.version >= MANY_GROUPS_VERSION:
        replies = (_fetch(context, group, request.require_stable) for group in request.groups)
        return OffsetFetchResponse(groups=await in_turns(replies))
    asked = OffsetFetchRequestGroup(group_id=request.group_id, topics=request.topics)
    group: OffsetFetchResponseGroup = await _fetch(context, asked, request.require_stable)
    topics = group.topics
    if group.error_code and context.version < GROUP_ERROR_VERSION:
        topics = _refused_topics(request, ErrorCode(group.error_code))
    return OffsetFetchResponse(topics=topics, error_code=group.error_code)


def _fetch(context: Context, group: OffsetFetchRequestGroup, require_stable: bool) -> Pending:
    return context.node.groups.ask(
        group.group_id,
        lambda shard, token, now_ms: shard.offset_fetch(
            group, context.caller, require_stable, token, now_ms
        ),
        lambda error_code: OffsetFetchResponseGroup(
            group_id=group.group_id, topics=(), error_code=error_code
        ),
    )


def _refused_topics(
    request: OffsetFetchRequest, error_code: ErrorCode
) -> list[OffsetFetchResponseTopic]:
    return [
        OffsetFetchResponseTopic(
            name=topic.name,
            partitions=[
                OffsetFetchResponsePartition(
                    partition_index=index,
                    committed_offset=NO_OFFSET,
                    metadata="",
                    error_code=error_code,
                )
                for index in topic.partition_indexes
            ],
        )
        for topic in request.topics or ()
    ]


def offset_delete(context: Context, request: OffsetDeleteRequest) -> Pending:
    return context.node.groups.ask(
        request.group_id,
        lambda shard, token, now_ms: shard.offset_delete(request, token, now_ms),
        lambda error_code: OffsetDeleteResponse(error_code=error_code, topics=()),
    )


def commit_in_transaction(context: Context, request: TxnOffsetCommitRequest) -> Pending:
    """Store offsets that count once the transaction, which is known to be open, is committed."""
    return context.node.groups.ask(
        request.group_id,
        lambda shard, token, now_ms: shard.txn_offset_commit(
            request, context.caller, token, now_ms
        ),
        lambda error_code: refused_in_transaction(request, error_code),
    )


def refused_in_transaction(
    request: TxnOffsetCommitRequest, error_code: ErrorCode
) -> TxnOffsetCommitResponse:
    """The answer to a TxnOffsetCommit of which nothing is stored."""
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=error_code
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
