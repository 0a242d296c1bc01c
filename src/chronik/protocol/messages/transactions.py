"""Transactions: what a producer, a coordinator and an operator say about them.

A producer names its transaction's partitions (AddPartitionsToTxn) and groups (AddOffsetsToTxn),
commits their offsets (TxnOffsetCommit), and ends it (EndTxn). WriteTxnMarkers is the coordinator's
word to the leaders. The Describe and List requests are for operators.
"""

from collections.abc import Sequence
from typing import Annotated

from chronik.protocol.schema import (
    Message,
    boolean,
    int8,
    int16,
    int32,
    int64,
    since,
    string,
    until,
)


class AddPartitionsToTxnTopic(Message):
    """The partitions of one topic."""

    name: string
    partitions: Sequence[int32]


class AddPartitionsToTxnTransaction(Message):
    """A transaction and its partitions; verify_only asks whether they are already in it."""

    transactional_id: string
    producer_id: int64
    producer_epoch: int16
    verify_only: boolean = False
    topics: Sequence[AddPartitionsToTxnTopic]


class AddPartitionsToTxnRequest(Message):
    """Adds partitions to a transaction; from v4 on brokers do it for several at once."""

    transactions: Annotated[Sequence[AddPartitionsToTxnTransaction], since(4)] = ()
    v3_and_below_transactional_id: Annotated[string, until(3)] = ""
    v3_and_below_producer_id: Annotated[int64, until(3)] = 0
    v3_and_below_producer_epoch: Annotated[int16, until(3)] = 0
    v3_and_below_topics: Annotated[Sequence[AddPartitionsToTxnTopic], until(3)] = ()


class AddPartitionsToTxnPartitionResult(Message):
    """Whether one partition is in the transaction."""

    partition_index: int32
    partition_error_code: int16


class AddPartitionsToTxnTopicResult(Message):
    """One topic's partitions."""

    name: string
    results_by_partition: Sequence[AddPartitionsToTxnPartitionResult]


class AddPartitionsToTxnResult(Message):
    """One transaction's topics."""

    transactional_id: string
    topic_results: Sequence[AddPartitionsToTxnTopicResult]


class AddPartitionsToTxnResponse(Message):
    """The outcome, partition by partition."""

    throttle_time_ms: int32 = 0
    error_code: Annotated[int16, since(4)] = 0
    results_by_transaction: Annotated[Sequence[AddPartitionsToTxnResult], since(4)] = ()
    results_by_topic_v3_and_below: Annotated[Sequence[AddPartitionsToTxnTopicResult], until(3)] = ()


class AddOffsetsToTxnRequest(Message):
    """Adds a group's offsets to a transaction."""

    transactional_id: string
    producer_id: int64
    producer_epoch: int16
    group_id: string


class AddOffsetsToTxnResponse(Message):
    """Whether the group's offsets are in the transaction."""

    throttle_time_ms: int32 = 0
    error_code: int16


class EndTxnRequest(Message):
    """Commits or aborts a transaction."""

    transactional_id: string
    producer_id: int64
    producer_epoch: int16
    committed: boolean


class EndTxnResponse(Message):
    """The outcome, and from v5 on the id and epoch of the next transaction."""

    throttle_time_ms: int32 = 0
    error_code: int16
    producer_id: Annotated[int64, since(5)] = -1
    producer_epoch: Annotated[int16, since(5)] = -1


class WritableTxnMarkerTopic(Message):
    """The partitions of one topic."""

    name: string
    partition_indexes: Sequence[int32]


class WritableTxnMarker(Message):
    """The end of one transaction; a result of true commits it."""

    producer_id: int64
    producer_epoch: int16
    transaction_result: boolean
    topics: Sequence[WritableTxnMarkerTopic]
    coordinator_epoch: int32
    transaction_version: Annotated[int8, since(2)] = 0


class WriteTxnMarkersRequest(Message):
    """Tells leaders to append the control records that end transactions."""

    markers: Sequence[WritableTxnMarker]


class WritableTxnMarkerPartitionResult(Message):
    """Whether one partition has the marker."""

    partition_index: int32
    error_code: int16


class WritableTxnMarkerTopicResult(Message):
    """One topic's partitions."""

    name: string
    partitions: Sequence[WritableTxnMarkerPartitionResult]


