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
from dataclasses import dataclass, replace
from typing import Any, Final

from chronik.clock import Clock, SystemClock
from chronik.config import limits
from chronik.config.effective import BrokerConfig
from chronik.metadata import controller
from chronik.metadata.commands import Command
from chronik.metadata.consensus import Consensus
from chronik.metadata.forwarding import (
    decode_command,
    decode_response,
    encode_command,
    encode_response,
)
from chronik.metadata.image import Image, id_bytes
from chronik.metadata.journal import Journal, UnusableMetadata, read_snapshot
from chronik.metadata.records import (
    Record,
    TopicRemovedRecord,
    UndecodableRecord,
    decode_records,
    encode_records,
)
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.raft.messages import Message
from chronik.raft.types import Entry, EntryKind, Membership, Role, Snapshot
from chronik.storage.commit import GroupCommit
from chronik.storage.disk import Disk

logger = logging.getLogger(__name__)

SLICE_ENTRY_COUNT: Final = 200  # applied in one turn of the loop
SLICE_S: Final = 0.02  # or until then: clients wait meanwhile

# As long as Kafka's clients wait by default, and with the pauses of a cluster that elects.
FORWARD_TIMEOUT_S: Final = 25.0
FORWARD_PAUSE_S: Final = 0.05
FORWARD_PAUSE_MAX_S: Final = 1.0
SUBMIT: Final = "submit"

Listener = Callable[[Image, Image, Sequence[Record]], None]
Call = Callable[[int, str, bytes, float], Awaitable[bytes]]


