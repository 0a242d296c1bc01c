"""Metadata, links and retries against a scripted broker."""

import asyncio
from typing import Any

import pytest

from chronik.client import cluster as cluster_module
from chronik.client.cluster import Cluster
from chronik.client.link import Address, ConnectionFailed, Untrusted
from chronik.model import TopicPartition
from chronik.protocol.errors import ErrorCode, KafkaError


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "BACKOFF_S", 0.001)
    monkeypatch.setattr(cluster_module, "UNKNOWN_TOPIC_TIMEOUT_S", 0.01)


def test_an_unreachable_bootstrap_address_is_passed_over(fake_broker: Any) -> None:
    async def test() -> None:
        async with fake_broker() as broker:
            nobody = Address("127.0.0.1", 1)
            async with Cluster([nobody, broker.address]) as cluster:
                assert cluster.brokers == {1: broker.address}
            with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1:1: connection refused"):
                await Cluster([nobody]).refresh(())

    asyncio.run(test())


def test_one_link_for_all_who_ask_at_once(fake_broker: Any) -> None:
    async def test() -> None:
        async with fake_broker() as broker, Cluster([broker.address]) as cluster:
            links = await asyncio.gather(*(cluster.link(1) for _ in range(5)))
            assert len(set(links)) == 1
            assert broker.connection_count == 1
            broker.hang_up()
            with pytest.raises(ConnectionFailed):
                await cluster.refresh(())
            assert (await cluster.link(1)).is_open

    asyncio.run(test())


def test_metadata_is_cached_until_it_proves_wrong(fake_broker: Any) -> None:
    async def test() -> None:
        async with fake_broker() as broker, Cluster([broker.address]) as cluster:
            for _ in range(3):
                assert (await cluster.partition(TopicPartition("t", 1))).leader_id == 1
            assert len(broker.asked("Metadata")) == 2  # the first is the bootstrap's
            broker.leader_epoch = 5
            cluster.forget(["t"])
            assert (await cluster.partition(TopicPartition("t", 1))).leader_epoch == 5
            with pytest.raises(KafkaError, match="t has no partition 9, only 2"):
                await cluster.partition(TopicPartition("t", 9))

    asyncio.run(test())


def test_retry_goes_on_while_the_reason_may_pass(fake_broker: Any) -> None:
    async def test() -> None:
        async with fake_broker() as broker, Cluster([broker.address]) as cluster:
            failures = [
                KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER),
                ConnectionFailed(broker.address, "gone"),
                KafkaError(ErrorCode.INVALID_CONFIG),
            ]

            async def work() -> None:
                raise failures.pop(0)

            with pytest.raises(KafkaError, match="INVALID_CONFIG"):
                await cluster.retry(work)
            assert failures == []

    asyncio.run(test())


def test_retry_does_not_wait_for_trust(fake_broker: Any) -> None:
    async def test() -> None:
        async with fake_broker() as broker, Cluster([broker.address]) as cluster:
            failures = [Untrusted(broker.address, "forged"), AssertionError("tried again")]

            async def work() -> None:
                raise failures.pop(0)

            with pytest.raises(Untrusted, match="forged"):
                await cluster.retry(work)

    asyncio.run(test())


def test_retry_ends_with_the_last_error(fake_broker: Any) -> None:
    async def test() -> None:
        async with fake_broker() as broker, Cluster([broker.address]) as cluster:
            with pytest.raises(KafkaError, match="there is no topic nosuch"):
                await cluster.retry(lambda: cluster.topic("nosuch"), topics=["nosuch"])
            assert len(broker.asked("Metadata")) > 2

            async def work() -> None:
                raise KafkaError(ErrorCode.NOT_CONTROLLER)

            with pytest.raises(KafkaError, match="NOT_CONTROLLER"):
                await cluster.retry(work, timeout_s=0.005)

    asyncio.run(test())
