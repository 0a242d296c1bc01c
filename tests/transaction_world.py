"""A shard of transactions on virtual time, for tests: its log, its answers, its markers."""

from collections.abc import Callable
from typing import Any

from chronik.config.effective import BrokerConfig
from chronik.coordinator.effects import Effects, ProducerStamp
from chronik.coordinator.transactions.shard import (
    Partitions,
    ProducerIdNeeded,
    SealNeeded,
    TransactionShard,
    WriteMarkers,
)
from chronik.coordinator.transactions.transaction import Transaction
from chronik.metadata.records import BrokerRecord
from chronik.model import TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
HOUR_MS = 3_600_000
TIMEOUT_MS = 60_000


def new_shard(**settings: int) -> TransactionShard:
    static = {name.replace("_", "."): str(value) for name, value in settings.items()}
    config = BrokerConfig(static=static, cluster={}, broker={})
    return TransactionShard(lambda: config)


class Driver:
    """A shard, a clock, a log of its records, and the answers by token."""

    def __init__(self) -> None:
        self.shard = new_shard()
        self.now_ms = 1_000_000
        self.log: list[Any] = []
        self.answers: dict[int, Any] = {}
        self.markers: list[WriteMarkers] = []
        self.seals: list[Partitions] = []
        self.next_id = 100
        self.tokens = 0

    def take(self, effects: Effects) -> None:
        self.log += effects.records
        self.markers += effects.actions
        for token, response in effects.told + effects.replies:
            assert token not in self.answers, "answered twice"
            self.answers[token] = response

    def ask(self, decide: Callable[[int, int], Effects]) -> Any:
        """Run a request; None if it waits."""
        self.tokens += 1
        token = self.tokens
        self.take(decide(token, self.now_ms))
        return self.answers.get(token)

    def init(
        self, name: str = "t", expected: ProducerStamp | None = None, timeout_ms: int = TIMEOUT_MS
    ) -> Any:
        fresh_id: int | None = None
        while True:
            answer = self.ask(
                lambda token, now: self.shard.init_producer_id(
                    name,
                    timeout_ms,
                    expected,
                    fresh_id,  # noqa: B023
                    token,
                    now,
                )
            )
            if not isinstance(answer, ProducerIdNeeded):
                return answer
            fresh_id = self.next_id
            self.next_id += 1

    def add(self, stamp: ProducerStamp, *partitions: TopicPartition, version: int = 1) -> Any:
        return self.ask(
            lambda token, now: self.shard.add_partitions(
                "t", stamp, frozenset(partitions), version, token, now
            )
        )

    def verify(self, stamp: ProducerStamp, *partitions: TopicPartition) -> Any:
        return self.ask(
            lambda token, now: self.shard.verify_partitions(
                "t", stamp, frozenset(partitions), token, now
            )
        )

    def end(self, stamp: ProducerStamp, committed: bool = True, version: int = 1) -> Any:
        """End a transaction, as the handler does: sealed, and with another producer id if need be.

        None if it waits for its markers.
        """
        fresh_id: int | None = None
        sealed: Partitions = frozenset()
        while True:
            answer = self.ask_to_end(stamp, committed, version, fresh_id, sealed)
            if isinstance(answer, ProducerIdNeeded):
                self.next_id += 1
                fresh_id = self.next_id
            elif isinstance(answer, SealNeeded):
                assert not answer.partitions & sealed
                sealed |= answer.partitions
                self.seals.append(answer.partitions)
            else:
                return answer

    def ask_to_end(
        self,
        stamp: ProducerStamp,
        committed: bool,
        version: int,
        fresh_id: int | None,
        sealed: Partitions,
    ) -> Any:
        """Ask once; the answer may be that something is needed first."""
        return self.ask(
            lambda token, now: self.shard.end(
                "t", stamp, committed, version, fresh_id, token, now, sealed
            )
        )

    def lose_memory(self, memory_epoch: int) -> None:
        """A broker comes back whose machine went down."""
        broker = BrokerRecord(
            node_id=1,
            epoch=memory_epoch,
            incarnation_id="i",
            directory_id="d",
            host="h",
            port=1,
            memory_epoch=memory_epoch,
        )
        self.shard.image = self.shard.image.apply([broker])

    def finish(self, stamp: ProducerStamp, committed: bool = True, version: int = 1) -> Any:
        """End a transaction, and write its markers: its end is answered then."""
        assert self.end(stamp, committed, version) is None
        token = self.tokens
        self.write_markers()
        return self.answers[token]

    def write_markers(self) -> None:
        markers, self.markers = self.markers, []
        for each in markers:
            self.take(self.shard.markers_written(each.transactional_id, each.stamp, self.now_ms))

    def tick(self, ms: int) -> None:
        self.now_ms += ms
        self.take(self.shard.tick(self.now_ms))

    def crash(self) -> None:
        """Forget all but the log."""
        image, self.shard = self.shard.image, new_shard()
        self.shard.image = image
        self.markers = []
        for record in self.log:
            self.shard.replay(record, None)
        self.take(self.shard.loaded(self.now_ms))

    @property
    def known(self) -> Transaction:
        return self.shard.transactions["t"]
