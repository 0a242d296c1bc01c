"""What Raft promises, checked over a whole group after every event.

Election safety      at most one leader in a term
Log matching         entries of one index and term are the same, and so is all before them
Leader completeness  who is elected has whatever was committed in earlier terms
Commitment           what one node holds committed, all do
State machines       equal at an equal index
Reads                answered under a lease or by read index, they see what was committed before
Memory               terms, votes and the commit index of a disk do not go back
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from chronik.raft.node import RaftNode, Ready
from chronik.raft.types import Entry, HardState, Role

if TYPE_CHECKING:
    from raft_world import World


class Broken(AssertionError):
    """A promise was not kept."""


def require(is_kept: bool, promise: str) -> None:
    if not is_kept:
        raise Broken(promise)


@dataclass
class Promises:
    """What was ever true in a group, and so must stay true."""

    leaders: dict[int, int] = field(default_factory=dict)  # node by term
    written: dict[tuple[int, int], tuple[Entry, int | None]] = field(default_factory=dict)
    committed: dict[int, int] = field(default_factory=dict)  # term by index
    committed_in: dict[int, int] = field(default_factory=dict)  # index by term of the leader
    machines: dict[int, int] = field(default_factory=lambda: {0: 0})  # by index
    floor: int = 0  # the highest index that anybody holds committed

    def appended(self, node: RaftNode, ready: Ready) -> None:
        """Log matching: by induction over the entry before."""
        for entry in ready.entries:
            before = node.log.term_at(entry.index - 1)
            known, known_before = self.written.setdefault(
                (entry.index, entry.term), (entry, before)
            )
            require(known == entry, f"two entries {entry.index} of term {entry.term}")
            if before is not None and known_before is not None:
                require(before == known_before, f"different entries before {entry.index}")

    def applied(self, index: int, machine: int) -> None:
        require(
            self.machines.setdefault(index, machine) == machine,
            f"state machines differ at {index}",
        )

    def saved(self, before: HardState, after: HardState) -> None:
        require(after.term >= before.term, "a term went back on disk")
        require(after.commit_index >= before.commit_index, "a commit index went back on disk")
        if after.term == before.term:
            require(before.vote in (None, after.vote), "a vote was changed on disk")

    def watch(self, world: World, node: RaftNode, commit_before: int, term_before: int) -> None:
        """Something happened to a node."""
        commit_index, log = node.commit_index, node.log
        require(node.term >= term_before, "a term went back")
        require(commit_index <= log.last_index, "a committed entry vanished")
        if commit_index != commit_before:
            self._watch_commit(node, commit_before)
        if commit_index and log.term_at(commit_index) != self.committed[commit_index]:
            raise Broken("a committed entry changed")
        if node.role is Role.LEADER:
            self._watch_leader(node)
            self._check_lease(world, node)
        if commit_index > self.floor:
            self.floor = commit_index
            for each in world.processes.values():
                self._check_lease(world, each.node)

    def _watch_commit(self, node: RaftNode, commit_before: int) -> None:
        require(node.commit_index >= commit_before, "a commit index went back")
        first = max(commit_before + 1, node.log.snapshot.index)
        for index in range(first, node.commit_index + 1):
            term = node.log.term_at(index)
            assert term is not None
            known = self.committed.setdefault(index, term)
            require(known == term, f"two entries were committed at {index}")

    def _watch_leader(self, node: RaftNode) -> None:
        term = node.term
        if term not in self.leaders:
            self.leaders[term] = node.node_id
            floor = max((i for t, i in self.committed_in.items() if t < term), default=0)
            if floor > node.log.snapshot.index:
                is_complete = node.log.term_at(floor) == self.committed[floor]
                require(is_complete, f"the leader of term {term} lacks a committed entry")
        if self.leaders[term] != node.node_id:
            raise Broken(f"two leaders in term {term}")
        self.committed_in[term] = node.commit_index

    def _check_lease(self, world: World, node: RaftNode) -> None:
        if node.commit_index < self.floor and not world.is_paused(node.node_id):
            has_lease = node.has_lease(world.clock_ms(node.node_id))
            require(not has_lease, f"node {node.node_id} would answer a stale read")
