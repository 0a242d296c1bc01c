"""Groups and transactions of kafka-python 2.0.2 and 3.x behind the commands of the matrix.

2.0.2 has no static membership, no cooperative assignor and no transactions; 3.x at 0.10 lacks them
for the version that it then speaks.
"""

from __future__ import annotations

import functools

import kafka
import members
from driver import TIMEOUT_MS, TIMEOUT_SECONDS, Refused, to_bytes
from kafka import ConsumerRebalanceListener, KafkaConsumer, KafkaProducer, TopicPartition, errors
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from kafka.structs import OffsetAndMetadata

MODERN = int(kafka.__version__.split(".")[0]) >= 3
ASSIGNORS = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
}
if MODERN:
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor

    ASSIGNORS["cooperative-sticky"] = CooperativeStickyAssignor
# A member answers a rebalance at its next heartbeat.
HEARTBEAT_MS = 100
# A poll that ends before the join that it began leaves a modern member without its assignment.
JOIN_MS = 500


class Listener(ConsumerRebalanceListener):
    """Counts the rebalances."""

    def __init__(self):
        self.rebalances = 0

    def on_partitions_revoked(self, revoked):
        pass

    def on_partitions_assigned(self, assigned):
        self.rebalances += 1


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
        session_ms=10000,
        auto_commit=False,
        isolation="read_committed",
    ):
        extra = {}
        if MODERN and "api_version" not in common:
            extra["isolation_level"] = isolation
        if "api_version" not in common:
            extra["max_poll_interval_ms"] = TIMEOUT_MS
        if instance is not None:
            extra["group_instance_id"] = instance
        if assignors:
            extra["partition_assignment_strategy"] = [ASSIGNORS[name] for name in assignors]
        self._listener = Listener()
        self._client = KafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            enable_auto_commit=auto_commit,
            auto_commit_interval_ms=100,
            auto_offset_reset=reset,
            session_timeout_ms=session_ms,
            heartbeat_interval_ms=HEARTBEAT_MS,
            fetch_max_wait_ms=50,
            metadata_max_age_ms=500,
            **common,
            **extra,
        )
        if assign is not None:
            self._client.assign([TopicPartition(topic, at) for topic, at in assign])
        elif pattern:
            # Its own match begins at the start of the name but need not reach the end.
            self._client.subscribe(pattern=f"^{pattern}$", listener=self._listener)
        else:
            self._client.subscribe(topics, listener=self._listener)
        if MODERN and assign is None:
            # A join that overtakes the metadata of its subscription assigns nothing, or is made
            # again; if a poll ends while it is, 3.0.12 forgets it and sends no heartbeat any more.
            self._client.topics()
            for topic in topics or ():
                self._client.partitions_for_topic(topic)

    @property
    def rebalances(self):
        return self._listener.rebalances

    def metadata(self):
        return self._client.group_metadata()

    def poll(self, timeout_ms):
        waits_ms = max(timeout_ms, JOIN_MS) if MODERN else timeout_ms
        batches = self._client.poll(timeout_ms=waits_ms).values()
        return [(m.topic, m.partition, m.offset, m.value) for batch in batches for m in batch]

    def assignment(self):
        return [(at.topic, at.partition) for at in self._client.assignment()]

    def commit(self, offsets):
        self._client.commit(None if offsets is None else by_partition(offsets))

    def committed(self, topic, partition):
        told = self._client.committed(TopicPartition(topic, partition), metadata=True)
        return None if told is None else [told.offset, told.metadata or ""]

    def seek(self, topic, partition, offset):
        self._client.seek(TopicPartition(topic, partition), offset)

    def position(self, topic, partition):
        return self._client.position(TopicPartition(topic, partition))

    def close(self):
        self._client.close(autocommit=self._client.config["enable_auto_commit"])


def stored(offset, metadata):
    """The value of a commit; 3.x added a leader epoch to it."""
    return OffsetAndMetadata(offset, metadata or "", *([-1] if MODERN else []))


def by_partition(offsets):
    return {TopicPartition(t, p): stored(offset, metadata) for t, p, offset, metadata in offsets}


def shown(offsets):
    return sorted([at.topic, at.partition, v.offset, v.metadata or ""] for at, v in offsets.items())


def checked(error):
    """Raise an error class that came back as a value."""
    if getattr(error, "errno", 0):
        raise Refused(error.errno, error.__name__)


