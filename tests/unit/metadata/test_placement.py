"""Replicas on different brokers and racks, leaders even, however topics come."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from chronik.metadata.placement import place, rack_ring, turn_after
from chronik.metadata.records import BrokerRecord


def broker(node_id: int, rack: str | None = None) -> BrokerRecord:
    return BrokerRecord(
        node_id=node_id, epoch=1, incarnation_id="i", directory_id="d", host="h", port=1, rack=rack
    )


@st.composite
def rings(draw: st.DrawFn) -> list[BrokerRecord]:
    racks = draw(st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=7))
    return rack_ring([broker(node_id, rack) for node_id, rack in enumerate(racks, 1)])


def test_the_ring_alternates_between_racks() -> None:
    ring = rack_ring([broker(1, "a"), broker(2, "a"), broker(3, "b"), broker(4, "b")])
    assert [each.node_id for each in ring] == [1, 3, 2, 4]


@given(rings(), st.integers(0, 10**6), st.integers(1, 40), st.data())
def test_replicas_are_distinct_and_leaders_even(
    ring: list[BrokerRecord], first: int, count: int, data: st.DataObject
) -> None:
    factor = data.draw(st.integers(1, len(ring)))
    placed = place(ring, first, count, factor)
    assert all(len(set(replicas)) == len(replicas) == factor for replicas in placed)
    leaders = Counter({each.node_id: 0 for each in ring})
    leaders.update(replicas[0] for replicas in placed)
    assert max(leaders.values()) - min(leaders.values()) <= 1


@given(rings(), st.integers(0, 1000), st.data())
def test_replicas_are_in_as_many_racks_as_can_be(
    ring: list[BrokerRecord], first: int, data: st.DataObject
) -> None:
    factor = data.draw(st.integers(1, len(ring)))
    rack_of = {each.node_id: each.rack for each in ring}
    racks = len(set(rack_of.values()))
    for replicas in place(ring, first, 3, factor):
        assert len({rack_of[node_id] for node_id in replicas}) == min(factor, racks)


@given(
    st.integers(3, 5),
    st.integers(1, 3),
    st.lists(st.integers(1, 7), min_size=1, max_size=60),
)
def test_leaders_are_even_over_topics_of_any_size(
    size: int, factor: int, topics: list[int]
) -> None:
    ring = rack_ring([broker(node_id) for node_id in range(size)])
    leaders = Counter(dict.fromkeys(range(size), 0))
    replicas = Counter(dict.fromkeys(range(size), 0))
    placed = 0
    for count in topics:
        for each in place(ring, placed, count, factor):
            leaders[each[0]] += 1
            replicas.update(each)
        placed += count
    assert max(leaders.values()) - min(leaders.values()) <= 1
    # Followers go round in rounds of size x (size - 1) partitions; within one they may differ.
    assert max(replicas.values()) - min(replicas.values()) <= size


def test_a_dead_brokers_partitions_spread_over_the_others() -> None:
    ring = rack_ring([broker(node_id) for node_id in range(4)])
    seconds = Counter(each[1] for each in place(ring, 0, 120, 3) if each[0] == 0)
    assert seconds == {1: 10, 2: 10, 3: 10}


@given(rings(), st.integers(0, 1000), st.data())
def test_a_grown_topic_goes_on_after_its_last_leader(
    ring: list[BrokerRecord], placed: int, data: st.DataObject
) -> None:
    position = data.draw(st.integers(0, len(ring) - 1))
    turn = turn_after(ring, ring[position].node_id, placed)
    assert placed <= turn < placed + len(ring)
    assert place(ring, turn, 1, 1) == [(ring[(position + 1) % len(ring)].node_id,)]
    assert turn_after(ring, 99, placed) == placed
