"""Who is let in, bound, given a vote, removed: decisions about members."""

import pytest

from chronik.metadata import membership as decisions
from chronik.metadata.image import Image, id_text
from chronik.metadata.records import BrokerRecord, PartitionRecord, TopicRecord
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.raft.members import why_not
from chronik.raft.types import Membership

NOTHING = Image()
ONE = Membership(frozenset([1]), directories={1: "d1"})
THREE = Membership(frozenset([1, 2, 3]), directories={1: "d1", 2: "d2", 3: "d3"})
UNBOUND = Membership(frozenset([1, 2, 3]))


def broker(node_id: int, directory_id: str) -> Image:
    record = BrokerRecord(
        node_id=node_id,
        epoch=1,
        incarnation_id="i",
        directory_id=directory_id,
        host="h",
        port=1,
    )
    return Image().apply([record])


def refusal(*args: object, by: object = decisions.admit) -> KafkaError:
    with pytest.raises(KafkaError) as error:
        by(*args)  # type: ignore[operator]
    return error.value


def test_a_node_is_let_in_as_a_learner_under_an_id_of_its_own() -> None:
    node_id, members = decisions.admit(ONE, NOTHING, None, "new")
    assert (node_id, members.voters, members.learners) == (2, {1}, {2})
    assert members.directories == {1: "d1", 2: "new"}
    assert why_not(ONE, members) is None
    assert decisions.admit(ONE, NOTHING, 7, "new")[0] == 7


def test_an_id_that_only_a_list_of_replicas_names_is_not_given_again() -> None:
    topic_id = id_text(bytes(16))
    partition = PartitionRecord(topic_id=topic_id, partition=0, replicas=(9,), isr=(9,), leader=-1)
    image = Image().apply([TopicRecord(name="t", topic_id=topic_id), partition])
    assert decisions.admit(ONE, image, None, "new")[0] == 10


def test_asked_again_by_the_same_directory_nothing_changes() -> None:
    _, members = decisions.admit(ONE, NOTHING, None, "new")
    for node_id in (None, 2):
        assert decisions.admit(members, NOTHING, node_id, "new") == (2, members)
    assert "that of node 2, not of node 3" in str(refusal(members, NOTHING, 3, "new").message)


def test_another_directory_under_a_members_id_is_refused() -> None:
    error = refusal(THREE, NOTHING, 2, "wiped")
    assert error.code is ErrorCode.INVALID_REQUEST
    assert "replace-node 2" in str(error.message)
    # Nor one that is registered still, though it votes no more.
    assert "data directory d4" in str(refusal(THREE, broker(4, "d4"), 4, "other").message)
    assert decisions.admit(THREE, broker(4, "d4"), 4, "d4")[0] == 4


def test_a_founder_that_nobody_has_met_is_bound() -> None:
    node_id, members = decisions.admit(UNBOUND, NOTHING, 3, "d3")
    assert (node_id, members.voters, members.learners) == (3, {1, 2, 3}, frozenset())
    assert members.directories == {3: "d3"}
    assert why_not(UNBOUND, members) is None


def test_members_are_bound_once() -> None:
    members = decisions.bind(UNBOUND, {1: "d1", 2: "d2", 9: "d9"})
    assert members.directories == {1: "d1", 2: "d2"}
    assert decisions.bind(members, {1: "other"}) is members
    assert why_not(UNBOUND, members) is None


def test_one_learner_at_a_time_gets_a_vote() -> None:
    members = Membership(frozenset([1]), frozenset([2, 3]), {1: "d1", 2: "d2", 3: "d3"})
    assert decisions.promote(members, []) is members
    first = decisions.promote(members, [3, 2])
    assert (first.voters, first.learners) == ({1, 2}, {3})
    second = decisions.promote(first, [3])
    assert (second.voters, second.learners) == ({1, 2, 3}, frozenset())
    assert why_not(members, first) is why_not(first, second) is None


def test_a_removed_node_takes_its_binding_along() -> None:
    members = decisions.remove(THREE, 2, [1, 3])
    assert (members.voters, members.directories) == ({1, 3}, {1: "d1", 3: "d3"})
    assert why_not(THREE, members) is None
    assert decisions.admit(members, NOTHING, 2, "new")[1].learners == {2}


def test_only_a_member_registers_and_with_its_own_directory() -> None:
    decisions.check_member(THREE, 2, "d2")
    decisions.check_member(UNBOUND, 2, "whichever")
    without = decisions.remove(THREE, 2, [1, 3])
    anew = decisions.admit(without, NOTHING, 2, "new")[1]
    for members in (without, anew):  # A request of the old one, on the way for a long time.
        assert "is no member" in str(refusal(members, 2, "d2", by=decisions.check_member).message)
    decisions.check_member(anew, 2, "new")


@pytest.mark.parametrize(
    ("members", "node_id", "heard", "words"),
    [
        (ONE, 1, [1], "the only voter"),
        (THREE, 2, [1], "start node 3 first"),
        (THREE, 9, [1, 2, 3], "no member"),
    ],
)
def test_a_removal_that_leaves_nobody_to_decide_is_refused(
    members: Membership, node_id: int, heard: list[int], words: str
) -> None:
    assert words in str(refusal(members, node_id, heard, by=decisions.remove).message)


def test_a_learner_can_always_be_removed() -> None:
    _, members = decisions.admit(THREE, NOTHING, 4, "d4")
    assert decisions.remove(members, 4, [1]) == THREE


def test_the_longest_log_leads_next() -> None:
    assert decisions.successor(THREE, 1, {2: 5, 3: 9, 4: 20}) == 3
    assert "nobody to hand over to" in str(
        refusal(THREE, 1, {4: 20}, by=decisions.successor).message
    )
