"""The idempotent producers of one partition.

Every batch of an idempotent producer carries its id, epoch and first sequence number. From the
last few batches of each producer this module tells a repeated batch, which is answered and not
stored again, from one that is out of order or of a fenced epoch, which is refused.

Invariants
    The state is a function of the headers appended, in order, and of the times they were seen:
    replaying the log, or a snapshot and the log after it, gives the state that was live.
    At most five batches are kept of a producer, as many as a client may have in flight.
    A producer's open transaction keeps it from expiring.

`check` changes nothing; `append` follows once the batch is in the log, or is replayed from it.
What `check` cannot know, since expiry or retention may have removed it, it accepts: a producer
without state may begin with any sequence (KIP-360). The caller stores snapshots and rebuilds
after a truncation. Commit or abort markers only end a transaction here; which of the two they
are stands in their records.
"""

from collections.abc import Iterable
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from chronik.model import NO_PRODUCER_EPOCH, NO_SEQUENCE, NO_TIMESTAMP
from chronik.protocol.batch import SEQUENCE_MASK, BatchHeader
from chronik.protocol.errors import ErrorCode, KafkaError, ProtocolError

BATCHES_MAX: Final = 5  # Kafka's limit of requests in flight for an idempotent producer
EXPIRATION_MS_DEFAULT: Final = 24 * 60 * 60 * 1000  # producer.id.expiration.ms

_NO_OFFSET: Final = -1
_SNAPSHOT_MAGIC: Final = b"CHKP"
_SNAPSHOT_VERSION: Final = 1
_PREFIX: Final = Struct(">4sHI")  # magic, version, CRC-32C of what follows
_COUNT: Final = Struct(">qI")  # end offset, producers
_PRODUCER: Final = Struct(">qhqqB")  # id, epoch, last seen, transaction's first offset, batches
_BATCH: Final = Struct(">iqiq")  # base sequence, base offset, last offset delta, timestamp


class Appended(NamedTuple):
    """A batch that was appended, as a repeated one is answered."""

    base_sequence: int
    base_offset: int
    last_offset_delta: int
    timestamp: int

    @property
    def last_sequence(self) -> int:
        return (self.base_sequence + self.last_offset_delta) & SEQUENCE_MASK


class Producer:
    """What is known of one producer."""

    __slots__ = ("batches", "current_txn_first_offset", "epoch", "last_seen_ms")

    def __init__(self) -> None:
        self.epoch = NO_PRODUCER_EPOCH
        # A tuple: most producers have few batches, and a deque takes 600 bytes for one.
        self.batches: tuple[Appended, ...] = ()
        self.last_seen_ms = NO_TIMESTAMP
        self.current_txn_first_offset = _NO_OFFSET

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Producer) and all(
            getattr(self, name) == getattr(other, name) for name in self.__slots__
        )

    __hash__ = None  # type: ignore[assignment]


