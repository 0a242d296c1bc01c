"""A group of Raft nodes on virtual time: a network that delays, loses, repeats and reorders, disks
that take their time and forget what was not saved, clocks that disagree, crashes, partitions.

Everything follows from a seed. After every event the promises of Raft are checked over all nodes;
`bug` breaks a rule on purpose, to show that the check would notice:

    vote      a vote is not saved                  lease     lasts longer than an election takes
    count     an old term's entry is counted       silence   a restarted voter votes at once
    ack       an append ack goes before the save   wiped     a wiped voter is let in
    transfer  the lease comes back after a transfer that was given up
"""

from __future__ import annotations

import heapq
import random
import zlib
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from raft_promises import Promises, require

from chronik.raft.leading import NotLeader, NotNow
from chronik.raft.messages import InstallSnapshot, Message
from chronik.raft.node import RaftNode, Ready
from chronik.raft.types import (
    Entry,
    EntryKind,
    HardState,
    Membership,
    RaftConfig,
    Role,
    Snapshot,
)

SNAPSHOT_LOST_MS = 500  # until a transport notices that a snapshot did not get through


@dataclass
class Disk:
    """What a node has saved: it survives a crash."""

    directory_id: str
    founding: Membership
    state: HardState = field(default_factory=HardState)
    snapshot: Snapshot = field(default_factory=Snapshot)
    entries: list[Entry] = field(default_factory=list)
    slow_until_ms: int = 0


@dataclass
class Process:
    """One life of a node."""

    node: RaftNode
    machine: int
    applied_index: int
    queue: deque[Ready] = field(default_factory=deque)  # to be saved; the first one is under way
    unsynced: HardState | None = None
    is_paused: bool = False
    missed: list[Callable[[], None]] = field(default_factory=list)  # what came while it stood
    read_floors: dict[object, int] = field(default_factory=dict)
    wake_ms: int | None = None
    commit_seen: int = 0
    term_seen: int = 0


@dataclass
class Weather:
    """How bad the days are."""

    delay_ms: tuple[int, int] = (1, 20)
    save_ms: tuple[int, int] = (1, 15)
    loss: float = 0.0
    duplication: float = 0.0
    slow_ms: tuple[int, int] = (300, 2_000)
    torn: float = 0.5  # how often a crash leaves a part of what was being saved


class CountsOldTerms(RaftNode):
    """A leader with the bug of the paper's figure 8."""

    __slots__ = ()

    def _may_count(self, index: int) -> bool:
        return True


