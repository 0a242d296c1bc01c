"""confluent-kafka (librdkafka) behind the commands of the matrix.

Consumers assign themselves here; librdkafka insists on a group id but, with explicit offsets and
without commits, needs no coordinator. Groups and transactions are in `confluent_groups`.
"""

from __future__ import annotations

import functools
import time

import confluent_groups
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)
from driver import TIMEOUT_MS, TIMEOUT_SECONDS, Refused, enough, headers_of, record, serve, to_bytes

COMMON = {
    "socket.timeout.ms": TIMEOUT_MS,
    "log_level": 0,
    "reconnect.backoff.ms": 10,
    "retry.backoff.ms": 20,
    "topic.metadata.refresh.fast.interval.ms": 50,
    "topic.metadata.propagation.max.ms": 3000,
}
# What is behind a consumer's fatal error is only in its words.
FATAL = {
    "Static consumer fenced": KafkaError.FENCED_INSTANCE_ID,
    "instance ID is still used": KafkaError.UNRELEASED_INSTANCE_ID,
}
ADMIN = {"request_timeout": TIMEOUT_SECONDS, "operation_timeout": TIMEOUT_SECONDS}


@functools.cache
def admin(bootstrap):
    return AdminClient({"bootstrap.servers": bootstrap, **COMMON})


@functools.cache
def producer(bootstrap, codec, acks, idempotent, timeout_ms):
    return Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": codec,
            "acks": acks,
            "enable.idempotence": idempotent,
            "linger.ms": 2,
            "message.timeout.ms": timeout_ms,
            "queue.buffering.max.messages": 100000,
            "message.max.bytes": 10000000,
            **COMMON,
        }
    )


def consumer(bootstrap, reset="error", isolation="read_committed"):
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "assigned",
            "enable.auto.commit": False,
            "auto.offset.reset": reset,
            "isolation.level": isolation,
            "fetch.wait.max.ms": 100,
            "enable.partition.eof": True,
            "allow.auto.create.topics": False,
            **COMMON,
        }
    )


def produce(
    bootstrap,
    topic,
    records,
    partition=0,
    codec="none",
    acks="all",
    idempotent=False,
    timeout_ms=TIMEOUT_MS,
):
    client = producer(bootstrap, codec, acks, idempotent, timeout_ms)
    done = {}

    def delivered(index, error, message):
        # Without acks there is no offset, only the word that it was sent.
        done[index] = error or (-1 if message.offset() is None else message.offset())

    for index, sent in enumerate(records):
        timestamp = {} if sent.get("timestamp") is None else {"timestamp": sent["timestamp"]}
        client.produce(
            topic,
            partition=partition,
            key=to_bytes(sent.get("key")),
            value=to_bytes(sent.get("value")),
            headers=headers_of(sent),
            on_delivery=functools.partial(delivered, index),
            **timestamp,
        )
    client.flush(TIMEOUT_SECONDS)
    answers = [done.get(index) for index in range(len(records))]
    for answer in answers:
        if not isinstance(answer, int):
            raise KafkaException(answer) if answer else Refused(None, "no delivery report")
    return answers


def poll(client, count):
    """Up to `count` records, or as many as come before the time or the partition ends."""
    until = time.monotonic() + TIMEOUT_SECONDS
    records = []
    while len(records) < count and time.monotonic() < until:
        for message in client.consume(min(count, 10000), timeout=0.1):
            error = message.error()
            if error is None:
                timestamp = message.timestamp()[1]
                key, value, headers = message.key(), message.value(), message.headers()
                records.append(record(message.offset(), timestamp, key, value, headers))
            elif error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
    return enough(records, count)


def position(client, topic, partition, start):
    if isinstance(start, dict):
        asked = TopicPartition(topic, partition, start["timestamp"])
        return client.offsets_for_times([asked], timeout=TIMEOUT_SECONDS)[0].offset
    return {"earliest": OFFSET_BEGINNING, "latest": OFFSET_END}.get(start, start)


def consume(bootstrap, topic, start, count, partition=0, reset="error", isolation="read_committed"):
    client = consumer(bootstrap, reset, isolation)
    try:
        at = position(client, topic, partition, start)
        client.assign([TopicPartition(topic, partition, at)])
        return poll(client, count)
    finally:
        client.close()