def group_admin2(admin):
    """The group commands of 2.0.2: named tuples."""

    def list_groups(bootstrap):
        return sorted(group for group, _ in admin(bootstrap).list_consumer_groups())

    def describe_group(bootstrap, group):
        (told,) = admin(bootstrap).describe_consumer_groups([group])
        assignments = [member.member_assignment.assignment for member in told.members]
        members = [
            {"instance": None, "assigned": sorted([t, p] for t, ps in assigned for p in ps)}
            for assigned in assignments
        ]
        return {"state": told.state, "assignor": told.protocol, "members": members}

    def group_offsets(bootstrap, group):
        return shown(admin(bootstrap).list_consumer_group_offsets(group))

    def delete_group(bootstrap, group):
        ((_, error),) = admin(bootstrap).delete_consumer_groups([group])
        checked(error)

    served = [list_groups, describe_group, group_offsets, delete_group]
    return {f.__name__: f for f in served}


def group_admin3(admin):
    """The group commands of 3.x: dicts."""

    def list_groups(bootstrap):
        return sorted(group["group_id"] for group in admin(bootstrap).list_groups())

    def describe_group(bootstrap, group):
        told = admin(bootstrap).describe_groups([group])[group]
        members = [
            {
                "instance": member["group_instance_id"],
                "assigned": sorted(
                    [entry["topic"], partition]
                    for entry in (member["member_assignment"] or {}).get("assigned_partitions", ())
                    for partition in entry["partitions"]
                ),
            }
            for member in told["members"]
        ]
        state, assignor = told["group_state"], told["protocol_data"]
        return {"state": state, "assignor": assignor, "members": members}

    def group_offsets(bootstrap, group):
        return shown(admin(bootstrap).list_group_offsets({group: None})[group])

    def alter_group_offsets(bootstrap, group, offsets):
        for error in admin(bootstrap).alter_group_offsets(group, by_partition(offsets)).values():
            checked(error)

    def delete_group_offsets(bootstrap, group, topic, partition=0):
        asked = [TopicPartition(topic, partition)]
        for error in admin(bootstrap).delete_group_offsets(group, asked).values():
            checked(error)

    def delete_group(bootstrap, group):
        for error in admin(bootstrap).delete_groups([group]).values():
            if error != "OK":
                # The name of the error's class, and nothing else.
                raise Refused(getattr(errors, error).errno, error)

    served = [list_groups, describe_group, group_offsets, alter_group_offsets]
    return {f.__name__: f for f in [*served, delete_group_offsets, delete_group]}


def transactions(common, consumers):
    """The transaction commands of 3.x; `consumers` are the members whose offsets they may send."""
    producers = {}

    def txn_open(bootstrap, producer, transactional_id, timeout_ms=60000, codec="none"):
        client = KafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            compression_type=None if codec == "none" else codec,
            linger_ms=2,
            max_block_ms=TIMEOUT_MS,
            **common,
        )
        client.init_transactions()
        producers[producer] = client

    def txn_begin(bootstrap, producer):
        producers[producer].begin_transaction()

    def txn_produce(bootstrap, producer, topic, records, partition=0):
        futures = [
            producers[producer].send(
                topic,
                key=to_bytes(sent.get("key")),
                value=to_bytes(sent.get("value")),
                partition=partition,
            )
            for sent in records
        ]
        producers[producer].flush(TIMEOUT_SECONDS)
        for future in futures:
            future.get(TIMEOUT_SECONDS)

    def txn_offsets(bootstrap, producer, member, offsets):
        consumer = consumers[member]
        metadata = consumer.ask(consumer.client.metadata)
        producers[producer].send_offsets_to_transaction(by_partition(offsets), metadata)

    def txn_commit(bootstrap, producer):
        producers[producer].commit_transaction()

    def txn_abort(bootstrap, producer):
        producers[producer].abort_transaction()

    def txn_close(bootstrap, producer):
        producers.pop(producer).close(timeout=1)

    served = [txn_open, txn_begin, txn_produce, txn_offsets, txn_commit, txn_abort, txn_close]
    return {f.__name__: f for f in served}


def commands(common, code_of):
    """All that this file adds to the driver, except what needs its admin client."""
    opened, served = members.commands(functools.partial(GroupConsumer, common), code_of)
    return {**served, **(transactions(common, opened) if MODERN else {})}
