"""A node as a process: how it starts, what it says, how it ends."""

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from chronik.protocol import apis
from chronik.protocol.batch import split
from chronik.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from chronik.protocol.records import iter_records

BIN = Path(sys.executable).parent
STOP_TIMEOUT_S = 5.0
START_TIMEOUT_S = 30.0


class Process:
    """A command that runs a node; stderr goes to a file."""

    def __init__(self, log: Path, command: list[str], **variables: str) -> None:
        self._log = log
        with log.open("w") as stderr:
            self.popen = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=os.environ | variables,
            )
        assert self.popen.stdout is not None
        self.ready = self.popen.stdout.readline()

    @property
    def bootstrap(self) -> str:
        return self._address("kafka")

    @property
    def http(self) -> str:
        return "http://" + self._address("http")

    def _address(self, kind: str) -> str:
        found = re.search(rf"{kind} (\S+:\d+),", self.ready)
        assert found is not None, (self.ready, self.log)
        return found[1]

    @property
    def log(self) -> list[str]:
        return self._log.read_text().splitlines()

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        self.popen.send_signal(how)
        return self.popen.wait(STOP_TIMEOUT_S)


class Start:
    """Starts nodes in a directory, and ends what a test leaves running."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.data_dir = directory / "data"
        self._processes: list[Process] = []

    def __call__(self, *options: str, http_port: str = "-1", **variables: str) -> Process:
        data_dir = str(self.data_dir)
        common = ["--port", "0", "--http-port", http_port, "--data-dir", data_dir]
        return self.run([str(BIN / "chronik"), "start", *common, *options], **variables)

    def run(self, command: list[str], **variables: str) -> Process:
        log = self.directory / f"log-{len(self._processes)}"
        self._processes.append(Process(log, command, **variables))
        return self._processes[-1]

    def end_all(self) -> None:
        for process in self._processes:
            if process.popen.poll() is None:
                process.popen.kill()
                process.popen.wait()
            assert process.popen.stdout is not None
            process.popen.stdout.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    starting = Start(tmp_path)
    yield starting
    starting.end_all()


def refused(command: list[str], **variables: str) -> tuple[int, str]:
    """The exit code of a node that does not start, and the one line that says why."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S,
        env=os.environ | variables,
        check=False,
    )
    assert done.stdout == ""
    (line,) = [each for each in done.stderr.splitlines() if not re.match(r"\d{4}-\S+ INFO", each)]
    assert line.startswith("chronik: ")
    return done.returncode, line


def produce(bootstrap: str, topic: str, *values: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "client.id": "billing"})
    for value in values:
        producer.produce(topic, value.encode(), partition=0)
    assert producer.flush(10) == 0


