"""Which topics are to have a table, as the cluster says now.

A cluster that does not know our settings, such as Apache Kafka, has no topic that asks for a
table by itself: the configuration file names them.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from chronik.client.admin import Admin, Resource
from chronik.client.cluster import Cluster
from chronik.client.link import ConnectionFailed
from chronik.protocol.errors import KafkaError
from chronik.spark.connection import Connection
from chronik.spark.lake.table import LakeError
from chronik.spark.pipeline.config import PipelineConfig, TopicConfig, topic_config

REQUESTS_MAX: Final = 32  # at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovered:
    """What was found: topics with a table, and what is wrong with others that ask for one."""

    topics: tuple[TopicConfig, ...]
    errors: Mapping[str, str]


def discover(connection: Connection, config: PipelineConfig) -> Discovered:
    """Ask the cluster for its topics and their settings."""

    async def ask() -> dict[str, dict[str, str]]:
        async with connection.cluster() as cluster:
            return await topic_settings(cluster)

    try:
        found = asyncio.run(ask())
    except KafkaError as error:
        raise LakeError(
            f"the cluster of {connection.bootstrap} does not say which topics there are: {error}"
        ) from None
    except ConnectionFailed as error:
        raise LakeError(
            f"no broker of {connection.bootstrap} says which topics there are ({error}): check "
            "--bootstrap, security.protocol in --config and that the cluster runs"
        ) from None
    return sorted_out(found, config)


def sorted_out(found: Mapping[str, Mapping[str, str]], config: PipelineConfig) -> Discovered:
    """The topics that are to have a table, of all topics with their settings."""
    topics, errors = [], {}
    for name, settings in sorted(found.items()):
        try:
            wanted = topic_config(name, settings, config.topics.get(name, {}))
        except LakeError as error:
            errors[name] = str(error)
            continue
        if wanted is not None:
            topics.append(wanted)
    for name in config.topics:
        if name not in found:
            errors[name] = f"there is no topic {name}: create it, or take it out of the file"
    return Discovered(topics=tuple(topics), errors=errors)


async def topic_settings(cluster: Cluster) -> dict[str, dict[str, str]]:
    """The settings of every topic that is not the cluster's own."""
    admin = Admin(cluster)
    names = [topic.name or "" for topic in await admin.topics() if not topic.is_internal]
    limit = asyncio.Semaphore(REQUESTS_MAX)

    async def of_topic(name: str) -> dict[str, str]:
        async with limit:
            entries = await admin.describe_configs(Resource.TOPIC, name)
        return {entry.name: entry.value or "" for entry in entries}

    settings = await asyncio.gather(*map(of_topic, names))
    return dict(zip(names, settings, strict=True))
