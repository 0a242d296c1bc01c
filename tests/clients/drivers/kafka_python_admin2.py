"""The admin client of kafka-python 2.0.2, whose answers are the responses themselves.

It has no DeleteRecords and no incremental configs; AlterConfigs replaces all of a resource's.
"""

from __future__ import annotations

import functools

from driver import Refused
from kafka.admin import (
    ConfigResource,
    ConfigResourceType,
    KafkaAdminClient,
    NewPartitions,
    NewTopic,
)
from kafka_python_groups import group_admin2


def checked(code, text):
    """Raise what a response says in its error field; several calls only return it."""
    if code:
        raise Refused(code, text or "")


def commands(common):
    """The admin commands of the matrix, over one client for each broker."""

    @functools.cache
    def admin(bootstrap):
        return KafkaAdminClient(bootstrap_servers=bootstrap, **common)

    def resource(kind, name, values=None):
        return ConfigResource(ConfigResourceType[kind.upper()], name, configs=values)

    def create_topic(
        bootstrap, topic, partitions=1, replication_factor=1, configs=None, validate_only=False
    ):
        wanted = NewTopic(topic, partitions, replication_factor, topic_configs=configs or {})
        admin(bootstrap).create_topics([wanted], validate_only=validate_only)

    def delete_topic(bootstrap, topic):
        admin(bootstrap).delete_topics([topic])

    def describe_topic(bootstrap, topic):
        (told,) = admin(bootstrap).describe_topics([topic])
        checked(told["error_code"], topic)
        fields = ("partition", "leader", "replicas", "isr")
        partitions = sorted(told["partitions"], key=lambda partition: partition["partition"])
        return [{field: partition[field] for field in fields} for partition in partitions]

    def create_partitions(bootstrap, topic, total):
        admin(bootstrap).create_partitions({topic: NewPartitions(total)})

    def configs(bootstrap, kind, name):
        (response,) = admin(bootstrap).describe_configs([resource(kind, name)])
        ((code, text, _, _, entries),) = response.resources
        checked(code, text)
        return {entry[0]: entry[1] for entry in entries}

    def set_configs(bootstrap, kind, name, values):
        response = admin(bootstrap).alter_configs([resource(kind, name, values)])
        ((code, text, _, _),) = response.resources
        checked(code, text)

    def cluster(bootstrap):
        told = admin(bootstrap).describe_cluster()
        nodes = [broker["node_id"] for broker in told["brokers"]]
        return {
            "cluster_id": told["cluster_id"],
            "controller": told["controller_id"],
            "brokers": nodes,
        }

    served = [create_topic, delete_topic, describe_topic, create_partitions, configs, set_configs]
    own = {f.__name__: f for f in [*served, cluster]}
    return {**own, **group_admin2(admin)}
