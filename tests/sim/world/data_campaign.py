"""A bad half minute for partitions, groups and transactions; then peace, and a look at everything.

The faults are those of `campaign`, and some that look for the leaders of partitions. At the end
every partition has a leader and all replicas in sync, and they are equal; what was acknowledged
is there once, and in order.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from raft_promises import require
from sim.world.campaign import Campaign, Profile
from sim.world.chance import uncollected
from sim.world.cluster import Cluster
from sim.world.data_clients import PLACES, Workload
from sim.world.ledger import Ledger, Place, content
from sim.world.pipelined_client import Pipelined
from sim.world.transactional_clients import Transactions

from chronik.config.settings import Durability
from chronik.replication.partition import Partition

SETTINGS = {
    "replica.lag.time.max.ms": "1500",  # so that half a minute has many in-sync sets
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.heartbeat.interval.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "1000",
}
WHOLE_S = 40.0  # for all replicas to be in sync, and all clients to be done
STEP_S = 0.2
COMMIT_LOOK_S = 0.01  # how often somebody looks whether a commit is on its way
DURABILITIES: tuple[Durability, ...] = ("fsync", "replicated")

DATA = Profile(
    proposals=0,
    faults={
        "kill": 3,
        "power": 1,
        "power_all": 1,
        "power_one": 3,
        "kill_replicas": 1,
        "kill_partition_leader": 2,
        "isolate_partition_leader": 2,
        "partition": 4,
        "pause": 2,
        "slow_disk": 1,
        "transfer": 1,
        "reset": 2,
        "restart": 2,
        "wipe": 1,
    },
    counts=(3, 3, 3, 4),
    actions=10,
    reads=0,
    length_s=30.0,
    disks_s=(0.001, 0.01, 0.05),
)


class DataCampaign(Campaign):
    """What happens when, to clients of the data."""

    def __init__(
        self, seed: int, profile: Profile | None = None, durability: Durability | None = None
    ) -> None:
        self._durability = durability or DURABILITIES[seed % 2]
        super().__init__(seed, profile or DATA)
        self.ledger = Ledger(self.cluster)
        self.workload = Workload(self.cluster, self.ledger, random.Random(f"workload {seed}"))
        self.transactions = Transactions(self.workload)

    def make_cluster(self, seed: int, count: int, **options: Any) -> Cluster:
        return Cluster(seed, count, durability=self._durability, kafka=SETTINGS, **options)

    def run(self) -> DataCampaign:
        try:
            with self.ledger.open():
                super().run()
        finally:
            self.workload.close()
        return self

    def plan(self) -> None:
        super().plan()
        self.workload.start()
        self.workload.run_writer(Pipelined(self.workload).run())
        self.transactions.start()

    # Faults.

    def wipe(self) -> None:
        """Only of three, where every change of members is known to all that stay.

        Of more, one that is behind may refuse a replaced node that leads by now, and then
        nobody tells it.
        """
        if len(self.cluster.machines) == 3:
            super().wipe()

    def power_one(self) -> None:
        """A machine is without power, and the others go on."""
        self._power_off([self.any_node()])

    def power_all(self) -> None:
        """The whole house is without power."""
        self._power_off(sorted(self.cluster.machines))

    def power_amid_commit(self) -> None:
        """The house is without power when a transaction is about to be committed."""
        if self.transactions.is_committing:
            self.power_all()
        elif not self.workload.is_over:
            self.cluster.scheduler.at(COMMIT_LOOK_S, self.power_amid_commit)

    def power(self) -> None:
        self._power_off(self.victims())

    def _power_off(self, nodes: list[int]) -> None:
        """Where memory is what counts, only one of them loses it: the others are killed.

        Nor does the last that has a partition's records lose it: nothing would be promised of them.
        """
        for number, node_id in enumerate(nodes):
            is_memory = self._durability == "replicated"
            if is_memory and (number or self.ledger.is_last(node_id)):
                self.cluster.kill(node_id)
            else:
                self.cluster.power_off(node_id)
            self._back(node_id)

    def kill_replicas(self) -> None:
        """All replicas of a partition die, one after the other, and come back in any order."""
        places = [each for each in self.ledger.places if each.record and each.committed]
        if places:
            record = self.chance.choice(places).record
            assert record is not None
            nodes = [each for each in record.replicas if each in self.cluster.machines]
            self.chance.shuffle(nodes)
            for number, node_id in enumerate(nodes):
                self.cluster.scheduler.at(number * 1.5, self._kill_for, node_id)

    def _kill_for(self, node_id: int) -> None:
        self.cluster.kill(node_id)
        self.cluster.scheduler.at(self.chance.uniform(1.0, 4.0), self.cluster.start, node_id)

    def _leader_of_some(self) -> int | None:
        places = [each for each in self.ledger.places if each.record and each.record.leader > 0]
        if not places:
            return None
        record = self.chance.choice(places).record
        assert record is not None
        return record.leader if record.leader in self.cluster.machines else None

    def kill_partition_leader(self) -> None:
        node_id = self._leader_of_some()
        if node_id is not None:
            self.cluster.kill(node_id)
            self._back(node_id)

    def isolate_partition_leader(self) -> None:
        """No other node hears it; clients do."""
        node_id = self._leader_of_some()
        if node_id is not None:
            links = [(node_id, each) for each in sorted(self.cluster.machines) if each != node_id]
            self._cut(links + [(b, a) for a, b in links], "leader isolated", (1.0, 6.0))

    # Peace.

    def settle(self) -> None:
        super().settle()
        self.workload.is_over = True
        end = self.cluster.scheduler.now + WHOLE_S
        while left := self._unfinished():
            require(self.cluster.scheduler.now < end, f"after all faults were healed: {left}")
            self.cluster.scheduler.run(STEP_S)
        for place in self.ledger.places:
            self._check_equal(place)
        self._check_acknowledged()
        self._check_transactions()

    def _unfinished(self) -> str:
        """What is still to come."""
        if away := self.cluster.machines.keys() - self.cluster.processes.keys():
            return f"nodes {away} are away"
        if self.workload.busy:
            return f"{self.workload.busy} clients do not end"
        for place in self.ledger.places:
            record = place.record
            if record is None or place.name not in self.ledger.image.topics:
                continue  # Its topic is gone.
            if record.leader < 0:
                return f"{place} has no leader"
            if set(record.isr) != set(record.replicas) or record.elr:
                return f"{place} is in sync on {record.isr} of {record.replicas}, {record.elr}"
            if len(set(self._ends(place))) > 1:
                return f"the replicas of {place} end at {self._ends(place)}"
        if unread := self.workload.unread():
            return f"the group has not read {unread[:3]}"
        return ""

    def _replicas(self, place: Place) -> list[Partition]:
        assert place.record is not None
        found = []
        for node_id in place.record.replicas:
            replicas = self.cluster.processes[node_id].broker.replicas
            topic = replicas.image.topics.get(place.name)
            if topic is not None:
                known = replicas._partitions.get(topic.id, {}).get(place.index)
                found += [known] if known is not None else []
        return found

    def _ends(self, place: Place) -> list[tuple[int, int]]:
        return [(each.log.end_offset, each.high_watermark) for each in self._replicas(place)]

    def _check_equal(self, place: Place) -> None:
        if place.record is None or place.name not in self.ledger.image.topics:
            return
        contents = {
            content(log, log.log_start_offset, log.end_offset)
            for log in (each.log for each in self._replicas(place))
            if log.end_offset
        }
        require(len(contents) <= 1, f"the replicas of {place} differ")

    def _check_acknowledged(self) -> None:
        workload = self.workload
        for where in PLACES:
            place = self.ledger.find(*where)
            if place.is_void:
                continue
            for offset, value in workload.acked[where]:
                found = workload.seen.get((where, offset))
                require(found == value, f"{where} lost {value!r}, which was at {offset}: {found!r}")
            once = [value for (at, _), value in workload.seen.items() if at == where]
            twice = {v for v in once if v.startswith(b"acks -1") and once.count(v) > 1}
            require(not twice, f"{where} has twice: {twice}")

    def _check_transactions(self) -> None:
        if any(each.is_void for each in self.ledger.places):
            return  # Each of them says something of all the others.
        self.workload.run(self.transactions.check())
        scheduler = self.cluster.scheduler
        is_checked = scheduler.run_until(lambda: self.transactions.is_checked, WHOLE_S)
        self.cluster.watch.check()
        require(is_checked, "transactions stay open")


@dataclass
class DataReport:
    """What a campaign came to."""

    seed: int
    failure: str | None = None
    event_count: int = 0
    acked_count: int = 0
    committed_count: int = 0  # transactions
    void_count: int = 0
    place_count: int = 0
    last_index: int = 0
    faults: dict[str, int] = field(default_factory=dict)


def report(seed: int) -> DataReport:
    """Run the campaign of a seed; for a pool of processes."""
    failure = None
    with uncollected():
        campaign = DataCampaign(seed)
        try:
            campaign.run()
        except AssertionError as broken:
            failure = str(broken) or repr(broken)
    places = [each for each in campaign.ledger.places if each.committed]
    return DataReport(
        seed=seed,
        failure=failure,
        event_count=campaign.cluster.scheduler.event_count,
        acked_count=sum(map(len, campaign.workload.acked.values())),
        committed_count=campaign.transactions.committed_count,
        void_count=sum(each.is_void for each in places),
        place_count=len(places),
        last_index=max(campaign.cluster.watch.images, default=0),
        faults=dict(campaign.cluster.faults),
    )
