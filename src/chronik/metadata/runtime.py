"""The metadata of the cluster on this node: decide, propose, apply, publish, answer.

A command is decided by the leader against its pending image (committed plus in flight), proposed
as one entry, and applied to the committed image of every node once Raft has committed it. Only then
do readers see it, and the reply leaves once the node that was asked has applied it, so that a
client reads its own writes. A node that does not lead forwards the command to who does. A single
node is a group of one: nothing here asks whether there are others.

Invariants
    The committed image is a function of the log alone; replay restores it.
    A committed entry that cannot be decoded stops the node; it is never skipped.
    Losing leadership drops the pending image; whoever waits is told that the outcome is unknown.
"""

import asyncio
import gc
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from chronik.clock import Clock, SystemClock
from chronik.config import limits
from chronik.config.effective import BrokerConfig
from chronik.metadata import controller
from chronik.metadata.commands import Command, DeleteTopic, RegisterBroker
from chronik.metadata.consensus import Consensus
from chronik.metadata.forwarding import (
    decode_command,
    decode_response,
    encode_command,
    encode_response,
)
from chronik.metadata.image import Image, id_bytes
from chronik.metadata.in_flight import (
    UNKNOWN_OUTCOME,
    InFlight,
    Outcome,
    fail,
    heard,
    may_tell_of_own_success,
    storage_error,
    succeed,
)
from chronik.metadata.journal import Journal, UnusableMetadata, read_snapshot, records_of
from chronik.metadata.leader_watch import LeaderWatch
from chronik.metadata.membership import check_member
from chronik.metadata.records import (
    Record,
    TopicRemovedRecord,
    UndecodableRecord,
    change_count,
    encode_readable,
)
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.raft.messages import Message
from chronik.raft.types import Entry, Membership, Role, Snapshot
from chronik.storage.commit import GroupCommit
from chronik.storage.disk import Disk

logger = logging.getLogger(__name__)

SLICE_ENTRY_COUNT: Final = 100  # applied in one turn of the loop: as many wait for their answers
SLICE_S: Final = 0.01  # or until then: clients wait meanwhile
# After so many changes what they left in memory is exempt from garbage collection. A collection
# over the topics of more would hold the loop for tens of milliseconds.
FREEZE_CHANGE_COUNT: Final = 2_000

# As long as Kafka's clients wait by default, and with the pauses of a cluster that elects.
FORWARD_TIMEOUT_S: Final = 25.0
FORWARD_PAUSE_S: Final = 0.05
FORWARD_PAUSE_MAX_S: Final = 1.0
SUBMIT: Final = "submit"

Listener = Callable[[Image, Image, Sequence[Record]], None]
Call = Callable[[int, str, bytes, float], Awaitable[bytes]]


