"""CreateTopics, DeleteTopics, CreatePartitions, DeleteRecords.

Versions: CreateTopics 0-7, DeleteTopics 0-6 (6 also by id), CreatePartitions 0-3,
DeleteRecords 0-2.

Behaviour
    Each topic succeeds or fails by itself. A name given twice in one request is INVALID_REQUEST.
    The answer comes once the change is committed and visible on this node, or with
    REQUEST_TIMED_OUT after the request's own timeout: the change may still happen then.
    `validate_only` decides and logs nothing.
    DeleteRecords is durable before it is answered.
"""

import asyncio
import logging
import uuid
from collections import Counter
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar, cast

from chronik.metadata.commands import Command, CreatePartitions, CreateTopic, DeleteTopic
from chronik.metadata.image import Topic, id_text
from chronik.protocol.apis import CREATE_TOPICS
from chronik.protocol.codec import encode
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from chronik.protocol.schema import NO_UUID
from chronik.server.context import Context
from chronik.server.handlers.list_offsets import loaded_partition
from chronik.storage.errors import StorageError

logger = logging.getLogger(__name__)

T = TypeVar("T")

BEGUN_AT_ONCE = 25  # topics of one request that are decided in one turn of the loop: about 5 ms
BY_ID_VERSION = 6
DELETION_DISABLED_VERSION = 3


async def submit(
    context: Context, command: Command, timeout_ms: int, *, validate_only: bool = False
) -> Any:
    """The response of a command once this node has applied it, or KafkaError."""
    if validate_only:
        return context.node.metadata.decide(command).response
    timeout_s = max(timeout_ms, 1) / 1000
    reply = context.node.metadata.submit(command, timeout_s)
    try:
        return await asyncio.wait_for(asyncio.shield(reply), timeout_s)
    except TimeoutError:
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT) from None


async def create_topics(context: Context, request: CreateTopicsRequest) -> CreateTopicsResponse:
    counts = Counter(topic.name for topic in request.topics)
    work = [
        _create_topic(context, request, topic, repeated=counts[topic.name] > 1)
        for topic in {topic.name: topic for topic in request.topics}.values()
    ]
    results = await _gather_in_turns(work)
    # Encoded one by one, each in the turn of its own task: three thousand topics with all their
    # settings would hold the loop for a tenth of a second.
    return CreateTopicsResponse(topics=cast(list[CreatableTopicResult], results))


