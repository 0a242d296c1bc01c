"""One partition on this node: appends, reads, and who waits for either.

An append is admitted, checked against its producer's sequence, stamped and written at once, on
the event loop; it is acknowledged when the high watermark has passed it. That is the least of what
the in-sync replicas have stored (`isr`): put on disk by the group commit with durability "fsync",
written with "replicated". A transaction's batches are acknowledged when the in-sync replicas have
them in memory: its commit waits for the rest (`wait_sealed`). A fetch that found too little watches
the partition, and is told when the high watermark moves. A follower appends what its leader sends,
as it is.

Transactions: a client's transactional batch opens its producer's transaction, with a guard that
says that the coordinator was asked; the coordinator's marker ends it. The last stable offset is
the high watermark, or the first offset of the oldest transaction that is open or whose marker the
high watermark has not passed. It moves only when the high watermark or the log start does.

Invariants
    Neither the high watermark nor the last stable offset ever moves back.

What it leaves to others: `readable` is the reader's side, `admission` judges bytes, `producers`
sequences, `storage.log` files, `replicas` decides which partitions are here and when they are
loaded.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chronik.config.settings import Durability
from chronik.metadata.records import PartitionRecord
from chronik.model import NO_TIMESTAMP
from chronik.protocol.batch import (
    STAMP_SIZE,
    Batch,
    BatchHeader,
    read_header,
    stamp,
    verify_crc,
)
from chronik.protocol.control import EndTxnMarker, build_marker, read_marker
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.records import build_batch
from chronik.protocol.schema import Buffer
from chronik.replication.admission import admit
from chronik.replication.isr import InSync
from chronik.replication.producers import Producers
from chronik.replication.readable import Readable
from chronik.replication.room import Room
from chronik.replication.topic_config import TopicConfig
from chronik.replication.verification import Guard
from chronik.replication.waiting import AckQueue, AckWaiter, Feed
from chronik.storage.commit import GroupCommit
from chronik.storage.errors import StorageError
from chronik.storage.log import Log

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Appended:
    """Where a produce request's batches went."""

    base_offset: int
    end_offset: int  # acknowledged once the high watermark has reached it
    log_append_time_ms: int
    log_start_offset: int
    is_transactional: bool = False