def follow(bootstrap, topic, records, partition=0):
    client = consumer(bootstrap)
    try:
        client.assign([TopicPartition(topic, partition, OFFSET_END)])
        # The end of the partition is reported once the fetcher stands there.
        reached = client.poll(TIMEOUT_SECONDS)
        if reached is None or reached.error().code() != KafkaError._PARTITION_EOF:
            raise Refused(None, "the end was never reached")
        produce(bootstrap, topic, records, partition)
        return poll(client, len(records))
    finally:
        client.close()


def offset(bootstrap, topic, at, partition=0):
    specs = {"earliest": OffsetSpec.earliest, "latest": OffsetSpec.latest}
    spec = specs[at]() if at in specs else OffsetSpec.for_timestamp(at)
    asked = {TopicPartition(topic, partition): spec}
    (future,) = admin(bootstrap).list_offsets(asked, request_timeout=TIMEOUT_SECONDS).values()
    return future.result().offset


def brokers(bootstrap):
    metadata = admin(bootstrap).list_topics(timeout=TIMEOUT_SECONDS)
    return [[broker.id, broker.host, broker.port] for broker in metadata.brokers.values()]


def topics(bootstrap):
    return sorted(admin(bootstrap).list_topics(timeout=TIMEOUT_SECONDS).topics)


def cluster(bootstrap):
    told = admin(bootstrap).describe_cluster(request_timeout=TIMEOUT_SECONDS).result()
    nodes = [node.id for node in told.nodes]
    return {"cluster_id": told.cluster_id, "controller": told.controller.id, "brokers": nodes}


def create_topic(
    bootstrap, topic, partitions=1, replication_factor=1, configs=None, validate_only=False
):
    wanted = NewTopic(topic, partitions, replication_factor, config=configs or {})
    futures = admin(bootstrap).create_topics([wanted], validate_only=validate_only, **ADMIN)
    futures[topic].result()


def delete_topic(bootstrap, topic):
    admin(bootstrap).delete_topics([topic], **ADMIN)[topic].result()


def describe_topic(bootstrap, topic):
    asked = TopicCollection([topic])
    told = admin(bootstrap).describe_topics(asked, request_timeout=TIMEOUT_SECONDS)[topic].result()
    return [
        {
            "partition": partition.id,
            "leader": partition.leader.id,
            "replicas": [node.id for node in partition.replicas],
            "isr": [node.id for node in partition.isr],
        }
        for partition in sorted(told.partitions, key=lambda partition: partition.id)
    ]


def create_partitions(bootstrap, topic, total):
    wanted = NewPartitions(topic, total)
    admin(bootstrap).create_partitions([wanted], **ADMIN)[topic].result()


def configs(bootstrap, kind, name):
    resource = ConfigResource(kind, name)
    futures = admin(bootstrap).describe_configs([resource], request_timeout=TIMEOUT_SECONDS)
    return {key: entry.value for key, entry in futures[resource].result().items()}


def set_configs(bootstrap, kind, name, values):
    entries = [
        ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        for key, value in values.items()
    ]
    resource = ConfigResource(kind, name, incremental_configs=entries)
    futures = admin(bootstrap).incremental_alter_configs(
        [resource], request_timeout=TIMEOUT_SECONDS
    )
    futures[resource].result()


def delete_records(bootstrap, topic, before, partition=0):
    asked = TopicPartition(topic, partition, before)
    (future,) = admin(bootstrap).delete_records([asked], **ADMIN).values()
    return future.result().low_watermark


def code_of(error):
    """Kafka's number; librdkafka's own (negative) ones have none, but a failed reset names it."""
    told = error.args[0] if isinstance(error, KafkaException) else None
    if told is None:
        return None
    if told.code() == KafkaError._AUTO_OFFSET_RESET and "out of range" in told.str():
        return KafkaError.OFFSET_OUT_OF_RANGE
    if told.code() == KafkaError._FATAL:
        return next((code for words, code in FATAL.items() if words in told.str()), None)
    if told.code() == KafkaError._FENCED:
        return KafkaError.PRODUCER_FENCED
    return told.code() if told.code() > 0 else None


if __name__ == "__main__":
    commands = [produce, consume, follow, offset, brokers, topics, cluster, create_topic]
    commands += [delete_topic, describe_topic, create_partitions, configs, set_configs]
    served = {f.__name__: f for f in [*commands, delete_records]}
    serve({**served, **confluent_groups.commands(COMMON, admin, code_of)}, code_of)
