"""The loop of a pipeline: discover, plan, run on Spark, commit, tidy up, and again.

All topics share a round: one Spark job, whose tasks are shares of all topics' new records. Then
each topic's results are committed by themselves, so that one topic in trouble stops no other. Its
trouble is told, kept in the status file, and tried again later; even one that nobody has foreseen,
whose trace goes to the log.

Files are merged by a Spark job of their own beside the rounds; its commits are made between rounds
by this same thread, so that the two never refuse each other.

Stopping takes effect between rounds. A kill at any time loses only files that nobody refers to.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from chronik.clock import Clock, SystemClock
from chronik.spark.connection import Connection
from chronik.spark.errors import DataLossError, OptionsError, SourceError
from chronik.spark.lake.failures import complaint
from chronik.spark.lake.replay import finish_replay
from chronik.spark.lake.table import LakeError, PartitionKey, Refused
from chronik.spark.log_facts import LogFacts, Topic
from chronik.spark.pipeline.config import MEBIBYTE, PipelineConfig
from chronik.spark.pipeline.discovery import discover
from chronik.spark.pipeline.heartbeat import write_heartbeat
from chronik.spark.pipeline.schema import check_config
from chronik.spark.pipeline.session import tries_of
from chronik.spark.pipeline.shares import ROUND_TASKS_A_CORE
from chronik.spark.pipeline.task import MergeTask, RangeTask, TaskResult, run_task, write_probe
from chronik.spark.pipeline.topic import Landed, LogSpans, Round, TopicPipeline
from chronik.spark.pipeline.upkeep import Merging, Upkeep
from chronik.spark.spark_failures import spark_errors, why

logger = logging.getLogger(__name__)

DISCOVERY_INTERVAL_S: Final = 10.0
COMMITS_AT_ONCE: Final = 4  # each waits for a disk, a catalog or an object store
REST_S: Final = 5.0  # after a topic's first trouble; twice as long after each one that follows
REST_MAX_S: Final = 120.0
_FORESEEN: Final = (LakeError, SourceError, OptionsError, DataLossError)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundReport:
    """What a round did, for whoever watches."""

    number: int
    seconds: float
    landed: Mapping[str, Landed] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    lag: int = 0  # records that are in the log and not in a table

    @property
    def is_idle(self) -> bool:
        return not self.landed


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """A topic that could not be brought forward, and until when it is left alone."""

    why: str
    count: int
    until: float


class Pipeline:
    """Materialises topics until it is stopped."""

    def __init__(
        self,
        config: PipelineConfig,
        connection: Connection,
        spark: Any,
        *,
        clock: Clock | None = None,
        report: Callable[[RoundReport], None] = lambda report: None,
    ) -> None:
        self._config, self._connection = config, connection
        self._context = spark.sparkContext
        self._clock = clock or SystemClock()
        self._report = report
        self._warehouse = config.place
        self._cores = int(self._context.defaultParallelism)
        self._topics: dict[str, TopicPipeline] = {}
        self._upkeep: dict[str, Upkeep] = {}
        self._config_errors: Mapping[str, str] = {}
        self._discovered_at: float | None = None
        self._stop = threading.Event()
        self._number = 0
        self._merging: Future[list[Merging]] | None = None
        self._last_ends: dict[PartitionKey, int] | None = None  # where to end, if anywhere
        self._troubles: dict[str, Trouble] = {}

    def stop(self) -> None:
        """End after the round that is running; safe to call from a signal handler."""
        self._stop.set()

    def run(self, *, once: bool = False) -> None:
        """Rounds until `stop`, or with `once` until every table is where its log is now.

        Raises LakeError if tasks and driver do not share the warehouse, or if with `once` a topic
        could not be brought to its end.
        """
        self._last_ends = {} if once else None
        self._probe()
        with LogFacts(self._connection) as facts, ThreadPoolExecutor(1) as background:
            while not self._stop.is_set():
                started = self._clock.monotonic()
                report = self.round(facts, started)
                self._report(report)
                if once and report.is_idle:
                    self._refuse_errors(report)
                    break
                self._tidy(background)
                if report.lag or once:
                    continue  # There is more to do than waiting.
                elapsed = self._clock.monotonic() - started
                self._stop.wait(max(0.0, self._config.interval_s - elapsed))
            self._settle_merges()
        if once:
            self._expire()

    def _expire(self) -> None:
        """Who only ever runs once has no hourly turn for this."""
        for name in self._upkeep.keys() & self._topics.keys():
            try:
                self._upkeep[name].expire()
            except Exception as error:
                logger.warning("upkeep of %s: %s", name, _told(name, error))

    def _probe(self) -> None:
        """Refuse a warehouse that tasks and driver do not share."""
        warehouse = self._warehouse
        numbers = self._context.parallelize(range(self._cores), self._cores)
        try:
            probes = numbers.map(lambda number: write_probe(warehouse, number)).collect()
        except spark_errors() as error:
            raise LakeError(
                f"the executors do not run our tasks ({why(error)}): all machines need one Python "
                "that has chronik[spark], named by PYSPARK_PYTHON before the pipeline starts"
            ) from error
        for probe in probes:
            if probe.error is not None:
                raise LakeError(f"the executor {probe.whose} cannot write: {probe.error}")
            if warehouse.take_probe(probe.path) != probe.whose:
                raise LakeError(
                    f"the executor {probe.whose} has written to {warehouse.url} and the driver "
                    "does not find it there: the warehouse must be one that all machines share, "
                    "such as s3://bucket/path or a mounted network path"
                )

    @staticmethod
    def _refuse_errors(report: RoundReport) -> None:
        if report.errors:
            raise LakeError("; ".join(f"{name}: {why}" for name, why in report.errors.items()))

    # A round

    def round(self, facts: LogFacts, started: float) -> RoundReport:
        """One round of all topics."""
        self._number += 1
        errors: dict[str, str] = {}
        landed: dict[str, Landed] = {}
        lag = 0
        try:
            self._discover(started)
            rounds, lag = self._plan(facts, errors)
            landed = self._land(rounds, self._run(rounds), errors)
        except (LakeError, SourceError) as error:
            errors["cluster"] = str(error)
        self._note_troubles(landed, errors)
        resting = {name: each.why for name, each in self._troubles.items()}
        errors = {**self._config_errors, **resting, **errors}
        report = RoundReport(
            number=self._number,
            seconds=self._clock.monotonic() - started,
            landed=landed,
            errors=errors,
            lag=lag,
        )
        try:
            write_heartbeat(self._warehouse, self._clock.wall_ms(), self._number, landed, errors)
        except LakeError as error:
            logger.warning("no word for the status: %s", error)
        return report

    def _note_troubles(self, landed: Mapping[str, Landed], errors: Mapping[str, str]) -> None:
        """A topic in trouble rests for a while: what fails again and again must not fail busily."""
        now = self._clock.monotonic()
        for name in landed:
            self._troubles.pop(name, None)
        for name in errors.keys() & self._topics.keys():
            known = self._troubles.get(name)
            count = 1 if known is None else known.count + 1
            rest_s = min(REST_S * 2 ** (count - 1), REST_MAX_S)
            self._troubles[name] = Trouble(why=errors[name], count=count, until=now + rest_s)

    def _is_resting(self, name: str) -> bool:
        trouble = self._troubles.get(name)
        return trouble is not None and self._clock.monotonic() < trouble.until

    def _discover(self, now: float) -> None:
        if self._discovered_at is not None and now - self._discovered_at < DISCOVERY_INTERVAL_S:
            return
        found = discover(self._connection, self._config)
        self._discovered_at = now
        errors = dict(found.errors)
        topics: dict[str, TopicPipeline] = {}
        for config in found.topics:
            known = self._topics.get(config.name)
            if known is not None and known.config == config:
                topics[config.name] = known
                continue
            try:
                check_config(config)
            except Exception as error:
                errors[config.name] = _told(config.name, error)
                continue
            self._troubles.pop(config.name, None)  # Its settings are others now.
            topics[config.name] = TopicPipeline(
                config,
                self._warehouse,
                self._connection,
                accept_loss=self._config.accept_loss,
            )
        if self._number > 1:
            for name in topics.keys() - self._topics.keys():
                logger.info("%s: a topic that is to have a table", name)
            for name in self._topics.keys() - topics.keys() - errors.keys():
                logger.info("%s: gone, or no longer to have a table; what it has stays", name)
        self._topics, self._config_errors = topics, errors
        self._troubles = {name: each for name, each in self._troubles.items() if name in topics}

    def _plan(self, facts: LogFacts, errors: dict[str, str]) -> tuple[dict[str, Round], int]:
        topics = facts.existing(name for name in self._topics if not self._is_resting(name))
        rounds: dict[str, Round] = {}
        spans = _spans(facts, topics, errors)
        task_bytes = self._config.task_mebibytes * MEBIBYTE
        budget = self._cores * ROUND_TASKS_A_CORE * task_bytes / max(len(topics), 1)
        lag = 0
        for name in spans:
            topic, pipeline = topics[name], self._topics[name]
            spans[name] = self._capped(topic, spans[name])
            try:
                if not pipeline.prepare(topic, spans[name]):
                    continue
                self._begin_upkeep(name, pipeline)
                planned = pipeline.plan(
                    topic,
                    spans[name],
                    cores=self._cores,
                    task_bytes=task_bytes,
                    budget_bytes=budget,
                )
            except Exception as error:
                errors[name] = _told(name, error)
                continue
            if planned is not None:
                rounds[name] = planned
                lag += sum(
                    spans[name].ends[key.partition] - end
                    for key, end in planned.end_offsets.items()
                )
        return rounds, lag

    def _capped(self, topic: Topic, spans: LogSpans) -> LogSpans:
        """With `once`: no further than where the log ended when it was first seen."""
        if self._last_ends is None:
            return spans
        ends = {
            partition: self._last_ends.setdefault(PartitionKey(topic.topic_id, partition), end)
            for partition, end in spans.ends.items()
        }
        return replace(spans, ends=ends)

    def _begin_upkeep(self, name: str, pipeline: TopicPipeline) -> None:
        committer = pipeline.committer
        known = self._upkeep.get(name)
        if known is None or known.committer is not committer:
            finish_replay(committer.table, committer.dead_letters)
            self._upkeep[name] = Upkeep(committer, pipeline.config, self._clock)

    def _run(self, rounds: Mapping[str, Round]) -> dict[str, list[TaskResult]]:
        tasks = [task for planned in rounds.values() for task in planned.tasks]
        results: dict[str, list[TaskResult]] = {name: [] for name in rounds}
        if tasks:
            for result in self._on_spark(tasks):
                results[result.topic].append(result)
        return results

    def _on_spark(self, tasks: Sequence[RangeTask | MergeTask]) -> list[TaskResult]:
        run = partial(run_task, tries=tries_of(self._context))
        try:
            done: list[TaskResult] = self._context.parallelize(tasks, len(tasks)).map(run).collect()
        except spark_errors() as error:
            if self._context._jsc is None or self._context._jsc.sc().isStopped():
                raise LakeError("Spark has stopped: start the pipeline again") from error
            raise LakeError(f"Spark gave up on the tasks of this round: {why(error)}") from error
        return done

    def _land(
        self,
        rounds: Mapping[str, Round],
        results: Mapping[str, list[TaskResult]],
        errors: dict[str, str],
    ) -> dict[str, Landed]:
        def land(name: str) -> Landed | str:
            try:
                return self._topics[name].land(rounds[name], results[name])
            except Refused as error:
                return (
                    f"{error}; nothing was added: if another pipeline writes to this table, stop "
                    "one of them"
                )
            except Exception as error:
                return _told(name, error)

        landed: dict[str, Landed] = {}
        with ThreadPoolExecutor(COMMITS_AT_ONCE, "chronik-commit") as threads:
            for name, outcome in zip(rounds, threads.map(land, rounds), strict=True):
                if isinstance(outcome, str):
                    errors[name] = outcome
                else:
                    landed[name] = outcome
                    self._upkeep[name].landed()
        return landed

    # Between rounds

    def _tidy(self, background: ThreadPoolExecutor) -> None:
        """Commit merges that are done, expire what is old, and begin the next merges."""
        if self._merging is not None and self._merging.done():
            self._settle_merges()
        merges: list[Merging] = []
        for name, upkeep in self._upkeep.items():
            if name not in self._topics:
                continue
            try:
                upkeep.expire_if_due()
                if self._merging is None:
                    merges += upkeep.merges_if_due()
            except Exception as error:
                logger.warning("upkeep of %s: %s", name, _told(name, error))
        if merges:
            self._merging = background.submit(self._merge, merges)

    def _merge(self, merges: list[Merging]) -> list[Merging]:
        results = self._on_spark([each.task for each in merges])
        return [each.done(result) for each, result in zip(merges, results, strict=True)]

    def _settle_merges(self) -> None:
        merging, self._merging = self._merging, None
        if merging is None:
            return
        try:
            merged = merging.result()
        except Exception as error:
            logger.warning("all merges of files were given up: %s", _told("merges", error))
            return
        for each in merged:
            try:
                each.commit()
            except Exception as error:
                logger.warning("a merge of files was given up: %s", _told(each.table.name, error))


def _told(name: str, error: Exception) -> str:
    """What a topic's trouble is, in one line; of what nobody has foreseen the log has all."""
    if isinstance(error, _FORESEEN):
        return str(error)
    logger.error("%s: this was not foreseen", name, exc_info=error)
    return f"{type(error).__name__}: {complaint(error)} (the pipeline's log has its trace)"


def _spans(
    facts: LogFacts, topics: Mapping[str, Topic], errors: dict[str, str]
) -> dict[str, LogSpans]:
    """What the logs hold; of all topics at once, or one by one if one of them cannot say."""
    try:
        return _spans_of(facts, list(topics.values()))
    except SourceError:
        if len(topics) == 1:
            raise
    found: dict[str, LogSpans] = {}
    for name, topic in topics.items():
        try:
            found |= _spans_of(facts, [topic])
        except SourceError as error:
            errors[name] = str(error)
    return found


def _spans_of(facts: LogFacts, topics: list[Topic]) -> dict[str, LogSpans]:
    places = [place for topic in topics for place in topic.places]
    starts, ends, sizes = facts.earliest(places), facts.latest(places), facts.sizes(topics)
    return {
        topic.name: LogSpans(
            starts={place.partition: starts[place] for place in topic.places if place in ends},
            ends={place.partition: ends[place] for place in topic.places if place in ends},
            sizes={place.partition: sizes.get(place, 0) for place in topic.places},
        )
        for topic in topics
    }
