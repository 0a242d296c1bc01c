"""Leaders that somebody asks for: the preferred one, or one that may have lost records."""

from typing import Any

import pytest

from chronik.config.effective import BrokerConfig
from chronik.metadata.commands import (
    Command,
    Elected,
    ElectLeaders,
    ElectUncleanLeaders,
    UncleanChoice,
)
from chronik.metadata.controller import decide
from chronik.metadata.elections import allows_unclean, greatest, imbalanced, leaderless
from chronik.metadata.image import Image, id_text
from chronik.metadata.records import (
    NO_LEADER,
    BrokerRecord,
    BrokerStatus,
    ConfigRecord,
    PartitionLeadersRecord,
    PartitionRecord,
    TopicRecord,
)
from chronik.protocol.errors import ErrorCode

CONFIG = BrokerConfig(static={}, cluster={}, broker={})
TOPIC_ID = id_text((1).to_bytes(16))
ONLINE, OFFLINE, MAINTENANCE = BrokerStatus


def broker(node_id: int, status: BrokerStatus) -> BrokerRecord:
    return BrokerRecord(
        node_id=node_id,
        epoch=node_id * 10,
        incarnation_id="i",
        directory_id="d",
        host="h",
        port=1,
        status=status,
    )


def partition(index: int, replicas: tuple[int, ...], **fields: Any) -> PartitionRecord:
    values: dict[str, Any] = {"isr": replicas, "leader": replicas[0], "leader_epoch": 5, **fields}
    return PartitionRecord(topic_id=TOPIC_ID, partition=index, replicas=replicas, **values)


def image_of(*partitions: PartitionRecord, **statuses: BrokerStatus) -> Image:
    brokers = [broker(each, statuses.get(f"b{each}", ONLINE)) for each in (1, 2, 3)]
    return Image().apply([*brokers, TopicRecord(name="t", topic_id=TOPIC_ID), *partitions])


def run(image: Image, command: Command) -> tuple[Image, list[Elected], int]:
    decision = decide(image, command, CONFIG, 100)
    return image.apply(decision.records), list(decision.response), len(decision.records)


def codes(elected: list[Elected]) -> list[tuple[int, int]]:
    return [(each.partition, each.error_code) for each in elected]


PREFERRED = partition(0, (1, 2, 3))
ELSEWHERE = partition(1, (1, 2, 3), leader=2)
OUT_OF_SYNC = partition(2, (1, 2, 3), isr=(2, 3), leader=2)
ALSO_ELSEWHERE = partition(3, (3, 2, 1), leader=1)


