"""The brokers under test and one driver process for each client of the matrix.

A client is a driver program in its own environment (scripts/clients/setup.py) that answers JSON
commands; `ClientDriver` starts it once a session and turns its answers into values and errors.
Environments that this machine cannot have skip their cells with the reason, or fail them where `CI`
is set, so that a green build has really run every cell.

`CHRONIK_TEST_BOOTSTRAP` and `CHRONIK_TEST_STRICT_BOOTSTRAP` (a broker without auto-creation) point
the suite at other brokers: at an Apache Kafka (3.9, the last that serves 0.10 clients; 4.x for the
cells of `group.protocol=consumer`) with `BROKER_SETTINGS` they show that the expectations are
Kafka's, except that it may answer a change before it shows it.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import importlib.util
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chronik.testing import Broker

HERE = Path(__file__).parent
DRIVERS = HERE / "drivers"
SETUP_PATH = HERE.parents[1] / "scripts" / "clients" / "setup.py"
# Above the drivers' own limit of 20 s, so that a slow cell tells what it waited for.
ANSWER_SECONDS_MAX = 60.0
# A rebalance waits for every member, and a session for its timeout: far below this.
GROUP_SECONDS_MAX = 20.0
# Kafka's defaults are made for production: they wait seconds before a group does anything.
BROKER_SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 500,
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.heartbeat.interval.ms": 200,
    "group.consumer.min.session.timeout.ms": 500,
    "group.consumer.session.timeout.ms": 1500,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
}
# A driver is small and short-lived: little heap, no background compiler taking a test's core.
JAVA_FLAGS = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")

_spec = importlib.util.spec_from_file_location("client_environments", SETUP_PATH)
assert _spec is not None
assert _spec.loader is not None
environments = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = environments  # Dataclasses look their module up there.
_spec.loader.exec_module(environments)


class ClientError(Exception):
    """What a client reported; `code` is Kafka's error number, or None where the client has none."""

    def __init__(self, code: int | None, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


class ClientDriver:
    """One driver process: `call` sends a command and waits for its answer."""

    def __init__(self, command: list[str], log_path: Path) -> None:
        self._log_path = log_path
        # A driver must see its own environment only.
        variables = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        with open(log_path, "wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=variables,
                # A signal to the group reaches the programs that a driver runs, too.
                process_group=0,
            )

    def call(self, op: str, **args: Any) -> Any:
        """The answer's value; raises `ClientError` for an error that the client reported."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"op": op, "args": args}).encode() + b"\n")
        process.stdin.flush()
        readable, _, _ = select.select([process.stdout], [], [], ANSWER_SECONDS_MAX)
        line = process.stdout.readline() if readable else b""
        if not line:
            process.kill()
            log = self._log_path.read_text(errors="replace")[-3000:]
            pytest.fail(f"the driver gave no answer to {op}({args!r:.300}):\n{log}")
        answer = json.loads(line)
        if "error" in answer:
            raise ClientError(answer["error"], answer["text"])
        return answer["ok"]

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Kill, stop or continue the driver and all that it has started."""
        os.killpg(self._process.pid, number)

    def close(self) -> None:
        """End the process; a driver ends by itself when its commands do."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


class Client:
    """A client's commands, bound to the broker that the cell is about.

    Records are dicts of key, value, headers and timestamp, with bytes or None as clients have them.
    Any other command of the drivers is a method of the same name.
    """

    def __init__(self, name: str, driver: ClientDriver, bootstrap: str) -> None:
        self.name = name
        self._driver = driver
        self._bootstrap = bootstrap

    def at(self, bootstrap: str) -> Client:
        """The same client, talking to another broker."""
        return Client(self.name, self._driver, bootstrap)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the client's process."""
        self._driver.signal(number)

    def produce(self, topic: str, records: list[dict[str, Any]], **options: Any) -> list[int]:
        """The records' offsets."""
        return self._call("produce", topic=topic, records=list(map(_sent, records)), **options)

    def consume(self, topic: str, start: Any, count: int, **options: Any) -> list[dict[str, Any]]:
        """The next `count` records from an offset, `earliest`, or `{"timestamp": ms}`."""
        told = self._call("consume", topic=topic, start=start, count=count, **options)
        return list(map(_received, told))

    def follow(self, topic: str, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """What a consumer that stood at the end gets when these records are written."""
        told = self._call("follow", topic=topic, records=list(map(_sent, records)))
        return list(map(_received, told))

    def txn_produce(self, producer: str, records: list[dict[str, Any]], **options: Any) -> None:
        """Write in the open transaction, up to the broker's answer."""
        self._call("txn_produce", producer=producer, records=list(map(_sent, records)), **options)

    def refusal(self, op: str, *args: Any, **named: Any) -> ClientError:
        """The error of a command that must not succeed."""
        with pytest.raises(ClientError) as caught:
            getattr(self, op)(*args, **named)
        return caught.value

    def __getattr__(self, op: str) -> Callable[..., Any]:
        return functools.partial(self._call, op)

    def _call(self, op: str, **args: Any) -> Any:
        return self._driver.call(op, bootstrap=self._bootstrap, **args)


class Member:
    """A consumer of a group in a client's process: what it has, and a wait until it has it."""

    def __init__(self, client: Client, name: str, settings: dict[str, Any]) -> None:
        self.client = client
        self.name = name
        self.closed = False
        client.member_open(member=name, **settings)

    def _state(self) -> Any:
        return self.client.member_state(member=self.name)

    @property
    def assigned(self) -> set[tuple[str, int]]:
        return {(topic, partition) for topic, partition in self._state()["assigned"]}

    @property
    def records(self) -> list[tuple[str, int, int, bytes | None]]:
        """(topic, partition, offset, value) in the order of arrival."""
        return [(t, p, offset, _bytes(value)) for t, p, offset, value in self._state()["records"]]

    @property
    def values(self) -> list[bytes | None]:
        return [record[3] for record in self.records]

    @property
    def errors(self) -> list[dict[str, Any]]:
        return list(self._state()["errors"])

    @property
    def rebalances(self) -> int:
        return int(self._state()["rebalances"])

    def call(self, op: str, **args: Any) -> Any:
        """A command of the drivers about this member."""
        return self.client._call(f"member_{op}", member=self.name, **args)

    def refusal(self, op: str, **args: Any) -> ClientError:
        with pytest.raises(ClientError) as caught:
            self.call(op, **args)
        return caught.value

    def close(self) -> None:
        self.closed = True
        self.call("close")


def eventually(condition: Callable[[], Any], what: Callable[[], Any] = lambda: "") -> None:
    """Wait until the condition holds; `what` tells how it stood when the time was over."""
    until = time.monotonic() + GROUP_SECONDS_MAX
    while not condition():
        if time.monotonic() > until:
            pytest.fail(f"not within {GROUP_SECONDS_MAX} s: {what()}")
        time.sleep(0.02)


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _sent(record: dict[str, Any]) -> dict[str, Any]:
    headers = [[name, _text(value)] for name, value in record.get("headers", ())]
    return {
        "key": _text(record.get("key")),
        "value": _text(record.get("value")),
        "headers": headers,
        "timestamp": record.get("timestamp"),
    }


def _received(told: dict[str, Any]) -> dict[str, Any]:
    headers = [(name, _bytes(value)) for name, value in told["headers"]]
    return told | {"key": _bytes(told["key"]), "value": _bytes(told["value"]), "headers": headers}


def python_driver(environment: str, program: str, *arguments: str) -> list[str]:
    return [str(environments.prepare(environment)), str(DRIVERS / program), *arguments]


def java_driver(environment: str) -> list[str]:
    sources = [DRIVERS / name for name in ("Driver.java", "Groups.java", "Members.java")]
    class_path = environments.compile_java(environment, *sources)
    return ["java", *JAVA_FLAGS, "-cp", class_path, "Driver"]


def kcat_driver() -> list[str]:
    # The wrapper needs no library: any Python will do, and the project's is there.
    return [sys.executable, str(DRIVERS / "kcat.py"), str(environments.prepare("kcat"))]


COMMANDS: dict[str, Callable[[], list[str]]] = {
    "confluent-kafka": lambda: python_driver("confluent-kafka", "confluent.py"),
    "kafka-python-2.0.2": lambda: python_driver("kafka-python-2", "kafka_python.py"),
    "kafka-python-3": lambda: python_driver("kafka-python-3", "kafka_python.py"),
    "kafka-python-3-at-0.10": lambda: python_driver("kafka-python-3", "kafka_python.py", "0.10.0"),
    "kafka-python-2.0.2-at-0.10": lambda: python_driver(
        "kafka-python-2", "kafka_python.py", "0.10.0"
    ),
    "aiokafka": lambda: python_driver("aiokafka", "aiokafka_driver.py"),
    "kcat": kcat_driver,
    "java-3.9": lambda: java_driver("java-3.9"),
    "java-4": lambda: java_driver("java-4"),
}


def unavailable(name: str, error: Exception) -> None:
    """Skip, or fail where CI promises that every cell ran."""
    reason = f"{name} is unavailable: {error}"
    if os.environ.get("CI", "") not in ("", "false", "0"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], ClientDriver]]:
    """The driver process of a client by name, started at its first use."""
    logs = tmp_path_factory.mktemp("drivers")
    running: dict[str, ClientDriver] = {}
    missing: dict[str, Exception] = {}

    def get(name: str) -> ClientDriver:
        if name in missing:
            unavailable(name, missing[name])
        if name not in running or not running[name].alive:
            try:
                command = COMMANDS[name]()
            except environments.Unavailable as error:
                missing[name] = error
                unavailable(name, error)
            running[name] = ClientDriver(command, logs / f"{name}.log")
        return running[name]

    yield get
    for started in running.values():
        started.close()


