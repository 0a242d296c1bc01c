"""`chronik cluster up` and `down`: a cluster of real processes on this machine.

    D/1, D/2 ...     each node's data
    D/logs/1.log     what each node says
    D/cluster.json   the processes that run, for as long as they do

What is shown is what the nodes answer, never what was hoped for when they were started. Whatever
prevents the start, or ends a node, ends all of them and is one line.

Invariants
    No process is signalled unless it still is the one that was started: same id, same start time.
    `up` returns only when its nodes have ended, or with --detach when they all serve.
"""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from chronik.cli.local_process import Ended, NodeProcess, Roster, stop_all
from chronik.cli.output import print_json
from chronik.cli.session import Json, fail
from chronik.client.admin import QUORUM_REQUEST, quorum_of
from chronik.client.link import Address, ConnectionFailed, Link
from chronik.protocol.apis import DESCRIBE_QUORUM, METADATA
from chronik.protocol.errors import KafkaError, ProtocolError
from chronik.protocol.messages.metadata import MetadataRequest, MetadataResponse
from chronik.protocol.messages.quorum import DescribeQuorumResponse

HOST: Final = "127.0.0.1"
INTERNAL_PORT_OFFSET: Final = 100  # 9092 and 9192: easy to remember, and far from other nodes'
NODES_MAX: Final = 9  # More voters than that only slow each other down.
PORT_MAX: Final = 65535 - INTERNAL_PORT_OFFSET - NODES_MAX
START_TIMEOUT_S: Final = 30.0  # A slow disk takes seconds to recover a log.
POLL_STARTING_S: Final = 0.1
POLL_S: Final = 1.0
ANSWER_TIMEOUT_S: Final = 2.0
DATA_DIR_DEFAULT: Final = Path("chronik-cluster")
LOG_TAIL_BYTES: Final = 64 * 1024

# Not the `chronik` script: it may be another installation's, or none.
NODE_COMMAND: Final = (sys.executable, "-c", "from chronik.cli.main import main; main()", "start")

DataDir = Annotated[
    Path, typer.Option("--data-dir", metavar="DIR", help="Where the nodes' data and logs live.")
]


