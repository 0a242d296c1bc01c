"""How fast replicas that are not in sync may be filled, so that clients keep their share.

Kafka's tools name the replicas of a topic that a move concerns, once on the leader's side and once
on the follower's, and give each broker a rate for both. Whoever is in sync is never held back: an
acknowledgement may wait for it.

It only counts. Every byte that passed has its time at the rate that holds then; the next portion
waits until that time is over. What was not used for longer than a second is gone.
"""

from collections.abc import Callable, Collection
from typing import Final

from chronik.clock import Clock
from chronik.config.effective import BrokerConfig

LEADER_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"
EVERY_REPLICA: Final = "*"
UNUSED_S_MAX: Final = 1.0
DELAY_S_MAX: Final = 1.0  # then look again: the rate may have been raised
PORTION_BYTES_MIN: Final = 4096  # less would be all overhead


class Throttle:
    """One broker's rate, over all partitions that it concerns."""

    def __init__(
        self, setting: str, node_id: int, config: Callable[[], BrokerConfig], clock: Clock
    ) -> None:
        self._setting = setting
        self._node_id = node_id
        self._config = config
        self._clock = clock
        self._free_at = 0.0

    def concerns(self, replicas: Collection[str], index: int) -> bool:
        """Whether this broker's replica of a partition is among those that are held back."""
        if not replicas:
            return False
        return EVERY_REPLICA in replicas or f"{index}:{self._node_id}" in replicas

    @property
    def _rate(self) -> int:
        return max(self._config().integer(self._setting), 1)

    def portion_bytes(self, most: int) -> int:
        """How much to send at once: about a second's worth, at most `most`."""
        return min(most, max(self._rate, PORTION_BYTES_MIN))

    def passed(self, size: int) -> None:
        """So many bytes have passed."""
        earliest = self._clock.monotonic() - UNUSED_S_MAX
        self._free_at = max(self._free_at, earliest) + size / self._rate

    def delay_s(self) -> float:
        """How long the next portion should wait, as far as is known now."""
        return min(max(self._free_at - self._clock.monotonic(), 0.0), DELAY_S_MAX)


class Throttles:
    """What a broker sends as a leader, and what it takes as a follower."""

    def __init__(self, node_id: int, config: Callable[[], BrokerConfig], clock: Clock) -> None:
        self.leader = Throttle(LEADER_RATE, node_id, config, clock)
        self.follower = Throttle(FOLLOWER_RATE, node_id, config, clock)