class MetadataRuntime:
    """The metadata of the cluster, as this node knows it."""

    def __init__(
        self,
        journal: Journal,
        commit: GroupCommit,
        node_id: int,
        disk: Disk,
        *,
        directory_id: str = "",
        clock: Clock | None = None,
        send: Callable[[Message], None] | None = None,
        call: Call | None = None,
        founding: Membership | None = None,
        on_members: Callable[[], None] = lambda: None,
        on_broken: Callable[[BaseException], None] | None = None,
    ) -> None:
        self._journal = journal
        self.node_id = node_id
        # Who the members are before the log names any: nobody, on a node that joins a cluster.
        self._founding = Membership(frozenset([node_id])) if founding is None else founding
        self._tell_broken = on_broken
        self._clock = clock or SystemClock()
        self.consensus = Consensus(
            node_id=node_id,
            directory_id=directory_id,
            journal=journal,
            commit=commit,
            disk=disk,
            clock=self._clock,
            send=send or _no_peers,
            on_committed=self._on_committed,
            on_snapshot=self._on_snapshot,
            on_role=self._on_role,
            on_full=self._on_full,
            on_failed=self.on_failed,
            on_members=on_members,
            on_broken=self._on_broken,
        )
        self._pending = Image()
        self._in_flight = InFlight()
        self._committed: deque[Entry] = deque()
        self._listeners: list[Listener] = []
        self._forwards: set[asyncio.Task[None]] = set()
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._leader_watch = LeaderWatch()
        self.call = call or _no_call
        self._snapshot_index = 0
        self._unfrozen_count = 0
        self._is_snapshotting = False
        self._on_snapshot_saved: list[Callable[[], None]] = []
        self._is_applying = False  # the next slice is scheduled
        self._pump_is_due = False
        self._is_leading = False
        self._inherited_index = 0  # decided by the leaders before, if this node leads
        self.failure: BaseException | None = None
        self.image = Image()
        self.applied_index = 0
        # As seen in the replay, and until this node has caught up: their files may remain.
        self._removed_topics: set[bytes] | None = set()
        # Replaced by the broker once it knows its static settings; decisions need defaults.
        self.broker_config: Callable[[Image], BrokerConfig] = _no_settings

    @property
    def term(self) -> int:
        return self.consensus.node.term

    @property
    def controller_id(self) -> int:
        """Who decides, as far as this node knows."""
        leader_id = self.consensus.node.leader_id
        return self.node_id if leader_id is None else leader_id

    @property
    def last_index(self) -> int:
        return self.consensus.node.log.last_index

    def subscribe(self, listener: Listener) -> None:
        """Be told of each change of the committed image (old, new, records) once it is visible."""
        self._listeners.append(listener)

    # Start.

    def start(self) -> None:
        """Replay what was committed, and take part. Blocking: nothing is served yet."""
        records, entries = self.consensus.load(self._founding)
        node = self.consensus.node
        self.image = Image().apply(records)
        self.applied_index = self._snapshot_index = node.log.snapshot.index
        for entry in entries:
            # Alone, whatever is in the log is committed: nobody else has a say.
            if self.consensus.is_alone or entry.index <= node.commit_index:
                self._replay(entry)
        # What was loaded stays: the collector need not walk it again.
        gc.freeze()
        self._pending = self.image
        self.consensus.start(self.applied_index)

    def _replay(self, entry: Entry) -> None:
        records = records_of(entry)
        self.image = self.image.apply(records)
        self.applied_index = entry.index
        self._note_removed(records)

    def _note_removed(self, records: Sequence[Record]) -> None:
        if self._removed_topics is not None:
            self._removed_topics.update(
                id_bytes(record.topic_id)
                for record in records
                if isinstance(record, TopicRemovedRecord)
            )

    def caught_up(self) -> frozenset[bytes]:
        """The image shows what was committed before the start; the topics that are gone by then."""
        removed, self._removed_topics = frozenset(self._removed_topics or ()), None
        return removed

    # Commands.

    def submit(
        self, command: Command, timeout_s: float = FORWARD_TIMEOUT_S
    ) -> "asyncio.Future[Any]":
        """Decide and propose a command. The future has its response once it is applied here.

        The timeout is for finding a leader: after it nobody tries any more.
        """
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        reply.add_done_callback(heard)
        if self.failure is not None:
            reply.set_exception(storage_error(self.failure))
        elif self.can_propose and not self.consensus.retry():
            reply.set_exception(storage_error(self.consensus.full))
        elif self.can_propose:
            self._decide(command, reply)
        else:
            work = self._forward(command, reply, timeout_s)
            task = asyncio.get_running_loop().create_task(work, name="forward")
            self._forwards.add(task)
            task.add_done_callback(self._forwards.discard)
        return reply

    @property
    def is_leading(self) -> bool:
        return self.consensus.node.role is Role.LEADER

    @property
    def can_propose(self) -> bool:
        """Whether this node leads, knows all that was decided before, and does not hand over."""
        return (
            self._is_leading
            and self.is_leading
            and self.applied_index >= self._inherited_index
            and self.consensus.node.transferring_to is None
        )

    def change_members(self, membership: Membership) -> "asyncio.Future[None]":
        """As the leader: done once these members are committed, or Raft's NotLeader or NotNow."""
        index = self.consensus.propose_membership(membership)
        reply: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._in_flight.add(Outcome(index, (), None, reply))
        self.consensus.pump()
        return reply

    async def _forward(
        self, command: Command, reply: "asyncio.Future[Any]", timeout_s: float
    ) -> None:
        """Have the leader decide, and answer once this node has applied it too.

        Tried again, with growing pauses, for as long as a client waits. If a try may have
        succeeded unheard, the outcome is unknown, and so says the error.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        is_unknown = False
        pause_s = FORWARD_PAUSE_S
        while True:
            try:
                response = await self._ask_leader(command, deadline - loop.time())
            except KafkaError as error:
                if is_unknown and may_tell_of_own_success(command, error):
                    if isinstance(command, DeleteTopic):
                        await self._show_deletion(command, deadline)
                        succeed(reply, None)
                    else:
                        fail(reply, KafkaError(ErrorCode.REQUEST_TIMED_OUT, error.message))
                    return
                if error.code in UNKNOWN_OUTCOME:
                    is_unknown = True
                elif error.code is not ErrorCode.NOT_CONTROLLER:
                    fail(reply, error)
                    return
            except (ConnectionError, TimeoutError):
                is_unknown = True
            else:
                succeed(reply, response)
                return
            if loop.time() + pause_s > deadline or self.failure is not None:
                code = ErrorCode.REQUEST_TIMED_OUT if is_unknown else ErrorCode.NOT_CONTROLLER
                fail(reply, KafkaError(code, "No controller has answered."))
                return
            await self._leader_watch.pause(pause_s)
            pause_s = min(2 * pause_s, FORWARD_PAUSE_MAX_S)

    async def _show_deletion(self, command: DeleteTopic, deadline: float) -> None:
        """An earlier try has deleted the topic; it is told once this node shows that."""
        topic_id = id_bytes(command.topic_id)
        loop = asyncio.get_running_loop()
        while self.image.topic_by_id(topic_id) and loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(FORWARD_PAUSE_S)

    async def _ask_leader(self, command: Command, timeout_s: float) -> Any:
        if self.can_propose:
            return await self.submit(command)
        leader_id = self.consensus.node.leader_id
        if leader_id is None or leader_id == self.node_id:
            raise KafkaError(ErrorCode.NOT_CONTROLLER)
        asked = self.term.to_bytes(8, "big") + encode_command(command)
        async with self._leader_watch.while_leading(self.term, leader_id):
            body = await self.call(leader_id, SUBMIT, asked, timeout_s)
        index = int.from_bytes(body[:8], "big")
        async with asyncio.timeout(max(timeout_s, 0)):
            await self.applied(index)
        return decode_response(command, body[8:])

    async def on_submit(self, body: bytes) -> bytes:
        """Another node's client asks: decide here, or say that somebody else leads.

        A request that comes late, after its node has asked the leader of another term, must not be
        decided any more: the client may have been told that it was refused. Nor is anything decided
        without room to log it: another will lead soon.
        """
        is_late = int.from_bytes(body[:8], "big") != self.term
        if is_late or not self.can_propose or not self.consensus.retry():
            raise KafkaError(ErrorCode.NOT_CONTROLLER)
        command = decode_command(body[8:])
        response = await self.submit(command)
        return self.applied_index.to_bytes(8, "big") + encode_response(command, response)

    async def applied(self, index: int) -> None:
        """Wait until this node has applied an entry."""
        if self.applied_index < index:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append((index, waiter))
            try:
                await waiter
            except asyncio.CancelledError:
                self._waiters = [each for each in self._waiters if each[1] is not waiter]
                raise

    async def until(self, holds: Callable[[], bool], timeout_s: float) -> None:
        """Wait until the image is as somebody was told elsewhere, but not for ever."""
        try:
            async with asyncio.timeout(timeout_s):
                while not holds():
                    await self.applied(self.applied_index + 1)
        except TimeoutError:
            pass  # What it was told is wrong, or this node is far behind.

    def _decide(self, command: Command, reply: "asyncio.Future[Any]") -> None:
        last_index = self.last_index
        try:
            decision = self.decide(command)
        except KafkaError as error:
            self._answer_in_turn(Outcome(last_index, (), None, reply, error))
            return
        if not decision.records:
            self._answer_in_turn(Outcome(last_index, (), decision.response, reply))
            return
        try:
            data = encode_readable(decision.records)
        except UndecodableRecord as error:
            fail(reply, KafkaError(ErrorCode.INVALID_REQUEST, f"No node could read this: {error}"))
            return
        uncommitted = self._in_flight.bytes_uncommitted
        if uncommitted and uncommitted + len(data) > limits.UNCOMMITTED_BYTES_MAX:
            # Certainly not appended, and worth another try: the disk or the followers are slow.
            fail(reply, KafkaError(ErrorCode.NOT_CONTROLLER, "Too much is not committed yet."))
            return
        index = self.consensus.propose(data)
        self._pending = self._pending.apply(decision.records)
        proposed = Outcome(index, decision.records, decision.response, reply, size=len(data))
        self._in_flight.add(proposed)
        if not self._pump_is_due:
            # What is decided in one turn of the loop travels and is saved together.
            self._pump_is_due = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_is_due = False
        self.consensus.pump()

    def _answer_in_turn(self, outcome: Outcome) -> None:
        """Answer without an entry, once what the decision looked at is committed.

        Who is told that a topic exists must find it when it asks for it.
        """
        if outcome.index > self.applied_index:
            self._in_flight.add(outcome)
        else:
            outcome.tell()

    def decide(self, command: Command) -> controller.Decision:
        """What a command would do now; for requests that only validate."""
        if isinstance(command, RegisterBroker):
            members = self.consensus.node.membership
            check_member(members, command.node_id, command.directory_id)
        config = self.broker_config(self._pending)
        return controller.decide(self._pending, command, config, self.last_index + 1)

    # What Raft says.

    def on_durable(self) -> None:
        """The log is on disk up to a new point."""
        self.consensus.on_durable()

    def _on_committed(self, entries: Sequence[Entry]) -> None:
        self._committed.extend(entries)
        if not self._is_applying and self._has_loop():
            self._apply_slice()

    def _has_loop(self) -> bool:
        """Whether time runs: at the start, what is committed waits for it."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return False
        return True

    def _on_role(self) -> None:
        """What follows from leading, or from not leading any more."""
        is_leading = self.is_leading
        if self._is_leading and not is_leading:
            self._pending = self.image
            self._in_flight.refuse(
                KafkaError(ErrorCode.REQUEST_TIMED_OUT, "The controller has changed.")
            )
            self._in_flight.clear()
        elif is_leading and not self._is_leading:
            # Its log ends with the entry that begins its term. What lies before that may be
            # committed yet, and a decision that has not seen it could contradict it.
            self._inherited_index = self.last_index - 1
        self._is_leading = is_leading
        leader_id = self.consensus.node.leader_id
        if leader_id is not None:
            self._leader_watch.leads(self.term, leader_id)

    def _on_full(self, error: BaseException) -> None:
        """There is no room here for what was decided: others may commit it, or this node later."""
        logger.error("no room for the metadata log", extra={"error": str(error)})
        self._in_flight.refuse(storage_error(error))

    def _on_snapshot(self, snapshot: Snapshot, data: bytes) -> None:
        """A leader's snapshot took the place of the log: show it as one change."""
        records = read_snapshot(data)
        self._committed.clear()
        old, self.image = self.image, Image().apply(records)
        self._pending = self.image
        self.applied_index = self._snapshot_index = snapshot.index
        for listener in self._listeners:
            listener(old, self.image, records)
        self._wake()

    # Applying.

    def _apply_slice(self) -> None:
        """Apply some of what is committed and come back for the rest: a round may hold much."""
        try:
            self._apply_some()
        except (AssertionError, UnusableMetadata) as error:
            self.consensus.broken(error)

    def _apply_some(self) -> None:
        now = self._clock.monotonic  # The loop's own time stands still while it is in a turn.
        deadline = now() + SLICE_S
        count = 0
        while self._committed and count < SLICE_ENTRY_COUNT and now() <= deadline:
            self._apply(self._committed.popleft())
            count += 1
        self._is_applying = bool(self._committed)
        if self._is_applying:
            asyncio.get_running_loop().call_soon(self._apply_slice)
        if self._unfrozen_count >= FREEZE_CHANGE_COUNT:
            self._unfrozen_count = 0
            gc.freeze()
        if self.applied_index - self._snapshot_index >= limits.SNAPSHOT_ENTRY_COUNT:
            self.snapshot()
        self._forget_entries()

    def _forget_entries(self) -> None:
        """Alone, nobody will ask for what is applied: it need not stay in memory too."""
        node = self.consensus.node
        index = self.applied_index
        if self.consensus.is_alone and index > node.log.snapshot.index:
            term = node.log.term_at(index)
            assert term is not None
            node.compact(Snapshot(index, term, node.members.at(index)))

    def _apply(self, entry: Entry) -> None:
        """Show an entry to readers, then answer whoever waits for it."""
        own = self._in_flight.records_of(entry.index)
        records = own or records_of(entry)
        old, self.image = self.image, self.image.apply(records)
        if not self._is_leading:
            self._pending = self.image
        elif not own:
            self._pending = self._pending.apply(records)  # Of the leader before.
        self.applied_index = entry.index
        self._unfrozen_count += sum(map(change_count, records))
        self._note_removed(records)
        for listener in self._listeners if records else ():
            listener(old, self.image, records)
        self._in_flight.applied(entry.index)
        self._wake()

    def _wake(self) -> None:
        """Tell those who wait for what other nodes decided."""
        still = []
        for index, waiter in self._waiters:
            if index > self.applied_index:
                still.append((index, waiter))
            elif not waiter.done():
                waiter.set_result(None)
        self._waiters = still

    def on_failed(self, error: BaseException) -> None:
        """The metadata log could not be written or synced: nothing more is decided or done."""
        if self.failure is not None:
            return
        self.failure = error
        self.consensus.stop()
        logger.critical("metadata log failed", extra={"error": str(error)})
        while self._committed:
            self._apply(self._committed.popleft())  # Committed before: its answer is no error.
        self._in_flight.refuse(storage_error(error))

    def _on_broken(self, error: BaseException) -> None:
        """An invariant is broken, or a committed entry cannot be read: the node has to stop."""
        self._is_applying = True  # Nothing more is shown: it would follow on what is wrong.
        self.failure = self.failure or error
        logger.critical("metadata is broken", exc_info=error)
        self._in_flight.refuse(storage_error(error))
        if self._tell_broken is not None:
            self._tell_broken(error)

    # Snapshots and the end.

    def snapshot(self, done: Callable[[], None] | None = None) -> None:
        """Begin to write the committed image; the entries that it replaces go once it is there.

        `done` is called then, or when there is none.
        """
        if done is not None:
            self._on_snapshot_saved.append(done)
        if self.consensus.node.log.saved_index < self.applied_index:
            # A snapshot ahead of the vote and the log would make of them a past that never was.
            asyncio.get_running_loop().call_soon(self._snapshot_ended)
            return
        if self._is_snapshotting:
            return  # One writer at a time; whoever waits finds that one, or asks again.
        self._is_snapshotting = True
        node = self.consensus.node
        self._snapshot_index = index = self.applied_index
        term = node.log.term_at(index)
        assert term is not None
        snapshot = Snapshot(index, term, node.members.at(index))
        self._journal.save_snapshot_later(snapshot, self.image.to_records, self._snapshot_saved)

    def _snapshot_saved(self, snapshot: Snapshot, error: BaseException | None) -> None:
        self._is_snapshotting = False
        self._compact(snapshot, error)
        self._snapshot_ended()

    def _snapshot_ended(self) -> None:
        waiting, self._on_snapshot_saved = self._on_snapshot_saved, []
        for done in waiting:
            done()

    def _compact(self, snapshot: Snapshot, error: BaseException | None) -> None:
        if error is not None:
            extra = {"index": snapshot.index, "error": str(error)}
            logger.error("metadata snapshot failed", extra=extra)
            return  # The log still has every entry; the next snapshot is a new try.
        if snapshot.index > self.consensus.node.log.snapshot.index:
            self.consensus.node.compact(snapshot)
        gc.freeze()
        extra = {"index": str(snapshot.index), "term": str(snapshot.term)}
        logger.info("metadata snapshot", extra=extra)

    async def stop(self) -> None:
        """Take part no more, and leave the journal to nobody."""
        self.consensus.stop()
        await self.consensus.finished()

    def close(self) -> None:
        """Leave the log clean: synced, checkpointed, with the commit index beside the vote."""
        self.consensus.stop()
        for task in self._forwards:
            task.cancel()
        self._in_flight.clear()  # What is committed and not applied yet is so by the next start.
        if self.failure is None:
            self._journal.log.close()
            # What is applied may be on the disks of others, and not yet on this one.
            commit_index = min(self.applied_index, self.consensus.node.log.saved_index)
            commit_index = max(commit_index, self._journal.state.commit_index)
            self._journal.save_vote(replace(self._journal.state, commit_index=commit_index))


def _no_peers(message: Message) -> None:
    raise AssertionError(f"a message to node {message.recipient}, and there is no network")


async def _no_call(node_id: int, method: str, body: bytes, timeout_s: float) -> bytes:
    raise AssertionError(f"a call to node {node_id}, and there is no network")


def _no_settings(image: Image) -> BrokerConfig:
    return BrokerConfig(static={}, cluster=image.config("broker", ""), broker={})
