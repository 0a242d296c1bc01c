"""`make bench`: Chronik (both durabilities) and a warmed-up Apache Kafka, one table of ratios.

Timings on a shared machine are noisy: every figure is the median of interleaved rounds, and the
ratio within the run is what counts. Results are also written to bench/results/ as JSON.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

from bench import measures
from bench.ratios import Rows, interleaved, medians, show
from bench.servers import Server, start_chronik, start_kafka

CONSUMED_TIMES = 5  # as many records as are produced in a round
GOALS = {
    "produce MB/s": ">= 1.0, replicated >= 1.3",
    "consume MB/s (assign)": ">= 1.0",
    "consumer-perf fetch MB/s": ">= 1.0",
    "transactional produce MB/s": ">= 1.0",
    "p99 ms at 2,000 records/s": "<= 0.3",
    "start to first answer, s": "<= 0.2",
    "memory idle, MB": "<= 0.25",
    "memory under load, MB": "<= 0.25",
    "CPU s per GB produced": "<= 0.75",
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
    show(rows, GOALS)
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    name = time.strftime("%Y%m%d-%H%M%S")
    (results / f"{name}.json").write_text(json.dumps(rows, indent=2) + "\n")


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
        produced = interleaved(servers, rounds, lambda each: measures.produce(each, records))
        rows["produce MB/s"] = medians(produced, lambda each: each.mb_per_s)
        rows["CPU s per GB produced"] = medians(produced, lambda each: each.cpu_s_per_gb)
        rows["memory under load, MB"] = {
            name: max(each.memory_mb for each in many) for name, many in produced.items()
        }
        transacted = interleaved(
            servers, rounds, lambda each: measures.produce(each, records, transaction_ms=100)
        )
        rows["transactional produce MB/s"] = medians(transacted, lambda each: each.mb_per_s)
        # Half a minute, of which the first ten seconds are the client's own warming up.
        slow = interleaved(
            servers,
            rounds,
            lambda each: measures.produce(each, 60_000, rate=2000, warm_up=20_000),
        )
        rows["p50 ms at 2,000 records/s"] = medians(slow, lambda each: each.p50_ms)
        rows["p99 ms at 2,000 records/s"] = medians(slow, lambda each: each.p99_ms)
        # For a few hundred MB Java's consumer mostly warms up, whoever serves it.
        much = CONSUMED_TIMES * records
        for server in servers.values():
            measures.produce(server, much, topic="consume")
        consumed = interleaved(
            servers, rounds, lambda each: measures.consume(each, "consume", much)
        )
        rows["consume MB/s (assign)"] = medians(consumed, float)
        perf = interleaved(
            servers, rounds, lambda each: measures.consumer_perf(each, "consume", much)
        )
        rows["consumer-perf fetch MB/s"] = medians(perf, float)
        woken = {name: measures.wake_up(server) for name, server in servers.items()}
        rows["ack to a parked consumer, median ms"] = {name: two[0] for name, two in woken.items()}
        rows["ack to a parked consumer, p99 ms"] = {name: two[1] for name, two in woken.items()}
        return rows
    finally:
        for server in servers.values():
            server.stop()


if __name__ == "__main__":
    main()
