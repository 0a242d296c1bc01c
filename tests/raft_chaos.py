"""A whole campaign against a group of Raft nodes: a minute of proposals, reads and faults, then
peace, in which everybody must come to agree.

An operator works beside the faults: it admits new nodes as learners and promotes them, removes
others, the leader too, and replaces the ones whose disk was wiped.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from raft_promises import require
from raft_world import Disk, Weather, World

from chronik.raft.node import RaftNode
from chronik.raft.types import Membership

CAMPAIGN_MS = 60_000
PROPOSALS = 200
# Two clocks may disagree by election_ms_min - lease_ms, 100 ms, while a lease lasts: each by less
# than half of it, and not twice in that time.
CLOCK_JUMP_MS = 45
CLOCK_JUMP_PAUSE_MS = 1_000
AGREEMENT_MS = 15_000  # A leader takes about a second; each of the operator's steps less.


@dataclass
class Operator:
    """Changes the members, one step after the other."""

    world: World
    tasks: list[tuple[str, int]] = field(default_factory=list)

    def work(self) -> None:
        """Take the next step of the first task, if a leader lets us."""
        node = self.world.leader
        if node is not None and self.tasks and not self.world.is_paused(node.node_id):
            goal, node_id = self.tasks[0]
            step = self._removal(node, node_id)
            if goal == "admit":
                step = self._admission(node, node_id)
            if step is None:
                if node.members.changed_index <= node.commit_index and node.has_committed_in_term:
                    self.tasks.pop(0)
                return
            name, membership = step
            if self.world.ask(node, lambda node: node.propose_membership(membership)):
                self.world.faults[name] += 1

    def _admission(self, node: RaftNode, node_id: int) -> tuple[str, Membership] | None:
        now = node.membership
        directory_id = self.world.disks[node_id].directory_id
        if now.directories.get(node_id, directory_id) != directory_id:
            return "member replaced", without(now, node_id)
        if node_id in now.voters:
            return None
        directories = {**now.directories, node_id: directory_id}
        if node_id in now.learners:
            voters, learners = now.voters | {node_id}, now.learners - {node_id}
            return "learner promoted", Membership(voters, learners, directories)
        learners = now.learners | {node_id}
        return "learner added", Membership(now.voters, learners, directories)

    def _removal(self, node: RaftNode, node_id: int) -> tuple[str, Membership] | None:
        if node_id not in node.membership.members or len(node.membership.voters) <= 3:
            return None
        name = "leader removed" if node_id == node.node_id else "member removed"
        return name, without(node.membership, node_id)


def without(membership: Membership, node_id: int) -> Membership:
    """The membership after a removal."""
    directories = {k: v for k, v in membership.directories.items() if k != node_id}
    return Membership(membership.voters - {node_id}, membership.learners - {node_id}, directories)


class Campaign:
    """What happens when, all from one seed."""

    def __init__(self, seed: int, bug: str = "") -> None:
        self.random = random.Random(f"campaign {seed}")
        self.count = self.random.choice([3, 3, 5])
        choice = self.random.choice
        weather = Weather(
            delay_ms=(1, choice([5, 30, 120])),
            save_ms=(0, choice([2, 20, 150])),
            loss=choice([0.0, 0.01, 0.1]),
            duplication=choice([0.0, 0.05]),
        )
        # Small messages and windows make for long conversations about few entries.
        settings = choice([{}, {"append_bytes_max": 8, "inflight_max": 2}])
        self.world = World(seed, self.count, weather, bug, **settings)
        self.operator = Operator(self.world)
        self.reads = 0
        self._jumped_ms: dict[int, int] = {}

    def run(self) -> World:
        """A minute of war, then peace."""
        faults: list[tuple[Callable[[], Any], int]] = [
            (self.crash, 6), (self.partition, 8), (self.pause, 2), (self.slow_disk, 2),
            (self.compact, 4), (self.jump_clock, 4), (self.transfer, 2), (self.resize, 3),
            (self.wipe, 1),
        ]  # fmt: skip
        for fault, count in faults:
            for _ in range(count):
                self.world.at(self.random.randrange(CAMPAIGN_MS), fault)
        for _ in range(PROPOSALS):
            self.world.at(self.random.randrange(CAMPAIGN_MS), self.propose)
        for _ in range(60):
            self.world.at(self.random.randrange(CAMPAIGN_MS), self.read)
        for at_ms in range(0, CAMPAIGN_MS, 200):
            self.world.at(at_ms, self.operator.work)
        self.world.run(CAMPAIGN_MS)
        self.settle()
        return self.world

    # Clients.

    def propose(self) -> None:
        if not self.world.propose():
            self.world.at(100, self.propose)

    def read(self) -> None:
        for node in self.world.leaders():
            self.reads += self.world.read(node.node_id)

    # Faults.

    def any_node(self) -> int:
        return self.random.choice(sorted(self.world.disks))

    def crash(self) -> None:
        leader = self.world.leader
        if self.random.random() < 0.4 and leader is not None:
            victims = [leader.node_id]
        else:
            count = self.random.choice([1, 1, 2, len(self.world.disks)])
            victims = self.random.sample(sorted(self.world.disks), count)
        for node_id in victims:
            self.world.crash(node_id)
            self.world.at(self.random.choice([1, 50, 500, 4_000]), self.world.restart, node_id)

    def partition(self) -> None:
        """One way or both: between two nodes, around one, or through the middle."""
        nodes = sorted(self.world.disks)
        self.random.shuffle(nodes)
        size = self.random.choice([1, 1, 1, 1, len(nodes) // 2])
        inside, outside = nodes[:size], nodes[size:]
        if self.random.random() < 0.5:
            outside = outside[:1]
        links = [(a, b) for a in inside for b in outside]
        if self.random.random() < 0.6:
            links += [(b, a) for a, b in links]
            self.world.faults["partition"] += 1
        else:
            if self.random.random() < 0.5:
                links = [(b, a) for a, b in links]
            self.world.faults["one-way partition"] += 1
        self.world.cut.update(links)
        self.world.at(self.random.randint(300, 5_000), self.world.cut.subtract, links)

    def pause(self) -> None:
        node_id = self.any_node()
        self.world.pause(node_id)
        self.world.at(self.random.randint(50, 3_000), self.world.resume, node_id)

    def slow_disk(self) -> None:
        self.world.faults["slow disk"] += 1
        self.world.disks[self.any_node()].slow_until_ms = self.world.now_ms + 5_000

    def compact(self) -> None:
        self.world.compact(self.any_node())

    def jump_clock(self) -> None:
        """Somebody's clock goes on at once, another's stands for a while."""
        first, second = self.random.sample(sorted(self.world.disks), 2)
        for node_id, jump_ms in ((first, CLOCK_JUMP_MS), (second, -CLOCK_JUMP_MS)):
            last_ms = self._jumped_ms.get(node_id, -CLOCK_JUMP_PAUSE_MS)
            if self.world.now_ms >= last_ms + CLOCK_JUMP_PAUSE_MS:
                self._jumped_ms[node_id] = self.world.now_ms
                self.world.clock_ahead_ms[node_id] += jump_ms
                self.world.faults["clock ahead" if jump_ms > 0 else "clock stands"] += 1

    def transfer(self) -> None:
        world, leader = self.world, self.world.leader
        if leader is not None:
            to, now_ms = self.any_node(), world.clock_ms(leader.node_id)
            if world.ask(leader, lambda node: node.transfer(to, now_ms)):
                world.faults["transfer"] += 1

    def resize(self) -> None:
        """A node more, or one less."""
        if self.operator.tasks:
            return
        leader = self.world.leader
        voters = leader.membership.voters if leader is not None else frozenset()
        spare = sorted(self.world.disks.keys() - voters)
        if len(voters) > 3 and self.random.random() < 0.6:
            assert leader is not None
            victim = self.random.choice([leader.node_id, *sorted(voters)])
            self.operator.tasks.append(("remove", victim))
        elif spare:
            self.operator.tasks.append(("admit", self.random.choice(spare)))
        elif len(self.world.disks) < self.count + 2:
            node_id = max(self.world.disks) + 1
            self.world.disks[node_id] = Disk(f"{node_id}-0", Membership())
            self.world.start(node_id)
            self.operator.tasks.append(("admit", node_id))

    def wipe(self) -> None:
        """Only one at a time, and only if a majority can go on without it."""
        leader = self.world.leader
        if leader is None or self.operator.tasks or len(leader.membership.voters) < 3:
            return
        node_id = self.random.choice(sorted(leader.membership.voters))
        self.world.wipe(node_id)
        self.operator.tasks.append(("admit", node_id))

    # Peace.

    def settle(self) -> None:
        """Heal everything; then there is a leader, and everybody has the same."""
        world = self.world
        world.cut.clear()
        world.weather = replace(world.weather, loss=0.0, duplication=0.0)
        for node_id, disk in world.disks.items():
            disk.slow_until_ms = 0
            world.resume(node_id)
            world.restart(node_id)
        end_ms = world.now_ms + AGREEMENT_MS
        while not self._is_agreed():
            require(world.now_ms < end_ms, "no agreement after all faults were healed")
            world.run(200)
            self.operator.work()

    def _is_agreed(self) -> bool:
        leader = self.world.leader
        is_busy = self.operator.tasks or self.world.proposed < PROPOSALS
        if leader is None or is_busy or not leader.has_committed_in_term:
            return False
        members = [self.world.processes[each] for each in leader.membership.members]
        return all(each.applied_index == leader.log.last_index for each in members)


def chaos(seed: int, bug: str = "") -> Campaign:
    """Run the campaign of a seed."""
    campaign = Campaign(seed, bug)
    campaign.run()
    return campaign
