"""How far each replica of a led partition has come, and who is in sync. Pure.

The leader hears from every follower how far its log goes and how much of it counts (is durable, if
durability is fsync). From that follow the high watermark and the wishes to change the in-sync set.

Invariants (DESIGN, rules 17, 19 and 20)
    While a change is in flight the high watermark is that of the committed and the proposed set
    together: whichever of them turns out to be true, all its members have what is below.
    It does not move while fewer replicas than min.insync are committed to be in sync, nor while
    somebody who left the set is committed to be eligible, whatever min.insync is by then: so an
    eligible replica has everything below it, too.
    A follower that was not heard of in this leader epoch holds it back, if it is in sync.
    The same holds of what is received and not stored, as far as memory lasts: whoever leads next
    has what was acknowledged in a transaction, unless its machine went down.

See KIP-497 (compare-and-set), KIP-903 (broker epochs) and KIP-966 (eligible leader replicas).
"""

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter

from chronik.metadata.records import PartitionRecord

UNKNOWN = -1


@dataclass(slots=True)
class Follower:
    """What the leader knows of one follower."""

    end_offset: int = UNKNOWN
    stored_offset: int = UNKNOWN  # what counts for the high watermark
    broker_epoch: int = UNKNOWN  # of the process that was heard
    caught_up_ms: int = 0  # when it last had all that the leader had
    heard_ms: int = 0
    leader_end_offset: int = 0  # where the leader's log ended then


_stored_offset: Callable[[Follower], int] = attrgetter("stored_offset")
_end_offset: Callable[[Follower], int] = attrgetter("end_offset")
_NOBODY: dict[int, Follower] = {}  # shared by all partitions that have one replica


class InSync:
    """The replicas of one partition, as its leader sees them in one leader epoch."""

    __slots__ = (
        "elr", "followers", "isr", "node_id", "partition_epoch", "proposed", "replica_count",
    )  # fmt: skip

    def __init__(self, node_id: int, record: PartitionRecord, now_ms: int) -> None:
        self.node_id = node_id
        self.isr = record.isr
        self.elr = record.elr
        self.proposed: frozenset[int] | None = None
        self.partition_epoch = record.partition_epoch
        self.replica_count = len(record.replicas)
        self.followers = _NOBODY
        self._set_replicas(record, now_ms)

    def _set_replicas(self, record: PartitionRecord, now_ms: int) -> None:
        self.replica_count = len(record.replicas)
        old = self.followers
        if record.replicas == (self.node_id,):
            self.followers = _NOBODY
            return
        # Whoever is new has a whole lag time to be heard of.
        self.followers = {
            each: old.get(each) or Follower(caught_up_ms=now_ms)
            for each in record.replicas
            if each != self.node_id
        }

    def committed(self, record: PartitionRecord, now_ms: int) -> None:
        """The metadata log has a later state of the partition, in the same leader epoch."""
        if record.partition_epoch <= self.partition_epoch:
            return
        self.partition_epoch = record.partition_epoch
        self.isr = record.isr
        self.elr = record.elr
        self.proposed = None  # Committed with this, or refused because of it.
        self._set_replicas(record, now_ms)

    def progressed(
        self,
        node_id: int,
        broker_epoch: int,
        end_offset: int,
        stored_offset: int,
        leader_end_offset: int,
        now_ms: int,
    ) -> bool:
        """A follower was heard of; False if it is none of the partition's."""
        follower = self.followers.get(node_id)
        if follower is None:
            return False
        if end_offset >= leader_end_offset:
            follower.caught_up_ms = now_ms
        elif end_offset >= follower.leader_end_offset and follower.heard_ms:
            # It has what the leader had then; meanwhile there is more, as under load there always
            # is.
            follower.caught_up_ms = max(follower.caught_up_ms, follower.heard_ms)
        follower.end_offset = end_offset
        follower.stored_offset = stored_offset
        follower.broker_epoch = broker_epoch
        follower.heard_ms = now_ms
        follower.leader_end_offset = leader_end_offset
        return True

    def lost(self, node_id: int) -> None:
        """The connection of a follower is gone: when it comes back it says anew where it is."""
        follower = self.followers.get(node_id)
        if follower is not None:
            follower.broker_epoch = UNKNOWN

    def is_under(self, min_insync: int) -> bool:
        """Whether too few are in sync for acks=all; a partition cannot ask for more than it has."""
        return len(self.isr) < min(min_insync, self.replica_count)

    def high_watermark(self, stored_offset: int, min_insync: int) -> int:
        """Up to where every replica that counts has stored the log; UNKNOWN if it must not move.

        `stored_offset` is the leader's own.
        """
        if not self.followers:
            return stored_offset
        return self._least(stored_offset, min_insync, _stored_offset)

    def received_offset(self, end_offset: int, min_insync: int) -> int:
        """The same for what they have, be it in memory only; `end_offset` is the leader's own."""
        if not self.followers:
            return end_offset
        return self._least(end_offset, min_insync, _end_offset)

    def _least(self, own_offset: int, min_insync: int, has: Callable[[Follower], int]) -> int:
        if self.elr or self.is_under(min_insync):
            return UNKNOWN
        least = own_offset
        for node_id in self.isr if self.proposed is None else self.proposed.union(self.isr):
            if node_id != self.node_id:
                follower = self.followers.get(node_id)
                least = min(least, UNKNOWN if follower is None else has(follower))
        return least

    def lagging(self, leader_end_offset: int, now_ms: int, lag_max_ms: int) -> frozenset[int]:
        """Members of the in-sync set that did not catch up for too long."""
        return frozenset(
            node_id
            for node_id in self.isr
            if (follower := self.followers.get(node_id)) is not None
            and follower.end_offset < leader_end_offset
            and now_ms - follower.caught_up_ms > lag_max_ms
        )

    def caught_up(
        self, node_id: int, high_watermark: int, epoch_start_offset: int, received_offset: int = 0
    ) -> bool:
        """Whether a follower that is out of sync has come far enough to be in sync.

        It needs what was acknowledged as received, too: it may be the next leader.
        """
        follower = self.followers.get(node_id)
        if follower is None or node_id in self.isr or follower.broker_epoch == UNKNOWN:
            return False
        if follower.end_offset < received_offset:
            return False
        return follower.stored_offset >= max(high_watermark, epoch_start_offset)

    def broker_epochs(self, isr: frozenset[int]) -> dict[int, int]:
        """The broker epochs under which the replicas that are to be added were heard."""
        return {
            node_id: self.followers[node_id].broker_epoch
            for node_id in isr
            if node_id in self.followers and node_id not in self.isr
        }
