"""Decide, log, apply, answer: the loop around the metadata log, and the only file here that awaits.

A command is decided against the pending image (committed plus in flight), logged as one entry,
and applied to the committed image once the entry is durable and committed. Only then do readers
see it and its reply is sent. This node is a Raft group of one: it elects itself at the start, in
a new term whose vote is on disk before any entry carries it.

Invariants
    The committed image is a function of the log alone; replay restores it.
    A committed entry that cannot be decoded stops the node; it is never skipped.
"""

import asyncio
import gc
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from chronik.config import limits
from chronik.config.effective import BrokerConfig
from chronik.metadata import controller
from chronik.metadata.commands import Command
from chronik.metadata.image import Image, id_bytes
from chronik.metadata.journal import Journal, UnusableMetadata
from chronik.metadata.records import (
    Record,
    TopicRemovedRecord,
    UndecodableRecord,
    decode_records,
    encode_records,
)
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.raft.types import Entry, EntryKind, HardState
from chronik.storage.commit import GroupCommit
from chronik.storage.errors import StorageError

logger = logging.getLogger(__name__)

SLICE_ENTRY_COUNT: Final = 200  # applied in one turn of the loop
SLICE_S: Final = 0.02  # or until then: clients wait meanwhile

Listener = Callable[[Image, Image, Sequence[Record]], None]


@dataclass(slots=True)
class _InFlight:
    """An entry that is logged and not yet committed, and who waits for it."""

    index: int
    records: Sequence[Record]
    response: Any
    reply: "asyncio.Future[Any] | None"
    error: KafkaError | None = None


