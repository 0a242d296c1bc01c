"""How the partitions of the cluster are doing, counted in one walk over the image. Pure.

Ten thousand partitions take some milliseconds, so it is counted when somebody asks.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from chronik.metadata.image import Image
from chronik.metadata.partitions import MinInSync
from chronik.metadata.records import NO_LEADER


@dataclass(slots=True)
class Health:
    """Counts over all partitions, and who leads and holds how many."""

    partition_count: int = 0
    under_replicated_count: int = 0  # fewer in sync than there are replicas that stay
    under_min_isr_count: int = 0
    offline_count: int = 0  # without a leader
    moving_count: int = 0
    not_preferred_count: int = 0  # led by another than the first replica
    leaders: Counter[int] = field(default_factory=Counter)
    replicas: Counter[int] = field(default_factory=Counter)

    @property
    def leader_skew(self) -> float:
        """How much more the busiest node leads than its share: 0.5 is half as much again."""
        led = sum(self.leaders.values())
        nodes = len(self.replicas)
        return max(self.leaders.values()) * nodes / led - 1 if led and nodes else 0.0


def health(image: Image, min_isr: MinInSync) -> Health:
    """The counts of an image."""
    found = Health()
    shapes: Counter[tuple[_Shape, int]] = Counter()
    for topic in image.topics.values():
        least = min_isr(topic.name)
        for each in topic.partitions:
            shape = (
                each.replicas, each.isr, each.leader, each.adding_replicas, each.removing_replicas
            )  # fmt: skip
            shapes[shape, least] += 1
    for (shape, least), count in shapes.items():
        _count(found, shape, least, count)
    found.leaders.pop(NO_LEADER, None)
    return found


# Thousands of partitions have few shapes: replicas, in sync, leader, adding, removing.
_Shape = tuple[tuple[int, ...], tuple[int, ...], int, tuple[int, ...], tuple[int, ...]]


def _count(found: Health, shape: _Shape, min_isr: int, count: int) -> None:
    replicas, isr, leader, adding, removing = shape
    found.partition_count += count
    found.leaders[leader] += count
    for node_id in replicas:
        found.replicas[node_id] += count
    found.not_preferred_count += count * (leader != replicas[0])
    found.under_replicated_count += count * (len(isr) < len(replicas) - len(adding))
    found.under_min_isr_count += count * (len(isr) < min(min_isr, len(replicas)))
    found.offline_count += count * (leader == NO_LEADER)
    found.moving_count += count * bool(adding or removing)


def below_factor(image: Image, wanted: Iterable[tuple[str, int]]) -> list[str]:
    """Which of these topics have a partition with fewer replicas than wanted."""
    return [
        name
        for name, factor in wanted
        if (topic := image.topics.get(name)) is not None
        and any(len(each.replicas) < factor for each in topic.partitions)
    ]
