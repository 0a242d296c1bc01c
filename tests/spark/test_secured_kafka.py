"""Spark with an Apache Kafka that asks who is there: all that works, and no secret anywhere.

After each test everything that Spark, its executors and our commands have printed or written is
searched for the passwords: logs at their most talkative, event logs, checkpoints, tables, errors.
"""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from pipeline_world import START_TIMEOUT_S, check_is_log, command, environment, spark_cluster
from secured_world import (
    CA,
    KEY_PASSWORD,
    MECHANISMS,
    PASSWORD,
    TLS,
    USER,
    WRONG_CA,
    WRONG_PASSWORD,
    SecuredKafka,
    SparkDriver,
    event_log,
    secrets_below,
)

# Our client's patience with trouble that may pass. What is refused is none, and told much sooner,
# whatever else this machine does.
PATIENCE_MS = 900_000
REFUSED_S = 300.0
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def kafka(
    kafka_class_path: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SecuredKafka]:
    with SecuredKafka(tmp_path_factory.mktemp("kafka"), kafka_class_path) as running:
        yield running


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What is searched: all that anything here leaves behind is below."""
    searched = tmp_path_factory.mktemp("left-behind")
    yield searched
    assert secrets_below(searched) == []  # Spark has stopped by now, with some last words.


@pytest.fixture(autouse=True)
def kept(root: Path) -> Iterator[None]:
    yield
    assert secrets_below(root) == []


@pytest.fixture(scope="module")
def driver(root: Path) -> Iterator[SparkDriver]:
    """A driver whose tasks run in an executor, which is a process of its own as on any cluster.

    Tests ask for it before they ask for Kafka, so that the two start at the same time.
    """
    home = root / "cluster"
    home.mkdir()
    with spark_cluster(home, workers=1) as master, SparkDriver(root / "driver", master) as running:
        yield running
        (log,) = home.glob("worker-0/app-*/*/stderr")
        assert "Running task" in log.read_text()


def options(kafka: SecuredKafka, topic: str = "", **changes: str | None) -> dict[str, str]:
    """A source's options, with a password; changes have `_` for `.`, and None for nothing."""
    settings: dict[str, str | None] = {
        "bootstrap.servers": kafka.secured,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": CA,
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
        "default.api.timeout.ms": str(PATIENCE_MS),
        **{name.replace("_", "."): value for name, value in changes.items()},
    }
    where = {"subscribe": topic} if topic else {}
    return where | {f"kafka.{name}": value for name, value in settings.items() if value is not None}


def written(options: dict[str, str]) -> dict[str, str]:
    """The same options for a write."""
    return {"topic" if name == "subscribe" else name: value for name, value in options.items()}


NO_LOGIN: dict[str, str | None] = {
    "sasl_mechanism": None,
    "sasl_username": None,
    "sasl_password": None,
}
PLAINTEXT = {"security_protocol": None, "ssl_ca_location": None, **NO_LOGIN}


def test_the_search_finds_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text(f"is {PASSWORD}.")
    for skip in range(3):
        (tmp_path / f"coded-{skip}").write_bytes(
            base64.b64encode(b"." * skip + KEY_PASSWORD.encode())
        )
    rows = pa.table({"value": [f"is {PASSWORD}."] * 100})
    pq.write_table(rows, tmp_path / "t.parquet", compression="zstd")
    pq.write_table(rows.slice(0, 0).replace_schema_metadata({"is": WRONG_PASSWORD}), tmp_path / "m")
    (tmp_path / "innocent").write_text("horse-battery-staple")
    found = {Path(each.split(": ")[1]).name for each in secrets_below(tmp_path)}
    assert found == {"plain", "coded-0", "coded-1", "coded-2", "t.parquet", "m"}


# The source and the sink


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_written_and_read(driver: SparkDriver, kafka: SecuredKafka, mechanism: str) -> None:
    topic = kafka.create(f"batch-{mechanism}")
    known = options(kafka, topic, sasl_mechanism=mechanism)
    driver.rows("write", options=written(known), values=['{"n": 1}', '{"n": 2}'])
    found = driver.rows("read", options={**known, "decode": "json", "columns": "n"})
    assert found == ['{"n":1}', '{"n":2}']
    assert " DEBUG " in driver.printed


