"""Batches that producers will send again: what was sent behind them is refused alike. Pure.

An idempotent producer has several batches of a partition under way. If one is refused, because this
node does not lead yet, too few replicas are in sync or the disk is full, the next ones do not fit
its sequence. OUT_OF_ORDER_SEQUENCE_NUMBER would be true, and harmful: librdkafka then begins a new
epoch for all its partitions and sends again whatever was not acknowledged, also what an earlier
leader has stored. So whoever comes behind a batch that was refused gets that batch's answer, until
it has come again.

Kafka answers OUT_OF_ORDER_SEQUENCE_NUMBER here; clients send everything again in either case.
"""

from typing import Final

from chronik.protocol.batch import HEADER_SIZE, SEQUENCE_MASK, BatchHeader, read_header
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.schema import Buffer

_RETRIED: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
REFUSALS_MAX: Final = 10_000  # the oldest are forgotten: their producers have come back, or died
_MAGIC_AT: Final = 16

_Key = tuple[bytes, int, int, int]  # topic id, partition, producer id and epoch


class Refusals:
    """The first batch of each producer and partition that was refused and has not come again."""

    def __init__(self) -> None:
        self._refused: dict[_Key, tuple[int, KafkaError]] = {}

    def __len__(self) -> int:
        return len(self._refused)

    def answer(self, topic_id: bytes, index: int, data: Buffer, error: KafkaError) -> KafkaError:
        """What a batch that was refused is told."""
        is_behind = error.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and self._refused
        header = _idempotent(data) if is_behind or error.code in _RETRIED else None
        if header is None:
            return error
        key = (topic_id, index, header.producer_id, header.producer_epoch)
        before = self._refused.get(key)
        if is_behind:
            return error if before is None or _is_before(header, before[0]) else before[1]
        if before is None or _is_before(header, before[0]):
            self._refused[key] = (header.base_sequence, error)
            if len(self._refused) > REFUSALS_MAX:
                del self._refused[next(iter(self._refused))]
        return error

    def accepted(self, topic_id: bytes, index: int, data: Buffer) -> None:
        """A batch was appended, or had been before: what was refused has come again."""
        header = _idempotent(data) if self._refused else None
        if header is not None:
            key = (topic_id, index, header.producer_id, header.producer_epoch)
            self._refused.pop(key, None)


def _idempotent(data: Buffer) -> BatchHeader | None:
    if len(data) < HEADER_SIZE or data[_MAGIC_AT] != 2:
        return None
    header = read_header(data)
    return header if header.producer_id >= 0 and header.base_sequence >= 0 else None


def _is_before(header: BatchHeader, sequence: int) -> bool:
    """Whether a batch lies before a sequence; both go round."""
    return (sequence - header.base_sequence) & SEQUENCE_MASK in range(1, SEQUENCE_MASK // 2)
