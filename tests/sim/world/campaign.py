"""A bad minute for a cluster of whole brokers, all from one seed; then peace.

A profile says which faults come how often; the seed says when, to whom and for how long. Clients
work all along. After the minute every fault is healed, and within bounded time there must be a
leader, everybody must serve and show the same, and what clients were told must be true.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

from raft_promises import require
from sim.world.chance import uncollected
from sim.world.clients import Clients
from sim.world.cluster import Cluster
from sim.world.messages import MessageWeather
from sim.world.network import Weather
from sim.world.operator import Operator

CAMPAIGN_S = 60.0
PROPOSALS = 200
READS = 60
# Two clocks may disagree by election_ms_min - lease_ms, 100 ms, while a lease lasts: each by less
# than half of it, and not twice in that time.
CLOCK_JUMP_S = 0.045
CLOCK_JUMP_PAUSE_S = 1.0
OPERATOR_S = 0.3  # how often somebody looks after the members
NODES_MAX = 7
WALL_JUMP_MS = 3_600_000
LEADER_S = 10.0  # An election takes about a second; connections that nobody closed take longest.
AGREEMENT_S = 30.0


@dataclass(frozen=True)
class Profile:
    """How often each fault comes in a minute."""

    faults: dict[str, int] = field(
        default_factory=lambda: {
            "kill": 4,
            "power": 4,
            "partition": 8,
            "pause": 2,
            "slow_disk": 2,
            "jump_clock": 4,
            "jump_wall_clock": 1,
            "transfer": 2,
            "reset": 3,
            "restart": 1,
            "wipe": 1,
            "resize": 2,
        }
    )
    counts: tuple[int, ...] = (3, 3, 3, 5)
    restart_s: tuple[float, ...] = (0.001, 0.05, 0.5, 4.0)
    actions: int = 320  # of clients: about two in three come to be proposals
    proposals: int = PROPOSALS  # at the least
    reads: int = READS
    length_s: float = CAMPAIGN_S
    delays_s: tuple[float, ...] = (0.002, 0.02, 0.1)  # of the network, at most
    disks_s: tuple[float, ...] = (0.001, 0.01, 0.1)  # of a write or sync, at most


class Campaign:
    """What happens when."""

    def __init__(self, seed: int, profile: Profile | None = None, **raft_config: int) -> None:
        self.chance = chance = random.Random(f"campaign {seed}")
        self.profile = profile or Profile()
        count = chance.choice(self.profile.counts)
        # Small messages and windows make for long conversations about few entries.
        config = chance.choice([{}, {}, {"append_bytes_max": 8, "inflight_max": 2}]) | raft_config
        self.cluster = self.make_cluster(seed, count, **config)
        self.clients = Clients(self.cluster, chance)
        self.operator = Operator(self.cluster, chance)
        self.reads = 0
        self._jumped: dict[int, float] = {}
        self._is_peace = False
        self._set_weather()

    def make_cluster(self, seed: int, count: int, **options: Any) -> Cluster:
        """The cluster that all of it happens to."""
        return Cluster(seed, count, **options)

    def _set_weather(self) -> None:
        choice = self.chance.choice
        self.cluster.network.weather = Weather(
            delay_s=(0.0005, choice(self.profile.delays_s)),
            loss=choice([0.0, 0.001, 0.02]),
            reset=choice([0.0, 0.0, 0.001]),
        )
        self.cluster.messages.weather = MessageWeather(
            loss=choice([0.0, 0.01, 0.05]),
            duplication=choice([0.0, 0.03]),
            reordering=choice([0.0, 0.03]),
        )
        for machine in self.cluster.machines.values():
            machine.platter.work_s = (0.0, choice(self.profile.disks_s))

    def run(self) -> Campaign:
        """War, then peace."""
        with self.cluster.existing():
            for node_id in self.cluster.machines:
                self.cluster.start(node_id)
            self.plan()
            self.cluster.scheduler.run(self.profile.length_s)
            self.settle()
        return self

    def plan(self) -> None:
        at, length_s = self.cluster.scheduler.at, self.profile.length_s
        for name, count in self.profile.faults.items():
            for _ in range(count):
                at(self.chance.uniform(1.0, length_s), getattr(self, name))
        for _ in range(self.profile.actions):
            at(self.chance.uniform(0.0, length_s), self.act)
        for _ in range(self.profile.reads):
            at(self.chance.uniform(0.0, length_s), self.read)
        for second in range(int(length_s)):
            at(float(second), self.clients.check_answers)
        at(0.0, self._operate)

    def _operate(self) -> None:
        self.operator.work()
        if self._is_peace:
            self._start_all()
        self.cluster.scheduler.at(OPERATOR_S, self._operate)

    # Clients.

    def act(self) -> None:
        if not self.clients.act():
            self.cluster.scheduler.at(0.2, self.act)

    def read(self) -> None:
        for process in self.cluster.processes.values():
            if process.node.role.value == "leader" and not process.loop.is_paused:
                self.reads += 1
                self.cluster.watch.read(process)

    # Faults.

    def any_node(self) -> int:
        return self.chance.choice(sorted(self.cluster.machines))

    def victims(self) -> list[int]:
        leader = self.cluster.leader
        if self.chance.random() < 0.4 and leader is not None:
            return [leader.node_id]
        nodes = sorted(self.cluster.machines)
        return self.chance.sample(nodes, self.chance.choice([1, 1, 2, len(nodes)]))

    def _back(self, node_id: int) -> None:
        self.cluster.scheduler.at(
            self.chance.choice(self.profile.restart_s), self.cluster.start, node_id
        )

    def kill(self) -> None:
        for node_id in self.victims():
            self.cluster.kill(node_id)
            self._back(node_id)

    def kill_follower(self) -> None:
        leader = self.cluster.leader
        others = sorted(self.cluster.machines.keys() - {leader.node_id if leader else 0})
        node_id = self.chance.choice(others)
        self.cluster.kill(node_id)
        self._back(node_id)

    def power(self) -> None:
        for node_id in self.victims():
            self.cluster.power_off(node_id)
            self._back(node_id)

    def restart(self) -> None:
        node_id = self.any_node()
        self.cluster.stop(node_id)
        self.cluster.scheduler.at(2.0, self._start_again, node_id)

    def _start_again(self, node_id: int) -> None:
        machine = self.cluster.machines.get(node_id)
        if machine is not None and machine.process is not None and machine.process.is_stopping:
            self.cluster.scheduler.at(0.5, self._start_again, node_id)  # It takes its time.
        else:
            self.cluster.start(node_id)

    def pause(self) -> None:
        node_id = self.any_node()
        self.cluster.pause(node_id)
        self.cluster.scheduler.at(self.chance.uniform(0.05, 3.0), self.cluster.resume, node_id)

    def slow_disk(self) -> None:
        self.cluster.faults["slow disk"] += 1
        platter = self.cluster.machines[self.any_node()].platter
        platter.slow_until = self.cluster.scheduler.now + 5.0

    def partition(self) -> None:
        """One way or both: between two nodes, around one, or through the middle."""
        nodes = sorted(self.cluster.machines)
        self.chance.shuffle(nodes)
        size = self.chance.choice([1, 1, 1, 1, len(nodes) // 2])
        inside, outside = nodes[:size], nodes[size:]
        if self.chance.random() < 0.5:
            outside = outside[:1]
        links = [(a, b) for a in inside for b in outside]
        if self.chance.random() < 0.6:
            self._cut(links + [(b, a) for a, b in links], "partition")
        elif self.chance.random() < 0.5:
            self._cut([(b, a) for a, b in links], "one-way partition")
        else:
            self._cut(links, "one-way partition")

    def part_from_leader(self) -> None:
        """One node and the leader do not hear each other."""
        leader = self.cluster.leader
        if leader is not None:
            one = leader.node_id
            other = self.chance.choice(sorted(self.cluster.machines.keys() - {one}))
            self._cut([(one, other), (other, one)], "partition")

    def isolate_leader(self) -> None:
        """For a moment nobody hears the leader."""
        leader = self.cluster.leader
        if leader is not None:
            others = self.cluster.machines.keys() - {leader.node_id}
            links = [(leader.node_id, other) for other in sorted(others)]
            self._cut(links + [(b, a) for a, b in links], "partition", (0.2, 0.8))

    def _cut(
        self,
        links: list[tuple[int, int]],
        fault: str,
        for_s: tuple[float, float] = (0.3, 5.0),
    ) -> None:
        self.cluster.faults[fault] += 1
        network = self.cluster.network
        network.break_links(links)
        self.cluster.scheduler.at(self.chance.uniform(*for_s), network.mend_links, links)

    def reset(self) -> None:
        one, other = self.chance.sample(sorted(self.cluster.machines), 2)
        self.cluster.faults["connection reset"] += 1
        self.cluster.network.reset(one, other)

    def jump_clock(self) -> None:
        """Somebody's clock goes on at once, another's stands for a while."""
        first, second = self.chance.sample(sorted(self.cluster.machines), 2)
        now = self.cluster.scheduler.now
        for node_id, jump_s in ((first, CLOCK_JUMP_S), (second, -CLOCK_JUMP_S)):
            if now >= self._jumped.get(node_id, -CLOCK_JUMP_PAUSE_S) + CLOCK_JUMP_PAUSE_S:
                self._jumped[node_id] = now
                self.cluster.machines[node_id].clock.ahead_s += jump_s
                self.cluster.faults["clock ahead" if jump_s > 0 else "clock stands"] += 1

    def jump_wall_clock(self) -> None:
        self.cluster.faults["wall clock jumps"] += 1
        clock = self.cluster.machines[self.any_node()].clock
        clock.wall_ahead_ms += self.chance.choice([-WALL_JUMP_MS, WALL_JUMP_MS])

    def transfer(self) -> None:
        leader = self.cluster.leader
        if leader is None or leader.loop.is_paused or leader.node.transferring_to is not None:
            return
        others = sorted(leader.node.membership.voters - {leader.node_id})
        if not others:
            return
        to = self.chance.choice(others)
        self.cluster.faults["transfer"] += 1

        def ask() -> None:
            leader.node.transfer(to, self.cluster.clock_ms(leader.node_id))
            leader.metadata.consensus.pump()

        leader.do(ask)

    def wipe(self) -> None:
        """Only one at a time: its copies are lost, and the others must be a majority."""
        leader = self.cluster.leader
        if leader is None or self.operator.is_busy or not leader.node.has_committed_in_term:
            return
        membership = leader.node.membership
        is_bound = membership.directories.keys() >= membership.voters
        if is_bound and len(membership.voters) >= 3:
            node_id = self.chance.choice(sorted(membership.voters))
            self.cluster.wipe(node_id)
            self._back(node_id)
            self.operator.replace(node_id)

    def resize(self) -> None:
        """A node more, or one less."""
        leader = self.cluster.leader
        if leader is None or self.operator.is_busy:
            return
        voters = leader.node.membership.voters
        if len(voters) > 3 and self.chance.random() < 0.6:
            self.operator.remove(self.chance.choice([leader.node_id, *sorted(voters)]))
        elif len(self.cluster.machines) < NODES_MAX:
            self.operator.add(1 + max(self.cluster.ever))

    # Peace.

    def settle(self) -> None:
        """Heal everything; then there is a leader, and everybody has the same."""
        cluster = self.cluster
        cluster.network.weather = replace(cluster.network.weather, loss=0.0, reset=0.0)
        cluster.messages.weather = MessageWeather()
        cluster.network.cut.clear()
        cluster.network.mend_links([])
        for node_id, machine in cluster.machines.items():
            machine.platter.slow_until = 0.0
            cluster.resume(node_id)
        self._is_peace = True
        self._start_all()
        has_leader = cluster.scheduler.run_until(self._has_leader, LEADER_S)
        require(has_leader, "no leader after all faults were healed")
        self._make_up()
        is_agreed = cluster.scheduler.run_until(self._is_agreed, AGREEMENT_S)
        require(is_agreed, f"no agreement after all faults were healed: {self._differences()}")
        for node_id, process in cluster.processes.items():
            self.clients.check_image(node_id, process.metadata.image)

    def _make_up(self) -> None:
        """Clients that had no quorum to ask for long ask now; but not for ever."""
        for _ in range(self.profile.actions):
            if self.cluster.watch.proposal_count >= self.profile.proposals:
                return
            self.act()
            self.cluster.scheduler.run(0.1)

    def _start_all(self) -> None:
        for node_id, machine in self.cluster.machines.items():
            if not machine.is_stranger:
                self.cluster.start(node_id)

    def _has_leader(self) -> bool:
        leader = self.cluster.leader
        return leader is not None and leader.node.has_committed_in_term

    def _is_agreed(self) -> bool:
        leader = self.cluster.leader
        if leader is None or self.clients.is_waiting or self.operator.is_busy:
            return False
        everybody = frozenset(self.cluster.machines)
        index = leader.node.log.last_index
        return all(
            process is not None
            and process.is_serving
            and process.metadata.applied_index == index
            and process.metadata.image.online_ids == everybody
            for process in (each.process for each in self.cluster.machines.values())
        )

    def _differences(self) -> dict[int, Any]:
        return {
            node_id: (
                process.node.role.value,
                process.node.term,
                process.metadata.applied_index,
                sorted(process.metadata.image.online_ids),
                process.is_serving,
            )
            for node_id, process in self.cluster.processes.items()
        }


@dataclass
class Report:
    """What a campaign came to."""

    seed: int
    failure: str | None = None
    length_s: float = 0.0
    node_count: int = 0
    proposal_count: int = 0
    read_count: int = 0
    event_count: int = 0
    last_index: int = 0
    faults: dict[str, int] = field(default_factory=dict)


def report(seed: int) -> Report:
    """Run the campaign of a seed; for a pool of processes."""
    failure = None
    with uncollected():
        campaign = Campaign(seed)
        try:
            campaign.run()
        except AssertionError as broken:
            failure = str(broken) or repr(broken)
    cluster = campaign.cluster
    return Report(
        seed=seed,
        failure=failure,
        length_s=cluster.scheduler.now,
        node_count=len(cluster.machines),
        proposal_count=cluster.watch.proposal_count,
        read_count=campaign.reads,
        event_count=cluster.scheduler.event_count,
        last_index=max(cluster.watch.images, default=0),
        faults=dict(cluster.faults),
    )
