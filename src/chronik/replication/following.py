"""Which partitions this node follows, and from whom: one fetcher for each leading node."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from chronik.clock import Clock
from chronik.metadata.image import Image
from chronik.metadata.records import NO_LEADER, PartitionRecord
from chronik.replication.fetcher import Fetcher, FetcherLink, Followed, Key
from chronik.replication.throttle import Throttle


class Following:
    """The partitions that other nodes lead and this one has a replica of."""

    def __init__(
        self,
        node_id: int,
        connect: Callable[[int], Awaitable[FetcherLink]],
        followed: Followed,
        clock: Clock,
        broker_epoch: Callable[[], int],
        throttle: Throttle | None = None,
    ) -> None:
        self._node_id = node_id
        self._connect = connect
        self._followed = followed
        self._clock = clock
        self._broker_epoch = broker_epoch
        self._throttle = throttle
        self._leaders: dict[Key, tuple[int, int]] = {}  # leader and leader epoch
        self._changed: dict[Key, tuple[int, int] | None] = {}
        self._fetchers: dict[int, Fetcher] = {}
        self._is_paused = False

    def start(self, image: Image) -> None:
        """Follow everything that the image says."""
        for topic in image.topics.values():
            for record in topic.partitions:
                self.changed((topic.id, record.partition), record)

    def changed(self, key: Key, record: PartitionRecord) -> None:
        """A partition has changed: follow its leader, if that is somebody else."""
        leader = record.leader
        is_followed = leader not in (NO_LEADER, self._node_id) and self._node_id in record.replicas
        self._set(key, (leader, record.leader_epoch) if is_followed else None)

    def removed(self, keys: Iterable[Key]) -> None:
        """These partitions are gone."""
        for key in keys:
            self._set(key, None)

    def on_image(self, old: Image, new: Image) -> None:
        """If this node is registered anew, tell every leader anew where the logs end."""
        if old.brokers is new.brokers or self._is_paused:
            return
        before, now = old.brokers.get(self._node_id), new.brokers.get(self._node_id)
        if now is not None and (before is None or before.epoch != now.epoch):
            # A leader takes nobody into sync whom it has heard under an earlier registration.
            self.pause()
            self.resume()

    def pause(self) -> None:
        """Fetch nothing, whoever leads; again and again is the same as once."""
        if not self._is_paused:
            self._is_paused = True
            for fetcher in self._fetchers.values():
                fetcher.unfollow_all()

    def resume(self) -> None:
        """Go on where the logs end."""
        if self._is_paused:
            self._is_paused = False
            begun: dict[int, list[Key]] = {}
            for key, (leader_id, _) in self._leaders.items():
                begun.setdefault(leader_id, []).append(key)
            self._begin(begun)

    def _set(self, key: Key, leader: tuple[int, int] | None) -> None:
        if leader == self._leaders.get(key) and key not in self._changed:
            return
        if not self._changed:
            # One message for all that one change brings about.
            asyncio.get_running_loop().call_soon(self._carry_out)
        self._changed[key] = leader

    def _carry_out(self) -> None:
        changed, self._changed = self._changed, {}
        ended: dict[int, list[Key]] = {}
        begun: dict[int, list[Key]] = {}
        for key, leader in changed.items():
            before = self._leaders.pop(key, None)
            if before is not None and (leader is None or before[0] != leader[0]):
                ended.setdefault(before[0], []).append(key)
            if leader is not None:
                self._leaders[key] = leader
                begun.setdefault(leader[0], []).append(key)
        for leader_id, keys in ended.items():
            self._fetcher(leader_id).unfollow(keys)
        self._begin(begun)

    def _begin(self, begun: dict[int, list[Key]]) -> None:
        for leader_id, keys in begun.items() if not self._is_paused else ():
            self._fetcher(leader_id).follow(keys)

    def _fetcher(self, leader_id: int) -> Fetcher:
        fetcher = self._fetchers.get(leader_id)
        if fetcher is None:
            fetcher = self._fetchers[leader_id] = Fetcher(
                leader_id,
                self._connect,
                self._followed,
                self._clock,
                self._broker_epoch,
                self._throttle,
            )
        return fetcher

    async def close(self) -> None:
        """Follow nobody any more."""
        await asyncio.gather(*(fetcher.close() for fetcher in self._fetchers.values()))
