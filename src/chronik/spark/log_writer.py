"""Writes a Spark task's rows to topics, once even if the task runs twice.

    with LogWriter(connection, topic="orders", write_id="query-7", task=3, batch_id=12) as writer:
        for batch in batches:
            writer.write(batch)
        summary = writer.commit()

A batch has the column `value` and, where they are wanted, `key`, `headers`, `partition` and
`topic`. A record with a partition goes there; one with a key goes where Java's client puts it;
others stay on one partition for a whole batch. `record_encoding` makes the batches. All records
are acknowledged by all replicas in sync before `write` returns, and no record is written twice by
retries.

With a write id, the rows of one (write id, task, batch id) are one transaction, and "this batch is
done" is part of it: the batch id, as the offset of a group of the task's own, committed by the same
transaction. So data and mark are there together, or neither is. A task that runs again first takes
over the transactional id, which decides whatever an earlier run left open and shuts that run out,
and then reads the mark: if the batch is done, its rows are skipped. This needs tasks that have the
same rows and numbers when they run again: a plan whose partitions are not the same each time (a
shuffle of rows in no order, another number of partitions) has no such identity.

The mark is kept for the first topic that is written, partition 0, since Kafka refuses offsets of
what is not there. Brokers forget the offsets of an idle group (Kafka: after 7 days): a query that
was down for longer may write its last batch again.

Readers of committed data see a task's rows when it commits; not all tasks commit at once.
"""

import asyncio
import random
from collections.abc import Coroutine
from dataclasses import dataclass
from itertools import pairwise
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from chronik.client.cluster import Cluster
from chronik.client.groups import Groups
from chronik.client.link import ConnectionFailed
from chronik.client.producer import BATCH_BYTES_MAX, Producer
from chronik.client.transaction import Transaction
from chronik.clock import Clock, SystemClock
from chronik.model import TopicPartition
from chronik.protocol import codecs
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.records import BatchBuilder
from chronik.spark.connection import Connection
from chronik.spark.errors import OptionsError, SourceError
from chronik.spark.record_encoding import Turns, encoded_batches
from chronik.spark.write_columns import WRITTEN

T = TypeVar("T")

# What a task may take between its first record and its commit. Brokers allow 15 minutes by default;
# until then the records of a task that died hold back readers, unless it is run again.
TRANSACTION_TIMEOUT_MS: Final = 10 * 60 * 1000
LINGER_S: Final = 0.0  # A batch's rows come all at once: nothing is gained by waiting for more.
# What is encoded at a time: it is held twice, and half of a batch of a gigabyte is still too much.
PART_BYTES: Final = 16 * 1024 * 1024
_FENCED: Final = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED})


@dataclass(frozen=True, slots=True)
class WriteSummary:
    """What a task has written; `skipped` if an earlier run of it had done so already."""

    rows: int
    bytes: int
    skipped: bool