def test_a_java_clients_configuration(driver: SparkDriver, kafka: SecuredKafka) -> None:
    topic = kafka.create("jaas")
    kafka.produce(topic, "x")
    login = (
        "org.apache.kafka.common.security.scram.ScramLoginModule required"
        f' username="{USER}" password="{PASSWORD}";'
    )
    known = options(kafka, topic, sasl_jaas_config=login, sasl_username=None, sasl_password=None)
    found = driver.rows("read", options={**known, "decode": "string", "columns": "value"})
    assert found == ['{"value":"x"}']


def test_our_certificate(driver: SparkDriver, kafka: SecuredKafka) -> None:
    topic = kafka.create("certified")
    known = options(
        kafka,
        topic,
        bootstrap_servers=kafka.certified,
        security_protocol="SSL",
        ssl_certificate_location=str(TLS / "client.pem"),
        ssl_key_location=str(TLS / "client.locked.key"),
        ssl_key_password=KEY_PASSWORD,
        **NO_LOGIN,
    )
    driver.rows("write", options=written(known), values=["x"])
    found = driver.rows("read", options={**known, "decode": "string", "columns": "value"})
    assert found == ['{"value":"x"}']


def test_streams(driver: SparkDriver, kafka: SecuredKafka, root: Path) -> None:
    """A stream into a table and one into a topic, both begun again from their checkpoints."""
    topic, copied = kafka.create("streamed"), kafka.create("copied")
    source = {"startingOffsets": "earliest", "groupId": "streams", "decode": "string"}
    table = {"checkpoint": str(root / "to-table"), "table": str(root / "table")}
    copy = {"checkpoint": str(root / "to-topic"), "into": written(options(kafka, copied))}
    expected: list[str] = []
    for mechanism in ("SCRAM-SHA-256", "PLAIN"):  # Nothing of the first login is remembered.
        values = [f"{mechanism}-{number}" for number in range(20)]
        kafka.produce(topic, *values)
        expected = sorted([*expected, *values])
        known = {**options(kafka, topic, sasl_mechanism=mechanism), **source}
        assert driver.rows("stream", options=known, **table) == expected
        driver.rows("copy", options=known, **copy)
    known = {**options(kafka, copied), "decode": "string", "columns": "value"}
    found = driver.rows("read", options=known)
    assert sorted(json.loads(each)["value"] for each in found) == expected
    assert topic in (root / "to-table" / "offsets" / "1").read_text()


# What is refused

NOT_IN = "SASL_AUTHENTICATION_FAILED: .* does not let 'spark' in"
REFUSALS: dict[str, tuple[dict[str, str | None], str]] = {
    "wrong password": ({"sasl_password": WRONG_PASSWORD}, NOT_IN),
    "wrong plain password": (
        {"sasl_password": WRONG_PASSWORD, "sasl_mechanism": "PLAIN"},
        NOT_IN,
    ),
    "wrong authority": ({"ssl_ca_location": WRONG_CA}, "its certificate is not trusted"),
    "no such authority": ({"ssl_ca_location": "/none.pem"}, r"cannot be read \(/none.pem\)"),
    "plaintext": (PLAINTEXT, "it speaks TLS, and we do not.*check .*security.protocol"),
    "no login": ({"security_protocol": "SSL", **NO_LOGIN}, "closed.*check .*security.protocol"),
    "no TLS there": (
        {"bootstrap_servers": "PLAIN"},
        "it may not speak TLS.*check .*security.protocol",
    ),
}


def wrong_options(kafka: SecuredKafka, topic: str, case: str) -> dict[str, str]:
    changes, _ = REFUSALS[case]
    if "bootstrap_servers" in changes:
        changes = {**changes, "bootstrap_servers": kafka.plain}
    return options(kafka, topic, **changes)


@pytest.fixture
def refused(driver: SparkDriver) -> Callable[..., None]:
    """Checks that a step fails with one sentence, and soon."""

    def check(case: str, step: str, **how: Any) -> None:
        answer = driver.do(step, **how)
        said = [
            line
            for line in answer["error"].splitlines()
            if line.startswith("chronik.spark.errors.")
        ]
        assert len(said) == 1, answer["error"]
        assert re.search(REFUSALS[case][1], said[0]), said[0]
        assert answer["seconds"] < REFUSED_S

    return check


@pytest.mark.parametrize("case", REFUSALS)
def test_refused(kafka: SecuredKafka, refused: Callable[..., None], case: str) -> None:
    refused(case, "read", options=wrong_options(kafka, "any", case))


