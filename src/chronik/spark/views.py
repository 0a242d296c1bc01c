"""Topics as views of a Spark session, so that SQL can name them.

A topic that has a table is read as one: history from the lake, tail from the log (`union`). Any
other topic is its raw columns. `orders_dead_letters` is the table of what did not decode.

Only names that a statement mentions become views: a cluster may have thousands of topics, and to
pin one asks its brokers and its table. Kafka tells names by case and SQL does not: of topics that
differ in nothing else the one that is written exactly so is meant.
"""

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from chronik.spark.connection import Connection
from chronik.spark.errors import SourceError
from chronik.spark.lake.table import LakeTable
from chronik.spark.lake.warehouse import DEAD_LETTERS
from chronik.spark.log_facts import LogFacts
from chronik.spark.pipeline.config import PipelineConfig, TopicConfig
from chronik.spark.pipeline.discovery import discover
from chronik.spark.union import pin, table_alone, union_read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LISTS: Final = re.compile(r"\s*show\s+(tables|views)\b", re.IGNORECASE)
_WORDS: Final = re.compile(r"`([^`]+)`|(\w+)")


def mentioned(statement: str, names: Iterable[str]) -> list[str]:
    """The names that a statement may mean; all of them if it lists the tables."""
    if _LISTS.match(statement):
        return sorted(names)
    words = {quoted or word for quoted, word in _WORDS.findall(statement)}
    alike: dict[str, list[str]] = {word.lower(): [] for word in words}
    for name in sorted(names):
        alike.get(name.lower(), []).append(name)
    return sorted(name for some in alike.values() for name in _meant(some, words))


def _meant(alike: list[str], words: set[str]) -> list[str]:
    """Which of some names that differ in case a statement means; at most one."""
    exact = [name for name in alike if name in words]
    found = exact or alike
    if len(found) > 1:
        raise SourceError(
            f"SQL does not tell {' from '.join(found)}: name one of them, written exactly so"
        )
    return found


def create_views(
    spark: "SparkSession",
    config: PipelineConfig,
    connection_options: Mapping[str, str],
    statement: str,
) -> dict[str, str]:
    """Make views of what a statement mentions; returns what each view shows.

    Raises SourceError, DataLossError or LakeError, each in one sentence.
    """
    connection = Connection.from_options(connection_options)
    made: dict[str, str] = {}
    with LogFacts(connection) as facts:
        topics = facts.matching(".*")
        with_tables = {each.name: each for each in discover(connection, config).topics}
        letters = {name + DEAD_LETTERS: each for name, each in with_tables.items()}
        for name in mentioned(statement, {*topics, *letters}):
            if name in topics:
                frame, made[name] = _topic_frame(
                    spark, facts, config, connection_options, name, with_tables.get(name)
                )
                frame.createOrReplaceTempView(f"`{name}`")
                continue
            table = config.place.open(name, letters[name].table)
            if table is not None:
                table_alone(spark, table).createOrReplaceTempView(f"`{name}`")
                made[name] = "dead letters"
    return made


def _topic_frame(
    spark: "SparkSession",
    facts: LogFacts,
    config: PipelineConfig,
    options: Mapping[str, str],
    name: str,
    topic: TopicConfig | None,
) -> "tuple[DataFrame, str]":
    table: LakeTable | None = None
    if topic is not None:
        table = config.place.open(name, topic.table)
    if topic is None or table is None:
        raw = spark.read.format("chronik").options(**options).option("subscribe", name)
        return raw.option("includeHeaders", "true").load(), "log"
    connection = Connection.from_options(options)
    return union_read(spark, connection, pin(facts, table, name), topic), "table and log"
