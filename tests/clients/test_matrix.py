"""The client matrix: the same produce, consume, admin and error cases with every client.

Each test is a case, each parameter a client: a cell is `test_case[client]`. What a client has no
API for is written in `abilities`, and that cell is not generated; nothing here is skipped for what
the broker cannot do. Consumers assign themselves: groups and transactions have files of their own.
"""

from __future__ import annotations

import random
import time
from types import SimpleNamespace

import pytest
from clients.abilities import CLIENTS, CODECS, clients, now_ms, numbered, values

from chronik.protocol import apis
from chronik.protocol.batch import read_header
from chronik.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic

OFFSET_OUT_OF_RANGE = 1
UNKNOWN_TOPIC_OR_PARTITION = 3
MESSAGE_TOO_LARGE = 10
INVALID_TOPIC_EXCEPTION = 17
INVALID_TIMESTAMP = 32
TOPIC_ALREADY_EXISTS = 36
INVALID_PARTITIONS = 37
INVALID_REPLICATION_FACTOR = 38
INVALID_CONFIG = 40
INVALID_RECORD = 87

HOUR_MS = 3_600_000


# A topic of zstd is refused to a Fetch below version 10, whatever its batches are.
FETCH_BELOW_10 = {"kafka-python-2.0.2", "kafka-python-2.0.2-at-0.10", "kafka-python-3-at-0.10"}


# Metadata.


@clients()
def test_sees_the_broker_it_was_given(client, bootstrap):
    host, port = bootstrap.rsplit(":", 1)
    assert [broker[1:] for broker in client.brokers()] == [[host, int(port)]]


@clients()
def test_lists_topics(client, reference, topic):
    reference.create_topic(topic=topic)
    assert topic in client.topics()


@clients("cluster")
def test_describes_the_cluster(client, reference):
    told = client.cluster()
    assert told["cluster_id"]
    assert told["cluster_id"] == reference.cluster()["cluster_id"]
    assert told["brokers"] == [broker[0] for broker in client.brokers()]
    assert told["controller"] in told["brokers"]


# Produce and consume.


@clients()
def test_producing_creates_the_topic(client, topic):
    assert client.produce(topic, numbered(3)) == [0, 1, 2]
    assert topic in client.topics()
    assert values(client.consume(topic, "earliest", 3)) == values(numbered(3))


@pytest.mark.parametrize(
    ("client", "codec"),
    [(name, codec) for name in CLIENTS for codec in sorted(CLIENTS[name].codecs)],
    indirect=["client"],
)
def test_round_trip_with_codec(client, reference, topic, codec):
    reference.create_topic(topic=topic)
    # Repetitive enough that a codec is used, and more than one batch of it.
    records = numbered(50, prefix="abc" * 100)
    assert client.produce(topic, records, codec=codec) == list(range(50))
    assert client.produce(topic, records, codec=codec) == list(range(50, 100))
    told = client.consume(topic, "earliest", 100)
    assert [(r["offset"], r["key"], r["value"]) for r in told] == [
        (i, records[i % 50]["key"], records[i % 50]["value"]) for i in range(100)
    ]


@pytest.mark.parametrize(
    ("client", "codec"),
    [(name, codec) for name in CLIENTS for codec in sorted(CLIENTS[name].codecs)],
    indirect=["client"],
)
def test_the_codec_is_really_used(client, reference, topic, bootstrap, connect, codec):
    """librdkafka sends what it may not compress as it is, and says nothing."""
    reference.create_topic(topic=topic)
    client.produce(topic, [{"value": b"abc" * 1000}] * 10, codec=codec)
    asked = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=100_000)
    request = FetchRequest(
        max_wait_ms=0, min_bytes=1, topics=[FetchTopic(topic=topic, partitions=[asked])]
    )
    answer = connect(SimpleNamespace(bootstrap=bootstrap)).ask(apis.FETCH, 10, request)
    header = read_header(answer.responses[0].partitions[0].records)
    assert header.codec == ["none", "gzip", "snappy", "lz4", "zstd"].index(codec)


