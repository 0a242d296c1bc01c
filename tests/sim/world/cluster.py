"""Whole brokers on virtual time: processes that live and die on machines that keep their disks.

`Cluster` starts, kills, pauses and wipes them, and lets `watch` look at each after every turn of
its loop. The code under test is that of production; it sees a loop, a disk and a clock of ours.
"""

from __future__ import annotations

import asyncio
import logging
import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cached_property, partial
from typing import Any
from unittest.mock import patch

from crash_disk import Directory
from sim.world.chance import seeded
from sim.world.disk import Platter, SimulatedDisk
from sim.world.loop import ProcessClock, ProcessLoop, Scheduler
from sim.world.messages import unreliable
from sim.world.network import Network
from sim.world.watch import Watch, WatchedNode

import chronik.broker
from chronik.broker import Broker
from chronik.config import limits
from chronik.config.peers import Peer
from chronik.config.settings import Durability, Settings
from chronik.metadata import consensus
from chronik.metadata.runtime import MetadataRuntime
from chronik.raft.node import RaftNode
from chronik.raft.types import RaftConfig, Role
from chronik.replication import roles, sender

HOST = "127.0.0.1"
KAFKA_PORT = 9000
INTERNAL_PORT = 19000
SNAPSHOT_ENTRIES = 40  # so that a minute has several


class Machine:
    """What outlives a process: the disk and the clock."""

    def __init__(self, cluster: Cluster, node_id: int) -> None:
        self.node_id = node_id
        self.clock = ProcessClock(cluster.scheduler)
        self.platter = Platter(cluster.scheduler, cluster.chance)
        self.process: Process | None = None
        self.join: str | None = None  # where it asks to be let in, if it founds nothing
        # It may be refused, or give up asking: with an empty disk, until it was let in.
        self.is_stranger = False


class Process:
    """One life of a broker."""

    def __init__(self, cluster: Cluster, machine: Machine) -> None:
        self.cluster = cluster
        self.machine = machine
        self.node_id = machine.node_id
        self.disk = SimulatedDisk(machine.platter)
        self.is_watched = False
        self.has_started = False
        self.is_stopping = False
        self.commit_seen = 0
        self.term_seen = 0
        self.read_floors: dict[object, int] = {}
        self.loop = ProcessLoop(
            cluster.scheduler,
            machine.clock,
            cluster.network,
            machine.node_id,
            lambda: cluster.watch.turned(self),
            lambda context: cluster.watch.failed(self, context),
        )
        self.loop.process = self
        self.broker = Broker(cluster.settings(machine.node_id), disk=self.disk, clock=machine.clock)
        self.starting = self.do(
            lambda: self.loop.create_task(self.broker.__aenter__(), name="start")
        )

    def do(self, work: Callable[[], Any]) -> Any:
        """Do something as this process."""
        return self.loop.enter(work)

    @property
    def metadata(self) -> MetadataRuntime:
        return self.broker.metadata

    @cached_property
    def node(self) -> RaftNode:
        return self.broker.metadata.consensus.node

    @property
    def is_serving(self) -> bool:
        """Whether clients are answered."""
        return self.starting.done() and not self.is_stopping and not self.loop.is_paused


