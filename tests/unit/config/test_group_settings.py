"""The settings of a group: where they come from, and the bounds that a broker sets for them."""

import pytest

from chronik.config.definitions import InvalidSetting
from chronik.config.effective import BrokerConfig, Source
from chronik.config.group_settings import (
    GROUP_SETTINGS,
    HEARTBEAT_INTERVAL,
    SESSION_TIMEOUT,
    check_defaults,
    check_group,
    group_synonyms,
    group_value,
)
from chronik.config.settings import resolve


def config(**given: int) -> BrokerConfig:
    """A broker started with these group.consumer.* settings."""
    static = {f"group.consumer.{name.replace('_', '.')}": str(each) for name, each in given.items()}
    return BrokerConfig(static=static, cluster={}, broker={})


def test_a_group_has_what_was_set_for_it_or_what_the_broker_says() -> None:
    broker = config(session_timeout_ms=50_000)
    assert group_value(SESSION_TIMEOUT, {}, broker) == 50_000
    assert group_value(SESSION_TIMEOUT, {SESSION_TIMEOUT: "46000"}, broker) == 46_000
    assert group_value(HEARTBEAT_INTERVAL, {SESSION_TIMEOUT: "46000"}, broker) == 5_000
    definition = GROUP_SETTINGS[SESSION_TIMEOUT]
    found = group_synonyms(definition, {SESSION_TIMEOUT: "46000"}, broker)
    assert [(each.value, each.source) for each in found] == [
        ("46000", Source.GROUP),
        ("50000", Source.STATIC),
        ("45000", Source.DEFAULT),
    ]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"min_session_timeout_ms": 50_000},
            "group.consumer.session.timeout.ms must be at least "
            "group.consumer.min.session.timeout.ms (50000)",
        ),
        (
            {"max_heartbeat_interval_ms": 4_999},
            "group.consumer.heartbeat.interval.ms must be at most "
            "group.consumer.max.heartbeat.interval.ms (4999)",
        ),
        (
            {"min_heartbeat_interval_ms": 6_000, "max_heartbeat_interval_ms": 5_000},
            "group.consumer.heartbeat.interval.ms must be at least "
            "group.consumer.min.heartbeat.interval.ms (6000)",
        ),
        (
            {"session_timeout_ms": 5_000},
            "group.consumer.session.timeout.ms must be greater than "
            "group.consumer.heartbeat.interval.ms (5000)",
        ),
    ],
)
def test_defaults_and_bounds_that_contradict_each_other_end_the_start(
    given: dict[str, int], says: str
) -> None:
    sets = [f"{name}={value}" for name, value in config(**given).static.items()]
    with pytest.raises(InvalidSetting) as refused:
        resolve({}, {}, sets=sets)
    assert str(refused.value) == says


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"heartbeat_interval_ms": 100},
        {"heartbeat_interval_ms": 20_000},
        {"session_timeout_ms": 6_000},
        {"session_timeout_ms": 90_000},
    ],
)
def test_a_bound_that_is_not_set_gives_way_to_a_default_that_is(given: dict[str, int]) -> None:
    check_defaults(config(**given))


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ({SESSION_TIMEOUT: "44999"}, "at least group.consumer.min.session.timeout.ms"),
        ({SESSION_TIMEOUT: "60001"}, "at most group.consumer.max.session.timeout.ms"),
        ({HEARTBEAT_INTERVAL: "4999"}, "at least group.consumer.min.heartbeat.interval.ms"),
        ({HEARTBEAT_INTERVAL: "15001"}, "at most group.consumer.max.heartbeat.interval.ms"),
    ],
)
def test_a_group_stays_within_the_bounds(overrides: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidSetting, match=says):
        check_group(overrides, overrides, config())


def test_a_session_lasts_longer_than_a_heartbeat() -> None:
    broker = config(min_session_timeout_ms=1_000)
    overrides = {SESSION_TIMEOUT: "5000"}
    with pytest.raises(InvalidSetting, match="must be greater than consumer"):
        check_group(overrides, overrides, broker)
    check_group([], {SESSION_TIMEOUT: "5001"}, broker)
