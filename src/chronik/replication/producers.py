"""The idempotent and transactional producers of one partition.

Every batch of an idempotent producer carries its id, epoch and first sequence number. From the
last few batches of each producer this module tells a repeated batch, which is answered and not
stored again, from one that is out of order or of a fenced epoch, which is refused. A transactional
batch opens its producer's transaction, and the coordinator's marker ends it.

Invariants
    The state is a function of the headers and markers appended, in order, and of the times they
    were seen: replaying the log, or a snapshot and the log after it, gives the state that was live.
    At most five batches are kept of a producer, as many as a client may have in flight.
    A producer's open transaction keeps it from expiring.

`check` and `check_marker` change nothing; `append` follows once the batch is in the log, or is
replayed from it. What `check` cannot know, since expiry or retention may have removed it, it
accepts: a producer without state may begin with any sequence (KIP-360). The caller stores snapshots
and rebuilds after a truncation. Open and aborted transactions are `transactions`' business, guards
`verification`'s; guards are of this process and in no snapshot.
"""

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final

from crc32c import crc32c

from chronik.protocol.batch import BatchHeader
from chronik.protocol.control import EndTxnMarker, read_marker
from chronik.protocol.errors import ErrorCode, KafkaError, ProtocolError
from chronik.protocol.schema import Buffer
from chronik.replication.producer import NO_OFFSET, Appended, Producer, ProducerState
from chronik.replication.transactions import ABORTED, AbortedTxn, Transactions
from chronik.replication.verification import Guard, Guards

EXPIRATION_MS_DEFAULT: Final = 24 * 60 * 60 * 1000  # producer.id.expiration.ms

_SNAPSHOT_MAGIC: Final = b"CHKP"
_SNAPSHOT_VERSION: Final = 2
_PREFIX: Final = Struct(">4sHI")  # magic, version, CRC-32C of what follows
_COUNT: Final = Struct(">qII")  # end offset, producers, aborted transactions
# Id, epoch, last seen, transaction's first offset, coordinator epoch, batches.
_PRODUCER: Final = Struct(">qhqqiB")
_BATCH: Final = Struct(">iqiq")  # base sequence, base offset, last offset delta, timestamp


