"""Clients that create, change and delete topics at any node, and remember what they were told.

They ask the handlers of a broker, as a connection would. What was acknowledged must be true at the
end on every node, what was certainly refused must not be, and where the answer is "unknown", or the
asked process died, both are right. A node that has acknowledged a change shows it at once.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from raft_promises import Broken, require
from sim.world.cluster import Cluster, Process

from chronik.metadata.image import Image
from chronik.protocol import apis
from chronik.protocol.codec import decode, encode
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from chronik.protocol.messages.producer_ids import InitProducerIdRequest
from chronik.protocol.messages.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)
from chronik.protocol.schema import Message
from chronik.server.context import Context
from chronik.server.dispatch import HANDLERS

VERSIONS = {apis.DELETE_TOPICS.key: 5, apis.METADATA.key: 9}
TIMEOUT_MS = 20_000
# Beyond the request's own timeout: what a paused or busy process may add.
ANSWER_S = 40.0


class Clients:
    """All clients of a cluster."""

    def __init__(self, cluster: Cluster, chance: random.Random) -> None:
        self.cluster = cluster
        self.chance = chance
        self.there: set[str] = set()
        self.gone: set[str] = set()
        self.unknown: set[str] = set()  # asked for, and neither acknowledged nor refused
        self.answers: Counter[str] = Counter()
        self._producer_ids: set[int] = set()
        self._waiting: dict[int, tuple[Process, float]] = {}
        self._number = 0

    def act(self) -> bool:
        """Somebody asks some node for something; whether there was one to ask."""
        serving = self.cluster.serving
        if not serving:
            return False
        actions = [self._create, self._auto_create, self._delete, self._list, self._producer_id]
        action = self.chance.choices(actions, [10, 3, 3, 3, 1])[0]
        process = self.chance.choice(serving)
        self._number += 1
        process.do(lambda: process.loop.create_task(self._run(process, self._number, action)))
        return True

    async def _run(
        self,
        process: Process,
        number: int,
        action: Callable[[Process, int], Coroutine[Any, Any, None]],
    ) -> None:
        self._waiting[number] = process, self.cluster.scheduler.now
        try:
            await action(process, number)
        except Broken as broken:
            self.cluster.watch.failed(process, {"exception": broken})
        finally:
            self._waiting.pop(number, None)

    async def _ask(self, process: Process, api: apis.Api, request: Message) -> Any:
        version = VERSIONS.get(api.key, api.versions.last)
        context = Context(process.broker.node, version, None, "sim")
        answer = HANDLERS[api.key](context, request)
        if not isinstance(answer, Message):
            answer = await answer
        flexible = api.is_flexible(version)
        return decode(api.response, encode(answer, version, flexible), version, flexible)

    # What they do.

    async def _create(self, process: Process, number: int) -> None:
        name = f"topic-{number}"
        topic = CreatableTopic(
            name=name,
            num_partitions=self.chance.choice([1, 1, 3]),
            replication_factor=self.chance.choice([1, 3, -1]),
            assignments=(),
            configs=(),
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=TIMEOUT_MS)
        self.unknown.add(name)
        response = await self._ask(process, apis.CREATE_TOPICS, request)
        self._created(process, name, ErrorCode(response.topics[0].error_code))

    async def _auto_create(self, process: Process, number: int) -> None:
        name = f"auto-{number}"
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=True
        )
        self.unknown.add(name)
        response = await self._ask(process, apis.METADATA, request)
        self._check_metadata(process, response)
        code = ErrorCode(response.topics[0].error_code)
        self._created(process, name, code)

    def _created(self, process: Process, name: str, code: ErrorCode) -> None:
        self.answers[code.name] += 1
        require(code is not ErrorCode.TOPIC_ALREADY_EXISTS, f"{name} existed before its creation")
        is_there = name in process.metadata.image.topics
        if code is ErrorCode.NONE or (is_there and code is ErrorCode.LEADER_NOT_AVAILABLE):
            require(is_there, f"node {process.node_id} created {name} and does not show it")
            self.unknown.discard(name)
            self.there.add(name)
        elif code is not ErrorCode.REQUEST_TIMED_OUT and not name.startswith("auto-"):
            self.unknown.discard(name)
            self.gone.add(name)

    async def _delete(self, process: Process, number: int) -> None:
        if not self.there:
            return
        name = self.chance.choice(sorted(self.there))
        self.there.discard(name)
        self.unknown.add(name)
        was_there = name in process.metadata.image.topics
        request = DeleteTopicsRequest(topic_names=[name], timeout_ms=TIMEOUT_MS)
        response = await self._ask(process, apis.DELETE_TOPICS, request)
        code = ErrorCode(response.responses[0].error_code)
        self.answers[code.name] += 1
        is_unknown = code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        require(not (was_there and is_unknown), f"{name} was gone before its deletion")
        if code is ErrorCode.NONE:
            is_there = name in process.metadata.image.topics
            require(not is_there, f"node {process.node_id} deleted {name} and still shows it")
            self.unknown.discard(name)
            self.gone.add(name)

    async def _list(self, process: Process, number: int) -> None:
        response = await self._ask(process, apis.METADATA, MetadataRequest(topics=None))
        self._check_metadata(process, response)

    def _check_metadata(self, process: Process, response: Any) -> None:
        require(bool(response.brokers), f"node {process.node_id} answered with no broker")

    async def _producer_id(self, process: Process, number: int) -> None:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
        try:
            response = await self._ask(process, apis.INIT_PRODUCER_ID, request)
        except KafkaError:
            return
        if response.error_code == ErrorCode.NONE:
            given = response.producer_id
            require(given not in self._producer_ids, f"producer id {given} was given twice")
            self._producer_ids.add(given)

    # What must be true.

    @property
    def is_waiting(self) -> bool:
        """Whether somebody has no answer yet."""
        return any(not process.loop.is_dead for process, _ in self._waiting.values())

    def check_answers(self) -> None:
        """Nobody waits for ever at a process that lives."""
        for number, (process, since) in list(self._waiting.items()):
            if process.loop.is_dead:
                del self._waiting[number]
            elif not process.loop.is_paused:
                waited_s = self.cluster.scheduler.now - since
                require(waited_s < ANSWER_S, f"node {process.node_id} does not answer")

    def check_image(self, node_id: int, image: Image) -> None:
        """What was acknowledged is there."""
        lost = self.there - set(image.topics)
        require(not lost, f"acknowledged topics are not on node {node_id}: {sorted(lost)}")
        back = self.gone & set(image.topics)
        require(not back, f"topics that are gone are on node {node_id}: {sorted(back)}")