class LogWriter:
    """One task's records; connects with the first of them, or with `commit`."""

    def __init__(
        self,
        connection: Connection,
        *,
        topic: str | None = None,
        write_id: str | None = None,
        task: int = 0,
        batch_id: int = 0,
        compression: str = "none",
        batch_bytes: int = BATCH_BYTES_MAX,
        clock: Clock | None = None,
    ) -> None:
        """Without a write id the records are written at once, and again if the task runs again."""
        if compression not in codecs.CODECS:
            raise OptionsError(
                f"there is no compression {compression!r}, only {', '.join(codecs.CODECS)}"
            )
        self.connection = connection
        self._topic = topic
        self._name = None if write_id is None else f"chronik-spark-{write_id}-{task}"
        self._batch_id = batch_id
        self._codec = codecs.CODECS[compression]
        self._batch_bytes = batch_bytes
        self._clock = clock or SystemClock()
        self._turns: dict[str, Turns] = {}
        self._loop = asyncio.new_event_loop()
        self._cluster: Cluster | None = None
        self._producer: Producer | None = None
        self._transaction: Transaction | None = None
        self._first_topic: str | None = None
        self._rows = 0
        self._bytes = 0
        self._skipped = False
        self._is_failed = False
        self._is_ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._is_ended:
            self.abort()
        self.close()

    def write(self, batch: pa.RecordBatch) -> None:
        """Write the rows of a batch; they are acknowledged when this returns."""
        assert not self._is_ended, "the write has ended"
        if self._is_failed:
            raise SourceError("an earlier batch of this task could not be written")
        self._guarded(self._write(batch))

    def commit(self) -> WriteSummary:
        """End the write: from here on its records are there for good."""
        assert not self._is_ended, "the write has ended"
        if self._is_failed:
            raise SourceError("this task could not write all of its records: nothing is committed")
        self._guarded(self._commit())
        self._is_ended = True
        return WriteSummary(self._rows, self._bytes, self._skipped)

    def abort(self) -> None:
        """Give the write up: within a transaction nothing of it will be seen."""
        if self._is_ended:
            return
        self._is_ended = True
        transaction = self._transaction
        if transaction is None or self._skipped:
            return
        try:
            self._run(transaction.end(commit=False))
        except (KafkaError, ConnectionFailed):
            pass  # The next run of the task, or the transaction's timeout, aborts it.

    def close(self) -> None:
        """Close the connections."""
        if self._loop.is_closed():
            return
        self._run(self._close())
        self._loop.close()

    async def _close(self) -> None:
        if self._producer is not None:
            await self._producer.close()
        if self._cluster is not None:
            await self._cluster.close()

    def _guarded(self, work: Coroutine[Any, Any, T]) -> T:
        """Do the work; any failure of it ends the write, and is one sentence for the user."""
        try:
            return self._run(work)
        except BaseException as error:
            self._is_failed = True
            if isinstance(error, ConnectionFailed):
                raise SourceError(
                    "records cannot be written, since a broker does not answer; is"
                    f" kafka.bootstrap.servers={self.connection.bootstrap} right? ({error})"
                ) from None
            if isinstance(error, KafkaError):
                raise _refused(error) from error
            raise

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)

    async def _write(self, batch: pa.RecordBatch) -> None:
        producer = await self._opened()
        if self._skipped:
            return
        rows = _shaped(batch, self._topic)
        parts = max(1, min(rows.num_rows, -(-rows.nbytes // PART_BYTES)))
        bounds = [rows.num_rows * index // parts for index in range(parts + 1)]
        for first, last in pairwise(bounds):
            await self._send(producer, rows.slice(first, last - first))
        # Nothing is left to be sent while Spark makes the next rows, and our loop stands still.
        await producer.flush()
        self._rows += batch.num_rows

    async def _send(self, producer: Producer, rows: pa.RecordBatch) -> None:
        for topic in pc.unique(rows.column("topic")).to_pylist():
            self._first_topic = self._first_topic or topic
            await self._learn(topic, rows)
        now_ms = self._clock.wall_ms()
        for place, records, count in encoded_batches(rows, self._turns, self._batch_bytes):
            await producer.send_batch(place, BatchBuilder.encoded(records, count, now_ms))
        for name in ("key", "value"):
            self._bytes += pc.sum(pc.binary_length(rows.column(name))).as_py() or 0

    async def _learn(self, topic: str, rows: pa.RecordBatch) -> None:
        """Know how many partitions a topic has, at least as many as rows say it has."""
        cluster = self._cluster
        assert cluster is not None

        async def ask() -> int:
            return len((await cluster.topic(topic, auto_create=True)).partitions)

        highest = pc.max(rows.column("partition")).as_py()
        turns = self._turns.get(topic)
        if turns is None:
            count = await cluster.retry(ask, topics=(topic,))
            # Many short-lived tasks must not all begin at partition 0.
            turns = self._turns[topic] = Turns(random.randrange(count), count)
        if highest is not None and highest >= turns.partition_count:
            cluster.forget((topic,))  # It may have grown.
            turns.partition_count = await cluster.retry(ask, topics=(topic,))

    async def _opened(self) -> Producer:
        if self._producer is None:
            cluster = self._cluster = self.connection.cluster()
            await cluster.retry(lambda: cluster.refresh(()))
            if self._name is not None:
                await self._take_over(cluster, self._name)
            self._producer = Producer(
                cluster,
                codec=self._codec,
                linger_s=LINGER_S,
                batch_bytes_max=self._batch_bytes,
                delivery_timeout_s=self.connection.timeout_s,
                transaction=self._transaction,
            )
        return self._producer

    async def _take_over(self, cluster: Cluster, name: str) -> None:
        """Shut out earlier runs of the task, then ask whether one of them was done."""
        self._transaction = Transaction(cluster, name, timeout_ms=TRANSACTION_TIMEOUT_MS)
        await self._transaction.open()
        groups = Groups(cluster)
        marks = await cluster.retry(lambda: groups.committed(name, stable=True))
        done = max((offset for offset, _ in marks.values()), default=0)  # the next batch's id
        self._skipped = done > self._batch_id

    async def _commit(self) -> None:
        if self._transaction is None or self._skipped or self._name is None:
            return
        if self._first_topic is not None:  # No rows, no mark: another run has none either.
            mark = {TopicPartition(self._first_topic, 0): self._batch_id + 1}
            await self._transaction.commit_offsets(self._name, mark)
        await self._transaction.end(commit=True)


def _refused(error: KafkaError) -> SourceError:
    if error.code in _FENCED:
        return SourceError(
            "another run of this task has taken over, or the transaction took longer than"
            f" {TRANSACTION_TIMEOUT_MS // 60_000} minutes: nothing of this run is written ({error})"
        )
    return SourceError(f"records cannot be written: {error}")


def _shaped(batch: pa.RecordBatch, topic: str | None) -> pa.RecordBatch:
    """The rows with the columns of `write_columns.WRITTEN`, each with a topic."""
    names = batch.schema.names
    if "value" not in names:
        raise OptionsError(f"records need a column value, and there are only {', '.join(names)}")
    columns = {
        field.name: batch.column(field.name).cast(field.type)
        if field.name in names
        else pa.nulls(batch.num_rows, field.type)
        for field in WRITTEN
    }
    if topic is not None:
        columns["topic"] = pc.fill_null(columns["topic"], topic)
    if columns["topic"].null_count:
        raise OptionsError("a row has no topic: set the option topic, or the column")
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=WRITTEN)
