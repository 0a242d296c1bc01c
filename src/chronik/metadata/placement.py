"""Which brokers hold a topic's replicas.

Leaders go round the brokers, from topic to topic on: partition number n of the cluster is led by
the n-th broker of the ring, so that a thousand topics of one partition are as even as one topic of
a thousand. Followers are the next brokers of the ring, at a distance that shifts once a round, so
that a broker's death spreads its partitions over all others. Of these the first are taken whose
rack has the fewest replicas of the partition. The ring alternates between racks.

Brokers without a rack count as one rack.
"""

from collections import Counter
from collections.abc import Sequence

from chronik.metadata.records import BrokerRecord


def rack_ring(brokers: Sequence[BrokerRecord]) -> list[BrokerRecord]:
    """The brokers, one of each rack in turn."""
    racks: dict[str | None, list[BrokerRecord]] = {}
    for broker in sorted(brokers, key=lambda each: each.node_id):
        racks.setdefault(broker.rack, []).append(broker)
    ring: list[BrokerRecord] = []
    depth = max(map(len, racks.values()), default=0)
    for position in range(depth):
        ring.extend(each[position] for each in racks.values() if position < len(each))
    return ring


def place(
    ring: Sequence[BrokerRecord], first: int, count: int, replication_factor: int
) -> list[tuple[int, ...]]:
    """Replicas of `count` partitions, the preferred leader first.

    `first` is how many were placed before: the round goes on there.
    """
    assert 0 < replication_factor <= len(ring)
    return [_replicas(ring, turn, replication_factor) for turn in range(first, first + count)]


def _replicas(ring: Sequence[BrokerRecord], turn: int, count: int) -> tuple[int, ...]:
    size = len(ring)
    leader = turn % size
    chosen = [ring[leader]]
    others = size - 1
    shift = turn // size
    followers = [ring[(leader + 1 + (shift + step) % others) % size] for step in range(others)]
    uses = Counter([ring[leader].rack])
    while len(chosen) < count:
        follower = min(followers, key=lambda each: uses[each.rack])  # The first of equals.
        followers.remove(follower)
        chosen.append(follower)
        uses[follower.rack] += 1
    return tuple(each.node_id for each in chosen)


def turn_after(ring: Sequence[BrokerRecord], leader: int, placed: int) -> int:
    """The next turn from `placed` on that follows this leader's, for a topic that grows."""
    ids = [each.node_id for each in ring]
    if leader not in ids:
        return placed
    return placed + (ids.index(leader) + 1 - placed) % len(ring)
