"""Waiting for an append to be committed."""

from typing import Any

import pytest

from chronik.coordinator.committing import CommitWaiter
from chronik.coordinator.pending import Pending
from chronik.coordinator.transactions.marker_writer import NOTHING_TO_END
from chronik.protocol.errors import ErrorCode, KafkaError

PARTITION: Any = None  # A waiter waits for one, and need not be told which.


@pytest.mark.parametrize(
    "error_code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
    ],
)
def test_a_marker_whose_fate_is_not_known_is_written_again(error_code: ErrorCode) -> None:
    reply = Pending()
    CommitWaiter(reply).failed(PARTITION, KafkaError(error_code))
    found: list[ErrorCode] = []
    reply.then(found.append)
    assert found == [error_code]
    assert error_code not in NOTHING_TO_END


def test_a_partition_that_is_gone_needs_no_marker() -> None:
    reply = Pending()
    CommitWaiter(reply).failed(PARTITION, KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    found: list[ErrorCode] = []
    reply.then(found.append)
    assert found[0] in NOTHING_TO_END
