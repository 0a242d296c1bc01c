"""Positions, ends and errors of the consumer against a scripted broker."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from chronik.client import consumer as consumer_module
from chronik.client.cluster import Cluster
from chronik.client.consumer import Consumer
from chronik.client.offsets import EARLIEST
from chronik.model import TopicPartition
from chronik.protocol.errors import KafkaError
from chronik.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from chronik.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from chronik.protocol.records import Record, build_batch

FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_module, "BACKOFF_S", 0.001)


def batch(first: int, last: int, control: bool = False) -> bytes:
    records = [Record(offset, 1, None, b"%d" % offset) for offset in range(first, last + 1)]
    return build_batch(records, base_offset=first, control=control)


class Log:
    """Partitions as lists of batches by their last offset, and errors to answer with first."""

    def __init__(
        self, broker: type[Any], batches: dict[int, list[tuple[int, bytes]]], errors: list[int]
    ) -> None:
        self.batches = batches
        self.errors = errors
        self.start = 0
        self.broker = broker(Fetch=self.fetch, ListOffsets=self.list_offsets)

    def fetch(self, request: FetchRequest) -> FetchResponse:
        (topic,) = request.topics
        partitions = []
        for asked in topic.partitions:
            error_code = self.errors.pop(0) if self.errors else 0
            if not error_code and asked.fetch_offset < self.start:
                error_code = 1
            found = [
                data
                for last, data in self.batches.get(asked.partition, [])
                if last >= asked.fetch_offset and not error_code
            ]
            partitions.append(
                PartitionData(
                    partition_index=asked.partition,
                    error_code=error_code,
                    high_watermark=100,
                    records=found[:1],
                )
            )
        return FetchResponse(
            responses=[FetchableTopicResponse(topic_id=topic.topic_id, partitions=partitions)]
        )

    def list_offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        (topic,) = request.topics
        found = [
            ListOffsetsPartitionResponse(
                partition_index=asked.partition_index, error_code=0, offset=self.start
            )
            for asked in topic.partitions
        ]
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=found)])


def run(log: Log, test: Callable[[Cluster], Any]) -> None:
    async def connected() -> None:
        async with log.broker, Cluster([log.broker.address], timeout_s=0.5) as cluster:
            await test(cluster)

    asyncio.run(connected())


async def values(consumer: Consumer) -> list[tuple[int, int]]:
    async with consumer:
        return [(place.partition, record.offset) async for place, record in consumer]


def test_records_from_a_position_inside_a_batch_to_an_end_inside_another(fake_broker: Any) -> None:
    log = Log(fake_broker, {0: [(4, batch(0, 4)), (9, batch(5, 9))]}, [])

    async def test(cluster: Cluster) -> None:
        consumer = Consumer(cluster, {FIRST: 3}, ends={FIRST: 7})
        assert await values(consumer) == [(0, 3), (0, 4), (0, 5), (0, 6)]
        assert consumer.positions == {}

    run(log, test)


def test_partitions_take_turns_and_end_for_themselves(fake_broker: Any) -> None:
    log = Log(fake_broker, {0: [(1, batch(0, 1))], 1: [(0, batch(0, 0)), (1, batch(1, 1))]}, [])

    async def test(cluster: Cluster) -> None:
        consumer = Consumer(cluster, {FIRST: 0, SECOND: 0}, ends={FIRST: 2, SECOND: 2})
        assert sorted(await values(consumer)) == [(0, 0), (0, 1), (1, 0), (1, 1)]

    run(log, test)


def test_control_batches_only_move_the_position(fake_broker: Any) -> None:
    log = Log(fake_broker, {0: [(0, batch(0, 0, control=True)), (1, batch(1, 1))]}, [])

    async def test(cluster: Cluster) -> None:
        assert await values(Consumer(cluster, {FIRST: 0}, ends={FIRST: 2})) == [(0, 1)]

    run(log, test)


def test_a_moved_leader_is_looked_up_again(fake_broker: Any) -> None:
    log = Log(fake_broker, {0: [(0, batch(0, 0))]}, [6, 74])

    async def test(cluster: Cluster) -> None:
        assert await values(Consumer(cluster, {FIRST: 0}, ends={FIRST: 1})) == [(0, 0)]
        assert len(log.broker.asked("Metadata")) == 4

    run(log, test)


def test_a_lost_connection_is_opened_again(fake_broker: Any) -> None:
    log = Log(fake_broker, {0: [(0, batch(0, 0)), (1, batch(1, 1))]}, [])

    async def test(cluster: Cluster) -> None:
        async with Consumer(cluster, {FIRST: 0}) as consumer:
            assert len((await consumer.poll())[0].records) == 1
            log.broker.hang_up()
            assert (await consumer.poll())[0].records[0].offset == 1

    run(log, test)


def test_what_does_not_pass_is_raised(fake_broker: Any) -> None:
    async def test(cluster: Cluster) -> None:
        with pytest.raises(KafkaError, match="TOPIC_AUTHORIZATION_FAILED: t-0 at offset 0"):
            await values(Consumer(cluster, {FIRST: 0}))

    run(Log(fake_broker, {}, [29]), test)


def test_an_offset_out_of_range_is_an_error_or_reset(fake_broker: Any) -> None:
    log = Log(fake_broker, {0: [(5, batch(5, 5))]}, [])
    log.start = 5

    async def test(cluster: Cluster) -> None:
        with pytest.raises(KafkaError, match="OFFSET_OUT_OF_RANGE: t-0 at offset 2"):
            await values(Consumer(cluster, {FIRST: 2}, ends={FIRST: 6}))
        consumer = Consumer(cluster, {FIRST: 2}, ends={FIRST: 6}, reset=EARLIEST)
        assert await values(consumer) == [(0, 5)]

    run(log, test)


def test_records_are_returned_even_if_another_partition_fails(fake_broker: Any) -> None:
    log = Log(fake_broker, {1: [(0, batch(0, 0))]}, [29, 0])

    async def test(cluster: Cluster) -> None:
        async with Consumer(cluster, {FIRST: 0, SECOND: 0}) as consumer:
            (chunk,) = await consumer.poll()
            assert chunk.partition == SECOND
            with pytest.raises(KafkaError, match="TOPIC_AUTHORIZATION_FAILED"):
                await consumer.poll()

    run(log, test)
