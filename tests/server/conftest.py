"""Short words for the requests that these tests send."""

from types import SimpleNamespace
from typing import Any

import pytest

from chronik.protocol import apis
from chronik.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from chronik.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from chronik.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from chronik.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from chronik.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from chronik.protocol.records import Record, build_batch


def batch(*values: bytes, timestamp: int = 1_700_000_000_000, **fields: Any) -> bytes:
    """A batch as a producer sends it."""
    records = [Record(0, timestamp, f"k{n}".encode(), value) for n, value in enumerate(values)]
    return build_batch(
        [Record(n, r.timestamp, r.key, r.value) for n, r in enumerate(records)], **fields
    )


def create(wire: Any, name: str, partitions: int = 1, **configs: str) -> bytes:
    """Create a topic; underscores in setting names are dots. Returns its id."""
    topic = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=1,
        assignments=(),
        configs=[
            CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ],
    )
    response = wire.ask(apis.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[topic]))
    assert response.topics[0].error_code == 0, response.topics[0]
    return bytes(response.topics[0].topic_id)


def produce_request(
    topic: str | bytes, *data: bytes | None, acks: int = -1, partition: int = 0, **fields: Any
) -> ProduceRequest:
    named = {"topic_id": topic} if isinstance(topic, bytes) else {"name": topic}
    partitions = [PartitionProduceData(index=partition, records=each) for each in data]
    return ProduceRequest(
        acks=acks,
        timeout_ms=5_000,
        topic_data=[TopicProduceData(partition_data=partitions, **named)],
        **fields,
    )


def produce(wire: Any, topic: str, data: bytes, *, version: int = 11, **fields: Any) -> Any:
    """Produce one batch; the partition's answer."""
    response = wire.ask(apis.PRODUCE, version, produce_request(topic, data, **fields))
    return response.responses[0].partition_responses[0]


def fetch_request(
    topic: str | bytes,
    offset: int,
    *,
    partitions: tuple[int, ...] = (0,),
    partition_max_bytes: int = 1 << 20,
    epoch: int = -1,
    last_fetched_epoch: int = -1,
    **fields: Any,
) -> FetchRequest:
    named = {"topic_id": topic} if isinstance(topic, bytes) else {"topic": topic}
    asked = [
        FetchPartition(
            partition=partition,
            current_leader_epoch=epoch,
            fetch_offset=offset,
            last_fetched_epoch=last_fetched_epoch,
            partition_max_bytes=partition_max_bytes,
        )
        for partition in partitions
    ]
    given = {"max_wait_ms": 0, "min_bytes": 1} | fields
    return FetchRequest(topics=[FetchTopic(partitions=asked, **named)], **given)


def fetch(wire: Any, topic: str, offset: int, *, version: int = 12, **fields: Any) -> Any:
    """Fetch from one partition; the partition's answer."""
    response = wire.ask(apis.FETCH, version, fetch_request(topic, offset, **fields))
    return response.responses[0].partitions[0]


def list_offset(wire: Any, topic: str, timestamp: int, *, version: int = 10) -> Any:
    request = ListOffsetsRequest(
        replica_id=-1,
        topics=[
            ListOffsetsTopic(
                name=topic,
                partitions=[ListOffsetsPartition(partition_index=0, timestamp=timestamp)],
            )
        ],
    )
    return wire.ask(apis.LIST_OFFSETS, version, request).topics[0].partitions[0]


def metadata(wire: Any, *names: str, version: int = 12, **fields: Any) -> Any:
    topics = [MetadataRequestTopic(name=name) for name in names] if names else None
    return wire.ask(apis.METADATA, version, MetadataRequest(topics=topics, **fields))


@pytest.fixture
def say() -> SimpleNamespace:
    """The words above, for tests: `say.produce(wire, "t", say.batch(b"x"))`."""
    return SimpleNamespace(
        batch=batch,
        create=create,
        produce_request=produce_request,
        produce=produce,
        fetch_request=fetch_request,
        fetch=fetch,
        list_offset=list_offset,
        metadata=metadata,
    )
