"""What partitions promise, checked whenever a replica of one writes, cuts its log or counts.

    Copies       a batch with one offset and leader epoch is the same on every replica
    Committed    what was below the high watermark of any replica never changes on another
    Watermark    within a leader epoch it does not go back; no follower's is ahead of all leaders'
    Leaders      one process leads in one epoch; it has all that was ever committed
    Cuts         no follower cuts off what is committed

All of it holds while one member of the last committed in-sync or eligible set has kept what it had:
its disk, and with durability "replicated" its memory too. A partition that has lost all of them is
void, and nothing is said of it any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from unittest.mock import patch

from raft_promises import Broken
from sim.world.cluster import Cluster, Process

from chronik.metadata.image import Image
from chronik.metadata.records import PartitionRecord
from chronik.protocol.batch import BatchHeader, last_next_offset, split
from chronik.replication.partition import Partition
from chronik.replication.replicas import Replicas
from chronik.storage.log import Log

EVERYTHING = 1 << 30
NEVER = -1


class Committed(NamedTuple):
    """A batch that is below a high watermark."""

    leader_epoch: int
    crc: int
    next_offset: int


@dataclass
class Place:
    """One partition, over all of its replicas and their lives."""

    name: str
    index: int
    end_offset: int = 0  # of what is committed
    committed: dict[int, Committed] = field(default_factory=dict)  # by base offset
    written: dict[tuple[int, int], int] = field(default_factory=dict)  # CRCs by offset and epoch
    leaders: dict[int, Process] = field(default_factory=dict)  # by epoch
    high_watermarks: dict[int, int] = field(default_factory=dict)  # of the leader, by epoch
    record: PartitionRecord | None = None  # the last one that is committed
    whole_since: dict[int, int] = field(default_factory=dict)  # broker epochs, by node
    is_void: bool = False

    def __str__(self) -> str:
        return f"{self.name}-{self.index}"


class Ledger:
    """Everything that partitions have promised."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._places: dict[tuple[bytes, int], Place] = {}
        self._index = 0  # of the latest image
        self.image = Image()
        self._lost_at: dict[int, int] = {}  # the last broker epoch whose data is gone, by node
        cluster.on_loss.append(self._lost)
        cluster.watch.on_applied.append(self._applied)

    def find(self, name: str, index: int) -> Place:
        """The partition of a topic that clients know."""
        topic = self.image.topics[name]
        return self._place(topic.id, name, index)

    @property
    def places(self) -> list[Place]:
        return list(self._places.values())

    def _of(self, partition: Partition) -> Place:
        return self._place(partition.topic_id, partition.name, partition.index)

    def _place(self, topic_id: bytes, name: str, index: int) -> Place:
        place = self._places.get((topic_id, index))
        if place is None:
            place = self._places[topic_id, index] = Place(name, index)
        return place

    def require(self, is_kept: bool, promise: str) -> None:
        """Wherever this is raised, it is heard."""
        if not is_kept:
            broken = Broken(promise)
            self._cluster.watch.logged(promise, broken)
            raise broken

    # Who has what.

    def _applied(self, index: int, image: Image) -> None:
        """Some node knows more of the metadata than anybody before."""
        if index <= self._index:
            return
        self._index, before, self.image = index, self.image, image
        for name, topic in image.topics.items():
            if before.topics.get(name) is topic:
                continue
            for record in topic.partitions:
                place = self._place(topic.id, name, record.partition)
                if place.record is not record:
                    self._changed(place, record)

    def _changed(self, place: Place, record: PartitionRecord) -> None:
        before = place.record
        known = set() if before is None else {*before.isr, *before.elr}
        for node_id in record.isr:
            if node_id not in known:
                place.whole_since[node_id] = self._broker_epoch(node_id)
        place.record = record
        self._check_void(place)

    def _broker_epoch(self, node_id: int) -> int:
        broker = self.image.brokers.get(node_id)
        return NEVER if broker is None else broker.epoch

    def _lost(self, node_id: int, has_lost_disk: bool) -> None:
        if has_lost_disk or self._cluster.durability == "replicated":
            self._lost_at[node_id] = max(self._broker_epoch(node_id), self._lost_at.get(node_id, 0))
            for place in self._places.values():
                self._check_void(place)

    def is_last(self, node_id: int) -> bool:
        """Whether a partition has nothing but what this node remembers."""
        return any(
            place.committed and not place.is_void and self._keepers(place) == {node_id}
            for place in self._places.values()
        )

    def _check_void(self, place: Place) -> None:
        if place.record is not None and not place.is_void:
            place.is_void = not self._keepers(place)

    def _keepers(self, place: Place) -> set[int]:
        """Who has kept everything that was committed."""
        record, lost_at, since = place.record, self._lost_at, place.whole_since
        if record is None:
            return set()
        return {
            each
            for each in (*record.isr, *record.elr)
            if since.get(each, NEVER) > lost_at.get(each, NEVER)
        }

    # What replicas do.

    @contextmanager
    def open(self) -> Iterator[None]:
        """While this lasts, replicas are watched."""
        with (
            patch.object(Partition, "lead", _after(Partition.lead, self._leads)),
            patch.object(Partition, "_log", _after(Partition._log, self._wrote)),
            patch.object(Partition, "_advance", self._watched_advance(Partition._advance)),
            patch.object(Partition, "recount", self._watched_recount(Partition.recount)),
            patch.object(Replicas, "truncate", self._watched_truncate(Replicas.truncate)),
        ):
            yield

    def _leads(self, partition: Partition, *_: Any) -> None:
        place, process = self._of(partition), _process()
        known = place.leaders.setdefault(partition.leader_epoch, process)
        self.require(known is process, f"{place} has two leaders in epoch {partition.leader_epoch}")

    def _wrote(self, partition: Partition, header: BatchHeader, *_: Any) -> None:
        place = self._of(partition)
        known = place.written.setdefault((header.base_offset, header.leader_epoch), header.crc)
        self.require(
            known == header.crc,
            f"{place} has two batches at {header.base_offset} in epoch {header.leader_epoch}",
        )

    def _watched_advance(self, advance: Any) -> Any:
        def watched(partition: Partition, high_watermark: int) -> None:
            before = partition.high_watermark
            if high_watermark > before:
                self._check_advance(partition, before, high_watermark)
            advance(partition, high_watermark)

        return watched

    def _check_advance(self, partition: Partition, start: int, end: int) -> None:
        place = self._of(partition)
        if place.is_void:
            return
        is_leader = partition.in_sync is not None
        self.require(is_leader or end <= place.end_offset, f"a follower of {place} knows too much")
        for header, _ in split(content(partition.log, start, end)):
            batch = Committed(header.leader_epoch, header.crc, header.next_offset)
            known = place.committed.setdefault(header.base_offset, batch)
            self.require(
                known == batch, f"{place}: a committed batch changed, at {header.base_offset}"
            )
        place.end_offset = max(place.end_offset, end)

    def _watched_recount(self, recount: Any) -> Any:
        def watched(partition: Partition) -> None:
            place, epoch = self._of(partition), partition.leader_epoch
            if partition.is_loaded and not place.is_void and epoch not in place.high_watermarks:
                self._check_complete(place, partition)
            recount(partition)
            if partition.is_loaded:
                before = place.high_watermarks.get(epoch, 0)
                now = place.high_watermarks[epoch] = partition.high_watermark
                self.require(now >= before, f"the high watermark of {place} went back in an epoch")

        return watched

    def _check_complete(self, place: Place, partition: Partition) -> None:
        """A leader begins: it has what leaders before it have committed.

        It may begin late, when there are later ones already: what those did is not its business.
        Copies are the same, so that the last batch tells of those before it.
        """
        log, epoch = partition.log, partition.leader_epoch
        end_offset = max((hw for e, hw in place.high_watermarks.items() if e < epoch), default=0)
        self.require(
            log.end_offset >= end_offset,
            f"the leader of {place} lacks committed records: it has {log.end_offset} of "
            f"{end_offset}",
        )
        last = max((each for each in place.committed if each < end_offset), default=None)
        if last is not None and last >= log.log_start_offset:
            data = log.read(last, 1, end_offset, nowait=False)
            header = next(iter(split(data or b""))).header
            found = Committed(header.leader_epoch, header.crc, header.next_offset)
            self.require(
                found == place.committed[last], f"the leader of {place} has another committed batch"
            )

    def _watched_truncate(self, truncate: Any) -> Any:
        async def watched(replicas: Replicas, partition: Partition, to_offset: int) -> None:
            self._check_cut(partition, to_offset)
            await truncate(replicas, partition, to_offset)

        return watched

    def _check_cut(self, partition: Partition, to_offset: int) -> None:
        place, log = self._of(partition), partition.log
        if place.is_void or not log.log_start_offset <= to_offset < log.end_offset:
            return
        data = log.read(to_offset, 1, log.end_offset, nowait=False)
        header = next(iter(split(data or b""))).header
        found = Committed(header.leader_epoch, header.crc, header.next_offset)
        self.require(
            place.committed.get(header.base_offset) != found,
            f"node {partition._node_id} cuts {place} at {to_offset}, committed to "
            f"{place.end_offset}",
        )


def content(log: Log, start: int, end: int) -> bytes:
    """All batches from one offset to another."""
    data = b""
    while start < end:
        some = bytes(log.read(start, EVERYTHING, end, nowait=False) or b"")
        if not some:
            break
        data += some
        start = last_next_offset(some)
    return data


def _after(method: Any, then: Any) -> Any:
    def watched(*arguments: Any) -> Any:
        result = method(*arguments)
        then(*arguments)
        return result

    return watched


def _process() -> Process:
    loop: Any = asyncio.get_running_loop()
    process: Process = loop.process
    return process