@pytest.mark.parametrize(
    ("client", "codec"),
    [
        (name, codec)
        for name in CLIENTS
        for codec in sorted(CODECS - {"zstd"} if name in FETCH_BELOW_10 else CODECS)
    ],
    indirect=["client"],
)
def test_a_codec_of_the_topic(client, reference, topic, codec):
    """The broker compresses anew: what our codecs write, every client's codecs read."""
    name = "uncompressed" if codec == "none" else codec
    reference.create_topic(topic=topic, configs={"compression.type": name})
    records = numbered(50, prefix="abc" * 100)
    client.produce(topic, records, codec="gzip")
    assert values(client.consume(topic, "earliest", 50)) == values(records)


@pytest.mark.parametrize("acks", ["0", "1", "all"])
@clients()
def test_acks(client, reference, topic, acks):
    reference.create_topic(topic=topic)
    client.produce(topic, numbered(10), acks=acks)
    assert values(client.consume(topic, "earliest", 10)) == values(numbered(10))


@clients("idempotence")
def test_idempotent_producer(client, reference, topic):
    reference.create_topic(topic=topic)
    for start in range(0, 100, 20):
        offsets = client.produce(topic, numbered(20), idempotent=True)
        assert offsets == list(range(start, start + 20))
    assert values(client.consume(topic, "earliest", 100)) == values(numbered(20)) * 5


@clients()
def test_ten_thousand_small_records(client, reference, topic):
    reference.create_topic(topic=topic)
    records = numbered(10_000)
    assert client.produce(topic, records) == list(range(10_000))
    told = client.consume(topic, "earliest", 10_000)
    assert [r["offset"] for r in told] == list(range(10_000))
    assert [(r["key"], r["value"]) for r in told] == [(r["key"], r["value"]) for r in records]


@clients()
def test_a_megabyte_in_one_record(client, reference, topic):
    reference.create_topic(topic=topic)
    # Just below Kafka's default `max.message.bytes` of 1,048,588, and incompressible.
    value = random.Random(topic).randbytes(1_040_000)
    client.produce(topic, [{"value": value}, {"value": b"after"}])
    assert values(client.consume(topic, "earliest", 2)) == [value, b"after"]


@clients()
def test_a_megabyte_in_one_batch(client, reference, topic):
    reference.create_topic(topic=topic, configs={"max.message.bytes": "2000000"})
    records = [{"value": random.Random(i).randbytes(10_000)} for i in range(100)]
    client.produce(topic, records)
    assert values(client.consume(topic, "earliest", 100)) == values(records)


@clients("big_fetch")
def test_a_record_above_the_fetch_limit(client, reference, topic):
    reference.create_topic(topic=topic, configs={"max.message.bytes": "5000000"})
    # Clients ask for 1 MiB a partition; the first batch comes whole all the same.
    value = random.Random(topic).randbytes(3_000_000)
    client.produce(topic, [{"value": value}])
    client.produce(topic, [{"value": b"after"}])
    assert values(client.consume(topic, "earliest", 2)) == [value, b"after"]


@clients()
def test_null_and_empty_are_two_things(client, reference, topic):
    reference.create_topic(topic=topic)
    # A record of nothing at all is what several clients refuse to send.
    pairs = [(None, b"v"), (b"", b"v"), (b"k", b""), (b"k", None)]
    client.produce(topic, [{"key": key, "value": value} for key, value in pairs])
    told = client.consume(topic, "earliest", len(pairs))
    assert [(r["key"], r["value"]) for r in told] == pairs


@clients()
def test_bytes_are_not_text(client, reference, topic):
    reference.create_topic(topic=topic)
    everything = bytes(range(256))
    client.produce(topic, [{"key": everything, "value": everything[::-1]}])
    (told,) = client.consume(topic, "earliest", 1)
    assert (told["key"], told["value"]) == (everything, everything[::-1])


@clients("headers")
def test_headers(client, reference, topic):
    reference.create_topic(topic=topic)
    headers = [("trace", b"1"), ("trace", b"2"), ("näme", "wört".encode())]
    client.produce(topic, [{"value": b"with", "headers": headers}, {"value": b"without"}])
    told = client.consume(topic, "earliest", 2)
    assert [r["headers"] for r in told] == [headers, []]


@clients("timestamps")
def test_timestamps_of_the_producer(client, reference, topic):
    reference.create_topic(topic=topic)
    stamps = [now_ms() - HOUR_MS + i * 1000 for i in range(5)]
    client.produce(topic, [{"value": b"v", "timestamp": stamp} for stamp in stamps])
    assert [r["timestamp"] for r in client.consume(topic, "earliest", 5)] == stamps


