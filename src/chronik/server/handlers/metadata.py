"""Metadata, DescribeCluster, DescribeTopicPartitions: the committed image, as clients want it.

Versions: Metadata 0-13, DescribeCluster 0-2, DescribeTopicPartitions 0.

Behaviour
    All topics are asked for by null, in Metadata v0 by an empty list.
    A missing topic is created where the setting and the request allow it (v0-3 always allow);
    the answer waits for the creation, so that the client need not ask again. If nobody decides
    for a while, the topic has LEADER_NOT_AVAILABLE, which every client asks again for.
    When the connection to a broker has just closed, the answer waits until it is known whether the
    broker is gone: its clients ask now, and some ask again only after a second.
    From v10 on topics may be named by id; an unknown id is UNKNOWN_TOPIC_ID.
    DescribeTopicPartitions pages by name and partition.
"""

import asyncio
import uuid
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

from chronik.metadata.commands import CreateTopic
from chronik.metadata.controller import check_topic_name
from chronik.metadata.image import Image, Topic, id_text
from chronik.metadata.records import BrokerRecord, PartitionRecord
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from chronik.protocol.messages.metadata import (
    OPERATIONS_OMITTED,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponseTopic,
)
from chronik.protocol.messages.topics import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from chronik.protocol.schema import NO_UUID
from chronik.server.context import Context
from chronik.server.encoded_topics import described_topic, leader_error
from chronik.server.operations import CLUSTER_OPERATIONS, TOPIC_OPERATIONS

BROKER_ENDPOINTS = 1
# How long an answer waits for topics to be created: an election and a half. The rest of what was
# asked must not wait for ever, and a topic that comes later is found by the next request.
CREATION_S = 2.0


Answer = MetadataResponse | Coroutine[Any, Any, MetadataResponse]


def metadata(context: Context, request: MetadataRequest) -> Answer:
    if context.node.is_in_doubt():
        return _answer_without_doubt(context, request)
    return _metadata(context, request)


async def _answer_without_doubt(context: Context, request: MetadataRequest) -> MetadataResponse:
    await context.node.without_doubt()
    answer = _metadata(context, request)
    return answer if isinstance(answer, MetadataResponse) else await answer


def _metadata(context: Context, request: MetadataRequest) -> Answer:
    if _wants_all(context, request):
        return _answer_all(context, request)
    missing = _missing_names(context, request)
    if missing:
        return _create_then_answer(context, request, missing)
    return _answer(context, request, _asked_topics(context, request, {}))


async def _answer_all(context: Context, request: MetadataRequest) -> MetadataResponse:
    cache = context.node.encoded_topics
    operations = _topic_operations(request)
    # After a start nothing is encoded yet: that is done in slices, between other requests.
    while not cache.prepare(context.image, context.version, operations):  # noqa: ASYNC110
        await asyncio.sleep(0)
    return _answer(context, request, cache.topics(context.image, context.version, operations))


def _wants_all(context: Context, request: MetadataRequest) -> bool:
    return request.topics is None or (context.version == 0 and not request.topics)


def _missing_names(context: Context, request: MetadataRequest) -> list[str]:
    """Topics to create before the answer."""
    if not request.allow_auto_topic_creation:
        return []
    topics = context.image.topics
    missing = [
        topic.name
        for topic in request.topics or ()
        if topic.topic_id == NO_UUID and topic.name is not None and topic.name not in topics
    ]
    if missing and not context.node.broker_config().flag("auto.create.topics.enable"):
        return []
    return list(dict.fromkeys(missing))


async def _create_then_answer(
    context: Context, request: MetadataRequest, names: list[str]
) -> MetadataResponse:
    replies = [
        context.node.metadata.submit(
            CreateTopic(name=name, topic_id=id_text(uuid.uuid4().bytes)), CREATION_S
        )
        for name in names
    ]
    await asyncio.wait(replies, timeout=CREATION_S)
    errors = {name: _outcome(reply) for name, reply in zip(names, replies, strict=True)}
    return _answer(context, request, _asked_topics(context, request, errors))


def _outcome(reply: "asyncio.Future[Any]") -> ErrorCode:
    """What became of a creation, as a client understands it in this place."""
    if not reply.done():
        reply.add_done_callback(lambda late: late.cancelled() or late.exception())
        return ErrorCode.LEADER_NOT_AVAILABLE
    error = reply.exception()
    if error is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION  # It was there, and is gone again.
    if not isinstance(error, KafkaError):
        raise error
    is_unsure = error.code in (ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT)
    return ErrorCode.LEADER_NOT_AVAILABLE if is_unsure else error.code


def _topic_operations(request: MetadataRequest) -> int:
    return TOPIC_OPERATIONS if request.include_topic_authorized_operations else OPERATIONS_OMITTED


def _asked_topics(
    context: Context, request: MetadataRequest, errors: dict[str, ErrorCode]
) -> list[MetadataResponseTopic]:
    operations = _topic_operations(request)
    return [
        _asked_topic(context, each.name, each.topic_id, operations, errors)
        for each in request.topics or ()
    ]


