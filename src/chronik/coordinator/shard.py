"""One shard: a partition of a coordinator's topic, its machine, and who waits for either.

A machine's effects of one turn of the loop are gathered in a round, appended as one batch, and
answered when the high watermark has passed it. Records of a transaction have a batch of their own,
with the producer's id: they count once its marker says commit.

Invariants
    A machine's records are in the log in the order of its decisions.
    Every request is answered once: by its machine, or, when the shard is lost, by NOT_COORDINATOR
    (another node leads, so ask there) or COORDINATOR_NOT_AVAILABLE. A lost shard decides and
    answers nothing any more.

`runtime` loads shards, finds the one that a key belongs to, and begins a lost one anew.
"""

import asyncio
import logging
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Final, Generic, Protocol, TypeVar

from chronik.coordinator.effects import Effects, ProducerStamp, Record, Token
from chronik.coordinator.errors import coordinator_error
from chronik.coordinator.pending import Pending
from chronik.metadata.image import Image
from chronik.protocol.batch import TRANSACTIONAL_FLAG
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.records import BatchBuilder
from chronik.replication.partition import Partition

logger = logging.getLogger(__name__)

BATCH_BYTES_MAX: Final = 512 * 1024  # of coalesced effects; one machine's effects are never split


class Machine(Protocol):
    """The pure side of a shard."""

    image: Image

    def replay(self, record: Record, producer: ProducerStamp | None) -> None:
        """Apply a record of the log; with a producer, one that waits for its marker."""

    def end_transaction(self, producer: ProducerStamp, committed: bool) -> None:
        """A marker was appended: what waited for it counts now, or never."""

    def loaded(self, now_ms: int) -> Effects:
        """The replay is over: arm deadlines."""

    def tick(self, now_ms: int) -> Effects:
        """A deadline may have come."""

    def on_topics_changed(self, names: frozenset[str], now_ms: int) -> Effects:
        """These topics were created, deleted or got partitions; `image` is already the new one."""

    @property
    def next_deadline_ms(self) -> int | None:
        """When `tick` should be called next."""


class RecordFormat(Protocol):
    """How records become bytes and come back."""

    def encode(self, record: Record) -> tuple[bytes, bytes | None]: ...

    def decode(self, key: bytes, value: bytes | None) -> Record | None:
        """None: a record of a kind that is not ours, to be left alone."""


M = TypeVar("M", bound=Machine)
Refuse = Callable[[ErrorCode], Any]


class _Waiting:
    """The token of one request: where its answer goes, and what it is if the shard is lost."""

    __slots__ = ("refuse", "reply")

    def __init__(self, reply: Pending, refuse: Refuse) -> None:
        self.reply = reply
        self.refuse = refuse


class _Round:
    """What goes out once the appends so far are committed."""

    __slots__ = ("actions", "records", "replies", "shard", "size")

    def __init__(self, shard: "Shard[Any]") -> None:
        self.shard = shard
        self.records: list[tuple[bytes, bytes | None]] = []
        self.replies: list[tuple[_Waiting, Any]] = []
        self.actions: list[Any] = []
        self.size = 0

    def acknowledged(self, partition: Partition) -> None:
        for token, response in self.replies:
            token.reply.resolve(response)
        for action in self.actions:
            self.shard.start(action)

    def failed(self, partition: Partition, error: KafkaError) -> None:
        error_code = coordinator_error(error.code)
        for token, _ in self.replies:
            token.reply.resolve(token.refuse(error_code))
        self.shard.lose(str(error), error_code)


class Owner(Protocol):
    """What a shard needs of the runtime that it belongs to."""

    format: RecordFormat
    on_action: Callable[[Any], None]

    def now_ms(self) -> int: ...

    def wall_ms(self) -> int: ...

    def is_flush_due(self, shard: Any) -> bool: ...

    def flush_soon(self, shard: Any) -> None:
        """Call `flush` at the end of this turn of the loop."""

    def lost(self, shard: Any, reason: str, *, reload: bool) -> None:
        """The shard's machine is no longer that of the log."""


class ShardState(Enum):
    """Whether a shard takes requests."""

    LOADING = auto()
    ACTIVE = auto()
    LOST = auto()