@clients()
def test_timestamps_of_the_broker(client, reference, topic):
    reference.create_topic(topic=topic, configs={"message.timestamp.type": "LogAppendTime"})
    before = now_ms()
    records = numbered(2)
    if "timestamps" in CLIENTS[client.name].can:
        records = [record | {"timestamp": before - HOUR_MS} for record in records]
    client.produce(topic, records)
    # The broker's clock and ours are one machine's, read to the millisecond.
    for told in client.consume(topic, "earliest", 2):
        assert before <= told["timestamp"] <= now_ms()


@clients()
def test_consume_from_the_middle(client, reference, topic):
    reference.create_topic(topic=topic)
    # One batch: the fetch answers all of it, and the client drops what lies before.
    reference.produce(topic, numbered(100))
    told = client.consume(topic, 37, 63)
    assert [r["offset"] for r in told] == list(range(37, 100))
    assert values(told) == values(numbered(100))[37:]


@clients("by_timestamp")
def test_consume_by_timestamp(client, reference, topic):
    stamps = timed_topic(reference, topic)
    told = client.consume(topic, {"timestamp": stamps[6] - 500}, 4)
    assert [r["offset"] for r in told] == [6, 7, 8, 9]


@clients()
def test_consume_what_comes_after_the_end(client, reference, topic):
    reference.create_topic(topic=topic)
    reference.produce(topic, numbered(5, prefix="before"))
    told = client.follow(topic, numbered(3, prefix="after"))
    assert [r["offset"] for r in told] == [5, 6, 7]
    assert values(told) == values(numbered(3, prefix="after"))


@clients()
def test_partitions_are_separate_logs(client, reference, topic):
    reference.create_topic(topic=topic, partitions=3)
    for partition in range(3):
        records = numbered(4, prefix=f"p{partition}")
        assert client.produce(topic, records, partition=partition) == [0, 1, 2, 3]
    for partition in range(3):
        told = client.consume(topic, "earliest", 4, partition=partition)
        assert values(told) == values(numbered(4, prefix=f"p{partition}"))


# Offsets.


def timed_topic(reference, topic) -> list[int]:
    """A topic of ten records, a second apart, each a batch of its own."""
    reference.create_topic(topic=topic)
    stamps = [now_ms() - HOUR_MS + i * 1000 for i in range(10)]
    for stamp in stamps:
        reference.produce(topic, [{"value": b"v", "timestamp": stamp}])
    return stamps


@clients()
def test_offsets_of_the_ends(client, reference, topic):
    reference.create_topic(topic=topic)
    assert client.offset(topic=topic, at="earliest") == 0
    assert client.offset(topic=topic, at="latest") == 0
    reference.produce(topic, numbered(7))
    reference.delete_records(topic=topic, before=2)
    assert client.offset(topic=topic, at="earliest") == 2
    assert client.offset(topic=topic, at="latest") == 7


@clients("by_timestamp")
def test_offsets_by_timestamp(client, reference, topic):
    stamps = timed_topic(reference, topic)
    assert client.offset(topic=topic, at=stamps[0] - 1) == 0
    assert client.offset(topic=topic, at=stamps[4]) == 4
    assert client.offset(topic=topic, at=stamps[4] + 1) == 5
    assert client.offset(topic=topic, at=stamps[9] + 1) == -1


# Between clients.


class SharedLog:
    """One topic that all clients write first, in each of their codecs; then all read it.

    zstd has a partition of its own, because a reader of message format 1 cannot have it.
    """

    def __init__(self, bound) -> None:
        self._topic = f"shared-{now_ms()}"
        self._read: dict[str, list[tuple[bytes, bytes]]] = {}
        self._written: list[tuple[int, bytes, bytes]] = []
        bound("confluent-kafka").create_topic(topic=self._topic, partitions=2)
        for writer in map(bound, CLIENTS):
            for codec in sorted(CLIENTS[writer.name].codecs):
                partition = int(codec == "zstd")
                key, values = writer.name.encode(), [f"{codec}-{i}".encode() for i in range(10)]
                sent = [{"key": key, "value": value * 20} for value in values]
                writer.produce(self._topic, sent, partition=partition, codec=codec)
                self._written += [(partition, key, record["value"]) for record in sent]

    def written(self, writer: str, partitions: tuple[int, ...]) -> list[tuple[bytes, bytes]]:
        """What this client wrote there, in order."""
        theirs = [entry for entry in self._written if entry[1] == writer.encode()]
        return [(key, value) for at in partitions for p, key, value in theirs if p == at]

    def read(self, client, partitions: tuple[int, ...]) -> list[tuple[bytes, bytes]]:
        """All that is there as this client sees it, read once."""
        if client.name not in self._read:
            pairs = []
            for at in partitions:
                count = sum(1 for entry in self._written if entry[0] == at)
                told = client.consume(self._topic, "earliest", count, partition=at)
                pairs += [(record["key"], record["value"]) for record in told]
            self._read[client.name] = pairs
        return self._read[client.name]


