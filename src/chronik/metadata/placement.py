"""Which brokers hold a topic's replicas.

Leaders go round the brokers from a start that differs from topic to topic, so that topics of one
partition do not all land on the first broker; followers are the next brokers of the ring, at a
distance that shifts once a round, so that two brokers do not share all partitions. The ring
alternates between racks where brokers have them.
"""

from collections.abc import Sequence

from chronik.metadata.records import BrokerRecord


def rack_ring(brokers: Sequence[BrokerRecord]) -> list[int]:
    """Broker ids, one of each rack in turn."""
    racks: dict[str | None, list[int]] = {}
    for broker in sorted(brokers, key=lambda each: each.node_id):
        racks.setdefault(broker.rack, []).append(broker.node_id)
    ring: list[int] = []
    depth = max(map(len, racks.values()), default=0)
    for position in range(depth):
        ring.extend(ids[position] for ids in racks.values() if position < len(ids))
    return ring


def place(
    ring: Sequence[int], first: int, count: int, replication_factor: int, start: int
) -> list[tuple[int, ...]]:
    """Replicas of partitions `first` to `first + count`, the preferred leader first."""
    size = len(ring)
    assert 0 < replication_factor <= size
    placed = []
    for partition in range(first, first + count):
        leader = (start + partition) % size
        shift = (start + partition // size) % max(size - 1, 1)
        followers = ((leader + 1 + (shift + step) % (size - 1)) % size for step in range(size - 1))
        replicas = [leader, *followers] if size > 1 else [leader]
        placed.append(tuple(ring[position] for position in replicas[:replication_factor]))
    return placed
