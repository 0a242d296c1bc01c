"""What compaction must know of transactions, and what it finds out while it copies.

Records of an aborted transaction go, and supersede nothing. A marker stays as long as any batch of
its transaction is left, also one without records: without the marker a replay would find the
transaction open, or a reader would take what was aborted for committed. Once nothing is left the
marker stays for `delete_retention_ms` more, for readers that are in the middle (KIP-534).

Invariants
    Everything below the limit of a cleaning is decided: a transactional batch is either in the
    list of aborted transactions or committed.
    A marker goes only after the saved list of aborted transactions has lost its entry, and only
    if the saved producers know that its transaction has ended. So no crash, at whatever point,
    lists a transaction whose marker is gone or leaves one open.
    A marker that set its producer's epoch, with no data after it, stays as long as the producer.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from chronik.protocol.batch import BatchHeader

Aborted = tuple[int, int, int]  # producer id, first offset, offset of the marker


def _forget_nothing(last_offset: int) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionState:
    """A partition's transactions as they are when a cleaning begins."""

    aborted: Sequence[Aborted] = ()  # in the order of their markers
    marker_epochs: Mapping[int, int] = field(default_factory=dict)  # of producers without data
    snapshot_offset: int = 0  # the saved producers know all markers below it
    forget: Callable[[int], None] = _forget_nothing  # an aborted transaction, by its marker


class CleanedTransactions:
    """Follows the transactions of one cleaning, batch by batch from the log's beginning."""

    def __init__(self, state: TransactionState) -> None:
        self._state = state
        self._ranges: dict[int, list[tuple[int, int]]] = {}
        for producer_id, first_offset, last_offset in state.aborted:
            # One producer's transactions follow each other, so that these ascend too.
            self._ranges.setdefault(producer_id, []).append((first_offset, last_offset))
        self._listed = {last_offset for _, _, last_offset in state.aborted}
        self._with_data: set[int] = set()  # producers with a batch since their last marker

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether a data batch belongs to an aborted transaction."""
        ranges = self._ranges.get(header.producer_id)
        if ranges is None or not header.is_transactional:
            return False
        i = bisect_right(ranges, header.base_offset, key=lambda each: each[0]) - 1
        return i >= 0 and header.base_offset < ranges[i][1]

    def data_seen(self, header: BatchHeader) -> None:
        """A data batch was there when this cleaning came by."""
        if header.is_transactional:
            self._with_data.add(header.producer_id)

    def is_emptied(self, header: BatchHeader) -> bool:
        """Whether this control batch ends a transaction of which nothing is left."""
        if not header.is_transactional or header.producer_id < 0:
            return False
        if header.producer_id in self._with_data:
            self._with_data.discard(header.producer_id)
            return False
        if header.last_offset in self._listed:
            self._state.forget(header.last_offset)
        return True

    def may_go(self, header: BatchHeader) -> bool:
        """Whether nobody needs the marker of an emptied transaction any more."""
        return (
            header.last_offset not in self._listed
            and header.last_offset < self._state.snapshot_offset
            and self._state.marker_epochs.get(header.producer_id) != header.producer_epoch
        )
