"""Groups and transactions of aiokafka behind the commands of the matrix.

Each member has an event loop of its own, on its own thread: the heartbeats of a member that is not
polled stop with it.
"""

from __future__ import annotations

import asyncio
import functools
import re

import members
from aiokafka import (
    AIOKafkaConsumer,
    AIOKafkaProducer,
    ConsumerRebalanceListener,
    TopicPartition,
)
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.structs import OffsetAndMetadata
from driver import TIMEOUT_MS, to_bytes

ASSIGNORS = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
}
# A member answers a rebalance at its next heartbeat.
HEARTBEAT_MS = 100


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
        self._loop = asyncio.new_event_loop()
        self._listener = Listener()
        extra = {}
        if assignors:
            extra["partition_assignment_strategy"] = [ASSIGNORS[name] for name in assignors]
        settings = {
            "bootstrap_servers": bootstrap,
            "group_id": group,
            "group_instance_id": instance,
            "enable_auto_commit": auto_commit,
            "auto_commit_interval_ms": 100,
            "auto_offset_reset": reset,
            "session_timeout_ms": session_ms,
            "heartbeat_interval_ms": HEARTBEAT_MS,
            "max_poll_interval_ms": TIMEOUT_MS,
            "rebalance_timeout_ms": TIMEOUT_MS,
            "isolation_level": isolation,
            "fetch_max_wait_ms": 50,
            "metadata_max_age_ms": 500,
            **common,
            **extra,
        }
        self._client = self._run(self._started(settings, topics, pattern, assign))

    async def _started(self, settings, topics, pattern, assign):
        client = AIOKafkaConsumer(**settings)
        if assign is not None:
            await client.start()
            client.assign([TopicPartition(topic, at) for topic, at in assign])
            return client
        if pattern:
            client.subscribe(pattern=f"^{pattern}$", listener=self._listener)
        else:
            client.subscribe(topics, listener=self._listener)
        await client.start()
        return client

    def _run(self, coroutine):
        return self._loop.run_until_complete(coroutine)

    @property
    def rebalances(self):
        return self._listener.rebalances

    def poll(self, timeout_ms):
        batches = self._run(self._client.getmany(timeout_ms=timeout_ms)).values()
        return [(m.topic, m.partition, m.offset, m.value) for batch in batches for m in batch]

    def assignment(self):
        return [(at.topic, at.partition) for at in self._client.assignment()]

    def commit(self, offsets):
        self._run(self._client.commit(None if offsets is None else by_partition(offsets)))

    def committed(self, topic, partition):
        # The public call gives the offset alone.
        asked = TopicPartition(topic, partition)
        told = self._run(self._client._coordinator.fetch_committed_offsets([asked])).get(asked)
        none = told is None or told.offset < 0
        return None if none else [told.offset, told.metadata or ""]

    def seek(self, topic, partition, offset):
        self._client.seek(TopicPartition(topic, partition), offset)

    def position(self, topic, partition):
        return self._run(self._client.position(TopicPartition(topic, partition)))

    def close(self):
        self._run(self._client.stop())
        self._loop.close()


def by_partition(offsets):
    return {
        TopicPartition(t, p): OffsetAndMetadata(offset, metadata or "")
        for t, p, offset, metadata in offsets
    }


def decoded_assignment(data):
    """The partitions in the bytes of an assignment, which the admin client leaves as they are."""
    from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment

    if not data:
        return []
    told = ConsumerProtocolMemberAssignment.decode(data).assignment
    return sorted([topic, partition] for topic, partitions in told for partition in partitions)


def group_admin(admin, checked):
    """The group commands of the admin client that `admin(bootstrap)` gives."""

    async def list_groups(bootstrap):
        return sorted(told[0] for told in await (await admin(bootstrap)).list_consumer_groups())

    async def describe_group(bootstrap, group):
        (response,) = await (await admin(bootstrap)).describe_consumer_groups([group])
        ((code, _, state, _, assignor, members, *_),) = response.groups
        checked(code, group)
        shown = [{"instance": None, "assigned": decoded_assignment(m[-1])} for m in members]
        return {"state": state, "assignor": assignor, "members": shown}

    async def group_offsets(bootstrap, group):
        told = await (await admin(bootstrap)).list_consumer_group_offsets(group)
        pairs = told.items()
        return sorted([at.topic, at.partition, v.offset, v.metadata or ""] for at, v in pairs)

    return [list_groups, describe_group, group_offsets]


def transactions(common):
    """The transaction commands."""
    producers = {}

    async def txn_open(bootstrap, producer, transactional_id, timeout_ms=60000, codec="none"):
        client = AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            compression_type=None if codec == "none" else codec,
            linger_ms=2,
            **common,
        )
        await client.start()
        producers[producer] = client

    async def txn_begin(bootstrap, producer):
        await producers[producer].begin_transaction()

    async def txn_produce(bootstrap, producer, topic, records, partition=0):
        futures = [
            await producers[producer].send(
                topic,
                key=to_bytes(sent.get("key")),
                value=to_bytes(sent.get("value")),
                partition=partition,
            )
            for sent in records
        ]
        for future in futures:
            await future

    async def txn_offsets(bootstrap, producer, group, offsets):
        # Its API sends the group's name alone, without a member or a generation.
        await producers[producer].send_offsets_to_transaction(by_partition(offsets), group)

    async def txn_commit(bootstrap, producer):
        await producers[producer].commit_transaction()

    async def txn_abort(bootstrap, producer):
        await producers[producer].abort_transaction()

    async def txn_close(bootstrap, producer):
        await producers.pop(producer).stop()

    return [txn_open, txn_begin, txn_produce, txn_offsets, txn_commit, txn_abort, txn_close]


def code_of_text(error):
    """The number of an error that aiokafka knows only by text."""
    found = re.search(r"error code: ?(\d+)|Error (\d+)", str(error))
    return int(found[1] or found[2]) if found else None


def member_commands(common, code_of):
    """The commands that run on the members' threads."""
    return members.commands(functools.partial(GroupConsumer, common), code_of)[1]
