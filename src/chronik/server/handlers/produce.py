"""Produce: append each partition's batches, and answer when they are committed.

Versions: 0-13 (0-2 carry message sets of magic 0 and 1; 13 names topics by id).

Behaviour
    acks 0 has no answer; if a partition fails, the connection is closed. acks 1 and all are
    answered once the high watermark has passed the append; other values are
    INVALID_REQUIRED_ACKS.
    Appends run at once and in order; the wait for acks holds up nobody.
    What an idempotent producer sent behind a batch that was refused for a while is refused alike.
    A failed partition has base offset, append time and log start offset -1.
    A batch that opens a transaction waits until its coordinator knows the partition to be in it;
    from version 12 on that is where the partition is added (KIP-890).
    Internal topics are the coordinators': a client's Produce there is INVALID_TOPIC_EXCEPTION,
    unless it is Kafka's own admin client.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, NamedTuple

from chronik.coordinator.pending import Pending
from chronik.metadata.image import Topic
from chronik.model import TopicPartition
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from chronik.protocol.schema import Buffer
from chronik.replication.admission import InvalidRecords
from chronik.replication.partition import Appended, Partition
from chronik.replication.waiting import AckWaiter
from chronik.server import transactions
from chronik.server.connection import CloseConnection
from chronik.server.context import Context, Node
from chronik.server.current_leader import NOBODY, current_leader, endpoints
from chronik.server.transactions import NO_GUARDS, Guards

ACKS_NONE, ACKS_LEADER, ACKS_ALL = 0, 1, -1
ADMIN_CLIENT_ID = "__admin_client"  # Kafka's tools that write to internal topics
BY_ID_VERSION = 13
TOPIC_KNOWN_S = 0.3  # how far this node may be behind another: four heartbeats of the leader
SLICE_PARTITIONS = 50  # appended to in one turn of the loop; a first write costs up to 0.5 ms

Result = ProduceResponse | None


class _Append:
    """One partition's outcome, known now or once it is committed."""

    __slots__ = ("appended", "error", "index", "partition", "waits")

    def __init__(self, index: int) -> None:
        self.index = index
        self.partition: Partition | None = None
        self.appended: Appended | None = None
        self.error: KafkaError | None = None
        self.waits = False

    def response(self, topic: Topic | None) -> PartitionProduceResponse:
        appended = self.appended
        if self.error is not None or appended is None:
            error = self.error or KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
            return _failed(self.index, error, topic)
        return PartitionProduceResponse(
            index=self.index,
            error_code=ErrorCode.NONE,
            base_offset=appended.base_offset,
            log_append_time_ms=appended.log_append_time_ms,
            log_start_offset=appended.log_start_offset,
        )


class _TopicAppends(NamedTuple):
    """One topic's appends. The request itself is not kept: its bytes are large."""

    name: str
    topic_id: bytes
    appends: list[_Append]


class _Acks:
    """Waits until every append of a request is committed, its disk failed, or time is up."""

    def __init__(self, node: Node, topics: list[_TopicAppends]) -> None:
        self._node = node
        self._topics = topics
        self._waiting = {
            append: None for topic in topics for append in topic.appends if append.waits
        }
        self.reply = Pending()
        self._timer: asyncio.TimerHandle | None = None

    def start(self, acks: int, timeout_ms: int) -> None:
        # As in Kafka the timeout is for the replicas: acks=1 waits for our own disk, which answers
        # or fails. A time-out there would make a producer send again what is stored.
        if acks == ACKS_ALL:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(timeout_ms, 0) / 1000, self._expired)
        for append in tuple(self._waiting):
            partition, appended = append.partition, append.appended
            assert partition is not None
            assert appended is not None
            if _wait(acks, appended, partition)(appended.end_offset, self):
                self._waiting.pop(append)
        self._maybe_reply()

    def acknowledged(self, partition: Partition) -> None:
        self._end(partition, None)

    def failed(self, partition: Partition, error: KafkaError) -> None:
        self._end(partition, error)

    def _end(self, partition: Partition, error: KafkaError | None) -> None:
        append = next((each for each in self._waiting if each.partition is partition), None)
        if append is not None:
            append.error = error
            self._waiting.pop(append)
            self._maybe_reply()

    def _expired(self) -> None:
        for append in self._waiting:
            append.error = KafkaError(ErrorCode.REQUEST_TIMED_OUT)
        self._waiting.clear()
        self._maybe_reply()

    def _maybe_reply(self) -> None:
        if not self._waiting and not self.reply.is_done:
            if self._timer is not None:
                self._timer.cancel()
            self.reply.resolve(_response(self._node, self._topics))


