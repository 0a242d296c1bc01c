"""Spark reading a topic: `chronik` from Chronik beside `kafka` and from_json from Apache Kafka.

    python -m bench.spark_read [--records 5000000] [--rounds 3] [--json]

The same records, 172 bytes of JSON and all different, in the same number of partitions; local[2];
the whole result goes to Spark's `noop` sink. Each figure is the median of warm rounds, the two
sources in turn, and the ratio within the run is what counts. `--records 500000` is a quick run.
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.servers import TICKS_PER_SECOND, Server, clients, start_chronik, start_kafka

RECORD_BYTES = 172
PARTITIONS = 4
CODECS = ("none", "zstd")
DDL = (
    "id BIGINT, user STRING, amount DOUBLE, currency STRING, at TIMESTAMP, ok BOOLEAN,"
    " city STRING, pad STRING"
)
FIELDS = "id,user,amount,currency,at,ok,city,pad"
GOALS = {"raw": 1.3, "typed": 2.0}
FLUSH_S = 600.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.spark_read", description=__doc__)
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=3, help="that count")
    parser.add_argument("--warm-up", type=int, default=1, help="rounds before that")
    parser.add_argument("--codecs", default=",".join(CODECS))
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    codecs = arguments.codecs.split(",")
    with tempfile.TemporaryDirectory(prefix="chronik-bench-") as home:
        rows = _run(Path(home), arguments.records, arguments.rounds, arguments.warm_up, codecs)
    if arguments.json:
        print(json.dumps(rows))
    else:
        _show(rows, arguments.records)


def events(count: int) -> Iterator[bytes]:
    """JSON records of one size, all different."""
    chance = random.Random(7)
    letters = "".join(chance.choices("abcdefghijklmnop", k=1 << 16))
    for number in range(count):
        text = (
            f'{{"id": {number}, "user": "user-{chance.getrandbits(20):07d}",'
            f' "amount": {chance.getrandbits(17) / 100}, "currency": "EUR",'
            f' "at": "2026-01-{number % 28 + 1:02d}T10:{number % 60:02d}:00.{number % 1000:03d}Z",'
            f' "ok": {"true" if number & 1 else "false"}, "city": "city-{number % 100}", "pad": "'
        )
        start = chance.getrandbits(15)
        pad = letters[start : start + RECORD_BYTES - len(text) - 2]
        yield f'{text}{pad}"}}'.encode()


def fill(server: Server, topic: str, codec: str, count: int) -> None:
    """Write the records to a new topic."""
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result(60)
    produce(server, topic, codec, count)


def produce(server: Server, topic: str, codec: str, count: int) -> None:
    """Write the records, the same number to each partition."""
    producer = Producer(
        {
            "bootstrap.servers": server.bootstrap,
            "compression.type": codec,
            "linger.ms": 50,
            "batch.size": 900_000,
            "batch.num.messages": 10_000,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    for number, value in enumerate(events(count)):
        while True:
            try:
                producer.produce(topic, value, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(FLUSH_S):
        raise RuntimeError(f"{server.name} did not take all records")


def session(home: Path) -> Any:
    """Spark on two cores, with its own Kafka connector."""
    os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
    from pyspark.sql import SparkSession

    jars = ",".join(map(str, sorted(clients().prepare("spark-kafka").glob("*.jar"))))
    return (
        SparkSession.builder.master("local[2]")
        .appName("chronik-bench")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "3g")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(home / "warehouse"))
        .config("spark.jars", jars)
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )


def frame_of(spark: Any, source: str, kind: str, server: Server, topic: str) -> Any:
    """The read to be measured."""
    from pyspark.sql import functions as F

    reader = spark.read.format(source).option("kafka.bootstrap.servers", server.bootstrap)
    reader = reader.option("subscribe", topic)
    if kind == "raw":
        return reader.load()
    if source == "chronik":
        reader = reader.option("decode", "json").option("schema", DDL)
        return reader.option("columns", FIELDS).load()
    parsed = F.from_json(F.col("value").cast("string"), DDL)
    return reader.load().select(parsed.alias("v")).select("v.*")


class Taken(NamedTuple):
    """What a read took: on the clock, and of Spark's processors (JVM and Python)."""

    wall_s: float
    cpu_s: float


def read(spark: Any, *what: Any) -> Taken:
    """Read all, planning included."""
    jvm = spark.sparkContext._gateway.proc.pid
    started, cpu_s = time.perf_counter(), tree_cpu_s(jvm)
    frame_of(spark, *what).write.format("noop").mode("overwrite").save()
    return Taken(time.perf_counter() - started, tree_cpu_s(jvm) - cpu_s)


def tree_cpu_s(root: int) -> float:
    """CPU seconds of a process and all its children, also of those that have ended."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        pid = int(path.parent.name)
        parents[pid], ticks[pid] = int(fields[1]), sum(map(int, fields[11:15]))

    def is_below(pid: int) -> bool:
        while pid > 1 and pid != root:
            pid = parents.get(pid, 0)
        return pid == root

    return sum(ticks[pid] for pid in parents if is_below(pid)) / TICKS_PER_SECOND


def _run(
    home: Path, records: int, rounds: int, warm_up: int, codecs: list[str]
) -> dict[str, dict[str, float]]:
    servers = {"kafka": start_kafka(home / "kafka"), "chronik": start_chronik(home / "chronik")}
    rows: dict[str, dict[str, float]] = {}
    try:
        spark = session(home)
        for codec in codecs:
            for server in servers.values():
                fill(server, codec, codec, records)
            for kind in GOALS:
                taken: dict[str, list[Taken]] = {name: [] for name in servers}
                for _ in range(warm_up + rounds):
                    for name, server in servers.items():
                        taken[name].append(read(spark, name, kind, server, codec))
                _check(spark, servers, kind, codec, records)
                rows[f"{kind}, {codec}"] = {
                    f"{name}{suffix}": statistics.median(figures[warm_up:])
                    for name, each in taken.items()
                    for suffix, figures in zip(("", " cpu"), zip(*each, strict=True), strict=True)
                }
        spark.stop()
    finally:
        for server in servers.values():
            server.stop()
    return rows


def _check(spark: Any, servers: dict[str, Server], kind: str, codec: str, records: int) -> None:
    """Both gave all rows; else their times mean nothing."""
    for name, server in servers.items():
        frame = frame_of(spark, name, kind, server, codec)
        found = frame.count() if kind == "raw" else frame.where("id is not null").count()
        if found != records:
            raise RuntimeError(f"{name} gave {found} of {records} rows")


def _show(rows: dict[str, dict[str, float]], records: int) -> None:
    print(f"{records} records of {RECORD_BYTES} B, seconds: wall and Spark's processor time")
    print(f"{'':14}{'kafka':>8}{'chronik':>9}{'times as fast':>15}  goal    kafka cpu chronik cpu")
    for name, row in rows.items():
        ratio = row["kafka"] / row["chronik"]
        goal = GOALS[name.split(",")[0]]
        print(
            f"{name:14}{row['kafka']:8.2f}{row['chronik']:9.2f}{ratio:15.2f}  >= {goal}"
            f"{row['kafka cpu']:10.2f}{row['chronik cpu']:12.2f}"
        )


if __name__ == "__main__":
    main()