@pytest.fixture(scope="module")
def tools_class_path() -> str:
    """The class path of Kafka's command line tools."""
    try:
        return f"{environments.prepare('kafka-tools')}/*"
    except environments.Unavailable as error:
        unavailable("kafka-tools", error)
        raise


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the broker of `bootstrap` keeps its files."""
    return tmp_path_factory.mktemp("broker") / "data"


@pytest.fixture(scope="module")
def bootstrap(data_dir: Path) -> Iterator[str]:
    """A broker with Kafka's defaults, except for the timing of groups, on disk."""
    given = os.environ.get("CHRONIK_TEST_BOOTSTRAP")
    if given:
        yield given
        return
    with Broker(BROKER_SETTINGS, data_dir=str(data_dir)) as broker:
        yield broker.bootstrap


@pytest.fixture(scope="module")
def strict_bootstrap() -> Iterator[str]:
    """A broker that does not create the topics that clients ask for."""
    given = os.environ.get("CHRONIK_TEST_STRICT_BOOTSTRAP")
    if given:
        yield given
        return
    with Broker({"auto.create.topics.enable": "false"}) as broker:
        yield broker.bootstrap


@pytest.fixture(scope="module")
def bound(driver: Callable[[str], ClientDriver], bootstrap: str) -> Callable[[str], Client]:
    """A client by name, talking to the broker of `bootstrap`."""
    return lambda name: Client(name, driver(name), bootstrap)