class WritableTxnMarkerResult(Message):
    """One producer's topics."""

    producer_id: int64
    topics: Sequence[WritableTxnMarkerTopicResult]


class WriteTxnMarkersResponse(Message):
    """The outcome, partition by partition."""

    markers: Sequence[WritableTxnMarkerResult]


class TxnOffsetCommitRequestPartition(Message):
    """A partition and the offset to read next."""

    partition_index: int32
    committed_offset: int64
    committed_leader_epoch: Annotated[int32, since(2)] = -1
    committed_metadata: string | None


class TxnOffsetCommitRequestTopic(Message):
    """The partitions of one topic."""

    name: string
    partitions: Sequence[TxnOffsetCommitRequestPartition]


class TxnOffsetCommitRequest(Message):
    """Commits a group's offsets if and when the transaction commits."""

    transactional_id: string
    group_id: string
    producer_id: int64
    producer_epoch: int16
    generation_id: Annotated[int32, since(3)] = -1
    member_id: Annotated[string, since(3)] = ""
    group_instance_id: Annotated[string | None, since(3)] = None
    topics: Sequence[TxnOffsetCommitRequestTopic]


class TxnOffsetCommitResponsePartition(Message):
    """Whether one partition's offset is pending."""

    partition_index: int32
    error_code: int16


class TxnOffsetCommitResponseTopic(Message):
    """One topic's partitions."""

    name: string
    partitions: Sequence[TxnOffsetCommitResponsePartition]


class TxnOffsetCommitResponse(Message):
    """The outcome, partition by partition."""

    throttle_time_ms: int32 = 0
    topics: Sequence[TxnOffsetCommitResponseTopic]


class DescribeProducersTopic(Message):
    """The partitions of one topic."""

    name: string
    partition_indexes: Sequence[int32]


class DescribeProducersRequest(Message):
    """Asks which producers a partition remembers."""

    topics: Sequence[DescribeProducersTopic]


class ProducerState(Message):
    """A producer, its last sequence number and its open transaction, if any."""

    producer_id: int64
    producer_epoch: int32
    last_sequence: int32 = -1
    last_timestamp: int64 = -1
    coordinator_epoch: int32
    current_txn_start_offset: int64 = -1


class DescribeProducersPartitionResult(Message):
    """One partition's producers."""

    partition_index: int32
    error_code: int16
    error_message: string | None = None
    active_producers: Sequence[ProducerState]


class DescribeProducersTopicResult(Message):
    """One topic's partitions."""

    name: string
    partitions: Sequence[DescribeProducersPartitionResult]


class DescribeProducersResponse(Message):
    """The producers, partition by partition."""

    throttle_time_ms: int32 = 0
    topics: Sequence[DescribeProducersTopicResult]


class DescribeTransactionsRequest(Message):
    """Asks for the state of transactions."""

    transactional_ids: Sequence[string]


class TransactionTopic(Message):
    """The partitions of one topic in a transaction."""

    topic: string
    partitions: Sequence[int32]


class DescribedTransaction(Message):
    """A transaction's state, producer and partitions, or why it cannot be described."""

    error_code: int16
    transactional_id: string
    transaction_state: string
    transaction_timeout_ms: int32
    transaction_start_time_ms: int64
    producer_id: int64
    producer_epoch: int16
    topics: Sequence[TransactionTopic]


class DescribeTransactionsResponse(Message):
    """The transactions, in the order in which they were asked for."""

    throttle_time_ms: int32 = 0
    transaction_states: Sequence[DescribedTransaction]


class ListTransactionsRequest(Message):
    """Asks for transactions; an empty filter lets everything through."""

    state_filters: Sequence[string]
    producer_id_filters: Sequence[int64]
    duration_filter: Annotated[int64, since(1)] = -1
    transactional_id_pattern: Annotated[string | None, since(2)] = None


class ListedTransaction(Message):
    """A transaction and its state."""

    transactional_id: string
    producer_id: int64
    transaction_state: string


class ListTransactionsResponse(Message):
    """The transactions that this node coordinates, and the states that it does not know."""

    throttle_time_ms: int32 = 0
    error_code: int16
    unknown_state_filters: Sequence[string]
    transaction_states: Sequence[ListedTransaction]
