"""InitProducerId: an id and epoch for an idempotent producer.

From v3 on a producer may send the id and epoch it has, to get the next epoch of it (KIP-360).
"""

from typing import Annotated

from chronik.protocol.schema import Message, int16, int32, int64, since, string


class InitProducerIdRequest(Message):
    """Asks for a producer id; a null transactional id means idempotence alone."""

    transactional_id: string | None
    transaction_timeout_ms: int32
    producer_id: Annotated[int64, since(3)] = -1
    producer_epoch: Annotated[int16, since(3)] = -1


class InitProducerIdResponse(Message):
    """The id and its epoch."""

    throttle_time_ms: int32 = 0
    error_code: int16
    producer_id: int64 = -1
    producer_epoch: int16
