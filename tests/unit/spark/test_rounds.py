"""A round of many topics: whatever is wrong with one of them, the others go on."""

import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkException

from chronik.model import TopicPartition
from chronik.spark.connection import Connection
from chronik.spark.errors import OptionsError
from chronik.spark.lake.table import LakeError, Refused
from chronik.spark.log_facts import Topic
from chronik.spark.pipeline import rounds
from chronik.spark.pipeline.config import PipelineConfig
from chronik.spark.pipeline.rounds import Pipeline
from chronik.spark.pipeline.topic import Landed

CONNECTION = Connection(bootstrap="127.0.0.1:1")
UNFORESEEN = OverflowError("date value\nout of range")


class Context:
    """A Spark that fails."""

    defaultParallelism = 1
    master = "local[1]"

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    def parallelize(self, *_: Any) -> "Context":
        return self

    def map(self, _: Callable[[Any], Any]) -> "Context":
        return self

    def collect(self) -> list[Any]:
        if self._error is not None:
            raise self._error
        return []


class Facts:
    """A cluster with these topics, a partition each."""

    def existing(self, names: Any) -> dict[str, Topic]:
        return {name: Topic(name=name, topic_id=bytes(16), partitions=(0,)) for name in names}

    def earliest(self, places: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(places, 0)

    def latest(self, places: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(places, 5)

    def sizes(self, _: Any) -> dict[TopicPartition, int]:
        return {}


class FakeTopic:
    """A topic that fails at one step, if at any."""

    def __init__(self, step: str = "", error: Exception | None = None) -> None:
        self._step, self._error = step, error
        self.committer = SimpleNamespace()
        self.config = None

    def _do(self, step: str, result: Any) -> Any:
        if step == self._step:
            assert self._error is not None
            raise self._error
        return result

    def prepare(self, *_: Any) -> bool:
        return bool(self._do("prepare", True))

    def plan(self, *_: Any, **__: Any) -> Any:
        return self._do("plan", SimpleNamespace(tasks=[], end_offsets={}))

    def land(self, *_: Any) -> Landed:
        landed: Landed = self._do("land", Landed(row_count=5))
        return landed


class FakeUpkeep:
    """The upkeep of a topic, which may fail too."""

    def __init__(self, topic: FakeTopic) -> None:
        self.committer = topic.committer
        self._topic = topic

    def landed(self) -> None:
        pass

    def expire_if_due(self) -> None:
        self._topic._do("tidy", None)

    def merges_if_due(self) -> list[Any]:
        return []


def pipeline_of(root: Path, topics: dict[str, FakeTopic], context: Context) -> Pipeline:
    config = PipelineConfig(bootstrap="127.0.0.1:1", warehouse=str(root))
    made = Pipeline(config, CONNECTION, SimpleNamespace(sparkContext=context))
    made._topics = dict(topics)  # type: ignore[arg-type]
    made._upkeep = {name: FakeUpkeep(each) for name, each in topics.items()}  # type: ignore[misc]
    made._discovered_at = 0.0
    return made


@pytest.mark.parametrize("step", ["prepare", "plan", "land"])
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (UNFORESEEN, "OverflowError: date value out of range (the pipeline's log has its trace)"),
        (OptionsError("no such file: x"), "no such file: x"),
        (LakeError("as it is"), "as it is"),
    ],
)
def test_one_topic_in_trouble_stops_no_other(
    tmp_path: Path,
    step: str,
    error: Exception,
    told: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topics = {"a": FakeTopic(), "b": FakeTopic(step, error), "c": FakeTopic()}
    pipeline = pipeline_of(tmp_path, topics, Context())
    report = pipeline.round(Facts(), 0.0)  # type: ignore[arg-type]
    assert set(report.landed) == {"a", "c"}
    assert report.errors == {"b": told}
    traced = [each for each in caplog.records if each.exc_info]
    assert bool(traced) == (error is UNFORESEEN)


def test_a_refusal_says_what_to_do(tmp_path: Path) -> None:
    pipeline = pipeline_of(tmp_path, {"a": FakeTopic("land", Refused("too late"))}, Context())
    report = pipeline.round(Facts(), 0.0)  # type: ignore[arg-type]
    assert report.errors["a"].startswith("too late; nothing was added: if another pipeline")


def test_upkeep_of_one_topic_stops_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tidied: list[str] = []
    topics = {"a": FakeTopic("tidy", UNFORESEEN), "b": FakeTopic()}
    pipeline = pipeline_of(tmp_path, topics, Context())
    pipeline._upkeep["b"].expire_if_due = lambda: tidied.append("b")  # type: ignore[method-assign]
    with caplog.at_level(logging.WARNING):
        pipeline._tidy(None)  # type: ignore[arg-type]
    assert tidied == ["b"]
    assert "upkeep of a: OverflowError" in caplog.text


def test_executors_that_cannot_run_our_code(tmp_path: Path) -> None:
    trace = (
        "Traceback (most recent call last):\n  File\nModuleNotFoundError: No module named 'chronik'"
    )
    pipeline = pipeline_of(tmp_path, {}, Context(PySparkException(trace)))
    with pytest.raises(LakeError) as told:
        pipeline.run(once=True)
    assert "No module named 'chronik'" in str(told.value)
    assert "PYSPARK_PYTHON" in str(told.value)
    assert "\n" not in str(told.value)


def test_a_configuration_that_cannot_be_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Any) -> None:
        raise UNFORESEEN

    found = SimpleNamespace(topics=[SimpleNamespace(name="a")], errors={})
    monkeypatch.setattr(rounds, "discover", lambda *_: found)
    monkeypatch.setattr(rounds, "check_config", refuse)
    pipeline = pipeline_of(tmp_path, {}, Context())
    pipeline._discovered_at = None
    report = pipeline.round(Facts(), 0.0)  # type: ignore[arg-type]
    assert report.errors["a"].startswith("OverflowError")
