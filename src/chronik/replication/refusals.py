"""Batches of idempotent producers that were refused for a while, until they come again.

A producer has up to five batches in flight. If the first is refused for a while, because this
node does not lead yet or knows the topic yet, too few replicas are in sync or the disk is full, the
next ones have a gap before them. OUT_OF_ORDER_SEQUENCE_NUMBER would be true, and harmful:
librdkafka then begins a new epoch for all its partitions and sends again whatever was not
acknowledged, also what an earlier leader has stored. So whoever comes behind a batch that was
refused gets that batch's answer, until it has come again. That also holds if nothing is known of
the producer, so that any sequence would pass for its first, and the refused one never after it.
A batch that was cut away, because another node led in between and did not have it, counts as
refused, too: its producer was told so, and may have sent more by then.

What is in flight arrives or is lost soon, so that refusals are forgotten after a while: a producer
that is really out of order must be told.

Kafka answers OUT_OF_ORDER_SEQUENCE_NUMBER here, or takes a gap for a beginning; clients send
everything again in the one case, and librdkafka gives up for good in the other.
"""

from typing import Final, NamedTuple

from chronik.model import TopicPartition
from chronik.protocol.batch import HEADER_SIZE, SEQUENCE_MASK, BatchHeader, read_header
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.schema import Buffer
from chronik.replication.producers import Producers

_RETRIED: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
_CUT: Final = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)  # as its producer was told
REFUSALS_MAX: Final = 10_000  # the oldest are forgotten: their producers have come back, or died
REFUSED_MS: Final = 60_000  # how long a batch behind may be on its way
_MAGIC_AT: Final = 16

_Key = tuple[TopicPartition, int, int]  # place, producer id and epoch


class _Refused(NamedTuple):
    sequence: int
    error: KafkaError
    at_ms: int


class Refusals:
    """The first batch of each producer and partition that was refused and has not come again."""

    def __init__(self) -> None:
        self._refused: dict[_Key, _Refused] = {}

    def __len__(self) -> int:
        return len(self._refused)

    def check(self, place: TopicPartition, data: Buffer, producers: Producers, now_ms: int) -> None:
        """Raise what an earlier batch was told, if the producer's state could not tell of a gap."""
        header = _idempotent(data)
        if header is not None and producers.get(header.producer_id) is None:
            before = self._before(place, header, now_ms)
            if before is not None and before.sequence != header.base_sequence:
                raise before.error

    def answer(
        self, place: TopicPartition, data: Buffer, error: KafkaError, now_ms: int
    ) -> KafkaError:
        """What a batch that was refused is told."""
        is_behind = error.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and self._refused
        header = _idempotent(data) if is_behind or error.code in _RETRIED else None
        if header is None:
            return error
        if is_behind:
            before = self._before(place, header, now_ms)
            return error if before is None else before.error
        self._note(_key(place, header), _Refused(header.base_sequence, error, now_ms))
        return error

    def cut(self, place: TopicPartition, before: Producers, after: Producers, now_ms: int) -> None:
        """A log was cut: what producers have there no longer comes again."""
        for producer_id, epoch, sequence in before.lost(after):
            self._note((place, producer_id, epoch), _Refused(sequence, _CUT, now_ms))

    def accepted(self, place: TopicPartition, data: Buffer) -> None:
        """A batch was appended, or had been before: what was refused has come again."""
        header = _idempotent(data) if self._refused else None
        if header is not None:
            self._refused.pop(_key(place, header), None)

    def _note(self, key: _Key, refused: _Refused) -> None:
        before = self._refused.get(key)
        if before is not None and not _is_before(refused.sequence, before.sequence):
            refused = before._replace(at_ms=refused.at_ms)
        self._refused[key] = refused
        if len(self._refused) > REFUSALS_MAX:
            del self._refused[next(iter(self._refused))]

    def _before(self, place: TopicPartition, header: BatchHeader, now_ms: int) -> _Refused | None:
        """What was refused, if a batch is not before it."""
        key = _key(place, header)
        refused = self._refused.get(key)
        if refused is None or _is_before(header.base_sequence, refused.sequence):
            return None
        if now_ms - refused.at_ms > REFUSED_MS:
            del self._refused[key]
            return None
        return refused


def _key(place: TopicPartition, header: BatchHeader) -> _Key:
    return place, header.producer_id, header.producer_epoch


def _idempotent(data: Buffer) -> BatchHeader | None:
    if len(data) < HEADER_SIZE or data[_MAGIC_AT] != 2:
        return None
    header = read_header(data)
    return header if header.producer_id >= 0 and header.base_sequence >= 0 else None


def _is_before(sequence: int, other: int) -> bool:
    """Whether one sequence lies before another; both go round."""
    return (other - sequence) & SEQUENCE_MASK in range(1, SEQUENCE_MASK // 2)
