"""What readers see of a partition: how far they may read, and who waits for more.

Invariants
    Nobody reads at or above the high watermark, who reads committed data not above the last stable
    offset.
    A partition whose disk failed answers KAFKA_STORAGE_ERROR until a person has salvaged it.

`partition` moves the high watermark and the last stable offset, and tells whoever waits.
"""

from chronik.protocol.batch import last_next_offset
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.schema import Buffer, Part
from chronik.replication.producers import Producers
from chronik.replication.transactions import AbortedTxn
from chronik.replication.waiting import Watcher
from chronik.storage.errors import OffsetOutOfRange, StorageError
from chronik.storage.file_range import FileRange
from chronik.storage.log import Log


class Readable:
    """A partition's log and producers, as its readers need them."""

    __slots__ = (
        "_stable_offset", "failure", "high_watermark", "is_deleted", "log", "producers", "watchers",
    )  # fmt: skip

    def __init__(self, log: Log) -> None:
        self.log = log
        self.producers = Producers()
        self.high_watermark = log.log_start_offset
        self._stable_offset = log.log_start_offset
        self.is_deleted = False
        self.failure: str | None = None
        # There only while somebody waits: it is large, and most partitions idle. In the order in
        # which they came, so that nobody is told before his turn.
        self.watchers: dict[Watcher, None] | None = None

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
        limit_offset = self.last_stable_offset if committed else self.high_watermark
        return self._read(
            offset,
            max_bytes,
            limit_offset,
            at_least_one_batch=at_least_one_batch,
            nowait=nowait,
        )

    def file_range(self, offset: int, max_bytes: int, *, committed: bool) -> FileRange | None:
        """What `read` would give, for a socket to take from the page cache; None: read it."""
        self._check_usable()
        if committed and self.producers.has_aborted(offset):
            return None  # Which of them concern it is seen only in the batches.
        limit_offset = self.last_stable_offset if committed else self.high_watermark
        return self.log.file_range(offset, max_bytes, limit_offset)

    def read_for_follower(
        self, offset: int, max_bytes: int, *, nowait: bool = True
    ) -> Buffer | None:
        """Whole batches up to the log's end; None if the disk would have to be waited for."""
        return self._read(
            offset, max_bytes, self.log.end_offset, at_least_one_batch=True, nowait=nowait
        )

    def _read(
        self,
        offset: int,
        max_bytes: int,
        limit_offset: int,
        *,
        at_least_one_batch: bool,
        nowait: bool,
    ) -> Buffer | None:
        self._check_usable()
        if not self.log.log_start_offset <= offset <= self.log.end_offset:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
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

    def aborted_transactions(self, offset: int, records: Part) -> list[AbortedTxn]:
        """The aborted transactions that concern what was read from an offset."""
        if not len(records) or not self.producers.has_aborted(offset):
            return []
        assert isinstance(records, (bytes, bytearray, memoryview)), "`file_range` gives none then"
        return self.producers.aborted_between(offset, last_next_offset(records))

    def watch(self, watcher: Watcher) -> None:
        """Tell the watcher when there is more to read, until `unwatch`."""
        if self.watchers is None:
            self.watchers = {}
        self.watchers[watcher] = None

    def unwatch(self, watcher: Watcher) -> None:
        """Tell the watcher nothing any more."""
        if self.watchers is not None:
            self.watchers.pop(watcher, None)
            if not self.watchers:
                self.watchers = None

    def _check_usable(self) -> None:
        if self.failure is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self.failure)
        if self.is_deleted:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
