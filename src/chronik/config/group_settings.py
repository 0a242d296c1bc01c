"""The settings of one consumer group (KIP-848), and the bounds that a broker sets for them.

What a group does not set is the broker's `group.consumer.*`, which lies within the same bounds. A
bound that nobody has set gives way to a default that somebody has: who wants heartbeats each second
says so once.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from chronik.config.broker_settings import BROKER_SETTINGS
from chronik.config.definitions import Definition, InvalidSetting, Kind
from chronik.config.effective import BrokerConfig, Source, Synonym

HEARTBEAT_INTERVAL: Final = "consumer.heartbeat.interval.ms"
SESSION_TIMEOUT: Final = "consumer.session.timeout.ms"
BROKER_PREFIX: Final = "group."

_DEFINITIONS: Final = (
    Definition(
        name=HEARTBEAT_INTERVAL,
        kind=Kind.INT,
        default=5_000,
        least=1,
        synonyms=(BROKER_PREFIX + HEARTBEAT_INTERVAL,),
        documentation="How often members of this group are told to send heartbeats, from "
        "group.consumer.min.heartbeat.interval.ms to group.consumer.max.heartbeat.interval.ms.",
    ),
    Definition(
        name=SESSION_TIMEOUT,
        kind=Kind.INT,
        default=45_000,
        least=1,
        synonyms=(BROKER_PREFIX + SESSION_TIMEOUT,),
        documentation="A member of this group that sent no heartbeat for this long is removed; "
        "from group.consumer.min.session.timeout.ms to group.consumer.max.session.timeout.ms, and "
        "more than consumer.heartbeat.interval.ms.",
    ),
)

GROUP_SETTINGS: Final[Mapping[str, Definition]] = {each.name: each for each in _DEFINITIONS}


def group_synonyms(
    definition: Definition, overrides: Mapping[str, str], broker: BrokerConfig
) -> list[Synonym]:
    """Where this setting of a group has a value, the one that counts first."""
    name = definition.name
    own = [Synonym(name, overrides[name], Source.GROUP)] if name in overrides else []
    return own + [
        synonym
        for each in definition.synonyms
        for synonym in broker.synonyms(BROKER_SETTINGS[each])
    ]


def group_value(name: str, overrides: Mapping[str, str], broker: BrokerConfig) -> int:
    """The value of a group's setting that counts."""
    definition = GROUP_SETTINGS[name]
    first = group_synonyms(definition, overrides, broker)[0]
    assert first.value is not None
    value = definition.parse(first.value)
    assert isinstance(value, int)
    return value


def check_group(changed: Iterable[str], overrides: Mapping[str, str], broker: BrokerConfig) -> None:
    """InvalidSetting if a group may not have these settings, of which some were changed."""
    for name in changed:
        if name in overrides:
            _check_bounds(name, name, int(overrides[name]), broker)
    _check_order("", overrides, broker)


def check_defaults(broker: BrokerConfig) -> None:
    """InvalidSetting if a broker's defaults for groups and its bounds contradict each other."""
    for name in GROUP_SETTINGS:
        default = BROKER_PREFIX + name
        _check_bounds(name, default, broker.integer(default), broker)
    _check_order(BROKER_PREFIX, {}, broker)


def _check_order(prefix: str, overrides: Mapping[str, str], broker: BrokerConfig) -> None:
    heartbeat_ms = group_value(HEARTBEAT_INTERVAL, overrides, broker)
    if group_value(SESSION_TIMEOUT, overrides, broker) <= heartbeat_ms:
        session, heartbeat = prefix + SESSION_TIMEOUT, prefix + HEARTBEAT_INTERVAL
        raise InvalidSetting(f"{session} must be greater than {heartbeat} ({heartbeat_ms})")


def _check_bounds(name: str, shown: str, value: int, broker: BrokerConfig) -> None:
    least, most = _bound(name, "min", broker), _bound(name, "max", broker)
    if value < least:
        raise InvalidSetting(f"{shown} must be at least {_bound_name(name, 'min')} ({least})")
    if value > most:
        raise InvalidSetting(f"{shown} must be at most {_bound_name(name, 'max')} ({most})")


def _bound(name: str, which: str, broker: BrokerConfig) -> int:
    bound_name, default = _bound_name(name, which), broker.integer(BROKER_PREFIX + name)
    bound = broker.integer(bound_name)
    if broker.is_set(bound_name):
        return bound
    return min(bound, default) if which == "min" else max(bound, default)


def _bound_name(name: str, which: str) -> str:
    return BROKER_PREFIX + name.replace("consumer.", f"consumer.{which}.")