def produce(
    context: Context, request: ProduceRequest
) -> Result | Pending | Coroutine[Any, Any, Result]:
    if request.acks not in (ACKS_NONE, ACKS_LEADER, ACKS_ALL):
        return _refused(request, KafkaError(ErrorCode.INVALID_REQUIRED_ACKS))
    if not context.node.metadata.consensus.is_alone and not _knows_topics(context, request):
        return _produce_when_known(context, _detached(request))
    if request.transactional_id is not None and _opens_transaction(context, request):
        return _produce_in_transaction(context, _detached(request))
    count = sum(len(data.partition_data) for data in request.topic_data)
    if count > SLICE_PARTITIONS or _must_load(context, request):
        return _produce_in_slices(context, _detached(request))
    topics = []
    now_ms = context.node.clock.wall_ms()
    for data in request.topic_data:
        appends = [
            _append(context, data, each, request.acks, now_ms) for each in data.partition_data
        ]
        topics.append(_TopicAppends(data.name, data.topic_id, appends))
    return _finish(context, request, topics)


def _knows_topics(context: Context, request: ProduceRequest) -> bool:
    return all(_topic(context, data) is not None for data in request.topic_data)


async def _produce_when_known(context: Context, request: ProduceRequest) -> Result:
    """Another node may just have told the client of a topic that this one is about to hear of."""
    await context.node.metadata.until(lambda: _knows_topics(context, request), TOPIC_KNOWN_S)
    if request.transactional_id is not None and _opens_transaction(context, request):
        return await _produce_in_transaction(context, request)
    return await _produce_in_slices(context, request)


def _opens_transaction(context: Context, request: ProduceRequest) -> bool:
    """Whether a partition must be loaded, or is new in its producer's transaction."""
    for partition, records in _writable(context, request):
        if not partition.is_loaded or transactions.opens(partition, records):
            return True
    return False


def _writable(context: Context, request: ProduceRequest) -> Iterator[tuple[Partition, Buffer]]:
    """The partitions that can be written to, and what is to be written."""
    for data in request.topic_data:
        topic = _topic(context, data)
        for each in data.partition_data:
            partition = _find(context, topic, each.index)
            if partition is not None:
                records: Any = each.records
                yield partition, b"" if records is None else records


async def _produce_in_transaction(context: Context, request: ProduceRequest) -> Result:
    """Ask the transaction's coordinator about partitions that are new in it, then append."""
    writes = list(_writable(context, request))
    for partition, _ in writes:
        if not partition.is_loaded:
            await context.node.replicas.load(partition)
    assert request.transactional_id is not None
    guards = await transactions.guarded(
        context.node, request.transactional_id, writes, context.version
    )
    return await _produce_in_slices(context, request, guards)


def _must_load(context: Context, request: ProduceRequest) -> bool:
    """Whether a partition must be recovered before it is written to."""
    return any(not partition.is_loaded for partition, _ in _writable(context, request))


def _find(context: Context, topic: Topic | None, index: int) -> Partition | None:
    """The partition if it can be written to; what is wrong with it, the append says."""
    try:
        partition = context.node.replicas.find(topic, index)
    except KafkaError:
        return None
    return partition if partition.failure is None else None


async def _produce_in_slices(
    context: Context, request: ProduceRequest, guards: Guards = NO_GUARDS
) -> Result:
    """The long way: first writes make files, and a thousand of them would hold the loop."""
    topics = []
    count = 0
    for data in request.topic_data:
        appends = []
        for each in data.partition_data:
            partition = _find(context, _topic(context, data), each.index)
            if partition is not None and not partition.is_loaded:
                await context.node.replicas.load(partition)
            now_ms = context.node.clock.wall_ms()
            appends.append(_append(context, data, each, request.acks, now_ms, guards))
            count += 1
            if count % SLICE_PARTITIONS == 0:
                await asyncio.sleep(0)
        topics.append(_TopicAppends(data.name, data.topic_id, appends))
    result = _finish(context, request, topics)
    return await result if isinstance(result, Pending) else result


def _detached(request: ProduceRequest) -> ProduceRequest:
    """The same request with its own bytes: the receive buffer will be used again."""
    return ProduceRequest(
        transactional_id=request.transactional_id,
        acks=request.acks,
        timeout_ms=request.timeout_ms,
        topic_data=[
            TopicProduceData(
                name=data.name,
                topic_id=data.topic_id,
                partition_data=[
                    PartitionProduceData(index=each.index, records=_copied(each.records))
                    for each in data.partition_data
                ],
            )
            for data in request.topic_data
        ],
    )


def _copied(records: Any) -> bytes | None:
    return None if records is None else bytes(records)


