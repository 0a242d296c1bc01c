"""Idle partitions cost no descriptor and little memory, with records in them or without.

Measured in the process of both broker and client, with everything counted: metadata, the partition
and its log. Each partition is touched, so that its objects exist.
"""

import gc
import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chronik.protocol import apis
from chronik.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from chronik.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from chronik.storage import disk
from chronik.testing import Broker

PARTITIONS = 100  # of each topic
BYTES_MAX = 2048  # for a partition: ten thousand of them are 20 MB
DESCRIPTORS_MAX = 20  # a node without partitions has a dozen: sockets, the lock, the metadata log


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def measured() -> tuple[int, int]:
    """Bytes of Python objects, and open descriptors."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0], len(os.listdir("/proc/self/fd"))


def names(count: int) -> list[str]:
    return [f"topic-{number:03d}" for number in range(count)]


def touch_all(wire: Any, topic_count: int, end_offset: int) -> None:
    """Ask for the end of every partition, a topic at a time, as a consumer that starts."""
    partitions = [ListOffsetsPartition(partition_index=n, timestamp=-1) for n in range(PARTITIONS)]
    for name in names(topic_count):
        topic = ListOffsetsTopic(name=name, partitions=partitions)
        request = ListOffsetsRequest(replica_id=-1, topics=[topic])
        answers = wire.ask(apis.LIST_OFFSETS, 10, request).topics[0].partitions
        assert {(each.error_code, each.offset) for each in answers} == {(0, end_offset)}


def produce_all(wire: Any, topic_count: int, batch: bytes) -> None:
    data = [PartitionProduceData(index=n, records=batch) for n in range(PARTITIONS)]
    for name in names(topic_count):
        topic = TopicProduceData(name=name, partition_data=data)
        request = ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=[topic])
        answers = wire.ask(apis.PRODUCE, 11, request).responses[0].partition_responses
        assert {each.error_code for each in answers} == {0}


def check_cost(
    before: tuple[int, int], partition_count: int, descriptors_max: int = DESCRIPTORS_MAX
) -> None:
    after = measured()
    assert after[1] - before[1] <= descriptors_max
    assert (after[0] - before[0]) / partition_count <= BYTES_MAX


def used_count(broker: Broker) -> int:
    assert broker.node is not None
    return sum(1 for _ in broker.node.replicas.used())


def warm_up(say: Any, connect: Any) -> None:
    """Let everything be imported and compiled that costs memory once."""
    with Broker() as broker:
        wire = connect(broker)
        say.create(wire, "topic-000", partitions=PARTITIONS)
        produce_all(wire, 1, say.batch(b"x"))
        touch_all(wire, 1, 1)


def test_ten_thousand_empty_partitions(
    tmp_path: Path, connect: Any, say: Any, traced: None
) -> None:
    warm_up(say, connect)
    with Broker(data_dir=str(tmp_path)) as broker:
        wire = connect(broker)
        before = measured()
        for name in names(100):
            say.create(wire, name, partitions=PARTITIONS)
        touch_all(wire, 100, 0)
        assert used_count(broker) == 10_000
        check_cost(before, 10_000)
    assert not (tmp_path / "topics").exists()
    warm_up(say, connect)
    before = measured()
    with Broker(data_dir=str(tmp_path)) as broker:
        touch_all(connect(broker), 100, 0)
        assert used_count(broker) == 10_000
        check_cost(before, 10_000)


def test_partitions_that_have_records(tmp_path: Path, connect: Any, say: Any, traced: None) -> None:
    warm_up(say, connect)
    with Broker(data_dir=str(tmp_path)) as broker:
        wire = connect(broker)
        before = measured()
        for name in names(10):
            say.create(wire, name, partitions=PARTITIONS)
        produce_all(wire, 10, say.batch(b"x"))
        # What was just written to may stay open, within the limit for all.
        check_cost(before, 1_000, disk.OPEN_FILES_MAX + DESCRIPTORS_MAX)
    with Broker(data_dir=str(tmp_path)) as broker:
        wire = connect(broker)
        before = measured()
        touch_all(wire, 10, 1)
        assert used_count(broker) == 1_000
        check_cost(before, 1_000)
