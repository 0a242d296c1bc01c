"""Batches, acks and retries of the producer against a scripted broker."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from chronik.client import cluster as cluster_module
from chronik.client.cluster import Cluster
from chronik.client.partitioner import partition_of
from chronik.client.producer import Producer
from chronik.model import TopicPartition
from chronik.protocol.batch import HEADER_SIZE, read_header
from chronik.protocol.errors import KafkaError
from chronik.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from chronik.protocol.messages.producer_ids import InitProducerIdResponse
from chronik.protocol.records import BatchBuilder, iter_records

Script = list[int | None]
Test = Callable[[Any, Cluster], Coroutine[Any, Any, None]]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "BACKOFF_S", 0.001)


class Log:
    """What was produced, and the error codes to answer with first; None hangs up."""

    def __init__(self, broker: type[Any], errors: Script) -> None:
        self.errors = errors
        self.batches: list[tuple[int, bytes]] = []
        self.producer_id = 100
        self.broker = broker(Produce=self.produce, InitProducerId=self.init)

    def init(self, request: Any) -> InitProducerIdResponse:
        self.producer_id += 1
        return InitProducerIdResponse(error_code=0, producer_id=self.producer_id, producer_epoch=0)

    def produce(self, request: ProduceRequest) -> ProduceResponse | None:
        ((topic,),) = (request.topic_data,)
        ((data,),) = (topic.partition_data,)
        error_code = self.errors.pop(0) if self.errors else 0
        self.batches.append((data.index, bytes(data.records)))  # type: ignore[arg-type]
        if error_code is None:
            self.broker.hang_up()
            return None
        if request.acks == 0:
            return None
        partition = PartitionProduceResponse(
            index=data.index, error_code=error_code, base_offset=-1 if error_code else 40
        )
        topic_response = TopicProduceResponse(
            topic_id=topic.topic_id, partition_responses=[partition]
        )
        return ProduceResponse(responses=[topic_response])

    def sequences(self) -> list[tuple[int, int]]:
        headers = [read_header(data) for _, data in self.batches]
        return [(header.producer_id, header.base_sequence) for header in headers]


def run(broker: type[Any], errors: Script, test: Callable[[Log, Cluster], Any]) -> None:
    async def connected() -> None:
        log = Log(broker, errors)
        async with log.broker, Cluster([log.broker.address], timeout_s=1.0) as cluster:
            await test(log, cluster)

    asyncio.run(connected())


def test_records_of_a_moment_leave_as_one_batch(fake_broker: Any) -> None:
    async def test(log: Log, cluster: Cluster) -> None:
        async with Producer(cluster) as producer:
            sent = [
                await producer.send("t", b"%d" % n, partition=1, headers=(("h", b"x"),))
                for n in range(3)
            ]
            await producer.flush()
            assert [(await delivery).offset for delivery in sent] == [40, 41, 42]
        ((index, data),) = log.batches
        assert index == 1
        assert [(r.value, r.headers) for r in iter_records(data)] == [
            (b"%d" % n, (("h", b"x"),)) for n in range(3)
        ]

    run(fake_broker, [], test)


def test_keys_choose_the_partition_and_the_rest_stays_together(fake_broker: Any) -> None:
    async def test(log: Log, cluster: Cluster) -> None:
        async with Producer(cluster) as producer:
            keyed = [await producer.send("t", b"", key=b"%d" % n) for n in range(10)]
            free = [await producer.send("t", b"") for _ in range(10)]
        chosen = [delivery.partition.partition for delivery in keyed]
        assert chosen == [partition_of(b"%d" % n, 2) for n in range(10)]
        assert len({delivery.partition.partition for delivery in free}) == 1

    run(fake_broker, [], test)


def test_full_batches_move_records_without_key_on(fake_broker: Any) -> None:
    async def test(log: Log, cluster: Cluster) -> None:
        async with Producer(cluster, batch_bytes_max=200) as producer:
            sent = [await producer.send("t", b"x" * 100) for _ in range(4)]
        assert {delivery.partition.partition for delivery in sent} == {0, 1}
        assert sum(len(list(iter_records(data))) for _, data in log.batches) == 4

    run(fake_broker, [], test)


def test_a_retry_repeats_the_batch_byte_for_byte(fake_broker: Any) -> None:
    async def test(log: Log, cluster: Cluster) -> None:
        async with Producer(cluster) as producer:
            for value in (b"a", b"b"):
                await producer.send("t", value, partition=0)
                await producer.flush()
        assert log.batches[0] == log.batches[1] == log.batches[2]
        assert log.sequences() == [(101, 0), (101, 0), (101, 0), (101, 1)]

    run(fake_broker, [6, None], test)


def test_a_batch_given_up_is_reported_and_the_next_one_has_a_new_id(fake_broker: Any) -> None:
    async def test(log: Log, cluster: Cluster) -> None:
        async with Producer(cluster) as producer:
            lost = await producer.send("t", b"a", partition=0)
            with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE: t-0"):
                await producer.flush()
            with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
                await lost
            await producer.send("t", b"b", partition=0)
            await producer.flush()
        assert log.sequences() == [(101, 0), (102, 0)]

    run(fake_broker, [10], test)


def test_a_broker_that_has_the_batch_already_is_believed(fake_broker: Any) -> None:
    async def test(log: Log, cluster: Cluster) -> None:
        async with Producer(cluster) as producer:
            delivery = await producer.send("t", b"a")
            assert (await delivery).offset == -1

    run(fake_broker, [46], test)


def test_without_acks_nobody_waits(fake_broker: Any) -> None:
    async def test(log: Log, cluster: Cluster) -> None:
        async with Producer(cluster, acks=0) as producer:
            delivery = await producer.send("t", b"a")
            assert (await delivery).offset == -1
        await cluster.refresh(())  # Comes after the record on the same connection.
        assert log.sequences() == [(-1, -1)]

    run(fake_broker, [], test)


def test_unknown_topics_and_partitions_are_refused(
    fake_broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "UNKNOWN_TOPIC_TIMEOUT_S", 0.01)

    async def test(log: Log, cluster: Cluster) -> None:
        async with Producer(cluster) as producer:
            with pytest.raises(KafkaError, match="there is no topic x"):
                await producer.send("x", b"")
            with pytest.raises(KafkaError, match="t has no partition 2, only 2"):
                await producer.send("t", b"", partition=2)

    run(fake_broker, [], test)


def test_closing_fails_what_was_not_flushed(fake_broker: Any) -> None:
    async def test(log: Log, cluster: Cluster) -> None:
        producer = Producer(cluster, linger_s=60)
        delivery = await producer.send("t", b"a")
        await producer.close()
        with pytest.raises(RuntimeError, match="closed"):
            await delivery
        assert log.batches == []

    run(fake_broker, [], test)


def test_batches_made_elsewhere_keep_their_place_among_records(fake_broker: Any) -> None:
    async def test(log: Log, cluster: Cluster) -> None:
        made = BatchBuilder()
        for value in (b"b", b"c"):
            made.append(7, None, value)
        payload = made.build()[HEADER_SIZE:]
        place = TopicPartition("t", 0)
        async with Producer(cluster, linger_s=10.0) as producer:
            await producer.send("t", b"a", partition=0)
            await producer.send_batch(place, BatchBuilder.encoded(payload, 2, 7))
            await producer.send_batch(place, BatchBuilder.encoded(payload, 2, 7))
            await producer.send("t", b"d", partition=0)
            await producer.flush()
            with pytest.raises(KafkaError, match="t has no partition 2"):
                await producer.send_batch(TopicPartition("t", 2), made)
        found = [[record.value for record in iter_records(data)] for _, data in log.batches]
        assert found == [[b"a"], [b"b", b"c"], [b"b", b"c"], [b"d"]]
        assert [sequence for _, sequence in log.sequences()] == [0, 1, 3, 5]
        assert {record.timestamp for record in iter_records(log.batches[1][1])} == {7}

    run(fake_broker, [], test)
