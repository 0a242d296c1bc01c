"""How a stream plans where topics come and go, and brokers do not always show them."""

from collections.abc import Iterable
from typing import Any, cast

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from chronik.clock import SystemClock
from chronik.model import TopicPartition
from chronik.spark import stream_reader
from chronik.spark.errors import DataLossError
from chronik.spark.layout import Layout
from chronik.spark.log_facts import Topic
from chronik.spark.offsets import StreamOffset
from chronik.spark.options import read_options
from chronik.spark.stream_reader import StreamReader

ALL = ReadAllAvailable()


class Facts:
    """A cluster whose answers miss some topics; asked with patience, it shows all that it has."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)
        self.hidden: set[str] = set()
        self.ends = dict.fromkeys(names, 5)
        self.waited: list[str] = []

    def _shown(self, names: Iterable[str]) -> dict[str, Topic]:
        return {
            name: Topic(name=name, topic_id=name.encode().ljust(16), partitions=(0,))
            for name in names
            if name in self.names
        }

    def existing(self, names: Iterable[str]) -> dict[str, Topic]:
        return self._shown(name for name in names if name not in self.hidden)

    def matching(self, _: str) -> dict[str, Topic]:
        return self.existing(self.names)

    def existing_in_time(self, names: Iterable[str]) -> dict[str, Topic]:
        self.waited += names
        return self._shown(names)

    def topics(self, names: Iterable[str]) -> dict[str, Topic]:
        found = self._shown(names)
        assert set(found) == set(names)
        return found

    def earliest(self, places: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(places, 0)

    def latest(self, places: list[TopicPartition], **_: Any) -> dict[TopicPartition, int]:
        return {place: self.ends[place.topic] for place in places}


class FakeClock(SystemClock):
    """Time stands still until it is moved."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


def stream(facts: Facts, **options: str) -> StreamReader:
    given = {"bootstrap": "h:1", "startingOffsets": "earliest", **options}
    read = read_options(given, is_stream=True)
    reader = StreamReader(read, cast(Layout, None), clock=FakeClock())
    reader._facts = cast(Any, facts)
    return reader


def taken(offset: dict[str, Any]) -> set[str]:
    return set(StreamOffset.from_json(offset).topics)


PATTERN = {"subscribePattern": "[a-c]"}
NAMES = {"subscribe": "a,b"}


@pytest.mark.parametrize("options", [PATTERN, NAMES])
def test_a_topic_that_one_answer_misses_is_not_gone(options: dict[str, str]) -> None:
    facts = Facts("a", "b")
    reader = stream(facts, **options)
    offset = reader.latestOffset(reader.initialOffset(), ALL)
    facts.hidden = {"b"}
    facts.ends["b"] = 7
    offset = reader.latestOffset(offset, ALL)
    assert facts.waited == ["b"]
    assert StreamOffset.from_json(offset).ends()[TopicPartition("b", 0)] == 7


@pytest.mark.parametrize("options", [PATTERN, NAMES])
def test_a_topic_that_is_gone_is_a_loss(options: dict[str, str]) -> None:
    facts = Facts("a", "b")
    reader = stream(facts, **options)
    offset = reader.latestOffset(reader.initialOffset(), ALL)
    facts.names.remove("b")
    with pytest.raises(DataLossError, match=r"b: .* lost \(deleted\)"):
        reader.latestOffset(offset, ALL)


@pytest.mark.parametrize("options", [PATTERN, NAMES])
def test_a_topic_that_is_gone_is_waited_for_once(options: dict[str, str]) -> None:
    facts = Facts("a", "b")
    reader = stream(facts, failOnDataLoss="false", **options)
    offset = reader.latestOffset(reader.initialOffset(), ALL)
    facts.names.remove("b")
    for _ in range(3):
        facts.ends["a"] += 1
        offset = reader.latestOffset(offset, ALL)
        assert taken(offset) == {"a"}
    assert facts.waited == ["b"]
    facts.names.append("b")
    offset = reader.latestOffset(offset, ALL)
    assert taken(offset) == {"a", "b"}, "it was created again"
    facts.hidden = {"b"}
    assert taken(reader.latestOffset(offset, ALL)) == {"a", "b"}
    assert facts.waited == ["b", "b"], "it is known again, so it is waited for again"


