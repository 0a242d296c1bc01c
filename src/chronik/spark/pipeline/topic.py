"""One topic on its way into a table: what it needs, the next round, and the round's landing.

The table's schema is the memory of what the topic has looked like: a decoder is made of it anew
for every round. A topic whose schema has to be inferred has no table until it has a record. If none
of its first records shows a field, the table begins without: what does not decode is told by the
dead letters, and fields that come later become columns.

Somebody else may change the table between a round's plan and its landing: files that were written
without a column that the table has by now are not committed if they had values for it.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import pyarrow as pa

from chronik.spark.connection import Connection
from chronik.spark.lake.committer import Committer, RoundResult, Standing
from chronik.spark.lake.partitioning import check_partitioning, parse_partitioning
from chronik.spark.lake.schemas import DEAD_LETTER_COLUMNS, compare, other_name, table_schema
from chronik.spark.lake.table import DataFile, LakeError, LakeTable, PartitionKey, TableState
from chronik.spark.lake.warehouse import DEAD_LETTERS, Warehouse
from chronik.spark.log_facts import Topic
from chronik.spark.log_reader import LogReader
from chronik.spark.offset_range import OffsetRange
from chronik.spark.pipeline.columns import ColumnDecoder, given_fields, infer_or_none
from chronik.spark.pipeline.config import TopicConfig
from chronik.spark.pipeline.names import FieldNames, own_columns
from chronik.spark.pipeline.schema import (
    adopt_given,
    checked,
    column_decoder,
    typed_columns,
    usable,
)
from chronik.spark.pipeline.shares import admitted, shared
from chronik.spark.pipeline.task import RangeTask, TaskResult

logger = logging.getLogger(__name__)

SAMPLE_OFFSETS: Final = 500  # of a partition's beginning and of its end
SAMPLE_PARTITIONS_MAX: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSpans:
    """What a topic's partitions hold now."""

    starts: Mapping[int, int]
    ends: Mapping[int, int]
    sizes: Mapping[int, int]

    def weights(self) -> dict[int, float]:
        """Bytes an offset, as far as anybody knows."""
        return {
            partition: self.sizes.get(partition, 0) / max(end - self.starts[partition], 1) or 1024.0
            for partition, end in self.ends.items()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What is to be done for a topic now."""

    standing: Standing
    schema: pa.Schema  # the table's, by which the tasks decode
    end_offsets: Mapping[PartitionKey, int]
    tasks: Sequence[RangeTask]


@dataclass(frozen=True, slots=True, kw_only=True)
class Landed:
    """What a round brought."""

    row_count: int = 0
    dead_count: int = 0
    byte_count: int = 0
    lost_count: int = 0
    is_again: bool = False  # the table was changed, and the same offsets are to be read again


class TopicPipeline:
    """Materialises one topic."""

    def __init__(
        self,
        config: TopicConfig,
        warehouse: Warehouse,
        connection: Connection,
        *,
        accept_loss: bool = False,
    ) -> None:
        self.config = config
        self._warehouse = warehouse
        self._connection = connection
        self._accept_loss = accept_loss
        self._committer: Committer | None = None
        # Where the tables were brought to: an idle topic's tables need not be looked at.
        self._ends: dict[PartitionKey, int] = {}

    @property
    def committer(self) -> Committer:
        assert self._committer is not None, "open or prepare comes first"
        return self._committer

    # Tables

    def open(self) -> bool:
        """Open the tables, changed to what the settings say by now; False if there are none."""
        if self._committer is not None:
            return True
        table = self._warehouse.open(self.config.name, self.config.table)
        if table is None:
            self._refuse_other_format()
            return False
        adopt_given(self.config, table)
        self._begin(table)
        return True

    def prepare(self, topic: Topic, spans: LogSpans) -> bool:
        """Open or create the tables; False while there is nothing to tell the schema from."""
        if self.open():
            return True
        columns = given_fields(self.config.decode, self.config.schema)
        if columns is None:
            columns = self._sampled(topic, spans)
        if columns is None:
            return False
        self._begin(self._created(columns))
        return True

    def _begin(self, table: LakeTable) -> None:
        dead = self._warehouse.open_or_create(
            self.config.name + DEAD_LETTERS, self.config.table, DEAD_LETTER_COLUMNS
        )
        self._committer = Committer(table, dead, accept_recreated=self._accept_loss)

    def _refuse_other_format(self) -> None:
        other = "iceberg" if self.config.table == "delta" else "delta"
        try:
            exists = self._warehouse.open(self.config.name, other) is not None
        except LakeError:
            return
        if exists:
            raise LakeError(
                f"topic {self.config.name} has a table of format {other} in this warehouse, and "
                f"its settings say {self.config.table}: set chronik.table={other}, or move the "
                "table away first"
            )

    def _created(self, columns: pa.Schema) -> LakeTable:
        config = self.config
        schema = table_schema(checked(columns, config.name), config.table)
        partitioning = parse_partitioning(config.partition_by)
        check_partitioning(partitioning, schema)
        return self._warehouse.open_or_create(config.name, config.table, schema, partitioning)

    def _sampled(self, topic: Topic, spans: LogSpans) -> pa.Schema | None:
        """A schema from the beginning and the end of some partitions."""
        values = []
        with LogReader(self._connection) as reader:
            for partition, end in islice(spans.ends.items(), SAMPLE_PARTITIONS_MAX):
                start = spans.starts[partition]
                middle = max(start, end - SAMPLE_OFFSETS)
                for first, last in ((start, min(start + SAMPLE_OFFSETS, middle)), (middle, end)):
                    place = OffsetRange(topic.name, topic.topic_id, partition, first, last)
                    values += [
                        batch.column("value")
                        for batch in reader.read(place, columns=("value",), fail_on_data_loss=False)
                    ]
        if not any(map(len, values)):
            return None
        found = infer_or_none(pa.concat_arrays(values)) or pa.schema([])
        return usable(found, own_columns(parse_partitioning(self.config.partition_by)))

    # Rounds

    def plan(
        self, topic: Topic, spans: LogSpans, *, cores: int, task_bytes: int, budget_bytes: float
    ) -> Round | None:
        """The next round, or None if the table is where the log is."""
        keys = [PartitionKey(topic.topic_id, partition) for partition in spans.ends]
        if all(self._ends.get(key) == spans.ends[key.partition] for key in keys):
            return None
        standing = self.committer.stand(keys)
        waiting = [self._waiting(topic, key, standing, spans) for key in keys]
        # An unsettled range is settled whole: its end is what the dead letters have come to.
        unsettled = {key.partition for key in keys if standing.is_unsettled(key)}
        weights = spans.weights()
        taken = [each for each in waiting if each.partition in unsettled]
        rest = [each for each in waiting if each.partition not in unsettled]
        taken += admitted(rest, weights, budget_bytes)
        taken = [each for each in taken if each.start_offset < each.end_offset]
        if not taken:
            self._ends = {key: spans.ends[key.partition] for key in keys}
            return None
        shares = shared(taken, weights, cores=cores, task_bytes=task_bytes)
        state = self.committer.table.load()
        return Round(
            standing=standing,
            schema=state.schema,
            end_offsets={
                PartitionKey(topic.topic_id, each.partition): each.end_offset for each in taken
            },
            tasks=self._tasks(shares, standing, state),
        )

    @staticmethod
    def _waiting(
        topic: Topic, key: PartitionKey, standing: Standing, spans: LogSpans
    ) -> OffsetRange:
        """What a partition has that the table has not."""
        partition = key.partition
        start = standing.start_offset(key, spans.starts[partition])
        end = standing.end_offset(key, spans.ends[partition])
        if start > end:
            raise LakeError(
                f"the log of partition {partition} ends at {end}, before {start}, where the table "
                "stands: the cluster has lost records that the table has, or is another one; "
                "restore it, or move the table and its dead letters away to begin again"
            )
        return OffsetRange(topic.name, topic.topic_id, partition, start, end)

    def _tasks(
        self, shares: list[list[OffsetRange]], standing: Standing, state: TableState
    ) -> list[RangeTask]:
        table = self.committer.table
        decoder, file_schema = self.decoder(state), table.file_schema(state)
        settled = {key.partition: offsets for key, offsets in standing.settled.items()}
        return [
            RangeTask(
                topic=self.config.name,
                connection=self._connection,
                ranges=tuple(share),
                decoder=decoder,
                storage=table.storage,
                file_schema=file_schema,
                partitioning=table.partitioning,
                dead_storage=self.committer.dead_letters.storage,
                settled={p: settled[p] for p in {each.partition for each in share} & set(settled)},
                accept_loss=self._accept_loss,
            )
            for share in shares
        ]

    def decoder(self, state: TableState) -> ColumnDecoder:
        """What decodes values to the table's columns."""
        table = self.committer.table
        own = own_columns(table.partitioning)
        return column_decoder(self.config, typed_columns(table, state), table.format, own)

    def land(self, planned: Round, results: Sequence[TaskResult]) -> Landed:
        """Commit a round, or change the table so that the next one can be. Raises LakeError."""
        for result in results:
            if result.error is not None:
                raise LakeError(result.error)
        if self._evolved(planned.schema, results):
            return Landed(is_again=True)
        good = tuple(file for result in results for file in result.good)
        bad = tuple(file for result in results for file in result.bad)
        _check_shared(self.committer, good, bad)
        self.committer.commit(
            planned.standing, RoundResult(end_offsets=planned.end_offsets, good=good, bad=bad)
        )
        self._ends.update(planned.end_offsets)
        return Landed(
            row_count=sum(file.row_count for file in good),
            dead_count=sum(file.row_count for file in bad),
            byte_count=sum(result.byte_count for result in results),
            lost_count=sum(result.lost_count for result in results),
        )

    def _evolved(self, planned: pa.Schema, results: Sequence[TaskResult]) -> bool:
        """Give the table columns for what had none in the plan; returns whether there was any."""
        unexpected: dict[str, pa.DataType] = {}
        conflicts: dict[str, pa.DataType] = {}
        for result in results:
            for name, kind in result.unexpected.items():
                unexpected.setdefault(name, kind)
            for name, kind in result.conflicts.items():
                conflicts.setdefault(name, kind)
        return self.maybe_evolve(planned, unexpected, conflicts)

    def maybe_evolve(
        self,
        planned: pa.Schema,
        unexpected: Mapping[str, pa.DataType],
        conflicts: Mapping[str, pa.DataType],
    ) -> bool:
        """Give the table columns for fields that have none, and for types that none takes.

        Returns whether the table has other columns than those that values were decoded by.
        """
        if not unexpected and not conflicts:
            return False
        table = self.committer.table
        schema = table.load().schema
        if schema != planned:
            return True  # Somebody else was faster, perhaps with these very fields.
        # Of names that exclude each other the first becomes a column: tasks do not know each other.
        names = FieldNames(schema, own_columns(table.partitioning) - {*schema.names})
        kinds = ((name, names.addition(name, kind)) for name, kind in unexpected.items())
        added = {name: kind for name, kind in kinds if kind is not None}
        for name, kind in conflicts.items():
            added[other_name(name, [*schema.names, *added])] = kind
        new = pa.schema(compare(schema, pa.schema(list(added.items())), table.format).added)
        if not len(new):
            return False
        kept = [field for field in schema if field.name not in new.names]
        checked(pa.schema([*kept, *new]), table.name, has_system=True)
        table.evolve(new, pa.schema([]))
        logger.info("table %s has new fields: %s", table.name, ", ".join(new.names))
        return True


def _check_shared(committer: Committer, good: Sequence[DataFile], bad: Sequence[DataFile]) -> None:
    """Refuse files that a task has written to a place that is not ours."""
    for table, files in ((committer.table, good), (committer.dead_letters, bad)):
        for file in files if table.storage.is_local else ():
            if table.storage.size(file.path) != file.byte_count:
                raise LakeError(
                    f"a task has written {file.path} of table {table.name}, and the driver does "
                    f"not find it in {table.location}: the warehouse must be one that all machines "
                    "share, such as s3://bucket/path or a mounted network path"
                )
