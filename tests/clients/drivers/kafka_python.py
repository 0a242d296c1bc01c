"""kafka-python 2.0.2 and 3.x behind the commands of the matrix, records and offsets.

An argument such as `0.10.0` pins `api_version`: the client then follows Kafka's static table of
that release and speaks message sets of magic 1. The admin clients of the two major versions differ
in every answer; they are in `kafka_python_admin2` and `kafka_python_admin3`. Groups and
transactions are in `kafka_python_groups`.
"""

from __future__ import annotations

import functools
import sys
import time

import kafka
import kafka_python_groups as groups
from driver import TIMEOUT_MS, TIMEOUT_SECONDS, enough, headers_of, record, serve, to_bytes
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

MODERN = int(kafka.__version__.split(".")[0]) >= 3
COMMON = {"reconnect_backoff_ms": 10, "retry_backoff_ms": 20, "request_timeout_ms": TIMEOUT_MS}
if len(sys.argv) > 1:
    COMMON["api_version"] = tuple(int(part) for part in sys.argv[1].split("."))


@functools.cache
def producer(bootstrap, codec, acks, idempotent, timeout_ms):
    # 2.0.2 has no idempotence; 3.x has it on unless it is told otherwise.
    # 2.0.2 does not retry unless told, and a new topic's leader may still be on its way.
    extra = {"enable_idempotence": idempotent} if MODERN else {"retries": 10}
    return KafkaProducer(
        bootstrap_servers=bootstrap,
        compression_type=None if codec == "none" else codec,
        acks=acks if acks == "all" else int(acks),
        linger_ms=2,
        max_block_ms=timeout_ms,
        max_request_size=10000000,
        batch_size=200000,
        **COMMON,
        **extra,
    )


def consumer(bootstrap, reset="none", isolation="read_uncommitted"):
    # 2.0.2 has no isolation levels, and 0.10 no transactions.
    extra = {"allow_auto_create_topics": False} if MODERN else {}
    if isolation == "read_committed":
        extra["isolation_level"] = isolation
    return KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="none" if reset == "error" else reset,
        fetch_max_wait_ms=100,
        max_poll_records=10000,
        **COMMON,
        **extra,
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
    futures = [
        client.send(
            topic,
            key=to_bytes(sent.get("key")),
            value=to_bytes(sent.get("value")),
            headers=headers_of(sent) or None,
            partition=partition,
            timestamp_ms=sent.get("timestamp"),
        )
        for sent in records
    ]
    client.flush(TIMEOUT_SECONDS)
    return [future.get(TIMEOUT_SECONDS).offset for future in futures]


def poll(client, count):
    until = time.monotonic() + TIMEOUT_SECONDS
    records = []
    while len(records) < count and time.monotonic() < until:
        for batch in client.poll(timeout_ms=100).values():
            records += [record(m.offset, m.timestamp, m.key, m.value, m.headers) for m in batch]
    return enough(records, count)


def seek(client, asked, start):
    if start == "earliest":
        client.seek_to_beginning(asked)
    elif start == "latest":
        client.seek_to_end(asked)
    elif isinstance(start, dict):
        client.seek(asked, client.offsets_for_times({asked: start["timestamp"]})[asked].offset)
    else:
        client.seek(asked, start)


def consume(
    bootstrap, topic, start, count, partition=0, reset="none", isolation="read_uncommitted"
):
    client = consumer(bootstrap, reset, isolation)
    try:
        asked = TopicPartition(topic, partition)
        client.assign([asked])
        seek(client, asked, start)
        return poll(client, count)
    finally:
        client.close()


def follow(bootstrap, topic, records, partition=0):
    client = consumer(bootstrap)
    try:
        asked = TopicPartition(topic, partition)
        client.assign([asked])
        client.seek_to_end(asked)
        client.position(asked)  # Resolves the end before anything is written.
        produce(bootstrap, topic, records, partition)
        return poll(client, len(records))
    finally:
        client.close()


def offset(bootstrap, topic, at, partition=0):
    client = consumer(bootstrap)
    try:
        asked = TopicPartition(topic, partition)
        client.assign([asked])
        if at == "earliest":
            return client.beginning_offsets([asked])[asked]
        if at == "latest":
            return client.end_offsets([asked])[asked]
        found = client.offsets_for_times({asked: at})[asked]
        return -1 if found is None else found.offset
    finally:
        client.close()


def listing(bootstrap):
    """The cluster view of a consumer, and the topics. A pinned version asks nothing before."""
    client = consumer(bootstrap)
    try:
        names = sorted(client.topics())
        view = client._client.cluster
        number = "node_id" if MODERN else "nodeId"
        told = [[getattr(node, number), node.host, node.port] for node in view.brokers()]
        return names, told
    finally:
        client.close()


def brokers(bootstrap):
    return listing(bootstrap)[1]


def topics(bootstrap):
    return listing(bootstrap)[0]


def code_of(error):
    """Kafka's number; the client's own errors have none."""
    number = getattr(error, "errno", None)
    return number if isinstance(number, int) and number > 0 else None


def commands():
    served = {f.__name__: f for f in (produce, consume, follow, offset, brokers, topics)}
    served.update(groups.commands(COMMON, code_of))
    if "api_version" in COMMON:
        return served
    if MODERN:
        import kafka_python_admin3 as admin
    else:
        import kafka_python_admin2 as admin
    return {**served, **admin.commands(COMMON)}


if __name__ == "__main__":
    serve(commands(), code_of)
