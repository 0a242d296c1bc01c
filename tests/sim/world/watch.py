"""What is checked after every turn of every process: Raft's promises, and a broker's own.

`raft_promises` has those of Raft: one leader a term, log matching, nothing committed changes or
vanishes, terms and commit indexes do not go back, no stale read under a lease. Beyond them:

    Counting     a leader commits with an entry of its own term, and earlier ones with that
    Images       equal at an equal index, on every node, live or replayed
    Memory       a node that starts remembers the term and vote that it had saved, and its log
    Brokers      a node that serves clients knows of a broker, always
    Health       no broker logs an exception or fails to start
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from raft_promises import Broken, Promises, require

from chronik.broker import StartFailed
from chronik.metadata.image import Image
from chronik.raft.leading import NotLeader
from chronik.raft.node import RaftNode, Ready
from chronik.raft.types import HardState, Role

if TYPE_CHECKING:
    from sim.world.cluster import Cluster, Process


class WatchedNode(RaftNode):
    """A Raft node that shows what it does to whoever watches the world it is in."""

    __slots__ = ()

    def propose(self, data: bytes) -> int:
        index = super().propose(data)
        _process().cluster.watch.proposal_count += 1
        return index

    def advance(self, ready: Ready) -> None:
        process = _process()
        process.cluster.watch.promises.appended(self, ready)
        for token, index in ready.reads:
            require(index >= process.read_floors.pop(token), "a stale read")
        super().advance(ready)

    def _commit(self, index: int) -> None:
        if self.role is Role.LEADER and index > self.commit_index:
            is_own = self.log.term_at(index) == self.term
            require(is_own, "a leader counted the copies of an earlier term's entry")
        super()._commit(index)

    def saved(self, ready: Ready) -> None:
        if ready.hard_state is not None:
            process = _process()
            process.cluster.watch.remembered[process.node_id] = ready.hard_state
        super().saved(ready)


def _process() -> Process:
    loop: Any = asyncio.get_running_loop()
    process: Process = loop.process
    return process


class Watch:
    """Looks at everybody, and remembers what was ever true."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.promises = Promises()
        self.images: dict[int, Image] = {}  # by index
        self.remembered: dict[int, HardState] = {}  # by node: on its disk, as it was told
        self.checks_memory = True
        self.proposal_count = 0
        self.on_applied: list[Callable[[int, Image], None]] = []
        self._error: str | None = None

    def turned(self, process: Process) -> None:
        """Something happened to a process."""
        self.check()
        if not process.is_watched and not self._begin(process):
            return
        self._check_health(process)
        node = process.node
        self.promises.watch(self._cluster, node, process.commit_seen, process.term_seen)
        process.commit_seen, process.term_seen = node.commit_index, node.term
        if process.is_serving:
            is_known = bool(process.metadata.image.online_ids)
            require(is_known, "a node serves without a broker")

    def check(self) -> None:
        """Raise what was found where nobody hears it."""
        if self._error is not None:
            raise Broken(self._error)

    def _check_health(self, process: Process) -> None:
        broker = process.broker
        if broker.broken.is_set() and not process.is_stopping:
            require("was removed" in broker.broken_by, f"node {process.node_id} gave up")
            process.is_stopping = True
            self._cluster.ended(process)
        self._has_started(process)

    def _has_started(self, process: Process) -> None:
        """Whoever cannot start must have a reason: who comes with an empty disk may have one."""
        starting = process.starting
        if process.has_started or process.is_stopping or not starting.done():
            return
        error = starting.exception()
        process.has_started = error is None
        if process.has_started:
            return
        is_refused = process.machine.is_stranger and isinstance(error, StartFailed)
        require(is_refused, f"node {process.node_id} cannot start: {error!r}")
        self._cluster.faults["stranger refused"] += 1
        process.is_stopping = True
        self._cluster.ended(process)

    def _begin(self, process: Process) -> bool:
        """Watch from now on, if Raft has begun there."""
        self._has_started(process)
        metadata = getattr(process.broker, "metadata", None)
        if metadata is None or getattr(metadata.consensus, "node", None) is None:
            return False
        process.is_watched = True
        node = process.node
        remembered = self.remembered.get(process.node_id)
        if remembered is not None and self.checks_memory:
            self._check_memory(node, remembered)
        process.commit_seen, process.term_seen = node.log.snapshot.index, node.term
        self._applied(process)
        metadata.subscribe(lambda old, new, records: self._applied(process))
        return True

    def _check_memory(self, node: RaftNode, remembered: HardState) -> None:
        require(node.term >= remembered.term, f"node {node.node_id} forgot its term")
        if node.term == remembered.term:
            require(
                node.state.vote == remembered.vote or remembered.vote is None,
                f"node {node.node_id} forgot its vote",
            )

    def _applied(self, process: Process) -> None:
        metadata = process.metadata
        index = metadata.applied_index
        known = self.images.setdefault(index, metadata.image)
        if known is not metadata.image:
            require(known == metadata.image, f"images differ at {index}")
        for tell in self.on_applied:
            tell(index, metadata.image)

    def read(self, process: Process) -> None:
        """A linearizable read: it must see whatever was committed anywhere before it."""
        token = object()
        process.read_floors[token] = self.promises.floor
        consensus = process.metadata.consensus

        def ask() -> None:
            process.node.read_index(token, self._cluster.clock_ms(process.node_id))
            consensus.pump()

        try:
            process.do(ask)
        except NotLeader:
            del process.read_floors[token]  # It hands over.

    def logged(self, message: str, error: BaseException | None) -> None:
        """A broker logged an exception."""
        if isinstance(error, Broken):
            self._error = str(error)
        else:
            self._error = self._error or f"{message}: {error!r}"

    def failed(self, process: Process | None, context: Mapping[str, Any]) -> None:
        """Something was raised to the loop of a process; its next turn ends with it."""
        error = context.get("exception")
        if isinstance(error, Broken):
            self._error = str(error)
        elif self._error is None:
            who = "a client" if process is None else f"node {process.node_id}"
            self._error = f"{who}: {context.get('message', '')} {error!r}"
