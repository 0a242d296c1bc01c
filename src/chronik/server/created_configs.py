"""The settings of a new topic as CreateTopics answers show them, encoded once.

Thousands of topics are created with no setting of their own, and the answer names all that hold for
each of them. They are the same as long as the broker's own settings are: a changed setting is a new
map of the image.
"""

from collections.abc import Mapping, Sequence
from typing import cast

from chronik.config.effective import BrokerConfig, in_topic_terms, topic_synonyms
from chronik.config.topic_settings import TOPIC_SETTINGS
from chronik.protocol.apis import CREATE_TOPICS
from chronik.protocol.codec import encode
from chronik.protocol.messages.topics import CreatableTopicConfigs
from chronik.server.encoded_topics import Joined


class CreatedConfigs:
    """What a topic without settings of its own has, by the version in which it is asked for."""

    def __init__(self) -> None:
        self._joined: dict[int, tuple[BrokerConfig, Joined]] = {}

    def of(
        self, overrides: Mapping[str, str], config: BrokerConfig, version: int
    ) -> Sequence[CreatableTopicConfigs]:
        """The settings of a topic with these of its own; encoded if there are none."""
        if overrides:
            return _described(overrides, config)
        known = self._joined.get(version)
        if known is None or not _is_same(known[0], config):
            flexible = CREATE_TOPICS.is_flexible(version)
            described = _described({}, config)
            joined = Joined([encode(each, version, flexible) for each in described])
            known = self._joined[version] = (config, joined)
        return cast(Sequence[CreatableTopicConfigs], known[1])


def _is_same(one: BrokerConfig, other: BrokerConfig) -> bool:
    """Whether two are of the same maps: nothing is compared, since they never change."""
    return (
        one.static is other.static and one.cluster is other.cluster and one.broker is other.broker
    )


def _described(overrides: Mapping[str, str], config: BrokerConfig) -> list[CreatableTopicConfigs]:
    described = []
    for definition in TOPIC_SETTINGS.values():
        first = topic_synonyms(definition, overrides, config)[0]
        described.append(
            CreatableTopicConfigs(
                name=definition.name,
                value=in_topic_terms(definition, first),
                read_only=False,
                config_source=first.source,
                is_sensitive=False,
            )
        )
    return described
