"""`chronik pipeline replay`: a topic's dead letters again, by what its settings say now.

Without Spark: dead letters are few, or something is wrong that a replay does not put right. Fields
that the table has no column for become columns first, by the same code as in a round.
"""

import pyarrow as pa
import pyarrow.compute as pc

from chronik.clock import Clock, SystemClock
from chronik.spark.connection import Connection
from chronik.spark.errors import OptionsError
from chronik.spark.lake.partitioning import part_faults
from chronik.spark.lake.replay import Replayed, replay
from chronik.spark.lake.schemas import SYSTEM_COLUMNS
from chronik.spark.lake.table import LakeError
from chronik.spark.pipeline.config import PipelineConfig
from chronik.spark.pipeline.discovery import discover
from chronik.spark.pipeline.schema import check_config
from chronik.spark.pipeline.topic import TopicPipeline


def replay_topic(
    config: PipelineConfig, connection: Connection, name: str, clock: Clock | None = None
) -> Replayed:
    """Move the dead letters that decode by now to the table. Raises LakeError."""
    clock = clock or SystemClock()
    config.place.check()
    found = discover(connection, config)
    if name in found.errors:
        raise LakeError(found.errors[name])
    wanted = {each.name: each for each in found.topics}.get(name)
    if wanted is None:
        raise LakeError(
            f"topic {name} has no table: set its chronik.table to delta or iceberg, and check its "
            "name"
        )
    check_config(wanted)
    topic = TopicPipeline(wanted, config.place, connection)
    if not topic.open():
        raise LakeError(
            f"there is no table {name} in {config.place.url}: run the pipeline first, or name "
            "another --warehouse"
        )
    try:
        while True:
            try:
                return _replayed(topic, clock)
            except _TableChanged:
                continue  # It ends: a table has COLUMNS_MAX columns at most.
    except OptionsError as error:
        raise LakeError(f"topic {name}: {error}") from None


class _TableChanged(Exception):
    """The table has columns now that it had not when its letters were looked at."""


def _replayed(topic: TopicPipeline, clock: Clock) -> Replayed:
    """A replay by the columns that the table has now; a letter with others gives them to it."""
    committer = topic.committer
    state = committer.table.load()
    decoder = topic.decoder(state)

    def decode(letters: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.BooleanArray]:
        columns, errors = decoder.decode(letters.column("_value"))
        # As in a round: nothing of this replay has been committed, and it begins anew.
        if topic.maybe_evolve(state.schema, decoder.unexpected, decoder.conflicts):
            raise _TableChanged
        system = [letters.column(each) for each in SYSTEM_COLUMNS.names]
        names = [*SYSTEM_COLUMNS.names, *columns.schema.names]
        rows = pa.record_batch([*system, *columns.columns], names=names)
        faults = part_faults(rows, committer.table.partitioning)
        return rows, pc.is_null(errors if faults is None else pc.coalesce(errors, faults))

    return replay(committer.table, committer.dead_letters, decode, now_ms=clock.wall_ms())
