"""ListOffsets: where partitions begin and end, and where a time lies in them."""

import asyncio
from collections.abc import Mapping
from typing import Final

from chronik.client.cluster import Cluster, check
from chronik.model import TopicPartition
from chronik.protocol.apis import LIST_OFFSETS
from chronik.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

# Kafka's timestamps with a meaning of their own.
LATEST: Final = -1
EARLIEST: Final = -2


async def list_offsets(
    cluster: Cluster, wanted: Mapping[TopicPartition, int], *, read_committed: bool = False
) -> dict[TopicPartition, int]:
    """The first offset at or after each timestamp; -1 if there is none.

    EARLIEST and LATEST stand for the log start offset and the high watermark, which to readers
    of committed data only is the last stable offset.
    """
    topics = sorted({partition.topic for partition in wanted})

    async def ask() -> dict[TopicPartition, int]:
        groups = await cluster.by_leader(wanted)
        answers = await asyncio.gather(
            *(
                _ask(cluster, node_id, {each: wanted[each] for each in group}, read_committed)
                for node_id, group in groups.items()
            )
        )
        return {partition: offset for found in answers for partition, offset in found.items()}

    return await cluster.retry(ask, topics=topics)


async def _ask(
    cluster: Cluster, node_id: int, wanted: Mapping[TopicPartition, int], read_committed: bool
) -> dict[TopicPartition, int]:
    by_topic: dict[str, list[ListOffsetsPartition]] = {}
    for (topic, index), timestamp in wanted.items():
        asked = ListOffsetsPartition(partition_index=index, timestamp=timestamp)
        by_topic.setdefault(topic, []).append(asked)
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=int(read_committed),
        topics=[
            ListOffsetsTopic(name=name, partitions=partitions)
            for name, partitions in by_topic.items()
        ],
        timeout_ms=int(cluster.timeout_s * 1000),
    )
    link = await cluster.link(node_id)
    response: ListOffsetsResponse = await link.send(
        request, LIST_OFFSETS, timeout_s=cluster.timeout_s
    )
    offsets = {}
    for found in response.topics:
        for partition in found.partitions:
            key = TopicPartition(found.name, partition.partition_index)
            check(partition.error_code, f"offsets of {key}")
            offsets[key] = partition.offset
    return offsets
