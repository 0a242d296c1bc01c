"""The settings of groups and transactions: Kafka's names and defaults, and what they refuse."""

import pytest

from chronik.config.broker_settings import BROKER_SETTINGS
from chronik.config.coordinator_settings import COORDINATOR_SETTINGS
from chronik.config.definitions import InvalidSetting


def test_they_are_broker_settings() -> None:
    for definition in COORDINATOR_SETTINGS:
        assert BROKER_SETTINGS[definition.name] is definition


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("group.min.session.timeout.ms", "1000", 1000),
        ("group.consumer.heartbeat.interval.ms", "1", 1),
        ("group.initial.rebalance.delay.ms", "0", 0),
        ("group.consumer.assignors", "range", ("range",)),
        ("group.consumer.assignors", "range, uniform", ("range", "uniform")),
        ("group.coordinator.rebalance.protocols", "classic", ("classic",)),
        ("group.consumer.migration.policy", "disabled", "disabled"),
        ("group.consumer.migration.policy", "BIDIRECTIONAL", "bidirectional"),
        ("transaction.partition.verification.enable", "false", False),
    ],
)
def test_what_they_take(name: str, text: str, value: object) -> None:
    assert BROKER_SETTINGS[name].parse(text) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("group.consumer.heartbeat.interval.ms", "0"),
        ("group.consumer.regex.refresh.interval.ms", "9999"),
        ("group.consumer.assignors", ""),
        ("group.consumer.assignors", "org.example.Mine"),
        ("group.coordinator.rebalance.protocols", "classic,share"),
        ("group.consumer.migration.policy", "sideways"),
        ("group.max.size", "2147483648"),
        ("offsets.topic.num.partitions", "10001"),
        ("offsets.topic.replication.factor", "32768"),
        ("transaction.max.timeout.ms", "soon"),
    ],
)
def test_what_they_refuse(name: str, text: str) -> None:
    with pytest.raises(InvalidSetting, match=name):
        BROKER_SETTINGS[name].parse(text)


def test_two_phase_commit_cannot_be_switched_on() -> None:
    assert "transaction.two.phase.commit.enable" not in BROKER_SETTINGS