class Producers:
    """The producers of one partition, by id."""

    __slots__ = ("_end_offset", "_producers")

    def __init__(self) -> None:
        self._producers: dict[int, Producer] = {}
        self._end_offset = 0

    def __len__(self) -> int:
        return len(self._producers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Producers) and self._producers == other._producers

    __hash__ = None  # type: ignore[assignment]

    @property
    def end_offset(self) -> int:
        """The offset after the last batch that this state knows of."""
        return self._end_offset

    def get(self, producer_id: int) -> Producer | None:
        """What is known of a producer."""
        return self._producers.get(producer_id)

    def check(self, header: BatchHeader) -> Appended | None:
        """Whether a batch repeats an earlier one, which is then returned.

        Raises OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH or INVALID_TXN_STATE.
        """
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return None
        if header.is_control:
            _check_epoch(producer, header)  # A coordinator's markers have no sequence.
            return None
        if header.producer_epoch == producer.epoch:
            for batch in producer.batches:
                if (
                    batch.base_sequence == header.base_sequence
                    and batch.last_offset_delta == header.last_offset_delta
                ):
                    return batch
        _check_epoch(producer, header)
        _check_sequence(producer, header)
        if producer.current_txn_first_offset != _NO_OFFSET and not header.is_transactional:
            message = f"producer {header.producer_id} is in a transaction"
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, message)
        return None

    def append(self, header: BatchHeader, now_ms: int | None = None) -> None:
        """Take a batch into account, as it is in the log with its offsets.

        `now_ms` is when it arrived. In a replay nobody knows, and the batch's own time counts.
        """
        if header.producer_id < 0:
            return
        self._end_offset = header.next_offset
        producer = self._producers.get(header.producer_id)
        if producer is None:
            producer = self._producers[header.producer_id] = Producer()
        if producer.epoch != header.producer_epoch:
            producer.batches = ()
            producer.epoch = header.producer_epoch
        producer.last_seen_ms = header.max_timestamp if now_ms is None else now_ms
        if header.is_control:
            producer.current_txn_first_offset = _NO_OFFSET
            return
        appended = Appended(
            header.base_sequence,
            header.base_offset,
            header.last_offset_delta,
            header.max_timestamp,
        )
        producer.batches = (*producer.batches[1 - BATCHES_MAX :], appended)
        if header.is_transactional and producer.current_txn_first_offset == _NO_OFFSET:
            producer.current_txn_first_offset = header.base_offset

    def replay(self, headers: Iterable[BatchHeader]) -> None:
        """Take in the headers of the log from `end_offset` on."""
        for header in headers:
            self.append(header)

    def last_offsets(self) -> dict[int, int]:
        """The last offset of each producer: compaction keeps the batch there."""
        return {
            producer_id: producer.batches[-1].base_offset + producer.batches[-1].last_offset_delta
            for producer_id, producer in self._producers.items()
            if producer.batches
        }

    def first_unstable_offset(self) -> int | None:
        """Where the oldest open transaction begins."""
        return min(
            (
                producer.current_txn_first_offset
                for producer in self._producers.values()
                if producer.current_txn_first_offset != _NO_OFFSET
            ),
            default=None,
        )

    def expire(self, now_ms: int, expiration_ms: int = EXPIRATION_MS_DEFAULT) -> int:
        """Forget the producers that were not seen for that long; returns how many."""
        expired = [
            producer_id
            for producer_id, producer in self._producers.items()
            if now_ms - producer.last_seen_ms >= expiration_ms
            and producer.current_txn_first_offset == _NO_OFFSET
        ]
        for producer_id in expired:
            del self._producers[producer_id]
        return len(expired)

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
                producer.current_txn_first_offset = _NO_OFFSET
            if not producer.batches and producer.current_txn_first_offset == _NO_OFFSET:
                del self._producers[producer_id]
        return False

    def snapshot(self, log_end_offset: int = 0) -> bytes:
        """The whole state as bytes, for a file.

        The end of the log, if it is given, spares the replay the batches of other producers
        that follow the last idempotent one.
        """
        end_offset = max(log_end_offset, self._end_offset)
        body = bytearray(_COUNT.pack(end_offset, len(self._producers)))
        for producer_id, producer in self._producers.items():
            body += _PRODUCER.pack(
                producer_id,
                producer.epoch,
                producer.last_seen_ms,
                producer.current_txn_first_offset,
                len(producer.batches),
            )
            for batch in producer.batches:
                body += _BATCH.pack(*batch)
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
        producers._end_offset, count = _COUNT.unpack_from(data, _PREFIX.size)
        position = _PREFIX.size + _COUNT.size
        for _ in range(count):
            position = producers._load(data, position)
        assert position == len(data)
        return producers

    def _load(self, data: bytes, position: int) -> int:
        producer = Producer()
        producer_id, epoch, last_seen_ms, first_offset, batch_count = _PRODUCER.unpack_from(
            data, position
        )
        producer.epoch = epoch
        producer.last_seen_ms = last_seen_ms
        producer.current_txn_first_offset = first_offset
        self._producers[producer_id] = producer
        start = position + _PRODUCER.size
        end: int = start + batch_count * _BATCH.size
        producer.batches = tuple(map(Appended._make, _BATCH.iter_unpack(data[start:end])))
        return end


def _check_epoch(producer: Producer, header: BatchHeader) -> None:
    if header.producer_epoch < producer.epoch:
        message = (
            f"producer {header.producer_id} sent epoch {header.producer_epoch},"
            f" its last one is {producer.epoch}"
        )
        raise KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, message)


def _check_sequence(producer: Producer, header: BatchHeader) -> None:
    # A later epoch begins at zero.
    same_epoch = header.producer_epoch == producer.epoch
    last_sequence = producer.last_sequence if same_epoch else NO_SEQUENCE
    expected = (last_sequence + 1) & SEQUENCE_MASK
    if header.base_sequence != expected:
        message = (
            f"producer {header.producer_id} sent sequence {header.base_sequence},"
            f" expected {expected}"
        )
        raise KafkaError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, message)