class Partition(Readable):
    """The local replica of one partition. It leads while `in_sync` is there, else it follows."""

    __slots__ = (
        "_acks", "_bytes_unseen", "_bytes_unstable", "_commit", "_durable_acks", "_node_id",
        "_received_acks", "_room", "_stored_acks", "config", "epoch_start_offset", "feeds",
        "in_sync", "index", "is_loaded", "leader_epoch", "name", "on_stored", "received_offset",
        "snapshot_is_stale", "snapshot_offset", "snapshot_saved", "snapshot_taken", "topic_id",
    )  # fmt: skip

    def __init__(
        self,
        *,
        name: str,
        topic_id: bytes,
        node_id: int,
        record: PartitionRecord,
        log: Log,
        config: TopicConfig,
        commit: GroupCommit,
        durability: Durability,
        room: Room,
    ) -> None:
        super().__init__(log)
        self.name = name
        self.topic_id = topic_id
        self.index = record.partition
        self._node_id = node_id
        self.leader_epoch = record.leader_epoch
        self.epoch_start_offset = 0  # where this leader's own epoch begins
        self.in_sync: InSync | None = None
        self.config = config
        self.snapshot_offset = 0  # where the log ended when the producers were saved last
        self.snapshot_is_stale = False  # whether the saved one lists what is forgotten since
        self.snapshot_taken = self.snapshot_saved = 0  # counts, to save none over a later one
        self.received_offset = 0  # up to where a transaction's records may be acknowledged
        self.is_loaded = False
        self._commit = commit
        self._room = room
        self._durable_acks = durability == "fsync"
        # These are there only while somebody waits: they are large, and most partitions idle.
        self.feeds: dict[Feed, None] | None = None
        self._acks: AckQueue | None = None
        self._stored_acks: AckQueue | None = None
        self._received_acks: AckQueue | None = None
        self.on_stored: Callable[[Partition], None] | None = None  # a follower's own progress
        self._bytes_unseen = 0
        self._bytes_unstable = 0  # appended since the last stable offset was the high watermark

    def __str__(self) -> str:
        return f"{self.name}-{self.index}"

    def loaded(self, high_watermark: int | None = None) -> None:
        """The log was recovered: everything in it is on disk.

        Without other replicas all of it is committed. With others that is known up to the high
        watermark that was saved, and the rest will be found out.
        """
        end_offset = self.log.end_offset
        self.high_watermark = end_offset
        if high_watermark is not None:
            self.high_watermark = max(min(high_watermark, end_offset), self.log.log_start_offset)
        self.producers.on_high_watermark(self.high_watermark)
        self.producers.trim(self.log.log_start_offset)
        self._advance_stable()
        if self._stable_offset < self.high_watermark:
            self._bytes_unstable = self.log.size_bytes  # A bound: see `_advance_stable`.
        self.is_loaded = True
        if self.in_sync is not None:
            self.epoch_start_offset = end_offset
            self.recount()

    # Roles.

    def lead(self, record: PartitionRecord, now_ms: int) -> None:
        """This node leads: in a new leader epoch, or with another in-sync set than before."""
        in_sync = self.in_sync
        if in_sync is not None and record.leader_epoch == self.leader_epoch:
            in_sync.committed(record, now_ms)
            self.recount()
            if self.is_under_min_insync:
                # It may take long until there are enough again. The producer may ask once more.
                error = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
                for queue in (self._acks, self._received_acks):
                    if queue is not None:
                        queue.fail(self, error)
            return
        self.leader_epoch = record.leader_epoch
        self.in_sync = InSync(self._node_id, record, now_ms)
        self.epoch_start_offset = self.log.end_offset
        self.received_offset = 0
        self.on_stored = None
        self._notify(0)  # A parked fetch may carry the old epoch, and must be told.
        if self.is_loaded:
            self.recount()

    def follow(self, leader_epoch: int) -> None:
        """Another node leads, or nobody; whoever waits for this one is told."""
        if self.in_sync is None and leader_epoch == self.leader_epoch:
            return
        self.in_sync = None
        self.received_offset = 0
        self.leader_epoch = leader_epoch
        self._release(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))

    @property
    def is_under_min_insync(self) -> bool:
        """Whether fewer replicas are in sync than acks=all asks for."""
        in_sync = self.in_sync
        return in_sync is not None and in_sync.is_under(self.config.min_insync_replicas)

    @property
    def stored_offset(self) -> int:
        """Up to where this replica's own log counts."""
        return self.log.durable_offset if self._durable_acks else self.log.end_offset

    def replica_progressed(
        self, node_id: int, broker_epoch: int, end_offset: int, stored_offset: int, now_ms: int
    ) -> None:
        """A follower tells how far it has come."""
        in_sync = self.in_sync
        if in_sync is not None and in_sync.progressed(
            node_id, broker_epoch, end_offset, stored_offset, self.log.end_offset, now_ms
        ):
            self.recount()

    def recount(self) -> None:
        """Move the high watermark to where it belongs now."""
        assert self.in_sync is not None
        stored_offset = self.stored_offset
        if self._stored_acks is not None and not self._stored_acks.reached(stored_offset, self):
            self._stored_acks = None
        received = self._received_acks
        if received is not None and not received.reached(self.recount_received(), self):
            self._received_acks = None
        self._advance(self.in_sync.high_watermark(stored_offset, self.config.min_insync_replicas))

    @property
    def is_told_ahead(self) -> bool:
        """Whether a transaction was told of records that the high watermark has not passed yet."""
        return self.received_offset > self.high_watermark

    def recount_received(self) -> int:
        """Up to where the in-sync replicas have the log, be it in memory."""
        assert self.in_sync is not None
        received_offset = self.in_sync.received_offset(
            self.log.end_offset, self.config.min_insync_replicas
        )
        self.received_offset = max(self.received_offset, received_offset)
        return self.received_offset

    # Appends.

    def append(
        self,
        data: Buffer,
        *,
        version: int,
        acks: int,
        now_ms: int,
        guard: Guard | None = None,
        verify: bool = True,
    ) -> Appended:
        """Write what a producer sent, or raise KafkaError; nothing is awaited here.

        A batch that opens a transaction needs a valid guard (`begin_verification`), unless
        verification is switched off: `verify=False`.
        """
        self._check_leads()
        if acks == -1 and self.is_under_min_insync:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"The in-sync set of {self} has fewer replicas than min.insync.replicas, "
                f"which is {self.config.min_insync_replicas}.",
            )
        batches = admit(data, version, self.config, now_ms)
        repeated = self._repeated(batches, guard, verify)
        if repeated is not None:
            return repeated
        base_offset = self.log.end_offset
        is_transactional = len(batches) == 1 and batches[0].header.is_transactional
        bytes_written = 0
        try:
            for batch in batches:
                self._write(batch, now_ms)
                bytes_written += len(batch.data)
        finally:
            # Of a legacy set a later batch may fail: what is in the log counts all the same.
            if bytes_written:
                self._written(bytes_written, may_wait=is_transactional)
        return self._appended(base_offset, now_ms, is_transactional)

    def _appended(self, base_offset: int, now_ms: int, is_transactional: bool = False) -> Appended:
        return Appended(
            base_offset=base_offset,
            end_offset=self.log.end_offset,
            log_append_time_ms=now_ms if self.config.append_time else NO_TIMESTAMP,
            log_start_offset=self.log.log_start_offset,
            is_transactional=is_transactional,
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
        self._check_leads()
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
        self._check_leads()
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
            is_transactional=batches[0].header.is_transactional,
        )

    def _write(self, batch: Batch, now_ms: int, marker: EndTxnMarker | None = None) -> None:
        header = batch.header
        offset = self.log.end_offset
        stamped = BatchHeader(offset, header.length, self.leader_epoch, *header[3:])
        head = stamp(offset, header.length, self.leader_epoch)
        self._log(stamped, (head, batch.data[STAMP_SIZE:]), now_ms)
        if header.producer_id >= 0:
            self.producers.append(stamped, now_ms, marker)

    def _log(self, header: BatchHeader, buffers: Sequence[Buffer], now_ms: int) -> None:
        if self._room.is_full:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "The disk is full.")
        try:
            self.log.append(header, buffers, now_ms)
        except (OSError, StorageError) as error:
            self._room.failed(error)
            if self.log.failed is not None:
                self.fail(str(error))  # A full disk, in contrast, leaves the log as it was.
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error

    def _written(self, bytes_written: int, *, may_wait: bool = False) -> None:
        self._bytes_unseen += bytes_written
        self._bytes_unstable += bytes_written
        self._commit.add(self.log, may_wait=may_wait)
        for feed in self.feeds or ():
            feed.appended()
        if not self._durable_acks and self.in_sync is not None:
            self.recount()

    def append_replicated(self, batches: Sequence[Batch], now_ms: int) -> None:
        """Write what the leader sent, as it is; KafkaError if it is damaged or does not fit."""
        self._check_usable()
        bytes_written = 0
        try:
            for batch in batches:
                header, data = batch
                if header.base_offset < self.log.end_offset:
                    reason = f"offset {header.base_offset} after {self.log.end_offset}"
                    raise KafkaError(ErrorCode.CORRUPT_MESSAGE, reason)
                verify_crc(batch)
                self._log(header, (data,), now_ms)
                bytes_written += len(data)
                if header.producer_id >= 0:
                    marker = read_marker(data) if header.is_control else None
                    self.producers.append(header, now_ms, marker)
        finally:
            if bytes_written:
                self._written(bytes_written)

    def rewritten(self, producers: Producers) -> None:
        """The log was cut or begun anew."""
        self.producers = producers
        if self.high_watermark > self.log.end_offset:
            # Only after an unclean election: what was committed is lost.
            extra = {"partition": str(self), "high_watermark": self.high_watermark}
            logger.error("committed records were cut", extra=extra)
        self.high_watermark = min(self.high_watermark, self.log.end_offset)
        self.high_watermark = max(self.high_watermark, self.log.log_start_offset)
        self._stable_offset = min(self._stable_offset, self.high_watermark)
        producers.on_high_watermark(self.high_watermark)
        self._advance_stable()
        self.snapshot_is_stale = True
        self.is_loaded = True
        if self.in_sync is not None:  # It became the leader while its log was cut.
            self.epoch_start_offset = self.log.end_offset
            self.recount()
        self._notify(0)

    def leader_moved(self, high_watermark: int, log_start_offset: int) -> None:
        """The leader tells what is committed, and where its log begins."""
        end_offset = self.log.end_offset
        self._advance(min(high_watermark, end_offset))
        if self.log.log_start_offset < log_start_offset <= end_offset:
            self.log.advance_log_start(log_start_offset)
            self.log_start_moved()

    def wait_acknowledged(self, end_offset: int, waiter: AckWaiter) -> bool:
        """True if this is committed already; else the waiter is told when it is."""
        if end_offset <= self.high_watermark:
            return True
        if self._acks is None:
            self._acks = AckQueue()
        self._acks.add(end_offset, waiter)
        return False

    def wait_stored(self, end_offset: int, waiter: AckWaiter) -> bool:
        """The same for acks=1: it is in this replica's log, as durable as that is to be."""
        if end_offset <= self.stored_offset:
            return True
        if self._stored_acks is None:
            self._stored_acks = AckQueue()
        self._stored_acks.add(end_offset, waiter)
        return False

    def wait_received(self, end_offset: int, waiter: AckWaiter) -> bool:
        """The same for a transaction's records: every in-sync replica has them, in memory."""
        if end_offset <= self.received_offset:
            return True
        if self._received_acks is None:
            self._received_acks = AckQueue()
        self._received_acks.add(end_offset, waiter)
        return False

    def wait_sealed(self, waiter: AckWaiter) -> bool:
        """The same for all that is in the log now to be committed, without delay."""
        end_offset = self.log.end_offset
        if end_offset > self.log.durable_offset:
            self._commit.add(self.log)
        return self.wait_acknowledged(end_offset, waiter)

    def on_durable(self) -> None:
        """The group commit has put more of the log on disk."""
        if not self.is_loaded:
            return
        if self.in_sync is not None:
            if self._durable_acks:
                self.recount()
        elif self.on_stored is not None:
            self.on_stored(self)

    def _advance(self, high_watermark: int) -> None:
        if high_watermark <= self.high_watermark:
            return
        self.high_watermark = high_watermark
        self.producers.on_high_watermark(high_watermark)
        bytes_stable = self._advance_stable()
        if self._acks is not None and not self._acks.reached(high_watermark, self):
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

    def configure(self, config: TopicConfig) -> None:
        """Take over changed settings."""
        self.config = config
        self.log.config = config.log
        if self.in_sync is not None and self.is_loaded:
            self.recount()  # min.insync.replicas may have changed.

    def deleted(self) -> None:
        """The topic is gone: whoever waits is told, and finds it gone."""
        self.is_deleted = True
        self._release(KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))

    def fail(self, reason: str) -> None:
        """The disk failed under this partition; it stays unusable."""
        if self.failure is None:
            self.failure = reason
            logger.error("partition is offline", extra={"partition": str(self), "error": reason})
        self._release(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, reason))

    def _release(self, error: KafkaError) -> None:
        for queue in (self._acks, self._stored_acks, self._received_acks):
            if queue is not None:
                queue.fail(self, error)
        self._notify(0)

    def _check_leads(self) -> None:
        self._check_usable()
        if self.in_sync is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
