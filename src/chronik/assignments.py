"""Which nodes should hold which replicas: plans that change little. Pure.

A plan is a new list of replicas for each partition that gets one, the preferred leader first. It
fills what a node that leaves would take away, spreads the replicas of each partition over racks,
and evens out, first how many replicas each node holds, then how many it is to lead. A partition
moves only if that makes the counts more even by more than one, so a plan for what is even is empty.

Partitions are looked at in an order that mixes topics, so that a node that is new gets some of
each and not all of a few. The same input gives the same plan.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Final
from zlib import crc32

from chronik.model import TopicPartition

Replicas = tuple[int, ...]
Assignments = Mapping[TopicPartition, Replicas]
Racks = Mapping[int, str | None]  # the nodes that may hold replicas, each with its rack

ROUNDS_MAX: Final = 10  # each evens out most of what is left; more than a few never were needed


class TooFewNodes(Exception):
    """A partition has more replicas than there are nodes for them."""

    def __init__(self, partitions: Collection[TopicPartition]) -> None:
        super().__init__(f"{len(partitions)} partition(s) have more replicas than there are nodes")
        self.partitions = partitions


def rebalanced(
    current: Assignments, racks: Racks, gone: Collection[int] = ()
) -> dict[TopicPartition, Replicas]:
    """What must change for replicas and leaders to be even over these nodes and their racks.

    Nodes that are neither of them nor gone keep what they hold, and get nothing.
    """
    plan = _Plan(current, racks, gone)
    plan.fill({place: len(replicas) for place, replicas in current.items()})
    plan.spread()
    for _ in range(ROUNDS_MAX):
        if not plan.even_out_replicas():
            break
    for _ in range(ROUNDS_MAX):
        if not plan.even_out_leaders():
            break
    return plan.changes()


def drained(
    current: Assignments,
    racks: Racks,
    leaving: int,
    *,
    may_shrink: Collection[TopicPartition] = (),
) -> dict[TopicPartition, Replicas]:
    """What must change for a node to hold nothing, and nothing else.

    TooFewNodes if the others are not enough, but for partitions that may have fewer replicas then.
    """
    factors = {place: len(replicas) for place, replicas in current.items() if leaving in replicas}
    plan = _Plan(current, racks, (leaving,))
    plan.fill(factors, may_shrink)
    return plan.changes()


def filled(current: Assignments, racks: Racks, factor: int) -> dict[TopicPartition, Replicas]:
    """What must change for these partitions to have at least so many replicas."""
    plan = _Plan(current, racks)
    plan.fill({place: factor for place, replicas in current.items() if len(replicas) < factor})
    return plan.changes()


class _Plan:
    """Replicas as they would be, and how many each node would hold and lead."""

    def __init__(self, current: Assignments, racks: Racks, gone: Collection[int] = ()) -> None:
        self._racks = {node_id: racks[node_id] for node_id in racks if node_id not in gone}
        self._before = current
        self._replicas: dict[TopicPartition, list[int]] = {
            place: [each for each in current[place] if each not in gone]
            for place in sorted(current, key=_mixed)
        }
        self._held = Counter(each for replicas in self._replicas.values() for each in replicas)
        self._led = Counter(replicas[0] for replicas in self._replicas.values() if replicas)

    def changes(self) -> dict[TopicPartition, Replicas]:
        return {
            place: tuple(replicas)
            for place, replicas in sorted(self._replicas.items())
            if tuple(replicas) != self._before[place]
        }

    def fill(
        self, factors: Mapping[TopicPartition, int], may_shrink: Collection[TopicPartition] = ()
    ) -> None:
        """Give each of these partitions so many replicas, or fewer if it may have fewer."""
        too_many = []
        for place, replicas in self._replicas.items():
            factor = factors.get(place, 0)
            reachable = len(self._racks.keys() | set(replicas))
            if factor > reachable:
                factor = reachable
                if place not in may_shrink or not reachable:
                    too_many.append(place)
            if not replicas and factor:
                self._led[self._add(replicas)] += 1
            while len(replicas) < factor:
                self._add(replicas)
        if too_many:
            raise TooFewNodes(sorted(too_many))

    def _add(self, replicas: list[int]) -> int:
        node_id = self._best(replicas, self._racks)
        replicas.append(node_id)
        self._held[node_id] += 1
        return node_id

    def _best(self, replicas: Collection[int], nodes: Iterable[int]) -> int:
        """Whose rack has the fewest of these replicas, and who holds least."""
        uses = Counter(self._racks.get(each) for each in replicas)
        others = [each for each in nodes if each not in replicas]
        return min(others, key=lambda each: (uses[self._racks[each]], self._held[each], each))

    def spread(self) -> None:
        """Move replicas out of racks that have two where another has none."""
        every_rack = set(self._racks.values())
        for replicas in self._replicas.values():
            while True:
                ours = [each for each in replicas if each in self._racks]
                uses = Counter(self._racks[each] for each in ours)
                crowded = [each for each in ours if uses[self._racks[each]] > 1]
                if not crowded or uses.keys() == every_rack:
                    break
                giver = max(crowded, key=lambda each: self._held[each])
                self._move(replicas, giver, self._best(replicas, self._racks))

    def even_out_replicas(self) -> bool:
        """Let those that hold much give to those that hold little; whether anybody did."""
        moved = False
        for replicas in self._replicas.values():
            ours = [each for each in replicas if each in self._racks]
            giver = max(ours, key=lambda each: self._held[each], default=None)
            if giver is None:
                continue
            takers = [each for each in self._racks if self._may_take(replicas, giver, each)]
            if takers:
                taker = min(takers, key=lambda each: (self._held[each], each))
                self._move(replicas, giver, taker)
                moved = True
        return moved

    def _may_take(self, replicas: list[int], giver: int, taker: int) -> bool:
        if taker in replicas or self._held[giver] - self._held[taker] < 2:
            return False
        rack = self._racks[taker]
        if rack == self._racks[giver]:
            return True
        return all(self._racks.get(each) != rack for each in replicas if each in self._racks)

    def even_out_leaders(self) -> bool:
        """Let another replica be the first where one leads much; whether any does."""
        moved = False
        for replicas in self._replicas.values():
            ours = [each for each in replicas if each in self._racks]
            least = min(ours, key=lambda each: self._led[each], default=None)
            if least is not None and self._led[replicas[0]] - self._led[least] >= 2:
                self._led[replicas[0]] -= 1
                self._led[least] += 1
                replicas.remove(least)
                replicas.insert(0, least)
                moved = True
        return moved

    def _move(self, replicas: list[int], giver: int, taker: int) -> None:
        index = replicas.index(giver)
        replicas[index] = taker
        self._held[giver] -= 1
        self._held[taker] += 1
        if index == 0:
            self._led[giver] -= 1
            self._led[taker] += 1


def _mixed(place: TopicPartition) -> tuple[int, str, int]:
    return crc32(f"{place.topic}-{place.partition}".encode()), place.topic, place.partition
