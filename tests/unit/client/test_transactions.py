"""Which transactions hang: what a partition says, and what its coordinator says a moment later."""

import asyncio
from typing import Any

import pytest

from chronik.client.cluster import Cluster
from chronik.client.transactions import OpenTransaction, Transactions
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.groups import Coordinator, FindCoordinatorResponse
from chronik.protocol.messages.transactions import (
    DescribedTransaction,
    DescribeProducersPartitionResult,
    DescribeProducersResponse,
    DescribeProducersTopicResult,
    DescribeTransactionsResponse,
    ListedTransaction,
    ListTransactionsResponse,
    ProducerState,
    TransactionTopic,
)

PRODUCER_ID = 7
NOT_FOUND = "not found"


class Script:
    """What the broker says each time it is asked; the last word is repeated."""

    def __init__(self, starts: list[int], holds: list[Any], is_listed: bool = True) -> None:
        self._starts = starts  # where the transaction that is open in t-0 began, or -1
        self._holds = holds  # whether the coordinator knows t-0 to be in it
        self._is_listed = is_listed

    def producers(self, request: Any) -> DescribeProducersResponse:
        (index,) = request.topics[0].partition_indexes
        start = -1
        if index == 0:
            start = self._starts.pop(0) if len(self._starts) > 1 else self._starts[0]
        state = ProducerState(
            producer_id=PRODUCER_ID,
            producer_epoch=0,
            last_sequence=0,
            last_timestamp=0,
            coordinator_epoch=0,
            current_txn_start_offset=start,
        )
        result = DescribeProducersPartitionResult(
            partition_index=index, error_code=0, active_producers=[state]
        )
        return DescribeProducersResponse(
            topics=[DescribeProducersTopicResult(name="t", partitions=[result])]
        )

    def listed(self, _: Any) -> ListTransactionsResponse:
        known = ListedTransaction(
            transactional_id="tx", producer_id=PRODUCER_ID, transaction_state="Ongoing"
        )
        return ListTransactionsResponse(
            error_code=0,
            unknown_state_filters=[],
            transaction_states=[known] if self._is_listed else [],
        )

    def describe(self, _: Any) -> DescribeTransactionsResponse:
        holds = self._holds.pop(0) if len(self._holds) > 1 else self._holds[0]
        code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if holds is NOT_FOUND else ErrorCode.NONE
        found = DescribedTransaction(
            error_code=code,
            transactional_id="tx",
            transaction_state="Ongoing",
            transaction_timeout_ms=60_000,
            transaction_start_time_ms=0,
            producer_id=PRODUCER_ID,
            producer_epoch=0,
            topics=[TransactionTopic(topic="t", partitions=[0])] if holds is True else [],
        )
        return DescribeTransactionsResponse(transaction_states=[found])


def open_in_t(fake_broker: Any, script: Script) -> list[OpenTransaction]:
    async def look() -> list[OpenTransaction]:
        async with fake_broker(
            DescribeProducers=script.producers,
            ListTransactions=script.listed,
            DescribeTransactions=script.describe,
        ) as broker:
            here = Coordinator(
                key="tx", node_id=1, host="127.0.0.1", port=broker.address.port, error_code=0
            )
            broker.answers["FindCoordinator"] = lambda _: FindCoordinatorResponse(
                coordinators=[here]
            )
            async with Cluster([broker.address]) as cluster:
                return await Transactions(cluster).open_in("t")

    return asyncio.run(look())


@pytest.mark.parametrize("holds", [False, NOT_FOUND])
@pytest.mark.parametrize("is_listed", [False, True])
def test_what_no_coordinator_knows_of_hangs(
    fake_broker: Any, holds: bool | str, is_listed: bool
) -> None:
    (found,) = open_in_t(fake_broker, Script([3], [holds], is_listed))
    assert found.hangs
    assert found.transactional_id == ("tx" if is_listed else None)
    assert found.producer.current_txn_start_offset == 3


def test_what_its_coordinator_knows_of_does_not_hang(fake_broker: Any) -> None:
    (found,) = open_in_t(fake_broker, Script([3], [True]))
    assert not found.hangs


@pytest.mark.parametrize("holds", [False, NOT_FOUND])
def test_one_that_ends_between_the_two_looks_does_not_hang(
    fake_broker: Any, holds: bool | str
) -> None:
    assert open_in_t(fake_broker, Script([3, -1], [holds])) == []


def test_the_next_one_of_a_producer_is_another(fake_broker: Any) -> None:
    assert open_in_t(fake_broker, Script([3, 9], [False])) == []


def test_one_that_its_coordinator_knows_of_when_asked_again_does_not_hang(
    fake_broker: Any,
) -> None:
    (found,) = open_in_t(fake_broker, Script([3], [False, True]))
    assert not found.hangs
