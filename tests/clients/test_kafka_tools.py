"""Kafka's own command line tools against our broker, as its users first meet a Kafka.

Each tool is its main class of the Maven artifacts, run by the JVM with the options of its shell
script. The tests read what a person would read: the tools' standard output and their exit code.
"""

from __future__ import annotations

import asyncio
import json
import subprocess

import pytest
from clients.abilities import now_ms
from clients.conftest import eventually

from chronik.protocol.records import Record, build_batch
from chronik.testing import Broker

MAIN = {
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-cluster": "org.apache.kafka.tools.ClusterTool",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
    "kafka-dump-log": "org.apache.kafka.tools.DumpLogSegments",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
}
# A tool lives for about a second: a small heap and the quick compiler suit it.
JAVA = ("java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
TOOL_SECONDS_MAX = 60


class Tools:
    """Runs a tool to its end; its output, or an assertion that shows what it said."""

    def __init__(self, class_path: str, bootstrap: str) -> None:
        self._class_path = class_path
        self.bootstrap = bootstrap

    def run(self, tool: str, *arguments: str, given: str = "") -> str:
        done = self._run(tool, arguments, given)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def ask(self, tool: str, *arguments: str, given: str = "") -> str:
        """The same, for the tools that find their broker by --bootstrap-server."""
        return self.run(tool, "--bootstrap-server", self.bootstrap, *arguments, given=given)

    def refusal(self, tool: str, *arguments: str) -> str:
        """All that a tool said that must not succeed."""
        done = self._run(tool, ("--bootstrap-server", self.bootstrap, *arguments), "")
        assert done.returncode != 0, done.stdout
        return done.stdout + done.stderr

    def _run(self, tool, arguments, given) -> subprocess.CompletedProcess[str]:
        command = [*JAVA, "-cp", self._class_path, MAIN[tool], *arguments]
        return subprocess.run(
            command, input=given, capture_output=True, text=True, timeout=TOOL_SECONDS_MAX
        )


@pytest.fixture
def tools(tools_class_path: str, bootstrap: str) -> Tools:
    return Tools(tools_class_path, bootstrap)


def test_topics(tools, topic):
    create = ("--create", "--topic", topic, "--partitions", "2", "--replication-factor", "1")
    told = tools.ask("kafka-topics", *create, "--config", "retention.ms=86400000")
    assert f"Created topic {topic}." in told
    assert "already exists" in tools.refusal("kafka-topics", *create)
    assert topic in tools.ask("kafka-topics", "--list").splitlines()

    tools.ask("kafka-topics", "--alter", "--topic", topic, "--partitions", "3")
    described = tools.ask("kafka-topics", "--describe", "--topic", topic)
    first, *partitions = described.splitlines()
    assert "PartitionCount: 3" in first
    assert "ReplicationFactor: 1" in first
    assert "retention.ms=86400000" in first
    assert [f"Partition: {i}" in line for i, line in enumerate(partitions)] == [True] * 3

    tools.ask("kafka-topics", "--delete", "--topic", topic)
    assert topic not in tools.ask("kafka-topics", "--list").splitlines()
    assert "does not exist" in tools.refusal("kafka-topics", "--describe", "--topic", topic)


def test_topic_configs(tools, reference, topic):
    reference.create_topic(topic=topic)
    entity = ("--entity-type", "topics", "--entity-name", topic)
    alter = ("--alter", *entity)
    tools.ask("kafka-configs", *alter, "--add-config", "retention.ms=1000,cleanup.policy=compact")
    described = tools.ask("kafka-configs", "--describe", *entity)
    assert "retention.ms=1000 " in described
    assert "DYNAMIC_TOPIC_CONFIG:cleanup.policy=compact" in described
    tools.ask("kafka-configs", *alter, "--delete-config", "retention.ms")
    assert "retention.ms" not in tools.ask("kafka-configs", "--describe", *entity)
    assert "nonsense" in tools.refusal("kafka-configs", *alter, "--add-config", "nonsense=1")


def test_broker_configs(tools):
    entity = ("--entity-type", "brokers", "--entity-default")
    tools.ask("kafka-configs", "--alter", *entity, "--add-config", "log.retention.ms=500000000")
    described = tools.ask("kafka-configs", "--describe", *entity)
    assert "log.retention.ms=500000000 " in described
    tools.ask("kafka-configs", "--alter", *entity, "--delete-config", "log.retention.ms")
    assert "log.retention.ms" not in tools.ask("kafka-configs", "--describe", *entity)
    everything = tools.ask(
        "kafka-configs", "--describe", "--all", "--entity-type", "brokers", "--entity-name", "1"
    )
    assert "num.partitions=1 " in everything


def test_group_configs(tools, topic):
    entity = ("--entity-type", "groups", "--entity-name", topic)  # A group that is not there.
    setting = "consumer.session.timeout.ms"
    tools.ask("kafka-configs", "--alter", *entity, "--add-config", f"{setting}=50000")
    described = tools.ask("kafka-configs", "--describe", *entity)
    assert f"DYNAMIC_GROUP_CONFIG:{setting}=50000" in described
    assert described in tools.ask("kafka-configs", "--describe", "--entity-type", "groups")
    refused = tools.refusal("kafka-configs", "--alter", *entity, "--add-config", f"{setting}=9")
    assert "group.consumer.min.session.timeout.ms" in refused
    tools.ask("kafka-configs", "--alter", *entity, "--delete-config", setting)
    assert setting not in tools.ask("kafka-configs", "--describe", *entity)


def test_console_producer_and_consumer(tools, topic):
    properties = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
    tools.ask("kafka-console-producer", "--topic", topic, *properties, given="a:1\nb:2\na:3\n")
    where = ("--topic", topic, "--partition", "0")
    keys = ("--formatter-property", "print.key=true", "--formatter-property", "print.offset=true")
    told = tools.ask(
        "kafka-console-consumer", *where, "--offset", "earliest", "--max-messages", "3", *keys
    )
    assert told.splitlines() == ["Offset:0\ta\t1", "Offset:1\tb\t2", "Offset:2\ta\t3"]
    told = tools.ask("kafka-console-consumer", *where, "--offset", "2", "--max-messages", "1")
    assert told.splitlines() == ["3"]


def test_console_consumer_with_and_without_a_group(tools, reference, topic):
    reference.create_topic(topic=topic, partitions=2)
    for partition in range(2):
        reference.produce(topic, [{"value": b"v%d" % partition}] * 3, partition=partition)
    read = ("kafka-console-consumer", "--topic", topic, "--from-beginning", "--max-messages", "6")
    assert sorted(tools.ask(*read).split()) == ["v0"] * 3 + ["v1"] * 3
    group = ("--group", f"console-{topic}")
    assert sorted(tools.ask(*read, *group).split()) == ["v0"] * 3 + ["v1"] * 3
    reference.produce(topic, [{"value": b"later"}], partition=1)
    # The group goes on where it was, whatever it is told about a beginning.
    one = ("kafka-console-consumer", "--topic", topic, "--from-beginning", "--max-messages", "1")
    assert tools.ask(*one, *group).split() == ["later"]
    committed = reference.group_offsets(group=f"console-{topic}")
    assert [told[:3] for told in committed] == [[topic, 0, 3], [topic, 1, 4]]


def test_consumer_perf(tools, reference, topic):
    reference.create_topic(topic=topic)
    reference.produce(topic, [{"value": bytes(100)}] * 5000)
    # `--messages` is the option of every release; 4.x only calls it deprecated.
    told = tools.ask(
        "kafka-consumer-perf-test", "--topic", topic, "--messages", "5000", "--group", f"g-{topic}"
    )
    heading, figures = (line.split(", ") for line in told.splitlines() if ", " in line)
    assert figures[heading.index("data.consumed.in.nMsg")] == "5000"


# How the first line of a table begins, among other words of the tools.
HEADINGS = ("GROUP", "TransactionalId", "Topic ", "Topic\t")


def table(told: str) -> list[dict[str, str]]:
    """The rows of a tool's table, by its headings; headings of two words are one here."""
    lines = [line for line in told.splitlines() if line.strip()]
    first = next(i for i, line in enumerate(lines) if line.startswith(HEADINGS))
    headings = lines[first].replace("COORDINATOR (ID)", "COORDINATOR ID").split()
    return [dict(zip(headings, line.split(), strict=False)) for line in lines[first + 1 :]]


def test_consumer_groups(tools, reference, topic, join):
    group = f"group-{topic}"
    reference.create_topic(topic=topic, partitions=2)
    reference.produce(topic, [{"value": b"v"}] * 10)
    member = join(reference, topics=[topic])
    eventually(lambda: len(member.assigned) == 2)
    member.call("commit", offsets=[[topic, 0, 4, ""], [topic, 1, 0, ""]])

    ask = ("kafka-consumer-groups", "--group", group)
    assert group in tools.ask("kafka-consumer-groups", "--list").split()
    rows = {row["PARTITION"]: row for row in table(tools.ask(*ask, "--describe"))}
    assert (rows["0"]["CURRENT-OFFSET"], rows["0"]["LOG-END-OFFSET"]) == ("4", "10")
    assert (rows["0"]["LAG"], rows["1"]["LAG"]) == ("6", "0")
    (told,) = table(tools.ask(*ask, "--describe", "--members"))
    assert told["#PARTITIONS"] == "2"
    told = tools.ask(*ask, "--describe", "--state")
    assert "Stable" in told
    reset = ("--reset-offsets", "--to-earliest", "--topic", topic, "--execute")
    assert "Stable" in tools.ask(*ask, *reset), "no reset while the group has members"

    member.close()
    assert {row["NEW-OFFSET"] for row in table(tools.ask(*ask, *reset))} == {"0"}
    assert [told[2] for told in reference.group_offsets(group=group)] == [0, 0]
    told = tools.ask(*ask, "--delete-offsets", "--topic", f"{topic}:1")
    assert "Successful" in told
    assert [told[:3] for told in reference.group_offsets(group=group)] == [[topic, 0, 0]]
    assert "was successful" in tools.ask(*ask, "--delete")
    assert group not in tools.ask("kafka-consumer-groups", "--list").split()


def test_transactions(tools, bound, reference, topic):
    name = f"id-{topic}"
    reference.create_topic(topic=topic)
    writer = bound("java-4")
    writer.txn_open(producer=name, transactional_id=name)
    writer.txn_begin(producer=name)
    writer.txn_produce(name, [{"value": b"open"}], topic=topic)

    ask = ("kafka-transactions", "--bootstrap-server", tools.bootstrap)
    rows = {row["TransactionalId"]: row for row in table(tools.run(*ask, "list"))}
    assert rows[name]["TransactionState"] == "Ongoing"
    told = tools.run(*ask, "describe", "--transactional-id", name)
    assert "Ongoing" in told
    assert f"{topic}-0" in told
    where = ("--topic", topic, "--partition", "0")
    producers = tools.run(*ask, "describe-producers", *where)
    assert rows[name]["ProducerId"] in producers.split()
    # It is open, but its coordinator knows it: nothing hangs.
    hanging = ("find-hanging", "--broker-id", "1", "--max-transaction-timeout", "0")
    assert topic not in tools.run(*ask, *hanging)

    tools.run(*ask, "abort", *where, "--start-offset", "0")
    reference.produce(topic, [{"value": b"end"}])
    assert [told["value"] for told in reference.consume(topic, "earliest", 1)] == [b"end"]


def leave_open(broker: Broker, topic: str, written_ms: int) -> None:
    """Write a record of a transaction into the partition itself, behind the coordinator's back."""
    node, loop = broker.node, broker._loop
    assert node is not None
    assert loop is not None
    batch = build_batch(
        [Record(0, written_ms, b"k", b"hanging")],
        producer_id=9,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )

    async def append() -> None:
        partition = node.replicas.find(node.metadata.image.topics[topic], 0)
        assert partition is not None
        partition.append(batch, version=11, acks=1, now_ms=written_ms, verify=False)

    asyncio.run_coroutine_threadsafe(append(), loop).result(10)


def test_hanging_transactions(tools_class_path, reference, topic):
    """An open transaction that no coordinator knows, as old bugs have left them, is aborted."""
    with Broker() as broker:
        here = reference.at(broker.bootstrap)
        here.create_topic(topic=topic)
        leave_open(broker, topic, now_ms() - 3_600_000)
        here.produce(topic, [{"value": b"after"}])

        tools = Tools(tools_class_path, broker.bootstrap)
        ask = ("kafka-transactions", "--bootstrap-server", broker.bootstrap)
        (found,) = table(tools.run(*ask, "find-hanging", "--broker-id", "1"))
        assert (found["Topic"], found["ProducerId"], found["StartOffset"]) == (topic, "9", "0")
        where = ("--topic", topic, "--partition", "0", "--start-offset", "0")
        tools.run(*ask, "abort", *where)
        assert [told["value"] for told in here.consume(topic, "earliest", 1)] == [b"after"]


def test_producer_perf(tools, reference, topic):
    reference.create_topic(topic=topic)
    load = ("--num-records", "5000", "--record-size", "200", "--throughput", "-1")
    server = f"bootstrap.servers={tools.bootstrap}"
    # `--producer-props` is the option of every release; 4.x only calls it deprecated.
    props = ("--producer-props", server, "acks=all", "compression.type=lz4")
    told = tools.run("kafka-producer-perf-test", "--topic", topic, *load, *props)
    assert "5000 records sent" in told
    assert reference.offset(topic=topic, at="latest") == 5000


def test_log_dirs(tools, reference, topic):
    reference.create_topic(topic=topic, partitions=2)
    reference.produce(topic, [{"value": bytes(10_000)}])
    told = tools.ask("kafka-log-dirs", "--describe", "--topic-list", topic)
    (answer,) = (json.loads(line) for line in told.splitlines() if line.startswith("{"))
    (log_dir,) = answer["brokers"][0]["logDirs"]
    assert log_dir["error"] is None
    sizes = {entry["partition"]: entry["size"] for entry in log_dir["partitions"]}
    assert sizes.keys() == {f"{topic}-0", f"{topic}-1"}
    assert 10_000 < sizes[f"{topic}-0"] < 10_200
    assert sizes[f"{topic}-1"] == 0


def test_get_offsets_and_delete_records(tools, reference, topic, tmp_path):
    reference.create_topic(topic=topic, partitions=2)
    reference.produce(topic, [{"value": b"v"}] * 10)
    ask = ("kafka-get-offsets", "--topic", topic)
    assert tools.ask(*ask).split() == [f"{topic}:0:10", f"{topic}:1:0"]

    wanted = {"partitions": [{"topic": topic, "partition": 0, "offset": 6}], "version": 1}
    request = tmp_path / "delete.json"
    request.write_text(json.dumps(wanted))
    told = tools.ask("kafka-delete-records", "--offset-json-file", str(request))
    assert "low_watermark: 6" in told
    assert tools.ask(*ask, "--time", "earliest").split() == [f"{topic}:0:6", f"{topic}:1:0"]


def test_broker_api_versions(tools):
    told = tools.ask("kafka-broker-api-versions")
    for api in ("Produce(0)", "Fetch(1)", "Metadata(3)", "ApiVersions(18)", "DescribeCluster(60)"):
        assert api in told
    # The newest tool finds a version to use for each API that it names.
    used = [line for line in told.splitlines() if "usable:" in line]
    assert len(used) >= 15


def test_cluster_id(tools, reference):
    told = tools.run("kafka-cluster", "cluster-id", "--bootstrap-server", tools.bootstrap)
    assert reference.cluster()["cluster_id"] in told


def test_dump_log_reads_our_segments(tools, reference, topic, tmp_path):
    with Broker(data_dir=str(tmp_path / "data")) as broker:
        writer = reference.at(broker.bootstrap)
        writer.produce(topic, [{"key": b"k", "value": b"plain"}])
        packed = [{"key": b"k", "value": b"packed-%d" % i} for i in range(3)]
        writer.produce(topic, packed, codec="zstd")
    (segment,) = (
        path
        for path in (tmp_path / "data").rglob("*.log")
        if topic in str(path) and path.stat().st_size
    )
    told = tools.run("kafka-dump-log", "--print-data-log", "--files", str(segment))
    assert "isvalid: true" in told
    assert "isvalid: false" not in told
    assert "compresscodec: zstd" in told
    payloads = [line.rsplit("payload: ", 1)[1] for line in told.splitlines() if "payload: " in line]
    assert payloads == ["plain", "packed-0", "packed-1", "packed-2"]
