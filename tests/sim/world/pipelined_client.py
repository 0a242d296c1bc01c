"""An idempotent producer with several batches in flight, as librdkafka has them.

When one of them fails it waits for the answers to all the others, and sends again from the first
that is not acknowledged. So it never skips a sequence, and must never hear that it did: on
OUT_OF_ORDER_SEQUENCE_NUMBER librdkafka begins a new epoch, or gives up, and on the way may store
again what is stored.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, NamedTuple

from sim.world.data_clients import AGAIN_S, FAILURES, PLACES, TIMEOUT_S, Workload

from chronik.client.cluster import Cluster, check, error_code
from chronik.model import TopicPartition
from chronik.protocol import apis
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from chronik.protocol.messages.producer_ids import InitProducerIdRequest
from chronik.protocol.records import Record, build_batch

IN_FLIGHT = 5
SPREAD_S = 0.03  # between two of them, at most
VERSION = 9
WHO = "acks -1"  # so that all of it must be there once
NEVER = (
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.INVALID_PRODUCER_EPOCH,
)


class _Sent(NamedTuple):
    sequence: int
    record: Record

    @property
    def value(self) -> bytes:
        return bytes(self.record.value or b"")


class Pipelined:
    """Writes to one partition."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._chance = workload.chance
        self._place: TopicPartition = self._chance.choice(PLACES)
        self._cluster: Cluster
        self._producer_id = -1
        self._epoch = -1
        self._leader_epoch = -1
        self._next_sequence = 0
        self._unacknowledged: deque[_Sent] = deque()

    async def run(self) -> None:
        """One volley after the other; none is left without an answer."""
        self._cluster = await self._workload.connect()
        while not self._workload.is_over or self._unacknowledged:
            try:
                if self._producer_id < 0:
                    await self._begin()
                await self._volley()
            except FAILURES:
                self._cluster.forget([self._place.topic])
                await asyncio.sleep(AGAIN_S)
            await self._workload.pause()
        await self._cluster.close()

    async def _begin(self) -> None:
        link = await self._cluster.any_link()
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
        answer = await link.send(request, apis.INIT_PRODUCER_ID, timeout_s=TIMEOUT_S)
        check(answer.error_code, "a producer id")
        self._producer_id, self._epoch = answer.producer_id, answer.producer_epoch

    async def _volley(self) -> None:
        waiting = self._unacknowledged
        while len(waiting) < IN_FLIGHT and not self._workload.is_over:
            record = self._workload.record(self._workload.next_value(WHO))
            waiting.append(_Sent(self._next_sequence, record))
            self._next_sequence += 1
        leader = await self._cluster.partition(self._place)
        if leader.leader_epoch < self._leader_epoch:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)  # Told by somebody who is behind.
        self._leader_epoch = leader.leader_epoch
        link = await self._cluster.link(leader.leader_id)
        tasks = []
        for sent in tuple(waiting):
            asking = link.send(
                self._request(sent), apis.PRODUCE, timeout_s=2 * TIMEOUT_S, version_max=VERSION
            )
            tasks.append(asyncio.create_task(asking, name="in-flight"))
            await asyncio.sleep(self._chance.uniform(0.0, SPREAD_S))
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        for sent, answer in zip(tuple(waiting), answers, strict=True):
            if not isinstance(answer, BaseException):
                self._judge(sent, _partition(answer).error_code)
        self._acknowledge(answers)

    def _request(self, sent: _Sent) -> ProduceRequest:
        data = build_batch(
            [sent.record],
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=sent.sequence,
        )
        produced = PartitionProduceData(index=self._place.partition, records=data)
        return ProduceRequest(
            acks=-1,
            timeout_ms=int(TIMEOUT_S * 1000),
            topic_data=[TopicProduceData(name=self._place.topic, partition_data=[produced])],
        )

    def _judge(self, sent: _Sent, code: int) -> None:
        """Whatever goes wrong, its sequences are right."""
        place = self._workload.ledger.find(*self._place)
        self._workload.ledger.require(
            code not in NEVER or place.is_void, f"{place}: {sent} is told {error_code(code).name}"
        )
        if code in NEVER:
            self._producer_id = -1  # What it wrote is lost, and it with that.
            self._next_sequence = 0
            self._unacknowledged.clear()
            raise KafkaError(error_code(code))

    def _acknowledge(self, answers: list[Any]) -> None:
        """Whoever is acknowledged, is so with all before it."""
        stored = [
            number
            for number, answer in enumerate(answers)
            if not isinstance(answer, BaseException) and not _partition(answer).error_code
        ]
        for number in range(max(stored, default=-1) + 1):
            sent = self._unacknowledged.popleft()
            if number in stored:
                offset = _partition(answers[number]).base_offset
                self._workload.acked[self._place].append((offset, sent.value))
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            check(_partition(answer).error_code, str(self._place))


def _partition(answer: Any) -> Any:
    return answer.responses[0].partition_responses[0]