def fetch_request(offset: int, max_wait_ms: int) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1000)
    topic = FetchTopic(topic="t", partitions=[partition])
    return FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, topics=[topic])


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(start: Start, connect: Any, how: signal.Signals) -> None:
    node = start(http_port="0")
    produce(node.bootstrap, "t", "a", "b", "c")
    assert node.end(how) == 0
    assert "Traceback" not in "\n".join(node.log)
    assert node.log[-1].endswith("stopped node_id=1")
    (checkpoint,) = start.data_dir.glob("topics/t.*/0/checkpoint")
    assert "recovery_point 3\n" in checkpoint.read_text(), "the next start has nothing to verify"
    check = [str(BIN / "chronik"), "storage", "check", str(start.data_dir)]
    checked = subprocess.run(check, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    before = checkpoint.stat().st_mtime_ns
    again = start()
    answer = connect(again).ask(apis.FETCH, 12, fetch_request(offset=0, max_wait_ms=0))
    data = answer.responses[0].partitions[0].records
    values = [record.value for batch in split(data) for record in iter_records(batch.data)]
    assert values == [b"a", b"b", b"c"]
    assert checkpoint.stat().st_mtime_ns == before, "nothing was recovered"
    assert not [line for line in again.log if " WARNING " in line or " ERROR " in line]


def test_a_parked_consumer_does_not_hold_up_the_end(start: Start, connect: Any) -> None:
    node = start()
    produce(node.bootstrap, "t", "a")
    wire = connect(node)
    wire.send(apis.FETCH, 12, fetch_request(offset=1, max_wait_ms=60_000))
    assert node.end() == 0
    assert wire.is_closed()


@pytest.mark.parametrize("option", ["--port", "--http-port"])
def test_a_port_in_use_is_named_with_its_option(tmp_path: Path, option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ports = {"--port": "0", "--http-port": "0", "--data-dir": str(tmp_path)} | {option: port}
        options = [word for pair in ports.items() for word in pair]
        code, line = refused([str(BIN / "chronik"), "start", *options])
    assert code == 1
    assert f"127.0.0.1:{port} ({option})" in line
    assert "in use" in line


@pytest.mark.parametrize("by_variable", [False, True])
def test_a_file_of_settings(start: Start, by_variable: bool) -> None:
    file = start.directory / "chronik.toml"
    file.write_text(
        f'port = 0\nhttp_port = -1\nnode_id = 7\ndata_dir = "{start.data_dir}"\n'
        'log_level = "warning"\n[kafka]\n"num.partitions" = 3\n'
    )
    command = [str(BIN / "chronik"), "start"]
    if by_variable:
        node = start.run(command, CHRONIK_CONFIG=str(file))
    else:
        node = start.run([*command, "--config", str(file)])
    assert " node 7 is ready: " in node.ready
    assert ", no http, " in node.ready
    produce(node.bootstrap, "t", "a")
    metadata = AdminClient({"bootstrap.servers": node.bootstrap}).list_topics(timeout=10)
    assert list(metadata.brokers) == [7]
    assert len(metadata.topics["t"].partitions) == 3
    assert node.end() == 0
    assert node.log == []


def test_chronik_server_is_chronik_start(start: Start) -> None:
    options = ["--port", "0", "--http-port", "-1", "--data-dir", str(start.data_dir)]
    node = start.run([str(BIN / "chronik-server"), *options])
    produce(node.bootstrap, "t", "a")
    assert node.end() == 0


def test_an_unknown_variable_ends_the_start(tmp_path: Path) -> None:
    command = [str(BIN / "chronik"), "start", "--data-dir", str(tmp_path / "data")]
    for variable in ("CHRONIK_PROT", "CHRONIK_KAFKA_NUM_PARTITONS"):
        code, line = refused(command, **{variable: "4"})
        assert (code, f"chronik: {variable}: unknown" in line) == (2, True)
    assert not (tmp_path / "data").exists()


def test_without_assertions_nothing_starts(tmp_path: Path) -> None:
    command = [sys.executable, "-O", str(BIN / "chronik"), "start", "--data-dir", str(tmp_path)]
    code, line = refused(command)
    assert (code, "python -O is refused" in line) == (1, True)


def test_health_and_metrics(start: Start) -> None:
    node = start(http_port="0")
    produce(node.bootstrap, "t", "a")
    assert get(node.http + "/healthz") == (200, '{"status":"ok"}')
    status, text = get(node.http + "/readyz")
    assert status == 200
    ready = json.loads(text)
    assert (ready["ready"], ready["node_id"], ready["brokers"]) == (True, 1, [1])
    status, text = get(node.http + "/metrics")
    assert status == 200
    assert re.search(r'^chronik_requests_total\{api="Produce",version="\d+"\} 1\.0$', text, re.M)
    assert re.search(r'^chronik_request_seconds_count\{api="Produce"\} 1\.0$', text, re.M)
    for name in (
        "chronik_connections_accepted_total",
        "chronik_bytes_in_total",
        'chronik_log_bytes{topic="t"}',
        "chronik_cluster_partitions",
        "chronik_leaders",
    ):
        found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.M)
        assert found is not None, name
        assert float(found[1]) > 0
    assert get(node.http + "/nothing")[0] == 404
    assert node.end() == 0


def test_what_the_log_says(start: Start) -> None:
    node = start("--log-level", "debug", http_port="0")
    produce(node.bootstrap, "t", "a")
    assert get(node.http + "/healthz")[0] == 200
    assert node.end() == 0
    line = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (DEBUG|INFO) +\S+ \S.*")
    assert not [each for each in node.log if not line.fullmatch(each)]
    request = re.compile(
        r".* request api=Produce version=\d+ client_id=billing client=127\.0\.0\.1"
        r" latency_ms=\d+\.\d+"
    )
    assert len([each for each in node.log if request.fullmatch(each)]) == 1
    apis = {found[1] for each in node.log if (found := re.search(r" request api=(\w+) ", each))}
    assert {"ApiVersions", "Metadata", "Produce"} <= apis
    loggers = {each.split()[2] for each in node.log}
    assert all(name.split(".")[0] == "chronik" for name in loggers), loggers


def test_thousands_of_connections_under_a_small_soft_limit(start: Start) -> None:
    """The node raises its own limit of descriptors as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = min(2_000, hard - 200)
    command = f"ulimit -Sn 200; exec {BIN / 'chronik'} start --port 0 --http-port -1"
    process = start.run(["bash", "-c", f"{command} --data-dir {start.data_dir} --log-level error"])
    host, _, port = process.bootstrap.rpartition(":")
    links = [socket.create_connection((host, int(port)), 10) for _ in range(count)]
    try:
        for link in (links[0], links[-1]):
            link.sendall(b"\x00\x00\x00\x0a\x00\x12\x00\x00\x00\x00\x00\x01\xff\xff")
            assert link.recv(4)
    finally:
        for link in links:
            link.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert process.end() == 0
