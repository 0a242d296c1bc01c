"""Which brokers are alive, as the controller sees it: heartbeats, lost connections, deadlines.

It belongs to one term of leadership: a new leader makes a new one, in which everybody has a full
session to be heard of. Times are monotonic milliseconds, given by the caller. It decides nothing:
`due` names brokers to fence, `fence` and `unfence` tell the command for it, if any is needed.

A closed connection ends the session early, after a grace in which a new connection or a heartbeat
of the same process saves it. To fence a broker that lives is harmless: its next heartbeat brings
it back, in new leader epochs.
"""

from dataclasses import dataclass
from typing import Final

from chronik.metadata.brokers import is_last
from chronik.metadata.commands import UpdateBrokerStatus
from chronik.metadata.image import Image
from chronik.metadata.records import BrokerStatus
from chronik.protocol.errors import ErrorCode, KafkaError

SESSION_MS: Final = 3_000  # A silent broker is gone after this; Kafka takes three times as long.
# A dead process closes its connections at once. A broker that reconnects does so in a round trip
# or two; together with an election's time this still shows the death within a second.
GRACE_MS: Final = 300


@dataclass(slots=True)
class _Session:
    """One registration. Without a deadline nothing is expected: the broker is offline."""

    incarnation_id: str
    broker_epoch: int
    deadline_ms: int | None
    heard_ms: int


class Liveness:
    """The sessions of all registered brokers."""

    def __init__(self, session_ms: int = SESSION_MS, grace_ms: int = GRACE_MS) -> None:
        self._session_ms = session_ms
        self._grace_ms = grace_ms
        self._sessions: dict[int, _Session] = {}

    def follow(self, image: Image, now_ms: int) -> None:
        """Take over the brokers of an image: at the start, and whenever they have changed.

        Whoever is seen in a new registration, or online unexpectedly, has a full session.
        """
        for node_id in self._sessions.keys() - image.brokers.keys():
            del self._sessions[node_id]
        for node_id, broker in image.brokers.items():
            session = self._sessions.get(node_id)
            if session is None or session.broker_epoch < broker.epoch:
                session = _Session(broker.incarnation_id, broker.epoch, None, now_ms)
                self._sessions[node_id] = session
            session.incarnation_id = broker.incarnation_id
            if broker.status == BrokerStatus.OFFLINE:
                session.deadline_ms = None
            elif session.deadline_ms is None:
                session.deadline_ms = now_ms + self._session_ms

    def heartbeat(self, node_id: int, broker_epoch: int, now_ms: int) -> None:
        """A broker lives, or KafkaError if it must register again.

        An epoch beyond the known one is a registration that is committed and not applied here yet.
        """
        session = self._sessions.get(node_id)
        if session is None:
            raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED)
        if broker_epoch < session.broker_epoch:
            raise KafkaError(ErrorCode.STALE_BROKER_EPOCH)
        self._heard(session, now_ms)

    def connection_made(self, node_id: int, incarnation_id: str, now_ms: int) -> None:
        """A process has connected: if it is the one that is registered, it lives."""
        session = self._sessions.get(node_id)
        if session is not None and session.incarnation_id == incarnation_id:
            self._heard(session, now_ms)

    def _heard(self, session: _Session, now_ms: int) -> None:
        session.heard_ms = now_ms
        session.deadline_ms = now_ms + self._session_ms

    def connection_lost(self, node_id: int, incarnation_id: str, now_ms: int) -> None:
        """A connection of a process has closed: it has the grace to show that it lives."""
        session = self._sessions.get(node_id)
        if session is None or session.incarnation_id != incarnation_id:
            return  # An earlier process has died; the one that is registered has not.
        if session.deadline_ms is not None:
            session.deadline_ms = min(session.deadline_ms, now_ms + self._grace_ms)

    def due(self, now_ms: int) -> list[int]:
        """Brokers whose session is over. They are named again a session later if still online."""
        over = []
        for node_id, session in sorted(self._sessions.items()):
            if session.deadline_ms is not None and session.deadline_ms <= now_ms:
                over.append(node_id)
                session.deadline_ms = now_ms + self._session_ms
        return over

    @property
    def next_deadline_ms(self) -> int | None:
        """When `due` has something to say next, as far as is known now."""
        deadlines = (each.deadline_ms for each in self._sessions.values())
        return min((each for each in deadlines if each is not None), default=None)

    def silence_ms(self, node_id: int, now_ms: int) -> int | None:
        """How long ago a broker was heard of (or this began), for `cluster status`."""
        session = self._sessions.get(node_id)
        return None if session is None else now_ms - session.heard_ms


def fence(image: Image, node_id: int) -> UpdateBrokerStatus | None:
    """The command that takes a broker offline; the last one that clients are told of stays."""
    broker = image.brokers.get(node_id)
    if broker is None or broker.status == BrokerStatus.OFFLINE or is_last(image, node_id):
        return None
    return UpdateBrokerStatus(
        node_id=node_id, broker_epoch=broker.epoch, status=BrokerStatus.OFFLINE
    )


def unfence(image: Image, node_id: int) -> UpdateBrokerStatus | None:
    """The command that brings a broker back that was heard of; to its rest, if it had one."""
    broker = image.brokers.get(node_id)
    if broker is None or broker.status != BrokerStatus.OFFLINE:
        return None
    is_resting = broker.in_maintenance or broker.is_full
    status = BrokerStatus.MAINTENANCE if is_resting else BrokerStatus.ONLINE
    return UpdateBrokerStatus(node_id=node_id, broker_epoch=broker.epoch, status=status)
