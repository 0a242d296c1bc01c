"""Brokers that left the list a moment ago, for clients that must not miss them at once.

librdkafka from 2.10 on ends all that it has for a broker as soon as an answer does not list it. Its
partitions that move to another broker in that very answer are then with nobody until it asks again,
a second later; and what waits for a coordinator there may wait for ever (its issues 5456 and 5511).
So a broker that died, or that restarts, is shown to it a little longer, as Apache Kafka does to
everybody: without being the leader of anything. Only in answers about named topics, which are for
its own use; who asks for the whole cluster is told of the brokers that live.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from chronik.metadata.image import Image
from chronik.metadata.records import BrokerRecord

Listener = Callable[[Image, Image, Sequence[Any]], None]

SHOWN_S: Final = 10.0  # about as long as Kafka's own session


class Departures:
    """When brokers left, as this node saw it."""

    def __init__(self, subscribe: Callable[[Listener], None], now: Callable[[], float]) -> None:
        self._now = now
        self._left: dict[int, float] = {}
        subscribe(self.on_image)

    def on_image(self, old: Image, new: Image, records: Sequence[Any]) -> None:
        """Remember who is not shown any more, and forget who is again."""
        if old.online_ids == new.online_ids:
            return
        for node_id in old.online_ids - new.online_ids:
            self._left[node_id] = self._now()
        for node_id in new.online_ids & self._left.keys():
            del self._left[node_id]

    def recent(self, image: Image) -> list[BrokerRecord]:
        """Those who left a moment ago, and were not removed for good."""
        since = self._now() - SHOWN_S
        self._left = {node_id: at for node_id, at in self._left.items() if at > since}
        return [image.brokers[each] for each in sorted(self._left) if each in image.brokers]
