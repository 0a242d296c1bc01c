"""Clients with transactions, and a group that commits offsets, and what they were told.

Each transactional producer writes to several partitions, sends an offset along, and commits or
aborts, or goes away in the middle. At the end a reader of committed data finds each transaction
whole or not at all, with its offset; no acknowledged offset is lost or gone back; and nothing
stays open once the producers have begun anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from sim.world.data_clients import AGAIN_S, FAILURES, PLACES, Workload

from chronik.client.cluster import Cluster, check
from chronik.client.consumer import Consumer
from chronik.client.coordinators import Coordinators, KeyType
from chronik.client.link import ConnectionFailed
from chronik.client.offsets import LATEST, list_offsets
from chronik.model import TopicPartition
from chronik.protocol import apis, coordinator_apis
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.offset_commits import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)
from chronik.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from chronik.protocol.messages.producer_ids import InitProducerIdRequest
from chronik.protocol.messages.transactions import (
    EndTxnRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from chronik.protocol.records import build_batch

NAMES = ("one", "two")
GROUP = "offsets"
OFFSET_OF = "quick"  # the topic whose offsets are committed
TIMEOUT_MS = 2_000
TRANSACTION_MS = 20_000
INSISTS_S = 15.0  # longer than a house is without power
PATIENCE_S = 5.0  # for a coordinator that is busy with the last transaction
# The protocol of KIP-890, and the last version of OffsetFetch that has names.
VERSION = {apis.INIT_PRODUCER_ID.key: 5, coordinator_apis.OFFSET_FETCH.key: 9}
BUSY = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)


@dataclass
class Transaction:
    """What was written, and how its end was answered: True, False or not at all."""

    values: list[tuple[TopicPartition, bytes]] = field(default_factory=list)
    offset: int = -1
    is_committed: bool | None = False


@dataclass
class Offset:
    """What a group was told of its offset."""

    asked: int = -1
    acknowledged: int = -1


class Transactor:
    """One transactional producer."""

    def __init__(self, workload: Workload, name: str) -> None:
        self.name = name
        self.past: list[Transaction] = []
        self._workload = workload
        self._chance = workload.chance
        self._cluster: Cluster
        self._coordinators: Coordinators
        self._producer_id = -1
        self._epoch = -1
        self._sequences: dict[TopicPartition, int] = {}
        self._next_offset = 0

    @property
    def group_id(self) -> str:
        return f"with-{self.name}"

    @property
    def _stamp(self) -> dict[str, Any]:
        return {"producer_id": self._producer_id, "producer_epoch": self._epoch}

    async def run(self) -> None:
        """One transaction after the other."""
        await self.connect()
        while not self._workload.is_over:
            try:
                await self._transact()
            except FAILURES:
                self._epoch = -1  # It begins anew, which ends what is open.
                await asyncio.sleep(AGAIN_S)
            await self._workload.pause()
        await self._cluster.close()

    async def connect(self) -> None:
        self._cluster = await self._workload.connect()
        self._coordinators = Coordinators(self._cluster)

    async def _transact(self) -> None:
        if self._epoch < 0:
            await self.begin_anew()
        transaction = Transaction()
        self.past.append(transaction)
        for _ in range(self._chance.randint(1, 3)):
            await self._write(transaction, self._chance.choice(PLACES))
        if self._chance.random() < 0.5:
            await self._send_offset(transaction)
        fate = self._chance.random()
        if fate < 0.95:
            await self._end(transaction, committed=fate < 0.7)
        else:
            self._epoch = -1

    async def _ask(self, key_type: KeyType, key: str, request: Any, api: Any, code: Any) -> Any:
        """The coordinator's answer, once it is not busy."""
        for _ in range(int(PATIENCE_S / AGAIN_S)):
            answer = await self._coordinators.ask(
                key_type, key, request, api, code, version_max=VERSION.get(api.key)
            )
            if code(answer) not in BUSY:
                break
            await asyncio.sleep(AGAIN_S)
        check(code(answer), f"{self.name}: {api.name}")
        return answer

    async def _insist(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Ask again while nobody answers: a client waits for its commit for a minute."""
        give_up = asyncio.get_running_loop().time() + INSISTS_S
        while True:
            try:
                return await ask()
            except ConnectionFailed:
                if asyncio.get_running_loop().time() > give_up:
                    raise
                await asyncio.sleep(AGAIN_S)

    async def begin_anew(self) -> None:
        """Get an epoch of its own: whatever was open is aborted."""
        request = InitProducerIdRequest(
            transactional_id=self.name, transaction_timeout_ms=TRANSACTION_MS
        )
        answer = await self._ask(
            KeyType.TRANSACTION,
            self.name,
            request,
            apis.INIT_PRODUCER_ID,
            lambda answer: answer.error_code,
        )
        self._producer_id, self._epoch = answer.producer_id, answer.producer_epoch
        self._sequences = {}

    async def _write(self, transaction: Transaction, place: TopicPartition) -> None:
        value = self._workload.next_value(self.name)
        sequence = self._sequences.get(place, 0)
        data = build_batch(
            [self._workload.record(value)],
            base_sequence=sequence,
            transactional=True,
            **self._stamp,
        )
        produced = PartitionProduceData(index=place.partition, records=data)
        request = ProduceRequest(
            transactional_id=self.name,
            acks=-1,
            timeout_ms=TIMEOUT_MS,
            topic_data=[TopicProduceData(name=place.topic, partition_data=[produced])],
        )

        async def once() -> None:
            leader = await self._cluster.partition(place)
            link = await self._cluster.link(leader.leader_id)
            answer = await link.send(
                request, apis.PRODUCE, timeout_s=2 * TIMEOUT_MS / 1000, version_max=12
            )
            check(answer.responses[0].partition_responses[0].error_code, str(place))

        transaction.values.append((place, value))
        await self._cluster.retry(once, topics=(place.topic,), timeout_s=PATIENCE_S)
        self._sequences[place] = sequence + 1

    async def _send_offset(self, transaction: Transaction) -> None:
        self._next_offset += 1
        transaction.offset = self._next_offset
        each = TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=transaction.offset, committed_metadata=""
        )
        request = TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id=self.group_id,
            topics=[TxnOffsetCommitRequestTopic(name=OFFSET_OF, partitions=[each])],
            **self._stamp,
        )
        await self._ask(
            KeyType.GROUP,
            self.group_id,
            request,
            coordinator_apis.TXN_OFFSET_COMMIT,
            lambda answer: answer.topics[0].partitions[0].error_code,
        )

    async def _end(self, transaction: Transaction, *, committed: bool) -> None:
        request = EndTxnRequest(transactional_id=self.name, committed=committed, **self._stamp)
        if committed:
            transaction.is_committed = None
        answer = await self._insist(
            lambda: self._ask(
                KeyType.TRANSACTION,
                self.name,
                request,
                coordinator_apis.END_TXN,
                lambda answer: answer.error_code,
            )
        )
        transaction.is_committed = committed
        self._producer_id, self._epoch = answer.producer_id, answer.producer_epoch
        self._sequences = {}

    async def committed_offset(self, group_id: str) -> int:
        """What a group has committed, once no transaction is open there."""
        topics = [OffsetFetchRequestTopic(name=OFFSET_OF, partition_indexes=[0])]
        groups = [OffsetFetchRequestGroup(group_id=group_id, topics=topics)]
        answer = await self._ask(
            KeyType.GROUP,
            group_id,
            OffsetFetchRequest(groups=groups, require_stable=True),
            coordinator_apis.OFFSET_FETCH,
            lambda answer: (
                answer.groups[0].error_code or answer.groups[0].topics[0].partitions[0].error_code
            ),
        )
        return int(answer.groups[0].topics[0].partitions[0].committed_offset)


class Transactions:
    """All of these clients."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._ledger = workload.ledger
        self.transactors = [Transactor(workload, name) for name in NAMES]
        self.offset = Offset()
        self.is_checked = False

    @property
    def committed_count(self) -> int:
        """Transactions whose commit was acknowledged."""
        return sum(each.is_committed is True for one in self.transactors for each in one.past)

    @property
    def is_committing(self) -> bool:
        """Whether somebody waits for a commit."""
        return any(one.past and one.past[-1].is_committed is None for one in self.transactors)

    def start(self) -> None:
        """Let everybody begin."""
        for transactor in self.transactors:
            self._workload.run_writer(transactor.run())
        self._workload.run_writer(self._commit_offsets())

    async def _commit_offsets(self) -> None:
        """Commit offsets that grow, one after the other."""
        cluster = await self._workload.connect()
        coordinators = Coordinators(cluster)
        while not self._workload.is_over:
            self.offset.asked += 1
            offset = self.offset.asked
            each = OffsetCommitRequestPartition(
                partition_index=0, committed_offset=offset, committed_metadata=""
            )
            topics = [OffsetCommitRequestTopic(name=OFFSET_OF, partitions=[each])]
            try:
                answer = await coordinators.ask(
                    KeyType.GROUP,
                    GROUP,
                    OffsetCommitRequest(group_id=GROUP, topics=topics),
                    coordinator_apis.OFFSET_COMMIT,
                    lambda answer: answer.topics[0].partitions[0].error_code,
                    version_max=9,
                )
                if answer.topics[0].partitions[0].error_code == 0:
                    self.offset.acknowledged = offset
            except FAILURES:
                await asyncio.sleep(AGAIN_S)
            await self._workload.pause()
        await cluster.close()

    # What must be true.

    async def check(self) -> None:
        """With everything healed: what clients were told is what is there."""
        while not self.is_checked:
            try:
                await self._check()
                self.is_checked = True
            except FAILURES:
                await asyncio.sleep(AGAIN_S)

    async def _check(self) -> None:
        for transactor in self.transactors:
            await transactor.connect()
            await transactor.begin_anew()
        visible = await self._read_committed()
        for transactor in self.transactors:
            for transaction in transactor.past:
                self._check_transaction(transactor, transaction, visible)
            await self._check_sent_offset(transactor)
        found = await self.transactors[0].committed_offset(GROUP)
        known = self.offset
        self._ledger.require(
            known.acknowledged <= found <= known.asked,
            f"group {GROUP} has {found}, was told {known.acknowledged} of {known.asked}",
        )

    async def _read_committed(self) -> set[tuple[TopicPartition, bytes]]:
        cluster = await self._workload.connect()
        wanted = dict.fromkeys(PLACES, LATEST)
        ends = await list_offsets(cluster, wanted)
        stable = await list_offsets(cluster, wanted, read_committed=True)
        if stable != ends:
            raise KafkaError(ErrorCode.UNSTABLE_OFFSET_COMMIT)  # Markers are on their way.
        visible: set[tuple[TopicPartition, bytes]] = set()
        async with Consumer(
            cluster, dict.fromkeys(PLACES, 0), ends=ends, read_committed=True
        ) as consumer:
            async for place, record in consumer:
                value = bytes(record.value or b"")
                is_known = (place, value) in visible and not value.startswith(b"acks 1")
                self._ledger.require(not is_known, f"{value!r} is twice in {place}")
                visible.add((place, value))
        await cluster.close()
        return visible

    def _check_transaction(
        self,
        transactor: Transactor,
        transaction: Transaction,
        visible: set[tuple[TopicPartition, bytes]],
    ) -> None:
        there = [each in visible for each in transaction.values]
        if transaction.is_committed is None and there:
            transaction.is_committed = there[0]
        self._ledger.require(
            all(each is transaction.is_committed for each in there),
            f"{transactor.name}: {transaction}, of which is visible: {there}",
        )

    async def _check_sent_offset(self, transactor: Transactor) -> None:
        sent = [each.offset for each in transactor.past if each.is_committed]
        found = await transactor.committed_offset(transactor.group_id)
        self._ledger.require(
            found == max(sent, default=-1), f"{transactor.group_id} has {found} of {sent}"
        )