class Producers:
    """The producers of one partition, by id."""

    __slots__ = ("_end_offset", "_guards", "_producers", "_transactions")

    def __init__(self) -> None:
        self._producers: dict[int, Producer] = {}
        self._end_offset = 0
        # Both are there only once somebody needs them: most partitions see no transaction.
        self._transactions: Transactions | None = None
        self._guards: Guards | None = None

    def __len__(self) -> int:
        return len(self._producers)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Producers)
            and self._producers == other._producers
            and self.aborted() == other.aborted()
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def end_offset(self) -> int:
        """The offset after the last batch that this state knows of."""
        return self._end_offset

    def get(self, producer_id: int) -> Producer | None:
        """What is known of a producer."""
        return self._producers.get(producer_id)

    def describe(self) -> list[ProducerState]:
        """Every producer, for DescribeProducers."""
        return [
            ProducerState(
                producer_id,
                producer.epoch,
                producer.last_sequence,
                producer.last_timestamp,
                producer.coordinator_epoch,
                producer.current_txn_first_offset,
            )
            for producer_id, producer in self._producers.items()
        ]

    # Before an append.

    def check(
        self, header: BatchHeader, guard: Guard | None = None, *, verify: bool = False
    ) -> Appended | None:
        """Whether a client's batch repeats an earlier one, which is then returned.

        With `verify` a batch that opens a transaction needs a guard that is still valid. Raises
        OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH or INVALID_TXN_STATE.
        """
        producer = self._producers.get(header.producer_id)
        repeated = None if producer is None else producer.repeated(header)
        if repeated is not None:
            return repeated
        if header.is_transactional:
            self._check_guard(header, guard, verify)
        if producer is not None:
            producer.check_epoch(header)
            producer.check_sequence(header)
            producer.check_transaction(header)
        return None

    def _check_guard(self, header: BatchHeader, guard: Guard | None, verify: bool) -> None:
        producer_id = header.producer_id
        if not verify or not self.needs_verification(producer_id, header.producer_epoch):
            return
        if guard is None or self._guards is None or not self._guards.is_valid(producer_id, guard):
            message = f"producer {producer_id} has no verified transaction in this partition"
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, message)
        if header.base_sequence >= 0:
            producer = self._producers.get(producer_id)
            guard.check_sequence(header, is_known=producer is not None and bool(producer.batches))

    def check_internal(
        self, header: BatchHeader, guard: Guard | None = None, *, verify: bool = False
    ) -> None:
        """Whether a coordinator's batch may be appended: it has no sequence, but an epoch."""
        if header.is_transactional:
            self._check_guard(header, guard, verify)
        producer = self._producers.get(header.producer_id)
        if producer is not None:
            producer.check_epoch(header)
            producer.check_transaction(header)

    def check_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        transaction_version: int = 1,
    ) -> None:
        """Raise INVALID_PRODUCER_EPOCH or TRANSACTION_COORDINATOR_FENCED for a stale marker.

        The marker of a producer that is not known is fine: it ends nothing.
        """
        producer = self._producers.get(producer_id)
        if producer is not None:
            producer.check_marker(producer_epoch, coordinator_epoch, transaction_version)

    # Verification (KIP-890).

    def needs_verification(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether a transactional batch of this producer and epoch would open a transaction."""
        producer = self._producers.get(producer_id)
        return (
            producer is None or not producer.is_in_transaction or producer.epoch != producer_epoch
        )

    def begin_verification(
        self,
        producer_id: int,
        producer_epoch: int,
        sequence: int | None = None,
        *,
        supports_epoch_bump: bool = False,
    ) -> Guard:
        """A guard to be given back with the batch once its coordinator has been asked."""
        if self._guards is None:
            self._guards = Guards()
        return self._guards.begin(producer_id, producer_epoch, sequence, supports_epoch_bump)

    # Appends and replay.

    def append(
        self, header: BatchHeader, now_ms: int | None = None, marker: EndTxnMarker | None = None
    ) -> None:
        """Take a batch into account, as it is in the log with its offsets.

        `now_ms` is when it arrived. In a replay nobody knows, and the batch's own time counts.
        `marker` is what a control batch says; without it, it says nothing about transactions.
        """
        if header.producer_id < 0:
            return
        self._end_offset = header.next_offset
        if header.is_control and marker is None:
            return
        producer = self._producers.get(header.producer_id)
        if producer is None:
            producer = self._producers[header.producer_id] = Producer()
        if producer.epoch != header.producer_epoch:
            producer.batches = ()
            producer.epoch = header.producer_epoch
        producer.last_seen_ms = header.max_timestamp if now_ms is None else now_ms
        if marker is not None:
            self._end_transaction(producer, header, marker)
            return
        producer.take(header)
        if header.is_transactional:
            self._go_on_with_transaction(producer, header)

    def _go_on_with_transaction(self, producer: Producer, header: BatchHeader) -> None:
        if self._guards is not None:
            self._guards.clear(header.producer_id)
        if not producer.is_in_transaction:
            producer.current_txn_first_offset = header.base_offset
            if self._transactions is None:
                self._transactions = Transactions()
            self._transactions.begin(header.base_offset)

    def _end_transaction(
        self, producer: Producer, header: BatchHeader, marker: EndTxnMarker
    ) -> None:
        if self._guards is not None:
            self._guards.clear(header.producer_id)
        producer.coordinator_epoch = marker.coordinator_epoch
        if producer.is_in_transaction:
            assert self._transactions is not None
            self._transactions.complete(
                header.producer_id,
                producer.current_txn_first_offset,
                header.base_offset,
                commit=marker.commit,
            )
            producer.current_txn_first_offset = NO_OFFSET

    def replay(self, batches: Iterable[tuple[BatchHeader, Buffer]]) -> None:
        """Take in the log from `end_offset` on: headers, and the bytes of control batches."""
        for header, control in batches:
            self.append(header, marker=read_marker(control) if header.is_control else None)

    # Transactions.

    def on_high_watermark(self, high_watermark: int) -> None:
        """The high watermark has moved: transactions that ended below it are stable."""
        if self._transactions is not None:
            self._transactions.on_high_watermark(high_watermark)

    def first_unstable_offset(self) -> int | None:
        """Where the oldest transaction begins that is open, or ended above the high watermark."""
        if self._transactions is None:
            return None
        return self._transactions.first_unstable_offset()

    def aborted(self) -> list[AbortedTxn]:
        """Every aborted transaction, in the order of the markers."""
        return [] if self._transactions is None else list(self._transactions.aborted)

    def has_aborted(self, offset: int) -> bool:
        """Whether an aborted transaction ended at or above an offset."""
        return self._transactions is not None and self._transactions.aborted.reach(offset)

    def aborted_between(self, offset: int, end_offset: int) -> list[AbortedTxn]:
        """The aborted transactions that a reader of [offset, end_offset) must know."""
        if self._transactions is None:
            return []
        return self._transactions.aborted.between(offset, end_offset)

    def forget_aborted(self, last_offset: int) -> bool:
        """The log has no data of the transaction with this marker any more."""
        return self._transactions is not None and self._transactions.aborted.forget(last_offset)

    def trim(self, log_start_offset: int) -> None:
        """Forget aborted transactions that ended below the log start."""
        if self._transactions is not None:
            self._transactions.aborted.trim(log_start_offset)

    def last_offsets(self) -> dict[int, int]:
        """The last offset of each producer's data: compaction keeps the batch there."""
        return {
            producer_id: producer.batches[-1].base_offset + producer.batches[-1].last_offset_delta
            for producer_id, producer in self._producers.items()
            if producer.batches
        }

    def marker_epochs(self) -> dict[int, int]:
        """The epoch of each producer without data: compaction keeps the marker that set it."""
        return {
            producer_id: producer.epoch
            for producer_id, producer in self._producers.items()
            if not producer.batches
        }

    def expire(self, now_ms: int, expiration_ms: int = EXPIRATION_MS_DEFAULT) -> int:
        """Forget the producers that were not seen for that long; returns how many."""
        expired = [
            producer_id
            for producer_id, producer in self._producers.items()
            if now_ms - producer.last_seen_ms >= expiration_ms and not producer.is_in_transaction
        ]
        for producer_id in expired:
            del self._producers[producer_id]
        return len(expired)

    def lost(self, after: "Producers") -> Iterator[tuple[int, int, int]]:
        """Producers of which a later state knows less: id, epoch and the first sequence missing."""
        for producer_id, producer in self._producers.items():
            known = after.get(producer_id)
            known_offset = -1
            if known is not None and known.batches:
                known_offset = known.batches[-1].base_offset
            missing = [each for each in producer.batches if each.base_offset > known_offset]
            if missing:
                yield producer_id, producer.epoch, missing[0].base_sequence

    def truncate(self, to_offset: int) -> bool:
        """Forget what lies at or above an offset; whether the state is still exact.

        False means that older batches or an ended transaction may have been forgotten earlier:
        what is left accepts no wrong batch of a producer that it knows, but the caller should
        rebuild from a snapshot and the log.
        """
        if to_offset >= self._end_offset:
            return True
        self._end_offset = to_offset
        for producer_id, producer in list(self._producers.items()):
            producer.batches = tuple(
                batch for batch in producer.batches if batch.base_offset < to_offset
            )
            if producer.current_txn_first_offset >= to_offset:
                producer.current_txn_first_offset = NO_OFFSET
            if not producer.batches and not producer.is_in_transaction:
                del self._producers[producer_id]
        aborted = [each for each in self.aborted() if each.last_offset < to_offset]
        self._restore_transactions(aborted)
        return False

    def _restore_transactions(self, aborted: list[AbortedTxn]) -> None:
        """Transactions from what producers and a list of aborted ones say."""
        first_offsets = sorted(
            producer.current_txn_first_offset
            for producer in self._producers.values()
            if producer.is_in_transaction
        )
        self._transactions = Transactions() if first_offsets or aborted else None
        if self._transactions is not None:
            for first_offset in first_offsets:
                self._transactions.begin(first_offset)
            for each in aborted:
                self._transactions.aborted.add(each)

    def snapshot(self, log_end_offset: int = 0) -> bytes:
        """The whole state as bytes, for a file.

        The end of the log, if it is given, spares the replay the batches of other producers
        that follow the last idempotent one.
        """
        end_offset = max(log_end_offset, self._end_offset)
        aborted = self.aborted()
        body = bytearray(_COUNT.pack(end_offset, len(self._producers), len(aborted)))
        for producer_id, producer in self._producers.items():
            body += _PRODUCER.pack(
                producer_id,
                producer.epoch,
                producer.last_seen_ms,
                producer.current_txn_first_offset,
                producer.coordinator_epoch,
                len(producer.batches),
            )
            for batch in producer.batches:
                body += _BATCH.pack(*batch)
        body += b"".join(ABORTED.pack(*each) for each in aborted)
        return _PREFIX.pack(_SNAPSHOT_MAGIC, _SNAPSHOT_VERSION, crc32c(body)) + body

    @classmethod
    def from_snapshot(cls, data: bytes) -> "Producers":
        """The state that `snapshot` wrote. Raises ProtocolError for anything else."""
        if len(data) < _PREFIX.size + _COUNT.size:
            raise ProtocolError("a producer snapshot is cut short")
        magic, version, crc = _PREFIX.unpack_from(data)
        if magic != _SNAPSHOT_MAGIC or version != _SNAPSHOT_VERSION:
            raise ProtocolError(f"no producer snapshot of version {_SNAPSHOT_VERSION}")
        if crc32c(memoryview(data)[_PREFIX.size :]) != crc:
            raise ProtocolError("a producer snapshot has a wrong checksum")
        producers = cls()
        # The checksum is right, so that these are the bytes that we wrote.
        producers._end_offset, count, aborted_count = _COUNT.unpack_from(data, _PREFIX.size)
        position = _PREFIX.size + _COUNT.size
        for _ in range(count):
            position = producers._load(data, position)
        assert position + aborted_count * ABORTED.size == len(data)
        aborted = ABORTED.iter_unpack(memoryview(data)[position:])
        producers._restore_transactions([AbortedTxn._make(each) for each in aborted])
        return producers

    def _load(self, data: bytes, position: int) -> int:
        producer = Producer()
        (
            producer_id,
            producer.epoch,
            producer.last_seen_ms,
            producer.current_txn_first_offset,
            producer.coordinator_epoch,
            batch_count,
        ) = _PRODUCER.unpack_from(data, position)
        self._producers[producer_id] = producer
        start = position + _PRODUCER.size
        end: int = start + batch_count * _BATCH.size
        producer.batches = tuple(map(Appended._make, _BATCH.iter_unpack(data[start:end])))
        return end
