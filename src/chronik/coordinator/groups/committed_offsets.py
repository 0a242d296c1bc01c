"""Committed offsets of one shard's groups, and those that wait for the end of a transaction.

Data only; `offsets` decides. Live changes and replayed ones take the same way in (`apply`), so
that the state is the replay of its records.

Of a plain and a transactional commit of one partition the later record counts, whenever the
transaction ends. Each record gets the next number for that: compaction keeps the order.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from chronik.coordinator.groups.records import OffsetCommitKey, OffsetCommitValue

Where = tuple[str, str, int]  # group id, topic, partition


class Committed(NamedTuple):
    """An offset, and the number of its record."""

    value: OffsetCommitValue
    sequence: int


@dataclass(slots=True)
class CommittedOffsets:
    """What was committed, by group, topic and partition."""

    groups: dict[str, dict[str, dict[int, Committed]]] = field(default_factory=dict)
    # By producer id: an id has one transaction at a time, and its marker may bear a later epoch.
    pending: dict[int, dict[Where, Committed]] = field(default_factory=dict)
    open: dict[str, dict[tuple[str, int], set[int]]] = field(default_factory=dict)  # by group
    _sequence: int = 0

    def get(self, group_id: str, topic: str, partition: int) -> OffsetCommitValue | None:
        """The offset that counts."""
        found = self.groups.get(group_id, {}).get(topic, {}).get(partition)
        return None if found is None else found.value

    def is_unstable(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether an open transaction may change this offset."""
        found = self.open.get(group_id)
        return found is not None and (topic, partition) in found

    def has_any(self, group_id: str) -> bool:
        """Whether the group has offsets or will have some."""
        return group_id in self.groups or group_id in self.open

    def count(self, group_id: str) -> int:
        """How many offsets the group has."""
        return sum(map(len, self.groups.get(group_id, {}).values()))

    def partitions(self, group_id: str) -> Iterator[tuple[str, int]]:
        """All partitions for which the group has an offset, or may get one."""
        found = {
            (topic, partition): None
            for topic, partitions in self.groups.get(group_id, {}).items()
            for partition in partitions
        }
        return iter(found | dict.fromkeys(self.open.get(group_id, ())))

    def values_of(self, group_id: str, topic: str, partition: int) -> list[OffsetCommitValue]:
        """The offset that counts and those that are pending."""
        where = (group_id, topic, partition)
        producers = self.open.get(group_id, {}).get((topic, partition), ())
        found = [self.pending[producer_id][where].value for producer_id in producers]
        value = self.get(*where)
        return found if value is None else [value, *found]

    def apply(
        self, key: OffsetCommitKey, value: OffsetCommitValue | None, producer_id: int | None
    ) -> None:
        """A record: an offset, one that waits for its marker, or with no value a removal."""
        where = (key.group, key.topic, key.partition)
        if value is None:
            self._remove(where)
            return
        self._sequence += 1
        committed = Committed(value, self._sequence)
        if producer_id is None:
            self._put(where, committed)
        else:
            self.pending.setdefault(producer_id, {})[where] = committed
            opened = self.open.setdefault(key.group, {})
            opened.setdefault((key.topic, key.partition), set()).add(producer_id)

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        """What waited for this producer's marker counts now, or never."""
        for where, pending in self.pending.pop(producer_id, {}).items():
            self._close(where, producer_id)
            if not committed:
                continue
            known = self.groups.get(where[0], {}).get(where[1], {}).get(where[2])
            if known is None or known.sequence < pending.sequence:
                self._put(where, pending)

    def _put(self, where: Where, committed: Committed) -> None:
        group_id, topic, partition = where
        self.groups.setdefault(group_id, {}).setdefault(topic, {})[partition] = committed

    def _remove(self, where: Where) -> None:
        group_id, topic, partition = where
        topics = self.groups.get(group_id, {})
        partitions = topics.get(topic, {})
        if partitions.pop(partition, None) is not None and not partitions:
            del topics[topic]
            if not topics:
                del self.groups[group_id]
        for producer_id in [*self.open.get(group_id, {}).get((topic, partition), ())]:
            del self.pending[producer_id][where]
            if not self.pending[producer_id]:
                del self.pending[producer_id]
            self._close(where, producer_id)

    def _close(self, where: Where, producer_id: int) -> None:
        opened = self.open[where[0]]
        producers = opened[where[1:]]
        producers.discard(producer_id)
        if not producers:
            del opened[where[1:]]
            if not opened:
                del self.open[where[0]]
