"""Kafka's console producer and consumer, with each single node of a cluster as the only bootstrap.

The topics are led elsewhere: the tools find the leaders by what that one node tells them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from clients.test_kafka_tools import Tools
from cluster_processes import ClusterProcesses
from replicated_topics import create_on

EVERYBODY = [1, 2, 3]
RECORDS = [f"record-{number}" for number in range(20)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    directory: Path = tmp_path_factory.mktemp("cluster")
    with ClusterProcesses(directory) as running:
        yield running


@pytest.mark.parametrize("bootstrap_id", EVERYBODY)
def test_any_node_is_enough(
    cluster: ClusterProcesses, tools_class_path: str, bootstrap_id: int
) -> None:
    tools = Tools(tools_class_path, f"127.0.0.1:{cluster.ports[bootstrap_id]}")
    others = [each for each in EVERYBODY if each != bootstrap_id]
    topic = f"elsewhere-{bootstrap_id}"
    create_on(cluster, topic, others, others[::-1])
    tools.ask("kafka-console-producer", "--topic", topic, given="\n".join(RECORDS) + "\n")
    told = tools.ask(
        "kafka-console-consumer",
        *("--topic", topic, "--from-beginning", "--group", topic),
        *("--max-messages", str(len(RECORDS)), "--timeout-ms", "20000"),
    )
    assert sorted(told.splitlines()) == sorted(RECORDS)
    assert topic in tools.ask("kafka-consumer-groups", "--list").splitlines()


def test_what_one_node_took_another_one_gives(
    cluster: ClusterProcesses, tools_class_path: str
) -> None:
    create_on(cluster, "through", [3, 1, 2])
    into, out = (Tools(tools_class_path, f"127.0.0.1:{cluster.ports[each]}") for each in (1, 2))
    into.ask("kafka-console-producer", "--topic", "through", given="\n".join(RECORDS) + "\n")
    arguments = ("--topic", "through", "--from-beginning", "--max-messages", str(len(RECORDS)))
    told = out.ask("kafka-console-consumer", *arguments, "--timeout-ms", "20000")
    assert told.splitlines() == RECORDS