def test_a_refused_write_and_stream(
    kafka: SecuredKafka, refused: Callable[..., None], root: Path
) -> None:
    wrong = wrong_options(kafka, "any", "wrong password")
    refused("wrong password", "write", options=written(wrong), values=["x"])
    where = {"checkpoint": str(root / "refused"), "table": str(root / "refused-table")}
    refused("wrong password", "stream", options=wrong, **where)


@pytest.mark.parametrize("case", ["wrong password", "wrong authority"])
def test_refused_tasks(
    kafka: SecuredKafka, refused: Callable[..., None], root: Path, case: str
) -> None:
    """The driver of a stream into a topic finds nothing wrong: only its tasks connect."""
    topic = kafka.create(case.replace(" ", "-"))
    kafka.produce(topic, "x")
    known = {**options(kafka, topic), "startingOffsets": "earliest"}
    into = written(wrong_options(kafka, topic, case))
    refused(case, "copy", options=known, into=into, checkpoint=str(root / topic))


# The commands


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The file of the command that was run last. It holds a password, and is not searched."""
    return tmp_path / "pipeline.toml"


@pytest.fixture
def run(root: Path, config: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a command of ours as a person does; what it prints is kept to be searched."""

    def run_command(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
        config.write_text(toml(root, settings))
        done = subprocess.run(
            [command()[0], *arguments, "--config", str(config)],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
            check=False,
        )
        with (root / "commands.txt").open("a") as kept:
            kept.write(done.stdout + done.stderr)
        return done

    return run_command


def toml(root: Path, settings: dict[str, str]) -> str:
    """A pipeline's file, with a table of the topic `orders`."""
    (root / "lake-events").mkdir(exist_ok=True)
    # What Spark prints behind a command is not shown. This level is not the one of the session, to
    # which it is set then: Spark takes one that it has already for no change, and stays quiet.
    logging = root / "log4j2.properties"
    logging.write_text(
        "rootLogger.level = info\nrootLogger.appenderRef.file.ref = file\n"
        "appender.file.type = File\nappender.file.name = file\n"
        f"appender.file.fileName = {root / 'lake-spark.txt'}\n"
        "appender.file.layout.type = PatternLayout\nappender.file.layout.pattern = %p %c %m%n%ex\n"
    )
    java = f"-Dlog4j2.configurationFile={logging.as_uri()}"
    tables = {
        "topics.orders": {"table": "delta", "decode": "json"},
        "kafka": {name.removeprefix("kafka."): value for name, value in settings.items()},
        "spark": {
            "spark.log.level": "DEBUG",
            "spark.driver.extraJavaOptions": java,
            "spark.sql.shuffle.partitions": "2",
            **event_log(root / "lake-events"),
        },
    }
    bootstrap = tables["kafka"].pop("bootstrap.servers")
    lines = [f'bootstrap = "{bootstrap}"', f'warehouse = "{root / "lake"}"', 'master = "local[2]"']
    for table, values in tables.items():
        lines += [f"[{table}]", *(f'"{name}" = "{value}"' for name, value in values.items())]
    return "\n".join(lines)


def test_the_pipeline(
    driver: SparkDriver, kafka: SecuredKafka, run: Callable[..., Any], config: Path, root: Path
) -> None:
    topic = kafka.create("orders")
    kafka.produce(topic, *(f'{{"n": {number}}}' for number in range(100)), "bad")
    known = options(kafka, sasl_mechanism="SCRAM-SHA-512")
    done = run("pipeline", "run", "--once", **known)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "\nDEBUG " in (root / "lake-spark.txt").read_text()
    assert check_is_log(kafka.plain, root / "lake", topic, "delta") == (100, 1)
    done = run("pipeline", "status", "--json", **known)
    assert json.loads(done.stdout)[0]["lag_records"] == 0
    (report,) = driver.rows("audit", config=str(config), topic=topic)
    assert report["findings"] == []
    assert (report["topics"][0]["row_count"], report["topics"][0]["dead_count"]) == (100, 1)


@pytest.mark.parametrize("case", ["wrong password", "wrong authority", "plaintext"])
def test_a_pipeline_that_is_refused(
    kafka: SecuredKafka, run: Callable[..., Any], case: str
) -> None:
    done = run("pipeline", "run", "--once", **wrong_options(kafka, "", case))
    assert done.returncode == 1
    assert done.stderr.startswith("chronik: ")
    assert done.stderr.count("\n") == 1, "one line, and no word of Spark's"
    assert re.search(REFUSALS[case][1], done.stderr)
