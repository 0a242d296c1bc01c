"""DescribeLogDirs: what partitions take up on this node's disk.

Versions: 0-5 (from 4 on with the volume's size). Behaviour: one directory; null asks for every
partition that this node has a replica of. Sizes are those of the log files, so a partition without
records has 0.
"""

from collections.abc import Sequence

from chronik.metadata.image import Topic
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.cluster import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from chronik.server.context import Context


async def describe_log_dirs(
    context: Context, request: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    image = context.image
    asked: list[tuple[Topic, Sequence[int]]]
    if request.topics is None:
        asked = [(topic, range(len(topic.partitions))) for topic in image.topics.values()]
    else:
        asked = [
            (topic, each.partitions)
            for each in request.topics
            if (topic := image.topics.get(each.topic)) is not None
        ]
    node = context.node

    def measure() -> DescribeLogDirsResult:
        topics = [
            DescribeLogDirsTopic(
                name=topic.name,
                partitions=[
                    _partition(context, topic, index)
                    for index in indexes
                    if 0 <= index < len(topic.partitions)
                    and node.node_id in topic.partitions[index].replicas
                ],
            )
            for topic, indexes in asked
        ]
        topics = [topic for topic in topics if topic.partitions]
        return DescribeLogDirsResult(
            error_code=ErrorCode.NONE,
            log_dir=node.data_dir,
            topics=topics,
            total_bytes=node.disk.total_bytes(node.data_dir),
            usable_bytes=node.disk.free_bytes(node.data_dir),
        )

    return DescribeLogDirsResponse(results=[await node.disk.run(measure)])


def _partition(context: Context, topic: Topic, index: int) -> DescribeLogDirsPartition:
    sizes = context.node.replicas.segment_sizes(topic, index)
    return DescribeLogDirsPartition(
        partition_index=index, partition_size=sum(sizes), offset_lag=0, is_future_key=False
    )