class Cluster:
    """Machines, a network between them, and what is promised over all of them."""

    def __init__(
        self,
        seed: object = 0,
        count: int = 3,
        *,
        durability: Durability = "fsync",
        kafka: Mapping[str, str] | None = None,
        **raft_config: int,
    ) -> None:
        self.seed = seed
        self.durability: Durability = durability
        self._kafka = dict(kafka or {})
        self.chance = random.Random(f"cluster {seed}")
        self.scheduler = Scheduler()
        self.network = Network(self.scheduler, self.chance, lambda port: port % 1000)
        self.faults: Counter[str] = self.network.faults
        self.messages = unreliable(self.chance, self.faults)
        self.peers = tuple(
            Peer(node_id, HOST, KAFKA_PORT + node_id, INTERNAL_PORT + node_id)
            for node_id in range(1, count + 1)
        )
        self.machines = {peer.node_id: Machine(self, peer.node_id) for peer in self.peers}
        self.ever = set(self.machines)  # all ids that were ever used
        self.watch = Watch(self)
        # Told of a machine that has lost its memory, or its disk (True).
        self.on_loss: list[Callable[[int, bool], None]] = []
        self._raft_config = raft_config

    @contextmanager
    def existing(self) -> Iterator[Cluster]:
        """While this lasts, brokers are those of this world; then all of them are gone."""
        logger = logging.getLogger("chronik")
        handler = _Listening(self.watch)
        level, is_propagating = logger.level, logger.propagate
        with ExitStack() as stack, warnings.catch_warnings():
            # A call that came in the moment of a process's death is never begun.
            warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
            stack.enter_context(seeded(self.seed))
            stack.enter_context(patch.object(consensus, "RaftNode", WatchedNode))
            config = partial(RaftConfig, **self._raft_config)
            stack.enter_context(patch.object(consensus, "RaftConfig", config))
            stack.enter_context(patch.object(limits, "SNAPSHOT_ENTRY_COUNT", SNAPSHOT_ENTRIES))
            # What takes turns with thousands of partitions does so with a few.
            stack.enter_context(patch.object(roles, "PARTITIONS_AT_ONCE", 1))
            stack.enter_context(patch.object(sender, "FEEDS_AT_ONCE", 1))
            stack.enter_context(patch.object(chronik.broker, "Network", self.messages))
            logger.addHandler(handler)
            logger.setLevel(logging.ERROR)
            logger.propagate = False
            try:
                yield self
            finally:
                for node_id in list(self.machines):
                    self.kill(node_id, "")
                logger.removeHandler(handler)
                logger.setLevel(level)
                logger.propagate = is_propagating

    def settings(self, node_id: int) -> Settings:
        join = self.machines[node_id].join
        return Settings(
            host=HOST,
            port=KAFKA_PORT + node_id,
            internal=f"{HOST}:{INTERNAL_PORT + node_id}",
            http_port=-1,
            data_dir="/data",
            node_id=node_id,
            peers=self.peers if join is None else (),
            join=join,
            secret="simulated",
            durability=self.durability,
            kafka=self._kafka,
        )

    # Who is there.

    @property
    def processes(self) -> dict[int, Process]:
        """Those that take part in Raft, by node id."""
        lives = ((each.node_id, each.process) for each in self.machines.values())
        return {node_id: life for node_id, life in lives if life is not None and life.is_watched}

    def is_paused(self, node_id: int) -> bool:
        process = self.machines[node_id].process
        return process is not None and process.loop.is_paused

    def clock_ms(self, node_id: int) -> int:
        """What the node's own clock shows."""
        return int(self.machines[node_id].clock.monotonic() * 1000)

    @property
    def serving(self) -> list[Process]:
        """Whom clients can ask."""
        return [each for each in self.processes.values() if each.is_serving]

    @property
    def leader(self) -> Process | None:
        """Who leads the newest term, if anybody does."""
        leaders = [each for each in self.processes.values() if each.node.role is Role.LEADER]
        return max(leaders, key=lambda each: each.node.term, default=None)

    # Lives.

    def start(self, node_id: int) -> None:
        """Start a process, unless it runs."""
        machine = self.machines.get(node_id)
        if machine is not None and machine.process is None:
            self.network.dark.discard(node_id)
            self.network.mend_links([])
            machine.process = Process(self, machine)

    def kill(self, node_id: int, fault: str = "process killed") -> None:
        """The process ends at once; what it has written is there."""
        process = self._end(node_id, fault)
        if process is not None:
            process.disk.killed()
            process.loop.kill()
            self.network.process_ended(process.loop, is_silent=False)

    def power_off(self, node_id: int, fault: str = "power failure") -> None:
        """The machine ends at once: what was not synced is lost, and nobody is told."""
        process = self._end(node_id, fault)
        if process is not None:
            self.faults["crash during a write"] += process.disk.is_working
            process.disk.power_failed()
            process.loop.kill()
            self.network.process_ended(process.loop, is_silent=True)
            self._lost(node_id, has_lost_disk=False)
        else:
            disk = SimulatedDisk(self.machines[node_id].platter)
            if not disk.is_synced:  # A process was killed, and the machine with what it wrote.
                disk.power_failed()
                self._lost(node_id, has_lost_disk=False)
        self.network.dark.add(node_id)

    def _lost(self, node_id: int, *, has_lost_disk: bool) -> None:
        for tell in self.on_loss:
            tell(node_id, has_lost_disk)

    def _end(self, node_id: int, fault: str) -> Process | None:
        machine = self.machines[node_id]
        process, machine.process = machine.process, None
        if process is not None and fault:
            self.faults[fault] += 1
        return process

    def stop(self, node_id: int) -> None:
        """The process is asked to end, and does so in its own time."""
        process = self.machines[node_id].process
        if process is None or not process.is_serving:
            return
        self.faults["clean stop"] += 1
        process.is_stopping = True
        work = process.broker.__aexit__()
        process.do(lambda: process.loop.create_task(self._stopped(process, work), name="stop"))

    async def _stopped(self, process: Process, work: Any) -> None:
        await work
        self.ended(process)

    def ended(self, process: Process) -> None:
        """A process ends by itself, as a refused or removed node does."""
        self.scheduler.at(0.0, self._gone, process)

    def _gone(self, process: Process) -> None:
        if process.machine.process is process:
            self.kill(process.node_id, "")

    def wipe(self, node_id: int) -> None:
        """The disk is replaced by an empty one."""
        self.power_off(node_id, "wiped disk")
        machine = self.machines[node_id]
        machine.platter.root = Directory()
        self._lost(node_id, has_lost_disk=True)
        machine.is_stranger = True
        self.watch.remembered.pop(node_id, None)

    def add(self, node_id: int, join: str) -> None:
        """One machine more."""
        self.ever.add(node_id)
        machine = self.machines[node_id] = Machine(self, node_id)
        machine.join = join
        machine.is_stranger = True
        self.start(node_id)

    def retire(self, node_id: int) -> None:
        """One machine less, for ever."""
        self.kill(node_id, "")
        del self.machines[node_id]

    def pause(self, node_id: int) -> None:
        """The process stands still."""
        process = self.machines[node_id].process
        if process is not None and not process.loop.is_paused:
            self.faults["pause"] += 1
            process.loop.pause()

    def resume(self, node_id: int) -> None:
        """It goes on."""
        machine = self.machines.get(node_id)
        process = machine.process if machine is not None else None
        if process is not None:
            process.loop.resume()


class _Listening(logging.Handler):
    """An exception that a broker logs, and survives, is an error all the same."""

    def __init__(self, watch: Watch) -> None:
        super().__init__(logging.ERROR)
        self._watch = watch

    def emit(self, record: logging.LogRecord) -> None:
        loop: Any = asyncio._get_running_loop()
        if loop is not None and loop.is_dead:
            return  # What it complains of is its own death.
        if record.exc_info and isinstance(record.exc_info, tuple):
            self._watch.logged(record.getMessage(), record.exc_info[1])
