"""One Spark for all tests here, one broker, and what a test does with a topic.

`CHRONIK_TEST_BOOTSTRAP` points the tests at another broker: at an Apache Kafka they show that the
source works there too.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

sys.path.insert(0, str(Path(__file__).parent))
from pipeline_world import QUICK_JAVA

from chronik.testing import Broker

SETUP_PATH = Path(__file__).parents[2] / "scripts" / "clients" / "setup.py"
_spec = importlib.util.spec_from_file_location("client_environments", SETUP_PATH)
assert _spec is not None
assert _spec.loader is not None
environments = importlib.util.module_from_spec(_spec)
sys.modules.setdefault(_spec.name, environments)  # Dataclasses look their module up there.
_spec.loader.exec_module(environments)

TIMEOUT_S = 30.0
_numbers = itertools.count()


def kafka_jars() -> str:
    """Spark's own connector, or nothing where this machine cannot have it."""
    try:
        return ",".join(map(str, sorted(environments.prepare("spark-kafka").glob("*.jar"))))
    except environments.Unavailable:
        if os.environ.get("CI", "") not in ("", "false", "0"):
            raise
        return ""


@pytest.fixture(scope="session", autouse=True)
def quick_java() -> Iterator[None]:
    """Every JVM here."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in QUICK_JAVA.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def kafka_class_path() -> str:
    """Apache Kafka's own server and tools, where this machine can have them."""
    try:
        return f"{environments.prepare('kafka-tools')}/*"
    except environments.Unavailable as error:
        if os.environ.get("CI", "") not in ("", "false", "0"):
            raise
        pytest.skip(f"Apache Kafka is not to be had on this machine: {error}")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session on two cores, on loopback, without a UI."""
    os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2]")
        .appName("chronik-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.jars", kafka_jars())
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def brokers() -> Iterator[str]:
    """The address of the broker under test."""
    outside = os.environ.get("CHRONIK_TEST_BOOTSTRAP")
    if outside:
        yield outside
        return
    with Broker({"auto.create.topics.enable": "false"}) as running:
        yield running.bootstrap


class Topics:
    """Topics of one test: made, written to, deleted."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._admin = AdminClient({"bootstrap.servers": bootstrap})
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})

    def name(self) -> str:
        return f"spark-{os.getpid()}-{next(_numbers)}"

    def create(self, name: str | None = None, partitions: int = 1, **config: str) -> str:
        name = name or self.name()
        config = {key.replace("_", "."): value for key, value in config.items()}
        made = self._admin.create_topics([NewTopic(name, partitions, config=config)])
        made[name].result(TIMEOUT_S)
        return name

    def delete(self, name: str) -> None:
        self._admin.delete_topics([name])[name].result(TIMEOUT_S)

    def grow(self, name: str, partitions: int) -> None:
        from confluent_kafka.admin import NewPartitions

        self._admin.create_partitions([NewPartitions(name, partitions)])[name].result(TIMEOUT_S)
        # A producer learns of new partitions by its next metadata.
        self._producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 0})

    @staticmethod
    def wait_until(is_done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not is_done():
            assert time.monotonic() < deadline, "it did not come to pass"
            time.sleep(0.05)

    def delete_records(self, name: str, partition: int, before: int) -> None:
        from confluent_kafka import TopicPartition

        place = TopicPartition(name, partition, before)
        self._admin.delete_records([place])[place].result(TIMEOUT_S)

    def produce(self, name: str, *values: bytes | str | None, **how: Any) -> None:
        """Write values; `key`, `partition`, `headers` and `timestamp` are for all of them."""
        for value in values:
            self._producer.produce(name, value, **how)
        assert self._producer.flush(TIMEOUT_S) == 0

    def end(self, name: str, partition: int = 0) -> int:
        """Where a partition ends now."""
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import OffsetSpec

        place = TopicPartition(name, partition)
        asked = self._admin.list_offsets({place: OffsetSpec.latest()})
        return int(asked[place].result(TIMEOUT_S).offset)

    def committed(self, group_id: str) -> dict[tuple[str, int], int]:
        from confluent_kafka import ConsumerGroupTopicPartitions

        asked = self._admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group_id)])
        found = asked[group_id].result(TIMEOUT_S).topic_partitions
        return {(each.topic, each.partition): each.offset for each in found}


@pytest.fixture(scope="session")
def topics(brokers: str) -> Topics:
    return Topics(brokers)


@pytest.fixture
def kafka_source(spark: Any) -> str:
    """Spark's own format, where this machine can have it."""
    if not spark.conf.get("spark.jars", ""):
        pytest.skip("Spark's Kafka connector is not to be had on this machine")
    return "kafka"


@pytest.fixture(params=["chronik", "kafka"])
def source(request: pytest.FixtureRequest) -> str:
    """The format under test."""
    if request.param == "kafka":
        request.getfixturevalue("kafka_source")
    return str(request.param)


@pytest.fixture
def read(spark: Any, brokers: str) -> Callable[..., Any]:
    """Reads a topic as a batch."""

    def load(source: str, topic: str | None, **options: str) -> Any:
        reader = spark.read.format(source).option("kafka.bootstrap.servers", brokers)
        if topic is not None:
            reader = reader.option("subscribe", topic)
        return reader.options(**options).load()

    return load


@pytest.fixture
def read_stream(spark: Any, brokers: str) -> Callable[..., Any]:
    """Reads a topic as a stream."""

    def load(source: str, topic: str | None, **options: str) -> Any:
        reader = spark.readStream.format(source).option("kafka.bootstrap.servers", brokers)
        if topic is not None:
            reader = reader.option("subscribe", topic)
        return reader.options(**options).load()

    return load