class Shard(Generic[M]):
    """One partition of the topic and its machine."""

    def __init__(self, runtime: Owner, partition: Partition, machine: M) -> None:
        self._runtime = runtime
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.machine = machine
        self.state = ShardState.LOADING
        self._waiting: dict[_Waiting, None] = {}
        self._round: _Round | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0

    def ask(
        self, decide: Callable[[M, Token, int], Effects], reply: Pending, refuse: Refuse
    ) -> None:
        """Give a request to the machine."""
        token = _Waiting(reply, refuse)
        self._waiting[token] = None
        try:
            effects = decide(self.machine, token, self._runtime.now_ms())
        except KafkaError as error:
            effects = Effects(replies=[(token, refuse(error.code))])
        except Exception as error:
            self.lose(repr(error))  # Half a decision may have been made: the log knows better.
            raise
        self.carry_out(effects)

    def carry_out(self, effects: Effects) -> None:
        """Log the records, and park the replies until they are committed."""
        if effects.producer is not None and effects.records:
            self._flush()  # What was decided before comes before.
            if self.state is ShardState.LOST:
                return  # By that write. Whoever waits has been told.
        records = self._encoded(effects.records)
        current = self._round
        if current is None:
            current = self._round = _Round(self)
        for token, response in effects.replies:
            del self._waiting[token]
            current.replies.append((token, response))
        current.actions += effects.actions
        for key, value in records:
            current.records.append((key, value))
            current.size += len(key) + len(value or b"")
        if effects.producer is not None and effects.records:
            self._flush(effects.producer)
        elif not current.records or current.size > BATCH_BYTES_MAX:
            self._flush()
        elif not self._runtime.is_flush_due(self):
            self._runtime.flush_soon(self)
        self._arm()
        self._tell(effects.told)

    def _tell(self, told: list[tuple[Token, Any]]) -> None:
        """Answer, last of all: whoever is told may ask for the next thing at once."""
        for token, response in told:
            if token in self._waiting:  # else the shard was lost, and said so
                del self._waiting[token]
                token.reply.resolve(response)

    def _encoded(self, records: list[Record]) -> list[tuple[bytes, bytes | None]]:
        try:
            return [*map(self._runtime.format.encode, records)]
        except Exception as error:
            self.lose(repr(error))  # The machine has decided what cannot be logged.
            raise

    def _flush(self, producer: ProducerStamp | None = None) -> None:
        """Append the current round; its replies wait for the high watermark."""
        current, self._round = self._round, None
        if current is None:
            return
        partition = self.partition
        try:
            if current.records:
                now_ms = self._runtime.wall_ms()
                partition.append_internal(_batch(current.records, producer, now_ms), now_ms)
        except KafkaError as error:
            logger.error(
                "a coordinator cannot write",
                extra={"partition": str(partition), "error": str(error)},
            )
            self._round = current
            self.lose(str(error), coordinator_error(error.code))
            return
        if partition.wait_acknowledged(partition.log.end_offset, current):
            current.acknowledged(partition)

    def flush(self) -> None:
        """Append what this turn of the loop has gathered."""
        if self.state is ShardState.ACTIVE:
            self._flush()

    def settled(self) -> Pending:
        """Resolved once all that the machine has decided so far is committed."""
        reply = Pending()
        if self.state is ShardState.ACTIVE:
            self.ask(lambda _, token, __: Effects(replies=[(token, None)]), reply, lambda _: None)
        else:
            reply.resolve(None)
        return reply

    def start(self, action: Any) -> None:
        """Begin work that the machine asked for, if it still is the machine."""
        if self.state is ShardState.ACTIVE:
            self._runtime.on_action(action)

    # Deadlines.

    def _arm(self) -> None:
        """See to it that the machine is ticked at its next deadline, or before."""
        deadline_ms = self.machine.next_deadline_ms
        if deadline_ms is None or self.state is not ShardState.ACTIVE:
            return
        if self._timer is not None:
            if self._timer_ms <= deadline_ms:
                return  # It comes early, finds nothing due and is set again.
            self._timer.cancel()
        self._timer_ms = deadline_ms
        delay_s = max(deadline_ms - self._runtime.now_ms(), 0) / 1000
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self.state is ShardState.ACTIVE:
            self.carry_out(self.machine.tick(self._runtime.now_ms()))

    # Begin and end.

    def activate(self, machine: M) -> None:
        """The replay is done: requests are taken from now on."""
        if self.state is ShardState.LOST:
            return  # The topic was deleted meanwhile.
        self.machine = machine
        self.state = ShardState.ACTIVE
        self.carry_out(machine.loaded(self._runtime.now_ms()))

    def lose(
        self, reason: str, error_code: ErrorCode = ErrorCode.COORDINATOR_NOT_AVAILABLE
    ) -> None:
        """Forget the machine: its state is no longer that of the log. Who waits is told so."""
        if self.state is ShardState.LOST:
            return
        was_active = self.state is ShardState.ACTIVE
        self.state = ShardState.LOST
        if self._timer is not None:
            self._timer.cancel()
        waiting, self._waiting = list(self._waiting), {}
        if self._round is not None:
            waiting += (token for token, _ in self._round.replies)
            self._round = None
        for token in waiting:
            token.reply.resolve(token.refuse(error_code))
        self._runtime.lost(self, reason, reload=was_active)


def _batch(
    records: list[tuple[bytes, bytes | None]], producer: ProducerStamp | None, now_ms: int
) -> bytes:
    builder = BatchBuilder()
    for key, value in records:
        builder.append(now_ms, key, value)
    if producer is None:
        return builder.build()
    return builder.build(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=0,
        flags=TRANSACTIONAL_FLAG,
    )
