"""The assignors that run in the broker: who shall own which partition.

`uniform` gives every member as many partitions as the others and moves as few as it can. `range`
gives each member neighbouring partitions, the same ones of every topic that has as many and the
same subscribers, so that records with equal keys of several topics meet in one member.

Both are pure: equal input, equal output, in whatever order members came. Every partition of a
topic with subscribers goes to exactly one of them.
"""

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from chronik.coordinator.consumer.group import Assignment

Partition: TypeAlias = tuple[bytes, int]
Target: TypeAlias = dict[str, Assignment]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSpec:
    """What an assignor knows of a member."""

    topic_ids: frozenset[bytes]
    instance_id: str | None = None
    current: Assignment = field(default_factory=dict)  # the share in the last target


def assign_range(
    members: Mapping[str, MemberSpec], partition_counts: Mapping[bytes, int]
) -> Target:
    """Neighbouring partitions to each member, in an order of members that restarts keep."""
    ordered = sorted(members, key=lambda each: _order(each, members[each]))
    shares: dict[str, dict[bytes, frozenset[int]]] = {member_id: {} for member_id in members}
    for topic_id, count in partition_counts.items():
        subscribers = [each for each in ordered if topic_id in members[each].topic_ids]
        if not subscribers:
            continue
        size, more = divmod(count, len(subscribers))
        start = 0
        for position, member_id in enumerate(subscribers):
            end = start + size + (position < more)
            if end > start:
                shares[member_id][topic_id] = frozenset(range(start, end))
            start = end
    return dict(shares)


def _order(member_id: str, spec: MemberSpec) -> tuple[bool, str]:
    # Static members come first, by a name that outlives their restarts.
    return (spec.instance_id is None, spec.instance_id or member_id)


def assign_uniform(
    members: Mapping[str, MemberSpec], partition_counts: Mapping[bytes, int]
) -> Target:
    """Equal shares with as few moves as possible."""
    plan = _Plan(members, partition_counts)
    plan.fill()
    while plan.balance():
        pass  # Each move brings two loads closer, so this ends; one round is the usual case.
    return plan.result()


class _Pool:
    """The topics with the same subscribers: their partitions can go to any of them."""

    __slots__ = ("free", "held", "subscribers")

    def __init__(self, subscribers: tuple[str, ...]) -> None:
        self.subscribers = subscribers
        self.free: list[Partition] = []
        self.held: dict[str, list[Partition]] = {each: [] for each in subscribers}


class _Plan:
    """An assignment in the making: first all that can stay, then the rest, then the balance."""

    def __init__(
        self, members: Mapping[str, MemberSpec], partition_counts: Mapping[bytes, int]
    ) -> None:
        self._members = members
        self._loads = dict.fromkeys(sorted(members), 0)
        self._pools = self._keep(partition_counts)

    def _keep(self, partition_counts: Mapping[bytes, int]) -> list[_Pool]:
        owner = self._owners(partition_counts)
        pools: dict[tuple[str, ...], _Pool] = {}
        for topic_id in sorted(partition_counts):
            subscribers = self._subscribers(topic_id)
            if not subscribers:
                continue
            pool = pools.get(subscribers)
            if pool is None:
                pool = pools[subscribers] = _Pool(subscribers)
            for partition in range(partition_counts[topic_id]):
                member_id = owner.get((topic_id, partition))
                if member_id is None:
                    pool.free.append((topic_id, partition))
                else:
                    pool.held[member_id].append((topic_id, partition))
                    self._loads[member_id] += 1
        # Those with few subscribers choose first: the others can go around them.
        return sorted(pools.values(), key=lambda pool: (len(pool.subscribers), pool.subscribers))

    def _owners(self, partition_counts: Mapping[bytes, int]) -> dict[Partition, str]:
        return {
            (topic_id, partition): member_id
            for member_id in reversed(self._loads)  # should two claim one, the first has it
            for topic_id, partitions in self._members[member_id].current.items()
            if topic_id in self._members[member_id].topic_ids and topic_id in partition_counts
            for partition in partitions
        }

    def _subscribers(self, topic_id: bytes) -> tuple[str, ...]:
        return tuple(each for each in self._loads if topic_id in self._members[each].topic_ids)

    def fill(self) -> None:
        """Each partition that is free goes to whoever has least."""
        for pool in self._pools:
            heap = [(self._loads[each], each) for each in pool.subscribers]
            heapq.heapify(heap)
            for partition in pool.free:
                load, member_id = heap[0]
                pool.held[member_id].append(partition)
                self._loads[member_id] = load + 1
                heapq.heapreplace(heap, (load + 1, member_id))
            pool.free = []

    def balance(self) -> bool:
        """Move partitions from those with most to those with least; whether one was moved."""
        moved = [self._balance_pool(pool) for pool in self._pools]
        # A move in one pool can only open another one where members are in several pools.
        return any(moved) and len(self._pools) > 1

    def _balance_pool(self, pool: _Pool) -> bool:
        lightest = [(self._loads[each], each) for each in pool.subscribers]
        heaviest = [(-self._loads[each], each) for each in pool.subscribers if pool.held[each]]
        heapq.heapify(lightest)
        heapq.heapify(heaviest)
        moved = False
        while heaviest:
            least, to_member = lightest[0]
            most, from_member = -heaviest[0][0], heaviest[0][1]
            if most - least < 2:
                break
            pool.held[to_member].append(pool.held[from_member].pop())
            self._loads[to_member] += 1
            self._loads[from_member] -= 1
            moved = True
            heapq.heapreplace(lightest, (least + 1, to_member))
            heapq.heappop(heaviest)
            if pool.held[from_member]:
                heapq.heappush(heaviest, (-(most - 1), from_member))
            # The giver stands too high among the lightest and the taker too low among the
            # heaviest. Neither matters: loads meet in the middle, where nobody is both.
        return moved

    def result(self) -> Target:
        """The shares, by member and topic."""
        shares: dict[str, dict[bytes, set[int]]] = {each: {} for each in self._members}
        for pool in self._pools:
            for member_id, partitions in pool.held.items():
                for topic_id, partition in partitions:
                    shares[member_id].setdefault(topic_id, set()).add(partition)
        return {
            member_id: {topic_id: frozenset(each) for topic_id, each in topics.items()}
            for member_id, topics in shares.items()
        }


Assignor: TypeAlias = Callable[[Mapping[str, MemberSpec], Mapping[bytes, int]], Target]
ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}
