"""Admin requests against a scripted broker."""

import asyncio
from typing import Any

import pytest

from chronik.client import cluster as cluster_module
from chronik.client.admin import Admin
from chronik.client.cluster import Cluster
from chronik.client.link import ConnectionFailed
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.topics import (
    CreatableTopicResult,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsResponse,
)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "BACKOFF_S", 0.001)


def created(code: ErrorCode, message: str | None = None) -> CreateTopicsResponse:
    result = CreatableTopicResult(
        name="t", error_code=code, error_message=message, num_partitions=3, replication_factor=1
    )
    return CreateTopicsResponse(topics=[result])


def test_a_request_to_the_wrong_controller_is_sent_again(fake_broker: Any) -> None:
    answers = [created(ErrorCode.NOT_CONTROLLER), created(ErrorCode.NONE)]

    async def test() -> None:
        async with fake_broker(CreateTopics=lambda _: answers.pop(0)) as broker:
            async with Cluster([broker.address]) as cluster:
                result = await Admin(cluster).create_topic("t", configs={"a": "b"})
                assert result.num_partitions == 3
            first, second = broker.asked("CreateTopics")
            assert first == second
            assert (first.topics[0].num_partitions, first.topics[0].configs[0].value) == (-1, "b")
            assert len(broker.asked("Metadata")) == 2

    asyncio.run(test())


def test_a_refusal_is_told_in_the_brokers_words(fake_broker: Any) -> None:
    answer = created(ErrorCode.TOPIC_ALREADY_EXISTS, "it is there")

    async def test() -> None:
        async with (
            fake_broker(CreateTopics=lambda _: answer) as broker,
            Cluster([broker.address]) as cluster,
        ):
            with pytest.raises(KafkaError, match="TOPIC_ALREADY_EXISTS: topic t: it is there"):
                await Admin(cluster).create_topic("t")

    asyncio.run(test())


def test_a_creation_without_answer_is_not_repeated(fake_broker: Any) -> None:
    async def test() -> None:
        async with fake_broker(CreateTopics=lambda _: broker.hang_up()) as broker:
            async with Cluster([broker.address]) as cluster:
                with pytest.raises(ConnectionFailed):
                    await Admin(cluster).create_topic("t")
            assert len(broker.asked("CreateTopics")) == 1

    asyncio.run(test())


def test_deleting_says_what_was_not_there(fake_broker: Any) -> None:
    def delete(request: Any) -> DeleteTopicsResponse:
        codes = {"t": 0, "x": 3}
        return DeleteTopicsResponse(
            responses=[
                DeletableTopicResult(name=topic.name, error_code=codes[topic.name])
                for topic in request.topics
            ]
        )

    async def test() -> None:
        async with (
            fake_broker(DeleteTopics=delete) as broker,
            Cluster([broker.address]) as cluster,
        ):
            found = await Admin(cluster).delete_topics(["t", "x"])
        assert found["t"] is None
        assert found["x"].code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert found["x"].message == "there is no topic x"

    asyncio.run(test())


def test_deleting_says_of_each_topic_why_it_stays(fake_broker: Any) -> None:
    answers = iter([{"a": 0, "b": 41, "c": 73}, {"b": 0}])  # NOT_CONTROLLER, ..._DISABLED

    def delete(request: Any) -> DeleteTopicsResponse:
        codes = next(answers)
        assert {topic.name for topic in request.topics} == codes.keys()
        return DeleteTopicsResponse(
            responses=[
                DeletableTopicResult(name=name, error_code=code, error_message="no")
                for name, code in codes.items()
            ]
        )

    async def test() -> None:
        async with (
            fake_broker(DeleteTopics=delete) as broker,
            Cluster([broker.address]) as cluster,
        ):
            found = await Admin(cluster).delete_topics(["a", "b", "c"])
        assert (found["a"], found["b"]) == (None, None)
        assert str(found["c"]) == "TOPIC_DELETION_DISABLED: topic c: no"

    asyncio.run(test())


def test_describing_an_unknown_topic_is_an_error(fake_broker: Any) -> None:
    async def test() -> None:
        async with fake_broker() as broker, Cluster([broker.address]) as cluster:
            assert [topic.name for topic in await Admin(cluster).topics()] == ["t"]
            with pytest.raises(KafkaError, match="there is no topic x"):
                await Admin(cluster).topics(["x"])

    asyncio.run(test())