@pytest.fixture
def client(request: pytest.FixtureRequest, bound: Callable[[str], Client]) -> Client:
    """The client of this cell."""
    return bound(request.param)


@pytest.fixture(scope="module")
def spare(
    bootstrap: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Client]]:
    """A second process of a client by name, for the cell to kill or to stop."""
    logs = tmp_path_factory.mktemp("spares")
    running: dict[str, ClientDriver] = {}

    def get(name: str) -> Client:
        if name in running and not running[name].alive:
            running.pop(name).close()
        if name not in running:
            command = COMMANDS[name]()  # The cell's first process has found it available.
            running[name] = ClientDriver(command, logs / f"{name}.log")
        return Client(name, running[name], bootstrap)

    yield get
    for started in running.values():
        started.close()


@pytest.fixture
def join(topic: str) -> Iterator[Callable[..., Member]]:
    """Opens members, of a group of the cell's own unless told, and closes them after it."""
    opened: list[Member] = []

    def open_member(client: Client, **settings: Any) -> Member:
        member = Member(client, f"{topic}-{len(opened)}", {"group": f"group-{topic}"} | settings)
        opened.append(member)
        return member

    yield open_member
    for member in opened:
        if not member.closed and member.client._driver.alive:
            with contextlib.suppress(ClientError):
                member.close()


@pytest.fixture
def reference(bound: Callable[[str], Client]) -> Client:
    """The client that prepares what a cell's own client has no API for."""
    return bound("confluent-kafka")


_numbers = itertools.count(1)


@pytest.fixture
def topic() -> str:
    """A name that no other cell uses, also against a broker that outlives the run."""
    return f"matrix-{os.getpid()}-{next(_numbers)}"
