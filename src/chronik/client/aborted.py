"""Which batches of a fetch belong to aborted transactions.

A reader of committed data gets the batches of aborted transactions too, and with them, for each,
its producer and its first offset. The transaction ends with the producer's abort marker.
"""

from collections import deque
from collections.abc import Sequence

from chronik.protocol.batch import Batch
from chronik.protocol.control import read_marker
from chronik.protocol.messages.fetch import AbortedTransaction


class AbortedBatches:
    """Tells the batches of one answer that are to be skipped; every batch is shown, in order."""

    def __init__(self, transactions: Sequence[AbortedTransaction]) -> None:
        self._coming = deque(sorted(transactions, key=lambda each: each.first_offset))
        self._producers: set[int] = set()

    def includes(self, batch: Batch) -> bool:
        """Whether to skip this data batch."""
        self._begin(batch)
        return batch.header.is_transactional and batch.header.producer_id in self._producers

    def _begin(self, batch: Batch) -> None:
        while self._coming and self._coming[0].first_offset <= batch.header.last_offset:
            self._producers.add(self._coming.popleft().producer_id)

    def ended(self, batch: Batch) -> None:
        """A control batch: the producer's next transaction is another one."""
        self._begin(batch)  # An answer may begin with the marker of a transaction that it names.
        if batch.header.producer_id in self._producers:
            marker = read_marker(batch.data)
            if marker is not None and not marker.commit:
                self._producers.discard(batch.header.producer_id)
