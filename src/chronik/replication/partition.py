"""One partition on this node: appends, reads, and who waits for either.

An append is admitted, checked against its producer's sequence, stamped and written at once, on
the event loop; it is acknowledged when the high watermark has passed it. With durability "fsync"
the high watermark is what the group commit has put on disk, with "replicated" it is the log's
end. A fetch that found too little watches the partition, and is told when the high watermark
moves.

Transactions: a client's transactional batch opens its producer's transaction, with a guard that
says that the coordinator was asked; the coordinator's marker ends it. The last stable offset is
the high watermark, or the first offset of the oldest transaction that is open or whose marker the
high watermark has not passed. It moves only when the high watermark or the log start does.

Invariants
    Neither the high watermark nor the last stable offset ever moves back.
    Nobody reads at or above the high watermark, who reads committed data not above the last stable
    offset.
    A partition whose disk failed answers KAFKA_STORAGE_ERROR until a person has salvaged it.

What it leaves to others: `admission` judges bytes, `producers` sequences, `storage.log` files,
`replicas` decides which partitions are here and when they are loaded.
"""

import logging
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from chronik.config.settings import Durability
from chronik.model import NO_LEADER_EPOCH, NO_TIMESTAMP
from chronik.protocol.batch import (
    STAMP_SIZE,
    Batch,
    BatchHeader,
    last_next_offset,
    read_header,
    stamp,
)
from chronik.protocol.control import EndTxnMarker, build_marker
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.records import build_batch
from chronik.protocol.schema import Buffer
from chronik.replication.admission import admit
from chronik.replication.producers import Producers
from chronik.replication.topic_config import TopicConfig
from chronik.replication.transactions import AbortedTxn
from chronik.replication.verification import Guard
from chronik.storage.cleaned_transactions import TransactionState
from chronik.storage.commit import GroupCommit
from chronik.storage.errors import OffsetOutOfRange, StorageError
from chronik.storage.log import Log

logger = logging.getLogger(__name__)


class AckWaiter(Protocol):
    """Who waits for an append to be committed."""

    def acknowledged(self, partition: "Partition") -> None:
        """The high watermark has passed the append."""

    def failed(self, partition: "Partition") -> None:
        """The disk failed: whether the append survives is not known."""


class Watcher(Protocol):
    """Who waits for more to read."""

    def moved(self, partition: "Partition", bytes_appended: int, bytes_stable: int) -> None:
        """The high watermark moved, or the partition went away.

        `bytes_appended` are new below the high watermark; zero: something else happened.
        `bytes_stable` bounds what is new below the last stable offset; zero: it did not move.
        """


@dataclass(frozen=True, slots=True)
class Appended:
    """Where a produce request's batches went."""

    base_offset: int
    end_offset: int  # acknowledged once the high watermark has reached it
    log_append_time_ms: int
    log_start_offset: int


