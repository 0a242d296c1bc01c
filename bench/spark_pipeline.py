"""A topic becomes a Delta table: how fast one at rest, and how fresh one that is being written.

    python -m bench.spark_pipeline [--records 2000000] [--seconds 60] [--json]

Speed: JSON of 172 bytes, all different, by local[2]; bytes of values ÷ wall ÷ cores, from planning
to the last commit, Spark's start excluded, the median of warm rounds. Beside it, for a machine that
does other things too: the same bytes ÷ processor time of driver, JVM and workers.
Freshness: 10 MiB/s of the same are produced live. A record's age is that of its timestamp when the
commit that holds it has landed; its rank among all records says which commit that is.
"""

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.servers import Server, start_chronik
from bench.spark_read import DDL, PARTITIONS, RECORD_BYTES, events, fill
from chronik.spark.connection import Connection
from chronik.spark.pipeline.config import PipelineConfig
from chronik.spark.pipeline.rounds import Pipeline, RoundReport
from chronik.spark.pipeline.session import open_session

CORES = 2
MEBIBYTE = 1024 * 1024
LIVE_BYTES_PER_S = 10 * MEBIBYTE
WARM_RECORDS = 200_000
GOAL_MIB_S, GOAL_P99_S = 35.0, 10.0
SETTINGS = {"table": "delta", "decode": "json", "schema": DDL}


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.spark_pipeline", description=__doc__)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3, help="that count")
    parser.add_argument("--seconds", type=int, default=60, help="of live writing")
    parser.add_argument("--codec", default="none")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="chronik-bench-") as home:
        found = _run(Path(home), arguments)
    if arguments.json:
        print(json.dumps(found))
        return
    print(
        f"topic to Delta   {found['mib_per_s_core']:.1f} MiB/s a core   goal {GOAL_MIB_S}"
        f"   ({found['mib_per_cpu_s']:.1f} MiB per second of processor time)"
    )
    if "fresh_p99_s" in found:
        print(
            f"freshness        p50 {found['fresh_p50_s']:.1f} s, p99 {found['fresh_p99_s']:.1f} s"
            f" at {found['live_mib_per_s']:.1f} MiB/s   goal p99 {GOAL_P99_S} s"
        )


def _run(home: Path, arguments: argparse.Namespace) -> dict[str, float]:
    server = start_chronik(home / "chronik")
    spark = open_session(f"local[{CORES}]")
    try:
        fill(server, "warm", arguments.codec, WARM_RECORDS)
        once(spark, server, home / "warm", "warm", WARM_RECORDS)
        fill(server, "load", arguments.codec, arguments.records)
        cpu_before = cpu_s(server)
        taken = [
            once(spark, server, home / f"lake-{number}", "load", arguments.records)
            for number in range(arguments.rounds)
        ]
        size = arguments.records * RECORD_BYTES / MEBIBYTE
        found = {
            "mib_per_s_core": size / statistics.median(taken) / CORES,
            "mib_per_cpu_s": size * arguments.rounds / (cpu_s(server) - cpu_before),
        }
        if arguments.seconds:
            found |= freshness(spark, server, home / "live", arguments.seconds)
        return found
    finally:
        spark.stop()
        server.stop()


def cpu_s(server: Server) -> float:
    """Processor time so far of this process and all below it, without the server."""
    parents, spent = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # It has just ended.
        pid = int(stat.parent.name)
        parents[pid] = int(fields[1])
        spent[pid] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(spent[pid] for pid in ours if pid in spent) - server.cpu_s()


def once(spark: Any, server: Server, lake: Path, topic: str, count: int) -> float:
    """Seconds to bring a topic at rest, of so many records, into a new table."""
    rows = 0

    def note(report: RoundReport) -> None:
        nonlocal rows
        rows += sum(each.row_count for each in report.landed.values())

    pipeline = _pipeline(spark, server, lake, topic, note)
    started = time.perf_counter()
    pipeline.run(once=True)
    taken = time.perf_counter() - started
    assert rows == count, f"{rows} of {count} rows have come"
    return taken


def _pipeline(spark: Any, server: Server, lake: Path, topic: str, report: Any) -> Pipeline:
    config = PipelineConfig(
        bootstrap=server.bootstrap, warehouse=str(lake), topics={topic: SETTINGS}
    )
    return Pipeline(config, Connection(bootstrap=server.bootstrap), spark, report=report)


def freshness(spark: Any, server: Server, lake: Path, seconds: int) -> dict[str, float]:
    """How old records are when they are in the table."""
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    admin.create_topics([NewTopic("live", PARTITIONS)])["live"].result(60)
    landed: list[tuple[float, int]] = []  # when, and how many rows by then

    def note(report: RoundReport) -> None:
        rows = sum(each.row_count for each in report.landed.values())
        if rows:
            landed.append((time.time(), rows + (landed[-1][1] if landed else 0)))

    pipeline = _pipeline(spark, server, lake, "live", note)
    thread = threading.Thread(target=pipeline.run)
    thread.start()
    times, taken_s = write_live(server, seconds)
    deadline = time.time() + 120
    while (not landed or landed[-1][1] < len(times)) and time.time() < deadline:
        time.sleep(0.2)
    pipeline.stop()
    thread.join()
    ages = sorted(_ages(times, landed))
    assert len(ages) == len(times), f"{len(ages)} of {len(times)} rows have come"
    return {
        "fresh_p50_s": ages[len(ages) // 2],
        "fresh_p99_s": ages[len(ages) * 99 // 100],
        "live_mib_per_s": len(times) * RECORD_BYTES / MEBIBYTE / taken_s,
    }


def write_live(server: Server, seconds: int) -> tuple[list[float], float]:
    """Write at a steady pace; when each record was written, and how long it took."""
    producer = Producer({"bootstrap.servers": server.bootstrap, "linger.ms": 20})
    per_s = LIVE_BYTES_PER_S // RECORD_BYTES
    values = list(events(per_s))
    times: list[float] = []
    started = time.time()
    for number in range(per_s * seconds):
        if number % 1000 == 0:
            time.sleep(max(0.0, started + number / per_s - time.time()))
            producer.poll(0)
        while True:
            try:
                producer.produce("live", values[number % per_s], partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.05)
        times.append(time.time())
    producer.flush(60)
    return times, time.time() - started


def _ages(times: list[float], landed: list[tuple[float, int]]) -> list[float]:
    ages, first = [], 0
    for when, rows in landed:
        ages += [when - written for written in times[first:rows]]
        first = rows
    return ages


if __name__ == "__main__":
    main()
