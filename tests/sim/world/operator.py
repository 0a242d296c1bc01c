"""Who changes the members: replaces a node that has lost its disk, adds one, removes one.

One goal after the other, each by the commands that a person would give to some node, again and
again until the cluster has done it.
"""

from __future__ import annotations

import random
from collections.abc import Coroutine
from typing import Any

from sim.world.cluster import HOST, INTERNAL_PORT, KAFKA_PORT, Cluster, Process

from chronik.protocol.errors import KafkaError
from chronik.server.members import Remove

PATIENCE_S = 12.0  # for an answer, before another node is asked


class Operator:
    """A person with a list of things to do."""

    def __init__(self, cluster: Cluster, chance: random.Random) -> None:
        self.cluster = cluster
        self.chance = chance
        self.goals: list[tuple[str, int]] = []
        self._asked_at: float | None = None
        self._is_removed = False  # of the goal that is worked on

    @property
    def is_busy(self) -> bool:
        return bool(self.goals)

    def replace(self, node_id: int) -> None:
        """A node has lost its disk: let it in anew."""
        self.goals.append(("replace", node_id))

    def add(self, node_id: int) -> None:
        """A node more."""
        self.goals.append(("add", node_id))
        self.cluster.add(node_id, self._somewhere(node_id))

    def _somewhere(self, node_id: int) -> str:
        """Either port of some other node."""
        known = self.chance.choice(sorted(self.cluster.machines.keys() - {node_id}))
        return f"{HOST}:{self.chance.choice([INTERNAL_PORT, KAFKA_PORT]) + known}"

    def remove(self, node_id: int) -> None:
        """A node less."""
        self.goals.append(("remove", node_id))

    def work(self) -> None:
        """Do the next step of the first goal."""
        if not self.goals:
            return
        goal, node_id = self.goals[0]
        if goal != "remove" and self._is_voter(node_id):
            self.cluster.machines[node_id].is_stranger = False
            self._done("member replaced" if goal == "replace" else "member added")
        elif goal != "add" and not self._is_removed:
            self._ask_to_remove(node_id, replaces=goal == "replace")
        elif goal == "remove":
            self._done("member removed")
            self.cluster.retire(node_id)
        elif self.cluster.machines[node_id].process is None:
            # It was refused, or has asked in vain for too long.
            machine = self.cluster.machines[node_id]
            machine.join = machine.join and self._somewhere(node_id)
            self.cluster.start(node_id)
        elif self._asks_nobody(node_id):
            self.cluster.kill(node_id, "")
        elif self._was_removed_again(node_id):
            self.cluster.wipe(node_id)
            # It may have been let in once more meanwhile, with the disk that is gone now.
            self.goals[0] = ("replace", node_id)
            self._is_removed = False
            self._asked_at = None

    def _done(self, what: str) -> None:
        self.cluster.faults[what] += 1
        self.goals.pop(0)
        self._is_removed = False
        self._asked_at = None

    def _is_voter(self, node_id: int) -> bool:
        leader = self.cluster.leader
        process = self.cluster.machines[node_id].process
        if leader is None or process is None or not process.is_serving:
            return False
        node = leader.node
        is_settled = node.members.changed_index <= node.commit_index
        return is_settled and node_id in node.membership.voters

    def _asks_nobody(self, node_id: int) -> bool:
        """Whether a node asks to be let in where there is no node any more."""
        machine = self.cluster.machines[node_id]
        if machine.join is None or (machine.process and machine.process.is_watched):
            return False
        port = int(machine.join.rpartition(":")[2])
        return self.cluster.network.node_of_port(port) not in self.cluster.machines

    def _was_removed_again(self, node_id: int) -> bool:
        """A command whose answer never came may be done late: then the node begins anew."""
        leader, process = self.cluster.leader, self.cluster.machines[node_id].process
        if leader is None or process is None or not process.is_watched:
            return False
        is_true = leader.node.has_lease(self.cluster.clock_ms(leader.node_id))
        return is_true and node_id not in leader.node.membership.members

    def _ask_to_remove(self, node_id: int, *, replaces: bool) -> None:
        now = self.cluster.scheduler.now
        if self._asked_at is not None and now < self._asked_at + PATIENCE_S:
            return
        others = [each for each in self.cluster.serving if each.node_id != node_id]
        if others:
            self._asked_at = now
            process = self.chance.choice(others)
            change = Remove(node_id, accepts_loss=True, replaces=replaces)
            self._run(process, self._remove(process, change))

    def _run(self, process: Process, work: Coroutine[Any, Any, None]) -> None:
        process.do(lambda: process.loop.create_task(work, name="operator"))

    async def _remove(self, process: Process, change: Remove) -> None:
        try:
            await process.broker.members.change(change)
        except KafkaError as error:
            if error.code.name != "BROKER_ID_NOT_REGISTERED":
                self._asked_at = None  # Soon again.
                return
        if self.goals and self.goals[0][1] == change.node_id:
            self._is_removed = True
