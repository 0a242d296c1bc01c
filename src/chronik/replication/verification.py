"""The guard between asking a coordinator and opening a transaction here (KIP-890).

A transactional batch may open a transaction in a partition only while the coordinator knows the
partition to be in it. The answer takes time, and a marker may land meanwhile: then the batch would
open a transaction that nobody ever ends. So whoever asks first gets a guard, and the append gives
it back: it is valid until any transactional batch or marker of that producer is appended.

A producer's requests that ask at the same time share one guard. It remembers the lowest sequence
among them: a later batch must not go first if an earlier one failed its verification.
"""

from typing import Final

from chronik.model import NO_PRODUCER_EPOCH
from chronik.protocol.batch import BatchHeader
from chronik.protocol.errors import ErrorCode, KafkaError

GUARDS_MAX: Final = 10_000  # of one partition; what failed verifications leave is dropped in turn


class Guard:
    """One verification under way. Compared by identity: it cannot be made up."""

    __slots__ = ("_epoch", "_lowest_sequence", "_supports_epoch_bump")

    def __init__(self, supports_epoch_bump: bool) -> None:
        self._epoch = NO_PRODUCER_EPOCH
        self._lowest_sequence: int | None = None
        self._supports_epoch_bump = supports_epoch_bump

    def asked(self, epoch: int, sequence: int | None) -> None:
        """One more batch waits for this verification."""
        if sequence is None or epoch < self._epoch:
            return
        lowest = self._lowest_sequence
        if epoch > self._epoch or lowest is None or sequence < lowest:
            self._epoch = epoch
            self._lowest_sequence = sequence

    def check_sequence(self, header: BatchHeader, *, is_known: bool) -> None:
        """Raise unless this batch may be the producer's first; `is_known`: it has state here."""
        sequence, lowest = header.base_sequence, self._lowest_sequence
        # A client that bumps its epoch with each transaction always begins at zero, also where a
        # producer without state might begin anywhere.
        starts_late = self._supports_epoch_bump and sequence != 0 and not is_known
        if starts_late or (lowest is not None and sequence > lowest):
            message = (
                f"producer {header.producer_id} sent sequence {sequence} first,"
                f" expected {0 if starts_late else lowest}"
            )
            raise KafkaError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, message)


class Guards:
    """The verifications under way in one partition, by producer."""

    __slots__ = ("_guards",)

    def __init__(self) -> None:
        self._guards: dict[int, Guard] = {}

    def begin(
        self, producer_id: int, epoch: int, sequence: int | None, supports_epoch_bump: bool
    ) -> Guard:
        """The guard for a verification that begins now, or that is under way already."""
        guard = self._guards.get(producer_id)
        if guard is None:
            if len(self._guards) >= GUARDS_MAX:
                del self._guards[next(iter(self._guards))]
            guard = self._guards[producer_id] = Guard(supports_epoch_bump)
        guard.asked(epoch, sequence)
        return guard

    def is_valid(self, producer_id: int, guard: Guard) -> bool:
        """Whether nothing of this producer was appended since the guard was given out."""
        return self._guards.get(producer_id) is guard

    def clear(self, producer_id: int) -> None:
        """A transactional batch or a marker of this producer was appended."""
        self._guards.pop(producer_id, None)
