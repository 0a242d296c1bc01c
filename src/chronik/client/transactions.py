"""Transactions as an administrator sees them: which are open, whose they are, which hang.

A transaction hangs if a partition has it open and its coordinator does not know it to be: nobody
will ever end it there, and readers of committed data wait for ever. The two cannot be asked at one
moment, so whatever seems to hang is looked at twice. Ending it by hand is a marker for that one
partition. A transaction that is merely slow is aborted by shutting its producer out.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from chronik.client.cluster import Cluster, check
from chronik.client.coordinators import Coordinators, KeyType
from chronik.model import TopicPartition
from chronik.protocol.apis import INIT_PRODUCER_ID
from chronik.protocol.coordinator_apis import (
    DESCRIBE_PRODUCERS,
    DESCRIBE_TRANSACTIONS,
    LIST_TRANSACTIONS,
    WRITE_TXN_MARKERS,
)
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.producer_ids import InitProducerIdRequest, InitProducerIdResponse
from chronik.protocol.messages.transactions import (
    DescribedTransaction,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopic,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
    ProducerState,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

ONGOING = "Ongoing"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """A transaction that one partition has open, and its coordinator's word, if it has one."""

    partition: TopicPartition
    producer: ProducerState
    transactional_id: str | None
    hangs: bool

    @property
    def key(self) -> tuple[TopicPartition, int, int]:
        """Which transaction it is: a producer's next one in this partition begins elsewhere."""
        return self.partition, self.producer.producer_id, self.producer.current_txn_start_offset


class Transactions:
    """The administrator's requests about transactions."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._coordinators = Coordinators(cluster)

    async def all(self, states: Sequence[str] = ()) -> list[ListedTransaction]:
        """All transactional ids of the cluster, or those in one of these states."""
        await self._cluster.refresh(())
        request = ListTransactionsRequest(state_filters=states, producer_id_filters=())

        async def ask(node_id: int) -> Sequence[ListedTransaction]:
            link = await self._cluster.link(node_id)
            response: ListTransactionsResponse = await link.send(
                request, LIST_TRANSACTIONS, timeout_s=self._cluster.timeout_s
            )
            check(response.error_code, f"transactions of node {node_id}")
            if response.unknown_state_filters:
                unknown = ", ".join(response.unknown_state_filters)
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"there is no state {unknown}")
            return response.transaction_states

        async def ask_all() -> list[ListedTransaction]:
            found = await asyncio.gather(*map(ask, self._cluster.brokers))
            every = (each for some in found for each in some)
            return sorted(every, key=lambda each: each.transactional_id)

        return await self._cluster.retry(ask_all)

    async def describe(self, transactional_id: str) -> DescribedTransaction:
        """What the coordinator knows of a transactional id."""
        response: DescribeTransactionsResponse = await self._coordinators.ask(
            KeyType.TRANSACTION,
            transactional_id,
            DescribeTransactionsRequest(transactional_ids=[transactional_id]),
            DESCRIBE_TRANSACTIONS,
            lambda answer: answer.transaction_states[0].error_code,
        )
        (found,) = response.transaction_states
        check(found.error_code, f"there is no transactional id {transactional_id}")
        return found

    async def producers(self, partition: TopicPartition) -> Sequence[ProducerState]:
        """The producers that a partition remembers."""
        topic = DescribeProducersTopic(
            name=partition.topic, partition_indexes=[partition.partition]
        )
        leader = await self._cluster.partition(partition)
        link = await self._cluster.link(leader.leader_id)
        response: DescribeProducersResponse = await link.send(
            DescribeProducersRequest(topics=[topic]),
            DESCRIBE_PRODUCERS,
            timeout_s=self._cluster.timeout_s,
        )
        (result,) = response.topics[0].partitions
        check(result.error_code, str(partition), result.error_message)
        return result.active_producers

    async def open_in(self, topic: str) -> list[OpenTransaction]:
        """The transactions that are open in a topic, and whether they hang."""
        known = await self._cluster.topic(topic)
        places = [TopicPartition(topic, each.partition_index) for each in known.partitions]
        found = await self._look_into(places)
        suspects = {each.partition for each in found if each.hangs}
        # One that ended after its partition and before its coordinator was asked seems to hang.
        again = {each.key: each for each in await self._look_into(suspects)}
        seen = (again.get(each.key) if each.hangs else each for each in found)
        return [each for each in seen if each is not None]

    async def _look_into(self, partitions: Iterable[TopicPartition]) -> list[OpenTransaction]:
        """What is open in these partitions, and whether a coordinator that is asked next knows."""
        places = sorted(partitions)
        found = await asyncio.gather(*map(self.producers, places))
        opened = [
            (place, producer)
            for place, producers in zip(places, found, strict=True)
            for producer in producers
            if producer.current_txn_start_offset >= 0
        ]
        if not opened:
            return []
        ids = {each.producer_id: each.transactional_id for each in await self.all()}
        return [
            OpenTransaction(
                partition=place,
                producer=producer,
                transactional_id=ids.get(producer.producer_id),
                hangs=await self._seems_to_hang(place, ids.get(producer.producer_id)),
            )
            for place, producer in opened
        ]

    async def _seems_to_hang(self, place: TopicPartition, transactional_id: str | None) -> bool:
        if transactional_id is None:
            return True
        try:
            found = await self.describe(transactional_id)
        except KafkaError as error:
            if error.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                return True
            raise
        return not any(
            topic.topic == place.topic and place.partition in topic.partitions
            for topic in found.topics
        )

    async def abort(self, transactional_id: str) -> None:
        """Abort what a transactional id has open, and shut its producer out."""
        found = await self.describe(transactional_id)
        if found.transaction_state != ONGOING:
            state = found.transaction_state
            message = f"transaction {transactional_id} is not open: its state is {state}"
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, message)
        request = InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=found.transaction_timeout_ms,
        )

        async def ask() -> None:
            response: InitProducerIdResponse = await self._coordinators.ask(
                KeyType.TRANSACTION,
                transactional_id,
                request,
                INIT_PRODUCER_ID,
                lambda answer: answer.error_code,
            )
            check(response.error_code, f"transaction {transactional_id}")

        await self._cluster.retry(ask, codes=frozenset({ErrorCode.CONCURRENT_TRANSACTIONS}))

    async def abort_in(self, partition: TopicPartition, start_offset: int) -> ProducerState:
        """Abort the transaction that began at this offset of a partition, in that partition."""
        producers = await self.producers(partition)
        found = [each for each in producers if each.current_txn_start_offset == start_offset]
        if not found:
            message = f"no transaction that began at offset {start_offset} is open in {partition}"
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, message)
        (producer,) = found
        marker = WritableTxnMarker(
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            transaction_result=False,
            topics=[
                WritableTxnMarkerTopic(
                    name=partition.topic, partition_indexes=[partition.partition]
                )
            ],
            coordinator_epoch=max(producer.coordinator_epoch, 0),
        )
        leader = await self._cluster.partition(partition)
        link = await self._cluster.link(leader.leader_id)
        response: WriteTxnMarkersResponse = await link.send(
            WriteTxnMarkersRequest(markers=[marker]),
            WRITE_TXN_MARKERS,
            timeout_s=self._cluster.timeout_s,
        )
        check(response.markers[0].topics[0].partitions[0].error_code, str(partition))
        return producer
