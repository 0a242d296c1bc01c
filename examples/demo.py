"""The whole of Chronik in one command: cluster, producer, pipeline, SQL (`make demo`).

Everything it does, it does by commands that you can type yourself; each is shown before its output.
It leaves nothing behind.
"""

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from chronik.client.cluster import Cluster
from chronik.client.link import parse_bootstrap
from chronik.client.producer import Producer

CHRONIK = str(Path(sys.executable).with_name("chronik"))
RECORDS = 60_000
SECONDS = 12.0
BAD_EVERY = 500  # one in so many values is no JSON
# PySpark warns of versions of pandas that nothing here uses.
ENVIRONMENT = {**os.environ, "PYTHONWARNINGS": "ignore"}
COUNTRIES = ("de", "fr", "it", "pl", "se")
PRODUCTS = ("apple", "bread", "cheese", "dates", "eggs")
REVENUE = """
    select country, count(*) as orders, round(sum(price * quantity), 2) as revenue
    from orders group by country order by revenue desc
"""


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="chronik-demo-") as root:
        try:
            tour(Path(root))
        finally:
            run("cluster", "down", "--data-dir", f"{root}/cluster", is_shown=False)


def tour(root: Path) -> None:
    port = free_ports(3)
    bootstrap, warehouse = f"127.0.0.1:{port}", str(root / "lake")
    title("A cluster of three nodes")
    run("cluster", "up", "--port", str(port), "--data-dir", f"{root}/cluster", "--detach")

    title("A topic that is a Delta table too")
    settings = ["--config", "chronik.table=delta", "--config", "chronik.decode=json"]
    copies = ["--partitions", "3", "--replication-factor", "3"]
    run("topics", "create", "orders", *copies, *settings, "-b", bootstrap)

    title(f"A pipeline, while a producer writes {RECORDS:,} orders in {SECONDS:.0f} s")
    place = ["-b", bootstrap, "--warehouse", warehouse]
    pipeline = start("pipeline", "run", "--interval", "3", *place)
    asyncio.run(produce(bootstrap, RECORDS, SECONDS))
    wait_for_rows(place, RECORDS - RECORDS // BAD_EVERY)
    pipeline.send_signal(signal.SIGTERM)
    pipeline.wait(60)

    title("How far it is: every order is in the table, and what was no JSON in the dead letters")
    run("pipeline", "status", *place)

    title("5,000 more orders: the pipeline is stopped, so they are in the log only")
    asyncio.run(produce(bootstrap, 5_000, 0.5))

    title("SQL sees both: history from the lake, the tail from the log")
    run("sql", " ".join(REVENUE.split()), *place)
    title("That is all. `chronik --help` has the rest, README.md the explanation")


async def produce(bootstrap: str, count: int, seconds: float) -> None:
    """Write orders at an even pace."""
    chance = random.Random(count)
    started = time.monotonic()
    cluster = Cluster(parse_bootstrap(bootstrap), client_id="demo")
    async with cluster, Producer(cluster) as producer:
        for number in range(count):
            ahead = started + seconds * number / count - time.monotonic()
            if ahead > 0.01:
                await asyncio.sleep(ahead)
            await producer.send("orders", order(number, chance), key=b"%d" % (number % 997))


def order(number: int, chance: random.Random) -> bytes:
    if number % BAD_EVERY == BAD_EVERY - 1:
        return b"order " + b"%d" % number
    return json.dumps(
        {
            "id": number,
            "country": chance.choice(COUNTRIES),
            "product": chance.choice(PRODUCTS),
            "price": round(chance.uniform(1, 20), 2),
            "quantity": chance.randint(1, 9),
        }
    ).encode()


# Commands, shown as a person would type them.


def title(text: str) -> None:
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n== {text}", flush=True)


def run(*arguments: str, is_shown: bool = True) -> None:
    """A command to its end, or the end of the demo."""
    if is_shown:
        show(arguments)
    command = [CHRONIK, *arguments]
    done = subprocess.run(command, capture_output=not is_shown, env=ENVIRONMENT, check=False)
    if done.returncode and is_shown:
        raise SystemExit(f"`chronik {arguments[0]} {arguments[1]}` failed")


def start(*arguments: str) -> subprocess.Popen[str]:
    """A command beside the next ones; what it says is shown as it comes."""
    show(arguments)
    process = subprocess.Popen(
        [CHRONIK, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=ENVIRONMENT,
    )

    def tell() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            print(f"  | {line}", end="", flush=True)

    threading.Thread(target=tell, daemon=True).start()
    return process


def show(arguments: tuple[str, ...]) -> None:
    words = [f"'{each}'" if " " in each else each for each in arguments]
    print(f"$ chronik {' '.join(words)}", flush=True)


def wait_for_rows(place: list[str], count: int, timeout_s: float = 180.0) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        command = [CHRONIK, "pipeline", "status", "--json", *place]
        asked = subprocess.run(command, capture_output=True, text=True, check=False)
        if asked.returncode == 0:
            statuses = json.loads(asked.stdout)
            if statuses and (statuses[0]["row_count"] or 0) >= count:
                return
        time.sleep(1)
    raise SystemExit(f"the table has not got {count:,} rows within {timeout_s:.0f} s")


def free_ports(count: int) -> int:
    """The first of some ports in a row that nobody uses, nor those of the nodes' own traffic."""
    for first in random.sample(range(20_000, 50_000, 10), 200):
        wanted = [*range(first, first + count), *range(first + 100, first + 100 + count)]
        if all(is_free(port) for port in wanted):
            return first
    raise SystemExit("there are no free ports on this machine")


def is_free(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) != 0


if __name__ == "__main__":
    main()
