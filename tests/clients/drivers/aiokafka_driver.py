"""aiokafka behind the commands of the matrix: one event loop, each command run to its end on it."""

from __future__ import annotations

import asyncio
import functools

import aiokafka_groups as groups
from aiokafka import AIOKafkaClient, AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import ProducerFenced
from driver import TIMEOUT_MS, TIMEOUT_SECONDS, Refused, enough, headers_of, record, serve, to_bytes

COMMON = {"retry_backoff_ms": 20, "request_timeout_ms": TIMEOUT_MS}
clients = {}


async def admin(bootstrap):
    if bootstrap not in clients:
        client = AIOKafkaAdminClient(bootstrap_servers=bootstrap, **COMMON)
        await client.start()
        clients[bootstrap] = client
    return clients[bootstrap]


async def producer(bootstrap, codec, acks, idempotent, timeout_ms):
    key = (bootstrap, codec, acks, idempotent, timeout_ms)
    if key not in clients:
        client = AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            acks=acks if acks == "all" else int(acks),
            enable_idempotence=idempotent,
            linger_ms=2,
            max_batch_size=200000,
            max_request_size=10000000,
            retry_backoff_ms=20,
            request_timeout_ms=timeout_ms,
        )
        await client.start()
        clients[key] = client
    return clients[key]


async def consumer(bootstrap, topic, partition, reset="none", isolation="read_uncommitted"):
    client = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="none" if reset == "error" else reset,
        isolation_level=isolation,
        fetch_max_wait_ms=100,
        **COMMON,
    )
    await client.start()
    client.assign([TopicPartition(topic, partition)])
    return client


async def produce(
    bootstrap,
    topic,
    records,
    partition=0,
    codec="none",
    acks="all",
    idempotent=False,
    timeout_ms=TIMEOUT_MS,
):
    client = await producer(bootstrap, codec, acks, idempotent, timeout_ms)
    futures = [
        await client.send(
            topic,
            key=to_bytes(sent.get("key")),
            value=to_bytes(sent.get("value")),
            headers=headers_of(sent),
            partition=partition,
            timestamp_ms=sent.get("timestamp"),
        )
        for sent in records
    ]
    await client.flush()
    return [getattr(await future, "offset", -1) for future in futures]


async def poll(client, count):
    records = []
    until = asyncio.get_running_loop().time() + TIMEOUT_SECONDS
    while len(records) < count and asyncio.get_running_loop().time() < until:
        for batch in (await client.getmany(timeout_ms=100, max_records=10000)).values():
            records += [record(m.offset, m.timestamp, m.key, m.value, m.headers) for m in batch]
    return enough(records, count)


async def seek(client, asked, start):
    if start == "earliest":
        await client.seek_to_beginning(asked)
    elif start == "latest":
        await client.seek_to_end(asked)
    elif isinstance(start, dict):
        found = await client.offsets_for_times({asked: start["timestamp"]})
        client.seek(asked, found[asked].offset)
    else:
        client.seek(asked, start)


async def consume(
    bootstrap, topic, start, count, partition=0, reset="none", isolation="read_uncommitted"
):
    client = await consumer(bootstrap, topic, partition, reset, isolation)
    try:
        await seek(client, TopicPartition(topic, partition), start)
        return await poll(client, count)
    finally:
        await client.stop()


async def follow(bootstrap, topic, records, partition=0):
    client = await consumer(bootstrap, topic, partition)
    try:
        asked = TopicPartition(topic, partition)
        await client.seek_to_end(asked)
        await client.position(asked)  # Resolves the end before anything is written.
        await produce(bootstrap, topic, records, partition)
        return await poll(client, len(records))
    finally:
        await client.stop()


