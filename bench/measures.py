"""What is measured: the same clients, the same work, against either server."""

import re
import statistics
import subprocess
import threading
import time
import uuid
from dataclasses import dataclass
from typing import Protocol

from bench.servers import kafka_class_path

RECORD_SIZE = 1024
PERF = "org.apache.kafka.tools.ProducerPerformance"
CONSUMER_PERF = "org.apache.kafka.tools.ConsumerPerformance"
SUMMARY = re.compile(
    r"(?P<count>\d+) (?:steady state )?records sent, "
    r"(?P<rate>[\d.]+) records/sec \((?P<mb>[\d.]+) MB/sec\), "
    r"(?P<avg>[\d.]+) ms avg latency, (?P<max>[\d.]+) ms max latency, "
    r"(?P<p50>\d+) ms 50th, (?P<p95>\d+) ms 95th, (?P<p99>\d+) ms 99th"
)


class Server(Protocol):
    """A server or a whole cluster, as far as it is measured."""

    @property
    def bootstrap(self) -> str: ...

    def cpu_s(self) -> float: ...

    def memory_mb(self) -> float: ...


@dataclass(frozen=True)
class Produced:
    mb_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_s_per_gb: float
    memory_mb: float


def produce(
    server: Server,
    count: int,
    *,
    acks: str = "all",
    rate: int = -1,
    topic: str | None = None,
    warm_up: int = 0,
    transaction_ms: int = 0,
) -> Produced:
    """Kafka's own producer-perf with 1 KiB records; the first `warm_up` ones are not counted.

    With `transaction_ms` it writes in transactions and commits that often.
    """
    topic = topic or f"bench-{uuid.uuid4().hex[:8]}"
    cpu = server.cpu_s()
    peak = _Peak(server)
    command = ["java", "-Xmx512m", "-cp", kafka_class_path(), PERF, "--topic", topic]
    command += ["--num-records", str(count), "--record-size", str(RECORD_SIZE)]
    command += ["--throughput", str(rate)]
    command += ["--warmup-records", str(warm_up)] if warm_up else []
    if transaction_ms:
        command += ["--transactional-id", f"{topic}-producer"]
        command += ["--transaction-duration-ms", str(transaction_ms)]
    command += ["--producer-props"]
    command += [f"bootstrap.servers={server.bootstrap}", f"acks={acks}"]
    with peak:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = SUMMARY.search(done.stdout.splitlines()[-1])
    assert found is not None, done.stdout[-500:]
    gigabytes = count * RECORD_SIZE / 1e9
    return Produced(
        mb_per_s=float(found["mb"]),
        p50_ms=float(found["p50"]),
        p99_ms=float(found["p99"]),
        cpu_s_per_gb=(server.cpu_s() - cpu) / gigabytes,
        memory_mb=peak.highest_mb,
    )


def consumer_perf(server: Server, topic: str, count: int) -> float:
    """MB/s of the fetch phase of Kafka's own consumer-perf, in a group of one."""
    command = ["java", "-Xmx512m", "-cp", kafka_class_path(), CONSUMER_PERF, "--topic", topic]
    command += ["--num-records", str(count), "--group", f"perf-{uuid.uuid4().hex[:8]}"]
    command += ["--bootstrap-server", server.bootstrap, "--timeout", "60000", "--hide-header"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    fields = done.stdout.splitlines()[-1].split(", ")
    assert int(fields[4]) >= count, done.stdout[-500:]
    return float(fields[8])


class _Peak:
    """The highest memory while a block runs."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.highest_mb = 0.0

    def _watch(self) -> None:
        while not self._end.wait(0.1):
            self.highest_mb = max(self.highest_mb, self._server.memory_mb())

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


def consume(server: Server, topic: str, count: int) -> float:
    """MB/s of a confluent-kafka consumer that is assigned to the topic's only partition."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": server.bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "queued.max.messages.kbytes": 512 * 1024,
            "queued.min.messages": 10_000_000,  # A full queue would pause fetching for a second.
            "check.crcs": False,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    got = size = 0
    began = 0.0
    while got < count:
        messages = consumer.consume(10_000, 5)
        if not began:
            began = time.perf_counter()  # The fetch phase, without connecting.
            got += len(messages)
            continue
        got += len(messages)
        size += sum(len(message.value() or b"") for message in messages)
    seconds = time.perf_counter() - began
    consumer.close()
    return size / 1e6 / seconds


def wake_up(server: Server, rounds: int = 200) -> tuple[float, float]:
    """Median and p99, in ms, from a record's ack to its arrival at a parked consumer."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    topic = f"wake-{uuid.uuid4().hex[:8]}"
    producer = Producer({"bootstrap.servers": server.bootstrap, "linger.ms": 0, "acks": "all"})
    producer.produce(topic, b"first")
    producer.flush(10)
    consumer = Consumer(
        {
            "bootstrap.servers": server.bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 5_000,
            "session.timeout.ms": 10_000,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    consumer.poll(10)
    delays = []
    for number in range(rounds):
        acked: list[float] = []
        producer.produce(
            topic,
            str(number).encode(),
            on_delivery=lambda *_, acked=acked: acked.append(time.perf_counter()),
        )
        waiter = threading.Thread(target=producer.flush, args=(10,))
        waiter.start()
        message = consumer.poll(10)
        arrived = time.perf_counter()
        waiter.join()
        assert message is not None
        delays.append(max(arrived - acked[0], 0.0) * 1000)
        time.sleep(0.005)
    consumer.close()
    delays.sort()
    return statistics.median(delays), delays[int(len(delays) * 0.99) - 1]
