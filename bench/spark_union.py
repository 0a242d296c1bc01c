"""A small tail over a large table: the union read beside the table alone.

    python -m bench.spark_union [--rows 5000000] [--tail 20000] [--json]

The table is filled by the pipeline from a topic of JSON records, 172 bytes and all different; the
tail is what was produced afterwards. Each query is the median of warm rounds, both in turn. The
frame is made anew each time, as `chronik sql` does it: to pin a version is part of the price.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.servers import Server, start_chronik
from bench.spark_read import RECORD_BYTES, fill, produce, session

TOPIC = "events"
QUERIES = {
    "count": "select count(*) from {}",
    "sum by city": "select city, sum(amount) from {} group by city",
    "max of strings": "select max(user), max(pad), max(at) from {}",
}
GOAL = 1.2
GOAL_S = 0.5  # or so much more, for queries under two seconds


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.spark_union", description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--tail", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm-up", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="chronik-bench-") as home:
        server = start_chronik(Path(home) / "chronik")
        try:
            rows = _run(Path(home), server, arguments)
        finally:
            server.stop()
    if arguments.json:
        print(json.dumps(rows))
        return
    print(f"{arguments.rows} rows and a tail of {arguments.tail}, {RECORD_BYTES} B each")
    print(f"{'':24}{'table, s':>10}{'union, s':>10}{'ratio':>8}{'more, s':>9}")
    for name, row in rows.items():
        alone, union = row["table"], row["union"]
        print(f"{name:24}{alone:10.2f}{union:10.2f}{union / alone:8.2f}{union - alone:9.2f}")
    print(f"goal: at most {GOAL} times, or {GOAL_S} s more for queries under 2 s")


def _run(home: Path, server: Server, arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    import chronik.spark
    from chronik.spark.connection import Connection
    from chronik.spark.pipeline.config import PipelineConfig
    from chronik.spark.pipeline.rounds import Pipeline
    from chronik.spark.union import table_alone

    fill(server, TOPIC, "none", arguments.rows)
    spark = session(home)
    overrides = {"table": "delta", "decode": "json"}
    config = PipelineConfig(
        bootstrap=server.bootstrap, warehouse=str(home / "lake"), topics={TOPIC: overrides}
    )
    Pipeline(config, Connection(bootstrap=server.bootstrap), spark).run(once=True)
    produce(server, TOPIC, "none", arguments.tail)
    table = config.place.open(TOPIC, "delta")
    assert table is not None

    def alone() -> Any:
        return table_alone(spark, table)

    def union() -> Any:
        return chronik.spark.table(
            spark, TOPIC, bootstrap=server.bootstrap, warehouse=config.place, **overrides
        )

    if (found := union().count()) != arguments.rows + arguments.tail:
        raise RuntimeError(f"the union has {found} rows")
    rows: dict[str, dict[str, float]] = {}
    for name, query in QUERIES.items():
        taken: dict[str, list[float]] = {"table": [], "union": []}
        for _ in range(arguments.warm_up + arguments.rounds):
            for kind, make in (("table", alone), ("union", union)):
                started = time.perf_counter()
                make().createOrReplaceTempView(kind)
                spark.sql(query.format(kind)).collect()
                taken[kind].append(time.perf_counter() - started)
        rows[name] = {
            kind: statistics.median(each[arguments.warm_up :]) for kind, each in taken.items()
        }
    spark.stop()
    return rows


if __name__ == "__main__":
    main()