def test_named_partitions_are_led_by_their_first_replica_in_one_record() -> None:
    image = image_of(PREFERRED, ELSEWHERE, OUT_OF_SYNC, ALSO_ELSEWHERE)
    named = ((TOPIC_ID, (3, 2, 1, 0, 9, 1)),)
    after, elected, record_count = run(image, ElectLeaders(partitions=named))
    assert codes(elected) == [
        (3, ErrorCode.NONE),
        (2, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
        (1, ErrorCode.NONE),
        (0, ErrorCode.ELECTION_NOT_NEEDED),
        (9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert record_count == 1
    leaders = [(each.leader, each.leader_epoch) for each in after.topics["t"].partitions]
    assert leaders == [(1, 5), (1, 6), (2, 5), (3, 6)]
    assert after.topics["t"].partitions[1].isr == (1, 2, 3)


def test_everywhere_names_only_what_happened_or_could_not() -> None:
    image = image_of(PREFERRED, ELSEWHERE, OUT_OF_SYNC)
    _, elected, _ = run(image, ElectLeaders())
    assert codes(elected) == [(1, 0), (2, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)]


@pytest.mark.parametrize("status", [OFFLINE, MAINTENANCE])
def test_who_is_away_or_rests_is_not_elected(status: BrokerStatus) -> None:
    image = image_of(partition(0, (1, 2, 3), leader=2), b1=status)
    after, elected, _ = run(image, ElectLeaders())
    assert codes(elected) == [(0, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)]
    assert after == image


def test_a_topic_that_is_gone_is_unknown() -> None:
    other = id_text((9).to_bytes(16))
    _, elected, _ = run(image_of(PREFERRED), ElectLeaders(partitions=((other, (0,)),)))
    assert [each.error_code for each in elected] == [ErrorCode.UNKNOWN_TOPIC_ID]


def test_the_controller_finds_what_to_move_back_and_not_too_much() -> None:
    image = image_of(PREFERRED, ELSEWHERE, OUT_OF_SYNC, ALSO_ELSEWHERE)
    assert imbalanced(image, 10) == ((TOPIC_ID, (1, 3)),)
    assert imbalanced(image, 1) == ((TOPIC_ID, (1,)),)
    after, _, _ = run(image, ElectLeaders(partitions=imbalanced(image, 10)))
    assert imbalanced(after, 10) == ()


# Unclean elections.

LOST = partition(0, (1, 2, 3), isr=(1,), leader=NO_LEADER)


def choice(leader: int, leader_epoch: int = 5) -> ElectUncleanLeaders:
    chosen = UncleanChoice(topic_id=TOPIC_ID, partition=0, leader=leader, leader_epoch=leader_epoch)
    return ElectUncleanLeaders(choices=(chosen,))


def test_the_one_that_was_chosen_leads_alone_in_sync() -> None:
    image = image_of(LOST, b1=OFFLINE)
    after, elected, _ = run(image, choice(3))
    now = after.topics["t"].partitions[0]
    assert codes(elected) == [(0, ErrorCode.NONE)]
    assert (now.leader, now.isr, now.elr, now.leader_epoch) == (3, (3,), (), 6)


@pytest.mark.parametrize(
    ("image", "command", "code"),
    [
        (image_of(PREFERRED), choice(2), ErrorCode.ELECTION_NOT_NEEDED),
        (image_of(LOST, b1=OFFLINE), choice(3, 4), ErrorCode.FENCED_LEADER_EPOCH),
        (image_of(LOST, b1=OFFLINE), choice(1), ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE),
        (image_of(LOST, b1=OFFLINE), choice(7), ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE),
        # Somebody who has everything is online after all.
        (image_of(LOST), choice(3), ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE),
    ],
)
def test_an_unclean_election_is_refused(
    image: Image, command: ElectUncleanLeaders, code: ErrorCode
) -> None:
    after, elected, _ = run(image, command)
    assert (codes(elected), after) == ([(0, code)], image)


def test_an_unclean_election_ends_a_move_that_it_completes() -> None:
    moving = partition(
        0, (2, 1), isr=(), leader=NO_LEADER, adding_replicas=(2,), removing_replicas=(1,)
    )
    after, elected, _ = run(image_of(moving, b1=OFFLINE), choice(2))
    assert codes(elected) == [(0, ErrorCode.NONE)]
    (now,) = after.partitions()
    assert (now.replicas, now.isr, now.leader) == ((2,), (2,), 2)
    assert not now.is_moving


def test_the_last_epoch_counts_before_the_end_offset() -> None:
    assert greatest(LOST, [(2, (4, 900)), (3, (5, 100))]) == 3
    assert greatest(LOST, [(2, (5, 101)), (3, (5, 100))]) == 2
    assert greatest(LOST, [(3, (5, 100)), (2, (5, 100))]) == 2
    assert greatest(LOST, []) is None


def test_only_partitions_without_a_leader_and_with_somebody_online_are_looked_for() -> None:
    nowhere = partition(1, (1,), leader=NO_LEADER)
    image = image_of(LOST, nowhere, partition(2, (2, 3)), b1=OFFLINE)
    found = leaderless(image, lambda topic: True, 10)
    assert [each.partition for _, each in found] == [0]
    assert leaderless(image, lambda topic: False, 10) == []


def test_a_topic_decides_before_its_broker_does() -> None:
    name = "unclean.leader.election.enable"
    image = image_of(LOST)
    topic = image.topics["t"]
    assert not allows_unclean(image, CONFIG)(topic)
    everywhere = BrokerConfig(static={name: "true"}, cluster={}, broker={})
    assert allows_unclean(image, everywhere)(topic)
    off = ConfigRecord(resource="topic", resource_name="t", name=name, value="false")
    assert not allows_unclean(image.apply([off]), everywhere)(topic)


def test_nine_thousand_leaders_are_one_small_record() -> None:
    many = [partition(index, (1, 2, 3), leader=2) for index in range(9_000)]
    decision = decide(image_of(*many), ElectLeaders(), CONFIG, 100)
    (record,) = decision.records
    assert isinstance(record, PartitionLeadersRecord)
    assert len(record.leaders[0]) == 9_000