class MetadataRuntime:
    """The metadata of the cluster, as this node knows it."""

    def __init__(self, journal: Journal, commit: GroupCommit, node_id: int) -> None:
        self._journal = journal
        self._commit = commit
        self._node_id = node_id
        self._pending = Image()
        self._in_flight: deque[_InFlight] = deque()
        self._listeners: list[Listener] = []
        self._snapshot_index = 0
        self._is_applying = False  # the next slice is scheduled
        self.failure: BaseException | None = None
        self.image = Image()
        self.term = 0
        self.applied_index = 0
        self.removed_topics: set[bytes] = set()  # as seen in the replay: their files may remain
        # Replaced by the broker once it knows its static settings; decisions need defaults.
        self.broker_config: Callable[[Image], BrokerConfig] = _no_settings

    @property
    def controller_id(self) -> int:
        return self._node_id

    @property
    def last_index(self) -> int:
        return self._journal.last_index

    def subscribe(self, listener: Listener) -> None:
        """Be told of each change of the committed image (old, new, records) once it is visible."""
        self._listeners.append(listener)

    def start(self) -> None:
        """Replay, then lead in a new term. Blocking: nothing is served yet."""
        state = self._journal.load()
        self._replay()
        self.term = state.term + 1
        commit_index = self._journal.last_index
        self._journal.save_vote(
            HardState(term=self.term, vote=self._node_id, commit_index=commit_index)
        )
        self._pending = self.image
        self._log(EntryKind.NO_OP, (), None, None)

    def _replay(self) -> None:
        snapshot = self._journal.load_snapshot()
        if snapshot is not None:
            self.applied_index, _, records = snapshot
            self._snapshot_index = self.applied_index
            self.image = Image().apply(records)
        for entry in self._journal.entries(self.applied_index + 1):
            records = _records(entry)
            self.image = self.image.apply(records)
            self.applied_index = entry.index
            self.removed_topics.update(
                id_bytes(record.topic_id)
                for record in records
                if isinstance(record, TopicRemovedRecord)
            )
        # What was loaded stays: the collector need not walk it again.
        gc.freeze()

    def submit(self, command: Command) -> "asyncio.Future[Any]":
        """Decide and log a command. The future has its response once it is applied here."""
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.failure is not None:
            reply.set_exception(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(self.failure)))
            return reply
        try:
            decision = self.decide(command)
        except KafkaError as error:
            self._answer_in_turn(_InFlight(self._journal.last_index, (), None, reply, error))
            return reply
        if not decision.records:
            outcome = _InFlight(self._journal.last_index, (), decision.response, reply)
            self._answer_in_turn(outcome)
            return reply
        try:
            self._log(EntryKind.COMMAND, decision.records, decision.response, reply)
        except (OSError, StorageError) as error:
            reply.set_exception(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)))
            if self._journal.log.failed is not None:
                self.on_failed(error)  # A full disk, in contrast, leaves the log as it was.
        return reply

    def _answer_in_turn(self, outcome: _InFlight) -> None:
        """Answer without an entry, once what the decision looked at is committed.

        Who is told that a topic exists must find it when it asks for it.
        """
        if self._in_flight:
            self._in_flight.append(outcome)
        else:
            _reply(outcome)

    def decide(self, command: Command) -> controller.Decision:
        """What a command would do now; for requests that only validate."""
        config = self.broker_config(self._pending)
        return controller.decide(self._pending, command, config, self._journal.last_index + 1)

    def _log(
        self,
        kind: EntryKind,
        records: Sequence[Record],
        response: Any,
        reply: "asyncio.Future[Any] | None",
    ) -> None:
        index = self._journal.last_index + 1
        data = encode_records(records) if kind is EntryKind.COMMAND else b""
        self._journal.append(Entry(term=self.term, index=index, kind=kind, data=data))
        self._pending = self._pending.apply(records)
        self._in_flight.append(_InFlight(index, records, response, reply))
        self._commit.add(self._journal.log)

    def on_durable(self) -> None:
        """The log is on disk up to a new point: with one voter, that much is committed."""
        if not self._is_applying:
            self._apply_slice()

    def _apply_slice(self) -> None:
        """Apply some of what is committed and come back for the rest: a round may hold much."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SLICE_S
        count = 0
        while count < SLICE_ENTRY_COUNT and loop.time() <= deadline and self._apply_next():
            count += 1
        self._is_applying = self._has_committed()
        if self._is_applying:
            loop.call_soon(self._apply_slice)
        if self.applied_index - self._snapshot_index >= limits.SNAPSHOT_ENTRY_COUNT:
            self.snapshot()

    def _has_committed(self) -> bool:
        in_flight = self._in_flight
        return bool(in_flight) and in_flight[0].index < self._journal.log.durable_offset

    def _apply_next(self) -> bool:
        """Apply the oldest entry if it is committed; whether it was."""
        if not self._has_committed():
            return False
        entry = self._in_flight.popleft()
        old, self.image = self.image, self.image.apply(entry.records)
        self.applied_index = entry.index
        for listener in self._listeners if entry.records else ():
            listener(old, self.image, entry.records)
        _reply(entry)
        return True

    def on_failed(self, error: BaseException) -> None:
        """The metadata log could not be synced: nothing more is decided or answered as done."""
        self.failure = error
        logger.critical("metadata log failed", extra={"error": str(error)})
        while self._apply_next():
            pass  # Committed before: its answer is no error.
        for entry in self._in_flight:
            if entry.reply is not None and not entry.reply.done():
                entry.reply.set_exception(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)))
        self._in_flight.clear()

    def snapshot(self) -> None:
        """Begin to write the committed image; the entries that it replaces go once it is there."""
        self._snapshot_index = index = self.applied_index
        image, term = self.image, self.term
        self._journal.save_snapshot_later(index, term, image.to_records, self._snapshot_saved)

    def _snapshot_saved(self, index: int, error: BaseException | None) -> None:
        if error is not None:
            logger.error("metadata snapshot failed", extra={"index": index, "error": str(error)})
            return  # The log still has every entry; the next snapshot is a new try.
        gc.freeze()
        logger.info("metadata snapshot", extra={"index": index, "term": self.term})

    def close(self) -> None:
        """Leave the log clean: synced, checkpointed, with the commit index beside the vote."""
        self._in_flight.clear()  # What is committed and not applied yet is so by the next start.
        if self.failure is None:
            self._journal.log.close()
            state = HardState(term=self.term, vote=self._node_id, commit_index=self.applied_index)
            self._journal.save_vote(state)


def _reply(outcome: _InFlight) -> None:
    if outcome.reply is None or outcome.reply.done():
        return
    if outcome.error is not None:
        outcome.reply.set_exception(outcome.error)
    else:
        outcome.reply.set_result(outcome.response)


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


def _no_settings(image: Image) -> BrokerConfig:
    return BrokerConfig(static={}, cluster=image.config("broker", ""), broker={})
