"""Kills the whole pipeline with Spark, and the broker meanwhile, many times.

    python tests/spark/pipeline_chaos.py --kills 200 [--seed N]

A broker process with its data on disk, a producer that never stops (one record in twenty does not
decode), and `chronik pipeline run` over a Delta and an Iceberg table. Each time something is ended
by SIGKILL at a random moment: the driver alone, the driver with Spark's JVM, or the broker. After
every kill of the pipeline nothing may be there twice, made up or missing; every tenth time the
tables are brought to the log's end and must be the log.
"""

import argparse
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from pipeline_world import (
    QUICK_JAVA,
    TIMEOUT_S,
    PipelineProcess,
    check_is_log,
    check_is_prefix,
    command,
    environment,
    running,
    wait_until,
)
from ports import free_port

TOPICS = {"orders": "delta", "visits": "iceberg"}
PARTITIONS = 2
CHECKED_WHOLE_EVERY = 10
START_TIMEOUT_S = 300.0
ROUNDS_TIMEOUT_S = 60.0


class BrokerProcess:
    """`chronik start`, which can be killed and started again."""

    def __init__(self, root: Path) -> None:
        self._port = free_port()
        self._root = root
        self.bootstrap = f"127.0.0.1:{self._port}"
        self.start()

    def start(self) -> None:
        log = (self._root / "broker.log").open("ab")
        chronik = str(Path(sys.executable).with_name("chronik"))
        where = ("--host", "127.0.0.1", "--port", str(self._port), "--http-port", "-1")
        self._process = subprocess.Popen(
            [chronik, "start", "--data-dir", str(self._root / "broker"), *where],
            stdout=log,
            stderr=log,
        )
        log.close()
        wait_until(self._answers)

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class Writer(threading.Thread):
    """Records all the time, whatever happens to the broker."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "message.timeout.ms": 600_000,
                "log_level": 0,
            }
        )
        self._end = threading.Event()

    def run(self) -> None:
        number = 0
        while not self._end.wait(0.02):
            for topic in TOPICS:
                value = b"bad" if number % 20 == 7 else b'{"n": %d}' % number
                self._producer.produce(topic, value, partition=number % PARTITIONS)
            number += 1
            self._producer.poll(0)
        assert self._producer.flush(TIMEOUT_S) == 0

    def end(self) -> None:
        self._end.set()
        self.join()


def create_topics(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for name, table_format in TOPICS.items():
        settings = {
            "chronik.table": table_format,
            "chronik.decode": "json",
            "chronik.schema": "n bigint",
        }
        topic = NewTopic(name, PARTITIONS, config=settings)
        admin.create_topics([topic])[name].result(TIMEOUT_S)


def kill_once(broker: BrokerProcess, warehouse: Path, chance: random.Random) -> str:
    """Start the pipeline, end something at a random moment, look at the tables."""
    with running(
        broker.bootstrap, warehouse, "--master", "local[2]", "--interval", "0.3"
    ) as pipeline:
        begun = len(pipeline.output)
        wait_until(lambda: "pipeline runs" in pipeline.output[begun:], START_TIMEOUT_S)
        _wait_for_rounds(pipeline, begun, chance.randint(0, 3))
        time.sleep(chance.random() * 2)
        what = chance.choice(["driver", "driver and Spark", "broker, then driver and Spark"])
        if what.startswith("broker"):
            broker.kill()
            time.sleep(chance.random() * 2)
            broker.start()
            time.sleep(chance.random() * 3)
        assert pipeline.process.poll() is None, f"it ended by itself: {pipeline.output[-2000:]}"
        if what == "driver":
            os.kill(pipeline.process.pid, signal.SIGKILL)
            pipeline.process.wait()
        else:
            pipeline.kill()
    for name, table_format in TOPICS.items():
        check_is_prefix(broker.bootstrap, warehouse, name, table_format)
    return what


def _wait_for_rounds(pipeline: PipelineProcess, begun: int, rounds: int) -> None:
    """Some rounds, however long they take, or as many as there are in a minute."""
    deadline = time.monotonic() + ROUNDS_TIMEOUT_S
    while pipeline.output.count(" rows", begun) < rounds and time.monotonic() < deadline:
        time.sleep(0.05)


def bring_to_the_end(broker: BrokerProcess, warehouse: Path) -> dict[str, tuple[int, int]]:
    """With nobody writing: run to the end, and the tables are the log."""
    where = ("--bootstrap", broker.bootstrap, "--warehouse", str(warehouse))
    subprocess.run(
        command("run", "--once", "--master", "local[2]", *where),
        env=environment(),
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return {
        name: check_is_log(broker.bootstrap, warehouse, name, table_format)
        for name, table_format in TOPICS.items()
    }


def campaign(root: Path, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    broker = BrokerProcess(root)
    summary: Counter[str] = Counter()
    started = time.monotonic()
    try:
        create_topics(broker.bootstrap)
        for number in range(1, kills + 1):
            writer = Writer(broker.bootstrap)
            writer.start()
            try:
                summary[kill_once(broker, root / "lake", chance)] += 1
            finally:
                writer.end()
            if number % CHECKED_WHOLE_EVERY == 0 or number == kills:
                counts = bring_to_the_end(broker, root / "lake")
                minutes = (time.monotonic() - started) / 60
                print(
                    f"{number} kills, {minutes:.1f} min: rows and dead letters {counts}", flush=True
                )
    finally:
        broker.kill()
    print(f"killed: {dict(summary)}; table and dead letters were the log each time", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    os.environ.update(QUICK_JAVA)
    with tempfile.TemporaryDirectory() as root:
        campaign(Path(root), options.kills, options.seed)


if __name__ == "__main__":
    main()