@pytest.mark.parametrize("options", [PATTERN, NAMES])
def test_what_there_is_to_read_now_misses_no_topic(options: dict[str, str]) -> None:
    """With AvailableNow, the answer that misses one may be the one that says where to end."""
    facts = Facts("a", "b")
    reader = stream(facts, **options)
    start = reader.initialOffset()
    facts.hidden = {"b"}
    reader.prepareForTriggerAvailableNow()
    facts.hidden = set()
    offset = reader.latestOffset(start, ALL)
    assert taken(offset) == {"a", "b"}
    facts.ends["b"] += 1
    assert reader.latestOffset(offset, ALL) == offset, "what comes later is for another time"


def test_a_topic_that_no_longer_matches_is_not_waited_for() -> None:
    facts = Facts("a", "b")
    reader = stream(facts, **PATTERN)
    offset = reader.latestOffset(reader.initialOffset(), ALL)
    facts.hidden = {"b"}
    other = stream(facts, subscribePattern="a", failOnDataLoss="false")
    assert taken(other.latestOffset(offset, ALL)) == {"a"}
    assert not facts.waited


def test_a_stream_waits_for_its_first_topic() -> None:
    facts = Facts()
    reader = stream(facts, subscribePattern="[a-c]")
    offset = reader.initialOffset()
    assert reader.latestOffset(offset, ALL) == offset
    assert reader.partitions(offset, offset) == []
    facts.names.append("b")
    facts.ends["b"] = 5
    after = reader.latestOffset(offset, ALL)
    (part,) = reader.partitions(offset, after)
    assert part.offset_range.end_offset == 5


def test_a_trigger_waits_for_its_least() -> None:
    facts = Facts("a", "b")
    reader = stream(facts, subscribe="a,b", minOffsetsPerTrigger="6", maxTriggerDelay="5m")
    clock = cast(FakeClock, reader._clock)
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMinRows(6)
    first = reader.latestOffset(reader.initialOffset(), limit)
    facts.ends = {"a": 8, "b": 7}
    clock.now += 299
    assert reader.latestOffset(first, limit) == first, "5 records are too few"
    facts.ends["b"] = 8
    second = reader.latestOffset(first, limit)
    assert set(StreamOffset.from_json(second).ends().values()) == {8}
    facts.ends["a"] = 9
    assert reader.latestOffset(second, limit) == second
    assert reader.latestOffset(second, ALL) != second, "who asks for all gets all"
    clock.now += 300
    assert reader.latestOffset(second, limit) != second, "it has waited long enough"


def test_what_is_available_now_is_read_to_its_end_whatever_the_least() -> None:
    facts = Facts("a")
    given = {"minOffsetsPerTrigger": "4", "maxOffsetsPerTrigger": "4"}
    reader = stream(facts, subscribe="a", **given)
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(4)
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    first = reader.latestOffset(start, limit)
    second = reader.latestOffset(first, limit)
    assert StreamOffset.from_json(second).ends() == {TopicPartition("a", 0): 5}


def test_partitions_of_spark_have_no_more_than_their_most() -> None:
    facts = Facts("a", "b")
    facts.ends = {"a": 7, "b": 2}
    reader = stream(facts, subscribe="a,b", maxRecordsPerPartition="3")
    start = reader.initialOffset()
    parts = reader.partitions(start, reader.latestOffset(start, ALL))
    sizes = [each.offset_range.end_offset - each.offset_range.start_offset for each in parts]
    assert sizes == [2, 2, 3, 2]
    more = stream(facts, subscribe="a,b", maxRecordsPerPartition="4", minPartitions="5")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_reader, "bytes_per_offset", lambda *_: {})
        parts = more.partitions(start, more.latestOffset(start, ALL))
    assert len(parts) == 5
