"""What operators ask about transactions, and the markers that coordinators have written.

Versions: WriteTxnMarkers 0-2, DescribeProducers 0, DescribeTransactions 0, ListTransactions 0-2.

Behaviour
    WriteTxnMarkers appends the control records that end transactions. Kafka's tools send it too,
    to abort a transaction that hangs in a partition.
    ListTransactions shows what this node coordinates; a state that it does not know is named. Its
    pattern is matched in linear time, since it may come from anybody.
"""

import asyncio
from collections.abc import Sequence

from chronik.coordinator.consumer.regex import compile_regex
from chronik.coordinator.effects import ProducerStamp
from chronik.coordinator.transactions.marker_writer import Marker
from chronik.coordinator.transactions.transaction import Transaction, TransactionState
from chronik.model import NO_TIMESTAMP, TopicPartition
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.transactions import (
    DescribedTransaction,
    DescribeProducersPartitionResult,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopicResult,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
    ProducerState,
    TransactionTopic,
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopic,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from chronik.server.context import Context
from chronik.server.handlers.transactions import grouped

_STATES = {state.wire_name: state for state in TransactionState}


async def write_txn_markers(
    context: Context, request: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse:
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[await _write(context, marker, topic) for topic in marker.topics],
            )
            for marker in request.markers
        ]
    )


async def _write(
    context: Context, asked: WritableTxnMarker, topic: WritableTxnMarkerTopic
) -> WritableTxnMarkerTopicResult:
    marker = Marker(
        ProducerStamp(asked.producer_id, asked.producer_epoch),
        asked.transaction_result,
        asked.coordinator_epoch,
        asked.transaction_version,
    )
    append = context.node.marker_writer.append
    replies = [
        (index, append(TopicPartition(topic.name, index), marker))
        for index in topic.partition_indexes
    ]
    return WritableTxnMarkerTopicResult(
        name=topic.name,
        partitions=[
            WritableTxnMarkerPartitionResult(partition_index=index, error_code=await reply)
            for index, reply in replies
        ],
    )


async def describe_producers(
    context: Context, request: DescribeProducersRequest
) -> DescribeProducersResponse:
    return DescribeProducersResponse(
        topics=[
            DescribeProducersTopicResult(
                name=topic.name,
                partitions=await asyncio.gather(
                    *(_producers(context, topic.name, index) for index in topic.partition_indexes)
                ),
            )
            for topic in request.topics
        ]
    )


async def _producers(context: Context, name: str, index: int) -> DescribeProducersPartitionResult:
    replicas = context.node.replicas
    try:
        partition = replicas.find(context.image.topics.get(name), index)
        if not partition.is_loaded:
            await replicas.load(partition)
        if partition.failure is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, partition.failure)
    except KafkaError as error:
        return DescribeProducersPartitionResult(
            partition_index=index,
            error_code=error.code,
            error_message=error.message,
            active_producers=(),
        )
    return DescribeProducersPartitionResult(
        partition_index=index,
        error_code=ErrorCode.NONE,
        active_producers=[
            ProducerState(
                producer_id=each.producer_id,
                producer_epoch=each.producer_epoch,
                last_sequence=each.last_sequence,
                last_timestamp=each.last_timestamp,
                coordinator_epoch=each.coordinator_epoch,
                current_txn_start_offset=each.current_txn_start_offset,
            )
            for each in partition.producers.describe()
        ],
    )


async def describe_transactions(
    context: Context, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        transaction_states=[await _describe(context, each) for each in request.transactional_ids]
    )


async def _describe(context: Context, transactional_id: str) -> DescribedTransaction:
    found: Transaction | ErrorCode = await context.node.transactions.ask(
        transactional_id,
        lambda shard, token, _: shard.describe(transactional_id, token),
        lambda error_code: error_code,
    )
    if isinstance(found, ErrorCode):
        return DescribedTransaction(
            error_code=found,
            transactional_id=transactional_id,
            transaction_state="",
            transaction_timeout_ms=0,
            transaction_start_time_ms=NO_TIMESTAMP,
            producer_id=-1,
            producer_epoch=-1,
            topics=(),
        )
    return DescribedTransaction(
        error_code=ErrorCode.NONE,
        transactional_id=transactional_id,
        transaction_state=found.state.wire_name,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.started_ms,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        topics=[
            TransactionTopic(topic=topic, partitions=partitions)
            for topic, partitions in grouped(tuple(found.partitions)).items()
        ],
    )


async def list_transactions(
    context: Context, request: ListTransactionsRequest
) -> ListTransactionsResponse:
    wanted = {_STATES[name] for name in request.state_filters if name in _STATES}
    unknown = [name for name in request.state_filters if name not in _STATES]
    try:
        pattern = compile_regex(request.transactional_id_pattern or "")
    except KafkaError as error:
        return _no_transactions(error.code)
    if request.state_filters and not wanted:
        return _no_transactions(ErrorCode.NONE, unknown)
    now_ms = context.node.transactions.now_ms()
    found, is_loading = await context.node.transactions.survey(
        lambda shard: list(
            shard.list(wanted, request.producer_id_filters, request.duration_filter, now_ms)
        )
    )
    if is_loading:
        return _no_transactions(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    return ListTransactionsResponse(
        error_code=ErrorCode.NONE,
        unknown_state_filters=unknown,
        transaction_states=[
            ListedTransaction(
                transactional_id=each.transactional_id,
                producer_id=each.producer_id,
                transaction_state=each.state.wire_name,
            )
            for transactions in found
            for each in transactions
            if not request.transactional_id_pattern or pattern.fullmatch(each.transactional_id)
        ],
    )


def _no_transactions(
    error_code: ErrorCode, unknown: Sequence[str] = ()
) -> ListTransactionsResponse:
    return ListTransactionsResponse(
        error_code=error_code, unknown_state_filters=unknown, transaction_states=()
    )
