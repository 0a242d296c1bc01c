"""The transactions of one partition of `__transaction_state`: who may go on, and what ends how.

The machine decides about requests and deadlines by the rules of Kafka's transaction coordinator
(KIP-98, 360, 447, 588, 890). It writes no marker itself: a `WriteMarkers` action asks for them
once the decision is committed, and `markers_written` completes the transaction.

What a transaction's producer was told of its records promises nothing: every in-sync replica has
them, in memory. The commit is the promise. So it is decided only once all partitions are sealed
(`SealNeeded`), and refused if somewhere memory was lost since the transaction began (ADR 0019).

A request that comes while markers are being written waits for them, at most `BUSY_WAIT_MS`, and
is then answered CONCURRENT_TRANSACTIONS. Kafka answers so at once, and its clients ask again 20 ms
later; the markers are there after one or two. The request that ended the transaction waits too,
so that whoever has committed reads what it wrote; it is answered in any case.

Invariants
    Every change of a transaction is one record; replaying the records gives the live state.
    A transaction whose Prepare record is committed ends as it says, whatever crashes.
    An epoch that was fenced is never accepted again.
    A transaction is committed only with all that was acknowledged in it, and that on disk.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from chronik.config.effective import BrokerConfig
from chronik.coordinator.effects import Effects, ProducerStamp, Record, Token
from chronik.coordinator.internal_topics import CONSUMER_OFFSETS
from chronik.coordinator.timers import Timers
from chronik.coordinator.transactions.records import TransactionLogKey, TransactionLogValue
from chronik.coordinator.transactions.transaction import S, Transaction, TransactionState
from chronik.metadata.image import Image
from chronik.model import NO_PRODUCER_ID, TopicPartition
from chronik.protocol.errors import ErrorCode

ABORT_INTERVAL: Final = "transaction.abort.timed.out.transaction.cleanup.interval.ms"
EXPIRY_INTERVAL: Final = "transaction.remove.expired.transaction.cleanup.interval.ms"
BUSY_WAIT_MS: Final = 500  # far more than markers take, far less than any client's patience

Partitions = frozenset[TopicPartition]


class ProducerIdNeeded(NamedTuple):
    """The answer to a request that must come again, with a fresh producer id."""


class SealNeeded(NamedTuple):
    """The answer to a commit that must come again, once these partitions are sealed as well."""

    partitions: Partitions


class Outcome(NamedTuple):
    """The answer to a request about a transaction: an error, or how its producer goes on."""

    error_code: ErrorCode
    stamp: ProducerStamp = ProducerStamp(-1, -1)


_BUSY: Final = Outcome(ErrorCode.CONCURRENT_TRANSACTIONS)


class Verified(NamedTuple):
    """Which of the asked partitions are not in the transaction."""

    error_code: ErrorCode
    missing: Partitions = frozenset()


@dataclass(frozen=True, slots=True)
class WriteMarkers:
    """Ask the leaders of these partitions to end a transaction, until all have done so."""

    transactional_id: str
    stamp: ProducerStamp
    committed: bool
    partitions: Partitions
    transaction_version: int


class _Deferred(NamedTuple):
    token: Token
    busy: Any
    attempt: Callable[[int], Effects]


class TransactionShard:
    """The machine of one shard."""

    def __init__(self, config: Callable[[], BrokerConfig]) -> None:
        """The settings are read when they are needed."""
        self._config = config
        self._timers = Timers()
        self._deferred: dict[str, list[_Deferred]] = {}
        self.transactions: dict[str, Transaction] = {}
        self.image = Image()

    # Requests.

    def init_producer_id(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: ProducerStamp | None,
        fresh_id: int | None,
        token: Token,
        now_ms: int,
    ) -> Effects:
        """Give a producer its id and a new epoch, and shut out whoever had the old one."""
        if not 0 < timeout_ms <= self._config().integer("transaction.max.timeout.ms"):
            return _answer(token, Outcome(ErrorCode.INVALID_TRANSACTION_TIMEOUT))

        def attempt(now_ms: int) -> Effects:
            return self._init(transactional_id, timeout_ms, expected, fresh_id, token, now_ms)

        return self._when_idle(transactional_id, token, attempt, now_ms)

    def _init(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: ProducerStamp | None,
        fresh_id: int | None,
        token: Token,
        now_ms: int,
    ) -> Effects:
        known = self.transactions.get(transactional_id)
        if known is not None and expected is not None and not _may_initialize(known, expected):
            return _answer(token, Outcome(ErrorCode.PRODUCER_FENCED))
        if known is not None and known.state is S.ONGOING:
            return self._abort_then_init(known, timeout_ms, fresh_id, token, now_ms)
        is_exhausted = known is not None and known.is_epoch_exhausted
        if is_exhausted and expected is not None and known is not None:
            # A repeated request, after its answer was lost, needs no other id.
            is_exhausted = expected.producer_epoch == known.producer_epoch
        if (known is None or is_exhausted) and fresh_id is None:
            return _answer(token, ProducerIdNeeded())
        if known is None:
            assert fresh_id is not None
            known = Transaction(
                transactional_id=transactional_id, producer_id=fresh_id, timeout_ms=timeout_ms
            )
        if is_exhausted:
            assert fresh_id is not None
            keeps_last = expected is not None
            changed = known.rotated(fresh_id, timeout_ms, keeps_last=keeps_last, now_ms=now_ms)
        else:
            expected_epoch = None if expected is None else expected.producer_epoch
            changed = known.initialized(timeout_ms, expected_epoch, now_ms)
        effects = self._change(changed, now_ms)
        effects.reply(token, Outcome(ErrorCode.NONE, changed.stamp))
        return effects

    def _abort_then_init(
        self, known: Transaction, timeout_ms: int, fresh_id: int | None, token: Token, now_ms: int
    ) -> Effects:
        effects = self._fence(known, now_ms)
        # The new producer comes without an epoch of its own: the fence has given it away.
        effects.add(
            self.init_producer_id(known.transactional_id, timeout_ms, None, fresh_id, token, now_ms)
        )
        return effects

    def add_partitions(
        self,
        transactional_id: str,
        stamp: ProducerStamp,
        partitions: Partitions,
        transaction_version: int,
        token: Token,
        now_ms: int,
    ) -> Effects:
        """These partitions belong to the producer's transaction from now on."""

        def attempt(now_ms: int) -> Effects:
            known = self.transactions.get(transactional_id)
            error_code = _check(known, stamp)
            if known is None or error_code:
                return _answer(token, Outcome(error_code))
            if known.state is S.ONGOING and partitions <= known.partitions:
                return _answer(token, Outcome(ErrorCode.NONE, stamp))
            effects = self._change(
                known.with_partitions(
                    partitions, transaction_version, self.image.memory_epoch, now_ms
                ),
                now_ms,
            )
            effects.reply(token, Outcome(ErrorCode.NONE, stamp))
            return effects

        return self._when_idle(transactional_id, token, attempt, now_ms)

    def verify_partitions(
        self,
        transactional_id: str,
        stamp: ProducerStamp,
        partitions: Partitions,
        token: Token,
        now_ms: int,
    ) -> Effects:
        """Say which partitions are not in the producer's open transaction."""

        def attempt(_: int) -> Effects:
            known = self.transactions.get(transactional_id)
            error_code = _check(known, stamp)
            if known is None or error_code:
                return _answer(token, Verified(error_code, partitions))
            added = known.partitions if known.state is S.ONGOING else frozenset()
            return _answer(token, Verified(ErrorCode.NONE, partitions - added))

        busy = Verified(ErrorCode.CONCURRENT_TRANSACTIONS, partitions)
        return self._when_idle(transactional_id, token, attempt, now_ms, busy)

    def end(
        self,
        transactional_id: str,
        stamp: ProducerStamp,
        committed: bool,
        transaction_version: int,
        fresh_id: int | None,
        token: Token,
        now_ms: int,
        sealed: Partitions = frozenset(),
    ) -> Effects:
        """Commit or abort what the producer has open; a commit needs its partitions `sealed`."""
        known = self.transactions.get(transactional_id)
        if known is not None and known.is_ending and not _may_wait(known, stamp, committed):
            # It asks for the other end, or is fenced: no waiting changes that.
            error_code = _end_error(known, stamp)
            return _answer(token, Outcome(error_code or ErrorCode.INVALID_TXN_STATE))

        def attempt(now_ms: int) -> Effects:
            return self._end(
                transactional_id,
                stamp,
                committed,
                transaction_version,
                fresh_id,
                token,
                now_ms,
                sealed,
            )

        return self._when_idle(transactional_id, token, attempt, now_ms)

    def _end(
        self,
        transactional_id: str,
        stamp: ProducerStamp,
        committed: bool,
        transaction_version: int,
        fresh_id: int | None,
        token: Token,
        now_ms: int,
        sealed: Partitions,
    ) -> Effects:
        known = self.transactions.get(transactional_id)
        if known is None:
            return _answer(token, Outcome(ErrorCode.INVALID_PRODUCER_ID_MAPPING))
        error_code = _end_error(known, stamp)
        if error_code:
            return _answer(token, Outcome(error_code))
        if known.state is not S.ONGOING:
            wanted = S.COMPLETE_COMMIT if committed else S.COMPLETE_ABORT
            is_repeated = stamp != known.stamp or not known.bumps_epoch
            if is_repeated and known.state is wanted:
                return _answer(token, Outcome(ErrorCode.NONE, known.stamp))
            begins_empty = not is_repeated or known.state is S.EMPTY
            may_end_empty = begins_empty and not committed and transaction_version >= 2
            if not may_end_empty:
                return _answer(token, Outcome(ErrorCode.INVALID_TXN_STATE))
        elif committed:
            not_whole = self._not_whole(known, sealed)
            if not_whole is not None:
                return _answer(token, not_whole)
        next_id = NO_PRODUCER_ID
        if transaction_version >= 2 and known.is_epoch_exhausted:
            if fresh_id is None:
                return _answer(token, ProducerIdNeeded())
            next_id = fresh_id
        changed = known.prepared(
            committed=committed,
            version=transaction_version,
            next_producer_id=next_id,
            now_ms=now_ms,
        )
        effects = self._prepare(changed, now_ms)
        # It is decided; but whoever is told so expects to read what was committed. With the markers
        # there it is told at once: should Complete be lost, the markers are only written again.
        outcome = Outcome(ErrorCode.NONE, changed.visible_stamp)
        told = Effects(told=[(token, outcome)])
        self._defer(transactional_id, _Deferred(token, outcome, lambda _: told), now_ms)
        return effects

    def _not_whole(self, known: Transaction, sealed: Partitions) -> SealNeeded | Outcome | None:
        """Why a transaction cannot be committed now, if so: whoever asks may abort it."""
        if known.memory_epoch != self.image.memory_epoch:
            return Outcome(ErrorCode.TRANSACTION_ABORTABLE)
        unsealed = frozenset(
            each for each in known.partitions - sealed if each.topic != CONSUMER_OFFSETS
        )
        return SealNeeded(unsealed) if unsealed else None

    def markers_written(self, transactional_id: str, stamp: ProducerStamp, now_ms: int) -> Effects:
        """All partitions have the marker: the transaction is over."""
        known = self.transactions.get(transactional_id)
        if known is None or not known.is_ending or known.stamp != stamp:
            return Effects()  # It was forgotten or moved on since.
        effects = self._change(known.completed(now_ms), now_ms)
        effects.add(self._resume(transactional_id, now_ms))
        return effects

    # What others ask.

    def list(
        self,
        states: Collection[TransactionState],
        producer_ids: Collection[int],
        running_ms: int,
        now_ms: int,
    ) -> Iterable[Transaction]:
        """The transactions that pass these filters; an empty one lets all pass."""
        for known in self.transactions.values():
            if states and known.state not in states:
                continue
            if producer_ids and known.producer_id not in producer_ids:
                continue
            if running_ms >= 0 and not _runs_for(known, running_ms, now_ms):
                continue
            yield known

    def describe(self, transactional_id: str, token: Token) -> Effects:
        """What is known of a transactional id."""
        known = self.transactions.get(transactional_id)
        return _answer(token, known or ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)

    # Changes.

    def _change(self, changed: Transaction, now_ms: int) -> Effects:
        effects = Effects()
        effects.write(changed.key, changed.to_value())
        self.transactions[changed.transactional_id] = changed
        self._set_deadline(changed)
        return effects

    def _prepare(self, changed: Transaction, now_ms: int) -> Effects:
        effects = self._change(changed, now_ms)
        effects.actions.append(_markers(changed))
        return effects

    def _fence(self, known: Transaction, now_ms: int) -> Effects:
        """Abort what is open, under an epoch that nobody has.

        Where each end has a new epoch, this is the one that the producer would have got: it may
        still ask for the abort, and go on.
        """
        fenced = known if known.bumps_epoch else known.fenced()
        aborting = fenced.prepared(
            committed=False, version=known.version, next_producer_id=NO_PRODUCER_ID, now_ms=now_ms
        )
        return self._prepare(aborting, now_ms)

    def _set_deadline(self, known: Transaction) -> None:
        key, config = known.transactional_id, self._config()
        if known.state is S.ONGOING:
            interval_ms = config.integer(ABORT_INTERVAL)
            self._timers.set(key, _next_look(known.started_ms + known.timeout_ms, interval_ms))
        elif known.is_ending:
            self._timers.cancel(key)
        else:
            interval_ms = config.integer(EXPIRY_INTERVAL)
            expiration_ms = config.integer("transactional.id.expiration.ms")
            self._timers.set(key, _next_look(known.updated_ms + expiration_ms, interval_ms))

    # Waiting for markers.

    def _when_idle(
        self,
        transactional_id: str,
        token: Token,
        attempt: Callable[[int], Effects],
        now_ms: int,
        busy: Any = None,
    ) -> Effects:
        known = self.transactions.get(transactional_id)
        if known is None or not known.is_ending:
            return attempt(now_ms)
        self._defer(transactional_id, _Deferred(token, busy or _BUSY, attempt), now_ms)
        return Effects()

    def _defer(self, transactional_id: str, request: _Deferred, now_ms: int) -> None:
        waiting = self._deferred.setdefault(transactional_id, [])
        if not waiting:
            self._timers.set(("busy", transactional_id), now_ms + BUSY_WAIT_MS)
        waiting.append(request)

    def _resume(self, transactional_id: str, now_ms: int) -> Effects:
        effects = Effects()
        self._timers.cancel(("busy", transactional_id))
        for each in self._deferred.pop(transactional_id, ()):
            effects.add(
                self._when_idle(transactional_id, each.token, each.attempt, now_ms, each.busy)
            )
        return effects

    # Time.

    @property
    def next_deadline_ms(self) -> int | None:
        return self._timers.next_deadline_ms

    def tick(self, now_ms: int) -> Effects:
        """Abort what ran out of time, forget what nobody used, answer who waited too long."""
        effects = Effects()
        for key in self._timers.due(now_ms):
            if isinstance(key, tuple):
                for each in self._deferred.pop(key[1], ()):
                    effects.reply(each.token, each.busy)
                continue
            known = self.transactions[str(key)]
            if known.state is S.ONGOING:
                effects.add(self._fence(known, now_ms))
            else:
                del self.transactions[known.transactional_id]
                effects.write(known.key, None)
        return effects

    # The log.

    def replay(self, record: Record, producer: ProducerStamp | None) -> None:
        """Take over a record of the log."""
        key, value = record
        assert isinstance(key, TransactionLogKey)
        if value is None:
            self.transactions.pop(key.transactional_id, None)
        else:
            assert isinstance(value, TransactionLogValue)
            self.transactions[key.transactional_id] = Transaction.from_value(
                key.transactional_id, value
            )

    def end_transaction(self, producer: ProducerStamp, committed: bool) -> None:
        """Nothing here belongs to a transaction of somebody else."""

    def loaded(self, now_ms: int) -> Effects:
        """Go on with the transactions whose end was decided, and watch the others."""
        effects = Effects()
        for known in self.transactions.values():
            self._set_deadline(known)
            if known.is_ending:
                effects.actions.append(_markers(known))
        return effects

    def on_topics_changed(self, names: frozenset[str], now_ms: int) -> Effects:
        """Markers for a topic that is gone are dropped by whoever writes them."""
        return Effects()


