"""The settings that CreateTopics answers with, encoded once, follow the broker's."""

from collections.abc import Mapping, Sequence
from typing import Any

from chronik.config.effective import BrokerConfig, Source
from chronik.protocol.apis import CREATE_TOPICS
from chronik.protocol.codec import decode, encode
from chronik.protocol.messages.topics import CreatableTopicResult
from chronik.server.created_configs import CreatedConfigs

VERSION = 7
NOTHING: Mapping[str, str] = {}


def config(cluster: Mapping[str, str] = NOTHING) -> BrokerConfig:
    return BrokerConfig(static=NOTHING, cluster=cluster, broker=NOTHING)


def shown(configs: Sequence[Any]) -> dict[str, tuple[str | None, int]]:
    result = CreatableTopicResult(name="t", error_code=0, configs=configs)
    flexible = CREATE_TOPICS.is_flexible(VERSION)
    data = encode(result, VERSION, flexible)
    found = decode(CreatableTopicResult, data, VERSION, flexible).configs
    assert found is not None
    return {each.name: (each.value, each.config_source) for each in found}


def test_what_is_encoded_once_is_what_a_topic_has() -> None:
    cache = CreatedConfigs()
    first = cache.of({}, config(), VERSION)
    assert cache.of({}, config(), VERSION) is first
    assert shown(first)["cleanup.policy"] == ("delete", Source.DEFAULT)


def test_settings_of_the_topic_and_of_the_broker_count() -> None:
    cache = CreatedConfigs()
    plain = shown(cache.of({}, config(), VERSION))
    own = shown(cache.of({"cleanup.policy": "compact"}, config(), VERSION))
    assert own == {**plain, "cleanup.policy": ("compact", Source.TOPIC)}
    changed = shown(cache.of({}, config({"log.cleanup.policy": "compact"}), VERSION))
    assert changed["cleanup.policy"] == ("compact", Source.CLUSTER)
    assert shown(cache.of({}, config(), VERSION)) == plain
