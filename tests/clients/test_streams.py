"""A Kafka Streams application with `exactly_once_v2`, from its jars, killed in the middle.

Streams uses the broker harder than any client alone: internal topics with configs of its own,
a group with its own assignor, a changelog that it reads back, and a transaction for each commit
that spans the input's offsets, the changelog and the output. Every occurrence of a word must come
out exactly once, however often the application dies.
"""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from clients.conftest import DRIVERS, JAVA_FLAGS, environments, unavailable

WORDS = [f"word-{i}" for i in range(20)]
LINES = 400
WORDS_IN_LINE = 5


@pytest.fixture(scope="module")
def class_path() -> str:
    try:
        return environments.compile_java("kafka-applications", DRIVERS / "WordCount.java")
    except environments.Unavailable as error:
        unavailable("kafka-applications", error)
        raise


@contextlib.contextmanager
def running(class_path: str, log: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """The application until the block ends, then killed if it still runs."""
    command = ["java", *JAVA_FLAGS, "-cp", class_path, "WordCount", *arguments]
    with open(log, "ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def lines(start: int) -> list[str]:
    chosen = random.Random(start)
    return [" ".join(chosen.choices(WORDS, k=WORDS_IN_LINE)) for _ in range(LINES)]


def test_word_count_exactly_once(class_path, reference, bootstrap, topic, tmp_path):
    output = f"{topic}-counts"
    reference.create_topic(topic=topic, partitions=2)
    reference.create_topic(topic=output)
    told = (bootstrap, f"app-{topic}", topic, output, str(tmp_path / "state"))
    log = tmp_path / "streams.log"
    total: dict[str, int] = defaultdict(int)

    def write(turn: int) -> int:
        written = lines(turn)
        for partition in range(2):
            records = [{"value": line.encode()} for line in written[partition::2]]
            reference.produce(topic, records, partition=partition)
        for word in " ".join(written).split():
            total[word] += 1
        return sum(total.values())

    for turn in range(2):
        before = sum(total.values())
        write(turn)
        with running(class_path, log, *told) as application:
            # Some of this turn's counts are out and some are not: now it dies.
            reference.consume(output, "earliest", before + 1)
            application.send_signal(signal.SIGKILL)
    count = write(2)
    with running(class_path, log, *told) as application:
        counted = reference.consume(output, "earliest", count)
        application.terminate()
        assert application.wait(30) in (0, 128 + signal.SIGTERM)

    reference.produce(output, [{"key": b"end", "value": b"end"}])
    counted = reference.consume(output, "earliest", count + 1)
    assert counted.pop()["key"] == b"end"
    sequences: dict[str, list[int]] = defaultdict(list)
    for record in counted:
        sequences[record["key"].decode()].append(int(record["value"]))
    assert sequences == {word: list(range(1, n + 1)) for word, n in total.items()}
