"""A producer's transactions: records and a group's offsets, all of them or none.

    transaction = Transaction(cluster, "copy-orders-3")
    await transaction.open()            # whoever else has this id is shut out from here on
    async with Producer(cluster, transaction=transaction) as producer:
        await producer.send("orders", b"value")
        await producer.flush()
    await transaction.commit_offsets("copy-orders", {TopicPartition("source", 3): 42})
    await transaction.end(commit=True)

`open` returns once what the id had under way before is committed or aborted. An `end` whose answer
got lost is asked again: the coordinator answers the same. If that fails too, nobody here knows how
it ended; who opens the id next finds it decided.

One transaction at a time, and no epoch of its own for each: the versions before KIP-890 are spoken,
which every broker with transactions knows.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from chronik.client.cluster import Cluster, check
from chronik.client.coordinators import Coordinators, KeyType
from chronik.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition
from chronik.protocol.api import Api
from chronik.protocol.apis import INIT_PRODUCER_ID
from chronik.protocol.coordinator_apis import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    TXN_OFFSET_COMMIT,
)
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.producer_ids import InitProducerIdRequest, InitProducerIdResponse
from chronik.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    EndTxnResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from chronik.protocol.schema import Message

TIMEOUT_MS: Final = 60_000  # Kafka's own: the coordinator aborts what takes longer
# The last versions before the epoch changes with every transaction (KIP-890).
PRODUCE_VERSION_MAX: Final = 11
_ADD_PARTITIONS_VERSION_MAX: Final = 3  # later ones are for brokers
_ADD_OFFSETS_VERSION_MAX: Final = 3
_OFFSET_COMMIT_VERSION_MAX: Final = 4
_END_VERSION_MAX: Final = 4
# The last transaction of the id is still being ended. Anything else was refused for good.
_SOON: Final = frozenset({ErrorCode.CONCURRENT_TRANSACTIONS})


class ProducerIdentity(NamedTuple):
    """Who produces, in the eyes of a partition."""

    producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_PRODUCER_EPOCH


class Transaction:
    """The transactions of one transactional id, one after the other."""

    def __init__(
        self, cluster: Cluster, transactional_id: str, *, timeout_ms: int = TIMEOUT_MS
    ) -> None:
        self.transactional_id = transactional_id
        self.identity = ProducerIdentity()
        self._cluster = cluster
        self._coordinators = Coordinators(cluster)
        self._timeout_ms = timeout_ms
        self._added: set[TopicPartition] = set()
        self._adding = asyncio.Lock()
        self._has_offsets = False

    async def open(self) -> None:
        """Become the one producer of this id; what another had open is aborted."""
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id, transaction_timeout_ms=self._timeout_ms
        )

        async def ask() -> InitProducerIdResponse:
            response: InitProducerIdResponse = await self._ask(
                request, INIT_PRODUCER_ID, lambda answer: answer.error_code
            )
            self._check(response.error_code)
            return response

        opened = await self._patiently(ask)
        self.identity = ProducerIdentity(opened.producer_id, opened.producer_epoch)

    async def add(self, partition: TopicPartition) -> None:
        """Make a partition part of the transaction, before anything is written to it."""
        async with self._adding:
            if partition not in self._added:
                await self._patiently(lambda: self._add(partition))
                self._added.add(partition)

    async def _add(self, partition: TopicPartition) -> None:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.identity.producer_id,
            v3_and_below_producer_epoch=self.identity.epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=partition.topic, partitions=[partition.partition])
            ],
        )
        response: AddPartitionsToTxnResponse = await self._ask(
            request, ADD_PARTITIONS_TO_TXN, _added_code, version_max=_ADD_PARTITIONS_VERSION_MAX
        )
        self._check(_added_code(response), f", partition {partition}")

    async def commit_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Let a group's offsets be committed with the transaction."""
        await self._patiently(lambda: self._add_group(group_id))
        self._has_offsets = True
        by_topic: dict[str, list[TxnOffsetCommitRequestPartition]] = {}
        for (name, index), offset in offsets.items():
            by_topic.setdefault(name, []).append(
                TxnOffsetCommitRequestPartition(
                    partition_index=index, committed_offset=offset, committed_metadata=""
                )
            )
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            topics=[
                TxnOffsetCommitRequestTopic(name=name, partitions=partitions)
                for name, partitions in by_topic.items()
            ],
        )

        async def ask() -> None:
            response: TxnOffsetCommitResponse = await self._coordinators.ask(
                KeyType.GROUP,
                group_id,
                request,
                TXN_OFFSET_COMMIT,
                _offset_code,
                version_max=_OFFSET_COMMIT_VERSION_MAX,
            )
            self._check(_offset_code(response), f", group {group_id}")

        await self._cluster.retry(ask)

    async def _add_group(self, group_id: str) -> None:
        request = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            group_id=group_id,
        )
        response: AddOffsetsToTxnResponse = await self._ask(
            request,
            ADD_OFFSETS_TO_TXN,
            lambda answer: answer.error_code,
            version_max=_ADD_OFFSETS_VERSION_MAX,
        )
        self._check(response.error_code, f", group {group_id}")

    async def end(self, *, commit: bool) -> None:
        """Commit or abort; nothing is asked of a transaction that has nothing in it."""
        if not self._added and not self._has_offsets:
            return
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            committed=commit,
        )

        async def ask() -> None:
            response: EndTxnResponse = await self._ask(
                request,
                END_TXN,
                lambda answer: answer.error_code,
                version_max=_END_VERSION_MAX,
            )
            self._check(response.error_code)

        await self._patiently(ask)
        self._added.clear()
        self._has_offsets = False

    async def _ask(
        self,
        request: Message,
        api: Api,
        code_of: Callable[[Any], int],
        *,
        version_max: int | None = None,
    ) -> Any:
        return await self._coordinators.ask(
            KeyType.TRANSACTION,
            self.transactional_id,
            request,
            api,
            code_of,
            version_max=version_max,
        )

    async def _patiently(self, work: Callable[[], Awaitable[Any]]) -> Any:
        return await self._cluster.retry(work, codes=_SOON)

    def _check(self, code: int, about: str = "") -> None:
        check(code, f"transaction {self.transactional_id}{about}")


def _added_code(response: AddPartitionsToTxnResponse) -> int:
    """The refusal that says the most: of the others nothing was tried."""
    codes = [
        result.partition_error_code
        for topic in response.results_by_topic_v3_and_below
        for result in topic.results_by_partition
    ]
    refused = [code for code in codes if code not in (0, ErrorCode.OPERATION_NOT_ATTEMPTED)]
    return refused[0] if refused else next((code for code in codes if code), 0)


def _offset_code(response: TxnOffsetCommitResponse) -> int:
    codes = (each.error_code for topic in response.topics for each in topic.partitions)
    return next((code for code in codes if code), 0)
