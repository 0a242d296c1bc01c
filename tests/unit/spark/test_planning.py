"""Planning: limits are kept, nobody starves, splits lose nothing, losses are named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronik.model import TopicPartition
from chronik.spark.errors import SourceError
from chronik.spark.offset_range import OffsetRange
from chronik.spark.offsets import StreamOffset, TopicEnds, ranges_between
from chronik.spark.planning import (
    FoundTopic,
    LogSpan,
    admit,
    capped,
    cut,
    offset_after,
    parts_of,
    reconcile,
)

ID = bytes(range(16))
OTHER_ID = bytes(range(1, 17))
BACKLOGS = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from("ab"), st.integers(0, 20)),
    st.integers(0, 1_000_000),
    max_size=12,
)


def at(ends: dict[int, int], topic_id: bytes = ID, **rest: object) -> StreamOffset:
    topics = {"a": TopicEnds(topic_id=topic_id, ends=ends)}
    return StreamOffset(topics=topics, **rest)  # type: ignore[arg-type]


def found(spans: dict[int, tuple[int, int]], topic_id: bytes = ID) -> dict[str, FoundTopic]:
    made = {p: LogSpan(log_start_offset=s, end_offset=e) for p, (s, e) in spans.items()}
    return {"a": FoundTopic(topic_id=topic_id, spans=made)}


# Admission


@given(backlog=BACKLOGS, limit=st.integers(1, 2_000_000))
def test_a_limit_in_records_is_kept_and_there_is_progress(backlog, limit) -> None:
    taken = admit(backlog, limit)
    assert sum(taken.values()) <= limit
    assert all(0 < count <= backlog[place] for place, count in taken.items())
    assert bool(taken) == any(backlog.values())
    if sum(backlog.values()) <= limit:
        assert taken == {place: count for place, count in backlog.items() if count}
    waiting = [place for place, count in backlog.items() if count]
    if limit >= len(waiting):
        assert set(taken) == set(waiting)  # nobody starves


@given(
    backlog=BACKLOGS,
    limit=st.integers(1, 10_000_000),
    weight=st.floats(0.5, 100_000),
)
def test_a_limit_in_bytes_is_kept_but_for_one_record(backlog, limit, weight) -> None:
    taken = admit(backlog, limit, dict.fromkeys(backlog, weight))
    assert sum(taken.values()) * weight <= max(limit, weight) + 1e-6 * limit
    assert bool(taken) == any(backlog.values())


def test_heavy_records_take_more_of_a_byte_limit() -> None:
    light, heavy = TopicPartition("a", 0), TopicPartition("a", 1)
    taken = admit({light: 1000, heavy: 1000}, 110_000, {light: 100.0, heavy: 1000.0})
    assert taken == {light: 100, heavy: 100}  # in proportion to the backlog, so they end together


def test_the_longest_backlog_is_served_first_if_the_limit_is_tiny() -> None:
    places = [TopicPartition("a", number) for number in range(5)]
    taken = admit(dict(zip(places, (3, 9, 1, 8, 2), strict=True)), 2)
    assert taken == {places[1]: 1, places[3]: 1}


# Splits


@given(
    spans=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 1000)), max_size=6),
    parts=st.integers(1, 40),
    weights=st.lists(st.floats(0.1, 1000), min_size=6, max_size=6),
)
def test_a_split_covers_every_offset_once(spans, parts, weights) -> None:
    stretches = [
        OffsetRange("a", ID, number, start, start + count)
        for number, (start, count) in enumerate(spans)
    ]
    by_place = {TopicPartition("a", number): weights[number] for number in range(len(spans))}
    pieces = cut(stretches, parts_of(stretches, parts, by_place))
    offsets = [(c.place, o) for c in pieces for o in range(c.start_offset, c.end_offset)]
    wanted = [(s.place, o) for s in stretches for o in range(s.start_offset, s.end_offset)]
    assert offsets == wanted
    assert all(part.end_offset > part.start_offset for part in pieces)
    assert len(pieces) >= min(parts, len(wanted))


def test_the_heavy_partition_is_cut_and_the_light_one_stays_whole() -> None:
    def stretch(number: int) -> OffsetRange:
        return OffsetRange("a", ID, number, 0, 1000)

    weights = {TopicPartition("a", 0): 10.0, TopicPartition("a", 1): 1.0}
    ranges = [stretch(0), stretch(1)]
    pieces = cut(ranges, parts_of(ranges, 6, weights))
    assert [part.partition for part in pieces] == [0, 0, 0, 0, 0, 1]


# Reconciling


def test_a_query_goes_on_where_it_stands() -> None:
    result = reconcile(at({0: 5, 1: 7}), found({0: (0, 9), 1: (7, 7)}))
    assert not result.losses
    assert not result.begins
    end = offset_after(result, {TopicPartition("a", 0): 3})
    assert end == at({0: 8, 1: 7})
    (stretch,) = ranges_between(at({0: 5, 1: 7}), end)
    assert (stretch.start_offset, stretch.end_offset) == (5, 8)


def test_a_new_partition_begins_at_its_log_start_and_the_offset_carries_it() -> None:
    start = at({0: 5})
    end = offset_after(
        reconcile(start, found({0: (0, 5), 1: (40, 50)})), {TopicPartition("a", 1): 10}
    )
    assert end.begins == {TopicPartition("a", 1): 40}
    (stretch,) = ranges_between(start, StreamOffset.from_json(end.to_json()))
    assert (stretch.place.partition, stretch.start_offset, stretch.end_offset) == (1, 40, 50)


def test_the_first_batch_carries_its_resolved_begins() -> None:
    # After a crash of batch 0, Spark asks for the initial offset again, and `latest` has moved.
    first = at({0: 5}, is_initial=True)
    end = offset_after(reconcile(first, found({0: (0, 9)})), {TopicPartition("a", 0): 4})
    moved = at({0: 9}, is_initial=True)
    (stretch,) = ranges_between(moved, StreamOffset.from_json(end.to_json()))
    assert (stretch.start_offset, stretch.end_offset) == (5, 9)


def test_a_partition_that_is_not_shown_keeps_its_place() -> None:
    hidden = reconcile(at({0: 5, 1: 7}), found({0: (0, 20)}))
    assert not hidden.losses
    after = offset_after(hidden, {TopicPartition("a", 0): 15})
    assert after.ends() == {TopicPartition("a", 0): 20, TopicPartition("a", 1): 7}
    shown = reconcile(after, found({0: (0, 20), 1: (0, 9)}))
    assert shown.begins == {}
    assert [(each.start_offset, each.end_offset) for each in shown.ranges] == [(20, 20), (7, 9)]


def test_retention_is_a_loss_with_its_count() -> None:
    result = reconcile(at({0: 5}), found({0: (8, 20)}))
    (loss,) = result.losses
    assert loss.count == 3
    assert str(loss).startswith("a-0: 3 records lost (retention): the log now starts at 8")
    assert result.begins == {TopicPartition("a", 0): 8}


def test_a_log_that_ends_before_the_query_stands_is_a_loss() -> None:
    result = reconcile(at({0: 25}), found({0: (0, 20)}))
    assert "(truncated): the log ends at 20" in str(result.losses[0])
    assert result.begins == {TopicPartition("a", 0): 20}


def test_a_recreated_topic_is_a_loss_and_is_read_from_its_start() -> None:
    result = reconcile(at({0: 5}), found({0: (0, 20)}, OTHER_ID))
    (loss,) = result.losses
    assert "(recreated): the topic was deleted and created again" in str(loss)
    assert result.begins == {TopicPartition("a", 0): 0}
    (stretch,) = ranges_between(at({0: 5}), offset_after(result, {TopicPartition("a", 0): 20}))
    assert (stretch.topic_id, stretch.start_offset) == (OTHER_ID, 0)


def test_brokers_without_topic_ids_report_no_recreation() -> None:
    assert not reconcile(at({0: 5}, bytes(16)), found({0: (0, 20)})).losses
    assert not reconcile(at({0: 5}), found({0: (0, 20)}, bytes(16))).losses


def test_a_topic_that_is_gone_is_a_loss() -> None:
    (loss,) = reconcile(at({0: 5}), {}).losses
    assert str(loss).startswith("a: an unknown number of records lost")


def test_what_came_after_the_target_is_not_seen() -> None:
    target = found({0: (0, 10)})
    later = {**found({0: (0, 30), 1: (0, 5)}), "b": found({0: (0, 1)})["a"]}
    assert capped(later, target) == target
    assert capped(found({0: (0, 30)}, OTHER_ID), target) == {}


# The offset as text


@given(
    ends=st.dictionaries(st.integers(0, 300), st.integers(0, 2**62), max_size=9),
    name=st.text(min_size=1),
    is_initial=st.booleans(),
)
def test_an_offset_survives_its_text(ends, name, is_initial) -> None:
    offset = StreamOffset(
        topics={name: TopicEnds(topic_id=ID, ends=ends)},
        begins={TopicPartition(name, partition): 0 for partition in ends},
        parts={TopicPartition(name, partition): 3 for partition in ends},
        is_initial=is_initial,
    )
    assert StreamOffset.from_json(offset.to_json()) == offset


def test_equal_offsets_have_equal_text_whatever_their_order() -> None:
    assert list(at({11: 1, 2: 3}).to_json()["topics"]["a"]["ends"]) == ["2", "11"]


def test_another_version_is_refused() -> None:
    with pytest.raises(SourceError, match="new checkpoint"):
        StreamOffset.from_json({"version": 9, "topics": {}})


def test_an_offset_without_a_begin_is_refused() -> None:
    with pytest.raises(SourceError, match="no begin of a-1"):
        ranges_between(at({0: 1}), at({0: 1, 1: 5}))
