"""The admin client of kafka-python 3.x behind the commands of the matrix.

Its answers are dicts, and an alteration's error comes back as text that begins with its number.
"""

from __future__ import annotations

import functools
import re

from driver import Refused
from kafka import TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient
from kafka_python_groups import group_admin3


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
        wanted = {"num_partitions": partitions, "replication_factor": replication_factor}
        asked = {topic: {**wanted, "configs": configs or {}}}
        admin(bootstrap).create_topics(asked, validate_only=validate_only)

    def delete_topic(bootstrap, topic):
        admin(bootstrap).delete_topics([topic])

    def describe_topic(bootstrap, topic):
        (told,) = admin(bootstrap).describe_topics([topic])
        if told["error_code"]:
            raise Refused(told["error_code"], topic)
        partitions = sorted(told["partitions"], key=lambda partition: partition["partition_index"])
        return [
            {
                "partition": partition["partition_index"],
                "leader": partition["leader_id"],
                "replicas": partition["replica_nodes"],
                "isr": partition["isr_nodes"],
            }
            for partition in partitions
        ]

    def create_partitions(bootstrap, topic, total):
        admin(bootstrap).create_partitions({topic: total})

    def configs(bootstrap, kind, name):
        told = admin(bootstrap).describe_configs([resource(kind, name)], config_filter="all")
        return {key: entry["value"] for key, entry in told[kind][name].items()}

    def set_configs(bootstrap, kind, name, values):
        # The broker, not the client's own look at its known names, is what is tested.
        asked = [resource(kind, name, values)]
        answer = admin(bootstrap).alter_configs(asked, raise_on_unknown=False)[kind][name]
        if answer != "OK":
            number = re.match(r"\[Error (\d+)\]", answer)
            raise Refused(int(number[1]) if number else None, answer)

    def delete_records(bootstrap, topic, before, partition=0):
        asked = TopicPartition(topic, partition)
        return admin(bootstrap).delete_records({asked: before})[asked]["low_watermark"]

    def cluster(bootstrap):
        told = admin(bootstrap).describe_cluster()
        nodes = [broker["broker_id"] for broker in told["brokers"]]
        return {
            "cluster_id": told["cluster_id"],
            "controller": told["controller_id"],
            "brokers": nodes,
        }

    served = [create_topic, delete_topic, describe_topic, create_partitions, configs, set_configs]
    own = {f.__name__: f for f in [*served, delete_records, cluster]}
    return {**own, **group_admin3(admin)}
