"""`make bench`: Chronik (both durabilities) and a warmed-up Apache Kafka, one table of ratios.

Timings on a shared machine are noisy: every figure is the median of interleaved rounds, and the
ratio within the run is what counts. Results are also written to bench/results/ as JSON.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from bench import measures
from bench.servers import Server, start_chronik, start_kafka

T = TypeVar("T")

GOALS = {
    "produce MB/s, fsync": (">=", 1.0),
    "produce MB/s, replicated": (">=", 1.3),
    "consume MB/s (assign)": (">=", 1.0),
    "consumer-perf fetch MB/s": (">=", 1.0),
    "transactional produce MB/s": (">=", 1.0),
    "p99 ms at 2,000 records/s": ("<=", 0.3),
    "start to first answer, s": ("<=", 0.2),
    "memory idle, MB": ("<=", 0.25),
    "memory under load, MB": ("<=", 0.25),
    "CPU s per GB produced": ("<=", 0.75),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--records", type=int, default=300_000, help="records of 1 KiB a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--warm-up", type=int, default=2, help="rounds before counting, for the JVM"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="chronik-bench-") as home:
        rows = _run(Path(home), arguments.records, arguments.rounds, arguments.warm_up)
    _show(rows)
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    name = time.strftime("%Y%m%d-%H%M%S")
    (results / f"{name}.json").write_text(json.dumps(rows, indent=2) + "\n")


Rows = dict[str, dict[str, float]]


def _run(home: Path, records: int, rounds: int, warm_up: int) -> Rows:
    kafka = start_kafka(home / "kafka")
    servers: dict[str, Server] = {"kafka": kafka}
    try:
        servers["fsync"] = start_chronik(home / "fsync", "--durability", "fsync")
        servers["replicated"] = start_chronik(home / "replicated", "--durability", "replicated")
        time.sleep(2)
        rows: Rows = {
            "start to first answer, s": {name: each.start_s for name, each in servers.items()},
            "memory idle, MB": {name: each.memory_mb() for name, each in servers.items()},
        }
        for _ in range(warm_up):
            for server in servers.values():
                measures.produce(server, records)
        produced = _interleaved(servers, rounds, lambda each: measures.produce(each, records))
        rows["produce MB/s"] = _medians(produced, lambda each: each.mb_per_s)
        rows["CPU s per GB produced"] = _medians(produced, lambda each: each.cpu_s_per_gb)
        rows["memory under load, MB"] = {
            name: max(each.memory_mb for each in many) for name, many in produced.items()
        }
        transacted = _interleaved(
            servers, rounds, lambda each: measures.produce(each, records, transaction_ms=100)
        )
        rows["transactional produce MB/s"] = _medians(transacted, lambda each: each.mb_per_s)
        # Half a minute, of which the first ten seconds are the client's own warming up.
        slow = _interleaved(
            servers,
            rounds,
            lambda each: measures.produce(each, 60_000, rate=2000, warm_up=20_000),
        )
        rows["p50 ms at 2,000 records/s"] = _medians(slow, lambda each: each.p50_ms)
        rows["p99 ms at 2,000 records/s"] = _medians(slow, lambda each: each.p99_ms)
        for server in servers.values():
            measures.produce(server, records, topic="consume")
        consumed = _interleaved(
            servers, rounds, lambda each: measures.consume(each, "consume", records)
        )
        rows["consume MB/s (assign)"] = _medians(consumed, float)
        perf = _interleaved(
            servers, rounds, lambda each: measures.consumer_perf(each, "consume", records)
        )
        rows["consumer-perf fetch MB/s"] = _medians(perf, float)
        woken = {name: measures.wake_up(server) for name, server in servers.items()}
        rows["ack to a parked consumer, median ms"] = {name: two[0] for name, two in woken.items()}
        rows["ack to a parked consumer, p99 ms"] = {name: two[1] for name, two in woken.items()}
        return rows
    finally:
        for server in servers.values():
            server.stop()


def _interleaved(
    servers: dict[str, Server], rounds: int, work: Callable[[Server], T]
) -> dict[str, list[T]]:
    results: dict[str, list[T]] = {name: [] for name in servers}
    for _ in range(rounds):
        for name, server in servers.items():
            results[name].append(work(server))
    return results


def _medians(results: dict[str, list[T]], figure: Callable[[T], float]) -> dict[str, float]:
    return {name: statistics.median(map(figure, many)) for name, many in results.items()}


def _show(rows: Rows) -> None:
    print(f"{'':38}{'Kafka':>10}{'fsync':>10}{'ratio':>8}{'replicated':>12}{'ratio':>8}  goal")
    for name, row in rows.items():
        kafka = row["kafka"] or 1e-9
        goal = GOALS.get(name) or GOALS.get(f"{name}, fsync")
        said = f"{goal[0]} {goal[1]}" if goal else ""
        if name == "produce MB/s":
            said = ">= 1.0, replicated >= 1.3"
        print(
            f"{name:38}{row['kafka']:10.2f}{row['fsync']:10.2f}{row['fsync'] / kafka:8.2f}"
            f"{row['replicated']:12.2f}{row['replicated'] / kafka:8.2f}  {said}"
        )


if __name__ == "__main__":
    main()