@pytest.fixture(scope="module")
def shared_log(bound):
    return SharedLog(bound)


@pytest.mark.parametrize("writer", CLIENTS)
@clients()
def test_reads_what_was_written_by(client, writer, shared_log):
    partitions = (0, 1) if "zstd" in CLIENTS[client.name].can else (0,)
    told = shared_log.read(client, partitions)
    theirs = [pair for pair in told if pair[0] == writer.encode()]
    assert theirs == shared_log.written(writer, partitions)


# Topics.


@clients("admin")
def test_create_describe_and_delete_a_topic(client, topic):
    client.create_topic(topic=topic, partitions=3, configs={"retention.ms": "86400000"})
    (broker,) = (broker[0] for broker in client.brokers())
    assert client.describe_topic(topic=topic) == [
        {"partition": i, "leader": broker, "replicas": [broker], "isr": [broker]} for i in range(3)
    ]
    client.delete_topic(topic=topic)
    assert topic not in client.topics()


@clients("admin")
def test_a_deleted_topic_starts_again_at_zero(client, reference, topic):
    client.create_topic(topic=topic)
    reference.produce(topic, numbered(5))
    client.delete_topic(topic=topic)
    client.create_topic(topic=topic)
    assert client.offset(topic=topic, at="latest") == 0


@clients("admin")
def test_validate_only_creates_nothing(client, topic):
    client.create_topic(topic=topic, validate_only=True)
    assert topic not in client.topics()


@clients("admin")
def test_a_topic_exists_once(client, topic):
    client.create_topic(topic=topic)
    assert client.refusal("create_topic", topic=topic).code == TOPIC_ALREADY_EXISTS


@pytest.mark.parametrize("name", ["no spaces", "a/b", "x" * 250])
@clients("admin")
def test_invalid_topic_names(client, name):
    assert client.refusal("create_topic", topic=name).code == INVALID_TOPIC_EXCEPTION


@clients("admin")
def test_invalid_partition_count(client, topic):
    assert client.refusal("create_topic", topic=topic, partitions=0).code == INVALID_PARTITIONS


@clients("admin")
def test_more_replicas_than_brokers(client, topic):
    refused = client.refusal("create_topic", topic=topic, replication_factor=3)
    assert refused.code == INVALID_REPLICATION_FACTOR


@pytest.mark.parametrize("config", [{"no.such.config": "1"}, {"retention.ms": "soon"}])
@clients("admin")
def test_invalid_topic_configs(client, topic, config):
    assert client.refusal("create_topic", topic=topic, configs=config).code == INVALID_CONFIG
    assert topic not in client.topics()


@clients("admin")
def test_unknown_topics(client, topic, strict_bootstrap):
    # Asking is creating for some clients, unless the broker forbids it.
    strict = client.at(strict_bootstrap)
    assert strict.refusal("describe_topic", topic=topic).code == UNKNOWN_TOPIC_OR_PARTITION
    assert strict.refusal("delete_topic", topic=topic).code == UNKNOWN_TOPIC_OR_PARTITION


@clients("partitions")
def test_create_partitions(client, topic):
    client.create_topic(topic=topic, partitions=2)
    client.create_partitions(topic=topic, total=5)
    assert [p["partition"] for p in client.describe_topic(topic=topic)] == [0, 1, 2, 3, 4]
    fewer = client.refusal("create_partitions", topic=topic, total=3)
    assert fewer.code == INVALID_PARTITIONS
    unknown = client.refusal("create_partitions", topic=f"{topic}-unknown", total=3)
    assert unknown.code == UNKNOWN_TOPIC_OR_PARTITION


