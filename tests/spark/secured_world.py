"""An Apache Kafka that lets nobody in without a password or a certificate, a Spark driver beside it
whose every word is kept, and a search for secrets in whatever they leave behind.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pipeline_world import START_TIMEOUT_S, TIMEOUT_S
from ports import free_port

TLS = Path(__file__).parents[1] / "vectors" / "tls"
CA = str(TLS / "ca.pem")
WRONG_CA = str(TLS / "client.pem")  # a certificate, but it has signed none
USER = "spark"
# Words that nobody says by chance: wherever they are found, they were not kept.
PASSWORD = "correct-horse-battery-staple"
WRONG_PASSWORD = "wrong-horse-battery-staple"
KEY_PASSWORD = "locked-horse-battery-staple"
SECRETS = (PASSWORD, WRONG_PASSWORD, KEY_PASSWORD)
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
DRIVER = Path(__file__).with_name("secured_driver.py")
ANSWER = "answer: "  # how the line begins by which it ends a step
_LOGIN = "org.apache.kafka.common.security"


class SecuredKafka:
    """One node, broker and controller, in a process of its own.

    Of its listeners one asks for a name and a password, one for a certificate, both over TLS. Its
    own connections need one that asks for nothing.
    """

    def __init__(self, home: Path, class_path: str) -> None:
        self._java = ["java", "-Xmx512m", "-cp", class_path]
        self._home = home
        self._ports = {
            name: free_port() for name in ("SECURED", "CERTIFIED", "PLAIN", "CONTROLLER")
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def secured(self) -> str:
        return f"127.0.0.1:{self._ports['SECURED']}"

    @property
    def certified(self) -> str:
        return f"127.0.0.1:{self._ports['CERTIFIED']}"

    @property
    def plain(self) -> str:
        return f"127.0.0.1:{self._ports['PLAIN']}"

    def create(self, name: str, partitions: int = 2) -> str:
        """A topic, made by a client that is not ours."""
        admin = AdminClient(self._librdkafka)
        admin.create_topics([NewTopic(name, partitions)])[name].result(TIMEOUT_S)
        return name

    def produce(self, name: str, *values: str) -> None:
        """Records, written by a client that is not ours."""
        producer = Producer({**self._librdkafka, "linger.ms": 0})
        for value in values:
            producer.produce(name, value)
        assert producer.flush(TIMEOUT_S) == 0

    @property
    def _librdkafka(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.secured,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": CA,
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": USER,
            "sasl.password": PASSWORD,
        }

    def __enter__(self) -> SecuredKafka:
        properties = self._home / "server.properties"
        properties.write_text("".join(f"{name}={text}\n" for name, text in self._settings()))
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        formatting = ["format", f"--cluster-id={cluster_id}", "-c", str(properties)]
        for mechanism in MECHANISMS[1:]:
            formatting += ["--add-scram", f"{mechanism}=[name={USER},password={PASSWORD}]"]
        done = subprocess.run(
            [*self._java, "kafka.tools.StorageTool", *formatting],
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        with (self._home / "log.txt").open("wb") as log:
            self._process = subprocess.Popen(
                [*self._java, "kafka.Kafka", str(properties)], stdout=log, stderr=log
            )
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def _wait(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            assert self._process.poll() is None, (self._home / "log.txt").read_text()[-2000:]
            assert time.monotonic() < deadline, "Kafka did not start"
            try:
                with socket.create_connection(("127.0.0.1", self._ports["SECURED"]), 1):
                    return
            except OSError:
                time.sleep(0.05)

    def _settings(self) -> Iterator[tuple[str, str]]:
        yield "process.roles", "broker,controller"
        yield "node.id", "1"
        yield "controller.quorum.voters", f"1@127.0.0.1:{self._ports['CONTROLLER']}"
        yield "controller.listener.names", "CONTROLLER"
        yield "inter.broker.listener.name", "PLAIN"
        yield (
            "listeners",
            ",".join(f"{name}://127.0.0.1:{port}" for name, port in self._ports.items()),
        )
        yield (
            "listener.security.protocol.map",
            "SECURED:SASL_SSL,CERTIFIED:SSL,PLAIN:PLAINTEXT,CONTROLLER:PLAINTEXT",
        )
        yield "log.dirs", str(self._home / "data")
        yield "auto.create.topics.enable", "false"
        yield "offsets.topic.num.partitions", "1"
        yield "transaction.state.log.num.partitions", "1"
        for name in ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic"):
            yield f"{name}.replication.factor", "1"
        for name in ("transaction.state.log", "share.coordinator.state.topic"):
            yield f"{name}.min.isr", "1"
        yield from self._security()

    def _security(self) -> Iterator[tuple[str, str]]:
        store = self._home / "server.pem"
        store.write_text((TLS / "server.key").read_text() + (TLS / "server.pem").read_text())
        yield "ssl.keystore.type", "PEM"
        yield "ssl.keystore.location", str(store)
        yield "ssl.truststore.type", "PEM"
        yield "ssl.truststore.location", CA
        yield "listener.name.certified.ssl.client.auth", "required"
        yield "sasl.enabled.mechanisms", ",".join(MECHANISMS)
        plain = f'{_LOGIN}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
        yield "listener.name.secured.plain.sasl.jaas.config", plain
        for mechanism in MECHANISMS[1:]:
            name = f"listener.name.secured.{mechanism.lower()}.sasl.jaas.config"
            yield name, f"{_LOGIN}.scram.ScramLoginModule required;"


class SparkDriver:
    """`secured_driver` in a process of its own; what it and Spark print is below `home`."""

    def __init__(self, home: Path, master: str) -> None:
        self._home = home
        (home / "events").mkdir(parents=True)
        settings = {
            "spark.master": master,
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.sql.shuffle.partitions": "2",
            "spark.task.maxFailures": "1",  # What is refused once is refused again.
            "spark.sql.warehouse.dir": str(home / "warehouse"),
            **event_log(home / "events"),
        }
        environment = {
            **os.environ,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(home / "scratch"),
            "PYSPARK_PYTHON": sys.executable,
        }
        with (home / "stderr.txt").open("wb") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, str(DRIVER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=environment,
                text=True,
            )
        self._say(settings)

    def __enter__(self) -> SparkDriver:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(TIMEOUT_S)
        finally:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()

    def do(self, step: str, **how: Any) -> dict[str, Any]:
        """What came of a step: its rows or its error, and how many seconds it took."""
        self._say({"do": step, **how})
        assert self._process.stdout is not None
        with (self._home / "stdout.txt").open("a") as kept:
            for line in self._process.stdout:
                kept.write(line)
                if line.startswith(ANSWER):
                    answer: dict[str, Any] = json.loads(line.removeprefix(ANSWER))
                    return answer
        raise AssertionError("the driver is gone:\n" + self.printed[-2000:])

    def rows(self, step: str, **how: Any) -> Any:
        """What a step brought that must not fail."""
        answer = self.do(step, **how)
        assert "error" not in answer, answer["error"]
        return answer["rows"]

    @property
    def printed(self) -> str:
        return (self._home / "stderr.txt").read_text(errors="replace")

    def _say(self, what: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()


def event_log(directory: Path) -> dict[str, str]:
    """Settings by which Spark writes down all that it does, as a history server reads it."""
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": directory.as_uri(),
        "spark.eventLog.compress": "false",
    }


def secrets_below(root: Path) -> list[str]:
    """Where a secret is, in whatever way it may be written down."""
    found = []
    for path in sorted(root.rglob("*")):
        try:
            text = _readable(path)
        except FileNotFoundError:
            continue  # Spark has tidied up meanwhile.
        found += [
            f"{secret}: {path}" for secret in SECRETS for word in _ways(secret) if word in text
        ]
    return found


def _readable(path: Path) -> bytes:
    if not path.is_file():
        return b""
    data = path.read_bytes()
    if not (data.startswith(b"PAR1") and data.endswith(b"PAR1")):
        return data
    table = pq.read_table(path)  # Its pages are compressed.
    return data + repr((table.to_pylist(), table.schema.metadata)).encode()


def _ways(secret: str) -> list[bytes]:
    """A secret as it is, and as base64 has it, which depends on the place where it begins."""
    plain = secret.encode()
    coded = [base64.b64encode(bytes(skip) + plain)[skip and skip + 1 : -4] for skip in range(3)]
    return [plain, *coded]