def _next_look(deadline_ms: int, interval_ms: int) -> int:
    """The first time not before a deadline at which one looks, if one looks so often."""
    return -(-deadline_ms // interval_ms) * interval_ms


def _answer(token: Token, response: Any) -> Effects:
    return Effects(replies=[(token, response)])


def _check(known: Transaction | None, stamp: ProducerStamp) -> ErrorCode:
    if known is None or known.producer_id != stamp.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if known.producer_epoch != stamp.producer_epoch:
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.NONE


def _may_initialize(known: Transaction, expected: ProducerStamp) -> bool:
    """Whether a producer that names its id and epoch is the last one, or repeats itself."""
    if known.producer_id == expected.producer_id:
        return expected.producer_epoch in (known.producer_epoch, known.last_producer_epoch)
    return (
        known.previous_producer_id == expected.producer_id
        and expected.producer_epoch == known.last_producer_epoch
    )


def _end_error(known: Transaction, stamp: ProducerStamp) -> ErrorCode:
    if stamp == known.stamp and not (known.is_ending and known.bumps_epoch):
        return ErrorCode.NONE
    was_ended = known.state not in (S.ONGOING, S.EMPTY)
    if known.bumps_epoch and was_ended and _is_before(known, stamp):
        return ErrorCode.NONE  # Its end was decided and the answer was lost: it asks again.
    if known.producer_id != stamp.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    return ErrorCode.PRODUCER_FENCED


def _is_before(known: Transaction, stamp: ProducerStamp) -> bool:
    """Whether this is the id and epoch that the last end has replaced."""
    if known.producer_id == stamp.producer_id:
        return known.producer_epoch == stamp.producer_epoch + 1
    is_first = known.producer_epoch == 0 and known.previous_producer_id == stamp.producer_id
    return is_first and not known.is_ending


def _may_wait(known: Transaction, stamp: ProducerStamp, committed: bool) -> bool:
    is_same_end = committed == (known.state is S.PREPARE_COMMIT)
    return is_same_end and _end_error(known, stamp) is ErrorCode.NONE


def _runs_for(known: Transaction, running_ms: int, now_ms: int) -> bool:
    return known.started_ms >= 0 and now_ms - known.started_ms > running_ms


def _markers(ending: Transaction) -> WriteMarkers:
    return WriteMarkers(
        transactional_id=ending.transactional_id,
        stamp=ending.stamp,
        committed=ending.state is S.PREPARE_COMMIT,
        partitions=ending.partitions,
        transaction_version=ending.version,
    )