# Configs.


@clients("configs")
def test_topic_configs(client, topic):
    given = {"retention.ms": "86400000", "cleanup.policy": "compact"}
    client.create_topic(topic=topic, configs=given)
    told = client.configs(kind="topic", name=topic)
    assert told.items() >= given.items()
    assert told["max.message.bytes"] == "1048588"
    client.set_configs(kind="topic", name=topic, values={"retention.ms": "7200000"})
    assert client.configs(kind="topic", name=topic)["retention.ms"] == "7200000"


@clients("configs")
def test_broker_configs(client):
    (broker,) = (str(broker[0]) for broker in client.brokers())
    told = client.configs(kind="broker", name=broker)
    assert told["num.partitions"] == "1"
    wanted = str(int(told["log.retention.ms"] or 604_800_000) - 1)
    client.set_configs(kind="broker", name=broker, values={"log.retention.ms": wanted})
    # An Apache Kafka applies it to the broker some time after its answer.
    until = time.monotonic() + 5
    while told["log.retention.ms"] != wanted and time.monotonic() < until:
        told = client.configs(kind="broker", name=broker)
    assert told["log.retention.ms"] == wanted


@pytest.mark.parametrize("config", [{"no.such.config": "1"}, {"retention.ms": "soon"}])
@clients("configs")
def test_invalid_config_changes(client, topic, config):
    client.create_topic(topic=topic)
    before = client.configs(kind="topic", name=topic)
    refused = client.refusal("set_configs", kind="topic", name=topic, values=config)
    assert refused.code == INVALID_CONFIG
    assert client.configs(kind="topic", name=topic) == before


# Records that go.


@clients("delete_records")
def test_delete_records(client, topic):
    client.create_topic(topic=topic)
    client.produce(topic, numbered(10))
    assert client.delete_records(topic=topic, before=4) == 4
    assert client.offset(topic=topic, at="earliest") == 4
    assert [r["offset"] for r in client.consume(topic, "earliest", 6)] == [4, 5, 6, 7, 8, 9]
    assert client.delete_records(topic=topic, before=-1) == 10
    refused = client.refusal("delete_records", topic=topic, before=11)
    assert refused.code == OFFSET_OUT_OF_RANGE


# Errors of produce and fetch.


@clients()
def test_a_record_above_the_topics_limit(client, reference, topic):
    reference.create_topic(topic=topic, configs={"max.message.bytes": "10000"})
    refused = client.refusal("produce", topic, [{"value": bytes(50_000)}])
    assert refused.code == MESSAGE_TOO_LARGE
    assert client.produce(topic, [{"value": bytes(5_000)}]) == [0]


@clients("timestamps")
def test_a_timestamp_out_of_bounds(client, reference, topic):
    limits = {"message.timestamp.after.max.ms": str(HOUR_MS)}
    reference.create_topic(topic=topic, configs=limits)
    records = [{"value": b"v", "timestamp": now_ms() + 2 * HOUR_MS}]
    assert client.refusal("produce", topic, records).code == INVALID_TIMESTAMP
    assert client.offset(topic=topic, at="latest") == 0


@clients()
def test_a_compacted_topic_needs_keys(client, reference, topic):
    reference.create_topic(topic=topic, configs={"cleanup.policy": "compact"})
    assert client.refusal("produce", topic, [{"value": b"v"}]).code == (
        # These have no name for the error, and so no number.
        None if client.name.startswith(("kafka-python-2.0.2", "aiokafka")) else INVALID_RECORD
    )
    assert client.offset(topic=topic, at="latest") == 0
    assert client.produce(topic, [{"key": b"k", "value": b"v"}]) == [0]


@clients()
def test_no_topic_without_auto_creation(client, topic, strict_bootstrap):
    strict = client.at(strict_bootstrap)
    strict.refusal("produce", topic, numbered(1), timeout_ms=1000)
    assert topic not in strict.topics()


@clients()
def test_offset_out_of_range(client, reference, topic):
    reference.create_topic(topic=topic)
    reference.produce(topic, numbered(5))
    assert client.refusal("consume", topic, 1_000, 1).code == OFFSET_OUT_OF_RANGE
    (told,) = client.consume(topic, 1_000, 1, reset="earliest")
    assert (told["offset"], told["value"]) == (0, b"value-0")
