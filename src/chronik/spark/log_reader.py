"""A range of a partition's offsets as Arrow batches, for a task that reads nothing else.

    with LogReader(connection) as reader:
        for batch in reader.read(offset_range, columns=["offset", "value"]):
            ...
        print(reader.gaps)

The next fetch is sent before what the last one brought is decoded: meanwhile the broker reads and
the kernel receives. No thread is needed for it.

Invariants
    Rows come in order of offset, each committed record of the range once.
    Reading ends at the range's end even if nothing but markers and gaps lies before it.
    Memory is bounded by two fetches and one group of batches, or by the largest batch if that is
    more.
"""

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import pyarrow as pa

from chronik.client.cluster import Cluster
from chronik.client.link import ConnectionFailed
from chronik.protocol.errors import ErrorCode, KafkaError, ProtocolError
from chronik.protocol.messages.fetch import PartitionData
from chronik.spark.connection import Connection
from chronik.spark.errors import SourceError
from chronik.spark.log_fetch import PartitionFetcher, TopicReplaced
from chronik.spark.offset_range import Gap as Gap
from chronik.spark.offset_range import Gaps
from chronik.spark.offset_range import OffsetRange as OffsetRange
from chronik.spark.range_reading import RangeReading
from chronik.spark.record_columns import SCHEMA

T = TypeVar("T")

BATCH_ROWS: Final = 50_000


class LogReader:
    """Reads ranges, one after the other, over connections that it keeps."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._loop = asyncio.new_event_loop()
        self._cluster: Cluster | None = None
        self._gaps: Gaps | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        if self._loop.is_closed():
            return
        if self._cluster is not None:
            self._run(self._cluster.close())
        self._loop.close()

    @property
    def gaps(self) -> list[Gap]:
        """What the last `read` has passed over so far, one entry for each reason."""
        return [] if self._gaps is None else self._gaps.all()

    def read(
        self,
        offset_range: OffsetRange,
        *,
        columns: Sequence[str] = tuple(SCHEMA.names),
        read_committed: bool = True,
        batch_rows: int = BATCH_ROWS,
        fail_on_data_loss: bool = True,
    ) -> Iterator[pa.RecordBatch]:
        """The records of a range. Raises SourceError, and DataLossError unless told otherwise."""
        self._gaps = Gaps(offset_range, fail_on_data_loss=fail_on_data_loss)
        reading = RangeReading(
            offset_range,
            columns=columns,
            read_committed=read_committed,
            batch_rows=batch_rows,
            gaps=self._gaps,
        )
        if reading.is_fetched:
            return
        fetcher = PartitionFetcher(
            self._connected(),
            offset_range.place,
            topic_id=offset_range.topic_id,
            read_committed=read_committed,
        )
        try:
            yield from self._read(reading, fetcher)
        except ConnectionFailed as error:
            raise SourceError(
                f"{offset_range.place} cannot be read, since its leader does not answer: {error}"
            ) from None
        except (KafkaError, ProtocolError) as error:
            raise SourceError(f"{offset_range.place} cannot be read: {error}") from error

    def _read(self, reading: RangeReading, fetcher: PartitionFetcher) -> Iterator[pa.RecordBatch]:
        fetching: asyncio.Task[PartitionData] | None = None
        progress_at = self._loop.time()
        try:
            while not reading.is_fetched:
                fetching = fetching or self._begin(fetcher.fetch(reading.position))
                data = self._answer(fetching, fetcher, reading)
                fetching = None
                if data is None:
                    continue
                batches = reading.take(data)
                if batches and not reading.is_fetched:
                    fetching = self._begin(fetcher.fetch(reading.position))
                yield from reading.rows(batches, data)
                if batches:
                    progress_at = self._loop.time()
                elif self._loop.time() - progress_at > self.connection.timeout_s:
                    _give_up(reading, data)
            yield from reading.rest()
        finally:
            if fetching is not None:
                fetching.cancel()
                with suppress(asyncio.CancelledError, KafkaError, ConnectionFailed, TopicReplaced):
                    self._loop.run_until_complete(fetching)

    def _answer(
        self,
        fetching: asyncio.Task[PartitionData],
        fetcher: PartitionFetcher,
        reading: RangeReading,
    ) -> PartitionData | None:
        """What the fetch brought; None if the position was moved on instead."""
        try:
            return self._loop.run_until_complete(fetching)
        except TopicReplaced as error:
            reading.skip("recreated", reading.wanted.end_offset, str(error))
        except KafkaError as error:
            if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            reading.out_of_range(*self._run(fetcher.bounds()))
        return None

    def _connected(self) -> Cluster:
        if self._cluster is None:
            cluster = self.connection.cluster()
            try:
                self._run(cluster.retry(lambda: cluster.refresh(())))
            except KafkaError as error:
                raise SourceError(
                    f"the cluster of {self.connection.bootstrap} cannot be read: {error}"
                ) from None
            except ConnectionFailed as error:
                raise SourceError(
                    "no broker answers; is kafka.bootstrap.servers="
                    f"{self.connection.bootstrap} right, and are they running? ({error})"
                ) from None
            self._cluster = cluster
        return self._cluster

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a request; where the connection is open, it is on its way when this returns."""
        task = self._loop.create_task(work)
        self._run(asyncio.sleep(0))
        return task

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)


def _give_up(reading: RangeReading, data: PartitionData) -> None:
    """Nothing new for as long as anybody waits: say what the range still lacks."""
    wanted = reading.wanted
    if data.high_watermark >= wanted.end_offset:
        raise SourceError(
            f"{wanted.place} can be read up to offset {data.last_stable_offset} only, where a"
            f" transaction is open, and not up to {wanted.end_offset}; end or abort it, or read"
            " uncommitted records too"
        )
    why = f"the log ends at offset {data.high_watermark}, and the range at {wanted.end_offset}"
    reading.skip("truncated", wanted.end_offset, why)