def _answer(
    context: Context, request: MetadataRequest, topics: Sequence[MetadataResponseTopic]
) -> MetadataResponse:
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(
                node_id=broker.node_id, host=broker.host, port=broker.port, rack=broker.rack
            )
            for broker in _shown_brokers(context, request)
        ],
        cluster_id=context.node.cluster_id,
        controller_id=context.node.metadata.controller_id,
        topics=topics,
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS
            if request.include_cluster_authorized_operations
            else OPERATIONS_OMITTED
        ),
    )


def _shown_brokers(context: Context, request: MetadataRequest) -> list[BrokerRecord]:
    """Those that live; a librdkafka that asks for its topics must not miss one at once."""
    shown = context.image.online_brokers
    if not _wants_all(context, request) and "rdkafka" in context.client_software:
        shown += context.node.departures.recent(context.image)
    return shown


def _asked_topic(
    context: Context,
    name: str | None,
    topic_id: bytes,
    operations: int,
    errors: dict[str, ErrorCode],
) -> MetadataResponseTopic:
    if topic_id != NO_UUID:
        topic = context.image.topic_by_id(topic_id)
        error = ErrorCode.UNKNOWN_TOPIC_ID
    else:
        topic = context.image.topics.get(name or "")
        error = errors.get(name or "", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if error in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.TOPIC_ALREADY_EXISTS):
            error = _name_error(name or "")
    if topic is not None:
        return described_topic(topic, operations, context.image.online_ids)
    known_name = name if topic_id == NO_UUID or context.version >= 12 else name or ""
    return MetadataResponseTopic(
        error_code=error,
        name=known_name,
        topic_id=topic_id,
        partitions=(),
        topic_authorized_operations=operations,
    )


def _name_error(name: str) -> ErrorCode:
    try:
        check_topic_name(name)
    except KafkaError as error:
        return error.code
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def describe_cluster(context: Context, request: DescribeClusterRequest) -> DescribeClusterResponse:
    if request.endpoint_type != BROKER_ENDPOINTS:
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE
            if request.endpoint_type == 2
            else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message="This is a broker's listener: only brokers are described.",
            cluster_id="",
            brokers=(),
        )
    image = context.image
    return DescribeClusterResponse(
        error_code=ErrorCode.NONE,
        cluster_id=context.node.cluster_id,
        controller_id=context.node.metadata.controller_id,
        brokers=[
            DescribeClusterBroker(
                broker_id=broker.node_id,
                host=broker.host,
                port=broker.port,
                rack=broker.rack,
                is_fenced=node_id not in image.online_ids,
            )
            for node_id, broker in sorted(image.brokers.items())
            if request.include_fenced_brokers or node_id in image.online_ids
        ],
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS
            if request.include_cluster_authorized_operations
            else OPERATIONS_OMITTED
        ),
    )


def describe_topic_partitions(
    context: Context, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    image = context.image
    names = sorted({topic.name for topic in request.topics} or image.topics)
    start = request.cursor
    if start is not None:
        names = [name for name in names if name >= start.topic_name]
    limit = context.node.broker_config().integer("max.request.partition.size.limit")
    limit = min(limit, max(request.response_partition_limit, 1))
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    for name in names:
        first = start.partition_index if start is not None and start.topic_name == name else 0
        topic = image.topics.get(name)
        if topic is None:
            topics.append(_missing_description(name))
            continue
        if limit <= 0:
            cursor = Cursor(topic_name=name, partition_index=first)
            return DescribeTopicPartitionsResponse(topics=topics, next_cursor=cursor)
        page = topic.partitions[first : first + limit]
        limit -= len(page)
        topics.append(_description(topic, list(_described(image, page))))
        if first + len(page) < len(topic.partitions):
            cursor = Cursor(topic_name=name, partition_index=first + len(page))
            return DescribeTopicPartitionsResponse(topics=topics, next_cursor=cursor)
    return DescribeTopicPartitionsResponse(topics=topics)


def _missing_description(name: str) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        error_code=_name_error(name), name=name, topic_id=NO_UUID, partitions=()
    )


def _description(
    topic: Topic, partitions: list[DescribeTopicPartitionsResponsePartition]
) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.is_internal,
        partitions=partitions,
        topic_authorized_operations=TOPIC_OPERATIONS,
    )


def _described(
    image: Image, partitions: tuple[PartitionRecord, ...]
) -> Iterator[DescribeTopicPartitionsResponsePartition]:
    for partition in partitions:
        yield DescribeTopicPartitionsResponsePartition(
            error_code=leader_error(partition),
            partition_index=partition.partition,
            leader_id=partition.leader,
            leader_epoch=partition.leader_epoch,
            replica_nodes=partition.replicas,
            isr_nodes=partition.isr,
            eligible_leader_replicas=partition.elr,
            last_known_elr=(),  # Java's client takes no null here.
            offline_replicas=image.offline_replicas(partition),
        )