@dataclass(slots=True)
class _InFlight:
    """A command that is proposed and not yet applied, or an answer that waits for one."""

    index: int
    records: Sequence[Record]
    response: Any
    reply: "asyncio.Future[Any]"
    error: KafkaError | None = None


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
        founders: frozenset[int] = frozenset(),
    ) -> None:
        self._journal = journal
        self.node_id = node_id
        self._founders = Membership(founders or frozenset([node_id]))
        self.consensus = Consensus(
            node_id=node_id,
            directory_id=directory_id,
            journal=journal,
            commit=commit,
            disk=disk,
            clock=clock or SystemClock(),
            send=send or _no_peers,
            on_committed=self._on_committed,
            on_snapshot=self._on_snapshot,
            on_role=self._on_role,
            on_full=self._on_full,
            on_failed=self.on_failed,
        )
        self._pending = Image()
        self._in_flight: deque[_InFlight] = deque()
        self._committed: deque[Entry] = deque()
        self._listeners: list[Listener] = []
        self._forwards: set[asyncio.Task[None]] = set()
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self.call = call or _no_call
        self._snapshot_index = 0
        self._is_applying = False  # the next slice is scheduled
        self._is_leading = False
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
        records, entries = self.consensus.load(self._founders)
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
        records = _records(entry)
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

    def submit(self, command: Command) -> "asyncio.Future[Any]":
        """Decide and propose a command. The future has its response once it is applied here."""
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.failure is not None:
            reply.set_exception(_storage_error(self.failure))
        elif self.is_leading and not self.consensus.retry():
            reply.set_exception(_storage_error(self.consensus.full))
        elif self.is_leading:
            self._decide(command, reply)
        else:
            work = self._forward(command, reply)
            task = asyncio.get_running_loop().create_task(work, name="forward")
            self._forwards.add(task)
            task.add_done_callback(self._forwards.discard)
        return reply

    @property
    def is_leading(self) -> bool:
        return self.consensus.node.role is Role.LEADER

    async def _forward(self, command: Command, reply: "asyncio.Future[Any]") -> None:
        """Have the leader decide, and answer once this node has applied it too.

        Tried again, with growing pauses, for as long as a client waits. If a try may have
        succeeded unheard, the outcome is unknown, and so says the error.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + FORWARD_TIMEOUT_S
        is_unknown = False
        pause_s = FORWARD_PAUSE_S
        while True:
            try:
                response = await self._ask_leader(command, deadline - loop.time())
            except KafkaError as error:
                if error.code is not ErrorCode.NOT_CONTROLLER:
                    _fail(reply, error)
                    return
            except (ConnectionError, TimeoutError):
                is_unknown = True
            else:
                if not reply.done():
                    reply.set_result(response)
                return
            if loop.time() + pause_s > deadline or self.failure is not None:
                code = ErrorCode.REQUEST_TIMED_OUT if is_unknown else ErrorCode.NOT_CONTROLLER
                _fail(reply, KafkaError(code, "No controller has answered."))
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, FORWARD_PAUSE_MAX_S)

    async def _ask_leader(self, command: Command, timeout_s: float) -> Any:
        if self.is_leading:
            reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self._decide(command, reply)
            return await reply
        leader_id = self.consensus.node.leader_id
        if leader_id is None:
            raise KafkaError(ErrorCode.NOT_CONTROLLER)
        body = await self.call(leader_id, SUBMIT, encode_command(command), timeout_s)
        index = int.from_bytes(body[:8], "big")
        async with asyncio.timeout(max(timeout_s, 0)):
            await self.applied(index)
        return decode_response(command, body[8:])

    async def on_submit(self, body: bytes) -> bytes:
        """Another node's client asks: decide here, or say that somebody else leads."""
        if not self.is_leading:
            raise KafkaError(ErrorCode.NOT_CONTROLLER)
        command = decode_command(body)
        response = await self.submit(command)
        return self.applied_index.to_bytes(8, "big") + encode_response(command, response)

    async def applied(self, index: int) -> None:
        """Wait until this node has applied an entry."""
        if self.applied_index < index:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append((index, waiter))
            await waiter

    def _decide(self, command: Command, reply: "asyncio.Future[Any]") -> None:
        last_index = self.last_index
        try:
            decision = self.decide(command)
        except KafkaError as error:
            self._answer_in_turn(_InFlight(last_index, (), None, reply, error))
            return
        if not decision.records:
            self._answer_in_turn(_InFlight(last_index, (), decision.response, reply))
            return
        index = self.consensus.propose(encode_records(decision.records))
        self._pending = self._pending.apply(decision.records)
        self._in_flight.append(_InFlight(index, decision.records, decision.response, reply))
        self.consensus.pump()

    def _answer_in_turn(self, outcome: _InFlight) -> None:
        """Answer without an entry, once what the decision looked at is committed.

        Who is told that a topic exists must find it when it asks for it.
        """
        if outcome.index > self.applied_index:
            self._in_flight.append(outcome)
        else:
            _reply(outcome)

    def decide(self, command: Command) -> controller.Decision:
        """What a command would do now; for requests that only validate."""
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
        is_leading = self.consensus.node.role is Role.LEADER
        if self._is_leading and not is_leading:
            self._pending = self.image
            self._refuse_waiting(
                KafkaError(ErrorCode.REQUEST_TIMED_OUT, "The controller has changed.")
            )
        self._is_leading = is_leading

    def _on_full(self, error: BaseException) -> None:
        """There is no room for what was decided: it is logged when there is, or never."""
        logger.error("no room for the metadata log", extra={"error": str(error)})
        self._refuse_waiting(_storage_error(error))

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
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SLICE_S
        count = 0
        while self._committed and count < SLICE_ENTRY_COUNT and loop.time() <= deadline:
            self._apply(self._committed.popleft())
            count += 1
        self._is_applying = bool(self._committed)
        if self._is_applying:
            loop.call_soon(self._apply_slice)
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
        waiting = self._in_flight
        is_own = bool(waiting) and waiting[0].index == entry.index and bool(waiting[0].records)
        records = waiting[0].records if is_own else _records(entry)
        old, self.image = self.image, self.image.apply(records)
        if not self._is_leading:
            self._pending = self.image
        elif not is_own:
            self._pending = self._pending.apply(records)  # Of the leader before.
        self.applied_index = entry.index
        self._note_removed(records)
        for listener in self._listeners if records else ():
            listener(old, self.image, records)
        while waiting and waiting[0].index <= entry.index:
            _reply(waiting.popleft())
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
        self._refuse_waiting(_storage_error(error))

    def _refuse_waiting(self, error: KafkaError) -> None:
        waiting, self._in_flight = self._in_flight, deque()
        for outcome in waiting:
            _reply(replace(outcome, error=error))

    # Snapshots and the end.

    def snapshot(self) -> None:
        """Begin to write the committed image; the entries that it replaces go once it is there."""
        node = self.consensus.node
        self._snapshot_index = index = self.applied_index
        term = node.log.term_at(index)
        assert term is not None
        snapshot = Snapshot(index, term, node.members.at(index))
        self._journal.save_snapshot_later(snapshot, self.image.to_records, self._snapshot_saved)

    def _snapshot_saved(self, snapshot: Snapshot, error: BaseException | None) -> None:
        if error is not None:
            extra = {"index": snapshot.index, "error": str(error)}
            logger.error("metadata snapshot failed", extra=extra)
            return  # The log still has every entry; the next snapshot is a new try.
        if snapshot.index > self.consensus.node.log.snapshot.index:
            self.consensus.node.compact(snapshot)
        gc.freeze()
        extra = {"index": str(snapshot.index), "term": str(snapshot.term)}
        logger.info("metadata snapshot", extra=extra)

    def close(self) -> None:
        """Leave the log clean: synced, checkpointed, with the commit index beside the vote."""
        self.consensus.stop()
        for task in self._forwards:
            task.cancel()
        self._in_flight.clear()  # What is committed and not applied yet is so by the next start.
        if self.failure is None:
            self._journal.log.close()
            state = replace(self._journal.state, commit_index=self.applied_index)
            self._journal.save_vote(state)


def _reply(outcome: _InFlight) -> None:
    if outcome.reply.done():
        return
    if outcome.error is not None:
        outcome.reply.set_exception(outcome.error)
    else:
        outcome.reply.set_result(outcome.response)


def _storage_error(error: BaseException | None) -> KafkaError:
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))


def _fail(reply: "asyncio.Future[Any]", error: KafkaError) -> None:
    if not reply.done():
        reply.set_exception(error)


def _records(entry: Entry) -> list[Record]:
    match entry.kind:
        case EntryKind.NO_OP | EntryKind.CONFIGURATION:
            return []
        case EntryKind.COMMAND:
            try:
                return decode_records(entry.data)
            except UndecodableRecord as reason:
                raise UnusableMetadata(
                    f"metadata entry {entry.index} (term {entry.term}) cannot be decoded: {reason}"
                ) from None


def _no_peers(message: Message) -> None:
    raise AssertionError(f"a message to node {message.recipient}, and there is no network")


async def _no_call(node_id: int, method: str, body: bytes, timeout_s: float) -> bytes:
    raise AssertionError(f"a call to node {node_id}, and there is no network")


def _no_settings(image: Image) -> BrokerConfig:
    return BrokerConfig(static={}, cluster=image.config("broker", ""), broker={})