async def offset(bootstrap, topic, at, partition=0):
    client = await consumer(bootstrap, topic, partition)
    try:
        asked = TopicPartition(topic, partition)
        if at == "earliest":
            return (await client.beginning_offsets([asked]))[asked]
        if at == "latest":
            return (await client.end_offsets([asked]))[asked]
        found = (await client.offsets_for_times({asked: at}))[asked]
        return -1 if found is None else found.offset
    finally:
        await client.stop()


async def brokers(bootstrap):
    client = AIOKafkaClient(bootstrap_servers=bootstrap, **COMMON)
    try:
        await client.bootstrap()
        view = client.cluster.brokers()
        return [[broker.nodeId, broker.host, broker.port] for broker in view]
    finally:
        await client.close()


async def topics(bootstrap):
    return sorted(await (await admin(bootstrap)).list_topics())


def checked(code, text):
    """Raise what a response says in its error field; the admin client mostly returns it."""
    if code:
        raise Refused(code, str(text))


async def create_topic(
    bootstrap, topic, partitions=1, replication_factor=1, configs=None, validate_only=False
):
    wanted = NewTopic(topic, partitions, replication_factor, topic_configs=configs or {})
    client = await admin(bootstrap)
    response = await client.create_topics([wanted], validate_only=validate_only)
    for _, code, text in response.topic_errors:
        checked(code, text)


async def delete_topic(bootstrap, topic):
    response = await (await admin(bootstrap)).delete_topics([topic])
    for _, code in response.topic_error_codes:
        checked(code, topic)


async def describe_topic(bootstrap, topic):
    (told,) = await (await admin(bootstrap)).describe_topics([topic])
    checked(told["error_code"], topic)
    fields = ("partition", "leader", "replicas", "isr")
    partitions = sorted(told["partitions"], key=lambda partition: partition["partition"])
    return [{field: partition[field] for field in fields} for partition in partitions]


async def create_partitions(bootstrap, topic, total):
    await (await admin(bootstrap)).create_partitions({topic: NewPartitions(total)})


def resource(kind, name, values=None):
    return ConfigResource(ConfigResourceType[kind.upper()], name, configs=values)


async def configs(bootstrap, kind, name):
    (response,) = await (await admin(bootstrap)).describe_configs([resource(kind, name)])
    ((code, text, _, _, entries),) = response.resources
    checked(code, text)
    return {entry[0]: entry[1] for entry in entries}


async def set_configs(bootstrap, kind, name, values):
    client = await admin(bootstrap)
    for response in await client.alter_configs([resource(kind, name, values)]):
        for code, text, _, _ in response.resources:
            checked(code, text)


async def delete_records(bootstrap, topic, before, partition=0):
    asked = TopicPartition(topic, partition)
    client = await admin(bootstrap)
    return (await client.delete_records({asked: RecordsToDelete(before)}))[asked]


async def cluster(bootstrap):
    told = await (await admin(bootstrap)).describe_cluster()
    nodes = [broker["node_id"] for broker in told["brokers"]]
    return {"cluster_id": told["cluster_id"], "controller": told["controller_id"], "brokers": nodes}


def code_of(error):
    """Kafka's number; the client's own errors have none."""
    if isinstance(error, ProducerFenced):
        return 90  # Its own class for what the broker calls PRODUCER_FENCED.
    number = getattr(error, "errno", None)
    known = isinstance(number, int) and number > 0
    return number if known else groups.code_of_text(error)


def main():
    loop = asyncio.new_event_loop()

    def ran(command):
        @functools.wraps(command)
        def run(**args):
            return loop.run_until_complete(command(**args))

        return run

    commands = [produce, consume, follow, offset, brokers, topics, cluster, create_topic]
    commands += [delete_topic, describe_topic, create_partitions, configs, set_configs]
    commands += [delete_records, *groups.group_admin(admin, checked), *groups.transactions(COMMON)]
    served = {f.__name__: ran(f) for f in commands}
    serve({**served, **groups.member_commands(COMMON, code_of)}, code_of)


if __name__ == "__main__":
    main()
