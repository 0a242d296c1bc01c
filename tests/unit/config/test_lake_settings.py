"""What a topic says about its lake table: which words are taken, and what they are by default."""

import pytest

from chronik.config.definitions import InvalidSetting
from chronik.config.effective import BrokerConfig, Source, topic_synonyms, topic_value
from chronik.config.topic_settings import TOPIC_SETTINGS

NOTHING = BrokerConfig(static={}, cluster={}, broker={})


@pytest.mark.parametrize(
    ("name", "default"),
    [
        ("chronik.table", "none"),
        ("chronik.decode", "raw"),
        ("chronik.schema", ""),
        ("chronik.partition_by", ()),
        ("chronik.on_incompatible", "dead_letter"),
        ("chronik.table_retention_ms", -1),
    ],
)
def test_a_topic_that_says_nothing_has_no_table(name: str, default: object) -> None:
    assert topic_value(name, {}, NOTHING) == default


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("chronik.table", "delta", "delta"),
        ("chronik.table", " iceberg ", "iceberg"),
        ("chronik.decode", "protobuf", "protobuf"),
        ("chronik.schema", "id bigint, at timestamp", "id bigint, at timestamp"),
        ("chronik.on_incompatible", "column", "column"),
        ("chronik.partition_by", "day(_timestamp), country", ("day(_timestamp)", "country")),
        ("chronik.partition_by", "", ()),
        ("chronik.partition_by", "hour( at )", ("hour( at )",)),
        ("chronik.table_retention_ms", "86400000", 86_400_000),
    ],
)
def test_what_is_taken(name: str, text: str, value: object) -> None:
    assert topic_value(name, {name: text}, NOTHING) == value


@pytest.mark.parametrize(
    ("name", "text", "allowed"),
    [
        ("chronik.table", "hudi", "one of none, delta, iceberg"),
        ("chronik.table", "", "one of none, delta, iceberg"),
        ("chronik.decode", "xml", "one of raw, string, json, avro, protobuf"),
        ("chronik.on_incompatible", "drop", "one of column, dead_letter"),
        ("chronik.partition_by", "week(at)", "a list of items like"),
        ("chronik.partition_by", "day(at", "a list of items like"),
        ("chronik.partition_by", "a b", "a list of items like"),
        ("chronik.table_retention_ms", "-2", "a whole number from -1"),
    ],
)
def test_what_is_refused_says_what_is_allowed(name: str, text: str, allowed: str) -> None:
    with pytest.raises(InvalidSetting, match=allowed) as error:
        TOPIC_SETTINGS[name].parse(text)
    assert name in str(error.value)


def test_no_broker_decides_for_its_topics() -> None:
    found = topic_synonyms(TOPIC_SETTINGS["chronik.table"], {"chronik.table": "delta"}, NOTHING)
    assert [(each.name, each.value, each.source) for each in found] == [
        ("chronik.table", "delta", Source.TOPIC),
        ("chronik.table", "none", Source.DEFAULT),
    ]
