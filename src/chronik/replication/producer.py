"""One producer in one partition: its epoch, its last batches, its open transaction.

It judges what comes next from this producer, and changes nothing by that: `producers` updates it
once a batch or marker is in the log.
"""

from typing import Final, NamedTuple

from chronik.model import NO_PRODUCER_EPOCH, NO_SEQUENCE, NO_TIMESTAMP
from chronik.protocol.batch import SEQUENCE_MASK, BatchHeader
from chronik.protocol.errors import ErrorCode, KafkaError

BATCHES_MAX: Final = 5  # Kafka's limit of requests in flight for an idempotent producer
NO_OFFSET: Final = -1
NO_COORDINATOR_EPOCH: Final = -1
# From this version of transactions on, each one ends with an epoch of its own (KIP-890).
EPOCH_BUMP_TRANSACTION_VERSION: Final = 2
_EPOCH_MAX: Final = 2**15 - 1


class Appended(NamedTuple):
    """A batch that was appended, as a repeated one is answered."""

    base_sequence: int
    base_offset: int
    last_offset_delta: int
    timestamp: int

    @property
    def last_sequence(self) -> int:
        return (self.base_sequence + self.last_offset_delta) & SEQUENCE_MASK


class ProducerState(NamedTuple):
    """A producer as DescribeProducers shows it."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_start_offset: int


class Producer:
    """What is known of one producer."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "current_txn_first_offset",
        "epoch",
        "last_seen_ms",
    )

    def __init__(self) -> None:
        self.epoch = NO_PRODUCER_EPOCH
        # A tuple: most producers have few batches, and a deque takes 600 bytes for one.
        self.batches: tuple[Appended, ...] = ()
        self.last_seen_ms = NO_TIMESTAMP
        self.current_txn_first_offset = NO_OFFSET
        self.coordinator_epoch = NO_COORDINATOR_EPOCH

    @property
    def last_timestamp(self) -> int:
        """Of its last batch, by which Kafka's tools tell how long a transaction has been idle."""
        return self.batches[-1].timestamp if self.batches else self.last_seen_ms

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def is_in_transaction(self) -> bool:
        return self.current_txn_first_offset != NO_OFFSET

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Producer) and all(
            getattr(self, name) == getattr(other, name) for name in self.__slots__
        )

    __hash__ = None  # type: ignore[assignment]

    def take(self, header: BatchHeader) -> None:
        """Remember a data batch for its sequence; a coordinator's has none."""
        if header.base_sequence >= 0:
            appended = Appended(
                header.base_sequence,
                header.base_offset,
                header.last_offset_delta,
                header.max_timestamp,
            )
            self.batches = (*self.batches[1 - BATCHES_MAX :], appended)

    def repeated(self, header: BatchHeader) -> Appended | None:
        """The batch that this one repeats, if it is one of the last few."""
        if header.producer_epoch == self.epoch:
            for batch in self.batches:
                if (
                    batch.base_sequence == header.base_sequence
                    and batch.last_offset_delta == header.last_offset_delta
                ):
                    return batch
        return None

    def check_epoch(self, header: BatchHeader) -> None:
        """Raise INVALID_PRODUCER_EPOCH if a later epoch has been seen."""
        if header.producer_epoch < self.epoch:
            message = (
                f"producer {header.producer_id} sent epoch {header.producer_epoch},"
                f" its last one is {self.epoch}"
            )
            raise KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, message)

    def check_sequence(self, header: BatchHeader) -> None:
        """Raise OUT_OF_ORDER_SEQUENCE_NUMBER unless this batch comes next."""
        # A later epoch begins at zero.
        same_epoch = header.producer_epoch == self.epoch
        last_sequence = self.last_sequence if same_epoch else NO_SEQUENCE
        expected = (last_sequence + 1) & SEQUENCE_MASK
        if header.base_sequence != expected:
            message = (
                f"producer {header.producer_id} sent sequence {header.base_sequence},"
                f" expected {expected}"
            )
            raise KafkaError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, message)

    def check_transaction(self, header: BatchHeader) -> None:
        """Raise INVALID_TXN_STATE for a plain batch inside a transaction."""
        if self.is_in_transaction and not header.is_transactional:
            message = f"producer {header.producer_id} is in a transaction"
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, message)

    def check_marker(self, epoch: int, coordinator_epoch: int, transaction_version: int) -> None:
        """Raise INVALID_PRODUCER_EPOCH or TRANSACTION_COORDINATOR_FENCED for a stale marker.

        From version 2 of transactions on a marker has a later epoch than the transaction's
        batches. It may come twice, once there is nothing to end.
        """
        bumps = transaction_version >= EPOCH_BUMP_TRANSACTION_VERSION
        may_be_same = not bumps or not self.is_in_transaction or epoch == _EPOCH_MAX
        if epoch < self.epoch or (epoch == self.epoch and not may_be_same):
            message = f"the marker has epoch {epoch}, its producer {self.epoch}"
            raise KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, message)
        if coordinator_epoch < self.coordinator_epoch:
            message = (
                f"the marker is of coordinator epoch {coordinator_epoch},"
                f" the last one was of {self.coordinator_epoch}"
            )
            raise KafkaError(ErrorCode.TRANSACTION_COORDINATOR_FENCED, message)
