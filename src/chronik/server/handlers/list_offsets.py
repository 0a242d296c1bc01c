"""ListOffsets and OffsetForLeaderEpoch: where a partition starts, ends, or reaches a time.

Versions: ListOffsets 0-10, OffsetForLeaderEpoch 0-4.

Behaviour
    -1 latest (the high watermark, or the last stable offset for read_committed), -2 earliest,
    -3 the record with the largest timestamp (v7+), -4 the earliest local offset (v8+, the same as
    earliest), -5 the latest tiered offset (v9+: none, so -1); any other number is a timestamp and
    finds the first record at or after it, exactly. What it finds lies below what -1 answers.
    v0 answers a list of offsets.
    Until a new leader's high watermark has reached the start of its epoch, the end is
    OFFSET_NOT_AVAILABLE (LEADER_NOT_AVAILABLE below v5).
    OffsetForLeaderEpoch answers the end of the largest epoch that is not above the asked one.
"""

import asyncio
from contextlib import suppress

from chronik.coordinator.committing import sealed
from chronik.model import NO_LEADER_EPOCH, NO_TIMESTAMP
from chronik.protocol.batch import read_header, split
from chronik.protocol.errors import ErrorCode, KafkaError, ProtocolError
from chronik.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from chronik.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from chronik.protocol.records import iter_records
from chronik.protocol.schema import Buffer
from chronik.replication.leader_epochs import check_leader_epoch, end_offset_for_epoch, last_epoch
from chronik.replication.partition import Partition
from chronik.server.context import Context
from chronik.server.fetch_sessions import READ_COMMITTED
from chronik.storage.errors import StorageError
from chronik.storage.log import Log

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
OFFSET_NOT_AVAILABLE_VERSION = 5
TOLD_AHEAD_S = 0.1  # far longer than a commit round
SEARCH_BYTES = 1024 * 1024  # read at once when the search must go on
# Since which version a negative timestamp has its meaning.
_SINCE = {LATEST: 0, EARLIEST: 0, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}

Found = tuple[int, int, int]  # timestamp, offset, leader epoch
NOT_FOUND: Found = (NO_TIMESTAMP, -1, NO_LEADER_EPOCH)


async def list_offsets(context: Context, request: ListOffsetsRequest) -> ListOffsetsResponse:
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    await _list_offset(context, request, topic, partition)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


async def _list_offset(
    context: Context,
    request: ListOffsetsRequest,
    topic: ListOffsetsTopic,
    asked: ListOffsetsPartition,
) -> ListOffsetsPartitionResponse:
    try:
        partition = await loaded_partition(context, topic.name, asked.partition_index)
        check_leader_epoch(partition, asked.current_leader_epoch)
        timestamp, offset, epoch = await _find(context, request, partition, asked.timestamp)
    except KafkaError as error:
        return ListOffsetsPartitionResponse(
            partition_index=asked.partition_index, error_code=error.code
        )
    old_style = [offset] if offset >= 0 and asked.max_num_offsets > 0 else []
    return ListOffsetsPartitionResponse(
        partition_index=asked.partition_index,
        error_code=ErrorCode.NONE,
        old_style_offsets=old_style,
        timestamp=timestamp,
        offset=offset,
        leader_epoch=epoch,
    )


async def loaded_partition(context: Context, name: str, index: int) -> Partition:
    """The partition, recovered if it was not yet, or KafkaError."""
    partition = context.node.replicas.find(context.image.topics.get(name), index)
    if not partition.is_loaded and partition.failure is None:
        await context.node.replicas.load(partition)
    if partition.is_deleted:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if partition.failure is not None:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, partition.failure)
    return partition


async def _find(
    context: Context, request: ListOffsetsRequest, partition: Partition, timestamp: int
) -> Found:
    if timestamp < 0 and context.version < _SINCE.get(timestamp, context.version + 1):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    epochs = partition.log.leader_epochs
    committed = request.isolation_level == READ_COMMITTED
    match timestamp:
        case -1:
            _check_settled(context, partition)
            if partition.is_told_ahead and not committed:
                with suppress(TimeoutError):  # Whoever was told of a record finds it here.
                    async with asyncio.timeout(TOLD_AHEAD_S):
                        await sealed(partition)
            end = partition.last_stable_offset if committed else partition.high_watermark
            return NO_TIMESTAMP, end, last_epoch(partition)
        case -2 | -4:
            epoch = epochs[0][0] if epochs else NO_LEADER_EPOCH
            return NO_TIMESTAMP, partition.log.log_start_offset, epoch
        case -5:
            return NOT_FOUND
        case -3:
            return await _search(context, partition, None, committed)
        case _:
            return await _search(context, partition, timestamp, committed)


async def _search(
    context: Context, partition: Partition, timestamp: int | None, committed: bool
) -> Found:
    """The first record at or after a timestamp, or with the largest one; off the loop."""

    def search() -> Found:
        log = partition.log
        found = log.max_timestamp_batch() if timestamp is None else log.find_timestamp(timestamp)
        if found is None:
            return NOT_FOUND
        header = read_header(found.data)
        wanted = header.max_timestamp if timestamp is None else timestamp
        return _first_at(log, found.data, wanted)

    try:
        found = await context.node.disk.run(search)
    except (StorageError, ProtocolError, OSError) as error:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
    end = partition.last_stable_offset if committed else partition.high_watermark
    if found[1] >= end:
        _check_settled(context, partition)
        return NOT_FOUND
    return found


def _check_settled(context: Context, partition: Partition) -> None:
    """Raise while a new leader does not know yet how much of its log is committed (KIP-207).

    It might be less than what the leader before has told somebody.
    """
    if partition.high_watermark < partition.epoch_start_offset:
        is_known = context.version >= OFFSET_NOT_AVAILABLE_VERSION
        raise KafkaError(
            ErrorCode.OFFSET_NOT_AVAILABLE if is_known else ErrorCode.LEADER_NOT_AVAILABLE
        )


def _first_at(log: Log, data: Buffer, timestamp: int) -> Found:
    """The first record at or after a timestamp, in this batch or after it. Blocking.

    The batch that the time index names may have no such record left: the log may start in the
    middle of it, or compaction may have taken the record.
    """
    while len(data):
        batches = split(data)
        for header, batch in batches:
            if header.max_timestamp < timestamp:
                continue
            for record in iter_records(batch):
                if record.timestamp >= timestamp and record.offset >= log.log_start_offset:
                    return record.timestamp, record.offset, header.leader_epoch
        next_offset = batches[-1].header.next_offset
        data = log.read(next_offset, SEARCH_BYTES, log.end_offset, nowait=False) or b""
    return NOT_FOUND


async def offset_for_leader_epoch(
    context: Context, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[
                    await _epoch_end(context, topic.topic, asked) for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


async def _epoch_end(
    context: Context, name: str, asked: OffsetForLeaderPartition
) -> EpochEndOffset:
    try:
        partition = await loaded_partition(context, name, asked.partition)
        check_leader_epoch(partition, asked.current_leader_epoch)
    except KafkaError as error:
        return EpochEndOffset(error_code=error.code, partition=asked.partition)
    epoch, end_offset = end_offset_for_epoch(partition, asked.leader_epoch)
    return EpochEndOffset(
        error_code=ErrorCode.NONE,
        partition=asked.partition,
        leader_epoch=epoch,
        end_offset=end_offset,
    )
