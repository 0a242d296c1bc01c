"""Transactions: InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, TxnOffsetCommit.

Versions: InitProducerId 0-5, AddPartitionsToTxn 0-5 (4 and later are for brokers: many
transactions, or only a check), AddOffsetsToTxn 0-4, EndTxn 0-5, TxnOffsetCommit 0-5.

Behaviour
    InitProducerId without a transactional id gives a fresh id and epoch 0. With one it shuts out
    the id's last producer, and aborts what that one had open.
    EndTxn 5 gives the producer the epoch of its next transaction, TxnOffsetCommit 5 adds the
    group's partition to the transaction by itself (KIP-890).
    A commit is answered TRANSACTION_ABORTABLE, or UNKNOWN_PRODUCER_ID to clients that do not know
    that, if a broker lost its memory since the transaction began: it can be aborted.
    PRODUCER_FENCED is INVALID_PRODUCER_EPOCH to clients that do not know it; in the same way
    TRANSACTION_ABORTABLE is INVALID_TXN_STATE.
"""

from collections.abc import Callable, Sequence
from typing import Any

from chronik.coordinator.effects import Effects, ProducerStamp, Token
from chronik.coordinator.errors import coordinator_error
from chronik.coordinator.internal_topics import CONSUMER_OFFSETS
from chronik.coordinator.transactions.shard import (
    Outcome,
    ProducerIdNeeded,
    SealNeeded,
    TransactionShard,
)
from chronik.model import TopicPartition
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.producer_ids import InitProducerIdRequest, InitProducerIdResponse
from chronik.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
    EndTxnRequest,
    EndTxnResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from chronik.server.context import Context
from chronik.server.handlers.offsets import commit_in_transaction, refused_in_transaction
from chronik.server.transactions import (
    VERIFICATION,
    add_partitions,
    admit,
    verify_partitions,
)

Partitions = frozenset[TopicPartition]
Decide = Callable[[TransactionShard, int | None, Token, int], Effects]

BATCH_ADD_VERSION = 4
EPOCH_BUMP_END_VERSION = 5
IMPLICIT_COMMIT_VERSION = 5
ABORTABLE_COMMIT_VERSION = 4