def _topic(context: Context, data: TopicProduceData) -> Topic | None:
    return context.topic(data.name, data.topic_id, context.version >= BY_ID_VERSION)


def _append(
    context: Context,
    named: TopicProduceData,
    data: PartitionProduceData,
    acks: int,
    now_ms: int,
    guards: Guards = NO_GUARDS,
) -> _Append:
    append = _Append(data.index)
    topic = _topic(context, named)
    try:
        _write(context, topic, data, acks, now_ms, append, guards)
    except KafkaError as error:
        records: Any = data.records or b""
        replicas = context.node.replicas
        place = TopicPartition(named.name if topic is None else topic.name, data.index)
        append.error = replicas.refusals.answer(place, records, error, replicas.now_ms())
    return append


def _write(
    context: Context,
    topic: Topic | None,
    data: PartitionProduceData,
    acks: int,
    now_ms: int,
    append: _Append,
    guards: Guards,
) -> None:
    if topic is None and context.version >= BY_ID_VERSION:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
    if topic is not None and topic.is_internal and context.client_id != ADMIN_CLIENT_ID:
        message = f"Cannot append to internal topic {topic.name}"
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, message)
    partition = context.node.replicas.find(topic, data.index)
    assert topic is not None
    records: Any = data.records
    buffer: Buffer = b"" if records is None else records
    append.partition = partition
    replicas = context.node.replicas
    place = TopicPartition(topic.name, data.index) if replicas.refusals else None
    if place is not None:
        replicas.refusals.check(place, buffer, partition.producers, replicas.now_ms())
    append.appended = partition.append(
        buffer,
        version=context.version,
        acks=acks,
        now_ms=now_ms,
        guard=guards.of(partition),
        verify=guards.verify,
    )
    append.waits = append.appended.end_offset > _acknowledged(acks, append.appended, partition)
    if place is not None:
        replicas.refusals.accepted(place, buffer)
    context.node.metrics.records_bytes_in += len(buffer)


def _acknowledged(acks: int, appended: Appended, partition: Partition) -> int:
    """Up to where a partition's appends are acknowledged: to one of this kind."""
    if acks != ACKS_ALL:
        return partition.stored_offset
    return partition.recount_received() if appended.is_transactional else partition.high_watermark


def _wait(acks: int, appended: Appended, partition: Partition) -> Callable[[int, AckWaiter], bool]:
    if acks != ACKS_ALL:
        return partition.wait_stored
    return partition.wait_received if appended.is_transactional else partition.wait_acknowledged


def _finish(
    context: Context, request: ProduceRequest, topics: list[_TopicAppends]
) -> Result | Pending:
    """Answer now, or once everything is acknowledged."""
    if request.acks == ACKS_NONE:
        _check_unanswered(topics)
        return None
    if not any(append.waits for topic in topics for append in topic.appends):
        return _response(context.node, topics)
    acks = _Acks(context.node, topics)
    acks.start(request.acks, request.timeout_ms)
    return acks.reply


def _check_unanswered(topics: list[_TopicAppends]) -> None:
    for topic in topics:
        for append in topic.appends:
            if append.error is not None:
                raise CloseConnection(f"acks=0 to {topic.name}-{append.index}: {append.error}")


def _response(node: Node, topics: list[_TopicAppends]) -> ProduceResponse:
    image = node.metadata.image
    responses = []
    leaders = []
    for each in topics:
        topic = image.topics.get(each.name) if each.name else image.topic_by_id(each.topic_id)
        partitions = [append.response(topic) for append in each.appends]
        leaders += [
            found.current_leader for found in partitions if found.current_leader is not NOBODY
        ]
        responses.append(
            TopicProduceResponse(
                name=each.name, topic_id=each.topic_id, partition_responses=partitions
            )
        )
    found_at = endpoints(image, leaders) if leaders else ()
    return ProduceResponse(responses=responses, node_endpoints=found_at)


def _refused(request: ProduceRequest, error: KafkaError) -> Result:
    if request.acks == ACKS_NONE:
        raise CloseConnection(str(error))
    return ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=data.name,
                topic_id=data.topic_id,
                partition_responses=[_failed(each.index, error) for each in data.partition_data],
            )
            for data in request.topic_data
        ]
    )


def _failed(index: int, error: KafkaError, topic: Topic | None = None) -> PartitionProduceResponse:
    indexes = error.indexes if isinstance(error, InvalidRecords) else ()
    return PartitionProduceResponse(
        index=index,
        error_code=error.code,
        base_offset=-1,
        record_errors=[
            BatchIndexAndErrorMessage(batch_index=each, batch_index_error_message=error.message)
            for each in indexes
        ],
        error_message=error.message,
        current_leader=current_leader(topic, index, error.code),
    )