class World:
    """A group, its network and its clocks."""

    def __init__(
        self,
        seed: int = 0,
        count: int = 3,
        weather: Weather | None = None,
        bug: str = "",
        **settings: int,
    ) -> None:
        self.random = random.Random(seed)
        self.weather = weather or Weather()
        self.bug = bug
        self.settings = settings
        self.now_ms = 0
        self.disks: dict[int, Disk] = {}
        self.processes: dict[int, Process] = {}
        self.clock_ahead_ms: Counter[int] = Counter()
        self.cut: Counter[tuple[int, int]] = Counter()  # from the first to the second all is lost
        self.is_lost: Callable[[Message], bool] = lambda message: False
        self.faults: Counter[str] = Counter()
        self.promises = Promises()
        self.proposed = 0
        self._events: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0
        self._last_arrival_ms: dict[tuple[int, int], int] = {}
        voters = frozenset(range(1, count + 1))
        founding = Membership(voters, directories={each: f"{each}-0" for each in voters})
        for node_id in sorted(voters):
            self.disks[node_id] = Disk(f"{node_id}-0", founding)
            self.start(node_id)

    # Time.

    def at(self, delay_ms: int, work: Callable[..., Any], *arguments: Any) -> None:
        """Let something happen later."""
        self._sequence += 1
        heapq.heappush(self._events, (self.now_ms + delay_ms, self._sequence, work, arguments))

    def run(self, for_ms: int) -> None:
        """Let time pass; what is due happens in order."""
        end_ms = self.now_ms + for_ms
        while self._events and self._events[0][0] <= end_ms:
            self.now_ms, _, work, arguments = heapq.heappop(self._events)
            work(*arguments)
        self.now_ms = end_ms

    def run_until(self, is_so: Callable[[], object], limit_ms: int = 20_000) -> None:
        """Let time pass until something is so."""
        end_ms = self.now_ms + limit_ms
        while not is_so():
            assert self.now_ms < end_ms, "it never happened"
            self.now_ms, _, work, arguments = heapq.heappop(self._events)
            work(*arguments)

    def clock_ms(self, node_id: int) -> int:
        """What the node's own clock shows."""
        return self.now_ms + self.clock_ahead_ms[node_id]

    # Lives.

    def start(self, node_id: int) -> None:
        """A process begins with what its disk holds."""
        disk = self.disks[node_id]
        config = RaftConfig(node_id=node_id, directory_id=disk.directory_id, **self.settings)
        if self.bug == "lease":
            object.__setattr__(config, "lease_ms", 2_000)
        kind = CountsOldTerms if self.bug == "count" else RaftNode
        node = kind.restore(
            config,
            state=disk.state,
            snapshot=disk.snapshot,
            entries=disk.entries,
            founding=disk.founding,
            jitter=self.random.random,
            now_ms=self.clock_ms(node_id),
        )
        if self.bug == "silence":
            node._promised_until_ms = 0
        index = disk.snapshot.index
        process = Process(node, self.promises.machines[index], index)
        process.commit_seen, process.term_seen = node.commit_index, node.term
        self.processes[node_id] = process
        self._arm(node_id, process)

    def restart(self, node_id: int) -> None:
        """Start a process unless it runs."""
        if node_id not in self.processes:
            self.start(node_id)

    def is_paused(self, node_id: int) -> bool:
        return self.processes[node_id].is_paused

    def _tick(self, node_id: int, process: Process, wake_ms: int) -> None:
        if self.processes.get(node_id) is not process or process.wake_ms != wake_ms:
            return
        if process.is_paused:
            process.missed.append(lambda: self._tick(node_id, process, wake_ms))
            return
        process.wake_ms = None
        process.node.tick(self.clock_ms(node_id))
        self.pump(node_id)

    def _arm(self, node_id: int, process: Process) -> None:
        """Wake the node when it has something to do; once is enough if it is later than that."""
        wait_ms = max(process.node.next_deadline_ms - self.clock_ms(node_id), 1)
        if process.wake_ms is None or self.now_ms + wait_ms < process.wake_ms:
            process.wake_ms = self.now_ms + wait_ms
            self.at(wait_ms, self._tick, node_id, process, process.wake_ms)

    def crash(self, node_id: int) -> None:
        """The process ends; of what was being saved, and not yet synced, a part is on disk."""
        process = self.processes.pop(node_id, None)
        if process is None:
            return
        self.faults["crash"] += 1
        if process.unsynced is not None and self.random.random() < 0.5:
            self.disks[node_id].state = process.unsynced
        if process.queue:
            self.faults["unsynced bytes lost"] += 1
            if self.random.random() < self.weather.torn:
                self._tear(node_id, process.queue[0])
        for other, each in self.processes.items():
            self.at(SNAPSHOT_LOST_MS, self._snapshot_lost, other, each, node_id)

    def _tear(self, node_id: int, ready: Ready) -> None:
        """Write the first so many parts of what was to be saved."""
        self.faults["torn write"] += 1
        keep = self.random.randrange(len(ready.entries) + 3)
        self._write(
            node_id,
            replace(
                ready,
                snapshot=ready.snapshot if keep > 1 else None,
                replaced_from=ready.replaced_from if keep > 1 else None,
                entries=ready.entries[: max(keep - 2, 0)],
            ),
        )

    def wipe(self, node_id: int) -> None:
        """The node comes back with an empty directory: with another id, and as no voter."""
        self.crash(node_id)
        self.faults["wiped disk"] += 1
        old = self.disks[node_id]
        name, number = old.directory_id.split("-")
        if self.bug == "wiped":
            self.disks[node_id] = Disk(old.directory_id, old.founding)
        else:
            self.disks[node_id] = Disk(f"{name}-{int(number) + 1}", Membership())
        self.start(node_id)

    def pause(self, node_id: int) -> None:
        """The process stands still, and its clock does not."""
        process = self.processes.get(node_id)
        if process is not None and not process.is_paused:
            self.faults["pause"] += 1
            process.is_paused = True

    def resume(self, node_id: int) -> None:
        """It goes on: what came meanwhile first, the clock after that."""
        process = self.processes.get(node_id)
        if process is not None and process.is_paused:
            process.is_paused = False
            missed, process.missed = process.missed, []
            for work in missed:
                work()

    # The Ready loop.

    def pump(self, node_id: int) -> None:
        """Send, apply, save."""
        process = self.processes[node_id]
        node = process.node
        while (ready := node.ready()) is not None:
            self.promises.appended(node, ready)
            node.advance(ready)
            for message in ready.messages:
                self.send(message)
            self._apply(process, ready)
            for token, index in ready.reads:
                require(index >= process.read_floors.pop(token), "a stale read")
            if self.bug == "ack":
                for message in ready.after_save:
                    self.send(message)
            process.queue.append(ready)
            if len(process.queue) == 1:
                self._save(node_id, process)
        self.promises.watch(self, node, process.commit_seen, process.term_seen)
        process.commit_seen, process.term_seen = node.commit_index, node.term
        self._arm(node_id, process)

    def _apply(self, process: Process, ready: Ready) -> None:
        if ready.snapshot is not None:
            process.applied_index = ready.snapshot.index
            process.machine = self.promises.machines[ready.snapshot.index]
        for entry in ready.committed:
            require(entry.index == process.applied_index + 1, "applied out of order")
            process.applied_index = entry.index
            if entry.kind is EntryKind.COMMAND:
                process.machine = zlib.crc32(entry.data, process.machine)
            self.promises.applied(entry.index, process.machine)

    def _save(self, node_id: int, process: Process) -> None:
        """Begin to save; what needs no sync is done at once."""
        while process.queue and not process.queue[0].must_sync:
            self._end_save(node_id, process)
        if process.queue:
            is_slow = self.now_ms < self.disks[node_id].slow_until_ms
            span = self.weather.slow_ms if is_slow else self.weather.save_ms
            self.at(self.random.randint(*span), self._saved, node_id, process)

    def _saved(self, node_id: int, process: Process) -> None:
        if self.processes.get(node_id) is not process:
            return
        if process.is_paused:
            process.missed.append(lambda: self._saved(node_id, process))
            return
        self._end_save(node_id, process)
        self._save(node_id, process)
        self.pump(node_id)

    def _end_save(self, node_id: int, process: Process) -> None:
        ready = process.queue.popleft()
        if ready.must_sync:
            if ready.hard_state is None and process.unsynced is not None:
                self.disks[node_id].state = process.unsynced
            process.unsynced = None
            self._write(node_id, ready)
        elif ready.hard_state is not None:
            process.unsynced = ready.hard_state
        process.node.saved(ready)
        if self.bug != "ack":
            for message in ready.after_save:
                self.send(message)

    def _write(self, node_id: int, ready: Ready) -> None:
        disk = self.disks[node_id]
        if ready.hard_state is not None:
            state = ready.hard_state
            if self.bug == "vote":
                state = replace(state, vote=None)
            else:
                self.promises.saved(disk.state, state)
            disk.state = state
        if ready.snapshot is not None:
            disk.snapshot, disk.entries = ready.snapshot, []
        first = disk.snapshot.index + 1
        if ready.replaced_from is not None:
            del disk.entries[max(ready.replaced_from - first, 0) :]
        for entry in ready.entries:
            if entry.index >= first:  # Else a snapshot of our own was faster.
                assert entry.index == first + len(disk.entries), "a gap on disk"
                disk.entries.append(entry)

    def compact(self, node_id: int) -> None:
        """Take a snapshot of what is applied, and forget the entries."""
        process, disk = self.processes.get(node_id), self.disks[node_id]
        if process is None or process.applied_index <= disk.snapshot.index or process.queue:
            return
        self.faults["snapshot"] += 1
        node, index = process.node, process.applied_index
        term = node.log.term_at(index)
        assert term is not None
        disk.entries = [entry for entry in disk.entries if entry.index > index]
        disk.snapshot = Snapshot(index, term, node.members.at(index))
        node.compact(disk.snapshot)
        self.pump(node_id)

    # The network.

    def send(self, message: Message) -> None:
        """Let a message arrive some time, or never."""
        link = message.sender, message.recipient
        if self.cut[link] > 0 or self.is_lost(message):
            self._lose(message, "lost in a partition")
        elif self.random.random() < self.weather.loss:
            self._lose(message, "loss")
        else:
            self._transmit(link, message)
            if self.random.random() < self.weather.duplication:
                self.faults["duplicate"] += 1
                self._transmit(link, message)

    def _transmit(self, link: tuple[int, int], message: Message) -> None:
        delay_ms = self.random.randint(*self.weather.delay_ms)
        arrival_ms = self.now_ms + delay_ms
        if arrival_ms < self._last_arrival_ms.get(link, 0):
            self.faults["reordering"] += 1
        self._last_arrival_ms[link] = arrival_ms
        self.at(delay_ms, self.deliver, message)

    def _lose(self, message: Message, reason: str) -> None:
        self.faults[reason] += 1
        sender = self.processes.get(message.sender)
        if isinstance(message, InstallSnapshot) and sender is not None:
            arguments = message.sender, sender, message.recipient
            self.at(SNAPSHOT_LOST_MS, self._snapshot_lost, *arguments)

    def _snapshot_lost(self, node_id: int, process: Process, follower: int) -> None:
        if self.processes.get(node_id) is process and not process.is_paused:
            process.node.snapshot_failed(follower)

    def deliver(self, message: Message) -> None:
        """A message arrives."""
        process = self.processes.get(message.recipient)
        if process is None:
            self._lose(message, "nobody there")
        elif process.is_paused:
            process.missed.append(lambda: self.deliver(message))
        else:
            process.node.step(message, self.clock_ms(message.recipient))
            if self.bug == "transfer" and process.node.transferring_to is None:
                process.node._is_lease_void = False
            self.pump(message.recipient)

    # For schedules that are written by hand.

    def node(self, node_id: int) -> RaftNode:
        return self.processes[node_id].node

    def hurry(self, node_id: int) -> None:
        """Let a node's patience end now."""
        self.node(node_id)._election_at_ms = self.clock_ms(node_id)
        self.node(node_id).tick(self.clock_ms(node_id))
        self.pump(node_id)

    def elect(self, node_id: int) -> None:
        """Let a node campaign until it leads; its term may be behind at first."""
        for _ in range(100):
            self.hurry(node_id)
            self.run(30)
            if self.node(node_id).role is Role.LEADER:
                return
        raise AssertionError(f"node {node_id} is not elected")

    def isolate(self, node_id: int) -> None:
        """Cut a node off from everybody."""
        for other in self.disks.keys() - {node_id}:
            self.cut[node_id, other] = self.cut[other, node_id] = 1

    # Clients.

    def leaders(self) -> list[RaftNode]:
        """Who believes to lead, the one of the newest term last."""
        nodes = [each.node for each in self.processes.values() if not each.is_paused]
        return sorted((n for n in nodes if n.role is Role.LEADER), key=lambda node: node.term)

    @property
    def leader(self) -> RaftNode | None:
        """Who leads the newest term, if anybody does."""
        return self.leaders()[-1] if self.leaders() else None

    def ask(self, node: RaftNode | None, work: Callable[[RaftNode], object]) -> bool:
        """Ask a node for something that only a leader does; whether it took it."""
        if node is None or node.node_id not in self.processes or self.is_paused(node.node_id):
            return False
        try:
            work(node)
        except (NotLeader, NotNow):
            return False
        self.pump(node.node_id)
        return True

    def propose(self, node: RaftNode | None = None) -> bool:
        """A command to one that leads, or believes to."""
        leaders = self.leaders()
        if node is None and leaders:
            node = self.random.choice(leaders)
        data = b"%d" % self.proposed
        is_taken = self.ask(node, lambda node: node.propose(data))
        self.proposed += is_taken
        return is_taken

    def read(self, node_id: int) -> bool:
        """A linearizable read: it must see whatever was committed anywhere before it."""
        process = self.processes.get(node_id)
        if process is None:
            return False
        token = object()
        process.read_floors[token] = self.promises.floor
        return self.ask(process.node, lambda node: node.read_index(token, self.clock_ms(node_id)))