def up(
    nodes: Annotated[int, typer.Option(min=1, max=NODES_MAX, help="How many.")] = 3,
    port: Annotated[
        int, typer.Option(min=1, max=PORT_MAX, help="The first node's Kafka port; then the next.")
    ] = 9092,
    data_dir: DataDir = DATA_DIR_DEFAULT,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return once all nodes serve; `down` ends them.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run a cluster on this machine, until Ctrl-C."""
    roster = Roster(data_dir)
    running = _running(roster)
    if running:
        pids = ", ".join(str(each.pid) for each in running)
        where = "" if data_dir == DATA_DIR_DEFAULT else f" --data-dir {data_dir}"
        fail(f"{data_dir}: a cluster runs here (processes {pids}): chronik cluster down{where}")
    _check_ports(nodes, port)
    local = LocalCluster(nodes, port, roster)
    try:
        local.start()
        status = asyncio.run(_follow(local, detach, as_json))
    except (Ended, OSError) as error:
        local.stop()
        fail(str(error))
    except BaseException:
        local.stop()
        raise
    if not detach:
        local.stop()
    elif as_json:
        print_json(roster.as_json())
    else:
        typer.echo(status)


def down(data_dir: DataDir = DATA_DIR_DEFAULT, as_json: Json = False) -> None:
    """End a cluster that was started here."""
    roster = Roster(data_dir)
    if not roster.path.exists():
        fail(f"{data_dir}: no cluster was started here ({roster.path.name} is missing)")
    running = _running(roster)
    killed = stop_all(running)
    roster.remove()
    if as_json:
        print_json({"stopped": [each.node_id for each in running], "killed": killed})
        return
    stopped = ", ".join(str(each.node_id) for each in running)
    typer.echo(f"stopped node {stopped}" if running else "no node was running")
    if killed:
        typer.echo(f"node {', '.join(map(str, killed))} had to be killed", err=True)


def _running(roster: Roster) -> list[NodeProcess]:
    try:
        return roster.running()
    except (Ended, OSError) as error:
        fail(str(error))


def _check_ports(nodes: int, port: int) -> None:
    for base in (port, port + INTERNAL_PORT_OFFSET):
        for each in range(base, base + nodes):
            try:
                with socket.create_server((HOST, each)):
                    pass
            except OSError as error:
                # `create_server` adds to the words what the number says as well.
                reason = os.strerror(error.errno).lower() if error.errno else str(error)
                fail(f"cannot listen on {HOST}:{each}: {reason} (choose others by --port)")


@dataclass(frozen=True, slots=True)
class View:
    """What one node says."""

    broker_ids: tuple[int, ...]
    controller_id: int
    leader_id: int
    term: int


class LocalCluster:
    """The processes, and a connection to each."""

    def __init__(self, count: int, port: int, roster: Roster) -> None:
        self.node_ids = tuple(range(1, count + 1))
        self._port = port
        self._roster = roster
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._log_starts: dict[int, int] = {}  # what earlier processes wrote ends here
        self._links: dict[int, Link] = {}

    def start(self) -> None:
        """Start a process for each node."""
        self._roster.make_directories()
        peers = ",".join(
            f"{each}@{HOST}:{self._kafka(each)}:{self._kafka(each) + INTERNAL_PORT_OFFSET}"
            for each in self.node_ids
        )
        started = []
        for node_id in self.node_ids:
            options = ["--node-id", str(node_id), "--peers", peers, "--http-port", "-1"]
            options += ["--data-dir", str(self._roster.data_dir / str(node_id))]
            with self._roster.log(node_id).open("ab") as log:
                self._log_starts[node_id] = log.tell()
                process = subprocess.Popen(
                    [*NODE_COMMAND, *options],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    # Ctrl-C is ours to hear: it reaches the nodes as an orderly end.
                    start_new_session=True,
                )
            self._processes[node_id] = process
            started.append(NodeProcess.of(node_id, process.pid, self._kafka(node_id)))
            self._roster.save(started)

    def _kafka(self, node_id: int) -> int:
        return self._port + node_id - 1

    def check_alive(self) -> None:
        """Raise Ended if a node has."""
        for node_id, process in self._processes.items():
            code = process.poll()
            if code is not None:
                log = self._roster.log(node_id)
                reason = _last_words(log, self._log_starts[node_id]) or _ending(code)
                raise Ended(f"node {node_id} ended: {reason} (log: {log})")

    def stop(self) -> None:
        """End all nodes and wait for them."""
        for process in self._processes.values():
            if process.poll() is None:
                process.terminate()
        for process in self._processes.values():
            try:
                process.wait(START_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._roster.remove()

    async def views(self) -> dict[int, View]:
        """What each node says, of those that answer."""
        found = await asyncio.gather(*map(self._view, self.node_ids))
        return {
            node_id: view
            for node_id, view in zip(self.node_ids, found, strict=True)
            if view is not None
        }

    async def _view(self, node_id: int) -> View | None:
        try:
            link = self._links.get(node_id)
            if link is None or not link.is_open:
                address = Address(HOST, self._kafka(node_id))
                link = await Link.connect(
                    address, client_id="chronik-cli", timeout_s=ANSWER_TIMEOUT_S
                )
                self._links[node_id] = link
            answer: MetadataResponse = await link.send(
                MetadataRequest(topics=[]), METADATA, timeout_s=ANSWER_TIMEOUT_S
            )
            said: DescribeQuorumResponse = await link.send(
                QUORUM_REQUEST, DESCRIBE_QUORUM, timeout_s=ANSWER_TIMEOUT_S
            )
            log = quorum_of(said).log
        except (ConnectionFailed, KafkaError, ProtocolError):
            return None
        broker_ids = tuple(sorted(broker.node_id for broker in answer.brokers))
        return View(broker_ids, answer.controller_id, log.leader_id, log.leader_epoch)

    async def close_links(self) -> None:
        """Hang up."""
        for link in self._links.values():
            link.close()
        await asyncio.sleep(0)  # The loop gets its turn to close the sockets.


def is_formed(node_ids: tuple[int, ...], views: dict[int, View]) -> bool:
    """Whether every node shows every broker, and all of them the same leader."""
    return (
        tuple(sorted(views)) == node_ids
        and all(view.broker_ids == node_ids for view in views.values())
        and len({(view.leader_id, view.term) for view in views.values()}) == 1
        and all(view.leader_id >= 0 for view in views.values())
    )


def status_text(node_ids: tuple[int, ...], views: dict[int, View]) -> str:
    """One line: how many brokers answer and are shown by all that do, who leads, who is silent."""
    if not views:
        return "no node answers yet"
    shared = set(views).intersection(*(view.broker_ids for view in views.values()))
    newest = max(views.values(), key=lambda view: (view.term, view.leader_id))
    text = f"{len(shared)} of {len(node_ids)} brokers, "
    text += f"controller {newest.leader_id}" if newest.leader_id >= 0 else "no controller"
    text += f", term {newest.term}"
    silent = [str(each) for each in node_ids if each not in views]
    return f"{text}, no answer from {', '.join(silent)}" if silent else text


async def _follow(local: LocalCluster, detach: bool, as_json: bool) -> str:
    """Show what the nodes say until a signal comes or, detached, until the cluster is there."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    deadline = loop.time() + START_TIMEOUT_S
    line = _StatusLine(as_json, is_silent=detach)
    try:
        while True:
            views = await local.views()
            local.check_alive()
            status = status_text(local.node_ids, views)
            formed = is_formed(local.node_ids, views)
            line.show(status, views, formed)
            if detach and formed:
                return status
            if detach and loop.time() > deadline:
                raise Ended(f"not all brokers came up within {START_TIMEOUT_S:g} s: {status}")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), POLL_S if formed else POLL_STARTING_S)
            if stop.is_set():
                line.end()
                if detach:
                    raise Ended("interrupted")
                return status
    finally:
        await local.close_links()


class _StatusLine:
    """On a terminal one line that changes; else a line for each change."""

    def __init__(self, as_json: bool, *, is_silent: bool) -> None:
        self._as_json = as_json
        self._is_silent = is_silent
        self._shown = ""

    def show(self, status: str, views: dict[int, View], formed: bool) -> None:
        if self._is_silent or status == self._shown:
            return
        if self._as_json:
            nodes = {str(node_id): view.broker_ids for node_id, view in views.items()}
            print_json({"status": status, "formed": formed, "brokers": nodes})
        elif sys.stdout.isatty():
            typer.echo("\r" + status.ljust(len(self._shown)), nl=False)
        else:
            typer.echo(status)
        self._shown = status

    def end(self) -> None:
        if self._is_silent or self._as_json:
            return
        if sys.stdout.isatty():
            typer.echo()  # Ctrl-C has left its mark on the line.
        typer.echo("stopping")


def _ending(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"


def _last_words(log: Path, start: int) -> str | None:
    """The last line by which a node said why it does not run."""
    with log.open("rb") as file:
        file.seek(max(log.stat().st_size - LOG_TAIL_BYTES, start))
        lines = file.read().decode(errors="replace").splitlines()
    refusals = [line for line in lines if line.startswith("chronik: ")]
    return refusals[-1].removeprefix("chronik: ") if refusals else None
