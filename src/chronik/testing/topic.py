"""What is in a topic, for a test to look at."""

from dataclasses import dataclass

from chronik.client.cluster import Cluster
from chronik.client.consumer import Consumer
from chronik.client.offsets import EARLIEST, LATEST, list_offsets
from chronik.model import TopicPartition
from chronik.protocol import records


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record, as a consumer would get it."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


async def read_topic(cluster: Cluster, name: str) -> list[Record]:
    """All committed records of a topic up to where it ends now, partition by partition."""
    found = (await cluster.topic(name)).partitions
    places = sorted(TopicPartition(name, each.partition_index) for each in found)
    starts = await list_offsets(cluster, dict.fromkeys(places, EARLIEST))
    ends = await list_offsets(cluster, dict.fromkeys(places, LATEST), read_committed=True)
    by_place: dict[TopicPartition, list[Record]] = {place: [] for place in places}
    async with Consumer(cluster, starts, ends=ends, read_committed=True) as consumer:
        async for place, record in consumer:
            by_place[place].append(_record(place, record))
    return [record for place in places for record in by_place[place]]


def _record(place: TopicPartition, record: records.Record) -> Record:
    return Record(
        topic=place.topic,
        partition=place.partition,
        offset=record.offset,
        timestamp_ms=record.timestamp,
        key=record.key,
        value=record.value,
        headers=tuple(record.headers),
    )
