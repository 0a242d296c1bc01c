"""One transactional id: its producer, its state, and the steps from state to state.

Empty -> Ongoing -> PrepareCommit or PrepareAbort -> CompleteCommit or CompleteAbort -> Ongoing ...

A transaction is decided once its Prepare record is committed; markers follow, and then Complete.
Producers of transaction version 2 (KIP-890) get a new epoch with the end of each transaction, so
that nothing late of an ended one can pass for the next. Others get one when they are fenced or
initialise again.

All steps are pure: they return the next value, which `transactions.shard` logs.
"""

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

from chronik.coordinator.effects import ProducerStamp
from chronik.coordinator.transactions.records import (
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
)
from chronik.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP, TopicPartition

EPOCH_MAX: Final = 32_767
EPOCH_BUMP_VERSION: Final = 2  # the transaction.version from which each end has a new epoch


class TransactionState(IntEnum):
    """Kafka's numbers, as they are logged."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def wire_name(self) -> str:
        """Kafka's name, as DescribeTransactions shows it."""
        return "".join(word.capitalize() for word in self.name.split("_"))


S = TransactionState


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """What is known of a transactional id."""

    transactional_id: str
    producer_id: int
    producer_epoch: int = NO_PRODUCER_EPOCH
    last_producer_epoch: int = NO_PRODUCER_EPOCH  # not logged: a retry finds it while we live
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    timeout_ms: int
    state: TransactionState = S.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: int = NO_TIMESTAMP
    updated_ms: int = NO_TIMESTAMP
    version: int = 0  # the transaction.version of the client that moved it last
    memory_epoch: int = 0  # the cluster's, when it began

    @property
    def stamp(self) -> ProducerStamp:
        return ProducerStamp(self.producer_id, self.producer_epoch)

    @property
    def is_ending(self) -> bool:
        return self.state in (S.PREPARE_COMMIT, S.PREPARE_ABORT)

    @property
    def is_epoch_exhausted(self) -> bool:
        """The last epoch is left for a fence, which must always be possible."""
        return self.producer_epoch >= EPOCH_MAX - 1

    @property
    def bumps_epoch(self) -> bool:
        return self.version >= EPOCH_BUMP_VERSION

    # Steps.

    def initialized(
        self, timeout_ms: int, expected_epoch: int | None, now_ms: int
    ) -> "Transaction":
        """The same id with the next epoch; a repeated request gets the one it was given."""
        epoch, last_epoch = self.producer_epoch + 1, NO_PRODUCER_EPOCH
        if expected_epoch is not None and self.producer_epoch != NO_PRODUCER_EPOCH:
            if expected_epoch == self.producer_epoch:
                last_epoch = self.producer_epoch
            else:
                assert expected_epoch == self.last_producer_epoch
                epoch, last_epoch = self.producer_epoch, self.last_producer_epoch
        return self._emptied(timeout_ms, now_ms, self.producer_id, epoch, last_epoch)

    def rotated(
        self, producer_id: int, timeout_ms: int, *, keeps_last: bool, now_ms: int
    ) -> "Transaction":
        """A new producer id, since the epochs of the old one have run out."""
        last_epoch = self.producer_epoch if keeps_last else NO_PRODUCER_EPOCH
        changed = self._emptied(timeout_ms, now_ms, producer_id, 0, last_epoch)
        return replace(changed, previous_producer_id=self.producer_id)

    def _emptied(
        self, timeout_ms: int, now_ms: int, producer_id: int, epoch: int, last_epoch: int
    ) -> "Transaction":
        return replace(
            self,
            producer_id=producer_id,
            producer_epoch=epoch,
            last_producer_epoch=last_epoch,
            next_producer_id=NO_PRODUCER_ID,
            timeout_ms=timeout_ms,
            state=S.EMPTY,
            partitions=frozenset(),
            started_ms=NO_TIMESTAMP,
            updated_ms=now_ms,
        )

    def with_partitions(
        self, partitions: frozenset[TopicPartition], version: int, memory_epoch: int, now_ms: int
    ) -> "Transaction":
        """These partitions belong to the transaction, which begins if it had not."""
        begins = self.state is not S.ONGOING
        return replace(
            self,
            state=S.ONGOING,
            partitions=partitions if begins else self.partitions | partitions,
            started_ms=now_ms if begins else self.started_ms,
            updated_ms=now_ms,
            version=version,
            memory_epoch=memory_epoch if begins else self.memory_epoch,
        )

    def fenced(self) -> "Transaction":
        """With an epoch that nobody was told: whoever used the old one is shut out."""
        epoch = min(self.producer_epoch + 1, EPOCH_MAX)
        return replace(self, producer_epoch=epoch, last_producer_epoch=NO_PRODUCER_EPOCH)

    def prepared(
        self, *, committed: bool, version: int, next_producer_id: int, now_ms: int
    ) -> "Transaction":
        """The end is decided; the markers carry this value's epoch."""
        epoch, last_epoch = self.producer_epoch, self.last_producer_epoch
        if version >= EPOCH_BUMP_VERSION:
            epoch, last_epoch = min(epoch + 1, EPOCH_MAX), self.producer_epoch
        return replace(
            self,
            producer_epoch=epoch,
            last_producer_epoch=last_epoch,
            next_producer_id=next_producer_id,
            state=S.PREPARE_COMMIT if committed else S.PREPARE_ABORT,
            started_ms=now_ms if self.started_ms == NO_TIMESTAMP else self.started_ms,
            updated_ms=now_ms,
            version=version,
        )

    def completed(self, now_ms: int) -> "Transaction":
        """All markers are written."""
        assert self.is_ending
        rotates = self.next_producer_id != NO_PRODUCER_ID
        return replace(
            self,
            producer_id=self.next_producer_id if rotates else self.producer_id,
            producer_epoch=0 if rotates else self.producer_epoch,
            previous_producer_id=self.producer_id if rotates else self.previous_producer_id,
            next_producer_id=NO_PRODUCER_ID,
            state=S.COMPLETE_COMMIT if self.state is S.PREPARE_COMMIT else S.COMPLETE_ABORT,
            partitions=frozenset(),
            updated_ms=now_ms,
        )

    @property
    def visible_stamp(self) -> ProducerStamp:
        """The id and epoch that the client goes on with."""
        if self.next_producer_id != NO_PRODUCER_ID:
            return ProducerStamp(self.next_producer_id, 0)
        return self.stamp

    # Records.

    @property
    def key(self) -> TransactionLogKey:
        return TransactionLogKey(transactional_id=self.transactional_id)

    def to_value(self) -> TransactionLogValue:
        topics: dict[str, list[int]] = {}
        for topic, partition in sorted(self.partitions):
            topics.setdefault(topic, []).append(partition)
        return TransactionLogValue(
            producer_id=self.producer_id,
            previous_producer_id=self.previous_producer_id,
            next_producer_id=self.next_producer_id,
            producer_epoch=self.producer_epoch,
            transaction_timeout_ms=self.timeout_ms,
            transaction_status=self.state,
            transaction_partitions=None
            if self.state is S.EMPTY
            else [
                PartitionsSchema(topic=topic, partition_ids=partitions)
                for topic, partitions in topics.items()
            ],
            transaction_last_update_timestamp_ms=self.updated_ms,
            transaction_start_timestamp_ms=self.started_ms,
            client_transaction_version=self.version,
            memory_epoch=self.memory_epoch,
        )

    @classmethod
    def from_value(cls, transactional_id: str, value: TransactionLogValue) -> "Transaction":
        return cls(
            transactional_id=transactional_id,
            producer_id=value.producer_id,
            producer_epoch=value.producer_epoch,
            previous_producer_id=value.previous_producer_id,
            next_producer_id=value.next_producer_id,
            timeout_ms=value.transaction_timeout_ms,
            state=TransactionState(value.transaction_status),
            partitions=frozenset(
                TopicPartition(topic.topic, partition)
                for topic in value.transaction_partitions or ()
                for partition in topic.partition_ids
            ),
            started_ms=value.transaction_start_timestamp_ms,
            updated_ms=value.transaction_last_update_timestamp_ms,
            version=value.client_transaction_version,
            memory_epoch=value.memory_epoch,
        )
