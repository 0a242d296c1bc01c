"""Stock producers that remember what they were told, and the checks of what became of it.

Each producer is idempotent and asks for acks=all; it numbers its records. Afterwards everything is
read back: whatever was acknowledged is at its offset, nothing is there twice, and the records of a
producer are in their order within each partition. The files of the replicas hold the same batches.

No fault is a reason for a producer to begin a new epoch. librdkafka does so if it is told that a
batch is out of order, and then sends again what may be stored already: a record that is there twice
is a rare consequence, so that the epochs themselves are watched.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import zip_longest
from pathlib import Path

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from chronik.protocol.batch import split

GAP_S = 0.05  # what is shorter is no gap
READ_S = 60.0
UNKNOWN = -1
Rows = dict[int, list[tuple[int, str]]]  # by partition: offset and value


class _Listening(logging.Logger):
    """Hears what librdkafka has to say, and keeps it from everybody else."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__("librdkafka", logging.DEBUG)
        self._tell = tell

    def handle(self, record: logging.LogRecord) -> None:
        self._tell(record.getMessage())


class Load:
    """One producer in a thread of its own. Its records are `NAME:NUMBER`."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        name: str,
        partitions: int,
        pause_s: float = 0.001,
        settings: Mapping[str, int] = {},
    ) -> None:
        self._topic, self._name, self._partitions = topic, name, partitions
        self._pause_s = pause_s
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 2,
                "message.timeout.ms": 300_000,
                "debug": "eos",  # what becomes of sequences and epochs
                "log_level": 7,
                **settings,
            },
            logger=_Listening(self._told),
        )
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._last_ack_s = 0.0
        self.sent = 0
        self.acked: dict[str, tuple[int, int]] = {}
        self.failed: list[str] = []
        self.epochs: list[str] = []  # why others than the first were begun
        self.gaps_s: list[float] = []

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed.append(str(error))
            return
        now_s = time.monotonic()
        if self._last_ack_s and now_s - self._last_ack_s > GAP_S:
            self.gaps_s.append(now_s - self._last_ack_s)
        self._last_ack_s = now_s
        value, partition, offset = message.value(), message.partition(), message.offset()
        assert value is not None
        assert partition is not None
        # If a later record was acknowledged, so is this one, though nobody told its offset.
        self.acked[value.decode()] = (partition, UNKNOWN if offset is None else offset)

    def _told(self, line: str) -> None:
        if "epoch bump" in line or "ERRSEQ" in line:
            self.epochs.append(line)

    def _run(self) -> None:
        while not self._end.is_set():
            try:
                self._producer.produce(
                    self._topic,
                    f"{self._name}:{self.sent}".encode(),
                    partition=self.sent % self._partitions,
                    on_delivery=self._delivered,
                )
                self.sent += 1
            except BufferError:
                self._producer.poll(0.05)
            self._producer.poll(0)
            time.sleep(self._pause_s)

    def start(self) -> None:
        self._thread.start()

    def pause(self) -> float:
        """The longest gap since the last call."""
        gaps, self.gaps_s = self.gaps_s, []
        return max(gaps, default=0.0)

    def stop(self) -> None:
        """Send no more, and wait until the rest is acknowledged."""
        self._end.set()
        self._thread.join()
        left = self._producer.flush(120)
        assert left == 0, f"{left} records of {self._name} have no outcome: {self.failed[:3]}"


def read_back(bootstrap: str, topic: str, partitions: int) -> Rows:
    """Every record of a topic, by partition, from offset 0 to the high watermark."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "read-back",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    found: Rows = {}
    for partition in range(partitions):
        place = TopicPartition(topic, partition, 0)
        low, high = _watermarks(consumer, place)
        assert low == 0
        consumer.assign([place])
        rows = found[partition] = []
        deadline_s = time.monotonic() + READ_S
        while (rows[-1][0] + 1 if rows else 0) < high:
            assert time.monotonic() < deadline_s, f"{topic}-{partition}: {len(rows)} of {high}"
            for message in consumer.consume(5_000, 0.2):
                assert message.error() is None, message.error()
                offset, value = message.offset(), message.value()
                assert offset is not None
                assert value is not None
                rows.append((offset, value.decode()))
    consumer.close()
    return found


def _watermarks(consumer: Consumer, place: TopicPartition) -> tuple[int, int]:
    """Where a partition begins and ends, whoever leads it next."""
    deadline_s = time.monotonic() + READ_S
    while True:
        try:
            return consumer.get_watermark_offsets(place, timeout=20)
        except KafkaException:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.1)


def check_records(
    found: Rows,
    acked: Mapping[str, tuple[int, int]],
    tell: Callable[[tuple[int, int]], object] = str,
) -> None:
    """Nothing that was acknowledged is lost or elsewhere, nothing is twice, all is in order.

    `tell` says what is known of a place, if something is wrong with it.
    """
    places: dict[str, tuple[int, int]] = {}
    for partition, rows in found.items():
        last: dict[str, int] = {}
        for expected_offset, (offset, value) in enumerate(rows):
            assert offset == expected_offset, f"partition {partition} has a hole before {offset}"
            place = (partition, offset)
            if value in places:
                raise AssertionError(f"{value} is at {tell(places[value])} and at {tell(place)}")
            places[value] = place
            name, _, number = value.partition(":")
            before = last.get(name, -1)
            assert int(number) > before, f"{value} at {tell(place)} comes after {before}"
            last[name] = int(number)
    lost = acked.keys() - places.keys()
    wrong = {
        value: place
        for value, place in acked.items()
        if place != places.get(value) and (place[1] != UNKNOWN or value in lost)
    }
    assert not wrong, f"{len(lost)} lost, {len(wrong)} misplaced: {sorted(wrong.items())[:5]}"


def log_bytes(data_dir: Path, topic: str, partition: int) -> bytes:
    """The segment files of one replica, one after the other."""
    (directory,) = (data_dir / "topics").glob(f"{topic}.*")
    segments = sorted((directory / str(partition)).glob("*.log"))
    return b"".join(each.read_bytes() for each in segments)


def tell_batch(data_dir: Path, topic: str, place: tuple[int, int]) -> str:
    """A place, and the batch that is there: whose it is, and in which epoch."""
    partition, offset = place
    headers = [each.header for each in split(log_bytes(data_dir, topic, partition))]
    return f"{place} in {next(each for each in headers if each.last_offset >= offset)}"


def check_replicas(data_dirs: Iterable[Path], topic: str, partitions: int) -> int:
    """The replicas hold the same batches; how many that are. The nodes must be at rest."""
    count = 0
    first, *others = data_dirs
    for partition in range(partitions):
        expected = split(log_bytes(first, topic, partition))
        count += len(expected)
        for other in others:
            batches = split(log_bytes(other, topic, partition))
            for one, two in zip_longest(expected, batches):
                same = one is not None and two is not None and one.data == two.data
                where = f"{topic}-{partition}: {first.name} and {other.name} differ"
                assert same, f"{where}: {one and one.header} and {two and two.header}"
    return count
