"""Incremental fetch sessions (KIP-227): a client names only what changed since its last fetch.

A session remembers each partition's position and watches it, so that a fetch looks only at the
partitions that moved: ten thousand idle ones cost nothing. A fetch without a session is the same
thing for one request.

Who reads only committed data waits for the last stable offset: while a transaction is open the high
watermark moves on, but wakes nobody for whom there is nothing to read.

The cache is bounded. When it is full, a session that was not used for two minutes makes room;
without one the client is told session id 0 and goes on with full fetches.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.fetch import FetchPartition, FetchRequest
from chronik.replication.partition import Partition

INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
EVICTION_AGE_S: Final = 120.0  # Kafka's min.incremental.fetch.session.eviction.ms
EPOCH_MAX: Final = 2**31 - 1
READ_COMMITTED: Final = 1  # isolation level

Key = tuple[str | bytes, int]  # a topic's name, from v13 on its id, and a partition


class Position:
    """Where one partition is read, and what was last said about it."""

    __slots__ = (
        "fetch_offset",
        "high_watermark",
        "key",
        "last_fetched_epoch",
        "leader_epoch",
        "log_start_offset",
        "max_bytes",
        "partition",
    )

    def __init__(self, key: Key) -> None:
        self.key = key
        self.partition: Partition | None = None
        self.high_watermark = -1
        self.log_start_offset = -1

    def found(self, partition: Partition, interest: "Interest") -> None:
        """The partition that the key means now: another one if the topic was made anew."""
        if self.partition is not partition:
            if self.partition is not None:
                self.partition.unwatch(Watch(interest, self.key))
            self.partition = partition
            if interest.is_watching:
                partition.watch(Watch(interest, self.key))

    def update(self, request: FetchPartition) -> None:
        self.fetch_offset = request.fetch_offset
        self.max_bytes = request.partition_max_bytes
        self.leader_epoch = request.current_leader_epoch
        self.last_fetched_epoch = request.last_fetched_epoch


class Interest:
    """The partitions of one fetch or session, which of them may have news, and who is parked."""

    def __init__(self) -> None:
        self.positions: OrderedDict[Key, Position] = OrderedDict()
        self.ready: dict[Key, None] = {}
        self.is_watching = False
        self.committed = False  # whether the request at hand reads only committed data
        self._wake: Callable[[], None] | None = None
        self._missing_bytes = 0

    def set(self, key: Key, request: FetchPartition) -> None:
        """Add a partition, or move its position."""
        position = self.positions.get(key)
        if position is None:
            position = self.positions[key] = Position(key)
        position.update(request)
        self.ready[key] = None

    def forget(self, key: Key) -> None:
        position = self.positions.pop(key, None)
        self.ready.pop(key, None)
        if position is not None and position.partition is not None:
            position.partition.unwatch(Watch(self, key))

    def watch_all(self) -> None:
        """From now on be told when a partition moves."""
        if self.is_watching:
            return
        self.is_watching = True
        for key, position in self.positions.items():
            if position.partition is not None:
                position.partition.watch(Watch(self, key))

    def park(self, missing_bytes: int, wake: Callable[[], None]) -> None:
        """Call `wake` once this many bytes were appended, or something else happened."""
        self._missing_bytes = missing_bytes
        self._wake = wake

    def unpark(self) -> None:
        self._wake = None

    def moved(self, key: Key, bytes_appended: int, bytes_stable: int) -> None:
        self.ready[key] = None
        self._missing_bytes -= bytes_stable if self.committed else bytes_appended
        if self._wake is not None and (self._missing_bytes <= 0 or not bytes_appended):
            self._wake()

    def close(self) -> None:
        """Watch nothing any more."""
        if not self.is_watching:
            return
        for key, position in self.positions.items():
            if position.partition is not None:
                position.partition.unwatch(Watch(self, key))


class Watch:
    """One partition's watcher on behalf of an interest."""

    __slots__ = ("_interest", "_key")

    def __init__(self, interest: Interest, key: Key) -> None:
        self._interest = interest
        self._key = key

    def moved(self, partition: Partition, bytes_appended: int, bytes_stable: int) -> None:
        self._interest.moved(self._key, bytes_appended, bytes_stable)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Watch)
            and other._interest is self._interest
            and other._key == self._key
        )

    def __hash__(self) -> int:
        return hash((id(self._interest), self._key))


class FetchSession(Interest):
    """An interest that outlives its request."""

    def __init__(self, session_id: int, by_id: bool, now: float) -> None:
        super().__init__()
        self.is_watching = True
        self.id = session_id
        self.by_id = by_id
        self.epoch = INITIAL_EPOCH + 1
        self.last_used = now


class FetchSessions:
    """The sessions of this node."""

    def __init__(self, slots: int, next_id: Callable[[], int], now: Callable[[], float]) -> None:
        self._slots = slots
        self._next_id = next_id
        self._now = now
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, request: FetchRequest, by_id: bool) -> tuple[Interest, bool]:
        """What this request is interested in, and whether the answer must name all of it."""
        if request.session_epoch not in (INITIAL_EPOCH, FINAL_EPOCH):
            session = self._go_on(request, by_id)
            session.committed = request.isolation_level == READ_COMMITTED
            return session, False
        self.remove(request.session_id)
        interest = Interest()
        if request.session_epoch == INITIAL_EPOCH:
            interest = self._open(by_id) or interest
        interest.committed = request.isolation_level == READ_COMMITTED
        _merge(interest, request, by_id)
        return interest, True

    def _go_on(self, request: FetchRequest, by_id: bool) -> FetchSession:
        session = self._sessions.get(request.session_id)
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.by_id != by_id:
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        session.epoch = 1 if session.epoch == EPOCH_MAX else session.epoch + 1
        session.last_used = self._now()
        self._sessions.move_to_end(session.id)
        _merge(session, request, by_id)
        return session

    def _open(self, by_id: bool) -> FetchSession | None:
        if len(self._sessions) >= self._slots and not self._evict():
            return None
        session_id = self._next_id()
        while session_id in self._sessions:
            session_id = self._next_id()
        session = self._sessions[session_id] = FetchSession(session_id, by_id, self._now())
        return session

    def _evict(self) -> bool:
        if not self._sessions:
            return False
        oldest = next(iter(self._sessions.values()))
        if self._now() - oldest.last_used < EVICTION_AGE_S:
            return False
        self.remove(oldest.id)
        return True

    def remove(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.close()


def _merge(interest: Interest, request: FetchRequest, by_id: bool) -> None:
    for topic in request.topics:
        name = topic.topic_id if by_id else topic.topic
        for partition in topic.partitions:
            interest.set((name, partition.partition), partition)
    for forgotten in request.forgotten_topics_data:
        name = forgotten.topic_id if by_id else forgotten.topic
        for index in forgotten.partitions:
            interest.forget((name, index))
