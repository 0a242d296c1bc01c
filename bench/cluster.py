"""`python -m bench.cluster`: three nodes in processes of their own, many topics, and deaths.

Each figure stands beside its goal; results are also written to bench/results/ as JSON.

    --topics N        how many of 3 partitions and 3 replicas (3,000)
    --rounds N        how often each death is tried (3)
    --peer kafka      a three-node Apache Kafka makes the same topics in the same run
    --minutes M       then M minutes of topics and full produce load: the term must not change
    --only PART ...   only these: start create deaths load callbacks

Timings on a shared machine are noisy: run it alone.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

from bench import cluster_deaths, cluster_load, cluster_topics
from bench.cluster_nodes import ChronikNodes, wait_until_listed
from bench.cluster_rows import Rows

PARTS = ("start", "create", "deaths", "load", "callbacks")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="bench.cluster", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--topics", type=int, default=3_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", choices=["kafka"])
    parser.add_argument("--minutes", type=float, default=0.5)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    arguments = parser.parse_args()
    rows = Rows()
    with tempfile.TemporaryDirectory(prefix="chronik-bench-") as name:
        _run(Path(name), arguments, rows)
    rows.show()
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    (results / f"cluster-{stamp}.json").write_text(json.dumps(rows.as_json(), indent=2) + "\n")


def _run(home: Path, arguments: argparse.Namespace, rows: Rows) -> None:
    only, count = arguments.only, arguments.topics
    if "start" in only:
        cluster_deaths.measure_starts(home / "starts", arguments.rounds, rows)
    if "create" in only:
        cluster_topics.measure(home / "topics", count, rows, with_kafka=arguments.peer == "kafka")
    if "deaths" in only:
        nodes = ChronikNodes(home / "deaths")
        try:
            nodes.start()
            wait_until_listed(nodes)
            cluster_deaths.measure(nodes, arguments.rounds, rows)
        finally:
            nodes.remove()
    if "load" in only:
        cluster_load.measure(home / "load", arguments.minutes * 60, count, rows)
    if "callbacks" in only:
        cluster_load.measure_callbacks(home / "callbacks", 20.0, count, rows)


if __name__ == "__main__":
    main()
