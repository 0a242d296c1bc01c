"""The planner: few moves, even counts, racks kept apart."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronik.assignments import Racks, TooFewNodes, drained, filled, rebalanced
from chronik.model import TopicPartition

NO_RACKS = {1: None, 2: None, 3: None, 4: None}


def cluster(topic_count, partition_count, nodes, factor):
    places = [
        TopicPartition(f"t{t}", p) for t in range(topic_count) for p in range(partition_count)
    ]
    return {
        place: tuple(nodes[(n + k) % len(nodes)] for k in range(factor))
        for n, place in enumerate(places)
    }


def held(assignments):
    return Counter(each for replicas in assignments.values() for each in replicas)


def led(assignments):
    return Counter(replicas[0] for replicas in assignments.values())


def test_what_is_even_stays():
    assert rebalanced(cluster(5, 4, [1, 2, 3, 4], 3), NO_RACKS) == {}


def test_a_node_that_is_new_gets_its_share_and_nobody_else_changes_hands():
    current = cluster(20, 6, [1, 2, 3], 3)
    plan = rebalanced(current, NO_RACKS)
    after = current | plan
    assert max(held(after).values()) - min(held(after).values()) <= 1
    assert max(led(after).values()) - min(led(after).values()) <= 1
    moves = sum(len(set(after[place]) - set(current[place])) for place in current)
    assert moves == 120 * 3 // 4  # A quarter of all replicas, and each of them to the new node.
    assert {each for place in current for each in set(after[place]) - set(current[place])} == {4}


def test_a_node_that_is_new_gets_some_of_each_topic():
    current = cluster(10, 12, [1, 2, 3], 1)
    after = current | rebalanced(current, NO_RACKS)
    topics = Counter(place.topic for place, replicas in after.items() if 4 in replicas)
    assert len(topics) >= 8


def test_replicas_leave_a_rack_that_has_two():
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    current = {TopicPartition("t", n): (1, 2) for n in range(8)}
    after = current | rebalanced(current, racks)
    assert all({racks[each] for each in replicas} == {"a", "b"} for replicas in after.values())
    assert set(held(after).values()) == {4}


def test_leaders_are_evened_out_without_moving_data():
    current = {TopicPartition("t", n): (1, 2, 3) for n in range(9)}
    after = current | rebalanced(current, {1: None, 2: None, 3: None})
    assert set(led(after).values()) == {3}
    assert all(sorted(replicas) == [1, 2, 3] for replicas in after.values())


def test_a_node_is_drained_and_nothing_else_moves():
    current = cluster(6, 4, [1, 2, 3, 4], 2)
    plan = drained(current, NO_RACKS, 4)
    assert set(plan) == {place for place, replicas in current.items() if 4 in replicas}
    after = current | plan
    assert held(after)[4] == 0
    assert all(len(set(after[place]) & set(current[place])) == 1 for place in plan)
    assert max(held(after).values()) - min(held(after).values()) <= 2  # Greedy, and that is enough.


def test_who_stays_first_stays_so_when_another_goes():
    place = TopicPartition("t", 0)
    assert drained({place: (2, 4, 1)}, NO_RACKS, 4) == {place: (2, 1, 3)}


def test_too_few_nodes_are_named_unless_fewer_replicas_will_do():
    current = cluster(2, 1, [1, 2, 3], 3)
    with pytest.raises(TooFewNodes) as refused:
        drained(current, {1: None, 2: None, 3: None}, 3)
    assert list(refused.value.partitions) == sorted(current)
    plan = drained(current, {1: None, 2: None}, 3, may_shrink=set(current))
    assert all(sorted(replicas) == [1, 2] for replicas in plan.values())


def test_partitions_are_filled_up_on_other_racks_first():
    racks = {1: "a", 2: "a", 3: "b"}
    place = TopicPartition("__consumer_offsets", 0)
    assert filled({place: (1,)}, racks, 2) == {place: (1, 3)}
    assert filled({place: (1,)}, racks, 3) == {place: (1, 3, 2)}
    assert filled({place: (1, 2)}, racks, 2) == {}
    # A replica on a node that is away is one all the same.
    assert filled({place: (9, 1)}, racks, 3) == {place: (9, 1, 3)}


def test_who_is_away_keeps_what_it_has_and_gets_nothing():
    current = {TopicPartition("t", n): (9, 1) for n in range(4)}
    after = current | rebalanced(current, {1: None, 2: None})
    assert held(after) == {9: 4, 1: 2, 2: 2}
    assert drained({TopicPartition("t", 0): (9, 1)}, {1: None, 2: None}, 1) == {
        TopicPartition("t", 0): (9, 2)
    }


def test_who_is_gone_is_replaced():
    current = {TopicPartition("t", n): (9, 1) for n in range(4)}
    after = current | rebalanced(current, {1: None, 2: None}, {9})
    assert held(after) == {1: 4, 2: 4}
    assert led(after) == {1: 2, 2: 2}


@st.composite
def clusters(draw):
    count = draw(st.integers(1, 6))
    racks: Racks = {
        node_id: draw(st.sampled_from([None, "a", "b"])) for node_id in range(1, count + 1)
    }
    factor = draw(st.integers(1, count))
    replicas = st.permutations(sorted(racks)).map(lambda ids: tuple(ids[:factor]))
    found = draw(st.lists(replicas, min_size=1, max_size=30))
    return {TopicPartition("t", n): ids for n, ids in enumerate(found)}, racks


@settings(deadline=None)  # a busy machine is no error
@given(clusters())
def test_any_plan_keeps_factors_and_is_done_after_one(given_cluster):
    current, racks = given_cluster
    after = current | rebalanced(current, racks)
    for place, replicas in after.items():
        assert len(replicas) == len(set(replicas)) == len(current[place])
        before, now = ({racks[each] for each in ids} for ids in (current[place], replicas))
        assert len(now) >= len(before)
    assert max(held(after).values()) <= max(held(current).values()) or len(set(racks.values())) > 1
