"""Waiting, in a coroutine, for what was appended to a partition to be committed."""

from chronik.coordinator.pending import Pending
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.replication.partition import Partition


class CommitWaiter:
    """Resolves a reply with an error code once an append is committed, or that is not known."""

    __slots__ = ("_reply",)

    def __init__(self, reply: Pending) -> None:
        self._reply = reply

    def acknowledged(self, partition: Partition) -> None:
        self._reply.resolve(ErrorCode.NONE)

    def failed(self, partition: Partition, error: KafkaError) -> None:
        self._reply.resolve(error.code)


async def sealed(partition: Partition) -> ErrorCode:
    """Wait until all that is in a partition now is committed, or say why that is not known."""
    reply = Pending()
    if partition.wait_sealed(CommitWaiter(reply)):
        return ErrorCode.NONE
    error_code: ErrorCode = await reply
    return error_code