async def init_producer_id(
    context: Context, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    try:
        outcome = await _init(context, request)
    except KafkaError as error:
        outcome = Outcome(error.code)
    return InitProducerIdResponse(
        error_code=_known(outcome.error_code, context.version >= 4),
        producer_id=outcome.stamp.producer_id,
        producer_epoch=outcome.stamp.producer_epoch,
    )


async def _init(context: Context, request: InitProducerIdRequest) -> Outcome:
    transactional_id = request.transactional_id
    if transactional_id is None:
        producer_id = await context.node.producer_ids.next()
        return Outcome(ErrorCode.NONE, ProducerStamp(producer_id, 0))
    expected = ProducerStamp(request.producer_id, request.producer_epoch)
    has_id, has_epoch = expected.producer_id >= 0, expected.producer_epoch >= 0
    if not transactional_id or has_id != has_epoch:
        return Outcome(ErrorCode.INVALID_REQUEST)
    outcome: Outcome = await _with_fresh_id(
        context,
        transactional_id,
        lambda shard, fresh_id, token, now_ms: shard.init_producer_id(
            transactional_id,
            request.transaction_timeout_ms,
            expected if has_id else None,
            fresh_id,
            token,
            now_ms,
        ),
    )
    return outcome


async def _with_fresh_id(context: Context, transactional_id: str, decide: Decide) -> Any:
    """Ask, and if the answer needs a new producer id, ask again with one."""
    fresh_id: int | None = None
    while True:
        outcome = await context.node.transactions.ask(
            transactional_id,
            lambda shard, token, now_ms: decide(shard, fresh_id, token, now_ms),  # noqa: B023
            Outcome,
        )
        if not isinstance(outcome, ProducerIdNeeded):
            return outcome
        try:
            fresh_id = await context.node.producer_ids.next()
        except KafkaError as error:
            return Outcome(error.code)


async def add_partitions_to_txn(
    context: Context, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    if context.version >= BATCH_ADD_VERSION:
        return AddPartitionsToTxnResponse(
            results_by_transaction=[await _added(context, each) for each in request.transactions]
        )
    asked = AddPartitionsToTxnTransaction(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        topics=request.v3_and_below_topics,
    )
    added = await _added(context, asked)
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=added.topic_results)


async def _added(
    context: Context, asked: AddPartitionsToTxnTransaction
) -> AddPartitionsToTxnResult:
    partitions = frozenset(
        TopicPartition(topic.name, index) for topic in asked.topics for index in topic.partitions
    )
    errors = await _add_errors(context, asked, partitions)
    return AddPartitionsToTxnResult(
        transactional_id=asked.transactional_id,
        topic_results=[_topic_result(topic, errors) for topic in asked.topics],
    )


async def _add_errors(
    context: Context, asked: AddPartitionsToTxnTransaction, partitions: Partitions
) -> dict[TopicPartition, ErrorCode]:
    unknown = {each for each in partitions if context.image.partition(*each) is None}
    if unknown:
        return {
            each: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if each in unknown
            else ErrorCode.OPERATION_NOT_ATTEMPTED
            for each in partitions
        }
    stamp = ProducerStamp(asked.producer_id, asked.producer_epoch)
    if asked.verify_only:
        error_code, missing = await verify_partitions(
            context.node, asked.transactional_id, stamp, partitions
        )
        abortable = ErrorCode.TRANSACTION_ABORTABLE
        return dict.fromkeys(missing, error_code or _for_version(context, abortable))
    error_code = ErrorCode.INVALID_REQUEST
    if asked.transactional_id:
        error_code = await add_partitions(
            context.node, asked.transactional_id, stamp, partitions, transaction_version=1
        )
    return dict.fromkeys(partitions, _known(error_code, context.version >= 2))


def _for_version(context: Context, error_code: ErrorCode) -> ErrorCode:
    return error_code if context.version >= 5 else ErrorCode.INVALID_TXN_STATE


def _topic_result(
    topic: AddPartitionsToTxnTopic, errors: dict[TopicPartition, ErrorCode]
) -> AddPartitionsToTxnTopicResult:
    return AddPartitionsToTxnTopicResult(
        name=topic.name,
        results_by_partition=[
            AddPartitionsToTxnPartitionResult(
                partition_index=index,
                partition_error_code=errors.get(TopicPartition(topic.name, index), ErrorCode.NONE),
            )
            for index in topic.partitions
        ],
    )


async def add_offsets_to_txn(
    context: Context, request: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse:
    error_code = ErrorCode.INVALID_REQUEST
    if request.transactional_id:
        try:
            where = await _offsets_partition(context, request.group_id)
        except KafkaError as error:
            return AddOffsetsToTxnResponse(error_code=error.code)
        error_code = await add_partitions(
            context.node,
            request.transactional_id,
            ProducerStamp(request.producer_id, request.producer_epoch),
            frozenset([where]),
            transaction_version=1,
        )
    return AddOffsetsToTxnResponse(error_code=_known(error_code, context.version >= 2))


async def _offsets_partition(context: Context, group_id: str) -> TopicPartition:
    topic = await context.node.groups.ensure_topic()
    return TopicPartition(CONSUMER_OFFSETS, context.node.groups.partition_of(group_id, topic))


async def end_txn(context: Context, request: EndTxnRequest) -> EndTxnResponse:
    if not request.transactional_id:
        return EndTxnResponse(error_code=ErrorCode.INVALID_REQUEST)
    bumps = context.version >= EPOCH_BUMP_END_VERSION
    outcome = await _end(context, request, 2 if bumps else 1)
    error_code = outcome.error_code
    if error_code is ErrorCode.TRANSACTION_ABORTABLE and not bumps:
        error_code = ErrorCode.UNKNOWN_PRODUCER_ID  # Which older clients answer with an abort.
    return EndTxnResponse(
        error_code=_known(error_code, context.version >= 2),
        producer_id=outcome.stamp.producer_id,
        producer_epoch=outcome.stamp.producer_epoch,
    )


async def _end(context: Context, request: EndTxnRequest, transaction_version: int) -> Outcome:
    """End a transaction; for a commit all its partitions are sealed first."""
    stamp = ProducerStamp(request.producer_id, request.producer_epoch)
    sealed: Partitions = frozenset()
    while True:
        outcome: Outcome | SealNeeded = await _with_fresh_id(
            context,
            request.transactional_id,
            lambda shard, fresh_id, token, now_ms: shard.end(
                request.transactional_id,
                stamp,
                request.committed,
                transaction_version,
                fresh_id,
                token,
                now_ms,
                sealed,  # noqa: B023
            ),
        )
        if not isinstance(outcome, SealNeeded):
            return outcome
        if not await context.node.sealing.seal(outcome.partitions):
            return Outcome(ErrorCode.CONCURRENT_TRANSACTIONS)  # The client asks again.
        sealed |= outcome.partitions


async def txn_offset_commit(
    context: Context, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    node = context.node
    stamp = ProducerStamp(request.producer_id, request.producer_epoch)
    adds = context.version >= IMPLICIT_COMMIT_VERSION
    try:
        where = await _offsets_partition(context, request.group_id)
        partition = node.replicas.find(context.image.topics.get(where.topic), where.partition)
        if not partition.is_loaded:
            await node.replicas.load(partition)
    except KafkaError as error:
        return refused_in_transaction(request, coordinator_error(error.code))
    guard = None
    verify = adds or node.broker_config().flag(VERIFICATION)
    if verify and partition.producers.needs_verification(*stamp):
        guard = partition.producers.begin_verification(*stamp)
        refused = await admit(
            node,
            request.transactional_id,
            stamp,
            frozenset([where]),
            adds=adds,
            knows_abortable=context.version >= ABORTABLE_COMMIT_VERSION,
        )
        if refused:
            return refused_in_transaction(request, refused[where])
    try:
        partition.check_internal(*stamp, guard, verify=verify)
    except KafkaError as error:
        return refused_in_transaction(request, error.code)
    response: TxnOffsetCommitResponse = await commit_in_transaction(context, request)
    return response


def _known(error_code: ErrorCode, knows_fenced: bool) -> ErrorCode:
    if error_code is ErrorCode.PRODUCER_FENCED and not knows_fenced:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error_code


def grouped(partitions: Sequence[TopicPartition]) -> dict[str, list[int]]:
    """Partitions by topic, both in order."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    return topics
