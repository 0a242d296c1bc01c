"""Which value of a setting counts, and where it comes from.

A topic's setting is looked up in the topic, then under its broker synonyms: set for this broker,
set for all brokers, given at the start, built in. A broker's own setting takes the same way
without the topic. DescribeConfigs shows the whole list; everything else takes its first element.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

from chronik.config.broker_settings import BROKER_SETTINGS, UNIT_MS
from chronik.config.definitions import Definition, Value, render
from chronik.config.topic_settings import TOPIC_SETTINGS


class Source(IntEnum):
    """Kafka's numbers for where a value comes from, as DescribeConfigs v1+ reports it."""

    TOPIC = 1
    BROKER = 2
    CLUSTER = 3
    STATIC = 4
    DEFAULT = 5
    GROUP = 8


@dataclass(frozen=True, slots=True)
class Synonym:
    """One place that gives a setting a value."""

    name: str
    value: str | None
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """A broker's settings: given at the start, set for all brokers, set for this one."""

    static: Mapping[str, str]
    cluster: Mapping[str, str]
    broker: Mapping[str, str]

    def synonyms(self, definition: Definition) -> Iterator[Synonym]:
        """Where this broker setting has a value, the one that counts first."""
        name = definition.name
        for values, source in (
            (self.broker, Source.BROKER),
            (self.cluster, Source.CLUSTER),
            (self.static, Source.STATIC),
        ):
            if name in values:
                yield Synonym(name, values[name], source)
        if definition.default is not None:
            yield Synonym(name, render(definition.default), Source.DEFAULT)

    def get(self, name: str) -> Value:
        """The value of a broker setting that counts."""
        definition = BROKER_SETTINGS[name]
        first = next(self.synonyms(definition))
        assert first.value is not None
        return definition.parse(first.value)

    def is_set(self, name: str) -> bool:
        """Whether somebody has given a setting its value."""
        return any(name in values for values in (self.broker, self.cluster, self.static))

    def integer(self, name: str) -> int:
        value = self.get(name)
        assert isinstance(value, int)
        return value

    def flag(self, name: str) -> bool:
        value = self.get(name)
        assert isinstance(value, bool)
        return value


def topic_synonyms(
    definition: Definition, overrides: Mapping[str, str], broker: BrokerConfig
) -> list[Synonym]:
    """Where this topic setting has a value, the one that counts first."""
    found = []
    if definition.name in overrides:
        found.append(Synonym(definition.name, overrides[definition.name], Source.TOPIC))
    if not definition.synonyms:
        found.append(Synonym(definition.name, render(definition.default), Source.DEFAULT))
    given = [
        synonym
        for name in definition.synonyms
        for synonym in broker.synonyms(BROKER_SETTINGS[name])
    ]
    # A finer unit set at any level beats a coarser one; a built-in default comes last.
    return found + sorted(given, key=lambda synonym: synonym.source is Source.DEFAULT)


def topic_value(name: str, overrides: Mapping[str, str], broker: BrokerConfig) -> Value:
    """The value of a topic setting that counts."""
    definition = TOPIC_SETTINGS[name]
    first = topic_synonyms(definition, overrides, broker)[0]
    assert first.value is not None
    unit_ms = UNIT_MS.get(first.name)
    if unit_ms is not None and first.source is not Source.TOPIC:
        count = int(first.value)
        return count * unit_ms if count >= 0 else count
    return definition.parse(first.value)


def in_topic_terms(definition: Definition, synonym: Synonym) -> str | None:
    """A synonym's value in the topic setting's own unit."""
    unit_ms = UNIT_MS.get(synonym.name)
    if unit_ms is None or synonym.value is None or synonym.source is Source.TOPIC:
        return synonym.value
    count = int(synonym.value)
    return str(count * unit_ms if count >= 0 else count)
