"""Every setting as option, variable or TOML key, in that order; a wrong one is named."""

from pathlib import Path

import pytest

from chronik.config.broker_settings import BROKER_SETTINGS
from chronik.config.definitions import InvalidSetting
from chronik.config.effective import BrokerConfig, Source, topic_synonyms, topic_value
from chronik.config.settings import Settings, resolve
from chronik.config.topic_settings import TOPIC_SETTINGS

NOTHING = BrokerConfig(static={}, cluster={}, broker={})


def test_nothing_given_is_the_defaults() -> None:
    assert resolve({}, {}) == Settings()


def test_an_option_beats_a_variable_beats_the_file(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('port = 1\nnode_id = 2\nlog_level = "debug"\n[kafka]\n"num.partitions" = 3\n')
    variables = {"CHRONIK_PORT": "11", "CHRONIK_NODE_ID": "12"}
    settings = resolve({"port": 21}, variables, file=str(file))
    assert (settings.port, settings.node_id, settings.log_level) == (21, 12, "debug")
    assert settings.kafka == {"num.partitions": "3"}


def test_kafkas_settings_take_the_same_order(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('[kafka]\n"num.partitions" = 3\n"log.retention.ms" = 5\n"log.roll.ms" = 7\n')
    variables = {"CHRONIK_KAFKA_NUM_PARTITIONS": "4", "CHRONIK_KAFKA_LOG_RETENTION_MS": "6"}
    settings = resolve({}, variables, file=str(file), sets=["num.partitions=9"])
    assert settings.kafka == {"num.partitions": "9", "log.retention.ms": "6", "log.roll.ms": "7"}


@pytest.mark.parametrize(
    ("options", "variables", "sets", "words"),
    [
        ({"port": 70000}, {}, [], ["--port", "70000", "65535"]),
        ({"port": "x"}, {}, [], ["--port", "'x'"]),
        ({}, {"CHRONIK_NODE_ID": "-4"}, [], ["CHRONIK_NODE_ID", "'-4'"]),
        ({"advertise": "nowhere"}, {}, [], ["--advertise", "HOST:PORT"]),
        ({"durability": "maybe"}, {}, [], ["--durability", "fsync or replicated"]),
        ({}, {}, ["num.partitions"], ["--set", "NAME=VALUE"]),
        ({}, {}, ["num.partitions=none"], ["--set", "num.partitions", "whole number"]),
        ({}, {}, ["no.such.setting=1"], ["--set", "no.such.setting"]),
        ({}, {"CHRONIK_KAFKA_NUM_PARTITIONS": "0"}, [], ["NUM_PARTITIONS", "from 1"]),
        ({}, {"CHRONIK_KAFKA_NUM_PARTITONS": "4"}, [], ["CHRONIK_KAFKA_NUM_PARTITONS", "unknown"]),
        ({}, {"CHRONIK_PROT": "1"}, [], ["CHRONIK_PROT:", "unknown", "CHRONIK_PORT"]),
        ({}, {"CHRONIK_": "1"}, [], ["CHRONIK_:", "unknown"]),
        ({}, {}, ["log.retention.hours=-2"], ["from -1 to 2562047788015"]),
    ],
)
def test_a_wrong_setting_is_named_with_what_is_allowed(
    options: dict[str, object], variables: dict[str, str], sets: list[str], words: list[str]
) -> None:
    with pytest.raises(InvalidSetting) as error:
        resolve(options, variables, sets=sets)
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


def test_variables_that_are_no_settings_are_let_through() -> None:
    variables = {
        "CHRONIK_CONFIG": "f",
        "CHRONIK_BOOTSTRAP": "h:1",
        "CHRONIK_TEST_ANYTHING": "1",
        "CHRONIK_SIM_SEEDS": "1",
        "CHRONIK_KILLS": "1",
        "CHRONIK_SEED": "1",
        "OTHER": "1",
    }
    assert resolve({}, variables) == Settings()


def test_bounds_are_printed_as_they_are() -> None:
    assert TOPIC_SETTINGS["min.cleanable.dirty.ratio"].allowed() == "a number from 0 to 1"
    for definition in (*TOPIC_SETTINGS.values(), *BROKER_SETTINGS.values()):
        assert "e+" not in definition.allowed()


@pytest.mark.parametrize(
    ("content", "word"),
    [("port = ", "not TOML"), ("prot = 1", "prot"), ("[kafka]\nnum.partitions = 1", "quote")],
)
def test_a_wrong_file_is_named(tmp_path: Path, content: str, word: str) -> None:
    file = tmp_path / "node.toml"
    file.write_text(content)
    with pytest.raises(InvalidSetting, match=word):
        resolve({}, {}, file=str(file))


def test_a_missing_file_is_named() -> None:
    with pytest.raises(InvalidSetting, match=r"/no/such/file\.toml"):
        resolve({}, {}, file="/no/such/file.toml")


def test_every_default_is_a_value_that_the_setting_takes() -> None:
    for name in TOPIC_SETTINGS:
        topic_value(name, {}, NOTHING)
    for name, definition in BROKER_SETTINGS.items():
        if definition.default is not None:
            NOTHING.get(name)


def test_a_topic_setting_beats_its_broker_synonyms() -> None:
    config = BrokerConfig(
        static={"log.retention.hours": "1"},
        cluster={"log.retention.ms": "2"},
        broker={"log.retention.ms": "3"},
    )
    definition = TOPIC_SETTINGS["retention.ms"]
    found = topic_synonyms(definition, {"retention.ms": "4"}, config)
    assert [(each.name, each.value, each.source) for each in found] == [
        ("retention.ms", "4", Source.TOPIC),
        ("log.retention.ms", "3", Source.BROKER),
        ("log.retention.ms", "2", Source.CLUSTER),
        ("log.retention.hours", "1", Source.STATIC),
        ("log.retention.hours", "168", Source.DEFAULT),
    ]


@pytest.mark.parametrize(
    ("static", "expected"),
    [
        ({}, 604_800_000),
        ({"log.retention.hours": "2"}, 7_200_000),
        ({"log.retention.minutes": "3", "log.retention.hours": "2"}, 180_000),
        ({"log.retention.ms": "5", "log.retention.hours": "2"}, 5),
        ({"log.retention.hours": "-1"}, -1),
    ],
)
def test_a_finer_unit_beats_a_coarser_one(static: dict[str, str], expected: int) -> None:
    config = BrokerConfig(static=static, cluster={}, broker={})
    assert topic_value("retention.ms", {}, config) == expected


PEER = """
[[peers]]
id = 1
kafka = {kafka}
internal = "h:2"
rack = {rack}
"""


def test_both_addresses_stand_side_by_side_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text(
        """
node_id = 2
data_dir = "/data"

[bind]
kafka = "0.0.0.0:9092"
internal = "10.0.0.2:9192"

[advertise]
kafka = "kafka-2.example.com:9092"
internal = "node-2.internal:9192"

[[peers]]
id = 1
kafka = "kafka-1.example.com:9092"
internal = "node-1.internal:9192"
rack = "a"

[[peers]]
id = 2
kafka = "kafka-2.example.com:9092"
internal = "node-2.internal:9192"
rack = "b"
"""
    )
    settings = resolve({}, {}, file=str(file))
    assert (settings.host, settings.port, settings.internal) == ("0.0.0.0", 9092, "10.0.0.2:9192")
    assert settings.advertise == "kafka-2.example.com:9092"
    assert settings.advertise_internal == "node-2.internal:9192"
    assert [peer.internal for peer in settings.peers] == [
        ("node-1.internal", 9192),
        ("node-2.internal", 9192),
    ]
    assert settings.rack == "b"
    assert resolve({"port": 1}, {}, file=str(file)).port == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (PEER.format(kafka='"h:1"', rack="1"), 'rack of peer 1 is no text: write rack = "1"'),
        (PEER.format(kafka='"h:1"', rack="true"), "rack of peer 1 is no text"),
        (PEER.format(kafka='":1"', rack='"a"'), "kafka of peer 1 is not HOST:PORT"),
        (PEER.format(kafka="9092", rack='"a"'), "kafka of peer 1 is not HOST:PORT"),
        ('bind = "0.0.0.0:9092"', "[bind] has kafka and internal"),
        ('[bind]\nhttp = "0.0.0.0:1"', "[bind] has kafka and internal"),
        ('[advertise]\nhttp = "h:1"', "[advertise] has kafka and internal"),
        ('[bind]\nkafka = "nowhere"', "[bind] kafka: give HOST:PORT"),
        ('port = 1\n[bind]\nkafka = "h:1"', "port and the tables say the same thing twice"),
        ('[bind]\ninternal = "nowhere"', "internal in "),
    ],
)
def test_wrong_tables_of_addresses_are_named(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "node.toml"
    file.write_text(text)
    with pytest.raises(InvalidSetting) as error:
        resolve({}, {}, file=str(file))
    assert words in str(error.value)


def test_a_node_among_peers_listens_where_its_entry_says() -> None:
    settings = resolve({"peers": "1@h:9092:9192,2@h:9093:9193", "node_id": 2}, {})
    assert (settings.port, settings.advertise) == (9093, "h:9093")
    assert [peer.internal for peer in settings.peers] == [("h", 9192), ("h", 9193)]


def test_who_joins_has_no_peers() -> None:
    with pytest.raises(InvalidSetting, match="not both"):
        resolve({"peers": "1@h:9092:9192,2@h:9093:9193", "join": "h:9092"}, {})


def test_a_file_that_is_no_text_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_bytes(b'data_dir = "\xff"')
    with pytest.raises(InvalidSetting, match="is not TOML"):
        resolve({}, {}, file=str(file))
