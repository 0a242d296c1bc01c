"""Which partitions may have got another role by a metadata change, a slice of them at a time.

A broker's death is one change of all its partitions. The image shows it at once; leading and
following as it says is work for each partition. So that the loop has time for others, it is done
for some at once and for the rest turn by turn, always as the image is by then. The topics of the
coordinators come first, and at once: a coordinator begins when the image says so.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from chronik.metadata.image import INTERNAL_TOPICS, Image, id_bytes
from chronik.metadata.records import (
    LeaderEpochsRecord,
    PartitionLeadersRecord,
    PartitionRecord,
    Record,
)

PARTITIONS_AT_ONCE: Final = 500  # some milliseconds

Update = Callable[[bytes, Sequence[int]], None]


class RoleUpdates:
    """Calls `update` with a topic id and partitions, in the order in which they changed."""

    def __init__(self, update: Update) -> None:
        self._update = update
        self._due: dict[bytes, dict[int, None]] = {}
        self._is_going_on = False

    def add(self, image: Image, record: Record) -> None:
        """Note what a record may have changed."""
        for topic_id, indexes in _changed_partitions(image, record):
            self._due.setdefault(id_bytes(topic_id), {}).update(dict.fromkeys(indexes))

    def run(self, image: Image) -> None:
        """Do some now; if there are more, the rest follows by itself."""
        for name in INTERNAL_TOPICS:
            topic = image.topics.get(name)
            indexes = None if topic is None else self._due.pop(topic.id, None)
            if topic is not None and indexes is not None:
                self._update(topic.id, list(indexes))
        if not self._is_going_on:
            self._run_slice()

    def _run_slice(self) -> None:
        count = 0
        while self._due and count < PARTITIONS_AT_ONCE:
            topic_id = next(iter(self._due))
            indexes = self._due.pop(topic_id)
            self._update(topic_id, list(indexes))
            count += len(indexes)
        self._is_going_on = bool(self._due)
        if self._is_going_on:
            asyncio.get_running_loop().call_soon(self._run_slice)


def _changed_partitions(image: Image, record: Record) -> Iterator[tuple[str, Sequence[int]]]:
    """The partitions, by topic id, whose leader or in-sync set a record may have changed."""
    match record:
        case PartitionRecord():
            yield record.topic_id, (record.partition,)
        case PartitionLeadersRecord():
            yield from zip(record.topic_ids, record.partitions, strict=True)
        case LeaderEpochsRecord():
            for topic in image.topics.values():
                led = [p.partition for p in topic.partitions if p.leader == record.node_id]
                if led:
                    yield topic.record.topic_id, led
        case _:
            pass
