"""Bugs planted in replication, one for each of the rules that keep acknowledged records.

Each is a patch of one function. Its profile says which faults come how often, and nothing of when
or where.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from unittest.mock import patch

from sim.world.campaign import Profile
from sim.world.data_campaign import DATA, DataCampaign

import chronik.broker
from chronik.config.settings import Durability
from chronik.metadata import brokers
from chronik.metadata.image import Image
from chronik.metadata.records import LeaderEpochsRecord
from chronik.replication.isr import InSync
from chronik.replication.partition import Partition


@contextmanager
def counts_only_the_proposed_set() -> Iterator[None]:
    """Rule 17: a smaller in-sync set counts before it is committed."""
    high_watermark = InSync.high_watermark

    def of_proposed(in_sync: InSync, stored_offset: int, min_insync: int) -> int:
        committed = in_sync.isr
        if in_sync.proposed is not None and in_sync.proposed < frozenset(committed):
            in_sync.isr, min_insync = tuple(sorted(in_sync.proposed)), 1
        try:
            return high_watermark(in_sync, stored_offset, min_insync)
        finally:
            in_sync.isr = committed

    with patch.object(InSync, "high_watermark", of_proposed):
        yield


@contextmanager
def leads_on_after_a_restart() -> Iterator[None]:
    """Rule 18: a registration begins no new leader epoch."""
    register = brokers.register_broker

    def without_epochs(*arguments: object, **options: object) -> object:
        decision = register(*arguments, **options)  # type: ignore[arg-type]
        kept = tuple(each for each in decision.records if not isinstance(each, LeaderEpochsRecord))
        return replace(decision, records=kept)

    with patch.object(brokers, "register_broker", without_epochs):
        yield


@contextmanager
def counts_what_is_only_written() -> Iterator[None]:
    """Rule 19: what is in memory counts as durable, on leaders and followers."""
    with patch.object(Partition, "stored_offset", property(lambda self: self.log.end_offset)):
        original = Partition._written

        def written(partition: Partition, bytes_written: int, *, may_wait: bool = False) -> None:
            original(partition, bytes_written, may_wait=may_wait)
            if partition.in_sync is not None:
                partition.recount()

        with patch.object(Partition, "_written", written):
            yield


def trusts_an_unclean_replica() -> AbstractContextManager[object]:
    """Rule 20: a machine that has lost its memory says that it has not."""
    return patch.object(chronik.broker, "ended_cleanly", lambda disk, data_dir: True)


@contextmanager
def counts_below_min_insync() -> Iterator[None]:
    """Rule 20: the high watermark moves though too few are in sync, past the eligible ones."""
    high_watermark = InSync.high_watermark

    def of_any(in_sync: InSync, stored_offset: int, min_insync: int) -> int:
        elr, in_sync.elr = in_sync.elr, ()
        try:
            return high_watermark(in_sync, stored_offset, 1)
        finally:
            in_sync.elr = elr

    with patch.object(InSync, "high_watermark", of_any):
        yield


def commits_in_spite_of_lost_memory() -> AbstractContextManager[object]:
    """ADR 0019: nobody minds that a machine went down that had acknowledged records."""
    return patch.object(Image, "memory_epoch", property(lambda self: 0))


@dataclass(frozen=True)
class DataBug:
    """A bug, where to look for it, and the promise that it breaks."""

    planted: Callable[[], AbstractContextManager[object]]
    promise: str
    faults: dict[str, int]
    durability: Durability = "fsync"
    node_count: int = 3
    disk_s: float = 0.01  # of a sync, at most

    @property
    def profile(self) -> Profile:
        return replace(
            DATA,
            faults=self.faults,
            counts=(self.node_count,),
            length_s=20.0,
            actions=0,
            disks_s=(self.disk_s,),
        )

    def campaign(self, seed: int) -> DataCampaign:
        return DataCampaign(seed, self.profile, self.durability)


LOSS = "lacks committed|committed batch|cuts|lost|two batches|has changed|differ"

HALF = "of which is visible"

DATA_BUGS = {
    "17: the high watermark of a proposed set": DataBug(
        counts_only_the_proposed_set,
        LOSS,
        {"isolate_partition_leader": 8, "kill_partition_leader": 3},
    ),
    "18: a restarted broker leads on in its epoch": DataBug(
        leads_on_after_a_restart, "two leaders in epoch|two batches|" + LOSS, {"power_one": 12}
    ),
    "19: an ack before fsync": DataBug(
        counts_what_is_only_written, LOSS, {"power_all": 6}, disk_s=0.1
    ),
    "20: an unclean replica stays in sync": DataBug(
        trusts_an_unclean_replica, LOSS, {"power_one": 10}, "replicated"
    ),
    "20: a high watermark below min.insync": DataBug(
        counts_below_min_insync,
        LOSS,
        {"kill_replicas": 4},
        node_count=5,  # so that there is a quorum when two replicas of three are away
    ),
    "a commit after lost memory": DataBug(
        commits_in_spite_of_lost_memory, HALF, {"power_amid_commit": 4}, disk_s=0.15
    ),
}