class Partition:
    """The local replica of one partition, leading it."""

    __slots__ = (
        "_acks",
        "_bytes_unseen",
        "_bytes_unstable",
        "_commit",
        "_durable_acks",
        "_stable_offset",
        "config",
        "failure",
        "high_watermark",
        "index",
        "is_deleted",
        "is_loaded",
        "leader_epoch",
        "log",
        "name",
        "producers",
        "snapshot_is_stale",
        "snapshot_offset",
        "snapshot_saved",
        "snapshot_taken",
        "topic_id",
        "watchers",
    )

    def __init__(
        self,
        *,
        name: str,
        topic_id: bytes,
        index: int,
        leader_epoch: int,
        log: Log,
        config: TopicConfig,
        commit: GroupCommit,
        durability: Durability,
    ) -> None:
        self.name = name
        self.topic_id = topic_id
        self.index = index
        self.leader_epoch = leader_epoch
        self.log = log
        self.config = config
        self.producers = Producers()
        self.snapshot_offset = 0  # where the log ended when the producers were saved last
        self.snapshot_is_stale = False  # whether the saved one lists what is forgotten since
        self.snapshot_taken = self.snapshot_saved = 0  # counts, to save none over a later one
        self.high_watermark = log.log_start_offset
        self._stable_offset = log.log_start_offset
        self.is_loaded = False
        self.is_deleted = False
        self.failure: str | None = None
        self._commit = commit
        self._durable_acks = durability == "fsync"
        # Both are there only while somebody waits: they are large, and most partitions idle.
        self.watchers: set[Watcher] | None = None
        self._acks: deque[tuple[int, AckWaiter]] | None = None
        self._bytes_unseen = 0
        self._bytes_unstable = 0  # appended since the last stable offset was the high watermark

    def __str__(self) -> str:
        return f"{self.name}-{self.index}"

    def loaded(self) -> None:
        """The log was recovered: everything in it is on disk, and so readable."""
        self.high_watermark = self.log.end_offset
        self.producers.on_high_watermark(self.high_watermark)
        self.producers.trim(self.log.log_start_offset)
        self._advance_stable()
        if self._stable_offset < self.high_watermark:
            self._bytes_unstable = self.log.size_bytes  # A bound: see `_advance_stable`.
        self.is_loaded = True

    # Appends.

    def append(
        self,
        data: Buffer,
        *,
        version: int,
        acks: int,
        isr_count: int,
        now_ms: int,
        guard: Guard | None = None,
        verify: bool = True,
    ) -> Appended:
        """Write what a producer sent, or raise KafkaError; nothing is awaited here.

        A batch that opens a transaction needs a valid guard (`begin_verification`), unless
        verification is switched off: `verify=False`.
        """
        self._check_usable()
        if acks == -1 and isr_count < self.config.min_insync_replicas:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"The in-sync set of {self} has {isr_count} replica(s), "
                f"min.insync.replicas is {self.config.min_insync_replicas}.",
            )
        batches = admit(data, version, self.config, now_ms)
        repeated = self._repeated(batches, guard, verify)
        if repeated is not None:
            return repeated
        base_offset = self.log.end_offset
        bytes_written = 0
        try:
            for batch in batches:
                self._write(batch, now_ms)
                bytes_written += len(batch.data)
        finally:
            # Of a legacy set a later batch may fail: what is in the log counts all the same.
            if bytes_written:
                self._written(bytes_written)
        return self._appended(base_offset, now_ms)

    def _appended(self, base_offset: int, now_ms: int) -> Appended:
        return Appended(
            base_offset=base_offset,
            end_offset=self.log.end_offset,
            log_append_time_ms=now_ms if self.config.append_time else NO_TIMESTAMP,
            log_start_offset=self.log.log_start_offset,
        )

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        commit: bool,
        coordinator_epoch: int,
        now_ms: int,
        transaction_version: int = 1,
    ) -> Appended:
        """End a producer's transaction here; KafkaError for a stale producer or coordinator."""
        self._check_usable()
        self.producers.check_marker(
            producer_id, producer_epoch, coordinator_epoch, transaction_version
        )
        marker = EndTxnMarker(commit, coordinator_epoch)
        data = build_marker(
            marker,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            timestamp=now_ms,
            append_time=self.config.append_time,
        )
        return self._append_one(data, now_ms, marker)

    def append_internal(self, records: Buffer, now_ms: int) -> Appended:
        """Write a coordinator's ready-made batch: no limits of clients, no sequence."""
        self._check_usable()
        header = read_header(records)
        assert header.size == len(records)
        assert not header.is_control
        if header.producer_id >= 0:
            self.producers.check_internal(header)
        return self._append_one(records, now_ms)

    def check_internal(
        self, producer_id: int, producer_epoch: int, guard: Guard | None, *, verify: bool
    ) -> None:
        """Raise KafkaError if a coordinator may not write for this producer's transaction now.

        With `verify` a batch that opens the transaction needs a valid guard, as a client's does.
        """
        header = build_batch(
            (), producer_id=producer_id, producer_epoch=producer_epoch, transactional=True
        )
        self.producers.check_internal(read_header(header), guard, verify=verify)

    def _append_one(
        self, data: Buffer, now_ms: int, marker: EndTxnMarker | None = None
    ) -> Appended:
        base_offset = self.log.end_offset
        self._write(Batch(read_header(data), memoryview(data)), now_ms, marker)
        self._written(len(data))
        return self._appended(base_offset, now_ms)

    def needs_verification(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether a transactional batch of this producer would open a transaction here."""
        return self.producers.needs_verification(producer_id, producer_epoch)

    def begin_verification(
        self,
        producer_id: int,
        producer_epoch: int,
        sequence: int | None = None,
        *,
        supports_epoch_bump: bool = False,
    ) -> Guard:
        """A guard for an append, to be made before the coordinator is asked (KIP-890)."""
        return self.producers.begin_verification(
            producer_id, producer_epoch, sequence, supports_epoch_bump=supports_epoch_bump
        )

    def _repeated(self, batches: list[Batch], guard: Guard | None, verify: bool) -> Appended | None:
        """The first answer, if an idempotent producer sends its batch again."""
        if len(batches) != 1 or batches[0].header.producer_id < 0:
            return None
        earlier = self.producers.check(batches[0].header, guard, verify=verify)
        if earlier is None:
            return None
        return Appended(
            base_offset=earlier.base_offset,
            end_offset=earlier.base_offset + earlier.last_offset_delta + 1,
            log_append_time_ms=earlier.timestamp if self.config.append_time else NO_TIMESTAMP,
            log_start_offset=self.log.log_start_offset,
        )

    def _write(self, batch: Batch, now_ms: int, marker: EndTxnMarker | None = None) -> None:
        header = batch.header
        offset = self.log.end_offset
        stamped = BatchHeader(offset, header.length, self.leader_epoch, *header[3:])
        head = stamp(offset, header.length, self.leader_epoch)
        try:
            self.log.append(stamped, (head, batch.data[STAMP_SIZE:]), now_ms)
        except (OSError, StorageError) as error:
            if self.log.failed is not None:
                self.fail(str(error))  # A full disk, in contrast, leaves the log as it was.
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        if header.producer_id >= 0:
            self.producers.append(stamped, now_ms, marker)

    def _written(self, bytes_written: int) -> None:
        self._bytes_unseen += bytes_written
        self._bytes_unstable += bytes_written
        self._commit.add(self.log)
        if not self._durable_acks:
            self._advance(self.log.end_offset)

    def wait_acknowledged(self, end_offset: int, waiter: AckWaiter) -> bool:
        """True if this is committed already; else the waiter is told when it is."""
        if end_offset <= self.high_watermark:
            return True
        if self._acks is None:
            self._acks = deque()
        self._acks.append((end_offset, waiter))
        return False

    def on_durable(self) -> None:
        """The group commit has put more of the log on disk."""
        if self._durable_acks:
            self._advance(self.log.durable_offset)

    def _advance(self, high_watermark: int) -> None:
        if high_watermark <= self.high_watermark:
            return
        self.high_watermark = high_watermark
        self.producers.on_high_watermark(high_watermark)
        bytes_stable = self._advance_stable()
        while self._acks and self._acks[0][0] <= high_watermark:
            self._acks.popleft()[1].acknowledged(self)
        if not self._acks:
            self._acks = None
        appended, self._bytes_unseen = self._bytes_unseen, 0
        if self.watchers:
            self._notify(appended, bytes_stable)

    def _advance_stable(self) -> int:
        """Move the last stable offset; how many bytes at most are stable now, 0 if none."""
        first_unstable = self.producers.first_unstable_offset()
        high_watermark = self.high_watermark
        if first_unstable is None or first_unstable >= high_watermark:
            stable_offset = high_watermark
        else:
            stable_offset = first_unstable
        if stable_offset <= self._stable_offset:
            return 0
        self._stable_offset = stable_offset
        # While something stays unstable nobody counts which bytes those are: too many make a
        # reader look once too often, too few would let it wait.
        bytes_stable = self._bytes_unstable
        if stable_offset == high_watermark:
            self._bytes_unstable = 0
        return max(bytes_stable, 1)

    def _notify(self, bytes_appended: int, bytes_stable: int = 0) -> None:
        for watcher in tuple(self.watchers or ()):
            watcher.moved(self, bytes_appended, bytes_stable)

    def watch(self, watcher: Watcher) -> None:
        """Tell the watcher when there is more to read, until `unwatch`."""
        if self.watchers is None:
            self.watchers = set()
        self.watchers.add(watcher)

    def unwatch(self, watcher: Watcher) -> None:
        """Tell the watcher nothing any more."""
        if self.watchers is not None:
            self.watchers.discard(watcher)
            if not self.watchers:
                self.watchers = None

    # Reads.

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        committed: bool = False,
        at_least_one_batch: bool = True,
        nowait: bool = True,
    ) -> Buffer | None:
        """Whole batches below the high watermark; None if the disk would have to be waited for.

        With `committed` only below the last stable offset: what was aborted is among it, and
        `aborted_transactions` tells which.
        """
        self._check_usable()
        if not self.log.log_start_offset <= offset <= self.high_watermark:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        limit_offset = self.last_stable_offset if committed else self.high_watermark
        if offset >= limit_offset or max_bytes <= 0:
            return b""
        try:
            return self.log.read(
                offset,
                max_bytes,
                limit_offset,
                at_least_one_batch=at_least_one_batch,
                nowait=nowait,
            )
        except OffsetOutOfRange:  # The log start moved while a thread was reading.
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE) from None
        except (OSError, StorageError) as error:
            self._check_usable()  # Deleted while a thread was reading: then that is the answer.
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error

    @property
    def last_stable_offset(self) -> int:
        """Up to where everything is decided, and so where read_committed reads."""
        # Of an open transaction retention may have taken the beginning away.
        return max(self._stable_offset, self.log.log_start_offset)

    def aborted_transactions(self, offset: int, records: Buffer) -> list[AbortedTxn]:
        """The aborted transactions that concern what was read from an offset."""
        if not len(records) or not self.producers.has_aborted(offset):
            return []
        return self.producers.aborted_between(offset, last_next_offset(records))

    def check_leader_epoch(self, current_leader_epoch: int) -> None:
        """Raise unless the client's idea of the leader epoch is ours, or it has none (-1)."""
        if current_leader_epoch == -1 or current_leader_epoch == self.leader_epoch:
            return
        if current_leader_epoch < self.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch with records up to the asked one, and its end; (-1, -1) if unknown.

        An epoch in which nothing was written is not in the log, but it was ours all the same.
        """
        epochs = self.log.leader_epochs
        last_epoch = epochs[-1][0] if epochs else NO_LEADER_EPOCH
        if last_epoch < epoch <= self.leader_epoch:
            return (last_epoch if epochs else epoch), self.log.end_offset
        return self.log.end_offset_for_epoch(epoch)

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record, or the current one while there is none."""
        epochs = self.log.leader_epochs
        return epochs[-1][0] if epochs else self.leader_epoch

    # Changes from outside.

    def delete_records(self, offset: int) -> int:
        """Move the log start forward to an offset, or to the high watermark (-1)."""
        self._check_usable()
        target = self.high_watermark if offset == -1 else offset
        if not 0 <= target <= self.high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{target} is not between 0 and the high watermark {self.high_watermark}.",
            )
        if target > self.log.log_start_offset:
            self.log.advance_log_start(target)
            self.producers.trim(target)
        return self.log.log_start_offset

    def log_start_moved(self) -> None:
        """Records are gone from the beginning: watchers are told."""
        self.producers.trim(self.log.log_start_offset)
        self._notify(0)

    def transaction_state(self) -> TransactionState:
        """What compaction must know of transactions, and how it tells which are gone."""
        return TransactionState(
            aborted=[each[:3] for each in self.producers.aborted()],
            marker_epochs=self.producers.marker_epochs(),
            snapshot_offset=self.snapshot_offset,
            forget=self._forget_aborted,
        )

    def _forget_aborted(self, last_offset: int) -> None:
        if self.producers.forget_aborted(last_offset):
            self.snapshot_is_stale = True

    def configure(self, config: TopicConfig, leader_epoch: int) -> None:
        """Take over changed settings and a new leader epoch."""
        self.config = config
        self.log.config = config.log
        if leader_epoch != self.leader_epoch:
            self.leader_epoch = leader_epoch
            self._notify(0)  # A parked fetch may carry the old epoch, and must be told.

    def deleted(self) -> None:
        """The topic is gone: whoever waits is told, and finds it gone."""
        self.is_deleted = True
        self._release()

    def fail(self, reason: str) -> None:
        """The disk failed under this partition; it stays unusable."""
        if self.failure is None:
            self.failure = reason
            logger.error("partition is offline", extra={"partition": str(self), "error": reason})
        self._release()

    def _release(self) -> None:
        waiting, self._acks = self._acks, None
        for _, waiter in waiting or ():
            waiter.failed(self)
        self._notify(0)

    def _check_usable(self) -> None:
        if self.failure is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self.failure)
        if self.is_deleted:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
