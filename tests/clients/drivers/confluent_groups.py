"""Groups and transactions of confluent-kafka (librdkafka) behind the commands of the matrix."""

from __future__ import annotations

import functools

import members
from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaException,
    Producer,
    TopicPartition,
)
from driver import TIMEOUT_MS, TIMEOUT_SECONDS, to_bytes

# A member answers a rebalance at its next heartbeat.
HEARTBEAT_MS = 100


def member_settings(
    common, group, reset, instance, assignors, protocol, remote_assignor, session_ms
):
    settings = {
        "group.id": group,
        "auto.offset.reset": {"none": "error"}.get(reset, reset),
        "fetch.wait.max.ms": 50,
        "topic.metadata.refresh.interval.ms": 500,
        "topic.metadata.refresh.fast.interval.ms": 50,
        **common,
    }
    if instance is not None:
        settings["group.instance.id"] = instance
    if protocol == "consumer":
        settings["group.protocol"] = "consumer"
        if remote_assignor is not None:
            settings["group.remote.assignor"] = remote_assignor
        return settings
    if assignors:
        settings["partition.assignment.strategy"] = ",".join(assignors)
    settings["session.timeout.ms"] = session_ms
    settings["heartbeat.interval.ms"] = HEARTBEAT_MS
    settings["max.poll.interval.ms"] = TIMEOUT_MS
    return settings


class GroupConsumer:
    """The adapter of `members`."""

    def __init__(
        self,
        common,
        bootstrap,
        group,
        topics=None,
        pattern=None,
        assign=None,
        reset="earliest",
        instance=None,
        assignors=None,
        protocol="classic",
        remote_assignor=None,
        session_ms=10000,
        auto_commit=False,
        isolation="read_committed",
    ):
        settings = member_settings(
            common, group, reset, instance, assignors, protocol, remote_assignor, session_ms
        )
        self.rebalances = 0
        self._client = Consumer(
            {
                **settings,
                "bootstrap.servers": bootstrap,
                "enable.auto.commit": auto_commit,
                "auto.commit.interval.ms": 100,
                "isolation.level": isolation,
            }
        )
        if assign is not None:
            self._client.assign([TopicPartition(topic, at) for topic, at in assign])
        else:
            wanted = [f"^{pattern}$"] if pattern else topics
            self._client.subscribe(wanted, on_assign=self._assigned)

    def _assigned(self, client, partitions):
        self.rebalances += 1

    def metadata(self):
        return self._client.consumer_group_metadata()

    def poll(self, timeout_ms):
        told = []
        for message in self._client.consume(1000, timeout=timeout_ms / 1000):
            if message.error() is not None:
                raise KafkaException(message.error())
            told.append((message.topic(), message.partition(), message.offset(), message.value()))
        return told

    def assignment(self):
        return [(at.topic, at.partition) for at in self._client.assignment()]

    def commit(self, offsets):
        asked = {} if offsets is None else {"offsets": partitions(offsets)}
        for done in self._client.commit(asynchronous=False, **asked):
            if done.error is not None:
                raise KafkaException(done.error)

    def committed(self, topic, partition):
        asked = [TopicPartition(topic, partition)]
        (told,) = self._client.committed(asked, timeout=TIMEOUT_SECONDS)
        if told.error is not None:
            raise KafkaException(told.error)
        return None if told.offset == OFFSET_INVALID else [told.offset, told.metadata or ""]

    def seek(self, topic, partition, offset):
        self._client.seek(TopicPartition(topic, partition, offset))

    def position(self, topic, partition):
        (told,) = self._client.position([TopicPartition(topic, partition)])
        return told.offset

    def close(self):
        self._client.close()


def partitions(offsets):
    return [TopicPartition(t, p, offset, metadata or "") for t, p, offset, metadata in offsets]


def group_admin(admin):
    """The group commands of the admin client that `admin(bootstrap)` gives."""

    def list_groups(bootstrap):
        told = admin(bootstrap).list_consumer_groups(request_timeout=TIMEOUT_SECONDS).result()
        return sorted(group.group_id for group in told.valid)

    def describe_group(bootstrap, group):
        asked = admin(bootstrap).describe_consumer_groups([group], request_timeout=TIMEOUT_SECONDS)
        told = asked[group].result()
        members = [
            {
                "instance": member.group_instance_id,
                "assigned": sorted(
                    [at.topic, at.partition] for at in member.assignment.topic_partitions
                ),
            }
            for member in told.members
        ]
        state = told.state.name.title().replace("_", "")
        return {"state": state, "assignor": told.partition_assignor, "members": members}

    def group_offsets(bootstrap, group):
        asked = [ConsumerGroupTopicPartitions(group)]
        (future,) = admin(bootstrap).list_consumer_group_offsets(asked).values()
        told = future.result().topic_partitions
        return sorted([at.topic, at.partition, at.offset, at.metadata or ""] for at in told)

    def alter_group_offsets(bootstrap, group, offsets):
        asked = [ConsumerGroupTopicPartitions(group, partitions(offsets))]
        (future,) = admin(bootstrap).alter_consumer_group_offsets(asked).values()
        for done in future.result().topic_partitions:
            if done.error is not None:
                raise KafkaException(done.error)

    def delete_group(bootstrap, group):
        admin(bootstrap).delete_consumer_groups([group])[group].result()

    served = [list_groups, describe_group, group_offsets, alter_group_offsets, delete_group]
    return {f.__name__: f for f in served}


def transactions(common, consumers):
    """The transaction commands; `consumers` are the members whose offsets they may send."""
    producers = {}

    def txn_open(bootstrap, producer, transactional_id, timeout_ms=60000, codec="none"):
        client = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "message.timeout.ms": min(timeout_ms, TIMEOUT_MS),
                "compression.type": codec,
                "linger.ms": 2,
                **common,
                # librdkafka refuses to wait for an answer longer than for the transaction.
                "socket.timeout.ms": min(timeout_ms, TIMEOUT_MS),
            }
        )
        client.init_transactions(TIMEOUT_SECONDS)
        producers[producer] = client

    def txn_begin(bootstrap, producer):
        producers[producer].begin_transaction()

    def txn_produce(bootstrap, producer, topic, records, partition=0):
        failures = []
        for sent in records:
            producers[producer].produce(
                topic,
                partition=partition,
                key=to_bytes(sent.get("key")),
                value=to_bytes(sent.get("value")),
                on_delivery=lambda error, message: error and failures.append(error),
            )
        producers[producer].flush(TIMEOUT_SECONDS)
        for error in failures:
            raise KafkaException(error)

    def txn_offsets(bootstrap, producer, member, offsets):
        consumer = consumers[member]
        metadata = consumer.ask(consumer.client.metadata)
        producers[producer].send_offsets_to_transaction(
            partitions(offsets), metadata, TIMEOUT_SECONDS
        )

    def txn_commit(bootstrap, producer):
        producers[producer].commit_transaction(TIMEOUT_SECONDS)

    def txn_abort(bootstrap, producer):
        producers[producer].abort_transaction(TIMEOUT_SECONDS)

    def txn_close(bootstrap, producer):
        producers.pop(producer)

    served = [txn_open, txn_begin, txn_produce, txn_offsets, txn_commit, txn_abort, txn_close]
    return {f.__name__: f for f in served}


def commands(common, admin, code_of):
    """All that this file adds to the driver."""
    opened, member_commands = members.commands(functools.partial(GroupConsumer, common), code_of)
    return {**member_commands, **group_admin(admin), **transactions(common, opened)}