async def _gather_in_turns(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all, begun in several turns of the loop: heartbeats go in between."""
    tasks: list[asyncio.Task[T]] = []
    try:
        for number, each in enumerate(work, 1):
            tasks.append(asyncio.ensure_future(each))
            if number % BEGUN_AT_ONCE == 0:
                await asyncio.sleep(0)
        return await asyncio.gather(*tasks)
    except asyncio.CancelledError:
        for each in work[len(tasks) :]:
            each.close()
        for task in tasks:
            task.cancel()
        raise


async def _create_topic(
    context: Context, request: CreateTopicsRequest, topic: CreatableTopic, *, repeated: bool
) -> bytes:
    result = await _created(context, request, topic, repeated=repeated)
    return encode(result, context.version, CREATE_TOPICS.is_flexible(context.version))


async def _created(
    context: Context, request: CreateTopicsRequest, topic: CreatableTopic, *, repeated: bool
) -> CreatableTopicResult:
    try:
        if repeated:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        created = await submit(
            context,
            _create_command(topic),
            request.timeout_ms,
            validate_only=request.validate_only,
        )
    except KafkaError as error:
        return CreatableTopicResult(
            name=topic.name, error_code=error.code, error_message=error.message
        )
    assert isinstance(created, Topic)
    overrides = {config.name: config.value or "" for config in topic.configs}
    return CreatableTopicResult(
        name=topic.name,
        topic_id=NO_UUID if request.validate_only else created.id,
        error_code=ErrorCode.NONE,
        num_partitions=len(created.partitions),
        replication_factor=len(created.partitions[0].replicas),
        configs=context.node.created_configs.of(
            overrides, context.node.broker_config(), context.version
        ),
    )


def _create_command(topic: CreatableTopic) -> CreateTopic:
    assignments = {each.partition_index: each.broker_ids for each in topic.assignments}
    if len(assignments) != len(topic.assignments):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "A partition was assigned more than once."
        )
    for config in topic.configs:
        if config.value is None:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"Null value not supported for topic configs: {config.name}",
            )
    return CreateTopic(
        name=topic.name,
        topic_id=id_text(uuid.uuid4().bytes),
        partition_count=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=assignments,
        configs={config.name: config.value for config in topic.configs},
    )


async def delete_topics(context: Context, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    asked: Sequence[DeleteTopicState] = request.topics
    if context.version < BY_ID_VERSION:
        asked = [DeleteTopicState(name=name) for name in request.topic_names]
    unique = {(each.name, each.topic_id): each for each in asked}.values()
    work = [_delete_topic(context, each, request.timeout_ms) for each in unique]
    return DeleteTopicsResponse(responses=await _gather_in_turns(work))


async def _delete_topic(
    context: Context, asked: DeleteTopicState, timeout_ms: int
) -> DeletableTopicResult:
    try:
        topic = _topic_to_delete(context, asked)
        command = DeleteTopic(topic_id=topic.record.topic_id)
        await submit(context, command, timeout_ms)
    except KafkaError as error:
        code = error.code
        if code is ErrorCode.UNKNOWN_TOPIC_ID and asked.name is not None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION  # Somebody else was faster.
        return DeletableTopicResult(
            name=asked.name,
            topic_id=asked.topic_id,
            error_code=code,
            error_message=error.message,
        )
    return DeletableTopicResult(name=topic.name, topic_id=topic.id, error_code=ErrorCode.NONE)


def _topic_to_delete(context: Context, asked: DeleteTopicState) -> Topic:
    if not context.node.broker_config().flag("delete.topic.enable"):
        disabled = ErrorCode.TOPIC_DELETION_DISABLED
        code = (
            disabled if context.version >= DELETION_DISABLED_VERSION else ErrorCode.INVALID_REQUEST
        )
        raise KafkaError(code, "Topic deletion is disabled.")
    if asked.name is None:
        topic = context.image.topic_by_id(asked.topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        return topic
    if asked.topic_id != NO_UUID:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Give a topic's name or its id, not both.")
    topic = context.image.topics.get(asked.name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return topic


async def create_partitions(
    context: Context, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    counts = Counter(topic.name for topic in request.topics)
    work = [
        _grow(context, request, topic, repeated=counts[topic.name] > 1)
        for topic in {topic.name: topic for topic in request.topics}.values()
    ]
    return CreatePartitionsResponse(results=await _gather_in_turns(work))


async def _grow(
    context: Context,
    request: CreatePartitionsRequest,
    topic: CreatePartitionsTopic,
    *,
    repeated: bool,
) -> CreatePartitionsTopicResult:
    assignments = None
    if topic.assignments is not None:
        assignments = [each.broker_ids for each in topic.assignments]
    command = CreatePartitions(name=topic.name, count=topic.count, assignments=assignments)
    try:
        if repeated:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        await submit(context, command, request.timeout_ms, validate_only=request.validate_only)
    except KafkaError as error:
        return CreatePartitionsTopicResult(
            name=topic.name, error_code=error.code, error_message=error.message
        )
    return CreatePartitionsTopicResult(name=topic.name, error_code=ErrorCode.NONE)


async def delete_records(context: Context, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[
                    await _delete_records(context, topic.name, each.partition_index, each.offset)
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


async def _delete_records(
    context: Context, name: str, index: int, offset: int
) -> DeleteRecordsPartitionResult:
    try:
        partition = await loaded_partition(context, name, index)
        low_watermark = partition.delete_records(offset)
        await context.node.replicas.checkpoint(partition)
        partition.log_start_moved()
    except KafkaError as error:
        return DeleteRecordsPartitionResult(
            partition_index=index, low_watermark=-1, error_code=error.code
        )
    except (OSError, StorageError) as error:
        logger.error("records not deleted", extra={"topic": name, "error": str(error)})
        return DeleteRecordsPartitionResult(
            partition_index=index, low_watermark=-1, error_code=ErrorCode.KAFKA_STORAGE_ERROR
        )
    return DeleteRecordsPartitionResult(
        partition_index=index, low_watermark=low_watermark, error_code=ErrorCode.NONE
    )
